"""What the report's tests share: rows of made-up runs, with every kind of outcome, and a reader
of pages.
"""

from __future__ import annotations

import base64
import csv
import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from evalsuite.contract import Direction, Metric, Verdict
from evalsuite.report import write_report
from evalsuite.report.grids import Grid
from evalsuite.report.record import Record
from evalsuite.report.run import Run
from evalsuite.report.section import Part
from evalsuite.results import Origin, Row, Status, failure_row, read_results, row_of, write_parquet

WORKLOADS = ("digits-mlp", "digits-cnn")
VARIANTS = ("gelu", "gelu-swap", "lambda-gelu", "annealed", "relu")
STEPS = {
    "train": "train",
    "accuracy": "accuracy",
    "export": "export",
    "quantize-w8": "quantize",
    "quantize-w4": "quantize",
    "prune": "prune",
    "bounds": "bounds",
    "smt": "smt",
}
VOID = {"meta", "img", "br", "hr", "link", "input"}
EPS = (0.015625, 0.03125, 0.0625)
HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL
T2 = 4.302652729911275  # The 97.5 % quantile of Student's t with 2 degrees of freedom.
# Accuracies of three seeds of the baseline, of one 0.030, 0.031 and 0.029 above it, and of one
# 0.001, -0.001 and 0.
GELU = (0.90, 0.91, 0.92)
BETTER = (0.93, 0.941, 0.949)
SAME = (0.901, 0.909, 0.92)
NO_ERF = "erf has no exact encoding in Z3; `bounds` covers this network"
CRASH = "process died with signal 11 (segmentation fault) after 3.2 s"


def _accuracy(draw: random.Random, variant: str) -> Iterator[Metric]:
    swapped = variant in ("gelu-swap", "annealed")
    drop = {"gelu-swap": 0.08, "annealed": 0.004}.get(variant, 0.0) + draw.gauss(0, 0.003)
    accuracy = 0.965 - (0.08 if variant == "gelu-swap" else 0.0) + draw.gauss(0, 0.004)
    yield Metric("accuracy", accuracy, "fraction", HIGHER)
    yield Metric("nll", 0.13 + abs(draw.gauss(0, 0.01)), "nats", LOWER)
    reason = "" if swapped else "not swapped"
    yield Metric("swap_drop", drop if swapped else None, "fraction", LOWER, reason=reason)
    yield Metric(
        "zero_activations",
        0.5 if variant in ("relu", "annealed", "gelu-swap") else 0.0,
        "fraction",
        NEUTRAL,
    )
    yield Metric("parameters", 3466.0, "count", LOWER)


def _export(draw: random.Random, variant: str) -> Iterator[Metric]:
    yield Metric("max_abs_difference", 1e-6 * (1 + draw.random()), "logit", LOWER)
    yield Metric("model_bytes", 15_320.0, "bytes", LOWER)
    yield Metric(
        "latency", 3.1e-5 * (1 + 0.1 * draw.random()), "s", LOWER, setting={"batch": 1}, timing=True
    )


def _quantize(draw: random.Random, variant: str, *, bits: int) -> Iterator[Metric]:
    islands = 0 if variant in ("relu", "annealed", "gelu-swap") else 2
    lost = {8: 0.001, 4: 0.05}[bits]
    yield Metric("runtime_accuracy", 0.963 - lost + draw.gauss(0, 0.004), "fraction", HIGHER)
    yield Metric("runtime_agreement", 1.0, "fraction", HIGHER)
    reason = "islands: Erf, Erf" if islands else ""
    yield Metric("float_islands", float(islands), "count", LOWER, reason=reason)
    yield Metric("integer_mac_fraction", 1.0 if not islands else 0.91, "fraction", HIGHER)
    yield Metric("model_bytes", 5_204.0, "bytes", LOWER)
    for batch in (1, 64):
        ratio = 1.2 + draw.gauss(0, 0.1)
        yield Metric("latency_ratio", ratio, "ratio", HIGHER, setting={"batch": batch}, timing=True)


def _prune(draw: random.Random, variant: str) -> Iterator[Metric]:
    yield Metric("accuracy", 0.94 + draw.gauss(0, 0.006), "fraction", HIGHER)
    yield Metric("parameter_fraction", 0.31, "fraction", LOWER)
    yield Metric("equality_error", 3e-7, "logit", LOWER)


def _bounds(draw: random.Random, variant: str, *, samples: int) -> Iterator[Metric]:
    ease = 0.06 if variant in ("relu", "annealed") else 0.0
    for eps in EPS:
        attacked = max(0.0, 1.0 - 9 * eps + draw.gauss(0, 0.02))
        yield Metric("pgd_accuracy", min(1.0, attacked), "fraction", HIGHER, setting={"eps": eps})
        for method, loss in (("ibp", 30), ("crown", 16), ("alpha-crown", 13)):
            certified = min(max(attacked + ease - (loss - 9) * eps, 0.0), attacked)
            setting = {"eps": eps, "method": method}
            yield Metric("certified_accuracy", certified, "fraction", HIGHER, setting=setting)
            yield Metric("bound_width", 3.0 * loss * eps, "logit", LOWER, setting=setting)
            for sample in range(samples):
                verdict = Verdict.HOLDS if sample < certified * samples else Verdict.UNKNOWN
                yield Metric(
                    "robustness",
                    None,
                    "verdict",
                    NEUTRAL,
                    setting=setting,
                    sample=sample,
                    verdict=verdict,
                )
        for sample in range(samples):
            verdict = Verdict.UNKNOWN if sample < attacked * samples else Verdict.VIOLATED
            setting = {"eps": eps, "method": "pgd"}
            yield Metric(
                "robustness",
                None,
                "verdict",
                NEUTRAL,
                setting=setting,
                sample=sample,
                verdict=verdict,
            )


def _smt(draw: random.Random, variant: str, *, samples: int) -> Iterator[Metric]:
    setting = {"eps": 0.03125, "method": "smt"}
    held = 0.58 + draw.gauss(0, 0.02)
    yield Metric("verified_accuracy", held, "fraction", HIGHER, setting=setting)
    yield Metric("undecided_fraction", 0.1, "fraction", LOWER, setting=setting)
    for sample in range(samples):
        verdict = Verdict.HOLDS if sample < held * samples else Verdict.TIMEOUT
        yield Metric(
            "robustness", None, "verdict", NEUTRAL, setting=setting, sample=sample, verdict=verdict
        )


def _metrics(step: str, draw: random.Random, variant: str, samples: int) -> Iterator[Metric]:
    if step == "train":
        yield Metric("train_loss", 0.02 + 0.005 * draw.random(), "nats", NEUTRAL)
        yield Metric("train_time", 4.0 + draw.random(), "s", LOWER, timing=True)
    elif step == "accuracy":
        yield from _accuracy(draw, variant)
    elif step == "export":
        yield from _export(draw, variant)
    elif step.startswith("quantize"):
        yield from _quantize(draw, variant, bits=int(step[-1]))
    elif step == "prune":
        yield from _prune(draw, variant)
    elif step == "bounds":
        yield from _bounds(draw, variant, samples=samples)
    else:
        yield from _smt(draw, variant, samples=min(samples, 20))


def _no_outcome(workload: str, variant: str, seed: int, step: str) -> tuple[Status, str] | None:
    if step == "smt" and "gelu" in variant and variant != "gelu-swap":
        return Status.UNSUPPORTED, NO_ERF
    if step == "smt" and workload == "digits-cnn":
        return Status.UNSUPPORTED, "layer 0 is a Conv2d; only fully connected networks are encoded"
    if (workload, variant, seed, step) == ("digits-cnn", "annealed", 1, "prune"):
        return Status.CRASHED, CRASH
    return None


def sample_rows(
    workloads: tuple[str, ...] = WORKLOADS,
    variants: tuple[str, ...] = VARIANTS,
    seeds: tuple[int, ...] = (0, 1, 2),
    samples: int = 20,
) -> list[Row]:
    """Rows of a whole run, in the runner's order."""
    rows = []
    for workload in workloads:
        for variant in variants:
            for seed in seeds:
                for step, stage in STEPS.items():
                    job = {
                        "workload": workload,
                        "variant": variant,
                        "seed": seed,
                        "step": step,
                        "stage": stage,
                        "key": f"{workload}-{variant}-{seed}-{step}",
                    }
                    lack = _no_outcome(workload, variant, seed, step)
                    draw = random.Random(str((workload, variant, seed, step)))
                    if lack:
                        rows.append(failure_row(job, *lack))
                    else:
                        rows += [
                            row_of(metric, job) for metric in _metrics(step, draw, variant, samples)
                        ]
    return rows


def sample_record(**changes: Any) -> dict[str, Any]:
    """What the runner writes beside the rows."""
    origins = {"train": "evalsuite 0.1.0"}
    return {
        "name": "quickstart",
        "recipe_text": "name: quickstart\nbaseline: gelu\nseeds: [0, 1, 2]\nsteps:\n  - accuracy\n",
        "baseline": "gelu",
        "workloads": list(WORKLOADS),
        "variants": list(VARIANTS),
        "seeds": [0, 1, 2],
        "steps": [
            {
                "name": name,
                "stage": stage,
                "origin": origins.get(name, "evalsuite 0.1.0"),
                "version": "1",
                "help": f"What {stage} measures.",
                "after": [],
            }
            for name, stage in STEPS.items()
        ],
        "data": {
            name: {
                "fingerprint": "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
                "train": 1047,
                "calibration": 120,
                "validation": 180,
                "test": 450,
            }
            for name in WORKLOADS
        },
        "variants_help": {
            "gelu": "Trained with GELU: the baseline.",
            "gelu-swap": "The GELU network with ReLU put in directly: no hardening, no repair.",
            "lambda-gelu": "Trained with lambda-GELU, lambda learnt and not hardened.",
            "annealed": "lambda-GELU learnt, then hardened during training, then swapped to ReLU.",
            "relu": "Trained with ReLU from scratch.",
        },
        "versions": {"evalsuite": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
        "machine": {"system": "Linux 6.1", "processor": "x86_64", "cores": 2, "memory_gib": 7.7},
        "started": "2026-03-21T09:00:00+00:00",
        "finished": "2026-03-21T09:04:10+00:00",
        "jobs": {"total": 240, "ok": 218, "cached": 0, "unsupported": 21, "crashed": 1},
        "command": "evalsuite run quickstart.yaml --out runs/quickstart",
        **changes,
    }


def write_run(
    folder: Path,
    rows: list[Row],
    record: dict[str, Any] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    uses: Mapping[str, str] | None = None,
) -> Path:
    """A run folder as the runner leaves it, with each step's options and the treatment that each
    variant is.

    Without `run.json` where `record` is None.
    """
    folder.mkdir(parents=True, exist_ok=True)
    origins = [
        Origin(
            variant_use=(uses or {}).get(row.variant, row.variant),
            options=(options or {}).get(row.step, {}),
        )
        for row in rows
    ]
    write_parquet(
        [(origin, [row]) for origin, row in zip(origins, rows, strict=True)],
        folder / "results.parquet",
    )
    if record is not None:
        (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


class Page(HTMLParser):
    """The parts of a page that the tests ask for; it fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.inline: dict[str, str] = {}
        self.packed = ""
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.data = (
            json.loads(gzip.decompress(base64.b64decode(self.packed))) if self.packed else {}
        )
        self.parts = {name: Page(part) for name, part in self.data.get("parts", {}).items()}
        self.whole = self.text + "".join(part.text for part in self.parts.values())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.tags[-1][1].get("id") == "packed":
            self.packed += data
        elif self.open and self.open[-1] in ("style", "script"):
            self.inline[self.open[-1]] = self.inline.get(self.open[-1], "") + data
        else:
            self.text += data

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def frame_of(rows: list[Row], **more: Any) -> pd.DataFrame:
    """Rows as the report reads them: through the Parquet file."""
    with TemporaryDirectory() as folder:
        return read_results(write_run(Path(folder), rows, **more))


def job(
    variant: str, seed: int, step: str = "accuracy", stage: str = "", workload: str = "w"
) -> dict[str, object]:
    """The job that a row is of; without a stage, the one that its step is named after."""
    return {
        "workload": workload,
        "variant": variant,
        "seed": seed,
        "step": step,
        "stage": stage or step,
        "key": f"{workload}{variant}{seed}{step}",
    }


# The unit and the better way of metrics that are no fractions of which more is better.
UNITS = {
    "undecided_fraction": ("fraction", LOWER),
    "violated_fraction": ("fraction", LOWER),
    "other_class_fraction": ("fraction", LOWER),
    "class_undecided_fraction": ("fraction", LOWER),
    "exactness_gap": ("fraction", NEUTRAL),
    "nodes": ("count", LOWER),
    "solver_calls": ("count", LOWER),
    "unstable_neurons": ("count", NEUTRAL),
    "par2": ("s", LOWER),
    "solve_time": ("s", LOWER),
    "seconds": ("s", LOWER),
    "adversarial_distance": ("input", HIGHER),
    "adversarial_distance_upper": ("input", HIGHER),
    "certified_radius": ("input", HIGHER),
    "proofs_checked": ("count", HIGHER),
    "proof_bytes": ("bytes", LOWER),
    "model_bytes": ("bytes", LOWER),
    "peak_memory": ("bytes", LOWER),
    "mac_fraction": ("share", LOWER),
    "bound_width": ("logit", LOWER),
    "layer_width": ("activation", LOWER),
    "unstable_share": ("share", NEUTRAL),
    "stable_off_share": ("share", NEUTRAL),
    "relative_latency": ("ratio", LOWER),
    "latency_ratio": ("ratio", LOWER),
}
_CLOCKS = ("par2", "solve_time", "seconds", "peak_memory", "relative_latency", "latency_ratio")
Values = Mapping[str, Sequence[float | None]]


def metric_rows(
    name: str,
    values: Values,
    step: str = "accuracy",
    stage: str = "",
    workload: str = "w",
    reason: str = "",
    **setting: Any,
) -> list[Row]:
    """One metric of the seeds 0, 1, ... of each variant; a seed with None has no row."""
    unit, direction = UNITS.get(name, ("fraction", HIGHER))
    return [
        row_of(
            Metric(name, value, unit, direction, setting, timing=name in _CLOCKS, reason=reason),
            job(variant, seed, step, stage, workload),
        )
        for variant, every in values.items()
        for seed, value in enumerate(every)
        if value is not None
    ]


def read_run(
    rows: list[Row], options: Mapping[str, Mapping[str, Any]] | None = None, **entries: Any
) -> Run:
    """A report's content against `gelu`, of these rows, steps' options and entries of the
    record.
    """
    return Run(frame_of(rows, options=options), Record(entries), "gelu")


def part_of(run: Run, section: str) -> Part:
    """What one section says: `run.parts` makes all sections, with their figures."""
    return run.once(run.sections[section].part)


def marked(grid: Grid | None) -> list[list[str]]:
    """The texts of a table's cells, with their marks."""
    return [[cell.marked for cell in row] for row in grid.rows]


def page_of(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def written_page(
    folder: Path,
    rows: list[Row],
    record: dict[str, Any] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Page:
    """The page of a report that is written into the run's folder."""
    write_report(write_run(folder, rows, record, options))
    return page_of(folder)


def csv_lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
