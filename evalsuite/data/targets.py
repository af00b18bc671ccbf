"""Targets as a task wants them, from names or numbers: each that cannot be one is refused with
its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from evalsuite.contract import IGNORED, Task
from evalsuite.data.arrays import coarse
from evalsuite.data.classes import Classes, Naming, normal, of_numbers, of_texts
from evalsuite.data.parts import Part
from evalsuite.decimals import other_spelling
from evalsuite.plugins import did_you_mean
from netverify.decimals import is_decimal
from opgraph.errors import OwnError

if TYPE_CHECKING:
    from evalsuite.tasks import Heads

Kind = Literal["classes", "places", "tags", "tokens", "labels", "values", "vectors", "heads", ""]
_SHOWN = 60
_BEYOND = 2**63  # of a label's size: there is no whole number of 64 bits
_FEWEST_ALONE = 20  # samples, each with a class of its own, that are no classes
_MOST_GAPS = 1000  # numbers without a sample that may lie between classes


def kind_of(task: Task) -> Kind:
    """Name the targets of a task; "" of a user's own task that says nothing: what the data
    have.

    A user's task inherits from one of ours, or says it in a class variable `targets`.
    """
    from evalsuite import tasks

    kinds: dict[type, Kind] = {
        tasks.LanguageModel: "tokens",
        tasks.TokenClassification: "tags",
        tasks.Classification: "classes",
        tasks.Segmentation: "places",
        tasks.MultiLabel: "labels",
        tasks.Regression: "values",
        tasks.Embedding: "vectors",
        tasks.Heads: "heads",
    }
    kind: Kind = getattr(task, "targets", "")
    return kind or next((kind for cls, kind in kinds.items() if isinstance(task, cls)), "")


@dataclass(frozen=True)
class Numbered:
    """The targets of each part as a tensor, how many outputs they ask for, and the classes where
    they are such.
    """

    targets: dict[str, torch.Tensor]
    count: int
    classes: Classes | None = None


_OF_HEADS: tuple[Kind, ...] = ("classes", "places", "labels", "values", "vectors")


def numbered_heads(
    parts: Mapping[str, Part], heads: Heads, listed: bool
) -> tuple[dict[str, torch.Tensor], Heads, tuple[tuple[str, str], ...]]:
    """The targets of each part beside one another, the task with their shapes, and what to say of
    the classes. With `listed`, the data's own names of the targets stand in the order of the
    outputs. Raises OwnError: see `numbered`; or an output has no targets.
    """
    columns = {name: _of_outputs(part, heads.names, listed) for name, part in parts.items()}
    of_parts: dict[str, list[torch.Tensor]] = {name: [] for name in parts}
    notes = []
    for place, (name, task) in enumerate(heads.heads):
        kind = kind_of(task)
        if kind not in _OF_HEADS:
            said = f"task: the output {name} has a task {type(task).__name__}"
            raise OwnError(f"{said}, which no network of several outputs may have")
        parts_of_head = {
            part: Part(
                part_values.inputs, columns[part][place], partial(_named, name, part_values.where)
            )
            for part, part_values in parts.items()
        }
        head = numbered(parts_of_head, kind, Naming())
        for part, targets in head.targets.items():
            of_parts[part].append(targets)
        if head.classes is not None:
            notes.append((f"classes of {name}", head.classes.described()))
    train = of_parts["train"]
    shaped = replace(
        heads,
        targets=tuple(tuple(tensor.shape[1:]) for tensor in train),
        real=tuple(tensor.is_floating_point() for tensor in train),
    )
    joined = {part: shaped.joined(targets) for part, targets in of_parts.items()}
    return joined, shaped, tuple(notes)


def _named(name: str, where: Callable[[int], str], index: int) -> str:
    return f"{where(index)}, output {name}"


def _of_outputs(part: Part, names: Sequence[str], listed: bool) -> list[Any]:
    """The targets of each output, in their order."""
    targets, count = part.targets, len(names)
    if isinstance(targets, Mapping):
        if set(names) <= targets.keys():
            return [targets[name] for name in names]
        if listed and len(targets) == count:
            return list(targets.values())
        absent = next(name for name in names if name not in targets)
        raise OwnError(
            f"{part.where(-1)}: there are no targets of {absent!r}, only of {', '.join(targets)};"
            " name them in the order of the outputs by `data.target`"
        )
    if isinstance(targets, list) and targets and all(len(_row(row)) == count for row in targets):
        return [list(column) for column in zip(*targets, strict=True)]
    if getattr(targets, "ndim", 0) == 2 and targets.shape[1] == count:
        return [targets[:, place] for place in range(count)]
    raise OwnError(
        f"{part.where(-1)}: there is one target, and {count} outputs have tasks; give the targets"
        f" by the names of the outputs ({', '.join(names)}), as a mapping, or as arrays or columns"
    )


def numbered(
    parts: Mapping[str, Part],
    kind: Kind,
    naming: Naming,
    listed: Sequence[str] = (),
    vocabulary: int = 0,
) -> Numbered:
    """The targets of each part as a tensor.

    Args:
        parts: the training part among them, whose names count where nobody lists any.
        kind: what the targets are.
        naming: what names classes beside the data.
        listed: the names of classes that the data list, by number.
        vocabulary: the number of tokens, where the targets are such.

    Raises:
        OwnError: a target cannot be one; the text has its place, and the cure.
    """
    raw = {name: _listed(part) for name, part in parts.items()}
    kind = kind or _told(raw["train"])
    if kind in ("values", "vectors"):
        values = {name: _values(raw[name], part) for name, part in parts.items()}
        _alike(values)
        return Numbered(values, values["train"][0].numel())
    if kind == "tokens":
        tokens = {name: _whole(raw[name], part) for name, part in parts.items()}
        most = max(vocabulary, *(1 + int(numbers.max()) for numbers in tokens.values()))
        for name, numbers in tokens.items():
            _check_range(numbers, most, parts[name], of_test=False)
        return Numbered(tokens, most)
    if kind == "labels":
        return _multi_hot(raw, parts, naming, listed)
    return _classes(raw, parts, naming, listed, single=kind == "classes", places=kind == "places")


def _listed(part: Part) -> torch.Tensor | list[Any]:
    """A tensor, or a list of texts, numbers or lists of them."""
    targets = part.targets
    if targets is None:
        raise OwnError(
            f"{part.where(-1)}: there are no targets; add them, name them by `data.target`, or"
            " choose another task"
        )
    if isinstance(targets, torch.Tensor):
        return targets.detach().cpu()
    if hasattr(targets, "dtype"):  # numpy's
        return (
            targets.tolist()
            if targets.dtype.kind in "USO"
            else torch.from_numpy(targets.astype(targets.dtype.newbyteorder("=")))
        )
    return list(targets)


def _told(targets: torch.Tensor | list[Any]) -> Kind:
    if isinstance(targets, torch.Tensor):
        return "values" if targets.is_floating_point() else "classes"
    first = targets[0] if targets else ""
    return (
        "labels"
        if isinstance(first, (list, tuple))
        else "values"
        if isinstance(first, float)
        else "classes"
    )


def _alike(of_parts: Mapping[str, torch.Tensor]) -> None:
    shapes = {name: tuple(tensor.shape[1:]) for name, tensor in of_parts.items()}
    other = next((name for name, shape in shapes.items() if shape != shapes["train"]), "")
    if other:
        raise OwnError(
            f"targets: those of train have shape {shapes['train']}, those of {other}"
            f" {shapes[other]}"
        )


def _values(targets: torch.Tensor | list[Any], part: Part) -> torch.Tensor:
    # 1. In float64, so that it shows what float32 would lose.
    if isinstance(targets, torch.Tensor):
        exact = targets.double()
    else:
        rows = [[_number(cell, part, i) for cell in _row(value)] for i, value in enumerate(targets)]
        _check_even(rows, part)
        exact = torch.tensor(rows, dtype=torch.float64)
        exact = exact[:, 0] if rows and not isinstance(targets[0], (list, tuple)) else exact
    # 2. Targets that float32 cannot tell apart, as timestamps, could not be learnt.
    if coarse(exact) is not None:
        said = "the targets differ by less than float32 tells"
        raise OwnError(f"{part.where(-1)}: {said}: subtract an offset, or scale them")
    single = exact.float()
    wrong = single.isinf().reshape(len(single), -1).any(1).nonzero().flatten()
    if len(wrong):
        raise OwnError(
            f"{part.where(int(wrong[0]))}: the target is infinite; correct it, or leave the"
            " sample out"
        )
    return single


def _check_even(rows: Sequence[Any], part: Part) -> None:
    for i, row in enumerate(rows):
        if len(_row(row)) != len(_row(rows[0])):
            said = f"{len(_row(row))} targets, but the first sample has {len(_row(rows[0]))}"
            raise OwnError(f"{part.where(i)}: {said}; give each as many")


def _row(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _number(value: Any, part: Part, index: int) -> float:
    """A target's number. Raises OwnError for what is none, or is spelled as `is_decimal` does
    not read it.
    """
    text = value.strip() if isinstance(value, str) else ""
    number = math.nan
    if not isinstance(value, str):
        with suppress(TypeError, ValueError):
            number = float(value)
    elif is_decimal(text):
        number = float(text)
    if math.isnan(number):
        spelling = other_spelling(text)
        which = f"is of {spelling}" if spelling else "is no number"
        cure = "write it as 1234.5" if spelling else "correct it"
        said = f"the target {_shown(value)} {which}; {cure}, leave the sample out"
        raise OwnError(f"{part.where(index)}: {said}, or choose task classification for names")
    return number


def _multi_hot(
    raw: Mapping[str, torch.Tensor | list[Any]],
    parts: Mapping[str, Part],
    naming: Naming,
    listed: Sequence[str],
) -> Numbered:
    """Zeros and ones (samples, labels), from those, or from lists of names or numbers."""
    # 1. Columns of 0 and 1 are labels already.
    if all(_is_binary(targets) for targets in raw.values()):
        return _of_columns(raw, parts, naming, listed)
    for name, targets in raw.items():
        for i, row in enumerate(targets):
            if not isinstance(row, (list, tuple)):
                cure = 'write it as ["a", "b"], [] where there is none, or give columns of 0 and 1'
                raise OwnError(
                    f"{parts[name].where(i)}: the labels {_shown(row)} are no list; {cure}"
                )
    # 2. Number the labels by those of the training part; another part may not have more.
    flat = [(value, i) for i, row in enumerate(raw["train"]) for value in row]
    where = partial(_row_of, parts["train"].where, [i for _, i in flat])
    values = [value for value, _ in flat]
    if listed and values and all(isinstance(value, int) for value in values):
        classes = of_numbers(len(listed), where, naming, listed)
    else:
        classes = of_texts([str(value) for value in values], where, naming)
    if not classes.count:
        raise OwnError(
            f"{parts['train'].where(-1)}: no sample has a label; name the labels with `labels`"
        )
    # 3. Set a 1 for each label of each sample.
    hot = {}
    for name, targets in raw.items():
        hot[name] = torch.zeros(len(targets), classes.count, dtype=torch.int64)
        for i, row in enumerate(targets):
            for value in row:
                known = (
                    classes.numbers.get(value, value) if listed and isinstance(value, int) else None
                )
                hot[name][i, _place(value, classes, parts[name], i) if known is None else known] = 1
    return Numbered(hot, classes.count, classes)


def _row_of(where: Callable[[int], str], rows: Sequence[int], index: int) -> str:
    return where(rows[index] if index >= 0 else index)


def _of_columns(
    raw: Mapping[str, torch.Tensor | list[Any]],
    parts: Mapping[str, Part],
    naming: Naming,
    listed: Sequence[str],
) -> Numbered:
    """Columns of zeros and ones, in the order of the classes."""
    columns = {
        name: (targets if isinstance(targets, torch.Tensor) else _ones(targets)).long()
        for name, targets in raw.items()
    }
    _alike(columns)
    count = columns["train"].shape[1]
    classes = of_numbers(count, parts["train"].where, naming, listed)
    if classes.count > count and not classes.numbers:
        classes = Classes(count, (), "numbered by the data")
    if classes.numbers:
        for name, targets in columns.items():
            columns[name] = torch.zeros(len(targets), classes.count, dtype=torch.int64)
            columns[name][:, [classes.numbers[place] for place in range(count)]] = targets
    return Numbered(columns, classes.count, classes)


def _ones(targets: list[Any]) -> torch.Tensor:
    return torch.tensor([[int(value) for value in target] for target in targets])


def _is_binary(targets: torch.Tensor | list[Any]) -> bool:
    if isinstance(targets, list):
        if not targets or not all(
            isinstance(target, (list, tuple)) and target for target in targets
        ):
            return False
        try:
            targets = _ones(targets)
        except (TypeError, ValueError):
            return False
    return targets.ndim == 2 and bool(
        ((targets == 0) | (targets == 1) | (targets == IGNORED)).all()
    )


def _classes(
    raw: Mapping[str, torch.Tensor | list[Any]],
    parts: Mapping[str, Part],
    naming: Naming,
    listed: Sequence[str],
    *,
    single: bool,
    places: bool,
) -> Numbered:
    """Class numbers, int64: names by their order, numbers as they are, unless the data's names
    say otherwise.
    """
    # 1. Names: numbered by the order of classes.
    train = parts["train"]
    training = raw["train"]
    if isinstance(training, list) and any(isinstance(target, str) for target in training):
        raw = {name: [_text(target) for target in targets] for name, targets in raw.items()}
        _check_few(raw["train"], train, naming)
        classes = of_texts(list(raw["train"]), train.where, naming, listed)
        numbers = {
            name: torch.tensor(
                [_place(target, classes, parts[name], i) for i, target in enumerate(targets)]
            )
            for name, targets in raw.items()
        }
    else:
        # 2. Numbers: as they are, unless names that are listed move them; gaps are refused where
        # nothing tells what the numbers mean.
        numbers = {name: _whole(targets, parts[name]) for name, targets in raw.items()}
        if places:
            numbers = {name: _flat(targets, parts[name]) for name, targets in numbers.items()}
        if not (naming.chosen or naming.named or listed):
            _check_dense(numbers["train"], train)
        if single and _is_one_hot(numbers["train"]):
            raise OwnError(
                f"{train.where(-1)}: the targets are one-hot; give the classes' numbers,"
                " y.argmax(1)"
            )
        classes = of_numbers(int(numbers["train"].max()) + 1, train.where, naming, listed)
        for name, targets in numbers.items():
            _check_range(
                targets, len(listed) or classes.count, parts[name], of_test=name != "train"
            )
            numbers[name] = _moved(targets, classes.numbers)
    # 3. Every number is a class, and there are two classes at least.
    for name, targets in numbers.items():
        _check_range(targets, classes.count, parts[name], of_test=name != "train")
    seen = numbers["train"][numbers["train"] != IGNORED].unique()  # type: ignore[no-untyped-call]
    if single and not naming.chosen and len(seen) == len(numbers["train"]) >= _FEWEST_ALONE:
        raise OwnError(
            f"{train.where(-1)}: each of the {len(seen)} samples has a class of its own:"
            " identifiers are no classes; give other targets, or list the classes with `labels`"
        )
    if single and len(seen) == 1:
        only = (
            classes.names[int(seen)]
            if classes.names and classes.by != "numbered by the data"
            else int(seen)
        )
        where = train.where(-1)
        raise OwnError(
            f"{where}: all samples are of one class, {only!r}: nothing to learn; add samples of"
            " another"
        )
    return Numbered(numbers, classes.count, classes)


def _flat(targets: torch.Tensor, part: Part) -> torch.Tensor:
    """Classes of places, (samples, height, width), of masks that may have one channel. Raises
    OwnError: there are none.
    """
    if targets.ndim == 4 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim < 2:
        cure = "give (samples, height, width), or choose task classification"
        raise OwnError(f"{part.where(-1)}: the targets have no class for each place: {cure}")
    return targets


def _check_dense(targets: torch.Tensor, part: Part) -> None:
    """Refuse numbers that name classes, as identifiers do: each number up to the highest would
    be a class.
    """
    highest, different = int(targets.max()), len(targets.unique())  # type: ignore[no-untyped-call]
    if highest >= different + _MOST_GAPS:
        place = int((targets.reshape(len(targets), -1) == highest).any(1).nonzero()[0])
        said = (
            f"the label {highest}, where {different} labels differ, would make {highest + 1}"
            " classes"
        )
        raise OwnError(f"{part.where(place)}: {said}; number them from 0, or write them as texts")


def _text(target: Any) -> Any:
    """A number beside texts as they would spell it."""
    if isinstance(target, torch.Tensor):
        target = target.item() if target.ndim == 0 else target.tolist()
    return str(target) if isinstance(target, (int, float)) and not _is_missing(target) else target


def _moved(targets: torch.Tensor, numbers: Mapping[int, int]) -> torch.Tensor:
    """The targets with each of the data's numbers as the class's."""
    moved = targets.clone()
    for number, place in numbers.items():
        moved[targets == number] = place
    return moved


def _check_few(targets: torch.Tensor | list[Any], part: Part, naming: Naming) -> None:
    """Refuse more names than classes have, unless somebody lists them."""
    count = len({normal(target) for target in targets if isinstance(target, str) and target})
    if count > max(10, len(targets) / 2) and not (naming.chosen or naming.named):
        cure = "choose another column or task, or list them with `labels`"
        raise OwnError(
            f"{part.where(-1)}: {count} different labels in {len(targets)} samples are no classes;"
            f" {cure}"
        )


def _place(name: Any, classes: Classes, part: Part, index: int) -> int:
    place = classes.place(name) if name is not None and name != "" else None
    if place is not None:
        return place
    if name is None or str(name).strip() == "":
        raise OwnError(
            f"{part.where(index)}: there is no target; fill it in, or leave the sample out"
        )
    hint = did_you_mean(str(name), classes.names) if classes.count <= 50 else ""
    raise OwnError(f"{part.where(index)}: the label {_shown(name)} is not among the classes{hint}")


def _whole(targets: torch.Tensor | list[Any], part: Part) -> torch.Tensor:
    # 1. A list: each value is a number, none is missing, and all have one shape.
    if isinstance(targets, list):
        targets = [_plain(target) for target in targets]
        wrong = next((i for i, target in enumerate(targets) if not _is_number(target)), None)
        if wrong is not None and _is_missing(targets[wrong]):
            raise OwnError(
                f"{part.where(wrong)}: there is no target; fill it in, or leave the sample out"
            )
        if wrong is not None:
            raise OwnError(
                f"{part.where(wrong)}: the label {_shown(targets[wrong])} is no class, a name or a"
                " number"
            )
        _check_even(targets, part)
        if not targets:
            raise OwnError(
                f"{part.where(-1)}: there are no targets; add them, name them by `data.target`, or"
                " choose another task"
            )
        targets = torch.tensor(targets)
    # 2. Real numbers that are whole.
    if targets.is_floating_point():
        wrong_ones = (
            (targets != targets.round()).reshape(len(targets), -1).any(1).nonzero().flatten()
        )
        if len(wrong_ones):
            value = targets[wrong_ones[0]].flatten()[0].item()
            cure = "classes are whole numbers; for real ones choose task regression"
            raise OwnError(
                f"{part.where(int(wrong_ones[0]))}: the label {value:.6g} is no class: {cure}"
            )
    classes = targets.long()
    return classes[:, 0] if classes.ndim == 2 and classes.shape[1] == 1 else classes


def _is_one_hot(targets: torch.Tensor) -> bool:
    return targets.ndim == 2 and _is_binary(targets) and bool((targets.sum(1) == 1).all())


def _is_number(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_number, value))
    return isinstance(value, (int, float)) and not _is_missing(value) and abs(value) < _BEYOND


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _plain(value: Any) -> Any:
    """A decimal of a table as the number that it is."""
    if isinstance(value, Decimal):
        return (
            int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
        )
    return value


def _check_range(targets: torch.Tensor, classes: int, part: Part, *, of_test: bool) -> None:
    wrong = ((targets < 0) & (targets != IGNORED)) | (targets >= classes)
    if not bool(wrong.any()):
        return
    index = int(wrong.reshape(len(targets), -1).any(1).nonzero()[0])
    value = int(targets[wrong][0])
    said = f"{part.where(index)}: the label {value} is out of range"
    if value < 0:
        raise OwnError(f"{said}; number classes from 0, and what shall count nowhere {IGNORED}")
    known = "those of the training part are" if of_test else "classes are"
    raise OwnError(
        f"{said}: {known} 0 to {classes - 1}; correct it, or name all classes with `labels`"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
