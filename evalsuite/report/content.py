"""Everything a report says, gathered once from the rows and the record: the page and the other documents show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evalsuite.report.canvas import Drawing
from evalsuite.report.comparison import ABSENT, comparison
from evalsuite.report.figures import draw_all
from evalsuite.report.findings import Finding, Tally, findings, intervals, tallies
from evalsuite.report.headlines import headline_lines
from evalsuite.report.record import NOT_RECORDED, Record
from evalsuite.report.tables import TextLine, contradictions, failures, text_lines
from evalsuite.report.verdicts import Contradictions, verdict_table
from evalsuite.results import Status

if TYPE_CHECKING:
    import pandas as pd

QUESTION = "What does replacing GELU by ReLU buy, and cost, downstream?"
GUIDE = (
    "Each cell gives the mean over seeds ± the half-width of its 95 % t interval. Δ is the paired difference to the "
    "baseline of the same workload and seed, with its own 95 % interval in brackets. A difference is called better or "
    "worse only where that interval excludes 0 and the metric has a direction; “not resolved” means that these seeds "
    "cannot tell, not that the two are equal. Where there is no value, the cell says why."
)


def in_order(frame: pd.DataFrame, record: Record) -> pd.DataFrame:
    """The rows in the recipe's order, whatever order the jobs ended in; unknown names go last, by name."""
    wanted = {
        "workload": record.names("workloads"),
        "variant": record.names("variants"),
        "step": ["train", *steps] if (steps := [str(step["name"]) for step in record.steps]) else [],
    }
    ranks = frame[["seed"]].copy()
    for column, names in wanted.items():
        rest = [each for each in dict.fromkeys(frame[column]) if each not in names]
        # Without a recorded order, the order of the rows is all there is.
        order = {name: i for i, name in enumerate([*names, *(sorted(rest) if names else rest)])}
        ranks[column] = frame[column].map(order)
    return frame.loc[ranks.sort_values(["workload", "variant", "seed", "step"], kind="stable").index].reset_index(
        drop=True
    )


def baseline_of(frame: pd.DataFrame, record: Record) -> str:
    """The recorded baseline; for want of a record, GELU, else the first variant."""
    recorded = record.entries.get("baseline")
    if isinstance(recorded, str) and recorded:
        return recorded
    variants = list(dict.fromkeys(frame["variant"]))
    return "gelu" if "gelu" in variants or not variants else str(variants[0])


@dataclass(frozen=True)
class Content:
    """One run's report before it has a form."""

    frame: pd.DataFrame
    record: Record
    baseline: str

    @cached_property
    def compared(self) -> pd.DataFrame:
        """The tidy comparison."""
        return comparison(self.frame, self.baseline)

    @cached_property
    def lines(self) -> list[TextLine]:
        """The comparison as text, a line per metric."""
        return text_lines(self.compared)

    @cached_property
    def workloads(self) -> list[str]:
        """In order."""
        return list(dict.fromkeys(line.workload for line in self.lines))

    @cached_property
    def variants(self) -> list[str]:
        """In order, the baseline first."""
        return [str(each) for each in self.compared["variant"].unique()]

    def steps(self, workload: str) -> dict[str, list[TextLine]]:
        """Step -> its lines."""
        found: dict[str, list[TextLine]] = {}
        for line in self.lines:
            if line.workload == workload:
                found.setdefault(line.step, []).append(line)
        return found

    def glance(self, workload: str) -> list[TextLine]:
        """The headline lines of a workload."""
        return headline_lines([line for line in self.lines if line.workload == workload])

    @cached_property
    def findings(self) -> list[Finding]:
        """What the numbers say, per workload and variant."""
        return findings(self.compared, [line for workload in self.workloads for line in self.glance(workload)])

    @cached_property
    def tallies(self) -> dict[tuple[str, str], dict[str, Tally]]:
        """Better, worse and unresolved per workload, step and variant."""
        return tallies(self.compared)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """Counts of verdicts."""
        return verdict_table(self.frame)

    @cached_property
    def contradictions(self) -> Contradictions:
        """Of the methods, over the same network."""
        return contradictions(self.frame, self.record.after)

    @cached_property
    def failures(self) -> pd.DataFrame:
        """Everything without a value."""
        return failures(self.frame)

    @cached_property
    def drawings(self) -> list[Drawing]:
        """The figures, those without data too."""
        return draw_all(self.compared, self.verdicts)

    @property
    def seeds(self) -> list[int]:
        """All seeds that have rows."""
        return sorted({int(seed) for seed in self.frame["seed"]})

    @property
    def seeds_text(self) -> str:
        """ "3 seeds (0, 1, 2)"."""
        return f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)} ({', '.join(map(str, self.seeds))})"

    @property
    def chance(self) -> str:
        """How many differences could look resolved by chance."""
        count = intervals(self.compared)
        if not count:
            return "No difference has an interval of some width: nothing here is a test."
        return (
            f"The intervals are per cell and not adjusted for their number: of {count} differences with an interval of "
            f"some width, about 5 % ({0.05 * count:.0f}) would exclude 0 by chance even if no variant differed from "
            f"{self.baseline}. Seeds are the only replicates; the test samples are the same for all of them. "
            f"{self.width}"
        )

    @property
    def width(self) -> str:
        """How wide a t interval over so few seeds is."""
        from scipy.stats import t

        count = len(self.seeds)
        if not 2 <= count < 5:
            return ""
        return f"With {count} seeds an interval is ± {t.ppf(0.975, count - 1):.1f} standard errors: use 5 or more."

    @property
    def contradiction_text(self) -> str:
        """ "0 contradictions in N comparisons"."""
        count = len(self.contradictions.rows)
        head = f"{count} contradiction{'s' * (count != 1)} in {self.contradictions.comparisons:,} comparisons"
        if count:
            return f"{head}: at least one method is wrong about each of these. Do not trust its other verdicts."
        return (
            f"{head}: verdicts of two methods on the same network, sample and ε, where one decided and the other "
            "could have said the opposite."
        )

    @property
    def unfinished(self) -> str:
        """Why the report is of a part of a run; empty where it is whole."""
        absent = int((self.compared["status"] == ABSENT).sum()) + int(self.compared["lack"].str.contains(ABSENT).sum())
        if self.record.entries and self.record.text("finished") == NOT_RECORDED:
            return "This run has not finished: the tables show what there is so far, and what is missing as absent."
        return "Some jobs of this run have no rows: their cells are marked absent." if absent else ""

    def job_failures(self) -> list[dict[str, str]]:
        """Failures of whole jobs, alike ones together."""
        return _merged(self.failures[self.failures["metric"] == ""].to_dict("records"))

    def metric_failures(self) -> list[dict[str, str]]:
        """Single metrics without a value, alike ones together."""
        return _merged(self.failures[self.failures["metric"] != ""].to_dict("records"))

    @property
    def failed(self) -> bool:
        """Whether any job failed for another reason than that its stage cannot measure the network."""
        expected = (Status.OK.value, Status.UNSUPPORTED.value, Status.UNAVAILABLE.value)
        return bool((~self.frame["status"].isin(expected)).any())


def _merged(records: Sequence[Mapping[Any, Any]]) -> list[dict[str, str]]:
    """Records that differ only in variant and seeds become one, with "gelu (0, 1), relu (0)" as networks."""
    merged: dict[tuple[str, ...], list[str]] = {}
    for each in records:
        key = tuple(str(each[name]) for name in ("workload", "step", "metric", "status", "reason"))
        merged.setdefault(key, []).append(f"{each['variant']} ({each['seeds']})")
    names = ("workload", "step", "metric", "status", "reason")
    return [{**dict(zip(names, key, strict=True)), "networks": ", ".join(found)} for key, found in merged.items()]
