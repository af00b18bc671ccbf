"""Doubts about the networks of a run: a workload that knows when its baseline is no trained network
says so, and nothing is concluded from it.
"""

from __future__ import annotations

from pathlib import Path

from evalsuite.recipe import Recipe
from evalsuite.results import read_results
from evalsuite.run.record import DOUBT, keep_doubts, read_record


def note_doubts(recipe: Recipe, out: Path) -> None:
    """Ask the workloads that have a method `doubts`, by the rows of a run, and keep what they say
    beside what a look before the run has found.
    """
    asked = [part for part in recipe.workloads if hasattr(part.target, "doubts")]
    if not asked:
        return
    frame = read_results(out)
    for part in asked:
        rows = frame[frame.workload == part.name]
        if rows.empty:
            continue
        try:
            sentences = part.target.doubts(rows, recipe.baseline)
        except (ValueError, OSError):  # its data are gone since: what is known of it stays
            continue
        keep_doubts(out, part.name, dict.fromkeys([*doubts_of(out, part.name), *sentences]))


def doubts_of(out: Path, workload: str) -> list[str]:
    """Why nothing is concluded from a workload's baseline, as the run's record says."""
    record = read_record(out)
    notes = [] if record is None else record.data.get(workload, {}).get("notes", [])
    return [note[1] for note in notes if note[0] == DOUBT]


def doubt_lines(recipe: Recipe, out: Path) -> list[str]:
    """The doubts of all workloads, a line each, and what follows from them."""
    lines = [
        f"{part.name}: {sentence}"
        for part in recipe.workloads
        for sentence in doubts_of(out, part.name)
    ]
    return [*lines, "So nothing is concluded from the differences to it."] if lines else []
