"""The hardness of layers: what was learnt, whether seeds agree on its order, whether its drift
says anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalsuite.contract import Direction
from evalsuite.reluize.report.before_after import PLAIN
from evalsuite.reluize.report.ranks import Association, agreement, association
from evalsuite.report.grids import Grid, GridCell, Sheet, estimate_columns
from evalsuite.report.measured import TRAIN, Measured
from evalsuite.report.numerals import Scale, grouped, p_text
from evalsuite.report.paired import Values, bracket
from evalsuite.report.section import notes
from evalsuite.report.statistics import SIGNIFICANT, Estimate, holm, mean_by_seed, mean_interval
from evalsuite.report.tables import TextLine

LEAST_LAYERS = 3  # Two layers have two orders: rho_S is 1 or -1 whatever was learnt.
LEAST_SEEDS = 3
ALL = "all workloads"
BEYOND = "beyond these seeds"
NOTES = notes(__name__)
_FINE = Scale(1.0, "", "", 3)
_DRIFT = ("learnt_hardness", "hardness_drift", "hardness_spread")


@dataclass(frozen=True)
class LayerOrder:
    """Whether the seeds rank the layers alike: mean rho_S over pairs of seeds, or the reason why
    there is none.
    """

    workload: str
    variant: str
    seeds: int
    layers: int
    agreement: Estimate | None
    reason: str = ""


@dataclass(frozen=True)
class Relation:
    """The rank correlation rho_S over seeds of one metric with the mean drift of the hardness
    lambda, in the same networks.

    rho_S is turned so that it is positive where the networks whose lambda rose more did better. `p`
    is of a two-sided permutation test, `p_adjusted` Holm's over all relations of the same
    `workload` group: single workloads, or `ALL`; `least_adjusted` is what Holm makes of the
    smallest p values possible.
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
        """ "resolved", "not resolved", `BEYOND` (too few seeds for any adjusted p below 0.05),
        or the reason.
        """
        if self.p_adjusted is None or self.least_adjusted is None:
            return self.reason
        if self.least_adjusted > SIGNIFICANT:
            return BEYOND
        return "resolved" if self.p_adjusted <= SIGNIFICANT else "not resolved"


def learners(measured: Measured, workload: str) -> list[str]:
    """The variants that learnt some lambda on a workload: one that only moved it by a schedule
    has no drift.
    """
    drifts = {
        variant: measured.layers(workload, variant, "hardness_drift")
        for variant in measured.variants
    }
    return [
        variant
        for variant, layers in drifts.items()
        if any(any(layer.values()) for layer in layers.values())
    ]


def layer_orders(measured: Measured) -> list[LayerOrder]:
    orders = []
    for workload in measured.workloads:
        for variant in learners(measured, workload):
            layers = measured.layers(workload, variant, "learnt_hardness")
            seeds = set.intersection(*map(set, layers.values())) if layers else set[int]()
            rho, reason = None, ""
            if len(layers) < LEAST_LAYERS:
                reason = f"not defined: {len(layers)} layer{'s' * (len(layers) != 1)}"
            elif len(seeds) < 2:
                reason = "not defined: one seed"
            else:
                rho = agreement(
                    {seed: [values[seed] for values in layers.values()] for seed in sorted(seeds)}
                )
                reason = "" if rho else "not defined: a seed with the same lambda in every layer"
            orders.append(LayerOrder(workload, variant, len(seeds), len(layers), rho, reason))
    return orders


def relations(measured: Measured, headlines: Sequence[TextLine]) -> list[Relation]:
    """Relate the headline metrics after training to the mean drift of the hardness: within each
    workload, then over all of them.
    """
    lines = [
        line
        for line in headlines
        if line.step != TRAIN and line.metric and line.direction != "neutral"
    ]
    learnt = {workload: learners(measured, workload) for workload in measured.workloads}
    single, pooled = [], []
    for variant in measured.variants:
        places: list[tuple[tuple[str, str, str], tuple[TextLine, Values, Values]]] = []
        for line in lines:
            if variant not in learnt[line.workload]:
                continue
            drift = mean_by_seed(
                [*measured.layers(line.workload, variant, "hardness_drift").values()]
            )
            values = measured.values(line.workload, variant, line.step, line.metric, line.setting)
            if values:
                places.append(((line.step, line.metric, line.setting), (line, drift, values)))
                single.append(_relation(line.workload, variant, [(line, drift, values)]))
        # Over workloads, only metrics that several of them measure can be related.
        pooled += [
            _relation(ALL, variant, relations_of_place)
            for relations_of_place in grouped(places).values()
            if len(relations_of_place) > 1
        ]
    single.sort(key=lambda relation: measured.workloads.index(relation.workload))
    # Two families of Holm's adjustment: single workloads, and all of them together.
    return [*_adjusted(single), *_adjusted(pooled)]


def _relation(
    workload: str, variant: str, lines: Sequence[tuple[TextLine, Values, Values]]
) -> Relation:
    first = lines[0][0]
    strata = []
    for line, drift, values in lines:
        sign = 1.0 if line.direction == Direction.HIGHER.value else -1.0
        seeds = sorted(drift.keys() & values.keys())
        if len(seeds) >= LEAST_SEEDS:
            strata.append(
                ([drift[seed] for seed in seeds], [sign * values[seed] for seed in seeds])
            )
    relation = Relation(
        workload, variant, first.step, first.metric, first.setting, first.brief, association(strata)
    )
    if relation.association is not None:
        return relation
    few = max(len(drift.keys() & values.keys()) for _, drift, values in lines)
    return replace(relation, reason="the same in every seed" if strata else f"n = {few}: too few")


def _adjusted(relations_found: Sequence[Relation]) -> list[Relation]:
    tests = [relation.association for relation in relations_found]
    adjusted, least = (holm(getattr(test, name, None) for test in tests) for name in ("p", "least"))
    return [
        replace(relation, p_adjusted=p, least_adjusted=low)
        for relation, p, low in zip(relations_found, adjusted, least, strict=True)
    ]


def rho_text(estimate: Estimate) -> str:
    """ "+0.80 [0.31, 1.00]"; pairs that all agree have no spread to make an interval of."""
    detail = "in all pairs of seeds" if estimate.constant else bracket(estimate, PLAIN)
    return f"{PLAIN.number(estimate.mean, sign=True)} {detail}"


def _cell(estimate: Estimate | None, *, sign: bool = False) -> GridCell:
    if estimate is None:
        return GridCell("")
    return GridCell(
        _FINE.number(estimate.mean, sign=sign), bracket(estimate, _FINE), repr(estimate.mean)
    )


def order_grid(orders: Sequence[LayerOrder]) -> Grid | None:
    sheet = Sheet()
    for order in orders:
        rho = GridCell(order.reason, tone="lack")
        if order.agreement is not None:
            head, _, tail = rho_text(order.agreement).partition(" ")
            rho = GridCell(head, tail, repr(order.agreement.mean))
        pairs = order.seeds * (order.seeds - 1) // 2
        sheet.add(
            order.variant, order.workload, rho, *map(_count, (order.layers, order.seeds, pairs))
        )
        sheet.lines.append(
            {
                "workload": order.workload,
                "variant": order.variant,
                "layers": order.layers,
                "seeds": order.seeds,
                **estimate_columns("rho", order.agreement),
                "reason": order.reason,
            }
        )
    columns = ("variant", "workload", "ρ between seeds", "layers", "seeds", "pairs")
    return sheet.grid("layer-order", "Layer order of the learnt hardness", columns, NOTES["order"])


def drift_grid(measured: Measured) -> Grid | None:
    """The table of all layers with a learnt lambda: lambda when learning ended, its change, and its
    spread over channels.
    """
    sheet, lines = Sheet(), []
    for workload in measured.workloads:
        for variant in learners(measured, workload):
            layers = (measured.layers(workload, variant, metric) for metric in _DRIFT)
            learnt, drifts, spreads = (
                {layer: mean_interval(list(values.values())) for layer, values in layer.items()}
                for layer in layers
            )
            lines += [
                (layer, variant, workload, learnt[layer], drift, spreads.get(layer))
                for layer, drift in drifts.items()
                if layer in learnt
            ]
    channels = any(spread for *_, spread in lines)
    for layer, variant, workload, value, drift, spread in lines:
        cells = [_cell(value), _cell(drift, sign=True), *[_cell(spread)] * channels]
        sheet.add(layer, variant, workload, *cells, _count(value.n))
        sheet.lines.append(
            {
                "workload": workload,
                "variant": variant,
                "layer": layer,
                "seeds": value.n,
                **estimate_columns("learnt", value),
                **estimate_columns("drift", drift),
                **estimate_columns("spread", spread),
            }
        )
    columns = (
        "layer",
        "variant",
        "workload",
        "learnt λ",
        "drift Δλ",
        *["spread over channels"] * channels,
        "seeds",
    )
    return sheet.grid("hardness-drift", "Drift of each layer", columns, NOTES["drift"])


def _count(number: int) -> GridCell:
    return GridCell(str(number), sort=str(number))


def relation_grids(relations: Sequence[Relation]) -> list[Grid | None]:
    """One table over all workloads where there are several, then one for each: rows are metrics,
    columns variants.
    """
    places = dict.fromkeys(relation.workload for relation in relations)
    return [
        _relation_grid(
            [relation for relation in relations if relation.workload == place], relations
        )
        for place in sorted(places, key=lambda place: place != ALL)
    ]


def _relation_grid(
    relations_of_workload: Sequence[Relation], every: Sequence[Relation]
) -> Grid | None:
    workload, sheet = relations_of_workload[0].workload, Sheet()
    variants = list(dict.fromkeys(relation.variant for relation in relations_of_workload))
    for label in dict.fromkeys(relation.label for relation in relations_of_workload):
        named = {
            relation.variant: relation
            for relation in relations_of_workload
            if relation.label == label
        }
        sheet.add(label, *(_relation_cell(named.get(variant)) for variant in variants))
    for relation in relations_of_workload:
        association = relation.association
        sheet.lines.append(
            {
                "workload": relation.workload,
                "variant": relation.variant,
                "step": relation.step,
                "metric": relation.metric,
                "setting": relation.setting,
                "workloads": association.strata if association else 0,
                "n": association.n if association else 0,
                "rho": association.rho if association else None,
                "p": association.p if association else None,
                "smallest_p": association.least if association else None,
                "p_holm": relation.p_adjusted,
                "verdict": relation.verdict,
            }
        )
    tested = [relation.workload == ALL for relation in every if relation.association is not None]
    note = NOTES["relations"].format(single=tested.count(False))
    if any(relation.workload == ALL for relation in every):
        note += " " + NOTES["pooled relations"].format(pooled=tested.count(True))
    name = f"drift-relations-{'all' if workload == ALL else workload}"
    return sheet.grid(
        name, f"Drift and the metrics of the same networks, {workload}", ("metric", *variants), note
    )


def _relation_cell(relation: Relation | None) -> GridCell:
    if relation is None:
        return GridCell("")
    if relation.association is None or relation.p_adjusted is None:
        return GridCell(relation.reason, tone="lack")
    association = relation.association
    over = f"n = {association.n}" + (
        f" in {association.strata} workloads" if association.strata > 1 else ""
    )
    detail = (
        f"p {p_text(association.p)}, Holm {p_text(relation.p_adjusted)}, {over}: {relation.verdict}"
    )
    return GridCell(PLAIN.number(association.rho, sign=True), detail, repr(association.rho))


def relations_told(relations: Sequence[Relation]) -> str:
    """How many relations are resolved of those that were tested, in a sentence: "0 of 40 tests
    resolved.".
    """
    tested = [relation for relation in relations if relation.association is not None]
    resolved = sum(relation.verdict == "resolved" for relation in tested)
    beyond = sum(relation.verdict == BEYOND for relation in tested)
    more = f", {beyond} beyond what so few seeds can resolve" if beyond else ""
    return f"{resolved} of {len(tested)} tests resolved{more}."
