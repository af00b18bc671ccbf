"""From a source to `Data`: which reader reads it, and its four parts as the task takes them,
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from evalsuite.contract import IGNORED, Data, Split, Task
from evalsuite.data.arrays import read_npz
from evalsuite.data.classes import Naming, check_alike
from evalsuite.data.features import read_features
from evalsuite.data.fingerprint import fingerprint
from evalsuite.data.functions import read_made
from evalsuite.data.images import has_images, image_column, read_folder, read_images
from evalsuite.data.leaks import told_by_arrays
from evalsuite.data.masks import read_masks
from evalsuite.data.parts import CUT, PARTS, Part, Raw, Targets, cut
from evalsuite.data.scales import other_scales
from evalsuite.data.source import AUGMENTATIONS, USUAL_LENGTH, Source, source_of
from evalsuite.data.tables import Table, is_table, is_text, read_tables, target_columns
from evalsuite.data.targets import Kind, Numbered, kind_of, numbered, numbered_heads
from evalsuite.data.texts import (
    is_corpus,
    read_corpus,
    read_rows,
    read_tags,
    read_texts,
    text_columns,
)
from evalsuite.data.tokenizers import tokenizer_of
from evalsuite.references import blame, resolve
from evalsuite.samples import Samples
from evalsuite.tasks.amended import shaped
from opgraph.errors import OwnError
from opgraph.inputs import Inputs, leaves, mapped
from opgraph.limits import computing, reading

TargetsOf = Callable[[Inputs], torch.Tensor]
_KNOWN = (
    "known are .npz, .csv, .tsv, .parquet, .jsonl, .txt, folders of images or of these, and"
    " my.py:make_data"
)
_BATCH = 64
_NAMED = 3  # classes that a note names


def read_data(
    source: Source,
    task: Task,
    *,
    tokenizer: str | None = None,
    targets_of: TargetsOf | None = None,
    naming: Naming | None = None,
) -> Data:
    """A user's data in four disjoint parts; those that are not given are cut from the training
    part.

    Args:
        source: where they are, and how to read them.
        task: what the model is for; it says what targets are.
        tokenizer: the model's own, used where the source names none.
        targets_of: gives the targets of a batch of inputs, as the original model's outputs are
            those of an embedding without targets of its own: float32 (samples, width).
        naming: what names the classes beside the data; by default `labels` and `order` of the
            source.

    Raises:
        OwnError: something of the data cannot be; the text names the culprit, the value and the
            cure.
    """
    naming = naming or Naming()
    naming = replace(naming, chosen=source.labels, order=source.order or naming.order)
    source = replace(source, length=source.length or USUAL_LENGTH)
    with nullcontext() if source.is_function else reading(source.path):
        return _data(source, task, tokenizer, targets_of, naming)


def is_running_text(option: Any) -> bool:
    """Whether the data are files of text alone, whose only targets are their own tokens; False for
    data that cannot be found or are refused, which whoever reads them tells.

    Args:
        option: the data as the option `data` of `own` names them.
    """
    try:
        source = source_of(option)
        if source.is_function:
            return False
        place = source.place
        # In the order of `_read_place`: a folder of images is told by the first, a corpus by all.
        if place.is_dir() and has_images(place):
            return False
        return not is_table(place) and is_corpus(place)
    except (OwnError, OSError):
        return False


def _data(
    source: Source, task: Task, tokenizer: str | None, targets_of: TargetsOf | None, naming: Naming
) -> Data:
    raw = _read(source, kind_of(task), source.tokenizer or tokenizer)
    if isinstance(raw, Data):
        train, calibration, validation, test = (
            replace(getattr(raw, name), task=task) for name in PARTS
        )
        digest = fingerprint(source)
        return replace(
            raw,
            train=train,
            calibration=calibration,
            validation=validation,
            test=test,
            fingerprint=digest,
        )
    return _assembled(raw, source, task, targets_of, naming)


def _read(source: Source, kind: Kind, tokenizer: str | None) -> Raw | Data:
    if source.is_function:
        return read_made(source)
    try:
        return _read_place(source, source.place, kind, tokenizer)
    except OSError as error:
        raise OwnError(
            f"{error.filename or source.path}: {error.strerror}; let it be read by this user"
        ) from error


def _read_place(source: Source, place: Path, kind: Kind, tokenizer: str | None) -> Raw:
    # 1. What is told by the file's ending, or by what the folder holds: arrays, and images.
    if place.is_file():
        if not place.stat().st_size:
            raise OwnError(f"{source.path}: is empty; give it samples")
        if place.suffix in (".npz", ".npy"):
            return read_npz(source)
    elif not any(place.iterdir()):
        raise OwnError(f"{source.path}: the folder is empty; give it samples")
    elif not (place / "state.json").is_file() and has_images(place):
        return read_masks(source) if kind == "places" else read_folder(source, kind)
    # 2. Tables, of any kind of inputs; and running text, whose targets are its own tokens.
    if is_table(place):
        return _of_tables(read_tables(source), source, kind, tokenizer)
    if is_corpus(place):
        if kind != "tokens":
            cure = "choose task language-model, or write texts and targets as .jsonl"
            raise OwnError(f"{source.path}: running text has no targets for this task; {cure}")
        return read_corpus(source, tokenizer_of(tokenizer or "bytes", source.path))
    what = (
        f"a file {place.suffix or 'without an ending'}"
        if place.is_file()
        else "a folder with none of them"
    )
    raise OwnError(f"{source.path}: unknown kind of data, {what}; {_KNOWN}")


def _of_tables(
    tables: Mapping[str, Table], source: Source, kind: Kind, tokenizer: str | None
) -> Raw:
    # 1. The training part, and targets whose listed names agree in all parts.
    train = tables.get("train")
    if train is None:
        raise OwnError(
            f"{source.path}: there is no training part, only {', '.join(tables)}; name one 'train'"
        )
    for name in target_columns(train, source):
        if not any(is_text(table, name) for table in tables.values()):
            listed = {part: table.names.get(name, ()) for part, table in tables.items()}
            check_alike(listed, source.path)
    # 2. The reader by the task, and else by what the columns hold: images, texts, or numbers and
    # categories.
    if kind == "tokens":
        return read_rows(tables, source, tokenizer_of(tokenizer or "bytes", source.path))
    if kind == "tags":
        return read_tags(tables, source, tokenizer_of(tokenizer, source.path))
    if image := image_column(train, source):
        return read_images(tables, source, kind, image)
    if text_columns(train, source):
        return read_texts(tables, source, kind, tokenizer_of(tokenizer, source.path))
    return read_features(tables, source, kind)


def _assembled(
    raw: Raw, source: Source, task: Task, targets_of: TargetsOf | None, naming: Naming
) -> Data:
    """Number the targets, cut what is missing, encode, check."""
    # 1. Targets as numbers. Those of running text are its own tokens, one further.
    kind, digest = kind_of(task), fingerprint(source)
    if kind == "tokens":
        raw.parts = {name: _shifted(part) for name, part in raw.parts.items()}
    _check_given(raw)
    task, numbers, notes_of_heads = _numbered_for(task, kind, raw, source, naming)
    targets, classes = numbers.targets, numbers.count
    if kind == "tokens":
        _check_next(raw, targets)
        raw.vocabulary = classes
    for name, values in targets.items():
        if values.ndim != targets["train"].ndim:
            said = f"the targets of train are {_dimensions(targets['train'])}, of {name}"
            raise OwnError(
                f"{raw.said}: {said} {_dimensions(values)}; give all parts targets of one form"
            )
    lacking = _lacking(numbers) if kind == "classes" else ""
    # The columns of a table were looked at where they were read.
    is_plain = kind in ("classes", "values") and raw.fit is None
    leak = told_by_arrays(raw.parts, targets) if is_plain else ""
    doubts = [*([leak] if leak else []), *other_scales(raw.parts, targets)]
    # 2. Cut what is missing, and only then fit the encoding: its means and ranges are of the
    # training part alone.
    parts, targets = cut(raw, targets, source)
    encoding = None if raw.fit is None else raw.fit(parts["train"].inputs[:])
    if encoding is not None:
        for name, part in parts.items():
            parts[name] = Part(encoding.encode(part.inputs[:]), None, part.where, part.keys)
    # 3. Targets that are a teacher's outputs are asked for now, of the encoded inputs.
    if classes == 0:
        targets = {name: _asked(part, targets_of) for name, part in parts.items()}
        classes = targets["train"].shape[1]
    # 4. The range of inputs, and the four splits; random changes of images are for training
    # alone.
    domain = _domain(parts, raw)
    if source.augment in AUGMENTATIONS and _of_places(task):
        raise OwnError(
            f"data.augment: {source.augment} would move pictures and not the classes of their"
            " places; leave it out, or give my.py:augment, which changes colours alone"
        )
    augment = _augmentation(source.augment) if source.augment else None
    train, calibration, validation, test = (
        _split(parts[name], targets[name], task, augment if name == "train" else None)
        for name in PARTS
    )
    # 5. What to say of it all.
    notes = raw.notes
    names: tuple[str, ...] = ()
    if numbers.classes is not None:
        names = numbers.classes.names
        notes = (*notes, ("classes", f"{numbers.classes.described()}{lacking}"))
    notes = (*notes, *notes_of_heads, *(("warning", sentence) for sentence in doubts))
    if cut_off := [name for name in PARTS if name not in raw.parts]:
        notes = (*notes, (CUT, ", ".join(cut_off)))
    return Data(
        train,
        calibration,
        validation,
        test,
        domain,
        classes,
        digest,
        raw.vocabulary,
        class_names=names,
        notes=notes,
        columns=() if encoding is None else encoding.columns,
    )


def _numbered_for(
    task: Task, kind: Kind, raw: Raw, source: Source, naming: Naming
) -> tuple[Task, Numbered, tuple[tuple[str, str], ...]]:
    """Return the task with the form of its targets, the targets as numbers, and what to say of
    several heads. A teacher's outputs are no targets yet: 0 stands for them.
    """
    if kind == "heads":
        heads: Any = getattr(task, "task", task)
        joined, heads, notes = numbered_heads(raw.parts, heads, bool(source.target))
        shaped_task = shaped(task, targets=heads.targets, real=heads.real)
        return shaped_task, Numbered(joined, joined["train"].shape[1]), notes
    if kind == "vectors" and raw.parts["train"].targets is None:
        zeros = {name: torch.zeros(len(part.inputs)) for name, part in raw.parts.items()}
        return task, Numbered(zeros, 0), ()
    # Only names of folders, or an order that the user asks for, are sorted otherwise.
    naming = replace(naming, order=naming.order if raw.folders or source.order else "")
    naming = replace(naming, order="text") if raw.folders and not naming.order else naming
    return task, numbered(raw.parts, kind, naming, raw.labels, raw.vocabulary or 0), ()


def _dimensions(targets: torch.Tensor) -> str:
    return "numbers" if targets.ndim == 1 else f"rows of {targets[0].numel()} numbers"


def _lacking(numbered_targets: Numbered) -> str:
    """Tell of classes without a sample, and of samples that count nowhere."""
    targets = torch.cat([part.flatten() for part in numbered_targets.targets.values()])
    known = targets[targets != IGNORED]
    uncounted, seen = len(targets) - len(known), set(known.tolist())
    absent = [place for place in range(numbered_targets.count) if place not in seen]
    said = ""
    if absent:
        shown = ", ".join(map(str, absent)) if len(absent) <= _NAMED else f"{len(absent)} of them"
        said = f"; no sample of {shown}"
    if uncounted:
        said += f"; {uncounted:,} of {len(targets):,} samples have {IGNORED}, and count nowhere"
    return said


def _of_places(task: Task) -> bool:
    """Whether a target of the task is of places, which move where the inputs are moved."""
    inner: Any = getattr(task, "task", task)
    tasks = [task_of_head for _, task_of_head in getattr(inner, "heads", (("", inner),))]
    return any(kind_of(task_of_head) == "places" for task_of_head in tasks)


def _shifted(part: Part) -> Part:
    """Tokens without targets, (samples, positions): the next one is the target, and the last has
    none.
    """
    tokens = part.inputs
    if (
        part.targets is not None
        or not isinstance(tokens, torch.Tensor)
        or tokens.ndim != 2
        or tokens.shape[1] < 2
    ):
        return part
    return part if tokens.is_floating_point() else Part(tokens[:, :-1], tokens[:, 1:], part.where)


def _check_given(raw: Raw) -> None:
    """The training part is there, no part is empty, none is another, and all are alike."""
    # 1. There is something to train on, and no part is empty or lacks targets.
    if "train" not in raw.parts:
        raise OwnError(
            f"{raw.said}: there is no training part, only {', '.join(raw.parts)}; name one 'train'"
        )
    for name, part in raw.parts.items():
        if not len(part.inputs):
            raise OwnError(
                f"{raw.said}: the part {name} is empty; give it samples, or leave it out to have"
                " it cut"
            )
        several = part.targets.values() if isinstance(part.targets, Mapping) else [part.targets]
        counts = [len(samples) for samples in several if samples is not None]
        if wrong := [count for count in counts if count != len(part.inputs)]:
            sizes = f"{len(part.inputs)} inputs but {wrong[0]} targets"
            raise OwnError(f"{raw.said}: the part {name} has {sizes}; give each sample one")
    # 2. No part is another.
    for one, other in combinations(raw.parts, 2):
        if raw.parts[one].inputs is raw.parts[other].inputs:
            cure = (
                "what is trained on must not be measured on; give others, or leave them out to have"
                " them cut"
            )
            raise OwnError(f"{raw.said}: the parts {one} and {other} are the same samples: {cure}")
    # 3. Samples of all parts have one shape.
    shapes = {name: _shapes(part) for name, part in raw.parts.items()}
    for name, shape in shapes.items():
        if shape != shapes["train"]:
            said = f"one sample of train is {shapes['train']}, of {name} {shape}"
            raise OwnError(f"{raw.said}: {said}; give all parts the same inputs")


def _shapes(part: Part) -> str:
    inputs = part.inputs if isinstance(part.inputs, torch.Tensor) else part.inputs.first
    shapes = mapped(inputs, lambda leaf: leaf[0])
    named = shapes.items() if isinstance(shapes, dict) else (("", leaf) for leaf in leaves(shapes))
    return ", ".join(f"{name} {tuple(leaf.shape)}".strip() for name, leaf in named)


def _check_next(raw: Raw, targets: Targets) -> None:
    """Targets of a language model are the tokens that follow: equal to the inputs they would be
    read off.
    """
    inputs = leaves(raw.parts["train"].inputs[:_BATCH])[0]
    wanted = targets["train"][: len(inputs)]
    if inputs.shape == wanted.shape and bool((inputs == wanted)[wanted != IGNORED].all()):
        cure = "give at each position the next one"
        raise OwnError(
            f"{raw.said}: the targets of a language model are the tokens themselves: {cure}"
        )


def _asked(part: Part, targets_of: TargetsOf | None) -> torch.Tensor:
    if targets_of is None:
        cure = "name the column of vectors with `target`, or give a model that is trained already"
        raise OwnError(
            f"{part.where(-1)}: the data have no targets, and no original model gives them; {cure}"
        )
    batches = (part.inputs[start : start + _BATCH] for start in range(0, len(part.inputs), _BATCH))
    with torch.no_grad(), computing():
        targets = torch.cat([targets_of(batch).float() for batch in batches])
    if targets.ndim != 2:
        raise OwnError(
            f"the model gives outputs of shape {tuple(targets.shape)}; an embedding is (samples,"
            " width)"
        )
    return targets


def _domain(parts: dict[str, Part], raw: Raw) -> tuple[float, float]:
    """The range of the inputs, all of which are finite."""
    # Where no reader tells the range, every input is looked at: one NaN would spoil training
    # without a word.
    if raw.domain is not None:
        return raw.domain
    tokens = None if raw.vocabulary is None else (0.0, raw.vocabulary - 1.0)
    if tokens is not None and not any(
        leaf.is_floating_point() for leaf in leaves(parts["train"].inputs[:1])
    ):
        return tokens
    lows, highs = [], []
    for part in parts.values():
        for start, batch in _real(part):
            flat = batch.reshape(len(batch), -1)
            wrong = (~flat.isfinite()).any(1).nonzero().flatten()
            if len(wrong):
                where = part.where(start + int(wrong[0]))
                raise OwnError(
                    f"{where}: an input is NaN or infinite; correct it, or leave the sample out"
                )
            lows.append(flat.min().item())
            highs.append(flat.max().item())
    if tokens is not None:
        return tokens
    low, high = min(lows), max(highs)
    if low == high:
        raise OwnError(f"{raw.said}: all inputs are {low:.6g}: nothing to learn from")
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def _real(part: Part) -> Iterator[tuple[int, torch.Tensor]]:
    size = _BATCH if isinstance(part.inputs, Samples) else len(part.inputs)
    for start in range(0, len(part.inputs), size):
        yield from (
            (start, leaf)
            for leaf in leaves(part.inputs[start : start + size])
            if leaf.is_floating_point()
        )


def _split(
    part: Part,
    targets: torch.Tensor,
    task: Task,
    augment: Callable[[Inputs, torch.Generator], Inputs] | None,
) -> Split:
    try:
        return Split(
            part.inputs, targets, task, augment, None if part.keys is None else tuple(part.keys)
        )
    except ValueError as error:
        raise OwnError(f"{part.where(-1)}: {error}") from error


def _augmentation(name: str) -> Callable[[Inputs, torch.Generator], Inputs]:
    """A function of a batch and a generator: "flip", "crop-flip", or a user's."""
    if name in AUGMENTATIONS:
        return flip if name == "flip" else crop_flip
    resolve(name, what="the augmentation")
    return Augment(name)


class Augment:
    """A user's function, found by its reference, so that it can be pickled; its errors name the
    user's line.
    """

    def __init__(self, reference: str) -> None:
        self._reference = reference

    def __call__(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        """The batch, changed. Raises OwnError where the function raises, or gives another shape."""
        function = resolve(self._reference, what="the augmentation")
        try:
            augmented: Inputs = function(inputs, generator)
            shapes = [tuple(leaf.shape) for leaf in leaves(augmented)]
        except Exception as error:  # a user's function may raise anything
            raise blame(error, "the augmentation", self._reference) from error
        wanted = [tuple(leaf.shape) for leaf in leaves(inputs)]
        if shapes != wanted:
            raise OwnError(
                f"{self._reference}: gives inputs of shape {shapes} for {wanted}; keep the shape"
            )
        return augmented


def flip(inputs: Inputs, generator: torch.Generator) -> Inputs:
    """Half of the images (samples, channels, height, width), left to right."""
    if not isinstance(inputs, torch.Tensor) or inputs.ndim != 4:
        raise OwnError(
            "data.augment: flip and crop-flip are of images (samples, channels, height, width)"
        )
    chosen = torch.rand(len(inputs), generator=generator) < 0.5
    return torch.where(chosen[:, None, None, None], inputs.flip(-1), inputs)


def crop_flip(inputs: Inputs, generator: torch.Generator) -> Inputs:
    """Flip images as `flip` does, then shift each by up to an eighth of its height and width; what
    comes in from outside is 0.
    """
    images = flip(inputs, generator)
    assert isinstance(images, torch.Tensor)
    count, _, height, width = images.shape
    most = max(1, height // 8), max(1, width // 8)
    # Pad by the greatest shift on all sides, then cut a window at a random place of each image.
    padded = functional.pad(images, (most[1], most[1], most[0], most[0]))
    down = torch.randint(2 * most[0] + 1, (count, 1), generator=generator) + torch.arange(height)
    across = torch.randint(2 * most[1] + 1, (count, 1), generator=generator) + torch.arange(width)
    return padded[
        torch.arange(count)[:, None, None], :, down[:, :, None], across[:, None, :]
    ].permute(0, 3, 1, 2)
