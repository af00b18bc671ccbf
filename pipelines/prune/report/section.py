"""The section of the report on pruning: its tables, figures, findings and endpoints."""

from __future__ import annotations

from evalsuite import Contrast, Direction, Endpoint, Evidence, Headline, Measure, Part, Run, Section
from pipelines.prune.report.chains import chain_grid
from pipelines.prune.report.findings import RULE, finding, overall
from pipelines.prune.report.pareto import pareto_figures
from pipelines.prune.report.removal import exact_grid
from pipelines.prune.report.sweep_areas import FAST, MACS, QUESTIONS, Axis, areas, sweep_area
from pipelines.prune.report.tables import ACCURACY, BEFORE, EXACT, STAGE, pruning_tables
from pipelines.prune.report.text import accuracy_grid, area_grid, cost_grid, treatments_grid


def _part(run: Run) -> Part:
    """Each workload with a step that prunes."""
    tables = run.once(pruning_tables)
    found = areas(tables, run.screen)
    grids, details = [], []
    for table in tables:
        grids += [accuracy_grid(table), cost_grid(table), treatments_grid(table)]
        if table.tuned:
            details += [accuracy_grid(table, BEFORE), treatments_grid(table, BEFORE)]
    grids.append(area_grid(found, run.baseline))
    grids += [chain_grid(run, each) for each in run.measured.workloads]
    details += [exact_grid(run, each) for each in run.measured.workloads]
    told = [finding(table, [each for each in found if each.workload == table.workload]) for table in tables]
    drawings = [drawing for table in tables for drawing in pareto_figures(table)]
    return Part.of([overall(tables), *told], grids, details, drawings, rule=RULE if tables else "", tables=tables)


def _at_equal(axis: Axis) -> Measure:
    """How much higher the curve of accuracy over a cost lies, and over MACs each sparsity."""

    def measure(run: Run, workload: str, variant: str) -> Evidence | None:
        table = next((each for each in run.once(pruning_tables) if each.workload == workload), None)
        if table is None or not table.sweeps:
            return None
        sweep = table.sweeps[0]
        area = sweep_area(table, sweep, variant, axis)
        primary = Contrast(f"mean over the {axis.label}", area.values, area.other, area.reason, 1.0)
        # At equal latency variants differ in sparsity: their accuracy at one sparsity says nothing against it.
        alike = sweep.treatments if axis == MACS else ()
        cells = [(each.share, table.paired(each.step, variant)) for each in alike]
        return Evidence(primary, [Contrast(share, each.values, each.other) for share, each in cells if each.difference])

    return measure


SECTION = Section(
    title="Pruning",
    question="What does removing channels, heads and units cost in accuracy, and buy in speed and size?",
    stages=(STAGE, EXACT),
    part=_part,
    endpoints=(
        Endpoint(QUESTIONS[MACS], _at_equal(MACS), "fraction", Direction.HIGHER, 0.005),
        Endpoint(QUESTIONS[FAST], _at_equal(FAST), "fraction", Direction.HIGHER, 0.005),
    ),
    headlines=(Headline(STAGE, ACCURACY),),
    of_task=(STAGE,),
    terms={
        "sparsity": "The share of channels that was removed.",
        "MACs": "Multiply-accumulate operations of one sample.",
        "fine-tuning": "Training that goes on after channels were removed.",
    },
    spelled={"mac": "MAC", "macs": "MACs"},
)
