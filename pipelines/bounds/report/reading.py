"""The tables of certified robustness from the rows of bounds steps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from evalsuite import Measured, Values, labels, number_of
from pipelines.bounds.report.tables import (
    ATTACKED,
    CERTIFIED,
    METRICS,
    RADIUS,
    STAGE,
    BoundsTable,
    Place,
    by_tightness,
)

_TOLD = (CERTIFIED, ATTACKED, RADIUS)


def bounds_tables(measured: Measured, baseline: str, after: Mapping[str, str]) -> list[BoundsTable]:
    """A table for each bounds step of each workload; also of a step of which every job failed.

    Args:
        measured: the rows.
        baseline: the variant to compare with.
        after: step -> what it follows, empty for a step that measures the networks as trained.
    """
    made = []
    for workload in measured.workloads:
        arms = measured.arms(workload, baseline)
        for step in measured.steps(workload, STAGE):
            found, norms = _found(measured, workload, step, arms["variants"])
            places = [place for _, place in found]
            norm = next(iter(norms), str(measured.options[step].get("norm") or "linf"))  # Of a step without a value.
            made.append(BoundsTable(
                **arms, step=step, label=workload,
                methods=tuple(by_tightness({place.method for place in places if place.metric == CERTIFIED})),
                radii=tuple(sorted({place.eps for place in places if place.eps is not None})), norm=norm,
                after=after.get(step, ""), found=found, remarks=_remarks(measured, workload, step),
                reasons=measured.reasons(workload, step, arms["variants"], CERTIFIED),
            ))  # fmt: skip
    return _labelled(made)


def _labelled(tables: Sequence[BoundsTable]) -> list[BoundsTable]:
    """Labels that tell tables apart: workload, norm, what the step follows, and its name where these are not enough."""
    several = {each.workload for each in tables if sum(other.workload == each.workload for other in tables) > 1}
    told = [
        [each.workload, *([each.ball] if each.norm == "l2" or each.workload in several else []),
         *([f"after {each.after}"] if each.after else [])]
        for each in tables
    ]  # fmt: skip
    every = labels(told, [each.step for each in tables])
    return [replace(each, label=label) for each, label in zip(tables, every, strict=True)]


def _found(
    measured: Measured, workload: str, step: str, variants: Sequence[str]
) -> tuple[dict[tuple[str, Place], Values], dict[str, None]]:
    """All values of a step, and the norms that their settings name."""
    found: dict[tuple[str, Place], Values] = {}
    norms: dict[str, None] = {}
    for variant in variants:
        for metric in METRICS:
            for text, keys in measured.settings(workload, variant, step, metric).items():
                eps = number_of(keys.get("eps"))
                place = Place(metric, None if math.isnan(eps) else eps, keys.get("method", ""), keys.get("layer", ""))
                found[variant, place] = measured.values(workload, variant, step, metric, text)
                norms |= {keys["norm"]: None} if "norm" in keys else {}
    return found, norms


def _remarks(measured: Measured, workload: str, step: str) -> tuple[str, ...]:
    """What the stage says of accuracies and radii that it gave; remarks that differ in numbers alone are one."""
    rows = measured.frame
    rows = rows[(rows["workload"] == workload) & (rows["step"] == step) & rows["metric"].isin(_TOLD)]
    rows = rows[rows["value"].notna()]
    found: dict[tuple[str, str], list[str]] = {}
    for variant, metric, reason in rows[["variant", "metric", "reason"]].itertuples(index=False):
        if reason:
            alike = re.sub(r"[0-9]+", "0", str(reason))
            found.setdefault((str(metric), alike), []).append(f"{variant}: {reason}")
    totals = rows["metric"].value_counts()
    return tuple(
        f"{len(told)} of {int(totals[metric])} values of {metric.replace('_', ' ')} have a remark like this: {told[0]}."
        for (metric, _), told in found.items()
    )
