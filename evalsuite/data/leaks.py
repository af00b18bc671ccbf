"""Inputs that tell the target: the same values in every sample, or one value for each value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evalsuite.data.parts import Part
from evalsuite.samples import Several
from netverify.decimals import is_decimal
from opgraph.inputs import leaves

_FEWEST = 20  # samples in which no input is so by chance
_REPEATED = 2  # samples of each value, on average, without which each is another anyway
_ROUNDING = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 1e-5}  # of the spread of numbers
_MOST_TARGETS = 20  # of a sample, that are looked for
_WIDEST = 1000  # numbers of a sample; more are no columns of a table

Key = float | str


def how_told(values: Sequence[Any], targets: Sequence[Any]) -> str:
    """How a column, a value for each target, tells the target in every row, in words; "" where it
    does not.
    """
    if len(values) < _FEWEST:
        return ""
    column, wanted = [_key(value) for value in values], [_key(target) for target in targets]
    # 1. The same in every row, whether as numbers or as texts.
    different = len(set(wanted))
    if different > 1 and column == wanted:
        return "is the target"
    # 2. One value for each value of the target, as names beside numbers are.
    is_repeated = 1 < different <= len(wanted) / _REPEATED
    if is_repeated and len(set(column)) == different == len(set(zip(column, wanted, strict=True))):
        return "has one value for each value of the target"
    # 3. Numbers in another unit.
    numbers = [key for key in (*column, *wanted) if isinstance(key, float)]
    if len(numbers) < 2 * len(wanted) or is_repeated:
        return ""
    is_line = _is_line(np.array(column, np.float64), np.array(wanted, np.float64))
    return "is the target in another unit" if is_line else ""


def told_by_arrays(parts: Mapping[str, Part], targets: Mapping[str, torch.Tensor]) -> str:
    """Which entry of a sample, of real inputs (samples, entries), tells its target, in words; ""
    where none does, or inputs or targets are of other dimensions.
    """
    if len({values.shape[1:] for values in targets.values()}) > 1:
        return ""
    wanted = torch.cat(list(targets.values())).numpy()
    batches = [
        leaves(part.inputs[:]) if isinstance(part.inputs, (torch.Tensor, Several)) else []
        for part in parts.values()
    ]
    if wanted.ndim > 2 or not all(batches):
        return ""
    columns = wanted.reshape(len(wanted), -1).T[:_MOST_TARGETS]
    # Each input of a sample, (samples, entries), of all parts; then each of its entries.
    for place, pieces in enumerate(zip(*batches, strict=True)):
        # A token that tells the class is what a text is about.
        if not pieces[0].is_floating_point() or pieces[0].ndim > 2:
            continue
        if pieces[0][0].numel() > _WIDEST:
            continue
        entries = torch.cat([piece.reshape(len(piece), -1) for piece in pieces]).numpy().T
        places = (i for i, entry in enumerate(entries) if any(_is_told(entry, y) for y in columns))
        entry = next(places, None)
        if entry is not None:
            of_input = f" of input {place}" if len(batches[0]) > 1 else ""
            return (
                f"entry {entry} of a sample{of_input} tells its target in all {len(wanted):,}"
                " samples: leave it out, unless it is known where the network is used"
            )
    return ""


def _is_told(entries: np.ndarray, targets: np.ndarray) -> bool:
    """Whether an entry of each sample, (samples,), tells the targets, (samples,), as `how_told`
    has it.
    """
    # A few samples decide most of it at little cost.
    few = slice(0, 4 * _FEWEST)
    first, values = entries[few].tolist(), targets[few].tolist()
    pairs = set(zip(first, values, strict=True))
    if len(pairs) == len(set(first)) == len(set(values)):
        return bool(how_told(entries.tolist(), targets.tolist())) or (
            targets.dtype.kind == "f" and len(targets) >= _FEWEST and _is_line(entries, targets)
        )
    return False


def _is_line(values: np.ndarray, targets: np.ndarray) -> bool:
    """Whether the numbers, (rows,), are the targets, (rows,), times a factor plus a constant, up
    to rounding.
    """
    if not (np.isfinite(values).all() and np.isfinite(targets).all()):
        return False
    spread, wanted = values.std(), targets.std()
    if not spread or not wanted:
        return False
    one = (values.astype(np.float64) - values.mean(dtype=np.float64)) / spread
    other = (targets.astype(np.float64) - targets.mean(dtype=np.float64)) / wanted
    apart = min(np.abs(one - other).max(), np.abs(one + other).max())
    return bool(apart < _ROUNDING.get(np.result_type(values, targets), 0.0))


def _key(value: Any) -> Key:
    """A value as a number where it spells one, else as text; "" where it is missing."""
    text = "" if value is None else str(value).strip()
    if isinstance(value, bool) or not is_decimal(text):
        is_missing = isinstance(value, float) and math.isnan(value)
        return "" if is_missing else text
    return float(text)
