"""Every measurement beside its baseline: a line per workload, step, metric, setting and variant;
and the same as text.

As text a metric is one line, whose cells share a scale or say why there is no value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Direction
from evalsuite.report.grids import GridCell, estimate_columns
from evalsuite.report.measured import root_reason
from evalsuite.report.moderation import stricter
from evalsuite.report.numerals import Scale, grouped, scale_of
from evalsuite.report.paired import bracket, mean_text
from evalsuite.report.statistics import (
    SIGNIFICANT,
    Estimate,
    holm,
    mean_interval,
    seed_difference,
    t_quantile,
    two_sided_p,
)
from evalsuite.results import Status, parse_setting

if TYPE_CHECKING:
    import pandas as pd

LINE = ("workload", "step", "stage", "metric", "setting", "unit", "direction", "timing")
_JOB = ("workload", "step", "variant", "seed")
_READ = (*LINE, "variant", "seed", "value", "status", "verdict", "reason")
_OF_LINE = LINE[:-1]  # A line depends on the clock where any of its rows does.
_NUMBERS = ("mean", "low", "high", "diff", "diff_low", "diff_high")
_COLUMNS = (
    *LINE,
    "variant",
    "baseline",
    "seeds",
    "n",
    *_NUMBERS,
    "n_pairs",
    "constant",
    "resolved",
    "better",
    "status",
    "lack",
    "reason",
    "remark",
)
SAMPLED = "fraction"  # The unit of metrics that are a fraction of samples.
ABSENT = "absent"  # The job has no row at all: the run has not reached it.
MISSING = "missing"  # The job has rows, and none of this metric.
_NO_REASON = "no reason given"


class _Rows:
    """The aggregate rows of a frame, found by job and by metric."""

    def __init__(self, frame: pd.DataFrame, drawn: Sequence[str]) -> None:
        # Line and variant -> seed -> row.
        self.by_metric: dict[tuple[Any, ...], dict[int, Any]] = {}
        self.failed_jobs: dict[tuple[Any, ...], Any] = {}
        # 1. All jobs, so that a missing row can be told from a missing job.
        self.jobs = dict.fromkeys(
            frame[list(_JOB)].drop_duplicates().itertuples(index=False, name=None)
        )
        self.seeds: dict[str, set[int]] = {}
        for job in self.jobs:
            self.seeds.setdefault(job[0], set()).add(job[3])
        # 2. The rows of lines. A line is a clock's if any of its rows is, since failed rows do
        # not say it.
        rows = frame.loc[frame["sample"].isna() & ~frame["metric"].isin(drawn), list(_READ)]
        rows = rows.assign(
            timing=rows.groupby(list(_OF_LINE), dropna=False)["timing"].transform("any")
        )
        row: Any
        for row in rows.itertuples(index=False):
            job = (row.workload, row.step, row.variant, row.seed)
            if not row.metric:
                self.failed_jobs[job] = row
                continue
            seeds = self.by_metric.setdefault((row[: len(LINE)], row.variant), {})
            if row.seed in seeds:
                raise ValueError(
                    f"two rows of {row.metric!r} for {job}: a job gives one value per metric and"
                    " setting"
                )
            seeds[row.seed] = row

    def all_lines(self) -> list[tuple[Any, ...]]:
        """The lines in order; a step that gave no metric for any network has one line with an
        empty metric.
        """
        lines = {line: None for line, _ in self.by_metric}
        measured = {line[:2] for line in lines}
        for (workload, step, _, _), row in self.failed_jobs.items():
            if (workload, step) not in measured:
                lines[(workload, step, row.stage, "", "", "", Direction.NEUTRAL.value, False)] = (
                    None
                )
        workloads, steps = list(self.seeds), list(dict.fromkeys(job[:2] for job in self.jobs))
        return sorted(lines, key=lambda line: (workloads.index(line[0]), steps.index(line[:2])))

    def found(
        self, line: tuple[Any, ...], variant: str
    ) -> tuple[dict[int, float], list[tuple[str, str]], str]:
        """Collect the seeds' values for a line and a variant, status and reason of those without
        one, and remarks.
        """
        values: dict[int, float] = {}
        lacks: list[tuple[str, str]] = []
        remarks: dict[str, None] = {}
        # Each seed has a value, or a reason why not: nothing is left out without a word.
        rows = self.by_metric.get((line, variant), {})
        for seed in sorted(self.seeds[line[0]]):
            job = (*line[:2], variant, seed)
            row = rows.get(seed, self.failed_jobs.get(job))
            if row is None and job in self.jobs:
                lacks.append((MISSING, "the step did not report this metric"))
            elif row is None:
                lacks.append((ABSENT, "no row: the run has not reached this job"))
            elif row.status != Status.OK.value:
                lacks.append((row.status, root_reason(row.reason) or _NO_REASON))
            elif math.isfinite(row.value):
                values[seed] = float(row.value)
                remarks[row.reason] = None
            elif row.verdict:
                lacks.append((row.verdict, row.reason))
            else:
                lacks.append((Status.FAILED.value, row.reason or _NO_REASON))
        return values, lacks, "; ".join(filter(None, remarks))


def is_clock(unit: str, timing: bool) -> bool:
    """Whether a metric is a clock reading of one job, and no ratio of two taken in turn."""
    return timing and unit != "ratio"


def _lacks(lacks: Sequence[tuple[str, str]], seeds: int, measured: bool) -> dict[str, str]:
    """Columns `status`, `lack` and `reason` of a cell."""
    counts = Counter(status for status, _ in lacks)
    reasons = dict.fromkeys(
        f"{status}: {reason}" if len(counts) > 1 else reason for status, reason in lacks if reason
    )
    status = ("partial" if counts else "ok") if measured else counts.most_common(1)[0][0]
    lack = ", ".join(f"{reason} ({count}/{seeds})" for reason, count in counts.items())
    return {"status": status, "lack": lack, "reason": "; ".join(reasons)}


def _verdict(difference: Estimate, line: Mapping[str, Any]) -> dict[str, Any]:
    """Columns `n_pairs`, `constant`, `resolved` and `better` of a cell."""
    # A fraction of samples is coarse: the same difference in a few seeds is chance, not a spread of
    # zero. And clocks read in different jobs met different neighbours on the machine: only ratios
    # taken in one process compare.
    chance = difference.constant and line["unit"] == SAMPLED
    resolved = difference.resolved and not chance and not is_clock(line["unit"], line["timing"])
    better = ""
    if resolved and line["direction"] != Direction.NEUTRAL.value:
        better = (
            "better"
            if (difference.mean > 0) == (line["direction"] == Direction.HIGHER.value)
            else "worse"
        )
    return {
        "n_pairs": difference.n,
        "constant": difference.constant,
        "resolved": resolved,
        "better": better,
    }


def _cells(rows: _Rows, variants: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A cell of each line and variant; the baseline is the first of these."""
    for line in rows.all_lines():
        named, seeds = dict(zip(LINE, line, strict=True)), len(rows.seeds[line[0]])
        # The differences are against the first variant, seed by seed.
        reference: dict[int, float] = {}
        for variant in variants:
            values, lacks, remark = rows.found(line, variant)
            mean = mean_interval(list(values.values())) if values else None
            difference = seed_difference(values, reference)
            reference = values if variant == variants[0] else reference
            yield {
                **named,
                "variant": variant,
                "baseline": variants[0],
                "seeds": seeds,
                "n": len(values),
                **{name: getattr(mean, name, None) for name in ("mean", "low", "high")},
                **estimate_columns("diff", difference),
                "n_pairs": 0,
                "constant": False,
                "resolved": False,
                "better": "",
                **(_verdict(difference, named) if difference else {}),
                **_lacks(lacks, seeds, bool(values)),
                "remark": remark,
            }


def comparison(frame: pd.DataFrame, baseline: str, drawn: Sequence[str] = ()) -> pd.DataFrame:
    """Mean, interval and paired difference to the baseline for every measurement without a sample.

    `status` is "ok" where every seed has a value, "partial" where some have, else what most seeds
    report. `lack` counts the seeds without a value by status, e.g. "unsupported (3/3)"; `reason`
    says why; `remark` is what the stage adds to the values it gave. `n_pairs` counts the seeds that
    the variant and the baseline both have. `better` is "better" or "worse" only where the interval
    of the difference excludes 0 and the metric has a direction. `resolved` needs no direction.

    The row of a job that failed fills the cells of all metrics of its step. Lines and
    variants keep the frame's order, with the baseline first.

    Args:
        frame: rows as `read_results` gives them, of one run.
        baseline: the variant to compare with.
        drawn: metrics that are left out: courses of many points, which figures show.

    Raises:
        ValueError: the frame is empty, has no row of the baseline, or has two values for one cell
            and seed.
    """
    import pandas as pd

    if frame.empty:
        raise ValueError("comparison of no rows: the run has no results yet")
    variants = list(frame["variant"].unique())
    if baseline not in variants:
        raise ValueError(f"baseline {baseline!r} has no rows; this run has {', '.join(variants)}")
    variants.sort(key=lambda name: name != baseline)
    # A number that there is none of is NaN, as parquet and CSV have it.
    cells = pd.DataFrame(list(_cells(_Rows(frame, drawn), variants)), columns=list(_COLUMNS))
    return cells.astype(dict.fromkeys(_NUMBERS, float))


def adjusted(compared: pd.DataFrame, decided: pd.Series[bool]) -> pd.DataFrame:
    """The comparison, in which a difference is resolved where it is after Holm's adjustment over
    its step's; of few seeds its own p value must lie lower, too, as in the decision matrix.

    Args:
        compared: as `comparison` makes it.
        decided: the lines that the decision matrix concludes from, which keep what they say and
            count in no family.
    """
    tested = compared["diff_low"].notna() & ~compared["constant"].astype(bool) & ~decided
    tested &= ~(compared["timing"].astype(bool) & (compared["unit"] != "ratio"))
    p = compared.loc[tested].apply(_p, axis=1) if tested.any() else compared.loc[tested, "diff"]
    places = [compared.loc[tested, name] for name in ("workload", "step")]
    # Three seeds that lie close together by chance look like an effect: see `moderation`.
    strict = compared.loc[tested, "n_pairs"].astype(int).map(stricter)
    kept = (p.groupby(places, sort=False).transform(holm) <= SIGNIFICANT) & (
        p <= SIGNIFICANT / strict
    )
    lost = tested & ~kept.reindex(compared.index, fill_value=False)
    return compared.assign(
        better=compared["better"].mask(lost, ""), resolved=compared["resolved"] & ~lost
    )


def _p(line: pd.Series[Any]) -> float:
    """P value of the paired t test that gave the line's interval; 1 if that has no width."""
    half, degrees = (line["diff_high"] - line["diff_low"]) / 2, int(line["n_pairs"]) - 1
    return two_sided_p(line["diff"] / half * t_quantile(0.975, degrees), degrees) if half else 1.0


_FAILURE_COLUMNS = ("workload", "step", "stage", "variant", "metric", "status", "seeds", "reason")


def difference_text(cell: Mapping[str, Any], scale: Scale) -> str:
    """ "−1.0 [−1.8, −0.2]" of one line of `comparison`; empty where nothing was paired."""
    if not cell["n_pairs"]:
        return ""
    estimate = Estimate(
        *(cell[name] for name in ("diff", "diff_low", "diff_high", "n_pairs", "constant"))
    )
    interval = "" if math.isnan(cell["diff_low"]) else f" {bracket(estimate, scale)}"
    return scale.number(estimate.mean, sign=True) + interval


def notes_text(cell: Mapping[str, Any]) -> str:
    """Say which seeds lack a value or a pair: "n = 2 of 3, unsupported (1/3)"."""
    notes = []
    if cell["n"] == 1:
        notes.append("n = 1, no interval")
    elif 0 < cell["n"] < cell["seeds"]:
        notes.append(f"n = {cell['n']} of {cell['seeds']}")
    if cell["variant"] != cell["baseline"] and cell["n_pairs"] < cell["n"]:
        notes.append(f"{cell['n_pairs'] or 'no'} pairs with {cell['baseline']}")
    return ", ".join([*notes, *filter(None, [cell["lack"]])])


def text_cell(cell: Mapping[str, Any], scale: Scale) -> GridCell:
    """One line of `comparison` as a cell."""
    if not cell["n"]:
        return GridCell(cell["lack"], cell["reason"], tone="lack")
    low, high = (None, None) if math.isnan(cell["low"]) else (cell["low"], cell["high"])
    mean = mean_text(Estimate(cell["mean"], low, high, cell["n"]), scale)
    difference = difference_text(cell, scale)
    detail = ", ".join(filter(None, (difference and f"Δ {difference}", notes_text(cell))))
    return GridCell(mean, detail, repr(float(cell["mean"])), cell["better"])


class TextLine:
    """One line of the wide table: what was measured, and the text of each variant's cell."""

    def __init__(
        self, cells: Sequence[Mapping[str, Any]], spelled: Mapping[str, str] | None = None
    ) -> None:
        self._spelled = spelled or {}
        first = cells[0]
        means = [cell["mean"] for cell in cells if cell["n"]]
        spreads = [
            (cell["high"] - cell["low"]) / 2 for cell in cells if not math.isnan(cell["low"])
        ]
        scale = scale_of(
            first["unit"], means, [*spreads, *(cell["diff"] for cell in cells if cell["n_pairs"])]
        )
        self.scale, self.unit_label = scale, scale.label
        self.raw: dict[str, Mapping[str, Any]] = {cell["variant"]: cell for cell in cells}
        self.workload, self.step, self.stage = first["workload"], first["step"], first["stage"]
        self.metric, self.setting, self.unit = first["metric"], first["setting"], first["unit"]
        self.keys = parse_setting(self.setting)
        self.direction, self.timing = first["direction"], bool(first["timing"])
        self.cells = {cell["variant"]: text_cell(cell, scale) for cell in cells}

    @property
    def label(self) -> str:
        """The metric in words; a step that gave no metric at all stands for all of them."""
        words = [self._spelled.get(word, word) for word in self.metric.split("_")]
        return " ".join(words) if self.metric else "all metrics"

    @property
    def brief(self) -> str:
        """Step and metric for running text: "prune accuracy", "bounds certified accuracy (ε =
        0.03125)".
        """
        name = self.label if self.label == self.step else f"{self.step} {self.label}"
        return f"{name} (ε = {self.keys['eps']})" if self.keys.get("eps") else name


def text_lines(compared: pd.DataFrame, spelled: Mapping[str, str] | None = None) -> list[TextLine]:
    """The lines of a comparison in order, as text.

    Args:
        compared: as `comparison` makes it.
        spelled: words of metrics that are written otherwise in running text.
    """
    every: list[dict[Any, Any]] = compared.to_dict("records")
    return [
        TextLine(cells_of_line, spelled)
        for cells_of_line in grouped(
            (tuple(cell[name] for name in LINE), cell) for cell in every
        ).values()
    ]


def failures(frame: pd.DataFrame) -> pd.DataFrame:
    """Everything without a value and why, seeds together. An empty metric stands for all metrics
    of a job.
    """
    rows = frame[frame["status"] != Status.OK.value]
    rows = rows.assign(reason=[root_reason(text) for text in rows["reason"]])
    alike = rows.groupby([name for name in _FAILURE_COLUMNS if name != "seeds"], sort=False)["seed"]
    seeds = alike.agg(lambda every: ", ".join(map(str, sorted(set(every)))))
    return seeds.astype(str).rename("seeds").reset_index()[list(_FAILURE_COLUMNS)]


def merged(failed: pd.DataFrame) -> list[dict[Any, Any]]:
    """Failures that differ only in variant and seeds become one, with "gelu (0, 1), relu (0)" as
    networks.
    """
    networks = failed["variant"] + " (" + failed["seeds"] + ")"
    alike = networks.groupby(
        [failed[name] for name in ("workload", "step", "metric", "status", "reason")], sort=False
    )
    return alike.agg(", ".join).rename("networks").reset_index().to_dict("records")
