"""Rows of made-up exact verification, which the tests of its section of the report share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from report_workshop import job as job_of
from report_workshop import part_of, read_run

from evalsuite.contract import Direction, Metric, Verdict
from evalsuite.report.section import Finding
from evalsuite.results import Row, row_of
from pipelines.smt.report.tables import ExactTable, exact_tables

HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL
HOLDS, VIOLATED, UNKNOWN, TIMEOUT = Verdict.HOLDS, Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.TIMEOUT
UNITS = {
    "undecided_fraction": ("fraction", LOWER), "violated_fraction": ("fraction", LOWER),
    "exactness_gap": ("fraction", NEUTRAL), "nodes": ("count", LOWER), "solver_calls": ("count", LOWER),
    "unstable_neurons": ("count", LOWER), "par2": ("s", LOWER), "solve_time": ("s", LOWER),
    "adversarial_distance": ("input", HIGHER), "adversarial_distance_upper": ("input", HIGHER),
    "proofs_checked": ("count", HIGHER), "proof_bytes": ("bytes", LOWER),
}  # fmt: skip
BASE = (0.60, 0.66, 0.63)
STEPS = [{"name": "int8", "stage": "quantize"}, {"name": "smt-int", "stage": "smt", "after": "int8"}]


def job(variant: str, seed: int, step: str = "smt", workload: str = "w") -> dict[str, object]:
    return job_of(variant, seed, step, "smt", workload)


def rows_of(name: str, variants: Mapping[str, Sequence[float | None]], *, step: str = "smt", workload: str = "w",
            method: str = "search", **setting: Any) -> list[Row]:  # fmt: skip
    """One metric of the seeds 0, 1, ...; a seed with None has no row."""
    unit, direction = UNITS.get(name, ("fraction", HIGHER))
    return [
        row_of(Metric(name, value, unit, direction, {**setting, "method": method}, timing=unit == "s"),
               job(variant, seed, step, workload))
        for variant, every in variants.items() for seed, value in enumerate(every) if value is not None
    ]  # fmt: skip


def verified(variants: Mapping[str, Sequence[float | None]], eps: float = 0.125, **more: Any) -> list[Row]:
    return rows_of("verified_accuracy", variants, eps=eps, **more)


def said(variant: str, seed: int, verdicts: Sequence[tuple[Verdict, str, float | None]], *, step: str = "smt",
         method: str = "search", **setting: float) -> list[Row]:  # fmt: skip
    """Verdicts of the samples 0, 1, ... with what decided them and their seconds."""
    told = {**(setting or {"eps": 0.125}), "method": method}
    rows = []
    for sample, (verdict, reason, seconds) in enumerate(verdicts):
        metric = Metric("robustness", None, "verdict", NEUTRAL, told, sample=sample, verdict=verdict, reason=reason)
        rows.append(row_of(metric, job(variant, seed, step)))
        if seconds is not None:
            timed = Metric("query_seconds", seconds, "s", LOWER, told, sample=sample, timing=True)
            rows.append(row_of(timed, job(variant, seed, step)))
    return rows


def table_of(folder: Path, rows: list[Row], **entries: Any) -> ExactTable:
    (table,) = exact_tables(read_run(folder, rows, **entries))
    return table


def finding_of(folder: Path, rows: list[Row]) -> Finding:
    return part_of(read_run(folder, rows), "exact").findings[-1]


def near(values: Sequence[float], *by: float) -> tuple[float, ...]:
    return tuple(value + each for value, each in zip(values, by, strict=True))


def integers(variant: str, seed: int, scale: float, share: float) -> list[Row]:
    setting = {"eps": 2 * scale, "steps": 2}
    rows = said(variant, seed, [(HOLDS, "bounds", None)], step="smt-int", method="integer", **setting)
    for name, value in (("verified_accuracy", share), ("nodes", 7.0)):
        unit, direction = UNITS.get(name, ("fraction", HIGHER))
        rows.append(row_of(Metric(name, value, unit, direction, {**setting, "method": "integer"}),
                           job(variant, seed, "smt-int")))  # fmt: skip
    clean = Metric("clean_accuracy", 0.9, "fraction", HIGHER, {"method": "integer"})
    return [*rows, row_of(clean, job(variant, seed, "smt-int"))]


def integer_rows() -> list[Row]:
    """Each network with a grid of its own: the same steps are other radii."""
    return [
        row
        for i, variant in enumerate(("gelu", "relu"))
        for seed in range(3)
        for row in integers(variant, seed, 0.01 + 0.001 * i + 0.0001 * seed, BASE[seed] + i * (0.1 + 0.01 * seed))
    ]
