"""What all searches of a box have in common: they take turns by the clock, and show their open parts to the attack."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch

from evalsuite.verification.attack import Attack
from evalsuite.verification.specification import Box, Case
from evalsuite.verification.witness import Witness


class Turns(ABC):
    """Proves that no point of a box satisfies any of its cases, part by part; the attack is told where they lie.

    Args:
        box: what is searched.
        cases: of that box, with their places in the attack's specification.
        attack: the falsifier.
        check: called often; what it raises ends the search.
    """

    sizes: ClassVar[tuple[int, int, int]]
    """The least number of parts that are taken at a time, that of the first time, and the most."""
    seconds: ClassVar[float]
    """What these are to take."""

    def __init__(self, box: Box, cases: list[tuple[int, Case]], attack: Attack, check: Callable[[], None]) -> None:
        self._attack, self._check = attack, check
        self._places = torch.tensor([place for place, _ in cases])
        self._lower, self._upper = box.outer()
        self._size = self.sizes[1]
        self.boxes = 0
        self.exhausted = False

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether no part waits; `open_share` of what waits may be less than the least number above 0."""

    @property
    @abstractmethod
    def open_share(self) -> float:
        """Of what there was to prove, the share that is not proven yet."""

    @abstractmethod
    def advance(self, size: int) -> tuple[int, Witness | None]:
        """Take so many parts, or fewer: how many there were, and a witness where one is found."""

    @property
    def proven(self) -> bool:
        """Whether each part was proven empty."""
        return self.done and not self.exhausted

    def run(self, until: float = float("inf")) -> Witness | None:
        """Go on until each part is proven empty, a witness is found, or the clock of `time.perf_counter` says so.

        `exhausted` tells afterwards that some part could not be split any more, and still is not proven.
        """
        least, _, most = self.sizes
        while not self.done and time.perf_counter() < until:
            self._check()
            started = time.perf_counter()
            count, found = self.advance(self._size)
            if found is not None:
                return found
            self.boxes += count
            rate = count / max(time.perf_counter() - started, 1e-6)
            self._size = max(least, min(most, 2 * self._size, int(rate * self.seconds)))
        return None

    def tried(self, points: torch.Tensor, cases: torch.Tensor) -> Witness | None:
        """See `Attack`; of cases by their place in this search."""
        return self._attack.tried(points, self._places[cases])
