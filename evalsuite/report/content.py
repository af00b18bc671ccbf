"""Everything a report says, gathered once from the rows and the record: the page and the other documents show it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from evalsuite.report.bounds import without_bound_layers
from evalsuite.report.bounds_section import BoundsSection, bounds_section
from evalsuite.report.canvas import Drawing
from evalsuite.report.comparison import ABSENT, comparison
from evalsuite.report.disruption import STAGE, SWEEP
from evalsuite.report.exact import by_steps, without_steps
from evalsuite.report.exact_section import ExactSection, exact_section
from evalsuite.report.figures import draw_all
from evalsuite.report.findings import Finding, Tally, chance_text, findings, tallies
from evalsuite.report.grids import Grid
from evalsuite.report.hardness import BEYOND, LayerOrder, Relation, layer_drifts, layer_orders, relations
from evalsuite.report.hardness_text import drift_grid, order_grid, relation_grids
from evalsuite.report.headlines import headline_lines
from evalsuite.report.measured import Measured
from evalsuite.report.pattern import PatternFinding, pattern_finding
from evalsuite.report.pruning_section import PruningSection, pruning_section
from evalsuite.report.quantization import TOLD
from evalsuite.report.quantization_section import QuantizationSection, quantization_section, without_layers
from evalsuite.report.record import NOT_RECORDED, Record
from evalsuite.report.swap import SwapTable, swap_tables
from evalsuite.report.swap_text import swap_grid
from evalsuite.report.tables import TextLine, contradictions, failures, merged, text_lines
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
MOST_COLUMNS = 6
# Lines for each layer of each network: shown by layer, and whole in comparison.csv.
OF_LAYERS = ("hardness", "learnt_hardness", "hardness_drift", "hardness_spread")


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
        """The comparison as text, a line per metric.

        Left out are single layers, which have tables or figures of their own, and the drawn sweep of the certificate.
        """
        compared = self.whole
        swept = (compared["stage"] == STAGE) & compared["setting"].str.contains(SWEEP, regex=False)
        return text_lines(compared[~compared["metric"].isin(OF_LAYERS) & ~swept])

    @cached_property
    def whole(self) -> pd.DataFrame:
        """The comparison without single layers of quantized networks and of bounds, which would outnumber all else.

        Nor radii in grid steps, which have tables of their own.
        """
        return without_steps(without_bound_layers(without_layers(self.compared)))

    @cached_property
    def quantized(self) -> QuantizationSection:
        """Quantized networks; empty without a quantize step."""
        return quantization_section(self.measured, self.baseline, self.record)

    @cached_property
    def pruned(self) -> PruningSection:
        """Pruned networks; empty without a step that prunes."""
        return pruning_section(self.measured, self.baseline, self.record)

    @cached_property
    def certified(self) -> BoundsSection:
        """Certified robustness; empty without a bounds step."""
        return bounds_section(self.measured, self.baseline, self.record)

    @cached_property
    def verified(self) -> ExactSection:
        """Exact verification; empty without an smt step."""
        return exact_section(self.frame, self.measured, self.baseline, self.record)

    @cached_property
    def measured(self) -> Measured:
        """The values of single networks."""
        return Measured(self.frame, self.record.after)

    @cached_property
    def swaps(self) -> list[SwapTable]:
        """Before and after the swap, for each workload with swapped networks."""
        return swap_tables(self.measured, self.baseline)

    @cached_property
    def swap_grids(self) -> list[Grid]:
        """The same as text."""
        return [swap_grid(table) for table in self.swaps]

    @cached_property
    def patterns(self) -> list[PatternFinding]:
        """Whether the paper's pattern is reproduced, for each workload that can tell."""
        return [found for found in map(pattern_finding, self.swaps) if found is not None]

    @cached_property
    def orders(self) -> list[LayerOrder]:
        """Agreement of the seeds on the order of layers."""
        return layer_orders(self.measured)

    @cached_property
    def hardness_grids(self) -> list[Grid]:
        """Layer order, drift, and what the drift goes with; empty where no lambda was learnt."""
        if not self.orders:
            return []
        return [
            order_grid(self.orders),
            drift_grid(layer_drifts(self.measured)),
            *relation_grids(self.relations),
        ]

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
        return findings(self.whole, [line for workload in self.workloads for line in self.glance(workload)])

    @cached_property
    def tallies(self) -> dict[tuple[str, str], dict[str, Tally]]:
        """Better, worse and unresolved per workload, step and variant."""
        return tallies(self.whole)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """Counts of verdicts."""
        return verdict_table(by_steps(self.frame))

    @cached_property
    def contradictions(self) -> Contradictions:
        """Of the methods, over the same network."""
        return contradictions(self.frame, self.record.after)

    @cached_property
    def failures(self) -> pd.DataFrame:
        """Everything without a value."""
        return failures(self.frame[self.frame["metric"] != TOLD])

    @cached_property
    def drawings(self) -> list[Drawing]:
        """The figures, those without data too."""
        return draw_all(
            self.whole,
            self.verdicts,
            self.measured,
            self.orders,
            self.quantized.tables,
            self.pruned.tables,
            self.certified.tables,
            self.verified.tables,
        )

    @property
    def many(self) -> bool:
        """Whether there are too many variants for a column each."""
        return len(self.variants) > MOST_COLUMNS

    @property
    def undrawn(self) -> dict[str, list[str]]:
        """Reason -> the titles of the figures that there are not for it."""
        found: dict[str, list[str]] = {}
        for drawing in self.drawings:
            if drawing.svg is None:
                found.setdefault(drawing.reason, []).append(drawing.title)
        return found

    @cached_property
    def relations(self) -> list[Relation]:
        """What the drift of the hardness goes with."""
        glances = [line for workload in self.workloads for line in self.glance(workload)]
        return relations(self.measured, glances) if self.orders else []

    @property
    def relations_told(self) -> str:
        """ "0 of 40 tests resolved"."""
        tested = [each for each in self.relations if each.association is not None]
        resolved = sum(each.verdict == "resolved" for each in tested)
        beyond = sum(each.verdict == BEYOND for each in tested)
        more = f", {beyond} beyond what so few seeds can resolve" if beyond else ""
        return f"{resolved} of {len(tested)} tests resolved{more}"

    @property
    def seeds(self) -> list[int]:
        """All seeds that have rows."""
        return sorted(int(seed) for seed in self.frame["seed"].unique())

    @property
    def seeds_text(self) -> str:
        """ "3 seeds (0, 1, 2)"."""
        return f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)} ({', '.join(map(str, self.seeds))})"

    @property
    def chance(self) -> str:
        """How many differences could look resolved by chance."""
        return chance_text(self.whole, self.baseline, len(self.seeds))

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
        return merged(self.failures[self.failures["metric"] == ""].to_dict("records"))

    def metric_failures(self) -> list[dict[str, str]]:
        """Single metrics without a value, alike ones together."""
        return merged(self.failures[self.failures["metric"] != ""].to_dict("records"))

    @property
    def failed(self) -> bool:
        """Whether any job failed for another reason than that its stage cannot measure the network."""
        expected = (Status.OK.value, Status.UNSUPPORTED.value, Status.UNAVAILABLE.value)
        return bool((~self.frame["status"].isin(expected)).any())
