"""Compute what README and the documents answer, from the newest rows under the protocol; and what
is superseded by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from evalsuite.report.answer import Answer, Kind, Statement, joined
from evalsuite.report.cells import Reading
from evalsuite.report.matrix import Matrix
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.numerals import grouped, listed
from evalsuite.report.run import Run
from evalsuite.report.sentences import summary_of

ROOT = Path(__file__).parent.parent.parent
REPORTS = ROOT / "reports"
VARIANT, BASELINE = "annealed", "gelu"


@dataclass(frozen=True)
class Feed:
    """A committed study, and which of its questions it answers.

    Args:
        study: the folder in `reports/`.
        sections: whose questions are taken; all, where there are none.
        workloads: that are taken; all, where there are none.
        adding: to the question, where the study asks it of networks that were trained in another
            way.
    """

    study: str
    sections: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    adding: str = ""


SGD = " with SGD"
FEEDS = (
    # Where two ask the same of a workload, the one that is named last answers.
    Feed("cifar10"),
    Feed("smt", sections=("exact",)),
    Feed("ablations", sections=("quality",)),
    Feed("downstream"),
    Feed("ablations-sgd", sections=("quality",), adding=SGD),
    # Its networks in float are those of `language`, which asks of them first.
    Feed("language-downstream"),
    Feed("language", sections=("quality",)),
    # With AdamW its networks are five of the ten of `downstream`.
    Feed("ablations-fashion", sections=("quality",), workloads=("fashion-mlp-sgd",), adding=SGD),
)
# Study -> what took its place. Their rows were made before the protocol: at one rate for all arms,
# on one split.
SUPERSEDED = {
    "reluize": ("ablations", "downstream", "language", "cifar10"),
    "reluize-text": ("language",),
    "reluize-gated": ("gated",),
    "quantize": ("downstream", "language-downstream", "cifar10"),
    "quantize-vit": ("language-downstream",),
    "prune": ("downstream", "language-downstream", "cifar10"),
    "prune-treatments": ("downstream",),
    "bounds": ("downstream", "cifar10"),
    "bounds-norms": ("downstream",),
}


@cache
def answer() -> Answer:
    """Join what the newest studies under the protocol say of annealed networks in the place of
    GELU's.
    """
    return joined([(feed.study, _matrix(feed)) for feed in FEEDS])


def _matrix(feed: Feed) -> Matrix:
    """The contrast with GELU, whatever the study's own baseline is; of the questions that are
    taken.
    """
    folder = REPORTS / feed.study
    stored = Run.of(folder)
    run = (
        stored
        if stored.baseline == BASELINE
        else Run(stored.frame, stored.record, BASELINE, folder=folder)
    )
    (matrix,) = [matrix for matrix in run.matrices if matrix.variant == VARIANT]
    return replace(matrix, rows=tuple(_asked(matrix.rows, feed)))


def _asked(rows: Iterable[MatrixRow], feed: Feed) -> Iterable[MatrixRow]:
    for row in rows:
        if feed.sections and row.section not in feed.sections:
            continue
        cells = {
            name: cell
            for name, cell in row.cells.items()
            if not feed.workloads or name in feed.workloads
        }
        endpoint = replace(row.endpoint, question=row.endpoint.question + feed.adding)
        yield replace(row, endpoint=endpoint, cells=cells)


_UNKNOWN = (
    "- **Not known**: whether any of this holds for large networks ([a pretrained OCR"
    " model](docs/studies.md#pretrained-networks) read nothing after the direct swap), for language"
    " models larger than [one of 1.3 million"
    " parameters](docs/studies.md#the-language-model-after-the-swap), and at [other learning"
    " rates](docs/studies.md#the-same-arms-at-the-same-learning-rates), which move some differences"
    " more than the activation does."
)


def answers(form: str) -> str:
    """The answer in one sentence, and its four parts, with a line for each question that is bought
    or costs; or, in the form "table", every number.
    """
    if form == "table":
        return table(answer())
    lines = [f"**In short**: {summary_of(answer())}", ""]
    for kind in Kind:
        questions = answer().part(kind)
        if kind in (Kind.BUYS, Kind.COSTS):
            lines.append(f"- **{kind.value}**:")
            lines += [f"    - {_words(own)}: {_numbers(own)}" for own in questions.values()]
        else:
            lines.append(f"- **{kind.value}**: {_places(questions)}.")
    return "\n".join([*lines, _UNKNOWN])


def _places(questions: Mapping[str, Sequence[Statement]]) -> str:
    """Name the questions, each with its workloads; the reasons stand in the table."""
    return "; ".join(
        f"{_words(statements)} ({listed(map(_place, statements))})"
        for statements in questions.values()
    )


def _words(statements: Sequence[Statement]) -> str:
    """The question of some statements, as a reader says it."""
    return statements[0].row.endpoint.words


def _place(statement: Statement) -> str:
    """Where, and the number of what too few seeds show: it is more than nothing."""
    if not statement.cell.tested_close:
        return statement.where
    return f"{statement.where} {statement.number} in {statement.cell.estimate.n} seeds"


def conclusions(study: str) -> str:
    """List what the answer takes from one study, a line for each part of it that is not empty."""
    lines = []
    for kind in Kind:
        every = answer().part(kind).items()
        taken = {
            question: [one for one in statements if one.study == study]
            for question, statements in every
        }
        taken = {question: statements for question, statements in taken.items() if statements}
        lines += [f"- **{kind.value}**: {_part(taken, kind)}."] if taken else []
    return "\n".join(lines)


def superseded(study: str) -> str:
    """Which studies took an older one's place."""
    newer = listed(f"[`{name}`](../reports/{name}/report.md)" for name in SUPERSEDED[study])
    return (
        f"*Superseded* by {newer}. These rows are older than the protocol: one learning rate for"
        " all arms, on one split of the data. No answer in README is made from them; what is"
        " called resolved here is so in this study alone."
    )


def _part(statements: Mapping[str, Sequence[Statement]], kind: Kind) -> str:
    tell = {Kind.UNKNOWN: _open, Kind.SAME: _named}.get(kind, _numbers)
    return "; ".join(f"{_words(own)} ({tell(own)})" for own in statements.values()) or "nothing"


def _numbers(statements: Sequence[Statement]) -> str:
    return "; ".join(
        ", ".join([f"{statement.where} {statement.number}", *statement.notes])
        for statement in statements
    )


def _named(statements: Sequence[Statement]) -> str:
    return listed(", ".join([statement.where, *statement.notes]) for statement in statements)


def _open(statements: Sequence[Statement]) -> str:
    """The places, those of one reason together."""
    by_reason = grouped(
        (statement.notes[0] if statement.notes else "", _place(statement))
        for statement in statements
    )
    return "; ".join(
        listed(places) + (f": {reason}" if reason else "") for reason, places in by_reason.items()
    )


def table(whole: Answer) -> str:
    """A line for each question: the mean over its workloads, and each workload with its study."""
    lines = ["| question | mean over these workloads | each workload |", "| --- | --- | --- |"]
    for row in whole.matrix.rows:
        cells = [_cell(whole, row, name) for name in row.cells]
        mean = (
            f"**{row.pooled.words}** {row.pooled.difference(row.scale)}"
            if row.pooled.estimate
            else ""
        )
        lines.append(
            f"| {row.endpoint.words} (margin {row.margin}) | {mean} | {'; '.join(cells)} |"
        )
    return "\n".join(lines)


def _cell(whole: Answer, row: MatrixRow, workload: str) -> str:
    cell = row.cells[workload]
    study = whole.studies[row.endpoint.question, workload]
    place = f"[{workload}](../reports/{study}/report.md)"
    words = cell.words.split(":")[0].split(" (")[0]
    words += _taken(whole, row, workload)
    bold = cell.reading in (Reading.HELPS, Reading.COSTS, Reading.MIXED)
    return f"{place} {cell.difference(row.scale)} {f'**{words}**' if bold else words}".replace(
        "  ", " "
    )


def _taken(whole: Answer, row: MatrixRow, workload: str) -> str:
    """ " (taken: 0.9 of annealed, 1.2 of gelu)", where the question is of deployed networks."""
    if (row.endpoint.question, workload) not in whole.taken:
        return ""
    own, other = (row.scale.number(loss) for loss in whole.taken[row.endpoint.question, workload])
    return f" (deployment takes {own} from {VARIANT}, {other} from {BASELINE})"
