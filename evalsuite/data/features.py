"""Columns of numbers, dates and categories as inputs in [0, 1]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch

from evalsuite.contract import InputColumn
from evalsuite.data.columns import Column
from evalsuite.data.leaks import how_told
from evalsuite.data.parts import Encoding, Part, Raw
from evalsuite.data.source import Source
from evalsuite.data.tables import (
    Table,
    class_names,
    column,
    target_columns,
    targets_in,
    usual_target,
)
from evalsuite.data.targets import Kind
from opgraph.errors import OwnError

_DESCRIBED = 20  # columns that `check` names
_ROWS_OF_ONE = 5  # rows of each target, on average, that show that they are sorted


def read_features(tables: Mapping[str, Table], source: Source, kind: Kind) -> Raw:
    """Rows of columns; numbers and dates are scaled by their range in training, a category is a
    column of 0 and 1.

    A number that is missing becomes the training rows' mean, and a column of its own says so; a
    missing category is a category. What lies beyond the range of training is clipped; a category
    that training has not is all 0. A column that only numbers the rows is left out, unless
    `source.features` names it. Raises OwnError where a column is missing, or is none of these: see
    `Column`.
    """
    # 1. The columns that are inputs; rows of all parts are numbered on, since columns hold all
    # parts.
    train = tables["train"]
    columns, left_out = _columns(tables, source, kind)
    parts, start = {}, 0
    keys = list(zip(*(inputs.keys for inputs in columns), strict=True))
    for part, table in tables.items():
        rows = torch.arange(start, start + len(table))
        parts[part] = Part(
            rows, targets_in(table, source, kind), table.where, keys[start : start + len(table)]
        )
        start += len(table)

    # 2. Means and ranges are of the training rows alone, which are known once the parts are cut.
    def fit(rows: torch.Tensor) -> Encoding:
        pieces = [piece for inputs in columns for piece in _encoded(inputs, rows.numpy())]
        values = np.stack([piece for _, piece in pieces], axis=1)
        whole = torch.from_numpy(values.astype(np.float32))
        return Encoding(lambda wanted: whole[wanted], tuple(column for column, _ in pieces))

    beyond = [sentence for inputs in columns for sentence in inputs.beyond_training()]
    sentences = [*_told(columns, tables, source), *beyond]
    warnings = [("warning", sentence) for sentence in sentences]
    notes = (("columns", _described(columns, left_out)), *warnings)
    return Raw(
        parts,
        (0.0, 1.0),
        labels=class_names(train, source, kind),
        fit=fit,
        notes=notes,
        said=str(train.file),
    )


def _columns(
    tables: Mapping[str, Table], source: Source, kind: Kind
) -> tuple[list[Column], list[str]]:
    """The columns that are inputs, and why others are not."""
    # 1. The columns that are named, or all but the targets.
    train = tables["train"]
    if not source.target and not source.features:
        usual_target(list(train.columns), str(train.file), "`data.target`")
    targets = target_columns(train, source)
    names = source.features or tuple(name for name in train.columns if name not in targets)
    if not names:
        raise OwnError(
            f"{train.file}: there is no column but the target; give some that are inputs"
        )
    for name in source.categories:
        if name not in names:
            column(train, name)
            raise OwnError(
                f"data.categories: {name!r} is no input; the inputs are {', '.join(names)}"
            )
    columns = [Column(name, tables, category=name in source.categories) for name in names]
    # 2. A column that numbers the rows would tell the order of the samples, and where they are
    # sorted, the target.
    left_out = []
    if not source.features:
        reasons = {
            inputs.name: inputs.empty_reason() or inputs.index_reason()
            for inputs in columns
            if inputs.name not in source.categories
        }
        left_out = [reason for reason in reasons.values() if reason]
        columns = [inputs for inputs in columns if not reasons.get(inputs.name)]
        _check_counts(columns, train, targets_in(train, source, kind) or [])
    if not columns:
        raise OwnError(
            f"{train.file}: there is no column but {'; '.join(left_out)}; add some that are inputs"
        )
    # 3. Numbers must be told apart; a category of very many values is mostly a key or a text.
    for inputs in columns:
        inputs.check_told_apart()
        if inputs.kind == "category":
            inputs.check_few(len(set(inputs.texts)))
    return columns, left_out


def _check_counts(columns: list[Column], train: Table, targets: Sequence[object]) -> None:
    """Refuse a column that counts the rows beside others where the rows are sorted by target,
    which it tells then.
    """
    # Sorted by target: few runs of equal targets, each of many rows.
    runs = 1 + sum(one != other for one, other in pairwise(map(str, targets)))
    different = len(set(map(str, targets)))
    is_sorted = runs < 2 * different and different * _ROWS_OF_ONE <= len(targets)
    counting = next(
        ((inputs, count) for inputs in columns if (count := inputs.counts_rows())), None
    )
    if counting is not None and is_sorted and len(columns) > 1:
        inputs, count = counting
        said = (
            f"column {inputs.name!r} {count} in the order of the rows, which are sorted by target:"
            " an index"
        )
        raise OwnError(
            f"{train.file}: {said}; leave it out with `data.features`, or name it there if it is an"
            " input"
        )


def _told(columns: list[Column], tables: Mapping[str, Table], source: Source) -> list[str]:
    """A sentence for each column that tells the target in every row, as the target itself does."""
    targets = {
        name: [value for table in tables.values() for value in column(table, name)]
        for name in target_columns(tables["train"], source)
    }
    sentences = []
    for inputs in columns:
        for name, wanted in targets.items():
            if how := how_told(inputs.values, wanted):
                said = f"column {inputs.name!r} {how}, {name!r}, in all {len(wanted):,} rows"
                cure = "where it is not known before the target is, name the others as"
                sentences.append(f"{said}; {cure} `data.features`")
    return sentences


def _described(columns: list[Column], left_out: list[str]) -> str:
    shown = ", ".join(inputs.described() for inputs in columns[:_DESCRIBED])
    more = f", and {len(columns) - _DESCRIBED} more" if len(columns) > _DESCRIBED else ""
    cure = "; name it with `data.features` if it is an input"
    return f"{shown}{more}" + "".join(f"; left out: {reason}{cure}" for reason in left_out)


def _encoded(of: Column, train: np.ndarray) -> list[tuple[InputColumn, np.ndarray]]:
    """Its columns for all rows, by what the training rows have."""
    if of.kind == "category":
        return [
            (InputColumn(f"{of.name} = {name}", flag=True), of.texts == name)
            for name in sorted(set(of.texts[train]))
        ]
    known = of.numbers[train]
    known = known[~np.isnan(known)]
    if not len(known):
        raise OwnError(
            f"column {of.name!r} has no number in the training part; leave it out with"
            " `data.features`"
        )
    low, width = known.min(), np.ptp(known) or 1.0
    missing = np.isnan(of.numbers)
    scaled = ((np.where(missing, known.mean(), of.numbers) - low) / width).clip(0, 1)
    scaled_column = InputColumn(of.name, float(low), float(low + width), date=of.date_format())
    if not missing.any():
        return [(scaled_column, scaled)]
    return [(scaled_column, scaled), (InputColumn(f"{of.name} is missing", flag=True), missing)]
