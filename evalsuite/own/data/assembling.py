"""From what a reader gives to the four parts of `Data`, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import torch

from evalsuite.contract import IGNORED, Data, Split, Task
from evalsuite.own.data.augmenting import augmentation
from evalsuite.own.data.cutting import Targets, cut
from evalsuite.own.data.raw import PARTS, Part, Raw
from evalsuite.own.data.source import Source
from evalsuite.own.data.targets import kind_of, numbered
from evalsuite.references import OwnError
from evalsuite.samples import Inputs, Samples, leaves, mapped

TargetsOf = Callable[[Inputs], torch.Tensor]
_BATCH = 64


def assemble(raw: Raw, source: Source, task: Task, fingerprint: str, targets_of: TargetsOf | None) -> Data:
    """Number the targets, cut what is missing, encode, check.

    Raises:
        OwnError: something of it cannot be; the text names it, and the cure.
    """
    kind = kind_of(task)
    if kind == "tokens":
        raw.parts = {name: _shifted(part) for name, part in raw.parts.items()}
    _check_given(raw)
    if kind == "vectors" and raw.parts["train"].targets is None:
        targets, classes = {name: torch.zeros(len(each.inputs)) for name, each in raw.parts.items()}, 0
    else:
        targets, classes = numbered(raw.parts, kind, source.labels or raw.labels, raw.vocabulary or 0)
    if kind == "tokens":
        _check_next(raw, targets)
        raw.vocabulary = classes
    parts, targets = cut(raw, targets, source)
    if raw.fit is not None:
        encode = raw.fit(parts["train"].inputs[:])
        for name, part in parts.items():
            parts[name] = Part(encode(part.inputs[:]), None, part.where)
    if classes == 0:
        targets = {name: _asked(part, targets_of) for name, part in parts.items()}
        classes = targets["train"].shape[1]
    low, high = _checked(parts, raw)
    augment = augmentation(source.augment) if source.augment else None
    train, calibration, validation, test = (
        _split(parts[name], targets[name], task, augment if name == "train" else None) for name in PARTS
    )
    return Data(train, calibration, validation, test, (low, high), classes, fingerprint, raw.vocabulary)


def _check_given(raw: Raw) -> None:
    """The training part is there, no part is empty, none is another, and all are alike."""
    given = ", ".join(raw.parts)
    if "train" not in raw.parts:
        raise OwnError(f"{raw.said}: there is no training part, only {given}; name one 'train'")
    for name, part in raw.parts.items():
        if not len(part.inputs):
            raise OwnError(f"{raw.said}: the part {name} is empty; give it samples, or leave it out to have it cut")
        if part.targets is not None and len(part.targets) != len(part.inputs):
            sizes = f"{len(part.inputs)} inputs but {len(part.targets)} targets"
            raise OwnError(f"{raw.said}: the part {name} has {sizes}; give each sample one")
    for one, other in combinations(raw.parts, 2):
        if raw.parts[one].inputs is raw.parts[other].inputs:
            cure = "what is trained on must not be measured on; give others, or leave them out to have them cut"
            raise OwnError(f"{raw.said}: the parts {one} and {other} are the same samples: {cure}")
    shapes = {name: _shapes(part) for name, part in raw.parts.items()}
    for name, shape in shapes.items():
        if shape != shapes["train"]:
            said = f"one sample of train is {shapes['train']}, of {name} {shape}"
            raise OwnError(f"{raw.said}: {said}; give all parts the same inputs")


def _shifted(part: Part) -> Part:
    """Tokens without targets, (samples, positions): the next one is the target, and the last has none."""
    tokens = part.inputs
    if part.targets is not None or not isinstance(tokens, torch.Tensor) or tokens.ndim != 2 or tokens.shape[1] < 2:
        return part
    return part if tokens.is_floating_point() else Part(tokens[:, :-1], tokens[:, 1:], part.where)


def _shapes(part: Part) -> str:
    inputs = part.inputs if isinstance(part.inputs, torch.Tensor) else part.inputs.first
    shapes = mapped(inputs, lambda each: each[0])
    named = shapes.items() if isinstance(shapes, dict) else (("", each) for each in leaves(shapes))
    return ", ".join(f"{name} {tuple(each.shape)}".strip() for name, each in named)


def _check_next(raw: Raw, targets: Targets) -> None:
    """Targets of a language model are the tokens that follow: equal to the inputs they would be read off."""
    inputs = leaves(raw.parts["train"].inputs[:_BATCH])[0]
    wanted = targets["train"][: len(inputs)]
    if inputs.shape == wanted.shape and bool((inputs == wanted)[wanted != IGNORED].all()):
        cure = "give at each position the next one"
        raise OwnError(f"{raw.said}: the targets of a language model are the tokens themselves: {cure}")


def _asked(part: Part, targets_of: TargetsOf | None) -> torch.Tensor:
    if targets_of is None:
        cure = "name the column of vectors with `target`, or give a model that is trained already"
        raise OwnError(f"{part.where(-1)}: the data have no targets, and no original model gives them; {cure}")
    batches = (part.inputs[start : start + _BATCH] for start in range(0, len(part.inputs), _BATCH))
    with torch.no_grad():
        found = torch.cat([targets_of(each).float() for each in batches])
    if found.ndim != 2:
        raise OwnError(f"the model gives outputs of shape {tuple(found.shape)}; an embedding is (samples, width)")
    return found


def _checked(parts: dict[str, Part], raw: Raw) -> tuple[float, float]:
    """The range of the inputs, all of which are finite."""
    if raw.domain is not None:
        return raw.domain
    if raw.vocabulary is not None and not any(each.is_floating_point() for each in leaves(parts["train"].inputs[:1])):
        return 0.0, raw.vocabulary - 1.0
    lows, highs = [], []
    for part in parts.values():
        for start, batch in _real(part):
            flat = batch.reshape(len(batch), -1)
            wrong = (~flat.isfinite()).any(1).nonzero().flatten()
            if len(wrong):
                where = part.where(start + int(wrong[0]))
                cure = "correct it, or leave the sample out"
                raise OwnError(f"{where}: an input is NaN or infinite; {cure}")
            lows.append(flat.min().item())
            highs.append(flat.max().item())
    if raw.vocabulary is not None:
        return 0.0, raw.vocabulary - 1.0
    low, high = min(lows), max(highs)
    if low == high:
        raise OwnError(f"{raw.said}: all inputs are {low:.6g}: nothing to learn from")
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def _real(part: Part) -> Iterator[tuple[int, torch.Tensor]]:
    size = _BATCH if isinstance(part.inputs, Samples) else len(part.inputs)
    for start in range(0, len(part.inputs), size):
        yield from ((start, each) for each in leaves(part.inputs[start : start + size]) if each.is_floating_point())


def _split(
    part: Part, targets: torch.Tensor, task: Task, augment: Callable[[Inputs, torch.Generator], Inputs] | None
) -> Split:
    try:
        return Split(part.inputs, targets, task, augment)
    except ValueError as error:
        raise OwnError(f"{part.where(-1)}: {error}") from error
