"""The workload `own`: what a user brings, with what is looked at before and after it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalsuite.own.brought import Brought

if TYPE_CHECKING:
    import pandas as pd

DOUBT = "doubt"  # what a run's record calls why nothing is concluded from a workload


@dataclass(frozen=True)
class Own(Brought):
    """A model, data and a task of your own: a plain PyTorch model, in which evalsuite itself finds
    the activations.

    Naming my.py runs it. Files are looked for from the present folder, and from a recipe's.
    """

    def check(self) -> tuple[tuple[str, str], ...]:
        """Look at model, data and task before anything is trained: (what, finding) for the report.
        Raises OwnError: see `examine`.
        """
        from evalsuite.own.examining import examine

        lines = examine(self).lines
        if self.start == "trained" or self.is_onnx:
            return lines
        from evalsuite.own.budget import budget_of

        budget = budget_of(self, self.data(), rate=self.learning_rate, epochs=self.epochs)
        return (*lines, (DOUBT, f"not trained: {budget.doubt}")) if budget.doubt else lines

    def doubts(self, rows: pd.DataFrame, baseline: str) -> list[str]:
        """Why nothing is to be concluded from the baseline of a run, by its rows."""
        from evalsuite.own.floors import doubts_of, floors

        # What a user brings trained is what it is, though a linear model may be better.
        known = [floor for floor in floors(self.data()) if floor.least or self.start != "trained"]
        sentences = doubts_of(rows, baseline, tuple(known))
        begin = "" if self.start == "trained" else "not trained: "
        return [f"{begin}{sentence}" for sentence in sentences]
