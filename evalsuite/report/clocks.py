"""Whether the clock contradicts itself: files with equal graphs take equally long, whatever their
weights are.

Networks of several variants and seeds often have the same graph, as all that are annealed to ReLU
or trained with it. Their readings are repetitions of one measurement. One that lies apart from the
others met something that its own repetitions did not show, and nothing may be concluded from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evalsuite.latency import MOST_LOAD, RESOLUTION
from evalsuite.results import Status

if TYPE_CHECKING:
    import pandas as pd

_ALIKE = ["workload", "step", "metric", "setting", "host", "graph"]


def clock_doubts(frame: pd.DataFrame, place: list[str]) -> dict[Any, str]:
    """Place -> why nothing is concluded from the clock that was read there; without those of no
    doubt.

    A clock is believed where each of its readings tells how much other work ran beside it, and that
    was little.

    Args:
        frame: rows of clock readings.
        place: the columns that name one.
    """
    rows = frame[frame["value"].notna()]
    load = rows["load"] if "load" in rows else rows["value"] * float("nan")
    doubts = {}
    for name, loads in load.groupby([rows[column] for column in place], sort=False):
        if loads.isna().any():
            doubts[name] = "a clock's readings, of which the load beside them was not recorded"
        elif loads.max() > MOST_LOAD:
            doubts[name] = f"a clock's readings, beside other work on {loads.max():.1f} processors"
    return doubts


def without_contradictions(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows, in which a clock reading that contradicts those of equal graphs has no value, and a
    reason.

    A reading contradicts the others where its 95 % interval, and theirs in the median, lie farther
    apart than what a session's place in memory explains (`RESOLUTION`). Of two that disagree
    neither is believed.

    Args:
        frame: rows as `read_results` gives them; those of former versions tell no graph, and stay
            as they are.
    """
    if "graph" not in frame:
        return frame
    timed = frame["graph"].fillna("").ne("") & frame["value"].notna()
    if not timed.any():
        return frame
    # 1. What each group of equal graphs reads in the median; a single reading is its own, and
    # contradicts nothing.
    readings = frame.loc[timed]
    alike = readings.groupby(_ALIKE, sort=False, dropna=False)
    expected = alike["value"].transform("median")
    low, high = (alike[name].transform("median") for name in ("reading_low", "reading_high"))
    # 2. Intervals that lie farther from it than the clock's resolution explains.
    above = readings["reading_low"] > high * (1 + RESOLUTION)
    below = readings["reading_high"] < low * (1 - RESOLUTION)
    # Of two, the median lies between, so that they are held against each other.
    pairs = alike["value"].transform("size") == 2
    least, most = alike["reading_high"].transform("min"), alike["reading_low"].transform("max")
    apart = above | below | (pairs & (most > least * (1 + RESOLUTION)))
    if not apart.any():
        return frame
    # 3. The value goes, and the reason says what was read.
    places = readings.index[apart]
    changed = frame.copy()
    changed.loc[places, "reason"] = [
        f"not measured: noisy: it reads {value:.3g}, and equal graphs {usual:.3g}"
        for value, usual in zip(readings.loc[places, "value"], expected.loc[places], strict=True)
    ]
    changed.loc[places, "value"] = float("nan")
    changed.loc[places, "status"] = Status.UNAVAILABLE.value
    return changed
