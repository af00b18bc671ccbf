"""Frames of pandas that a script has in memory: written as tables for the jobs, or given as arrays
to a network that is trained already.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def is_frame(given: Any) -> bool:
    """Whether it is a frame, or (frame, targets)."""
    first = given[0] if isinstance(given, tuple) and given else given
    kind = type(first)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def from_frames(given: Any, target: str, home: Path, *, trained: bool) -> Any:
    """What stands for frames as data of `assess`.

    A network that is yet to be trained gets a table in the run's folder, of which columns of
    numbers are scaled and categories become columns of 0 and 1. One that is trained already gets
    the numbers as they are, in the order of the columns.

    Args:
        given: a frame, (frame, targets), or a mapping of parts to such.
        target: the column of targets; "" where targets are given, or the column has a usual name.
        home: the run's folder.
        trained: whether the network is measured as it is.

    Raises:
        OwnError: parts are of several kinds, targets do not belong to the rows, or a trained
            network would have to take what is no number.
    """
    parts = given if isinstance(given, Mapping) else {"": given}
    if not all(is_frame(part) for part in parts.values()):
        raise OwnError("data: give all parts as frames, or none")
    # 1. Each part as one frame, with its targets as a column.
    joined = {name: _joined(part, target) for name, part in parts.items()}
    frames, column = _alike(joined)
    # 2. As arrays for a trained network, unless texts have to become tokens.
    first = next(iter(frames.values()))
    if trained and not any(name in first.columns for name in _TEXTS):
        arrays = {name: _arrays(frame, column) for name, frame in frames.items()}
        return arrays if isinstance(given, Mapping) else arrays[""]
    # 3. As tables: one file, or a folder with a file for each part.
    place = home / _FOLDER / "frame.parquet"
    if not isinstance(given, Mapping):
        _write(first, place)
        return {"path": str(place), "target": column}
    folder = place.with_name("frames")
    for left in folder.glob("*.parquet"):  # of an earlier call, which had other parts
        left.unlink()
    for name, frame in frames.items():
        _write(frame, folder / f"{name}.parquet")
    return {"path": str(folder), "target": column}


def _joined(given: Any, target: str) -> tuple[pd.DataFrame, str]:
    """The frame with its targets, and the name of their column."""
    import pandas as pd

    from evalsuite.own.data.arrays import TARGETS

    # 1. Targets in a column of the frame.
    frame, targets = given if isinstance(given, tuple) else (given, None)
    frame = frame.rename(columns=str)
    if targets is None:
        usual = next((name for name in TARGETS if name in frame.columns), "")
        column = target or usual
        if column not in frame.columns:
            hint = did_you_mean(column, list(frame.columns)) if column else ""
            said = f"has no column {column!r}{hint}" if column else "says nowhere what is predicted"
            raise OwnError(f"data: the frame {said}; name the column as targets='NAME'")
        return frame, column
    # 2. Targets beside it: rows of two frames belong together by their index.
    if len(targets) != len(frame):
        raise OwnError(
            f"data: the frame has {len(frame)} rows, but there are {len(targets)} targets"
        )
    if isinstance(targets, (pd.Series, pd.DataFrame)) and not targets.index.equals(frame.index):
        raise OwnError(
            "data: frame and targets have another index, so that it is open which rows belong"
            " together; give targets.loc[frame.index], or targets.to_numpy()"
        )
    column = str(getattr(targets, "name", None) or _TARGET)
    if column in frame.columns:
        raise OwnError(
            f"data: the frame has a column {column!r}, which the targets are called, too"
        )
    if isinstance(targets, pd.Series):
        return frame.assign(**{column: targets}), column
    return frame.assign(**{column: list(np.asarray(targets))}), column


def _alike(joined: Mapping[str, tuple[pd.DataFrame, str]]) -> tuple[dict[str, pd.DataFrame], str]:
    """The frames with their columns in one order, and the column of targets that all have."""
    (first, column), *others = joined.values()
    for frame, name in others:
        if name != column or set(frame.columns) != set(first.columns):
            own, other = sorted(map(str, first.columns)), sorted(map(str, frame.columns))
            raise OwnError(
                f"data: one part has the columns {', '.join(own)}, another {', '.join(other)}; give"
                " all parts the same"
            )
    return {name: frame[list(first.columns)] for name, (frame, _) in joined.items()}, column


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
    targets = frame[column]
    kept = targets.to_numpy() if targets.dtype.kind in "iufb" else np.array(list(map(str, targets)))
    return inputs.to_numpy(dtype=np.float32), kept


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
