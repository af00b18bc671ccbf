"""The tables of the learnt hardness as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalsuite.reluize.report.hardness import ALL, BEYOND, LayerOrder, Relation, learners
from evalsuite.reluize.report.text import PLAIN
from evalsuite.report.grids import Grid, GridCell, Sheet, estimate_columns
from evalsuite.report.measured import Measured
from evalsuite.report.numerals import Scale, p_text
from evalsuite.report.paired import bracket
from evalsuite.report.statistics import Estimate, mean_interval

_FINE = Scale(1.0, "", "", 3)
_DRIFT = ("learnt_hardness", "hardness_drift", "hardness_spread")
ORDER_NOTE = (
    "ρ between the layers' learnt λ of two seeds, the mean over all pairs of seeds. Pairs share seeds, so the 95 % "
    "interval is the jackknife's over seeds, not over pairs; it is cut off at ±1."
)
DRIFT_NOTE = "λ when learning ended, and its change since initialisation; mean over seeds with the 95 % t interval."
RELATION_NOTE = (
    "Spearman's ρ over seeds between a network's drift (the mean over its layers) and each headline metric of the same "
    "network, turned so that ρ > 0 means: the more λ rose, the better the metric. p is of a two-sided permutation "
    "test; Holm's p is adjusted for all {single} tests in single workloads. With n seeds, p is at least 2/n! (0.33 for "
    "3, 0.017 for 5), before it is adjusted: what Holm's p cannot bring below 0.05 is marked as beyond these seeds; "
    "what is not resolved is not thereby unrelated."
)
POOLED_NOTE = (
    " Over all workloads, ρ is the mean of their own, p permutes within each, and Holm's p is adjusted for the "
    "{pooled} tests of that table."
)


def rho_text(estimate: Estimate) -> str:
    """ "+0.80 [0.31, 1.00]"; pairs that all agree have no spread to make an interval of."""
    detail = "in all pairs of seeds" if estimate.constant else bracket(estimate, PLAIN)
    return f"{PLAIN.number(estimate.mean, sign=True)} {detail}"


def _cell(estimate: Estimate | None, *, sign: bool = False) -> GridCell:
    if estimate is None:
        return GridCell("")
    return GridCell(_FINE.number(estimate.mean, sign=sign), bracket(estimate, _FINE), repr(estimate.mean))


def order_grid(orders: Sequence[LayerOrder]) -> Grid | None:
    """Agreement on the order of layers."""
    sheet = Sheet()
    for each in orders:
        rho = GridCell(each.reason, tone="lack")
        if each.agreement is not None:
            head, _, tail = rho_text(each.agreement).partition(" ")
            rho = GridCell(head, tail, repr(each.agreement.mean))
        pairs = each.seeds * (each.seeds - 1) // 2
        sheet.add(each.variant, each.workload, rho, *map(_count, (each.layers, each.seeds, pairs)))
        sheet.lines.append(
            {"workload": each.workload, "variant": each.variant, "layers": each.layers, "seeds": each.seeds,
             **estimate_columns("rho", each.agreement), "reason": each.reason}
        )  # fmt: skip
    columns = ("variant", "workload", "ρ between seeds", "layers", "seeds", "pairs")
    return sheet.grid("layer-order", "Layer order of the learnt hardness", columns, ORDER_NOTE)


def drift_grid(measured: Measured) -> Grid | None:
    """Of each layer with a learnt lambda: lambda when learning ended, its change, and its spread over channels."""
    sheet, found = Sheet(), []
    for workload in measured.workloads:
        for variant in learners(measured, workload):
            layers = (measured.layers(workload, variant, metric) for metric in _DRIFT)
            learnt, drifts, spreads = (
                {layer: mean_interval(list(values.values())) for layer, values in each.items()} for each in layers
            )
            found += [(layer, variant, workload, learnt[layer], drift, spreads.get(layer))
                      for layer, drift in drifts.items() if layer in learnt]  # fmt: skip
    channels = any(spread for *_, spread in found)
    for layer, variant, workload, value, drift, spread in found:
        cells = [_cell(value), _cell(drift, sign=True), *[_cell(spread)] * channels]
        sheet.add(layer, variant, workload, *cells, _count(value.n))
        sheet.lines.append(
            {"workload": workload, "variant": variant, "layer": layer, "seeds": value.n,
             **estimate_columns("learnt", value), **estimate_columns("drift", drift),
             **estimate_columns("spread", spread)}
        )  # fmt: skip
    columns = ("layer", "variant", "workload", "learnt λ", "drift Δλ", *["spread over channels"] * channels, "seeds")
    return sheet.grid("hardness-drift", "Drift of each layer", columns, DRIFT_NOTE)


def _count(number: int) -> GridCell:
    return GridCell(str(number), sort=str(number))


def relation_grids(relations: Sequence[Relation]) -> list[Grid | None]:
    """One table over all workloads where there are several, then one for each: rows are metrics, columns variants."""
    places = dict.fromkeys(each.workload for each in relations)
    return [
        _relation_grid([each for each in relations if each.workload == place], relations)
        for place in sorted(places, key=lambda place: place != ALL)
    ]


def _relation_grid(own: Sequence[Relation], every: Sequence[Relation]) -> Grid | None:
    workload, sheet = own[0].workload, Sheet()
    variants = list(dict.fromkeys(each.variant for each in own))
    for label in dict.fromkeys(each.label for each in own):
        found = {each.variant: each for each in own if each.label == label}
        sheet.add(label, *(_relation_cell(found.get(variant)) for variant in variants))
    sheet.lines = [_line(each) for each in own]
    tested = [each.workload == ALL for each in every if each.association is not None]
    note = RELATION_NOTE.format(single=tested.count(False))
    if any(each.workload == ALL for each in every):
        note += POOLED_NOTE.format(pooled=tested.count(True))
    name = f"drift-relations-{'all' if workload == ALL else workload}"
    return sheet.grid(name, f"Drift and the metrics of the same networks, {workload}", ("metric", *variants), note)


def _relation_cell(relation: Relation | None) -> GridCell:
    if relation is None:
        return GridCell("")
    if relation.association is None or relation.p_adjusted is None:
        return GridCell(relation.reason, tone="lack")
    found = relation.association
    over = f"n = {found.n}" + (f" in {found.strata} workloads" if found.strata > 1 else "")
    detail = f"p {p_text(found.p)}, Holm {p_text(relation.p_adjusted)}, {over}: {relation.verdict}"
    return GridCell(PLAIN.number(found.rho, sign=True), detail, repr(found.rho))


def _line(each: Relation) -> dict[str, Any]:
    found = each.association
    return {
        "workload": each.workload, "variant": each.variant, "step": each.step, "metric": each.metric,
        "setting": each.setting, "workloads": found.strata if found else 0, "n": found.n if found else 0,
        "rho": found.rho if found else None, "p": found.p if found else None,
        "smallest_p": found.least if found else None, "p_holm": each.p_adjusted, "verdict": each.verdict,
    }  # fmt: skip


def relations_told(relations: Sequence[Relation]) -> str:
    """How many relations are resolved of those that were tested, in a sentence: "0 of 40 tests resolved."."""
    tested = [each for each in relations if each.association is not None]
    resolved = sum(each.verdict == "resolved" for each in tested)
    beyond = sum(each.verdict == BEYOND for each in tested)
    more = f", {beyond} beyond what so few seeds can resolve" if beyond else ""
    return f"{resolved} of {len(tested)} tests resolved{more}."
