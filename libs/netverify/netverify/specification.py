"""State what is asked of a network: is there an input in a box whose outputs satisfy linear
constraints?

The numbers are exact rationals, as the property's file writes them in decimal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite

import numpy as np
import torch

from netverify.properties import Property
from opgraph.errors import OwnError, Unsupported


@dataclass(frozen=True, slots=True)
class Constraint:
    """sum of coefficient * Y_i over `terms` (pairs i, coefficient) <= bound, or < where
    `strict`.
    """

    terms: tuple[tuple[int, Fraction], ...]
    bound: Fraction
    strict: bool = False

    def holds(self, outputs: list[float]) -> bool:
        """Whether finite outputs satisfy it, in exact arithmetic; a NaN or an infinity satisfies
        nothing.
        """
        if not np.isfinite([outputs[index] for index, _ in self.terms]).all():
            return False
        value = sum(
            (factor * Fraction(outputs[index]) for index, factor in self.terms), Fraction(0)
        )
        return value < self.bound if self.strict else value <= self.bound


@dataclass(frozen=True, slots=True)
class Box:
    """The inputs X with lower[i] <= X_i <= upper[i] for every i, the ends exact fractions."""

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]

    def contains(self, point: Sequence[float | Fraction]) -> bool:
        """Whether finite numbers lie inside, in exact arithmetic."""
        if len(point) != len(self.lower) or not all(map(isfinite, point)):
            return False
        ends = zip(self.lower, point, self.upper, strict=True)
        return all(low <= Fraction(number) <= high for low, number, high in ends)

    def outer(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The least float64 box around it, each end (inputs,)."""
        lower = [_rounded(end, np.float64, up=False) for end in self.lower]
        upper = [_rounded(end, np.float64, up=True) for end in self.upper]
        return torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64)

    def inner(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The float32 numbers inside, each end (inputs,); lower > upper where there is none."""
        lower = [_rounded(end, np.float32, up=True) for end in self.lower]
        upper = [_rounded(end, np.float32, up=False) for end in self.upper]
        return torch.tensor(lower, dtype=torch.float32), torch.tensor(upper, dtype=torch.float32)

    def holds_float32(self) -> bool:
        """Whether a float32 point lies inside."""
        lower, upper = self.inner()
        return bool((lower <= upper).all())

    def nearest(self, point: Sequence[Fraction]) -> tuple[Fraction, ...]:
        """The nearest point inside."""
        return tuple(
            min(max(number, low), high)
            for low, number, high in zip(self.lower, point, self.upper, strict=True)
        )

    def widened(self) -> Box:
        """The least box around it whose ends are float32 numbers."""
        lower = (Fraction(_rounded(end, np.float32, up=False)) for end in self.lower)
        return Box(
            tuple(lower),
            tuple(Fraction(_rounded(end, np.float32, up=True)) for end in self.upper),
        )

    def in_float32(self) -> Box:
        """Each end as the nearest float32, which is what a network receives. Raises OwnError: an
        end lies beyond these.
        """
        return Box(tuple(map(_in_float32, self.lower)), tuple(map(_in_float32, self.upper)))


def _in_float32(exact: Fraction) -> Fraction:
    """The nearest float32, of two the even one; by way of float64 it could be the second
    nearest.
    """
    if abs(exact) > Fraction(float(np.finfo(np.float32).max)):
        raise OwnError(
            f"an input's end, {float(exact):g}, is beyond the numbers of float32; read the box as"
            " it is, by the inputs `exact`"
        )
    below, above = (Fraction(_rounded(exact, np.float32, up=up)) for up in (False, True))
    if exact - below != above - exact:
        return below if exact - below < above - exact else above
    is_even = int(np.float32(float(below)).view(np.uint32)) % 2 == 0
    return below if is_even else above


def _rounded(exact: Fraction, kind: type[np.floating], *, up: bool) -> float:
    """The nearest number of `kind` on the asked side of `exact`; `exact` itself where it is one."""
    limit = float(np.finfo(kind).max)
    nearest = kind(min(max(float(exact), -limit), limit))
    short = Fraction(float(nearest)) < exact if up else Fraction(float(nearest)) > exact
    with np.errstate(over="ignore"):  # beyond the greatest number of its kind comes infinity
        return float(np.nextafter(nearest, kind(np.inf if up else -np.inf)) if short else nearest)


@dataclass(frozen=True, slots=True)
class Case:
    """A disjunct: a box, and constraints on the outputs that must hold together; none: any output
    will do.
    """

    box: Box
    constraints: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True)
class Specification:
    """Satisfiable where any case is: a file describes what must *not* happen, so that `sat` is a
    violation.

    Args:
        inputs: the number of X.
        outputs: the number of Y.
        cases: at least one.
    """

    inputs: int
    outputs: int
    cases: tuple[Case, ...]

    def with_boxes(self, change: Callable[[Box], Box]) -> Specification:
        """The specification with other boxes: what `change` makes of each of these."""
        boxes = {id(case.box): case.box for case in self.cases}
        changed = {name: change(box) for name, box in boxes.items()}
        return replace(
            self, cases=tuple(replace(case, box=changed[id(case.box)]) for case in self.cases)
        )

    def by_box(
        self, check: Callable[[], None] = lambda: None
    ) -> list[tuple[Box, list[tuple[int, Case]]]]:
        """The cases of each box, with their places. `check` is called for each case."""
        # By identity, which the reader gives to equal boxes: the hashes of rationals are slow.
        groups: dict[int, tuple[Box, list[tuple[int, Case]]]] = {}
        for place, case in enumerate(self.cases):
            groups.setdefault(id(case.box), (case.box, []))[1].append((place, case))
            check()
        return list(groups.values())

    def satisfied(self, point: Sequence[float | Fraction], outputs: list[float]) -> bool:
        """Whether the inputs and outputs satisfy a case, in exact arithmetic and without any
        tolerance.
        """
        inside: dict[int, bool] = {}
        holds: dict[int, bool] = {}

        def satisfies(case: Case) -> bool:
            # Thousands of cases share few boxes and constraints, whose exact arithmetic is slow.
            if id(case.box) not in inside:
                inside[id(case.box)] = case.box.contains(point)
            if not inside[id(case.box)]:
                return False
            for constraint in case.constraints:
                if id(constraint) not in holds:
                    holds[id(constraint)] = constraint.holds(outputs)
                if not holds[id(constraint)]:
                    return False
            return True

        return any(map(satisfies, self.cases))


def specification_of(property_: Property, outputs: int) -> Specification:
    """Return what must not happen where the property holds: its negation, a case for each output
    that may break it.

    Raises:
        Unsupported: the property is of an L2 ball.
    """
    if property_.center is not None:
        raise Unsupported("boxes are bisected, and this property is of an L2 ball")
    ends = (
        tuple(map(Fraction, end.flatten().tolist())) for end in (property_.lower, property_.upper)
    )
    box, one = Box(*ends), Fraction(1)
    # A margin is broken where another output is at least the label's; a tie breaks it.
    if property_.ends is None:
        others = (output for output in range(outputs) if output != property_.label)
        broken = [
            Constraint(((property_.label, one), (other, -one)), Fraction(0)) for other in others
        ]
    else:
        # An interval is broken by an output strictly outside; an infinite end cannot be.
        low, high = (end.tolist() for end in property_.ends)
        broken = [
            Constraint(((index, one),), Fraction(end), strict=True)
            for index, end in enumerate(low)
            if isfinite(end)
        ]
        broken += [
            Constraint(((index, -one),), -Fraction(end), strict=True)
            for index, end in enumerate(high)
            if isfinite(end)
        ]
    return Specification(
        property_.lower.numel(), outputs, tuple(Case(box, (constraint,)) for constraint in broken)
    )


def in_rows(
    cases: Sequence[Case], outputs: int, check: Callable[[], None]
) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
    """The distinct constraints c.y <= d as rows c (rows, outputs) and d (rows,), nearest float64,
    and each case's rows.

    `check` is called often.
    """
    numbers: dict[Constraint, int] = {}
    # The hashes of rationals are slow, and cases share their constraints.
    known: dict[int, int] = {}
    chosen = []
    # 1. Number the distinct constraints; equal ones of different cases are one row.
    for case in cases:
        for constraint in case.constraints:
            if id(constraint) not in known:
                known[id(constraint)] = numbers.setdefault(constraint, len(numbers))
        chosen.append([known[id(constraint)] for constraint in case.constraints])
        check()
    # 2. Write them in float64, which rounds: callers add what that can lose.
    rows, bounds = torch.zeros(len(numbers), outputs, dtype=torch.float64), []
    for constraint, number in numbers.items():
        check()
        bounds.append(float(constraint.bound))
        for index, factor in constraint.terms:
            rows[number, index] = float(factor)
    return rows, torch.tensor(bounds, dtype=torch.float64), chosen
