"""Whether integer networks give the class of the float networks that they came from, for every real input of a box."""

from __future__ import annotations

from collections.abc import Sequence

from evalsuite import Grid
from pipelines.smt.report.fractions import compared_grid
from pipelines.smt.report.tables import CLASS_OPEN, OTHER, SAME, ExactTable
from pipelines.smt.report.text import resolved_text

NOTE = (
    "Shares of the boxes around test samples; mean ± half the 95 % t interval over seeds, Δ paired with {baseline} by "
    "seed with its own interval. Same class: the float network and the integer network, which first rounds the input, "
    "both provably give the class of the box's middle for every real input of the box. Another class: an input was "
    "found to which the two give different classes. Undecided: neither, as where the float network is not proven to "
    "keep its class in the box, for then both would have to change it at the same inputs. The last two are shown where "
    "they are not 0; a difference is marked only where it is resolved whatever the answer of the undecided ones would "
    "be. None of this is about the right class."
)


def agreement_of(table: ExactTable, agreements: Sequence[ExactTable]) -> ExactTable | None:
    """What the step of a table of integer networks says of their classes; None where it was not asked."""
    return next((each for each in agreements if table.stepped and _place(each) == _place(table)), None)


def _place(table: ExactTable) -> tuple[str, str]:
    return table.workload, table.step


def agreement_sentence(table: ExactTable | None) -> str:
    """How many boxes of each variant have one class, what the rest is, and whether variants differ in it."""
    if table is None:
        return ""
    parts = []
    for name in table.variants:
        count = table.counted(name)
        notes = [f"{count.violated} with another class"] if count.violated else []
        notes += [f"{count.open} undecided"] if count.open else []
        if count.total:
            parts.append(f"{name} {count.holds} of {count.total}" + (f" ({', '.join(notes)})" if notes else ""))
    if not parts:
        return ""
    told = resolved_text(table, SAME)
    return (
        f"Same class as the float network for every real input of the box: {', '.join(parts)}"
        + (f"; of {told}" if told else "")
        + "."
    )


def agreement_grid(table: ExactTable) -> Grid | None:
    """The shares at each radius; None where there are none."""
    kinds = ((SAME, "same class"), (OTHER, "another class"), (CLASS_OPEN, "undecided"))
    places: list[tuple[str, float | None, str]] = [(metric, at, name) for at in table.radii for metric, name in kinds]
    told = "same class as the float network"
    return compared_grid(table, f"{table.workload}-{table.step}-same-class", told, NOTE, places, (OTHER, CLASS_OPEN))
