"""Columns of numbers and categories as inputs in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from evalsuite.own.data.parts import Part, Raw
from evalsuite.own.data.source import Source
from evalsuite.own.data.tables import Table, class_names, column, target_columns, targets_in
from evalsuite.own.data.targets import Kind
from evalsuite.references import OwnError

MISSING = ("", "?", "na", "n/a", "nan", "null", "none")
_CATEGORIES = 100
_CODES = 20  # different numbers that may well be categories


def read_features(tables: Mapping[str, Table], source: Source, kind: Kind) -> Raw:
    """Rows of columns; numbers are scaled by their range in training, and a category is a column of 0 and 1.

    A number that is missing becomes the training rows' mean, and a column of its own says so; a missing category is a
    category. What lies beyond the range of training is clipped; a category that training has not is all 0. Raises
    OwnError where a column is missing, holds an infinite number, or has a different text in most rows.
    """
    train = tables["train"]
    names = source.features or tuple(each for each in train.columns if each not in target_columns(train, source))
    if not names:
        raise OwnError(f"{train.file}: there is no column but the target; give some that are inputs")
    columns = {name: _Column(name, tables) for name in names}
    parts, start = {}, 0
    for part, table in tables.items():
        rows = torch.arange(start, start + len(table))
        keys = list(zip(*(columns[name].values[start : start + len(table)] for name in names), strict=True))
        parts[part] = Part(rows, targets_in(table, source, kind), table.where, keys)
        start += len(table)

    def fit(rows: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        pieces = [piece for each in columns.values() for piece in _encoded(each, rows.numpy())]
        whole = torch.from_numpy(np.stack(pieces, axis=1).astype(np.float32))
        return lambda wanted: whole[wanted]

    return Raw(parts, (0.0, 1.0), labels=class_names(train, source), fit=fit, said=str(train.file))


class _Column:
    """A column of all parts, one after the other: numbers with NaN where they are missing, or texts."""

    def __init__(self, name: str, tables: Mapping[str, Table]) -> None:
        self.name, values = name, [each for table in tables.values() for each in column(table, name)]
        self.values = [each.strip() if isinstance(each, str) else each for each in values]
        odd = next((each for each in self.values if isinstance(each, (list, tuple, dict, bytes))), None)
        if odd is not None:
            said = f"column {name!r} holds a {type(odd).__name__} in each row; inputs are numbers and categories"
            raise OwnError(f"{tables['train'].file}: {said}; name the columns that are inputs with `features`")
        numbers = [_number(each) for each in self.values]
        self.numeric = all(each is not None for each in numbers) and not all(_is_missing(each) for each in self.values)
        if self.numeric:
            self.numbers = np.array(numbers, dtype=np.float64)
            wrong = np.flatnonzero(np.isinf(self.numbers))
            if len(wrong):
                where = _where(int(wrong[0]), tables)
                raise OwnError(f"{where}: column {name!r} is infinite; correct it, or leave it empty")
        else:
            self.texts = np.array(["" if _is_missing(each) else str(each) for each in self.values], dtype=object)
            self._check_categories(numbers, tables)

    def _check_categories(self, numbers: list[float | None], tables: Mapping[str, Table]) -> None:
        """A column of many numbers in which few texts stand is none of categories, nor one of many different texts."""
        texts = [index for index, each in enumerate(numbers) if each is None]
        if texts and len(texts) <= len(numbers) / 10 and len({*numbers} - {None}) > _CODES:
            said = f"column {self.name!r} holds {self.values[texts[0]]!r}, but numbers in nearly all rows"
            raise OwnError(f"{_where(texts[0], tables)}: {said}; correct it, or leave it empty")
        count = len(set(self.texts))
        if count > _CATEGORIES or (count > _CODES and count > len(self.texts) / 2):
            said = f"column {self.name!r} has {count} different texts in {len(self.texts)} rows: it is no category"
            cure = "name the columns that are inputs with `features`, or a column of text with `text`"
            raise OwnError(f"{tables['train'].file}: {said}; {cure}")


def _encoded(of: _Column, train: np.ndarray) -> list[np.ndarray]:
    """Its columns for all rows, by what the training rows have."""
    if not of.numeric:
        seen = sorted(set(of.texts[train]))
        return [of.texts == each for each in seen]
    known = of.numbers[train]
    known = known[~np.isnan(known)]
    if not len(known):
        raise OwnError(f"column {of.name!r} has no number in the training part; leave it out with `features`")
    low, width = known.min(), np.ptp(known) or 1.0
    missing = np.isnan(of.numbers)
    scaled = ((np.where(missing, known.mean(), of.numbers) - low) / width).clip(0, 1)
    return [scaled, missing] if missing.any() else [scaled]


def _where(index: int, tables: Mapping[str, Table]) -> str:
    for table in tables.values():
        if index < len(table):
            return table.where(index)
        index -= len(table)
    raise IndexError(index)


def _is_missing(value: Any) -> bool:
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and value.lower() in MISSING)
    )


def _number(value: Any) -> float | None:
    """The number, NaN where it is missing, None where it is none."""
    if _is_missing(value):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
