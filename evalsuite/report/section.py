"""A stage brings a section to a report, found by entry point (`evalsuite.sections`): its question,
and the answer's parts.

A section is an instance of `Section` in any installed package:

    [project.entry-points."evalsuite.sections"]
    input-noise = "my_package.report:SECTION"

It reads the run that it is given and makes a `Part`. The rest of a report knows no stage.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from evalsuite.contract import Direction
from evalsuite.plugins import PluginError, entries, load
from evalsuite.report.findings import findings_of
from evalsuite.report.grids import with_tones, without_tones
from evalsuite.report.statistics import mean_by_seed

if TYPE_CHECKING:
    import pandas as pd

    from evalsuite.report.cells import MatrixCell
    from evalsuite.report.drawings import Drawing, Picture
    from evalsuite.report.findings import Finding
    from evalsuite.report.forms import Form
    from evalsuite.report.grids import Grid
    from evalsuite.report.listing import Listing
    from evalsuite.report.measured import Measured
    from evalsuite.report.paired import Values
    from evalsuite.report.record import Record
    from evalsuite.report.statistics import Estimate
    from evalsuite.report.tables import TextLine
    from evalsuite.scores_file import KeptScores


Kind = TypeVar("Kind")
# (Question, workload, variant) -> what the first screen says.
Screen = Mapping[tuple[str, str, str], "MatrixCell"]
"""The cells of the decision matrix by question, workload and variant.
"""


class RunView(Protocol):
    """What a section reads of a run, such as its rows and its baseline: `Run` has all of it."""

    @property
    def frame(self) -> pd.DataFrame:
        """The rows as `read_results` gives them, in the recipe's order."""
        ...

    @property
    def record(self) -> Record:
        """The entries of `run.json`."""
        ...

    @property
    def baseline(self) -> str:
        """The variant that all others are compared with."""
        ...

    @property
    def measured(self) -> Measured:
        """The rows of whole networks, by workload, variant, step, metric and setting."""
        ...

    @property
    def compared_variants(self) -> list[str]:
        """All variants but the baseline, the one that a section declares its subject first."""
        ...

    @property
    def variants(self) -> list[str]:
        """The variants that are compared, the baseline first."""
        ...

    @property
    def workloads(self) -> list[str]:
        """The workloads that have a line of the comparison."""
        ...

    @property
    def sections(self) -> dict[str, Section]:
        """All sections, in the order in which their stages first come in the recipe."""
        ...

    @property
    def doubts(self) -> dict[str, list[str]]:
        """Workload -> why nothing is concluded from its baseline."""
        ...

    @property
    def cuts(self) -> list[str]:
        """The workloads of which each seed has parts of its own."""
        ...

    @property
    def screen(self) -> Screen:
        """The cells of the decision matrix by question, workload and variant."""
        ...

    @property
    def glances(self) -> list[TextLine]:
        """The lines of the comparison that are shown at a glance."""
        ...

    def once(self, make: Callable[[Any], Kind], /) -> Kind:
        """Apply a function to this run, once, and keep its value."""
        ...

    def sample_scores(
        self, workload: str, variant: str, seed: int, place: tuple[str, str, str]
    ) -> KeptScores | None:
        """The scores of the single test samples of one network at a place, if the run kept them."""
        ...


@dataclass(frozen=True)
class Part:
    """What a section says of a run; empty where it has nothing to say.

    Args:
        findings: what the marks of its shown tables do not say.
        grids: tables that are shown.
        details: tables on demand.
        drawings: figures, and reasons why there is none.
        rule: how the findings are read.
        tables: what the section made them from, for other programs.
        alarm: what a reader must know before anything else of the page.
    """

    findings: Sequence[Finding] = ()
    grids: Sequence[Grid] = ()
    details: Sequence[Grid] = ()
    drawings: Sequence[Drawing] = ()
    rule: str = ""
    tables: Sequence[Any] = ()
    alarm: str = ""

    @classmethod
    def of(
        cls,
        findings: Iterable[Finding | None],
        grids: Iterable[Grid | None] = (),
        details: Iterable[Grid | None] = (),
        drawings: Sequence[Drawing] = (),
        **more: Any,
    ) -> Part:
        """Make a part of findings and grids, some of which may be None since there was nothing to
        say: these are left out.
        """
        return cls(
            [*filter(None, findings)],
            [*filter(None, grids)],
            [*filter(None, details)],
            drawings,
            **more,
        )

    def with_tones(self, tones: Mapping[Estimate, str]) -> Part:
        """The part, in whose tables a difference is marked as `tones` says, see `tones_of`, or
        after Holm's adjustment over its table.
        """
        grids, details = (
            [with_tones(grid, tones) for grid in tables] for tables in (self.grids, self.details)
        )
        return replace(self, grids=grids, details=details)

    def with_findings(self, baseline: str) -> Part:
        """The part, whose findings begin with what its shown tables say, by their marks."""
        told = findings_of(self.grids, baseline)
        return replace(self, findings=[*told, *self.findings])

    def without_conclusions(self) -> Part:
        """The numbers alone: no findings, and no difference that is marked as better or worse."""
        grids, details = (
            [without_tones(grid) for grid in tables] for tables in (self.grids, self.details)
        )
        return replace(self, findings=(), rule="", grids=grids, details=details)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (
            self.grids
            or self.details
            or self.findings
            or any(drawing.svg for drawing in self.drawings)
        )


@dataclass(frozen=True)
class Contrast:
    """Two arms of one question, paired by seed; `reason` says why there is nothing to pair.

    `magnitude` is of the numbers that the arms were computed from, where they are differences
    themselves: what is smaller than its rounding is none. Where questions were left open, `own` and
    `other` are the lower ends of what the values may be, and `own_upper` and `other_upper` the
    upper ones; else these are empty. `place` is the step, metric and setting of what is a line of
    the comparison too: its verdict there is the decision matrix's. `sampled` are the steps, metrics
    and settings whose mean the arms are, where the scores of single test samples may be found;
    `place` for want of them.
    """

    label: str
    own: Values = field(default_factory=dict)
    other: Values = field(default_factory=dict)
    reason: str = ""
    magnitude: float | None = None
    own_upper: Values = field(default_factory=dict)
    other_upper: Values = field(default_factory=dict)
    place: tuple[str, str, str] | None = None
    sampled: tuple[tuple[str, str, str], ...] = ()

    @property
    def places(self) -> tuple[tuple[str, str, str], ...]:
        """Where the scores of single samples may be found, whose mean the arms are."""
        return self.sampled or ((self.place,) if self.place is not None else ())

    @property
    def ends(self) -> tuple[tuple[Values, Values], ...]:
        """The arms to compare: one pair, or those of the least and of the greatest difference
        that there may be.
        """
        if not (self.own_upper or self.other_upper):
            return ((self.own, self.other),)
        return (self.own, self.other_upper or self.other), (self.own_upper or self.own, self.other)


@dataclass(frozen=True)
class Evidence:
    """What answers a question on one workload for one variant.

    Args:
        primary: what the answer is read from.
        family: what must not speak against it, such as the settings that the primary number is the
            mean of.
    """

    primary: Contrast
    family: Sequence[Contrast] = ()


Measure = Callable[["RunView", str, str], Evidence | None]
"""The function that finds an endpoint's evidence for a workload and a variant; None where the run
does not ask.
"""


@dataclass(frozen=True)
class Endpoint:
    """A primary endpoint: what is asked, before it is measured, and which difference would matter.

    Args:
        question: a row of the decision matrix, in a few words.
        measure: (run, workload, variant) -> what was measured; None where the run does not ask
            this.
        unit: of the differences.
        direction: which way is better.
        margin: the smallest difference that matters, in that unit: less than it is no worse.
        instead: asked only in the place of another question of the section, and not missed where
            that is asked.
        greatest: the greatest difference that there can be; of fractions of samples it is 1.
        clock: metrics that a clock reads: nothing is concluded from what was read beside other
            work.
        of: the question that asks the same of the networks before their deployment: the difference
            between the two is what deployment takes.
        phrase: the question as it stands in a sentence, where that is another.
        fact: whether a network has one value, in which there is no chance, as of its size.
    """

    question: str
    measure: Measure
    unit: str
    direction: Direction
    margin: float
    instead: bool = False
    greatest: float = math.inf
    clock: tuple[str, ...] = ()
    of: str = ""
    phrase: str = ""
    fact: bool = False

    @property
    def words(self) -> str:
        """The question, as it stands in a sentence."""
        return self.phrase or self.question

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and self.margin > 0):
            raise ValueError(
                f"margin of {self.question!r} must be positive and finite, got {self.margin}"
            )
        if self.direction is Direction.NEUTRAL:
            raise ValueError(
                f"endpoint {self.question!r} has no direction: higher or lower must be better"
            )
        if self.unit == "fraction":
            object.__setattr__(self, "greatest", min(1.0, self.greatest))


@dataclass(frozen=True)
class Headline:
    """A metric that is shown at a glance; of its settings, those with the `wanted` key and the
    first value there is.

    `figure` is False where the metric tells nothing of the task: a step with none of the others is
    of another task, and shows its own metrics.
    """

    stage: str
    metric: str
    wanted: tuple[str, tuple[str, ...]] = ("", ())
    figure: bool = True


@dataclass(frozen=True)
class Section:
    """A stage's part of a report.

    Args:
        title: a heading.
        question: what it answers, a sentence.
        stages: the stages that it speaks of, for its place: sections are in the order of the
            recipe's steps.
        part: makes the part of a run.
        endpoints: its rows of the decision matrix.
        tables: of its numbers, on demand, beside those of its part.
        headlines: what is shown of the stages at a glance; of a stage without any section, the
            first metric is.
        of_task: the stages whose headlines depend on the task: for another one, the first metric
            takes their place.
        sampled_by: the option of its stages that says of how many test samples its fractions are;
            empty where they are of all.
        terms: what its words mean, for the glossary.
        spelled: words of metrics that are written otherwise in running text, such as "nll": "NLL".
        kept: lines of a comparison that it keeps to itself, as a mask over the rows: they are in no
            count.
        unlisted: lines that are counted, and in no list.
        drawn: metrics that are courses of many points, and not compared at all.
        told: metrics whose reason is text for a table, and no lack of a value.
        baseline: the variant to compare with, where a run did not record it and has this one.
        looks: colour and marker of variants that it knows.
        subjects: the variants whose answer is shown first, the most wanted first.
        forms: in which the stages' networks can be deployed, for the plane of quality over cost.
        called: what a variant is in words, and the activation that it ends with, from its treatment
            and its options; empty for one that the section does not know.
        pictures: of lines of the stages, from the folder of one job's artefacts, which need not be
            there.
    """

    title: str
    question: str
    stages: tuple[str, ...]
    part: Callable[[RunView], Part] = lambda _: Part()
    endpoints: tuple[Endpoint, ...] = ()
    tables: tuple[Listing, ...] = ()
    headlines: tuple[Headline, ...] = ()
    of_task: tuple[str, ...] = ()
    sampled_by: str = ""
    terms: Mapping[str, str] = field(default_factory=dict)
    spelled: Mapping[str, str] = field(default_factory=dict)
    kept: Callable[[pd.DataFrame], pd.Series[bool]] | None = None
    unlisted: Callable[[pd.DataFrame], pd.Series[bool]] | None = None
    drawn: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    baseline: str = ""
    looks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    subjects: tuple[str, ...] = ()
    forms: tuple[Form, ...] = ()
    called: Callable[[str, Mapping[str, Any]], tuple[str, str]] = lambda _treatment, _options: (
        "",
        "",
    )
    pictures: Callable[[Path], Sequence[Picture]] = lambda _: ()

    @property
    def help(self) -> str:
        """The question, which lists of plugins show as the section's one line of help."""
        return self.question


def sections() -> dict[str, Section]:
    """Name -> section of every installed package, by name.

    Raises:
        PluginError: one is broken, claimed twice, or no `Section`.
    """
    import sys

    return _sections(tuple(sys.path))


@cache
def _sections(_path: tuple[str, ...]) -> dict[str, Section]:
    found_sections: dict[str, Section] = {}
    for plugin in (load("sections", entry.name) for entry in entries("sections")):
        if not isinstance(plugin.target, Section):
            whose = f"section {plugin.name!r} of {plugin.origin} {plugin.version}"
            raise PluginError(f"{whose} is a {type(plugin.target).__name__}, not a Section")
        found_sections[plugin.name] = plugin.target
    return found_sections


@cache
def notes(module: str) -> Mapping[str, str]:
    """The prose of a section, which stands in `notes.md` beside the module of this name: heading ->
    paragraph.
    """
    loaded = importlib.import_module(module)
    text = Path(str(loaded.__file__)).with_name("notes.md").read_text(encoding="utf-8")
    parts = (part.partition("\n") for part in text.split("\n## ")[1:])
    return {name: " ".join(body.split()) for name, _, body in parts}


def first_step(stage: str, metrics: Sequence[str]) -> Measure:
    """The measure of an endpoint that is one metric of one step: the first of a stage, of networks
    as trained.

    Args:
        stage: whose steps.
        metrics: the one that both arms have is compared, the first of them most, at the first
            setting that it has.
    """

    def measure(run: RunView, workload: str, variant: str) -> Evidence | None:
        step, rows = run.measured.step(workload, stage), run.measured.frame
        # Where no network of the run has a row of one of the metrics, nobody asked for it; nor of a
        # workload whose networks were measured by others.
        there = (rows["stage"] == stage) & rows["metric"].isin(metrics)
        here = (rows["workload"] == workload) & (rows["step"] == step)
        if not step or not there.any() or not (here & (there | (rows["metric"] == ""))).any():
            return None
        settings_of_metrics = (
            run.measured.settings(workload, run.baseline, step, metric) for metric in metrics
        )
        setting = next((text for settings in settings_of_metrics for text in settings), "")
        return Evidence(paired_test(run, workload, variant, step, metrics, setting))

    return measure


def paired_test(
    run: RunView,
    workload: str,
    variant: str,
    step: str,
    metrics: Sequence[str],
    setting: str = "",
    label: str = "",
) -> Contrast:
    """The contrast of a variant with the baseline in the first metric that both have; where there
    is none, the reason.
    """
    label = label or step
    # The first metric that both have: a task may have several names for what is asked.
    for metric in metrics:
        variant_arm, other = (
            run.measured.values(workload, arm, step, metric, setting)
            for arm in (variant, run.baseline)
        )
        if variant_arm and other:
            return Contrast(label, variant_arm, other, place=(step, metric, setting))
    # Which arm lacks it, and why.
    for arm in (variant, run.baseline):
        if not any(run.measured.values(workload, arm, step, metric, setting) for metric in metrics):
            return Contrast(
                label, reason=f"{arm}: {run.measured.reason(workload, arm, step, metrics[0])}"
            )
    return Contrast(label, reason="the two arms were measured by different metrics")


def mean_test(tests: Sequence[Contrast]) -> Contrast:
    """The mean of several contrasts, over those that both arms have and the seeds that have all of
    these; its label says what is missing.
    """
    # 1. The contrasts that both arms have, and in the label what the mean is without.
    whole = [test for test in tests if test.own and test.other]
    if not whole:
        label = " and ".join(test.label for test in tests)
        return Contrast(
            label, reason=next((test.reason for test in tests if test.reason), "not measured")
        )
    lacking = [
        f"without {test.label}: {test.reason or 'not measured'}"
        for test in tests
        if test not in whole
    ]
    label = " and ".join(contrast.label for contrast in whole) + (
        f" ({'; '.join(lacking)})" if lacking else ""
    )
    # 2. Means by seed, over the seeds that have all: a mean over fewer would be of another
    # quantity.
    variant_arm, other = (
        mean_by_seed([getattr(contrast, arm) for contrast in whole]) for arm in ("own", "other")
    )
    if not variant_arm.keys() & other.keys():
        return Contrast(label, reason="no seed has all of it")
    sampled = tuple(place for contrast in whole for place in contrast.places)
    known = all(contrast.places and contrast.magnitude is None for contrast in whole)
    return Contrast(label, variant_arm, other, sampled=sampled if known else ())
