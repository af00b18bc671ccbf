"""Readers give inputs, raw targets, and what is known of both; parts that are not given are cut
here.

They are cut from the training part: the same at every call, stratified where there are classes.
Samples that are equal stay together, so that none is in two parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from evalsuite.contract import InputColumn
from evalsuite.data.source import Source
from evalsuite.samples import Chosen, Samples
from evalsuite.workloads.workload import SPLIT_SEED, partition
from opgraph.errors import OwnError
from opgraph.inputs import contents

PARTS = ("train", "calibration", "validation", "test")
CUT = "cut from train"  # the note that names the parts which were not given
_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("calibration", "calib"), "calibration"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def part_named(name: str) -> str:
    """The part that a name speaks of, as `wiki.valid.tokens` of validation; "" where it speaks
    of none.
    """
    words = "".join(character if character.isalpha() else " " for character in name.lower()).split()
    parts = {_NAMES[word] for word in words if word in _NAMES}
    return parts.pop() if len(parts) == 1 else ""


@dataclass
class Part:
    """A part of the data as it is given.

    `targets` are as the source has them: names or numbers, one for each sample; None where there
    are none. `keys` tell equal samples, as digests of their content; None: the inputs do. `where`
    names a sample in a message.
    """

    inputs: torch.Tensor | Samples
    targets: Any
    where: Callable[[int], str]
    keys: Sequence[object] | None = None


@dataclass(frozen=True)
class Encoding:
    """A function that encodes inputs, and what each of the encoded inputs stands for."""

    encode: Callable[[torch.Tensor], torch.Tensor]
    columns: tuple[InputColumn, ...]


@dataclass
class Raw:
    """The parts that are given, the training part among them.

    `domain` is the range of inputs, None where those in memory tell. `labels` are names of classes
    that the source itself lists. `fit` makes, from the inputs of the training part as it is after
    cutting, what encodes inputs. `consecutive`: parts are cut off the end, not drawn.
    `notes` are (what, finding) for `check` and the report. `folders`: the targets are names of
    folders.
    """

    parts: dict[str, Part]
    domain: tuple[float, float] | None = None
    vocabulary: int | None = None
    labels: tuple[str, ...] = ()
    fit: Callable[[torch.Tensor], Encoding] | None = None
    consecutive: bool = False
    notes: tuple[tuple[str, str], ...] = ()
    folders: bool = False
    said: str = field(default="data", kw_only=True)


MOST_TO_CALIBRATE = 512
FEWEST = 10
_BATCH = 256

Targets = dict[str, torch.Tensor]


def cut(raw: Raw, targets: Targets, source: Source) -> tuple[dict[str, Part], Targets]:
    """All four parts, the given ones as they are but for `source.limit`, with their targets. Raises
    OwnError where there are too few samples to cut.
    """
    # 1. A limit draws from each part; from running text it takes the beginning.
    parts, found = dict(raw.parts), dict(targets)
    if source.limit:
        for name, part in raw.parts.items():
            if (count := len(found[name])) > source.limit:
                drawn = np.random.default_rng(SPLIT_SEED).permutation(count)[: source.limit]
                order = np.arange(source.limit) if raw.consecutive else np.sort(drawn)
                parts[name], found[name] = _taken(part, order), found[name][_as_index(order)]
    # 2. What is missing, and whether there is enough to cut it from.
    train, numbers = parts["train"], found["train"]
    missing = [name for name in PARTS if name not in parts]
    if not missing:
        return parts, found
    if len(train.inputs) < FEWEST:
        count = len(train.inputs)
        cure = f"give at least {FEWEST}, or these parts themselves"
        raise OwnError(
            f"{train.where(-1)}: {count} samples are too few to cut {', '.join(missing)} off;"
            f" {cure}"
        )
    # 3. Cut: running text at its end, so that no window is split between parts, and else by
    # stratified drawing.
    sizes = {name: max(1, int(getattr(source, name) * len(train.inputs))) for name in missing}
    if "calibration" in sizes:
        sizes["calibration"] = min(sizes["calibration"], MOST_TO_CALIBRATE)
    wanted = [sizes[name] for name in missing]
    pieces = (
        _from_the_end(len(numbers), wanted) if raw.consecutive else _drawn(train, numbers, wanted)
    )
    for name, piece in zip([*missing, "train"], pieces, strict=True):
        parts[name], found[name] = _taken(train, piece), numbers[_as_index(piece)]
    return parts, found


def _taken(part: Part, chosen: np.ndarray) -> Part:
    keys = part.keys
    inputs = (
        Chosen(part.inputs, chosen.tolist())
        if isinstance(part.inputs, Samples)
        else part.inputs[_as_index(chosen)]
    )
    taken = None if keys is None else [keys[i] for i in chosen.tolist()]
    return Part(inputs, None, partial(_renumbered, part.where, chosen), taken)


def _renumbered(where: Callable[[int], str], chosen: np.ndarray, index: int) -> str:
    return where(int(chosen[index]) if index >= 0 else index)


def _as_index(chosen: np.ndarray) -> torch.Tensor | slice:
    """A slice where the indices follow one another, so that the result is a view."""
    if (
        len(chosen)
        and int(chosen[-1]) - int(chosen[0]) == len(chosen) - 1
        and bool((np.diff(chosen) == 1).all())
    ):
        return slice(int(chosen[0]), int(chosen[-1]) + 1)
    return torch.from_numpy(chosen)


def _from_the_end(count: int, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    for size in reversed(sizes):  # the test part is the end of the text
        count -= size
    start = count
    for size in sizes:
        yield np.arange(start, start + size)
        start += size
    yield np.arange(count)


def _drawn(part: Part, targets: torch.Tensor, sizes: Sequence[int]) -> list[np.ndarray]:
    """Disjoint indices of each size, about, and of all that is left."""
    # 1. Equal samples are one group, drawn by its first: none is then in two parts.
    group, first = _groups(part)
    share = len(first) / len(group)
    classes = np.zeros(len(first), np.int64)
    if targets.ndim == 1 and not targets.is_floating_point():
        classes = targets.numpy()[first]
    rest, pieces = np.arange(len(first)), []
    # 2. Draw each part, stratified by class, from the groups that are left.
    for size in sizes:
        wanted = max(1, math.floor(size * share))
        if len(rest) - wanted < 2:
            where = part.where(-1)
            raise OwnError(
                f"{where}: of {len(group)} samples {len(first)} differ: too few to cut parts off;"
                " give more"
            )
        taken, left = partition(_strata(classes[rest], wanted), [wanted])
        pieces.append(rest[taken])
        rest = rest[left]
    # 3. Back from groups to samples.
    return [np.flatnonzero(np.isin(group, piece)) for piece in [*pieces, rest]]


def _strata(classes: np.ndarray, size: int) -> np.ndarray:
    """The classes, or one stratum where some class is too small for a share of each part."""
    counts = np.unique(classes, return_counts=True)[1]
    enough = counts.min() >= 2 and len(counts) <= min(size, len(classes) - size)
    return classes if enough else np.zeros_like(classes)


def _groups(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """For each sample the number of its group of equal ones, and for each group its first
    sample.
    """
    numbers: dict[Hashable, int] = {}
    batches = (part.inputs[start : start + _BATCH] for start in range(0, len(part.inputs), _BATCH))
    keys: Any = (
        part.keys
        if part.keys is not None
        else (hash(content) for batch in batches for content in contents(batch))
    )
    group = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    first = np.unique(group, return_index=True)[1]
    return group, first
