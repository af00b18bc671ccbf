"""Quantized networks as text: accuracies, coverage and latency, what checks of the integer
networks say, mixed bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evalsuite.report.grids import Grid, GridCell, Sheet, estimate_columns
from evalsuite.report.numerals import Scale, percent_text, scale_of
from evalsuite.report.paired import common_scale, compared_cell, compared_columns, interval_text
from evalsuite.report.section import notes
from evalsuite.report.statistics import Estimate, mean_interval, seed_difference
from pipelines.quantize.report.tables import (
    CHOSEN,
    STAGE,
    TOLD,
    QuantizationTable,
    Quantized,
    Treatment,
)

MACS, NODES = "integer_mac_fraction", "integer_node_fraction"
NOTES = notes(__name__)
LATENCY, POLYNOMIAL = "latency_ratio", "activation=polynomial"
_SOURCE_NOUNS = {
    "integers only": "the network that computes with integers only",
    "ONNX Runtime": "ONNX Runtime's execution",
    "Brevitas": "Brevitas' simulation in float",
}


def table_scale(table: QuantizationTable) -> Scale:
    return common_scale([*table.plain.values(), *table.cells.values()], table.quality.unit)


def accuracy_grid(table: QuantizationTable) -> Grid | None:
    """A row per treatment from wide to narrow below the float networks; a column per variant,
    the baseline first.
    """
    scale, sheet = table_scale(table), Sheet()
    plain = [table.plain[name] for name in table.variants]
    if any(cell.mean for cell in plain):
        sheet.add("float", *(_cell(each, table, scale, usual=each.metric) for each in plain))
    every = [
        (treatment.label, [table.cell(treatment, name) for name in table.variants])
        for treatment in table.treatments
    ]
    for label, cells in every:
        sheet.add(label, *(_cell(each, table, scale, usual=table.metric) for each in cells))
    shown = [*table.plain.values(), *(cell for _, cells in every for cell in cells)]
    sheet.lines = [
        {
            "workload": table.workload,
            "step": cell.treatment.step,
            "treatment": cell.treatment.label,
            "weight_bits": cell.treatment.weight_bits,
            "act_bits": cell.treatment.act_bits,
            "qat_epochs": cell.treatment.epochs,
            "placement": cell.treatment.placement,
            "after": cell.treatment.after,
            "variant": cell.variant,
            "metric": cell.metric,
            **compared_columns(cell, table.quality.metric),
        }
        for cell in shown
    ]
    quality = table.quality
    used = {cell.metric for cell in table.cells.values()} - {table.metric}
    more = " or ".join(
        _SOURCE_NOUNS[source] for metric, source in quality.sources.items() if metric in used
    )
    named = (
        "Accuracies are" if quality.metric == "accuracy" else f"{quality.words.capitalize()} are"
    )
    sources = f"{named} of {_SOURCE_NOUNS[table.source]}"
    sources += f"; where there is none, of {more}, and marked." if more else "."
    caption = (
        f"{quality.words} after quantization, {table.source} ({scale.label}; {table.seeds_text})"
    )
    heads, note = (
        ("treatment", *table.variants),
        NOTES["accuracy"].format(baseline=table.baseline, sources=sources),
    )
    grid = sheet.grid(f"{table.workload}-quantized", f"{table.workload}, {caption}", heads, note)
    bits = {"weight_bits": "Int64", "act_bits": "Int64"}
    return grid and replace(grid, frame=None if grid.frame is None else grid.frame.astype(bits))


def _cell(cell: Quantized, table: QuantizationTable, scale: Scale, *, usual: str) -> GridCell:
    grid_cell = compared_cell(cell, table, scale)
    marked = cell.mean is not None and cell.metric != usual
    return (
        replace(grid_cell, text=f"{grid_cell.text} ({table.quality.sources[cell.metric]})")
        if marked
        else grid_cell
    )


@dataclass(frozen=True)
class Check:
    """A column of the checks: a metric with a setting, and how the seeds' values become one
    number.
    """

    metric: str
    title: str
    worst: Callable[[Any], float] = max
    percent: bool = True
    setting: str = ""


CHECKS = (
    Check("integer_agreement", "same class as Brevitas", min),
    Check("differing_logits", "differing logits"),
    Check("differing_logits", "the same in float64", setting="precision=float64"),
    Check("tie_distance", "farthest from a tie", percent=False),
    Check("unexplained_differences", "unexplained", percent=False),
    Check("integer_onnx_agreement", "equal bits in ONNX Runtime", min),
    *(
        Check("rounding_differing_logits", f"other logits, {mode}", setting=f"rounding={mode}")
        for mode in ("half-even", "half-up", "gemmlowp")
    ),
    Check("integer_part_error", "steps off in norms, attention", percent=False),
    Check("accumulator_bits", "accumulator bits", percent=False),
    Check("table_bytes", "table bytes", percent=False, setting="activation=table"),
    Check("integer_operations", "operations but MACs", percent=False, setting="activation=table"),
    Check("integer_operations", "the same by polynomial", percent=False, setting=POLYNOMIAL),
)


def _mean(
    table: QuantizationTable, treatment: Treatment, variant: str, metric: str, setting: str = ""
) -> Estimate | None:
    values = table.values(treatment, variant, metric, setting)
    return mean_interval(list(values.values())) if values else None


def _place(table: QuantizationTable, treatment: Treatment, variant: str) -> dict[str, Any]:
    return {
        "workload": table.workload,
        "step": treatment.step,
        "treatment": treatment.label,
        "variant": variant,
    }


def coverage_grid(table: QuantizationTable) -> Grid | None:
    """Integer share and latency ratios, in the order of the accuracies; None where neither was
    measured.
    """
    settings = table.measured.every_setting(
        table.workload, [each.step for each in table.treatments], LATENCY
    )
    sheet, found = Sheet(), False
    for treatment in table.treatments:
        row = [GridCell(treatment.label)]
        for variant in table.variants:
            macs, nodes = (_mean(table, treatment, variant, metric) for metric in (MACS, NODES))
            ratios = {text: _mean(table, treatment, variant, LATENCY, text) for text in settings}
            known = {
                MACS: macs,
                NODES: nodes,
                **{f"{LATENCY} {text}".strip(): each for text, each in ratios.items()},
            }
            lack = macs is None and not any(ratios.values())
            found = found or not lack
            reason = table.measured.reason(table.workload, variant, treatment.step, MACS)
            row.append(GridCell(reason, tone="lack") if lack else _coverage(macs, nodes, ratios))
            columns = {
                key: value
                for name, each in known.items()
                for key, value in estimate_columns(name, each).items()
            }
            sheet.lines.append({**_place(table, treatment, variant), **columns})
        sheet.add(*row)
    told = ", ".join(text.removeprefix("batch=") for text in settings)
    heads, note = (
        ("treatment", *table.variants),
        NOTES["coverage"].format(batches=told or "(not measured)"),
    )
    caption = f"{table.workload}, in integers in ONNX Runtime, and latency ratio"
    return sheet.grid(f"{table.workload}-coverage", caption, heads, note) if found else None


def _coverage(
    macs: Estimate | None, nodes: Estimate | None, ratios: Mapping[str, Estimate | None]
) -> GridCell:
    parts = []
    for ratio in ratios.values():
        half = f" ± {ratio.half_width:.2f}" if ratio and ratio.half_width else ""
        parts.append(f"×{ratio.mean:.2f}{half}" if ratio else "–")
    share = "–" if macs is None else percent_text(macs.mean)
    share += f", nodes {percent_text(nodes.mean)}" if nodes else ""
    return GridCell(share, ", ".join(parts), repr(macs.mean) if macs else "")


def checks_grid(table: QuantizationTable) -> Grid | None:
    """A row per treatment and variant with an integer-only network; columns only for what was
    measured.
    """
    found = {
        (treatment, variant): {
            check: check.worst(values.values())
            for check in CHECKS
            if (values := table.values(treatment, variant, check.metric, check.setting))
        }
        for treatment in table.treatments
        for variant in table.variants
    }
    found = {place: values for place, values in found.items() if values}
    # Half to even is what the others are compared with, unless a step says otherwise.
    columns = [
        check
        for check in CHECKS
        if any(
            values.get(check) if check.setting == "rounding=half-even" else check in values
            for values in found.values()
        )
    ]
    if not any(check.metric.startswith("integer") for check in columns):
        return None
    polynomials = {place: _polynomial_difference(table, *place) for place in found}
    # What was chosen on calibration data, each choice once.
    rows = table.measured.frame
    rows = rows[
        (rows["workload"] == table.workload) & (rows["stage"] == STAGE) & (rows["metric"] == TOLD)
    ]
    treated: dict[Any, str] = {
        place: "; ".join(own["reason"].unique()) for place, own in rows.groupby(["step", "variant"])
    }
    sheet = Sheet()
    for (treatment, variant), worst in found.items():
        cells = [_number(worst.get(check), check) for check in columns]
        polynomial, told = (
            polynomials[treatment, variant],
            treated.get((treatment.step, variant), ""),
        )
        cells += [_difference(polynomial, table.quality.unit)] if any(polynomials.values()) else []
        cells += [GridCell(told)] if treated else []
        sheet.add(treatment.label, variant, *cells)
        sheet.lines.append(
            {
                **_place(table, treatment, variant),
                **{check.title: worst.get(check) for check in columns},
                **estimate_columns("polynomial_difference", polynomial),
                "chosen_treatment": told,
            }
        )
    titles = [check.title for check in columns]
    titles += ["polynomial, Δ to the table"] if any(polynomials.values()) else []
    titles += ["treatment chosen"] if treated else []
    heads, caption = (
        ("treatment", "variant", *titles),
        f"{table.workload}, the integer-only network checked",
    )
    return sheet.grid(f"{table.workload}-integer-checks", caption, heads, NOTES["checks"])


def _polynomial_difference(
    table: QuantizationTable, treatment: Treatment, variant: str
) -> Estimate | None:
    """The quality by polynomials less that by tables on the same samples; None where a network has
    no polynomial.

    Rows of former versions have the tables' quality on all samples alone: a polynomial that was
    measured on fewer has no difference there. They repeat the tables' quality for networks without
    a polynomial.
    """
    metric = f"integer_{table.quality.metric}"
    rows = table.measured.frame
    columns = ["workload", "variant", "step", "metric", "setting"]
    place = (rows[columns] == [table.workload, variant, treatment.step, metric, POLYNOMIAL]).all(
        axis=1
    )
    reasons = " ".join(rows.loc[place, "reason"])
    if "no activation needs" in reasons:
        return None
    by_table = table.values(treatment, variant, metric, "activation=table")
    if not by_table and "of the first" not in reasons:
        by_table = table.values(treatment, variant, metric)
    return seed_difference(table.values(treatment, variant, metric, POLYNOMIAL), by_table)


def _number(value: float | None, check: Check) -> GridCell:
    if value is None:
        return GridCell("")
    text = (
        percent_text(value)
        if check.percent
        else f"{value:,.0f}"
        if float(value).is_integer()
        else f"{value:.2g}"
    )
    return GridCell(text, sort=repr(value))


def _difference(estimate: Estimate | None, unit: str) -> GridCell:
    if estimate is None:
        return GridCell("")
    scale = scale_of(unit, [], [estimate.half_width or estimate.mean])
    head = f"{scale.number(estimate.mean, sign=True)} {scale.difference_unit}"
    return GridCell(
        head, interval_text(estimate, scale).removeprefix(f"{head} "), repr(estimate.mean)
    )


def mixed_grid(table: QuantizationTable) -> Grid | None:
    """Layers by the networks whose weights have mixed widths; None where none have."""
    chosen = {
        (treatment, name): layers
        for treatment in table.treatments
        for name in table.variants
        if (layers := table.measured.layers(table.workload, name, CHOSEN, treatment.step))
    }
    sheet = Sheet()
    for layer in dict.fromkeys(layer for found in chosen.values() for layer in found):
        every = [
            [f"{value:g}" for _, value in sorted(found.get(layer, {}).items())]
            for found in chosen.values()
        ]
        sheet.add(layer, *(each[0] if len(set(each)) == 1 else ", ".join(each) for each in every))
    sheet.lines = [
        {**_place(table, each, name), "layer": layer, "seed": seed, "weight_bits": value}
        for (each, name), found in chosen.items()
        for layer, values in found.items()
        for seed, value in values.items()
    ]
    heads = ("layer", *(f"{name}: {each.label}" for each, name in chosen))
    caption = f"{table.workload}, bits chosen for each layer"
    return sheet.grid(f"{table.workload}-mixed-precision", caption, heads, NOTES["mixed"])
