"""The report's section on certified robustness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalsuite import (
    Contrast,
    Direction,
    Drawing,
    Endpoint,
    Evidence,
    Headline,
    Part,
    Run,
    Section,
    counterexample_pictures,
    radius_text,
)
from pipelines.bounds.report.figures import certified_curves, width_figures
from pipelines.bounds.report.findings import RULE, finding, overall
from pipelines.bounds.report.heights import AVERAGE, OVER_RADII, first_table, height, heights, radius_gaps
from pipelines.bounds.report.tables import (
    ATTACKED,
    CERTIFIED,
    LAYER_OFF,
    LAYER_UNSTABLE,
    LAYER_WIDTH,
    RADIUS,
    STAGE,
    TIGHTNESS,
    Place,
    bounds_tables,
)
from pipelines.bounds.report.text import details, grids

if TYPE_CHECKING:
    import pandas as pd


def _part(run: Run) -> Part:
    """Each bounds step of each workload."""
    tables = run.once(bounds_tables)
    if not tables:
        return Part()
    found, turned, radii = heights(tables, run.screen), heights(tables, turned=True), radius_gaps(tables, run.screen)
    findings = [overall(tables, found, turned, radii), *(finding(table, found, radii) for table in tables)]
    drawings: list[Drawing] = []
    for workload in dict.fromkeys(table.workload for table in tables):
        own = [table for table in tables if table.workload == workload]
        drawings += [*certified_curves(own), *(each for table in own for each in width_figures(table))]
    return Part.of(findings, grids(tables, found, radii), details(tables, found), drawings, rule=RULE, tables=tables)


def _radius(run: Run, workload: str, variant: str) -> Evidence | None:
    """The mean certified radius over the samples, of the tightest method that has radii."""
    tables = run.once(bounds_tables)
    table = first_table(tables, workload)
    if table is None or not any(each.radius_place for each in tables):
        return None
    place = table.radius_place
    if place is None:
        return Evidence(Contrast("mean certified radius", reason="no radius was bisected"))
    own, other = (table.values(name, place) for name in (variant, table.baseline))
    lacking = variant if not own else table.baseline
    reason = f"{lacking}: {table.reason(lacking, RADIUS)}" if not (own and other) else ""
    told = run.measured.settings(workload, variant, table.step, RADIUS)
    setting = next((text for text, keys in told.items() if keys.get("method", "") == place.method), "")
    label = f"mean over the samples, {place.method}, {table.ball}"
    return Evidence(Contrast(label, own, other, reason, place=(table.step, RADIUS, setting)))


def _certified(run: Run, workload: str, variant: str) -> Evidence | None:
    """How much higher the certified curve of the tightest method lies, and each of its ε; of runs without radii."""
    tables = run.once(bounds_tables)
    table = first_table(tables, workload)
    if table is None or any(each.radius_place for each in tables):
        return None
    places = {f"ε = {radius_text(eps)}": Place(CERTIFIED, eps, table.tightest) for eps in table.radii}
    family = [Contrast(told, table.values(variant, place), table.values(table.baseline, place))
              for told, place in places.items()]  # fmt: skip
    if len(family) == 1:
        return Evidence(family[0])
    area = height(table, table.tightest, variant)
    return Evidence(
        Contrast(", ".join(filter(None, ("mean over ε", table.tightest))), area.values, area.other, area.reason, 1.0),
        family,
    )


def _layers(compared: pd.DataFrame) -> pd.Series[bool]:
    """Lines of single layers, which have a figure and tables."""
    return compared["metric"].isin((LAYER_WIDTH, LAYER_UNSTABLE, LAYER_OFF)) & (compared["stage"] == STAGE)


SECTION = Section(
    title="Certified robustness",
    question="For how many samples does bound propagation prove that no input near them is another class?",
    stages=(STAGE,),
    part=_part,
    endpoints=(
        # One grey level of 8 bits: less of a radius moves no image.
        Endpoint(AVERAGE, _radius, "input", Direction.HIGHER, 1 / 255),
        Endpoint(OVER_RADII, _certified, "fraction", Direction.HIGHER, 0.01, instead=True),
    ),
    headlines=(
        Headline(STAGE, RADIUS, wanted=("method", TIGHTNESS[::-1])),
        Headline(STAGE, CERTIFIED, wanted=("method", TIGHTNESS[::-1])),
    ),
    terms={
        "certified accuracy": "The share of test samples whose class is proven for every input of a ball around them.",
        "PGD accuracy": "The share of test samples whose class an attack by projected gradient descent did not change: "
        "an upper limit of what is robust.",
        "certified radius": "The radius of the largest ball around a sample in which its class was proven.",
        "alpha-CROWN": "CROWN with slopes that are optimised for the logits' bounds. Since version 5 of the stage "
        "those are of all layers, where the last layer's alone prove too little and memory allows. Rows of earlier "
        "versions have those of the last layer alone: the bounds of the activations' inputs stayed CROWN's; were they "
        "optimised too, more might be proven of any arm.",
        "ε": "The radius of a ball around a sample, in the unit of the inputs.",
        "unstable neuron": "One whose input may be of either sign in a ball: where a ReLU is not linear.",
    },
    spelled={"pgd": "PGD"},
    kept=_layers,
    pictures=lambda folder: counterexample_pictures(folder, (ATTACKED, CERTIFIED)),
)
