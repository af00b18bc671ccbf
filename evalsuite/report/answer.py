"""The answer: what a variant buys, what it costs, where no difference matters, and what cannot be
told.

It is one object, made of the decision matrix of a run, or of those of several runs that asked the
same. README and the documents are generated from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from evalsuite.report.cells import TONES, MatrixCell, Reading
from evalsuite.report.conclusions import read_means
from evalsuite.report.matrix import Matrix, pooled_cell
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.numerals import grouped
from evalsuite.report.paired_samples import RightAndWrong
from evalsuite.report.statistics import Estimate


class Kind(str, Enum):
    """The four parts of an answer, in the words that readers see."""

    BUYS = "Buys"
    COSTS = "Costs"
    SAME = "No difference that matters"
    UNKNOWN = "Cannot be told"


@dataclass(frozen=True)
class Statement:
    """One number that the answer speaks of: a question on one workload, or the mean over several.

    Args:
        kind: the part of the answer that it stands in.
        row: the question, and the scale of its numbers.
        workload: where, empty for the mean over all workloads of the row.
        cell: the difference, and what it concludes.
        study: the run that it is of, where the answer joins several.
        alone: whether the answer is of this workload alone, which need not be told then.
    """

    kind: Kind
    row: MatrixRow
    workload: str
    cell: MatrixCell
    study: str = ""
    alone: bool = False

    @property
    def where(self) -> str:
        """ "digits-cnn", or "the mean over these 3 workloads"."""
        count = self.cell.estimate.n if self.cell.estimate is not None else len(self.row.cells)
        return self.workload or f"the mean over these {count} workloads"

    @property
    def number(self) -> str:
        """ "+0.3 pp [0.1, 0.5]"; empty without a value."""
        return self.cell.difference(self.row.scale)

    @property
    def notes(self) -> list[str]:
        """Say what limits the statement, or why there is none."""
        if self.cell.reading is Reading.FACT:
            return ["a fact of the network, not tested"] if self.kind is not Kind.SAME else []
        if self.cell.reading is Reading.MIXED:
            return [self.cell.words]
        return self.cell.limits or ([self.cell.reason] if self.cell.reason else [])

    @property
    def record(self) -> dict[str, Any]:
        """The statement as JSON has it, with exact numbers."""
        estimate = self.cell.estimate
        return {
            "kind": self.kind.value,
            "question": self.row.endpoint.question,
            "workload": self.workload,
            "study": self.study,
            "difference": interval_of(estimate),
            "unit": self.row.endpoint.unit,
            "margin": self.row.endpoint.margin,
            "n": 0 if estimate is None else estimate.n,
            "replicates": self.cell.replicates,
            "over_samples": interval_of(self.cell.over_samples),
            "counts": None if estimate is None else counts_of(estimate),
            "p_adjusted": self.cell.p_adjusted,
            "reading": self.cell.reading.value,
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Answer:
    """The effects of one variant in the place of the baseline.

    Args:
        matrix: the questions, with what each workload and all together conclude.
        studies: question and workload -> the run that the number is of; empty for the answer of one
            run.
        taken: question and workload -> what deployment takes from the quality of the variant and of
            the baseline, in the unit of the question; of those that ask of deployed networks.
    """

    matrix: Matrix
    studies: Mapping[tuple[str, str], str] = field(default_factory=dict)
    taken: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, matrix: Matrix) -> Answer:
        """The answer of one run."""
        return cls(matrix, taken=taken_by_deployment(matrix))

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """All of them, by question; what a run does not ask of a workload is left out."""
        return tuple(self._statements())

    def _statements(self) -> Iterator[Statement]:
        alone = len(self.matrix.workloads) == 1
        for row in self.matrix.rows:
            for workload, cell in (*row.cells.items(), ("", row.pooled)):
                kind = kind_of(cell, row)
                if kind is not None:
                    study = self.studies.get((row.endpoint.question, workload), "")
                    yield Statement(kind, row, workload, cell, study, alone)

    def part(self, kind: Kind) -> dict[str, list[Statement]]:
        """Question -> the statements of one part of the answer."""
        statements = (statement for statement in self.statements if statement.kind is kind)
        return grouped((statement.row.endpoint.question, statement) for statement in statements)

    @property
    def record(self) -> dict[str, Any]:
        """The answer as JSON has it."""
        return {
            "variant": self.matrix.variant,
            "baseline": self.matrix.baseline,
            "statements": [statement.record for statement in self.statements],
        }


def kind_of(cell: MatrixCell, row: MatrixRow) -> Kind | None:
    """Where a cell stands in the answer; None for what was not asked, and for a mean that says
    nothing of its own.
    """
    estimate = cell.estimate
    if estimate is None:
        return None if cell is row.pooled or cell.reason == "not asked" else Kind.UNKNOWN
    if cell.pooled and cell.reading in (Reading.MIXED, Reading.FACT, Reading.SATURATED):
        return None  # The workloads say it, one by one.
    if cell.reading is Reading.NO_WORSE or (cell.reading is Reading.FACT and not estimate.mean):
        return Kind.SAME
    if cell.reading in (*TONES, Reading.FACT):
        gain = row.way * estimate.mean > 0
        turned = cell.reading is Reading.MIXED and not cell.resolved
        return Kind.BUYS if gain and not turned else Kind.COSTS
    return Kind.UNKNOWN


def interval_of(estimate: Estimate | None) -> list[float | None] | None:
    """A mean with the ends of its interval, as JSON has it."""
    return None if estimate is None else [estimate.mean, estimate.low, estimate.high]


def counts_of(estimate: Estimate) -> dict[str, int] | None:
    """How many test samples which network has right; None of other scores than right and wrong."""
    paired = estimate.samples
    return asdict(paired) if isinstance(paired, RightAndWrong) else None


def taken_by_deployment(matrix: Matrix) -> dict[tuple[str, str], tuple[float, float]]:
    """Question and workload -> the loss of quality between the float networks and the deployed
    ones, of both arms.
    """
    before = {row.endpoint.question: row for row in matrix.rows}
    taken = {}
    for row in matrix.rows:
        first = before.get(row.endpoint.of)
        for name, cell in row.cells.items():
            levels = first.cells[name].levels if first is not None and name in first.cells else None
            if levels is not None and cell.levels is not None:
                variant_cost, other = (
                    row.way * (a - b) for a, b in zip(levels, cell.levels, strict=True)
                )
                taken[row.endpoint.question, name] = (variant_cost, other)
    return taken


def joined(matrices: Sequence[tuple[str, Matrix]]) -> Answer:
    """The answer of several runs that compare the same two variants: a later run's number takes an
    earlier one's place.

    A number of one workload keeps what its own run concludes, with that run's adjustment. Means
    over workloads are made anew, of all runs, and Holm's adjustment for them is over these means.

    Args:
        matrices: the name of each run, and its matrix; the newest last.

    Raises:
        ValueError: there are none, or they compare others.
    """
    compared = {(matrix.variant, matrix.baseline) for _, matrix in matrices}
    if len(compared) != 1:
        raise ValueError(
            f"matrices of one variant and one baseline can be joined, got {sorted(compared)}"
        )
    # 1. Of each question and workload the newest run that asked it.
    studies: dict[tuple[str, str], str] = {}
    taken: dict[tuple[str, str], tuple[float, float]] = {}
    rows: dict[str, MatrixRow] = {}
    for study, matrix in matrices:
        taken |= taken_by_deployment(matrix)
        for row in matrix.rows:
            question = row.endpoint.question
            cells = {name: cell for name, cell in row.cells.items() if cell.reason != "not asked"}
            studies |= dict.fromkeys(((question, name) for name in cells), study)
            known = rows[question].cells if question in rows else {}
            rows[question] = replace(row, cells={**known, **cells})
    # 2. Means over workloads anew, since those of single runs were over fewer workloads; Holm's
    # adjustment in `read_means`.
    fresh = [
        replace(row, pooled=pooled_cell(row.endpoint, row.cells))
        for row in rows.values()
        if row.cells
    ]
    ((variant, baseline),) = compared
    workloads = tuple(dict.fromkeys(name for row in fresh for name in row.cells))
    return Answer(Matrix(variant, baseline, workloads, read_means(fresh)), studies, taken)
