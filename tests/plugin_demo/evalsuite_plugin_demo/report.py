"""A third party's section of the report: what noise on the inputs costs."""

from __future__ import annotations

from evalsuite import Direction, Section
from evalsuite.report.canvas import looks, panels
from evalsuite.report.drawings import Drawing
from evalsuite.report.findings import Finding
from evalsuite.report.forms import Form
from evalsuite.report.grids import Grid, GridCell
from evalsuite.report.section import Endpoint, Part, RunView, first_step
from evalsuite.report.statistics import mean_interval

STAGE, METRIC = "input-noise", "noisy_accuracy"


def part(run: RunView) -> Part:
    """The accuracy of each variant under noise, as a table and as bars."""
    means: dict[tuple[str, str], float] = {}
    for workload in run.measured.workloads:
        for variant in run.measured.variants:
            for step in run.measured.steps(workload, STAGE):
                for setting in run.measured.settings(workload, variant, step, METRIC):
                    values = run.measured.values(workload, variant, step, METRIC, setting)
                    means[workload, variant] = mean_interval(list(values.values())).mean
    if not means:
        return Part()
    rows = [
        (GridCell(workload), GridCell(variant), GridCell(f"{100 * mean:.1f} %", sort=repr(mean)))
        for (workload, variant), mean in means.items()
    ]
    grid = Grid(
        "input-noise", "Accuracy under noise", ("workload", "variant", "accuracy"), tuple(rows)
    )
    best = max(means, key=lambda place: means[place])
    finding = Finding(
        "input noise", f"The highest accuracy is {best[1]}'s.", (f"It was measured on {best[0]}.",)
    )
    return Part([finding], [grid], drawings=[bars(means)])


def bars(means: dict[tuple[str, str], float]) -> Drawing:
    """A bar for each network."""
    known = looks(list(dict.fromkeys(variant for _, variant in means)))
    with panels(1, 1, 2.0) as figure:
        axes = figure.grid[0, 0]
        for i, ((_, variant), mean) in enumerate(means.items()):
            axes.barh(i, 100 * mean, color=known[variant].colour)
        axes.set_yticks(
            range(len(means)), [f"{variant}, {workload}" for workload, variant in means]
        )
    return Drawing(
        "input-noise",
        "Accuracy under noise",
        "Means over seeds, in %.",
        "Bars of accuracies.",
        figure.svg,
    )


SECTION = Section(
    title="Noise on the inputs",
    question="How well does a network do on test inputs under random noise?",
    stages=(STAGE,),
    part=part,
    endpoints=(
        Endpoint(
            "accuracy under noise",
            first_step(STAGE, (METRIC,)),
            "fraction",
            Direction.HIGHER,
            margin=0.01,
        ),
    ),
    # Points of the page's plane: the file is that which `export` writes, its quality is that under
    # noise.
    forms=(
        Form("under noise", STAGE, (METRIC,)),
        Form("under noise", "export", size="model_bytes"),
    ),
    terms={"input noise": "Gaussian noise that is added to the inputs of a network."},
)
