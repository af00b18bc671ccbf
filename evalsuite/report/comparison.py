"""Every measurement beside its baseline: one line per workload, step, metric, setting and variant."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from evalsuite.contract import Direction
from evalsuite.report.statistics import Estimate, mean_interval, paired_difference
from evalsuite.results import Status

if TYPE_CHECKING:
    import pandas as pd

LINE = ("workload", "step", "stage", "metric", "setting", "unit", "direction", "timing")
_READ = (*LINE, "variant", "seed", "value", "status", "verdict", "reason")
_OF_LINE = LINE[:-1]  # A line depends on the clock where any of its rows does.
SAMPLED = "fraction"  # The unit of metrics that are a fraction of samples.
ABSENT = "absent"  # The job has no row at all: the run has not reached it.
MISSING = "missing"  # The job has rows, and none of this metric.


def root_reason(reason: str) -> str:
    """What a reason ends in: without "w/v/0/train unsupported:" before it, which differs from seed to seed."""
    head, mark, tail = reason.partition(": ")
    return root_reason(tail) if mark and head.count("/") >= 3 else reason


@dataclass(frozen=True)
class Cell:
    """One line of the comparison. Its fields are the columns of `comparison`.

    `status` is "ok" where every seed has a value, "partial" where some have, else what most seeds report. `lack`
    counts the seeds without a value by status, e.g. "unsupported (3/3)"; `reason` says why; `remark` is what the stage
    adds to the values it gave.
    `n_pairs` counts the seeds that the variant and the baseline both have. `better` is "better" or "worse" only where
    the interval of the difference excludes 0 and the metric has a direction. `resolved` needs no direction.
    """

    workload: str
    step: str
    stage: str
    metric: str
    setting: str
    unit: str
    direction: str
    timing: bool
    variant: str
    baseline: str
    seeds: int
    n: int = 0
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    diff: float = math.nan
    diff_low: float = math.nan
    diff_high: float = math.nan
    n_pairs: int = 0
    constant: bool = False
    resolved: bool = False
    better: str = ""
    status: str = ""
    lack: str = ""
    reason: str = ""
    remark: str = ""


@dataclass
class _Found:
    """What the seeds of one cell gave."""

    values: dict[int, float] = field(default_factory=dict)
    lacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)


class _Value(NamedTuple):
    """What a row says of its metric."""

    value: float
    status: str
    verdict: str
    reason: str


class _Rows:
    """The aggregate rows of a frame, found by job and by metric."""

    def __init__(self, frame: pd.DataFrame, drawn: Sequence[str]) -> None:
        self.by_metric: dict[tuple[Any, ...], dict[int, _Value]] = {}  # Line and variant -> seed.
        self.failed_jobs: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self.jobs: set[tuple[Any, ...]] = set()
        self.seeds: dict[str, set[int]] = {}
        self.steps: dict[tuple[str, str], None] = {}
        self.variants = list(frame["variant"].unique())
        aggregates = frame.loc[frame["sample"].isna() & ~frame["metric"].isin(drawn), list(_READ)]
        self._clocked = set(
            aggregates.loc[aggregates["timing"].astype(bool), list(_OF_LINE)].itertuples(index=False, name=None)
        )
        for job in frame[["workload", "step", "variant", "seed"]].drop_duplicates().itertuples(index=False, name=None):
            self.jobs.add(job)
            self.seeds.setdefault(job[0], set()).add(job[3])
            self.steps[job[:2]] = None
        for row in aggregates.itertuples(index=False, name=None):
            self._add(dict(zip(_READ, row, strict=True)))

    def _add(self, row: Mapping[str, Any]) -> None:
        job = (row["workload"], row["step"], row["variant"], row["seed"])
        if not row["metric"]:
            self.failed_jobs[job] = row
            return
        place = tuple(row[name] for name in _OF_LINE)
        seeds = self.by_metric.setdefault(((*place, place in self._clocked), row["variant"]), {})
        if row["seed"] in seeds:
            raise ValueError(f"two rows of {row['metric']!r} for {job}: a job gives one value per metric and setting")
        seeds[row["seed"]] = _Value(row["value"], row["status"], row["verdict"], row["reason"])

    def all_lines(self) -> list[tuple[Any, ...]]:
        """The lines in order; a step that gave no metric for any network has one line with an empty metric."""
        lines = {line: None for line, _ in self.by_metric}
        measured = {line[:2] for line in lines}
        for (workload, step, _, _), row in self.failed_jobs.items():
            if (workload, step) not in measured:
                lines[(workload, step, row["stage"], "", "", "", Direction.NEUTRAL.value, False)] = None
        workloads, steps = list(self.seeds), list(self.steps)
        return sorted(lines, key=lambda line: (workloads.index(line[0]), steps.index(line[:2])))

    def found(self, line: tuple[Any, ...], variant: str) -> _Found:
        """What each seed gave for a line and a variant."""
        found = _Found()
        rows = self.by_metric.get((line, variant), {})
        for seed in sorted(self.seeds[line[0]]):
            row = rows.get(seed)
            if row is None:
                found.lacks[self._why_none((line[0], line[1], variant, seed))] += 1
            elif row.status == Status.OK.value and math.isfinite(row.value):
                found.values[seed] = float(row.value)
                found.remarks[row.reason] += bool(row.reason)
            elif row.verdict and row.status == Status.OK.value:
                found.lacks[(row.verdict, row.reason)] += 1
            else:
                status = Status.FAILED.value if row.status == Status.OK.value else row.status
                found.lacks[(status, row.reason or "no reason given")] += 1
        return found

    def _why_none(self, job: tuple[Any, ...]) -> tuple[str, str]:
        failed = self.failed_jobs.get(job)
        if failed is not None:
            return failed["status"], root_reason(failed["reason"]) or "no reason given"
        if job in self.jobs:
            return MISSING, "the step did not report this metric"
        return ABSENT, "no row: the run has not reached this job"


def _lacks(found: _Found, seeds: int) -> dict[str, str]:
    """Columns `status`, `lack` and `reason` of a cell."""
    counts: Counter[str] = Counter()
    for (status, _), count in found.lacks.items():
        counts[status] += count
    reasons = dict.fromkeys(
        f"{status}: {reason}" if len(counts) > 1 else reason for status, reason in found.lacks if reason
    )
    status = ("partial" if counts else "ok") if found.values else counts.most_common(1)[0][0]
    lack = ", ".join(f"{each} ({count}/{seeds})" for each, count in counts.items())
    return {"status": status, "lack": lack, "reason": "; ".join(reasons)}


def is_clock(unit: str, timing: bool) -> bool:
    """Whether a metric is a clock reading of one job, and no ratio of two taken in turn."""
    return timing and unit != "ratio"


def _bounds(estimate: Estimate) -> tuple[float, float]:
    """NaN marks an interval that there is none of, as parquet and CSV have it."""
    return (
        math.nan if estimate.low is None else estimate.low,
        math.nan if estimate.high is None else estimate.high,
    )


def _difference(values: Mapping[int, float], baseline: Mapping[int, float], line: Mapping[str, Any]) -> dict[str, Any]:
    estimate = paired_difference(values, baseline) if values and baseline else None
    if estimate is None:
        return {}
    low, high = _bounds(estimate)
    direction, unit, timing = line["direction"], line["unit"], line["timing"]
    better = ""
    # A fraction of samples is coarse: the same difference in a few seeds is chance, not a spread of zero. And clocks
    # read in different jobs met different neighbours on the machine: only ratios taken in one process compare.
    resolved = estimate.resolved and not (estimate.constant and unit == SAMPLED) and not is_clock(unit, timing)
    if resolved and direction != Direction.NEUTRAL.value:
        better = "better" if (estimate.mean > 0) == (direction == Direction.HIGHER.value) else "worse"
    return {
        "diff": estimate.mean, "diff_low": low, "diff_high": high, "n_pairs": estimate.n,
        "constant": estimate.constant, "resolved": resolved, "better": better,
    }  # fmt: skip


def _cells(rows: _Rows, baseline: str) -> Iterator[Cell]:
    for line in rows.all_lines():
        seeds = len(rows.seeds[line[0]])
        reference = rows.found(line, baseline).values
        for variant in rows.variants:
            found = rows.found(line, variant)
            columns: dict[str, Any] = dict(zip(LINE, line, strict=True))
            if found.values:
                estimate = mean_interval(list(found.values.values()))
                low, high = _bounds(estimate)
                columns |= {"n": estimate.n, "mean": estimate.mean, "low": low, "high": high}
                if variant != baseline:
                    columns |= _difference(found.values, reference, columns)
            columns |= _lacks(found, seeds)
            remark = "; ".join(text for text in found.remarks if text)
            yield Cell(**columns, variant=variant, baseline=baseline, seeds=seeds, remark=remark)


def comparison(frame: pd.DataFrame, baseline: str, drawn: Sequence[str] = ()) -> pd.DataFrame:
    """Mean, interval and paired difference to the baseline for every measurement without a sample; see `Cell`.

    The row of a job that failed fills the cells of all metrics of its step. Lines and
    variants keep the frame's order, with the baseline first.

    Args:
        frame: rows as `read_results` gives them, of one run.
        baseline: the variant to compare with.
        drawn: metrics that are left out: courses of many points, which figures show.

    Raises:
        ValueError: the frame is empty, has no row of the baseline, or has two values for one cell and seed.
    """
    import pandas as pd

    if frame.empty:
        raise ValueError("comparison of no rows: the run has no results yet")
    variants = list(frame["variant"].unique())
    if baseline not in variants:
        raise ValueError(f"baseline {baseline!r} has no rows; this run has {', '.join(variants)}")
    rows = _Rows(frame, drawn)
    rows.variants.sort(key=lambda name: name != baseline)
    made = [vars(cell) for cell in _cells(rows, baseline)]
    return pd.DataFrame(made, columns=list(Cell.__dataclass_fields__))
