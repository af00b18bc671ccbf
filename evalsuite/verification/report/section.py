"""The report's section on verdicts of single samples: what each method says, and whether two contradict each other."""

from __future__ import annotations

from evalsuite.report.grids import Grid
from evalsuite.report.run import Run
from evalsuite.report.section import Finding, Part, Section
from evalsuite.verification.report.verdicts import contradictions, verdict_table

_WRONG = "at least one method is wrong about each of these. Do not trust its other verdicts."
_UNCHECKED = "No two methods could contradict each other here, so nothing was checked."
_NONE = (
    "verdicts of two methods on the same network, sample and ε, where one decided and the other could have said the "
    "opposite."
)


def _part(run: Run) -> Part:
    """Of every method of every step; empty where there are no verdicts of single samples."""
    table = verdict_table(run.frame)
    if table.empty:
        return Part()
    found = contradictions(run.frame, run.record.after)
    count = len(found.rows)
    text = (
        f"{count} contradiction{'s' * (count != 1)} in {found.comparisons:,} comparisons: {_WRONG if count else _NONE}"
    )
    text = text if found.comparisons else _UNCHECKED
    clashes = Grid.of("contradictions", "Contradictions: which step and method says what", found.rows)
    counts = Grid.of("verdicts", "Counts of verdicts over all seeds and samples", table)
    finding = Finding("all methods", text, ())
    if count:
        return Part([finding], [clashes], [counts], alarm=text)
    return Part([finding], [], [clashes, counts])  # Their file, which may be there from other rows, says so too.


VERDICTS = Section(
    title="Verdicts",
    question="What does each method say of single samples, and does any contradict another?",
    stages=(),
    part=_part,
)
