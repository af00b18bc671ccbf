"""Removal of units that changes no output: how many could go, of which kind, and what proves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalsuite.report.grids import Grid, GridCell, Sheet, estimate_columns
from evalsuite.report.measured import Measured
from evalsuite.report.numerals import grouped, percent_text, scale_of
from evalsuite.report.section import RunView, notes
from evalsuite.report.statistics import mean_interval
from evalsuite.results import parse_setting
from pipelines.prune.report.tables import ACCURACY, EXACT

_EXACT = (
    ("constant_units", "constant"),
    ("unused_units", "unused"),
    ("off_units", "proven off"),
    ("merged_units", "proven on, merged"),
    ("duplicate_units", "duplicate"),
    ("removed_units", "removed in all"),
    ("hidden_units", "of hidden units"),
    ("removed_share", "share removed"),
)
_CHECKED = ("largest error", "proven bound", "equality", "accuracy", "accuracy lost")


def exact_grid(run: RunView, workload: str) -> Grid | None:
    """A row per variant: what could go by its kind, and whether the outputs are equal; None
    without such a step.
    """
    sheet, measured = Sheet(), run.measured
    steps = measured.steps(workload, EXACT)
    for step in steps:
        for variant in run.variants:
            name = f"{variant}, {step}" if len(steps) > 1 else variant
            found = {
                metric: measured.values(workload, variant, step, metric) for metric, _ in _EXACT
            }
            error, bound, accuracy, drop = (
                measured.values(workload, variant, step, each)
                for each in ("equality_error", "equality_bound", ACCURACY, "accuracy_drop")
            )
            verdicts = _verdicts(measured, workload, variant, step)
            if not any([*found.values(), error, accuracy, verdicts]):
                reason = measured.reason(workload, variant, step, "removed_units")
                sheet.add(name, GridCell(reason, tone="lack"), *[""] * (len(_EXACT) + 4))
                continue
            counts = (
                _count(found[metric], share=metric == "removed_share") for metric, _ in _EXACT
            )
            checks = (
                _greatest(error),
                _greatest(bound),
                GridCell(verdicts),
                _share(accuracy),
                _share(drop),
            )
            sheet.add(name, *counts, *checks)
            sheet.lines.append(
                {
                    "workload": workload,
                    "step": step,
                    "variant": variant,
                    **{
                        key: value
                        for metric, _ in _EXACT
                        for key, value in _columns(metric, found[metric]).items()
                    },
                    "largest_equality_error": max(error.values()) if error else None,
                    "proven_bound": max(bound.values()) if bound else None,
                    "equality": verdicts,
                    **_columns(ACCURACY, accuracy),
                    **_columns("accuracy_drop", drop),
                }
            )
    heads = ("variant", *(title for _, title in _EXACT), *_CHECKED)
    name, caption = f"{workload}-exact-removal", f"{workload}, removal that changes no output"
    return sheet.grid(name, caption, heads, notes(__name__)["exact removal"])


def _columns(name: str, values: Mapping[int, float]) -> dict[str, Any]:
    return estimate_columns(name, mean_interval(list(values.values())) if values else None)


def _count(values: Mapping[int, float], *, share: bool) -> GridCell:
    if not values:
        return GridCell("–")
    every = list(values.values())
    mean = sum(every) / len(every)
    low, high = (
        percent_text(each) if share else f"{each:,.0f}" for each in (min(every), max(every))
    )
    text = percent_text(mean) if share else f"{mean:,.1f}".removesuffix(".0")
    return GridCell(text, "" if low == high else f"({low} to {high})", repr(mean))


def _share(values: Mapping[int, float]) -> GridCell:
    if not values:
        return GridCell("–")
    estimate = mean_interval(list(values.values()))
    scale = scale_of(
        "fraction", [estimate.mean], [each for each in (estimate.half_width, estimate.mean) if each]
    )
    half = f" ± {scale.number(estimate.half_width)}" if estimate.half_width else ""
    return GridCell(f"{scale.number(estimate.mean)}{half} %", sort=repr(estimate.mean))


def _greatest(values: Mapping[int, float]) -> GridCell:
    return (
        GridCell(f"{max(values.values()):.1e}", sort=repr(max(values.values())))
        if values
        else GridCell("–")
    )


def _verdicts(measured: Measured, workload: str, variant: str, step: str) -> str:
    """How many networks have each verdict of a method: "bounds: holds 3; smt: holds 2, timeout
    1".
    """
    rows = measured.frame
    own = rows[
        (rows["workload"] == workload) & (rows["variant"] == variant) & (rows["step"] == step)
    ]
    own = own[(own["metric"] == "equality") & (own["verdict"] != "")]
    found = grouped(
        (parse_setting(str(setting)).get("method", ""), f"{verdict} {len(rows_of)}")
        for (setting, verdict), rows_of in own.groupby(["setting", "verdict"])
    )
    return "; ".join(
        f"{method}: {', '.join(told)}".removeprefix(": ") for method, told in found.items()
    )
