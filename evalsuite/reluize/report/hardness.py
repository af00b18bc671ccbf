"""The hardness of layers: what was learnt, whether seeds agree on its order, whether its drift says anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalsuite.contract import Direction
from evalsuite.reluize.report.ranks import Association, agreement, association
from evalsuite.report.measured import TRAIN, Measured
from evalsuite.report.paired import Values
from evalsuite.report.statistics import SIGNIFICANT, Estimate, holm, mean_by_seed
from evalsuite.report.tables import TextLine

LEAST_LAYERS = 3  # Two layers have two orders: rho_S is 1 or -1 whatever was learnt.
LEAST_SEEDS = 3
ALL = "all workloads"
BEYOND = "beyond these seeds"


@dataclass(frozen=True)
class LayerOrder:
    """Whether the seeds rank the layers alike: mean rho_S over pairs of seeds, or the reason why there is none."""

    workload: str
    variant: str
    seeds: int
    layers: int
    agreement: Estimate | None
    reason: str = ""


@dataclass(frozen=True)
class Relation:
    """Of one metric with the mean drift of the same networks, over seeds.

    rho_S is turned so that it is positive where the networks whose lambda rose more did better. `p` is of a two-sided
    permutation test, `p_adjusted` Holm's over all relations of the same `workload` group: single workloads, or `ALL`;
    `least_adjusted` is what Holm makes of the smallest p values possible.
    """

    workload: str
    variant: str
    step: str
    metric: str
    setting: str
    label: str
    association: Association | None = None
    p_adjusted: float | None = None
    least_adjusted: float | None = None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """ "resolved", "not resolved", `BEYOND` (too few seeds for any adjusted p below 0.05), or the reason."""
        if self.p_adjusted is None or self.least_adjusted is None:
            return self.reason
        if self.least_adjusted > SIGNIFICANT:
            return BEYOND
        return "resolved" if self.p_adjusted <= SIGNIFICANT else "not resolved"


def learners(measured: Measured, workload: str) -> list[str]:
    """The variants that learnt some lambda on a workload: one that only moved it by a schedule has no drift."""
    drifts = {variant: measured.layers(workload, variant, "hardness_drift") for variant in measured.variants}
    return [variant for variant, layers in drifts.items() if any(any(each.values()) for each in layers.values())]


def layer_orders(measured: Measured) -> list[LayerOrder]:
    """One for each workload and variant with a learnt lambda."""
    found = []
    for workload in measured.workloads:
        for variant in learners(measured, workload):
            layers = measured.layers(workload, variant, "learnt_hardness")
            seeds = sorted(set.intersection(*(set(values) for values in layers.values())))
            rho, reason = None, ""
            if len(layers) < LEAST_LAYERS:
                reason = f"not defined: {len(layers)} layer{'s' * (len(layers) != 1)}"
            elif len(seeds) < 2:
                reason = "not defined: one seed"
            else:
                rho = agreement({seed: [values[seed] for values in layers.values()] for seed in seeds})
                reason = "" if rho else "not defined: a seed with the same lambda in every layer"
            found.append(LayerOrder(workload, variant, len(seeds), len(layers), rho, reason))
    return found


def relations(measured: Measured, headlines: Sequence[TextLine]) -> list[Relation]:
    """Of the headline metrics after training with the mean drift: within each workload, then over all of them."""
    lines = [line for line in headlines if line.step != TRAIN and line.metric and line.direction != "neutral"]
    learnt = {workload: learners(measured, workload) for workload in measured.workloads}
    single, pooled = [], []
    for variant in measured.variants:
        places: dict[tuple[str, str, str], list[tuple[TextLine, Values, Values]]] = {}
        for line in lines:
            if variant not in learnt[line.workload]:
                continue
            drift = mean_by_seed([*measured.layers(line.workload, variant, "hardness_drift").values()])
            values = measured.values(line.workload, variant, line.step, line.metric, line.setting)
            if values:
                places.setdefault((line.step, line.metric, line.setting), []).append((line, drift, values))
                single.append(_relation(line.workload, variant, [(line, drift, values)]))
        pooled += [_relation(ALL, variant, found) for found in places.values() if len(found) > 1]
    single.sort(key=lambda each: measured.workloads.index(each.workload))
    return [*_adjusted(single), *_adjusted(pooled)]


def _relation(workload: str, variant: str, found: Sequence[tuple[TextLine, Values, Values]]) -> Relation:
    first = found[0][0]
    strata = []
    for line, drift, values in found:
        sign = 1.0 if line.direction == Direction.HIGHER.value else -1.0
        seeds = sorted(drift.keys() & values.keys())
        if len(seeds) >= LEAST_SEEDS:
            strata.append(([drift[seed] for seed in seeds], [sign * values[seed] for seed in seeds]))
    relation = Relation(workload, variant, first.step, first.metric, first.setting, first.brief, association(strata))
    if relation.association is not None:
        return relation
    few = max(len(drift.keys() & values.keys()) for _, drift, values in found)
    return replace(relation, reason="the same in every seed" if strata else f"n = {few}: too few")


def _adjusted(found: Sequence[Relation]) -> list[Relation]:
    tests = [each.association for each in found]
    adjusted, least = (holm(getattr(each, name, None) for each in tests) for name in ("p", "least"))
    return [
        replace(each, p_adjusted=p, least_adjusted=low) for each, p, low in zip(found, adjusted, least, strict=True)
    ]
