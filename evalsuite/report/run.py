"""A run as its report reads it: sections make their parts of it, and the page and the other
documents show it.

The few measurements that a reader wants first are its headlines. All others are in the full tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evalsuite.report.clocks import clock_doubts, without_contradictions
from evalsuite.report.listed import listed_grids
from evalsuite.report.matrix import Matrix, as_decided, decision_matrices, tones_of
from evalsuite.report.measured import TRAIN, Measured
from evalsuite.report.numerals import grouped
from evalsuite.report.record import NOT_RECORDED, Record, in_order, read_record
from evalsuite.report.section import Headline, Part, Screen, Section, sections
from evalsuite.report.tables import ABSENT, TextLine, comparison, failures, text_lines
from evalsuite.results import DamagedResults, Status, read_results
from evalsuite.scores_file import KeptScores, read_scores
from opgraph.errors import OwnError

if TYPE_CHECKING:
    import pandas as pd

_MOST = 4
_DOUBT = "doubt"  # the note in the record


def headline_lines(lines: Sequence[TextLine]) -> list[TextLine]:
    """The headlines among `lines`, in their order; a step that failed for all networks stands for
    its headlines.

    Of a headline at more than four steps, and of more than four settings of one at one step, only
    the four with the largest differences to the baseline are chosen.

    Args:
        lines: of one or more workloads.
    """
    every = [headline for section in sections().values() for headline in section.headlines]
    known = {stage for section in sections().values() for stage in section.stages} | {TRAIN}
    of_task = {stage for section in sections().values() for stage in section.of_task}
    chosen: list[TextLine] = []
    for _, group in groupby(lines, key=lambda line: (line.workload, line.step)):
        step = list(group)
        stage = step[0].stage
        headlines = [headline for headline in every if headline.stage == stage]
        figures = {headline.metric for headline in headlines if headline.figure} | {""}
        # Where a step has none of the stage's first headlines, its task is none that they know.
        another = stage not in known or (
            stage in of_task and not any(line.metric in figures for line in step)
        )
        first = next((line for line in step if another and line.direction != "neutral"), None)
        chosen += [
            line
            for line in step
            if line is first or any(_wanted(line, headline, step) for headline in headlines)
        ]
    chosen = _largest(chosen, lambda line: (line.workload, line.stage, line.metric, line.setting))
    return _largest(chosen, lambda line: (line.workload, line.step, line.metric))


def _largest(lines: Sequence[TextLine], alike: Callable[[TextLine], object]) -> list[TextLine]:
    """Keep at most `_MOST` of the lines that are alike: those with the largest differences to the
    baseline.
    """

    def size(line: TextLine) -> float:
        return max(
            (abs(cell["diff"]) for cell in line.raw.values() if cell["n_pairs"]), default=0.0
        )

    groups = grouped((alike(line), line) for line in lines).values()
    kept = {line for same in groups for line in sorted(same, key=size, reverse=True)[:_MOST]}
    return [line for line in lines if line in kept]


def _wanted(line: TextLine, headline: Headline, step: Sequence[TextLine]) -> bool:
    """Whether the line is of the headline's metric, or of none, with the first wanted setting
    that was measured.
    """
    if line.metric not in ("", headline.metric):
        return False
    key, values = headline.wanted
    same = [text_line for text_line in step if text_line.metric == headline.metric]
    measured = [line for line in same if any(cell["n"] for cell in line.raw.values())]
    there = {line.keys.get(key) for line in measured or same}
    chosen = next((value for value in values if value in there), None)
    return not line.metric or chosen is None or line.keys.get(key) == chosen


Kind = TypeVar("Kind")
QUESTION = "Should {other} replace {baseline}?"
SAME_END = "{other}, or {baseline}: which is better?"
ALONE = "What was measured of {baseline}?"


def _without(
    rows: pd.DataFrame, masks: Iterable[Callable[[pd.DataFrame], pd.Series[bool]] | None]
) -> pd.DataFrame:
    for mask in masks:
        rows = rows if mask is None else rows[~mask(rows)]
    return rows


def spelled_words() -> dict[str, str]:
    """The words of metrics that the sections write otherwise in running text."""
    return {word: text for section in sections().values() for word, text in section.spelled.items()}


def baseline_of(frame: pd.DataFrame, record: Record) -> str:
    """The recorded baseline; for want of a record, that of a section, else the first variant."""
    recorded = record.entries.get("baseline")
    if isinstance(recorded, str) and recorded:
        return recorded
    variants = list(frame["variant"].unique())
    known = [section.baseline for section in sections().values() if section.baseline]
    return next(
        (name for name in known if name in variants or not variants),
        str(variants[0]) if variants else "",
    )


@dataclass(frozen=True)
class Run:
    """Holds what a run measured, and what its report says of it; every part is made once, when it
    is asked for.

    Args:
        frame: all rows, in the recipe's order; clock readings that contradict each other lose their
            value.
        record: what the runner wrote of it.
        baseline: the variant to compare with.
        question: that the report answers; by default whether the first variant's activation should
            replace the baseline's.
        folder: the run's, where its pictures are looked for.
    """

    frame: pd.DataFrame
    record: Record
    baseline: str
    question: str = ""
    folder: Path | None = None

    _made: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame", without_contradictions(self.frame))
        if not self.question:
            object.__setattr__(self, "question", self._asked())

    def _asked(self) -> str:
        """The question, with the activations that the baseline and the first of the other
        variants end with.
        """
        ends = {name: end or words for name, (words, end) in self._called.items()}
        baseline = ends.get(self.baseline, self.baseline)
        if not self._called or not self.compared_variants:
            return ALONE.format(baseline=baseline)
        variant = self.compared_variants[0]
        if ends[variant] == baseline:
            return SAME_END.format(other=self.names[variant], baseline=self.names[self.baseline])
        return QUESTION.format(other=ends[variant], baseline=baseline)

    @cached_property
    def _called(self) -> dict[str, tuple[str, str]]:
        """Variant -> what it is in words, and the activation that it ends with; one of no
        section by its name.
        """
        if "variant" not in self.frame:
            return {}
        named = self.frame.drop_duplicates("variant")
        called: dict[str, tuple[str, str]] = {}
        for name, treatment, options in zip(
            named["variant"], named["variant_use"], named["variant_options"], strict=True
        ):
            known = {key: value for key, value in options.items() if value is not None}
            answers = (
                section.called(str(treatment or name), known) for section in sections().values()
            )
            words, end = next((answer for answer in answers if answer[0]), ("", ""))
            called[str(name)] = words or str(name), end
        return called

    @cached_property
    def names(self) -> dict[str, str]:
        """Variant -> what it is, in words; the baseline by its activation, and those of the same
        words by name too.
        """
        # The activation alone does not tell a baseline from a variant that ends with it, too.
        ends = [end for name, (_, end) in self._called.items() if name != self.baseline]
        words = {
            name: end if name == self.baseline and end and end not in ends else words
            for name, (words, end) in self._called.items()
        }
        alike = Counter(words.values())
        # A baseline that has no rows is called by its name.
        return {self.baseline: self.baseline} | {
            name: text if alike[text] == 1 else f"{text} ({name})" for name, text in words.items()
        }

    @property
    def candidates(self) -> list[str]:
        """The compared variants that the question asks for: those that end with the activation
        that it names, or all where it names none.
        """
        ends = {name: end for name, (_, end) in self._called.items()}
        wanted = ends.get(self.compared_variants[0], "") if self.compared_variants else ""
        if not wanted or wanted == ends.get(self.baseline):
            return self.compared_variants
        return [name for name in self.compared_variants if ends.get(name) == wanted]

    @property
    def compared_variants(self) -> list[str]:
        """All variants but the baseline; the one that a section declares its subject, by its name
        or its treatment, comes first.
        """
        subjects = [
            name
            for section in self.sections.values()
            for subject in section.subjects
            for name in self.others
            if subject in (name, self._treatments.get(name))
        ]
        return list(dict.fromkeys([*subjects[:1], *self.others]))

    @cached_property
    def _treatments(self) -> dict[str, str]:
        """Variant -> the treatment that it is, whatever it is named."""
        if "variant_use" not in self.frame:
            return {}
        named = self.frame.drop_duplicates("variant")
        return dict(zip(named["variant"].map(str), named["variant_use"].map(str), strict=True))

    @classmethod
    def of(cls, folder: Path) -> Run:
        """The run that lies in a folder, against its own baseline.

        Raises:
            DamagedResults: the rows or the record cannot be read.
        """
        record = read_record(folder)
        # The rows as read are not kept: a million take 200 MB.
        frame = in_order(read_results(folder), record)
        return cls(frame, record, baseline_of(frame, record), folder=folder)

    def once(self, make: Callable[[Run], Kind]) -> Kind:
        """Apply a function to this run, once, and keep its value."""
        if make not in self._made:
            self._made[make] = make(self)
        kind: Kind = self._made[make]
        return kind

    @cached_property
    def measured(self) -> Measured:
        """The rows of whole networks, by workload, variant, step, metric and setting."""
        return Measured(self.frame, self.record.after)

    def sample_scores(
        self, workload: str, variant: str, seed: int, place: tuple[str, str, str]
    ) -> KeptScores | None:
        """The scores of the single test samples of one network in the metric at a place (step,
        metric, setting); None where the run has kept none.

        Raises:
            DamagedResults: the file that has them cannot be read.
        """
        step, metric, setting = place
        if self.folder is None:
            return None
        file = self.folder / "artefacts" / workload / variant / str(seed) / step
        if file not in self._made:
            try:
                self._made[file] = read_scores(file)
            except OwnError as error:
                raise DamagedResults(f"{error}; run the recipe again") from error
        scores: Mapping[tuple[str, str], KeptScores] = self._made[file]
        return scores.get((metric, setting))

    @property
    def others(self) -> list[str]:
        """The names of all measured variants but the baseline, in the order of the rows."""
        return [variant for variant in self.measured.variants if variant != self.baseline]

    @cached_property
    def sections(self) -> dict[str, Section]:
        """All sections, in the order in which their stages first come in the recipe; those of no
        stage go last.
        """
        stages, every = [TRAIN, *map(str, self.frame["stage"].unique())], sections()
        first = {
            name: min(
                (stages.index(stage) for stage in section.stages if stage in stages),
                default=len(stages),
            )
            for name, section in every.items()
        }
        return {name: every[name] for name in sorted(every, key=lambda name: (first[name], name))}

    @cached_property
    def doubts(self) -> dict[str, list[str]]:
        """Workload -> why nothing is concluded from its baseline, as the record says; without
        those of no doubt.
        """
        doubts: dict[str, list[str]] = {}
        for workload, entry in self.record.table("data").items():
            notes = entry.get("notes") if isinstance(entry, Mapping) else None
            for note in notes if isinstance(notes, list) else ():
                if isinstance(note, list) and len(note) == 2 and note[0] == _DOUBT:
                    doubts.setdefault(workload, []).append(str(note[1]))
        return doubts

    @property
    def inconclusive(self) -> bool:
        """Whether nothing is concluded from any workload."""
        return bool(self.doubts) and self.doubts.keys() >= set(self.measured.workloads)

    @cached_property
    def matrices(self) -> list[Matrix]:
        """The decision matrix of each variant but the baseline, the one that is shown first in
        front.
        """
        return decision_matrices(self)

    @cached_property
    def screen(self) -> Screen:
        """The one p value and verdict of each number that the decision matrix has, for every
        part of the page.
        """
        return {
            (row.endpoint.question, workload, matrix.variant): cell
            for matrix in self.matrices
            for row in matrix.rows
            for workload, cell in row.cells.items()
        }

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The sections' parts of the report; those that have nothing to say are left out."""
        tones = tones_of(self.screen)
        parts = {name: self._part(section) for name, section in self.sections.items()}
        parts = {
            name: part.with_tones(tones).with_findings(self.baseline)
            for name, part in parts.items()
        }
        if self.inconclusive:
            parts = {name: part.without_conclusions() for name, part in parts.items()}
        return {name: part for name, part in parts.items() if not part.empty}

    def _part(self, section: Section) -> Part:
        """Make a section's part of this run, with the tables that it declares."""
        part = section.part(self)
        tables = [
            grid
            for listing in section.tables
            for grid in listed_grids(self, listing, section.stages[0])
        ]
        return replace(part, details=[*part.details, *tables])

    @cached_property
    def terms(self) -> dict[str, str]:
        """The meanings of the words of the sections that are shown, by name."""
        asked = {row.section for matrix in self.matrices for row in matrix.rows} | self.parts.keys()
        meanings = {
            word: text for name in asked for word, text in self.sections[name].terms.items()
        }
        return dict(sorted(meanings.items(), key=lambda item: item[0].casefold()))

    @property
    def unanswered(self) -> str:
        """Which questions of the installed sections this run does not ask; empty where it asks
        all.
        """
        asked = {row.endpoint.question for matrix in self.matrices for row in matrix.rows}
        lacking = [
            endpoint.words
            for section in self.sections.values()
            for endpoint in section.endpoints
            if not endpoint.instead and endpoint.question not in asked
        ]
        return f"Not answered by this run: {', '.join(lacking)}." if lacking else ""

    @cached_property
    def compared(self) -> pd.DataFrame:
        """The tidy comparison; what is a number of the decision matrix too has its verdict."""
        drawn = [metric for section in self.sections.values() for metric in section.drawn]
        compared = as_decided(comparison(self.frame, self.baseline, drawn), self.screen)
        place = ["workload", "step", "metric", "setting"]
        clocks = clock_doubts(self.frame[self.frame["timing"].astype(bool)], place)
        doubtful = compared["workload"].isin(list(self.doubts)) | compared[place].agg(
            tuple, axis=1
        ).isin(list(clocks))
        return compared.assign(
            better=compared["better"].mask(doubtful, ""), resolved=compared["resolved"] & ~doubtful
        )

    @cached_property
    def whole(self) -> pd.DataFrame:
        """The comparison without what sections keep to themselves, such as single layers, which
        outnumber all else.
        """
        return _without(self.compared, [section.kept for section in self.sections.values()])

    @cached_property
    def lines(self) -> list[TextLine]:
        """The comparison as text, a line per metric."""
        listed = _without(self.whole, [section.unlisted for section in self.sections.values()])
        return text_lines(listed, spelled_words())

    @cached_property
    def workloads(self) -> list[str]:
        """The workloads that have a line of the comparison, in the order of the lines."""
        return list(dict.fromkeys(line.workload for line in self.lines))

    @cached_property
    def variants(self) -> list[str]:
        """The variants that are compared, the baseline first."""
        return [str(name) for name in self.compared["variant"].unique()]

    @cached_property
    def glances(self) -> list[TextLine]:
        """The lines that are shown at a glance, the sections' headlines, in the order of
        `lines`.
        """
        return headline_lines(self.lines)

    def glance(self, workload: str) -> list[TextLine]:
        """The lines of one workload that are shown at a glance."""
        return [line for line in self.glances if line.workload == workload]

    @cached_property
    def failures(self) -> pd.DataFrame:
        """The measurements without a value and why, seeds together, a row each; metrics that are
        text for a table do not count.
        """
        metrics_of_text = [metric for section in self.sections.values() for metric in section.told]
        return failures(self.frame[~self.frame["metric"].isin(metrics_of_text)])

    @property
    def seeds(self) -> list[int]:
        """The seeds of which there are rows, ascending."""
        return sorted(int(seed) for seed in self.frame["seed"].unique())

    @property
    def seeds_text(self) -> str:
        """The number of seeds and what they are, as "3 seeds (0, 1, 2)"."""
        return (
            f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}"
            f" ({', '.join(map(str, self.seeds))})"
        )

    @cached_property
    def cuts(self) -> list[str]:
        """The workloads of which each seed has parts of its own, cut at random from the same
        data.
        """
        cuts = self.frame.drop_duplicates(["workload", "seed"])[["workload", "workload_options"]]
        splits = cuts["workload_options"].map(lambda options: options.get("split"))
        return [
            str(name)
            for name, cuts_of_workload in splits.groupby(cuts["workload"], sort=False)
            if cuts_of_workload.nunique() > 1
        ]

    @property
    def replicates(self) -> str:
        """Say what the intervals speak of: of other trainings alone, or of other splits of the same
        data too.
        """
        by_seed = self.cuts
        if len(self.seeds) == 1:
            return "There is one network of each variant: the answer is paired by test sample."
        if not by_seed:
            return "Seeds are the only replicates; the test samples are the same for all of them."
        alone = [name for name in self.measured.workloads if name not in by_seed]
        sentence = (
            "Each seed is another training on another split of the same data: the intervals speak"
            " of both. The splits overlap."
        )
        return (
            f"{sentence} On {', '.join(alone)} all seeds have the same test samples."
            if alone
            else sentence
        )

    @property
    def tested(self) -> int:
        """How many differences have an interval of some width."""
        clock = self.whole["timing"].astype(bool) & (self.whole["unit"] != "ratio")
        return int((self.whole["diff_low"].notna() & ~self.whole["constant"] & ~clock).sum())

    @property
    def unfinished(self) -> str:
        """Why the report is of a part of a run; empty where it is whole."""
        absent = int((self.compared["status"] == ABSENT).sum()) + int(
            self.compared["lack"].str.contains(ABSENT).sum()
        )
        if self.record.entries and self.record.text("finished") == NOT_RECORDED:
            return (
                "This run has not finished: the tables show what there is so far, and what is"
                " missing as absent."
            )
        return (
            "Some jobs of this run have no rows: their cells are marked absent." if absent else ""
        )

    @property
    def failed(self) -> bool:
        """Whether any job failed for another reason than that its stage cannot measure the
        network.
        """
        expected = (Status.OK.value, Status.UNSUPPORTED.value, Status.UNAVAILABLE.value)
        return bool((~self.frame["status"].isin(expected)).any())
