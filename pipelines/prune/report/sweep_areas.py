"""The area between a variant's curve of accuracy over cost and the baseline's, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalsuite import Area, Point, Screen, holm_areas, measured_area
from pipelines.prune.report.tables import ACCURACY, PruningTable, Sweep, Treatment


@dataclass(frozen=True)
class Axis:
    """A cost that accuracy is shown over. `logarithmic` areas are over its natural logarithm."""

    metric: str
    setting: str
    label: str
    logarithmic: bool = False
    timing: bool = False


MACS = Axis("mac_fraction", "", "share of MACs left")
FAST = Axis("relative_latency", "batch=64", "relative latency, batch 64", logarithmic=True, timing=True)
QUESTIONS = {
    MACS: "accuracy of pruned networks at equal MACs", FAST: "accuracy of pruned networks at equal latency",
}  # fmt: skip
SINGLE = Axis("relative_latency", "batch=1", "relative latency, batch 1", logarithmic=True, timing=True)


@dataclass(frozen=True, kw_only=True)
class SweepArea(Area):
    """Of one sweep of a workload over one cost; `decided`: the decision matrix asks it, and `p_holm` is its p."""

    workload: str
    method: str
    axis: Axis
    decided: bool = False


def curve_points(
    table: PruningTable, sweep: Sweep, variant: str, axis: Axis
) -> dict[str, tuple[Treatment | None, dict[int, Point]]]:
    """Step -> its treatment, and seed -> (cost, accuracy); from no sparsity up, with the network's own place at 0.

    That place is the control's, which was fine-tuned like the others; without one it is the unpruned network's, whose
    share of MACs is 1 and whose latency nobody measured.
    """
    found: dict[str, tuple[Treatment | None, dict[int, Point]]] = {}
    if sweep.control is None and table.unpruned and axis == MACS:
        heights = table.values(table.unpruned, variant, ACCURACY)
        found[table.unpruned] = (None, {seed: (1.0, height) for seed, height in heights.items()})
    for each in sweep.every:
        costs = table.values(each.step, variant, axis.metric, axis.setting)
        heights = table.values(each.step, variant, ACCURACY)
        found[each.step] = (each, {seed: (costs[seed], heights[seed]) for seed in sorted(costs.keys() & heights.keys())
                                   if costs[seed] > 0})  # fmt: skip
    return found


def areas(tables: Sequence[PruningTable], screen: Screen | None = None) -> list[SweepArea]:
    """One for each workload, sweep, axis and variant but the baseline.

    The first sweep's have the decision matrix's p, the others Holm's over all of them.
    """
    first = {table.workload: table.sweeps[0].method for table in reversed(tables) if table.sweeps}
    p = {place: cell.p_adjusted for place, cell in (screen or {}).items()}

    def known(area: SweepArea) -> float | None:
        asked = area.method == first[area.workload]
        return p.get((QUESTIONS[area.axis], area.workload, area.variant)) if asked else None

    found = [
        sweep_area(table, sweep, variant, axis)
        for table in tables
        for sweep in table.sweeps
        for axis in (MACS, FAST)
        for variant in table.others
    ]
    return [replace(each, decided=known(each) is not None) for each in holm_areas(found, known=known)]


def sweep_area(table: PruningTable, sweep: Sweep, variant: str, axis: Axis) -> SweepArea:
    """How much higher a variant's curve lies than the baseline's."""
    told = {
        "own": f"no accuracy was measured beside the {axis.label}",
        "other": f"the baseline has no accuracy beside the {axis.label}",
        "seed": "no seed in common with the baseline", "range": "the curves have no range in common",
        "point": "one point is no curve",
    }  # fmt: skip
    area = SweepArea(variant=variant, workload=table.workload, method=sweep.method, axis=axis)
    own, other = (
        {step: points for step, (_, points) in curve_points(table, sweep, name, axis).items()}
        for name in (variant, table.baseline)
    )
    return measured_area(area, own, other, told.__getitem__, logarithmic=axis.logarithmic)
