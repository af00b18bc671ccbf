"""The report's section on certified robustness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalsuite import Contrast, Direction, Drawing, Endpoint, Evidence, Grid, Headline, Part, Run, Section, radius_text
from pipelines.bounds.report.answer import overall
from pipelines.bounds.report.curves import certified_curves
from pipelines.bounds.report.figures import width_figures
from pipelines.bounds.report.findings import RULE, finding
from pipelines.bounds.report.heights import height, heights
from pipelines.bounds.report.layers import bounds_cost_grid, layers_grid, logits_grid, stability_grid
from pipelines.bounds.report.reading import bounds_tables
from pipelines.bounds.report.tables import (
    CERTIFIED,
    LAYER_OFF,
    LAYER_UNSTABLE,
    LAYER_WIDTH,
    STAGE,
    BoundsTable,
    Place,
    by_tightness,
)
from pipelines.bounds.report.text import decisions_grid, heights_grid, looser_grid, radius_grid

if TYPE_CHECKING:
    import pandas as pd


def _tables(run: Run) -> list[BoundsTable]:
    return bounds_tables(run.measured, run.baseline, run.record.after)


def _part(run: Run) -> Part:
    """Each bounds step of each workload."""
    tables = run.once(_tables)
    if not tables:
        return Part()
    found = heights(tables)
    grids: list[Grid | None] = [heights_grid(found, run.baseline), radius_grid(tables)]
    grids += [decisions_grid(table) for table in tables]
    details: list[Grid | None] = [heights_grid(found, run.baseline, looser=True)]
    for table in tables:
        details += [layers_grid(table), stability_grid(table), logits_grid(table), looser_grid(table)]
    details.append(bounds_cost_grid(tables))
    findings = [overall(tables, found), *(finding(table, found) for table in tables)]
    return Part(
        [each for each in findings if each is not None],
        [grid for grid in grids if grid is not None],
        [grid for grid in details if grid is not None],
        _drawings(run, tables),
        RULE,
        tables,
    )


def _drawings(run: Run, tables: list[BoundsTable]) -> list[Drawing]:
    found = []
    for workload in dict.fromkeys(table.workload for table in tables):
        found += certified_curves(run.compared[run.compared["workload"] == workload], workload)
        found += [each for table in tables if table.workload == workload for each in width_figures(table)]
    return found


def _certified(run: Run, workload: str, variant: str) -> Evidence | None:
    """How much higher the certified curve of the tightest method lies, and each of its radii."""
    own = [each for each in run.once(_tables) if each.workload == workload and not each.after]
    if not own:
        return None
    table = own[0]
    places = [(eps, Place(CERTIFIED, eps, table.tightest)) for eps in table.radii]
    family = [
        Contrast(f"ε = {radius_text(eps)}", table.values(variant, place), table.values(table.baseline, place))
        for eps, place in places
    ]
    if len(family) == 1:
        return Evidence(family[0])
    area = height(table, table.tightest, variant)
    level = dict.fromkeys(area.heights, 0.0)
    return Evidence(Contrast(f"mean over ε, {table.tightest}", area.heights, level, area.reason, 1.0), family)


def _layers(compared: pd.DataFrame) -> pd.Series[bool]:
    """Lines of single layers, which have a figure and tables."""
    return compared["metric"].isin((LAYER_WIDTH, LAYER_UNSTABLE, LAYER_OFF)) & (compared["stage"] == STAGE)


SECTION = Section(
    title="Certified robustness",
    question="For how many samples does bound propagation prove that no input near them is another class?",
    stages=(STAGE,),
    part=_part,
    endpoints=(Endpoint("certified accuracy", _certified, "fraction", Direction.HIGHER, 0.01),),
    headlines=(
        Headline(STAGE, CERTIFIED, wanted=("method", "alpha-crown")),
        Headline(STAGE, "certified_radius", wanted=("method", "crown")),
    ),
    tightest=lambda methods: by_tightness(methods)[-1],
    terms={
        "certified accuracy": "The share of test samples whose class is proven for every input of a ball around them.",
        "PGD accuracy": "The share of test samples whose class an attack by projected gradient descent did not change: "
        "an upper limit of what is robust.",
        "ε": "The radius of a ball around a sample, in the unit of the inputs.",
        "unstable neuron": "One whose input may be of either sign in a ball: where a ReLU is not linear.",
    },
    spelled={"pgd": "PGD"},
    kept=_layers,
)
