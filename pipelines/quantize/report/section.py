"""The section of the report on quantization: its tables, figures, findings and endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalsuite import (
    Contrast,
    Direction,
    Endpoint,
    Evidence,
    Headline,
    Measure,
    Part,
    Run,
    Section,
    mean_test,
    paired_test,
    parse_setting,
)
from pipelines.quantize.report.figures import accumulator_figures, bit_widths, sensitivity_figures
from pipelines.quantize.report.findings import RULE, finding, overall
from pipelines.quantize.report.tables import STAGE, TOLD, quantization_tables
from pipelines.quantize.report.text import MACS, accuracy_grid, checks_grid, coverage_grid, mixed_grid

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

LATENCY = "relative_latency"
_PLAIN = {"": ""}  # the only setting of a metric that has none


def _part(run: Run) -> Part:
    """Each workload with a quantize step."""
    tables = run.once(quantization_tables)
    grids = [grid(table) for table in tables for grid in (accuracy_grid, coverage_grid)]
    details = [grid(table) for table in tables for grid in (checks_grid, mixed_grid)]
    figures = (bit_widths, sensitivity_figures, accumulator_figures)
    drawings = [drawing for table in tables for figure in figures for drawing in figure(table)]
    placements = {each.placement for table in tables for each in table.treatments}
    told = [overall(tables), *map(finding, tables)]
    return Part.of(told, grids, details, drawings, rule=RULE if len(placements) > 1 else "", tables=tables)


def _of_width(bits: int, metric: str = "", settings: Mapping[str, str] = _PLAIN) -> Measure:
    """Of networks quantized after training to so many bits, the mean over such steps, and each of them.

    Args:
        bits: of weights and of activations.
        metric: what is measured; an accuracy for want of a name.
        settings: of the metric, in the mean too, each with what it adds to a label.
    """

    def measure(run: Run, workload: str, variant: str) -> Evidence | None:
        table = next((each for each in run.once(quantization_tables) if each.workload == workload), None)
        chosen = [
            each for each in (table.treatments if table else ())
            if each.weight_bits == each.act_bits == bits and not (each.epochs or each.after or each.budget)
        ]  # fmt: skip
        if table is None or not chosen:
            return None
        tests = []
        for each in chosen:
            cell = table.cell(each, variant)
            other = f"{table.baseline}: {table.cell(each, table.baseline).reason}"
            if not metric:
                tests.append(Contrast(each.label, cell.values, cell.other, other if cell.mean else cell.reason))
            else:
                tests += [paired_test(run, workload, variant, each.step, (metric,), setting, each.label + told)
                          for setting, told in settings.items()]  # fmt: skip
        return Evidence(mean_test(tests), [each for each in tests if each.own and each.other])

    return measure


_TIMED = _of_width(8, LATENCY, {f"batch={batch}, precision=int8": f", batch {batch}" for batch in (1, 64)})


def _int8_latency(run: Run, workload: str, variant: str) -> Evidence | None:
    """Both arms over the same network with one yardstick's activation; None of a run that was not timed so."""
    rows = run.measured.frame
    timed = (rows["stage"] == STAGE) & (rows["metric"] == LATENCY)
    return _TIMED(run, workload, variant) if timed.any() else None


def _kept(compared: pd.DataFrame) -> pd.Series[bool]:
    """Lines of single layers, which are drawn, and text."""
    own = compared["stage"] == STAGE
    layered = compared["setting"].map(lambda text: "layer" in parse_setting(text)).astype(bool)
    return own & (layered | (compared["metric"] == TOLD))


SECTION = Section(
    title="Quantization",
    question="What does computing in integers of few bits cost in accuracy, and how much of a network does so?",
    stages=(STAGE,),
    part=_part,
    endpoints=(
        Endpoint("accuracy with 8-bit integers", _of_width(8), "fraction", Direction.HIGHER, 0.005),
        Endpoint("accuracy with 4-bit integers", _of_width(4), "fraction", Direction.HIGHER, 0.005),
        Endpoint("share of MACs in 8-bit integers", _of_width(8, MACS), "share", Direction.HIGHER, 0.01),
        Endpoint("latency with 8-bit integers", _int8_latency, "share", Direction.LOWER, 0.05),
    ),
    headlines=(
        Headline(STAGE, "runtime_accuracy"),
        Headline(STAGE, "float_islands", figure=False),
        Headline(STAGE, MACS, figure=False),
        Headline(STAGE, "latency_ratio", wanted=("batch", ("1",)), figure=False),
    ),
    of_task=(STAGE,),
    terms={
        "W8A8": "8 bits a weight, 8 bits an activation.",
        "PTQ, QAT": "Quantization after training, without and with training that goes on in low precision.",
        "placement": "Where quantizers stand: behind activations (post), or before and behind them (pre+post).",
        "accumulator": "The integer in which a layer sums its products.",
        "integer MACs": "Multiply-accumulates that ONNX Runtime executed in integers.",
        "latency with 8-bit integers": "In ONNX Runtime, over that of the same network with the yardstick's activation "
        "(GELU) in each place, quantized alike and timed in turn; the mean over batches of 1 and 64.",
    },
    spelled={"mac": "MAC"},
    kept=_kept,
    told=(TOLD,),
)
