"""Frames of pandas that a script has in memory: written as tables for the jobs, or given as arrays
to a network that is trained already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalsuite.plugins import did_you_mean
from opgraph.errors import OwnError

if TYPE_CHECKING:
    import pandas as pd

_FOLDER = "given"
_TARGET = "target"
_TEXTS = ("text", "sentence", "content", "review")
_NUMBERS = (bool, int, float, Decimal, np.number, np.bool_)
_SHOWN = 8  # categories in a message


def is_frame(samples: Any) -> bool:
    """Whether it is a frame, or (frame, targets)."""
    first = samples[0] if isinstance(samples, tuple) and samples else samples
    kind = type(first)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def from_frames(samples: Any, target: str, home: Path, *, trained: bool) -> Any:
    """Turn frames into data that `assess` takes.

    A network that is yet to be trained gets a table in the run's folder, of which columns of
    numbers are scaled and categories become columns of 0 and 1. One that is trained already gets
    the numbers as they are, in the order of the columns.

    Args:
        samples: a frame, (frame, targets), or a mapping of parts to such.
        target: the column of targets; "" where targets are given, or the column has a usual name.
        home: the run's folder.
        trained: whether the network is measured as it is.

    Raises:
        OwnError: parts are of several kinds, targets do not belong to the rows, or a trained
            network would have to take what is no number.
    """
    parts = samples if isinstance(samples, Mapping) else {"": samples}
    if not all(is_frame(part) for part in parts.values()):
        raise OwnError("data: give all parts as frames, or none")
    # 1. Each part as one frame, with its targets as a column.
    joined = {name: _joined(part, target) for name, part in parts.items()}
    frames, column = _alike(joined)
    if any(isinstance(part, tuple) for part in parts.values()):
        _check_told(frames, column)
    # 2. As arrays for a trained network, unless texts have to become tokens.
    first = next(iter(frames.values()))
    if trained and not any(_is_text(first, name) for name in _TEXTS):
        _check_order(first[column])
        arrays = {name: _arrays(frame, column) for name, frame in frames.items()}
        return arrays if isinstance(samples, Mapping) else arrays[""]
    # 3. As tables: one file, or a folder with a file for each part.
    place = home / _FOLDER / "frame.parquet"
    if not isinstance(samples, Mapping):
        _write(first, place)
        return {"path": str(place), "target": column}
    folder = place.with_name("frames")
    for left in folder.glob("*.parquet"):  # of an earlier call, which had other parts
        left.unlink()
    for name, frame in frames.items():
        _write(frame, folder / f"{name}.parquet")
    return {"path": str(folder), "target": column}


def _joined(samples: Any, target: str) -> tuple[pd.DataFrame, str]:
    """The frame with its targets, and the name of their column."""
    import pandas as pd

    # 1. Columns by names, as a table has them: 1 and "1" would be one.
    pair = samples if isinstance(samples, tuple) else (samples, None)
    if len(pair) != 2:
        raise OwnError(f"data: give a part as (frame, targets), got {len(pair)} things")
    frame, targets = pair
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    twice = next((name for name, count in Counter(frame.columns).items() if count > 1), None)
    if twice is not None:
        raise OwnError(f"data: two columns are called {twice!r}; rename one")
    # 2. Targets in a column of the frame.
    if targets is None:
        return frame, _column_in(frame, target)
    # 3. Targets beside it: rows of two frames belong together by their index.
    targets = _beside(targets)
    if len(targets) != len(frame):
        raise OwnError(
            f"data: the frame has {len(frame)} rows, but there are {len(targets)} targets"
        )
    if isinstance(targets, pd.Series) and not targets.index.equals(frame.index):
        raise OwnError(
            "data: frame and targets have another index, so that it is open which rows belong"
            " together; give targets.loc[frame.index], or targets.to_numpy()"
        )
    column = str((targets.name if isinstance(targets, pd.Series) else "") or _TARGET)
    if column in frame.columns:
        raise OwnError(
            f"data: the frame has a column {column!r}, which the targets are called, too"
        )
    return frame.assign(**{column: targets}), column


def _column_in(frame: pd.DataFrame, target: str) -> str:
    """The frame's column of targets: the one that is named, else the only one of a usual name."""
    from evalsuite.data.tables import usual_target

    column = target or usual_target(list(frame.columns), "data: the frame", "targets='NAME'")
    if column not in frame.columns:
        hint = did_you_mean(column, list(frame.columns)) if column else ""
        said = f"has no column {column!r}{hint}" if column else "says nowhere what is predicted"
        raise OwnError(f"data: the frame {said}; name the column as targets='NAME'")
    return column


def _beside(targets: Any) -> Any:
    """Targets beside a frame as one column, (rows,), of a series with its index and its name."""
    import pandas as pd
    import torch

    if isinstance(targets, pd.Series):
        return targets
    # 1. Of a frame or an array of one column that column.
    if isinstance(targets, torch.Tensor):
        targets = targets.detach().cpu()
    try:
        kept = (pd.DataFrame, pd.api.extensions.ExtensionArray)  # categories among the latter
        table: Any = targets if isinstance(targets, kept) else np.asarray(targets)
        shape = table.shape
    except ValueError:  # rows of several lengths
        shape = ()
    if len(shape) == 2 and shape[1] == 1:
        return table.iloc[:, 0] if isinstance(table, pd.DataFrame) else table[:, 0]
    # 2. More would be lists in one column, of which nothing tells what they mean.
    if len(shape) != 1:
        said = f"of shape {tuple(shape)}" if shape else f"a {type(targets).__name__}"
        raise OwnError(
            f"data: targets beside a frame are one column, got {said}; give the inputs as an array,"
            " too, or write one table and name its columns as data={'path': 'FILE', 'target':"
            " ['ONE', 'OTHER']}"
        )
    return table


def _alike(joined: Mapping[str, tuple[pd.DataFrame, str]]) -> tuple[dict[str, pd.DataFrame], str]:
    """The frames with their columns in one order, and the column of targets that all have."""
    (first, column), *others = joined.values()
    for frame, name in others:
        if name != column or set(frame.columns) != set(first.columns):
            columns, other = sorted(map(str, first.columns)), sorted(map(str, frame.columns))
            raise OwnError(
                f"data: one part has the columns {', '.join(columns)}, another {', '.join(other)};"
                " give all parts the same"
            )
    return {name: frame[list(first.columns)] for name, (frame, _) in joined.items()}, column


def _check_told(frames: Mapping[str, pd.DataFrame], target: str) -> None:
    """Refuse frames that still hold the targets which are given beside them, or their names or
    codes, in all parts: in a small part alone an input may be like its target by chance.
    """
    from evalsuite.data.leaks import how_told

    def whole(name: str) -> list[Any]:
        return [value for frame in frames.values() for value in frame[name].tolist()]

    wanted = whole(target)
    inputs = [name for name in next(iter(frames.values())).columns if name != target]
    told = {name: how_told(whole(name), wanted) for name in inputs}
    name = next((name for name in told if told[name]), "")
    if name and len(told) > 1:
        raise OwnError(
            f"data: the frame's column {name!r} {told[name]} in all {len(wanted):,} rows; leave it"
            f" out, as frame.drop(columns={name!r}), or, if it is an input, give the targets as a"
            " column of the frame, too, and name it as targets='NAME'"
        )


def _arrays(frame: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rows as float32, and their targets."""
    inputs = frame.drop(columns=column)
    for name, values in inputs.items():
        if values.dtype.kind not in "iufb" or values.isna().any():
            what = "has gaps" if values.dtype.kind in "iufb" else "is no column of numbers"
            raise OwnError(
                f"data: {name!r} {what}, and how the trained network takes it is not known; give"
                " tensors or arrays as it was trained on, or start='scratch' to train it on the"
                " frame"
            )
    # In float64, so that the reader sees where float32 tells no difference.
    return np.array(inputs.to_numpy(dtype=np.float64)), _labels(frame[column])


def _labels(targets: pd.Series) -> np.ndarray:
    """Targets as an array of numbers or of texts, (rows,)."""
    kept = np.array(targets.to_numpy())  # a copy: pandas gives a view that is not writable
    if kept.dtype.kind in "iufb":
        return kept
    # Objects: all are texts, or all are numbers.
    values = list(targets)
    texts, absent = [isinstance(value, str) for value in values], targets.isna().to_numpy()
    for place, value in enumerate(values):
        known = texts[place] or isinstance(value, _NUMBERS)
        if not known or texts[place] != texts[0]:
            said = f"stands beside {values[0]!r}" if known else "is neither number nor text"
            said = "is missing" if absent[place] else said
            raise OwnError(
                f"data: the target {str(value)[:40]!r} ({type(value).__name__}) in row {place} of"
                f" {targets.name!r} {said}; give all targets as numbers, or all as texts"
            )
    array = np.array(values)
    return array if array.dtype.kind in "iufbU" else array.astype(np.float64)


def _is_text(frame: pd.DataFrame, name: str) -> bool:
    return name in frame.columns and any(isinstance(value, str) for value in frame[name])


def _check_order(targets: pd.Series) -> None:
    """Refuse categories in another order than their names have: by it the trained network's
    classes are numbered, and arrays do not keep it.
    """
    import pandas as pd

    if not isinstance(targets.dtype, pd.CategoricalDtype):
        return
    listed = list(targets.dtype.categories)
    if all(isinstance(name, str) for name in listed) and listed != sorted(set(targets.dropna())):
        raise OwnError(
            f"data: the targets {targets.name!r} list categories in an order of their own"
            f" ({', '.join(listed[:_SHOWN])}{', ...' if len(listed) > _SHOWN else ''}), or some"
            " without a row; give their numbers, as targets.cat.codes"
        )


def _write(frame: pd.DataFrame, place: Path) -> None:
    """Write a frame as parquet, without its index."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        frame.to_parquet(place, index=False)
    except Exception as error:  # pyarrow raises many kinds on columns of mixed values
        said = " ".join(str(error).split())[:200]
        raise OwnError(
            f"data: the frame cannot be written as a table ({type(error).__name__}: {said}); give"
            " each column one kind of values"
        ) from error
