"""The report's section on networks in float: whether they are as good as the baseline's.

And which layers to give ReLU first: a table for each network whose layers were replaced one after
the other.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from evalsuite import Direction, Section
from evalsuite.report.forms import Form
from evalsuite.report.grids import Grid, GridCell, Sheet, estimate_columns
from evalsuite.report.section import (
    Endpoint,
    Evidence,
    Headline,
    Measure,
    Part,
    RunView,
    first_step,
    paired_test,
)
from evalsuite.report.statistics import Estimate, mean_interval
from pipelines.accuracy.partial_swaps import AT, ORDERS

NOTE = (
    "The task's first metric on the test data with ReLU in so many layers, mean over seeds ± half"
    " the 95 % interval. By hardness: first the layer whose gate is the hardest, and so the nearest"
    " to ReLU. By sensitivity: first the layer whose replacement alone raises the loss on the"
    " validation data least. At random: the mean over sets of layers. None and all are the same"
    " network in every order."
)


def order_grids(run: RunView, stage: str) -> list[Grid]:
    """One for each workload of which a network was replaced layer by layer."""
    metrics = [name for name in run.frame["metric"].unique() if str(name).endswith(AT.format(""))]
    heads = (
        "network",
        "layers with ReLU",
        *(f"by {order}" if order != "random" else "at random" for order in ORDERS),
    )
    grids = []
    for workload in run.workloads:
        sheet = Sheet()
        for step, variant, metric in product(
            run.measured.steps(workload, stage), run.variants, metrics
        ):
            _add(sheet, run, (workload, variant, step, metric))
        caption = f"{workload}, ReLU in some of the layers"
        if grid := sheet.grid(f"{workload}-partial-swaps", caption, heads, NOTE):
            grids.append(grid)
    return [*(replace(grid, note="") for grid in grids[:-1]), *grids[-1:]]


def _add(sheet: Sheet, run: RunView, place: tuple[str, str, str, str]) -> None:
    """A line for each number of layers."""
    keys = run.measured.settings(*place)
    unit = run.frame.loc[run.frame["metric"] == place[3], "unit"].iloc[0]
    for layers in sorted({int(key["layers"]) for key in keys.values()}):
        cells: list[GridCell] = []
        columns: dict[str, Any] = {}
        for order in ORDERS:
            values = next(
                (
                    run.measured.values(*place, text)
                    for text, key in keys.items()
                    if key == {"layers": str(layers), "order": order}
                ),
                {},
            )
            estimate = mean_interval(list(values.values())) if values else None
            columns |= estimate_columns(order, estimate)
            cells.append(_cell(estimate, percent=unit == "fraction"))
        sheet.add(place[1], str(layers), *cells)
        sheet.lines.append(
            {
                "workload": place[0],
                "variant": place[1],
                "step": place[2],
                "metric": place[3],
                "layers": layers,
                **columns,
            }
        )


def _cell(estimate: Estimate | None, *, percent: bool) -> GridCell:
    if estimate is None:
        return GridCell("–")
    factor, sign = (100.0, " %") if percent else (1.0, "")
    half = "" if estimate.half_width is None else f" ± {factor * estimate.half_width:.2f}"
    return GridCell(f"{factor * estimate.mean:.2f}{half}{sign}", sort=repr(estimate.mean))


STAGE = "accuracy"

_OUTPUTS = 6  # that are asked of one by one, of a network of several
_SCORES = ("_accuracy", "_f1_micro", "_mean_iou", "_r2", "_cosine")
_NONE = ("_label_accuracy",)
_KNOWN = (
    ("F1 score", "f1_micro", "fraction", 0.005),
    ("mean IoU", "mean_iou", "fraction", 0.005),
    ("mean score of the outputs", "mean_score", "fraction", 0.005),
    ("explained variance", "r2", "share", 0.01),
    ("cosine to the original", "cosine", "cosine", 0.01),
)


def _accuracy(run: RunView, workload: str, variant: str) -> Evidence | None:
    """Not asked of language models, whose quality is bits per byte: the next token's accuracy is no
    accuracy beside those of classifiers. Nor of segmentation, where most places may be background.
    """
    rows = run.measured.frame
    is_bits = rows["metric"].isin(["bits_per_byte", "mean_iou"])
    others = (rows["workload"] == workload) & is_bits
    return None if others.any() else first_step(STAGE, ("accuracy",))(run, workload, variant)


def _own_task(run: RunView, workload: str, variant: str) -> Evidence | None:
    """Return the paired test of a task's first metric (its headline), if no other endpoint covers
    the task and the metric is a fraction of which higher is better; else None.
    """
    step, rows = run.measured.step(workload, STAGE), run.measured.frame
    rows_here = rows[
        (rows["workload"] == workload) & (rows["step"] == step) & (rows["metric"] != "")
    ]
    known = {"accuracy", "bits_per_byte", "bits_per_token", *(metric for _, metric, *_ in _KNOWN)}
    if not step or rows_here.empty or known & set(rows_here["metric"]):
        return None
    first = rows_here.iloc[0]
    if (first["unit"], first["direction"]) != ("fraction", Direction.HIGHER.value):
        return None
    label = str(first["metric"]).replace("_", " ")
    return Evidence(
        paired_test(run, workload, variant, step, (first["metric"],), first["setting"], label)
    )


def _output(place: int) -> Measure:
    """The question of the quality of an output of a network of several, by its place."""

    def measured(run: RunView, workload: str, variant: str) -> Evidence | None:
        step, rows = run.measured.step(workload, STAGE), run.measured.frame
        rows_here = rows[(rows["workload"] == workload) & (rows["step"] == step)]
        names = list(dict.fromkeys(rows_here["metric"]))
        if not step or "mean_score" not in names:
            return None
        # The metrics of an output begin with its name; the first with a score's name is its score.
        scores = [name for name in names if name.endswith(_SCORES) and not name.endswith(_NONE)]
        if place >= len(scores):
            return None
        label = scores[place].replace("_", " ")
        return Evidence(paired_test(run, workload, variant, step, (scores[place],), "", label))

    return measured


SECTION = Section(
    title="Quality in float",
    question=(
        "Is a network of another activation as good as the baseline's, before any toolchain"
        " touches it?"
    ),
    stages=(STAGE, "export"),
    part=lambda run: Part(grids=order_grids(run, STAGE)),
    endpoints=(
        Endpoint("accuracy in float", _accuracy, "fraction", Direction.HIGHER, 0.005),
        Endpoint(
            "bits per byte in float",
            first_step(STAGE, ("bits_per_byte",)),
            "bits",
            Direction.LOWER,
            0.01,
        ),
        *(
            Endpoint(
                f"{name} in float",
                first_step(STAGE, (metric,)),
                unit,
                Direction.HIGHER,
                margin,
                instead=True,
            )
            for name, metric, unit, margin in _KNOWN
        ),
        Endpoint(
            "the task's own share in float",
            _own_task,
            "fraction",
            Direction.HIGHER,
            0.005,
            instead=True,
        ),
        *(
            Endpoint(
                f"score {place + 1} of several outputs, in float",
                _output(place),
                "fraction",
                Direction.HIGHER,
                0.005,
                instead=True,
            )
            for place in range(_OUTPUTS)
        ),
    ),
    forms=(
        Form("float", STAGE, ("bits_per_byte", "accuracy", *(metric for _, metric, *_ in _KNOWN))),
        Form(
            "float", "export", size="model_bytes", times="relative_latency", setting={"batch": "1"}
        ),
    ),
    headlines=(
        Headline(STAGE, "bits_per_byte"),
        Headline(STAGE, "bits_per_token"),
        Headline(STAGE, "accuracy"),
    ),
    of_task=(STAGE,),
    terms={"accuracy": "The share of test samples whose class is right."},
)
