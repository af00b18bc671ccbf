"""The order of a report: the recipe's, whatever order the jobs ended in; and the variant that it compares with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalsuite.report.record import Record
from evalsuite.report.section import sections

if TYPE_CHECKING:
    import pandas as pd


def in_order(frame: pd.DataFrame, record: Record) -> pd.DataFrame:
    """The rows in the recipe's order, whatever order the jobs ended in; unknown names go last, by name."""
    wanted = {
        "workload": record.names("workloads"),
        "variant": record.names("variants"),
        "step": ["train", *steps] if (steps := [str(step["name"]) for step in record.steps]) else [],
    }
    ranks = frame[["seed"]].copy()
    for column, names in wanted.items():
        rest = [each for each in frame[column].unique() if each not in names]
        # Without a recorded order, the order of the rows is all there is.
        order = {name: i for i, name in enumerate([*names, *(sorted(rest) if names else rest)])}
        ranks[column] = frame[column].map(order)
    return frame.loc[ranks.sort_values(["workload", "variant", "seed", "step"], kind="stable").index].reset_index(
        drop=True
    )


def baseline_of(frame: pd.DataFrame, record: Record) -> str:
    """The recorded baseline; for want of a record, that of a section, else the first variant."""
    recorded = record.entries.get("baseline")
    if isinstance(recorded, str) and recorded:
        return recorded
    variants = list(frame["variant"].unique())
    known = [each.baseline for each in sections().values() if each.baseline]
    return next((each for each in known if each in variants or not variants), str(variants[0]) if variants else "")
