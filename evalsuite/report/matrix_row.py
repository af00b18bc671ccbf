"""A row of a decision matrix: a question, and its cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evalsuite.contract import Direction
from evalsuite.report.cells import MatrixCell
from evalsuite.report.numerals import Scale, scale_of
from evalsuite.report.section import Endpoint


@dataclass(frozen=True)
class MatrixRow:
    """A question, with the name of the section that asks it. `cells` has a cell for each
    workload.
    """

    section: str
    endpoint: Endpoint
    cells: Mapping[str, MatrixCell]
    pooled: MatrixCell

    @property
    def scale(self) -> Scale:
        """One for all differences of the row."""
        known = [cell.estimate for cell in (*self.cells.values(), self.pooled) if cell.estimate]
        halves = [estimate.half_width for estimate in known if estimate.half_width]
        return scale_of(
            self.endpoint.unit,
            [self.endpoint.margin],
            [*halves, *(estimate.mean for estimate in known)],
        )

    @property
    def measured(self) -> str:
        """Name the numbers, as "mean over ε, alpha-crown"; of several workloads each way to measure
        it once.
        """
        labels = dict.fromkeys(cell.label for cell in self.cells.values() if cell.label)
        counts = [f"{count} test samples" for count in self.sampled]
        return "; ".join([*labels, *counts])

    @property
    def sampled(self) -> list[str]:
        """List of how many test samples the numbers are, as "100 of 10,000"; empty where of all."""
        return list(dict.fromkeys(cell.sampled for cell in self.cells.values() if cell.sampled))

    @property
    def words(self) -> str:
        """The question, with the number of test samples where that is the same for all workloads:
        "accuracy under attack (n = 100 of 10,000)".
        """
        same = len(self.sampled) == 1 and all(cell.sampled for cell in self.cells.values())
        return f"{self.endpoint.words} (n = {self.sampled[0]})" if same else self.endpoint.words

    @property
    def margin(self) -> str:
        """The margin of the endpoint with its unit, as "1 pp"."""
        scale = scale_of(self.endpoint.unit, [self.endpoint.margin], [self.endpoint.margin])
        return f"{scale.number(self.endpoint.margin)} {scale.difference_unit}".strip()

    @property
    def way(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.endpoint.direction is Direction.HIGHER else -1
