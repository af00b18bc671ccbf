"""Reading VNN-LIB 1.0 files: boxes on X_i and linear constraints on Y_i, joined by `and` and `or`.

Numbers are kept as the exact rationals that the decimals denote, for a witness is judged without tolerance. Errors name
the file and the line. The `vnnlib` package of the registry does not serve: 1.0.2 reads VNN-LIB 2.0 alone, and 0.0.1
turns decimals into float64.
"""

from __future__ import annotations

import gzip
import itertools
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path

from evalsuite.verification.specification import Box, Case, Constraint, Specification
from evalsuite.verification.vnnlib_syntax import Group, Tree, VnnLibError, Word, groups

_NAME = re.compile(r"([XY])_(0|[1-9][0-9]*)\Z")
_COMPARISONS = ("<=", ">=", "<", ">", "=", "==")
_MOST_CASES = 100_000
_EXPONENT = 100
_LARGEST = Fraction(10) ** _EXPONENT


_Variable = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Form:
    """A linear expression: coefficients of variables, and a constant."""

    terms: dict[_Variable, Fraction]
    constant: Fraction

    def plus(self, other: _Form, factor: Fraction) -> _Form:
        terms = dict(self.terms)
        for name, coefficient in other.terms.items():
            terms[name] = terms.get(name, Fraction(0)) + factor * coefficient
        kept = {name: coefficient for name, coefficient in terms.items() if coefficient}
        return _Form(kept, self.constant + factor * other.constant)


@dataclass(frozen=True, slots=True)
class _Atomic:
    """terms <= bound (or < where strict), from this line."""

    terms: dict[_Variable, Fraction]
    bound: Fraction
    strict: bool
    line: int


_Clause = tuple[_Atomic, ...]


def read_vnnlib(path: Path) -> Specification:
    """The property in a .vnnlib or .vnnlib.gz file.

    Raises:
        VnnLibError: what is no VNN-LIB, not linear, or no box: an input without both bounds, or with reversed ones.
        OSError: the file can't be read.
    """
    raw = path.read_bytes()
    try:
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError) as error:
        raise VnnLibError(f"{path}:1: not a text file: {error}") from None
    return parse_vnnlib(text, str(path))


def parse_vnnlib(text: str, where: str = "vnnlib") -> Specification:
    """The property in `text`; `where` stands for the file in errors. Errors as for `read_vnnlib`."""
    return _Parser(where).specification(text)


class _Parser:
    """Reads one file: what is declared, and the disjunctive normal form of all assertions so far."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._declared: dict[str, set[int]] = {"X": set(), "Y": set()}

    def _error(self, line: int, message: str) -> VnnLibError:
        return VnnLibError(f"{self._where}:{line}: {message}")

    def specification(self, text: str) -> Specification:
        clauses: list[_Clause] = [()]
        last = 1
        for tree in groups(text, self._where):
            last = tree.line
            command, arguments = self._command(tree)
            if command == "declare-const":
                self._declare(tree, arguments)
            elif command == "assert":
                if len(arguments) != 1:
                    raise self._error(tree.line, f"assert takes one formula, got {len(arguments)}")
                clauses = self._joined(clauses, self._formula(arguments[0]), tree.line)
            else:
                raise self._error(tree.line, f"unknown command {command!r}; there are declare-const and assert")
        sizes = [self._size(kind, last) for kind in "XY"]
        return Specification(sizes[0], sizes[1], tuple(self._case(each, sizes[0], last) for each in clauses))

    def _command(self, tree: Tree) -> tuple[str, tuple[Tree, ...]]:
        if isinstance(tree, Word) or not tree.items or not isinstance(tree.items[0], Word):
            raise self._error(tree.line, "expected '(' and a name")
        return tree.items[0].text, tree.items[1:]

    def _declare(self, tree: Group, arguments: tuple[Tree, ...]) -> None:
        words = [each.text if isinstance(each, Word) else "(" for each in arguments]
        match = _NAME.match(words[0]) if words else None
        if len(words) != 2 or match is None or words[1] != "Real":
            raise self._error(
                tree.line, f"expected (declare-const X_i Real) or Y_i, got {' '.join(['declare-const', *words])}"
            )
        known, index = self._declared[match[1]], int(match[2])
        if index in known:
            raise self._error(tree.line, f"{words[0]} is declared twice")
        known.add(index)

    def _size(self, kind: str, line: int) -> int:
        known = self._declared[kind]
        if not known:
            raise self._error(line, f"no {kind}_i is declared")
        missing = set(range(len(known))) - known
        if missing:
            raise self._error(line, f"{kind}_{min(missing)} is not declared, but {kind}_{max(known)} is")
        return len(known)

    def _formula(self, tree: Tree) -> list[_Clause]:
        """The disjunctive normal form."""
        name, arguments = self._command(tree)
        if name in ("and", "or") and not arguments:
            raise self._error(tree.line, f"an empty {name!r}")
        if name == "or":
            return [clause for each in arguments for clause in self._formula(each)]
        if name == "and":
            clauses: list[_Clause] = [()]
            for each in arguments:
                clauses = self._joined(clauses, self._formula(each), tree.line)
            return clauses
        if name in _COMPARISONS:
            return [self._comparison(name, arguments, tree.line)]
        raise self._error(tree.line, f"{name!r} is not read; there are and, or, {', '.join(_COMPARISONS)}")

    def _joined(self, first: list[_Clause], second: list[_Clause], line: int) -> list[_Clause]:
        if len(first) * len(second) > _MOST_CASES:
            raise self._error(line, f"the disjunctive normal form has more than {_MOST_CASES} cases")
        return [one + other for one, other in itertools.product(first, second)]

    def _comparison(self, name: str, arguments: tuple[Tree, ...], line: int) -> _Clause:
        if len(arguments) != 2:
            raise self._error(line, f"{name!r} compares two expressions, got {len(arguments)}")
        left, right = (self._expression(each) for each in arguments)
        difference = left.plus(right, Fraction(-1))
        if not difference.terms:
            raise self._error(line, "a comparison without variables")
        for number in (difference.constant, *difference.terms.values()):
            if number and not 1 / _LARGEST <= abs(number) <= _LARGEST:
                raise self._error(line, "a number beyond 1e+-100")
        negated = {key: -each for key, each in difference.terms.items()}
        below = _Atomic(difference.terms, -difference.constant, name == "<", line)
        above = _Atomic(negated, difference.constant, name == ">", line)
        if name in ("=", "=="):
            return (below, above)
        return (below,) if name in ("<=", "<") else (above,)

    def _expression(self, tree: Tree) -> _Form:
        if isinstance(tree, Word):
            return self._leaf(tree)
        name, arguments = self._command(tree)
        if name not in ("+", "-", "*") or not arguments:
            raise self._error(tree.line, f"{name!r} is no arithmetic that is read; there are +, - and *")
        forms = [self._expression(each) for each in arguments]
        if name == "*":
            return self._product(forms, tree.line)
        if name == "-" and len(forms) == 1:
            return _Form({}, Fraction(0)).plus(forms[0], Fraction(-1))
        total = forms[0]
        for each in forms[1:]:
            total = total.plus(each, Fraction(1 if name == "+" else -1))
        return total

    def _product(self, forms: list[_Form], line: int) -> _Form:
        total = _Form({}, Fraction(1))
        for each in forms:
            if total.terms and each.terms:
                raise self._error(line, "a product of variables is not linear")
            varying, constant = (total, each.constant) if total.terms else (each, total.constant)
            total = _Form({}, Fraction(0)).plus(varying, constant)
        return total

    def _leaf(self, atom: Word) -> _Form:
        match = _NAME.match(atom.text)
        if match:
            name = (match[1], int(match[2]))
            if name[1] not in self._declared[name[0]]:
                raise self._error(atom.line, f"{atom.text} is not declared")
            return _Form({name: Fraction(1)}, Fraction(0))
        try:
            number = Decimal(atom.text)
        except InvalidOperation:
            raise self._error(atom.line, f"{atom.text!r} is neither X_i, Y_i nor a number") from None
        if not number.is_finite() or abs(number.adjusted()) > _EXPONENT:
            raise self._error(atom.line, f"{atom.text} is NaN, infinite, or beyond 1e+-{_EXPONENT}")
        return _Form({}, Fraction(number))

    def _case(self, clause: _Clause, inputs: int, line: int) -> Case:
        lower: dict[int, _Bound] = {}
        upper: dict[int, _Bound] = {}
        constraints = []
        for atomic in clause:
            kinds = {kind for kind, _ in atomic.terms}
            if kinds == {"Y"}:
                terms = tuple((index, each) for (_, index), each in sorted(atomic.terms.items()))
                constraints.append(Constraint(terms, atomic.bound, atomic.strict))
            elif kinds == {"X", "Y"} or len(atomic.terms) > 1:
                raise self._error(atomic.line, "a constraint on an input must bound this one input by a number")
            else:
                self._bound(atomic, lower, upper)
        for index in range(inputs):
            for side, name in ((lower, "lower"), (upper, "upper")):
                if index not in side:
                    raise self._error(line, f"X_{index} has no {name} bound")
            if lower[index].value > upper[index].value:
                raise self._error(
                    max(lower[index].line, upper[index].line),
                    f"the box is reversed: {float(lower[index].value):g} <= X_{index} <= {float(upper[index].value):g}",
                )
        box = Box(tuple(lower[i].value for i in range(inputs)), tuple(upper[i].value for i in range(inputs)))
        return Case(box, tuple(constraints))

    def _bound(self, atomic: _Atomic, lower: dict[int, _Bound], upper: dict[int, _Bound]) -> None:
        ((_, index), factor), *_ = atomic.terms.items()
        if atomic.strict:
            raise self._error(atomic.line, f"a strict bound on X_{index}: boxes are closed; use <= or >=")
        bound = _Bound(atomic.bound / factor, atomic.line)
        if abs(bound.value) > _LARGEST:
            raise self._error(atomic.line, f"X_{index} is bounded by a number beyond 1e+-100")
        side, tighter = (upper, min) if factor > 0 else (lower, max)
        known = side.get(index, bound)
        side[index] = tighter(known, bound, key=lambda each: each.value)


@dataclass(frozen=True, slots=True)
class _Bound:
    value: Fraction
    line: int
