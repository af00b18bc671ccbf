"""From a property's comparisons to its cases: a box and constraints for each disjunct."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from evalsuite.verification.specification import Box, Case, Constraint
from evalsuite.verification.vnnlib_syntax import VnnLibError

LARGEST = Fraction(10) ** 100
"""No number of a property is greater."""
Check = Callable[[], None]
Variable = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Atomic:
    """terms <= bound (or < where strict), from this line."""

    terms: dict[Variable, Fraction]
    bound: Fraction
    strict: bool
    line: int


Clause = tuple[Atomic, ...]


_Side = dict[int, tuple[Fraction, int]]  # of each input its bound, and the line of that


class Cases:
    """Makes the cases of one file. Equal boxes are one object, and so are the constraints of one comparison.

    Args:
        where: the file in errors.
        inputs: the number of X.
        line: of the errors of what is missing.
        check: called for each case.
    """

    def __init__(self, where: str, inputs: int, line: int, check: Check) -> None:
        self._where, self._inputs, self._line, self._check = where, inputs, line, check
        self._constraints: dict[int, Constraint | None] = {}
        self._boxes: dict[Box, Box] = {}

    def of(self, common: list[Atomic], clauses: list[Clause]) -> tuple[Case, ...]:
        """The cases: in each all of `common` holds, and one of the clauses.

        Raises VnnLibError for an input without bounds, a constraint that is no bound, or if every box is reversed.
        """
        shared, bounds = self._parted(tuple(common))
        lower, upper = self._narrowed({}, {}, bounds)
        whole: Box | VnnLibError | None = None
        faults, cases = [], []
        for clause in clauses:
            self._check()
            constraints, bounds = self._parted(clause)
            if bounds:
                box = self._box(*self._narrowed(lower, upper, bounds))
            else:
                box = whole = self._box(lower, upper) if whole is None else whole
            if isinstance(box, Box):
                cases.append(Case(box, shared + constraints))
            else:
                faults.append(box)
        if not cases:
            raise faults[0]
        return tuple(cases)

    def _error(self, line: int, message: str) -> VnnLibError:
        return VnnLibError(f"{self._where}:{line}: {message}")

    def _parted(self, clause: Clause) -> tuple[tuple[Constraint, ...], list[Atomic]]:
        """The constraints on outputs, and what bounds an input."""
        constraints, bounds = [], []
        for atomic in clause:
            if id(atomic) not in self._constraints:
                self._constraints[id(atomic)] = self._constraint(atomic)
            found = self._constraints[id(atomic)]
            if found is None:
                bounds.append(atomic)
            else:
                constraints.append(found)
        return tuple(constraints), bounds

    def _constraint(self, atomic: Atomic) -> Constraint | None:
        """None for what bounds an input."""
        kinds = {kind for kind, _ in atomic.terms}
        if kinds == {"Y"}:
            terms = tuple((index, each) for (_, index), each in sorted(atomic.terms.items()))
            return Constraint(terms, atomic.bound, atomic.strict)
        if kinds == {"X", "Y"} or len(atomic.terms) > 1:
            raise self._error(atomic.line, "a constraint on an input must bound this one input by a number")
        return None

    def _narrowed(self, lower: _Side, upper: _Side, bounds: list[Atomic]) -> tuple[_Side, _Side]:
        lower, upper = lower.copy(), upper.copy()
        for atomic in bounds:
            ((_, index), factor), *_ = atomic.terms.items()
            if atomic.strict:
                raise self._error(atomic.line, f"a strict bound on X_{index}: boxes are closed; use <= or >=")
            bound = atomic.bound / factor, atomic.line
            if abs(bound[0]) > LARGEST:
                raise self._error(atomic.line, f"X_{index} is bounded by a number beyond 1e+-100")
            side, tighter = (upper, min) if factor > 0 else (lower, max)
            side[index] = tighter(side.get(index, bound), bound, key=lambda each: each[0])
        return lower, upper

    def _box(self, lower: _Side, upper: _Side) -> Box | VnnLibError:
        """The box, or how it is reversed."""
        for index in range(self._inputs):
            for side, name in ((lower, "lower"), (upper, "upper")):
                if index not in side:
                    raise self._error(self._line, f"X_{index} has no {name} bound")
            (low, one), (high, other) = lower[index], upper[index]
            if low > high:
                ends = f"{float(low):g} <= X_{index} <= {float(high):g}"
                return self._error(max(one, other), f"the box is reversed: {ends}")
        places = range(self._inputs)
        box = Box(tuple(lower[i][0] for i in places), tuple(upper[i][0] for i in places))
        return self._boxes.setdefault(box, box)
