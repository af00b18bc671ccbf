"""Reading VNN-LIB files: boxes on X_i and linear constraints on Y_i, joined by `and` and `or`.

Of VNN-LIB 2.0 that is read which says the same of one network or of two: see `vnnlib_cases`.
Numbers are kept as the exact rationals that the decimals denote, for a witness is judged without
tolerance. Errors name the file and the line. The `vnnlib` package of the registry does not serve:
1.0.2 reads VNN-LIB 2.0 alone, and no exponents, and 0.0.1 turns decimals into float64.
"""

from __future__ import annotations

import gzip
import itertools
import re
import zlib
from fractions import Fraction
from pathlib import Path

from netverify.decimals import exact_decimal, is_decimal
from netverify.specification import Specification
from netverify.vnnlib_cases import (
    LARGEST,
    Atomic,
    Cases,
    Check,
    Clause,
    Group,
    Tensors,
    Tree,
    Variable,
    VnnLibError,
    Word,
    closed_up,
    groups,
)
from opgraph.limits import content

_NAME = re.compile(r"([XY])_(0|[1-9][0-9]*)\Z")
_COMPARISONS = ("<=", ">=", "<", ">", "=", "==")
_SECOND = re.compile(r"\(\s*vnnlib-version\b")
_MOST_CASES = 100_000
# Of all cases together: their comparisons, and the marks of which case has which.
_MOST_COMPARISONS = 10_000_000
_MOST_MARKS = 100_000_000
_ZERO = Fraction(0)


_Form = dict[Variable | None, Fraction]  # a linear expression: coefficients, of None the constant


def _plus(first: _Form, second: _Form, factor: Fraction | int = 1) -> _Form:
    total = {key: first.get(key, _ZERO) + factor * second.get(key, _ZERO) for key in first | second}
    return {key: factor for key, factor in total.items() if factor}


def read_vnnlib(path: Path, check: Check = lambda: None) -> Specification:
    """The property in a .vnnlib or .vnnlib.gz file. `check` is called often; what it raises ends
    the reading.

    A disjunct whose box is reversed is no case, unless there is no other.

    Raises:
        VnnLibError: what is no VNN-LIB, not linear, or no box: an input without both bounds, or
            with reversed ones.
        OSError: the file can't be read.
    """
    try:
        text = content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise VnnLibError(f"{path}:{line}: not UTF-8 text; save it as UTF-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise VnnLibError(f"{path}:1: not a text file: {error}") from None
    return parse_vnnlib(text, str(path), check)


def parse_vnnlib(text: str, where: str = "vnnlib", check: Check = lambda: None) -> Specification:
    """The property in `text`; `where` stands for the file in errors. The rest as for
    `read_vnnlib`.
    """
    return _Parser(where, check).specification(text)


class _Parser:
    """Reads one file: what is declared, what is asserted of all cases, and the disjunctive
    normal form of the rest.
    """

    def __init__(self, where: str, check: Check) -> None:
        self._where, self._check = where, check
        self._declared: dict[str, set[int]] = {"X": set(), "Y": set()}
        self._tensors = Tensors(self._error)

    def _error(self, line: int, message: str) -> VnnLibError:
        return VnnLibError(f"{self._where}:{line}: {message}")

    def specification(self, text: str) -> Specification:
        # 1. Go through the commands. What holds in every case is kept apart from the disjunctive
        # normal form, which it would lengthen many times.
        common: list[Atomic] = []
        clauses: list[Clause] = [()]
        last = 1
        text = closed_up(text) if _SECOND.search(text) else text
        for tree in groups(text, self._where, self._check):
            last = tree.line
            command, arguments = self._command(tree)
            if command == "declare-const":
                self._declare(tree, arguments)
            elif command == "declare-network":
                self._tensors.declare(tree)
            elif command == "vnnlib-version":
                self._expect_second(tree, arguments)
            elif command == "assert":
                if len(arguments) != 1:
                    raise self._error(tree.line, f"assert takes one formula, got {len(arguments)}")
                asserted = self._formula(arguments[0])
                if len(asserted) == 1:
                    common.extend(asserted[0])
                else:
                    clauses = self._joined(clauses, asserted, tree.line)
            else:
                raise self._error(
                    tree.line,
                    f"unknown command {command!r}; there are declare-const, declare-network and"
                    " assert",
                )
        # 2. Of two networks one set of inputs is left. Then the sizes are known, and cases can be
        # made.
        common, clauses = self._tensors.joined(common, clauses, last)
        sizes = [self._size(kind, last) for kind in "XY"]
        cases = Cases(self._where, sizes[0], last, self._check)
        return Specification(sizes[0], sizes[1], cases.of(common, clauses))

    def _command(self, tree: Tree) -> tuple[str, tuple[Tree, ...]]:
        if isinstance(tree, Word) or not tree.items or not isinstance(tree.items[0], Word):
            raise self._error(tree.line, "expected '(' and a name")
        return tree.items[0].text, tree.items[1:]

    def _expect_second(self, tree: Group, arguments: tuple[Tree, ...]) -> None:
        words = [argument.text for argument in arguments if isinstance(argument, Word)]
        if words != ["<2.0>"]:
            raise self._error(
                tree.line,
                f"version {' '.join(words)} of VNN-LIB; of those that state one 2.0 is read",
            )

    def _declare(self, tree: Group, arguments: tuple[Tree, ...]) -> None:
        words = [argument.text if isinstance(argument, Word) else "(" for argument in arguments]
        match = _NAME.match(words[0]) if words else None
        if len(words) != 2 or match is None or words[1] != "Real":
            raise self._error(
                tree.line,
                "expected (declare-const X_i Real) or Y_i, got"
                f" {' '.join(['declare-const', *words])}",
            )
        known, index = self._declared[match[1]], int(match[2])
        if index in known:
            raise self._error(tree.line, f"{words[0]} is declared twice")
        known.add(index)

    def _size(self, kind: str, line: int) -> int:
        known = self._declared[kind]
        if self._tensors.named:
            if any(self._declared.values()):
                raise self._error(line, "constants are declared beside networks")
            return self._tensors.size(kind)
        if not known:
            raise self._error(line, f"no {kind}_i is declared")
        missing = set(range(len(known))) - known
        if missing:
            raise self._error(
                line, f"{kind}_{min(missing)} is not declared, but {kind}_{max(known)} is"
            )
        return len(known)

    def _formula(self, tree: Tree) -> list[Clause]:
        """The disjunctive normal form of a formula, clause by clause. Raises VnnLibError where
        it cannot be read.
        """
        name, arguments = self._command(tree)
        if name in ("and", "or") and not arguments:
            raise self._error(tree.line, f"an empty {name!r}")
        self._check()
        # The clauses of an `or` are those of all parts; of an `and`, one clause of each part in
        # every combination.
        if name == "or":
            return [clause for argument in arguments for clause in self._formula(argument)]
        if name == "and":
            clauses: list[Clause] = [()]
            for argument in arguments:
                clauses = self._joined(clauses, self._formula(argument), tree.line)
            return clauses
        if name in _COMPARISONS:
            return [self._comparison(name, arguments, tree.line)]
        raise self._error(
            tree.line, f"{name!r} is not read; there are and, or, {', '.join(_COMPARISONS)}"
        )

    def _joined(self, first: list[Clause], second: list[Clause], line: int) -> list[Clause]:
        if len(first) * len(second) > _MOST_CASES:
            raise self._error(
                line, f"the disjunctive normal form has more than {_MOST_CASES} cases"
            )
        # Refuse what would take more memory than there is, before it is made.
        comparisons = len(second) * sum(map(len, first)) + len(first) * sum(map(len, second))
        distinct = len({id(atomic) for clause in (*first, *second) for atomic in clause})
        if comparisons > _MOST_COMPARISONS or len(first) * len(second) * distinct > _MOST_MARKS:
            raise self._error(
                line,
                f"the disjunctive normal form has {len(first) * len(second)} cases of {distinct}"
                f" different comparisons, {comparisons} in all; at most {_MOST_COMPARISONS} in all"
                f" are read, and at most {_MOST_MARKS} cases times different ones",
            )
        joined = []
        for one, other in itertools.product(first, second):
            joined.append(one + other)
            self._check()
        return joined

    def _comparison(self, name: str, arguments: tuple[Tree, ...], line: int) -> Clause:
        if len(arguments) != 2:
            raise self._error(line, f"{name!r} compares two expressions, got {len(arguments)}")
        left, right = (self._expression(argument) for argument in arguments)
        difference = _plus(left, right, -1)
        constant = difference.get(None, _ZERO)
        terms = {key: factor for key, factor in difference.items() if key is not None}
        if not terms:
            raise self._error(line, "a comparison without variables")
        if not all(1 / LARGEST <= abs(number) <= LARGEST for number in difference.values()):
            raise self._error(line, "a number beyond 1e+-100")
        # left - right <= 0 with the constant on the right, and its reverse; an equality is both.
        below = Atomic(terms, -constant, name == "<", line)
        above = Atomic({key: -factor for key, factor in terms.items()}, constant, name == ">", line)
        if name in ("=", "=="):
            return (below, above)
        return (below,) if name in ("<=", "<") else (above,)

    def _expression(self, tree: Tree) -> _Form:
        if isinstance(tree, Word):
            return self._leaf(tree)
        name, arguments = self._command(tree)
        if name not in ("+", "-", "*") or not arguments:
            raise self._error(
                tree.line, f"{name!r} is no arithmetic that is read; there are +, - and *"
            )
        forms = [self._expression(argument) for argument in arguments]
        if name == "*":
            return self._product(forms, tree.line)
        if name == "-" and len(forms) == 1:
            return _plus({}, forms[0], -1)
        total = forms[0]
        for form in forms[1:]:
            total = _plus(total, form, 1 if name == "+" else -1)
        return total

    def _product(self, forms: list[_Form], line: int) -> _Form:
        total: _Form = {None: Fraction(1)}
        for form in forms:
            varying, constant = (total, form) if total.keys() - {None} else (form, total)
            if constant.keys() - {None}:
                raise self._error(line, "a product of variables is not linear")
            total = _plus({}, varying, constant.get(None, _ZERO))
        return total

    def _leaf(self, atom: Word) -> _Form:
        entry = self._tensors.entry(atom)
        if entry is not None:
            return {entry: Fraction(1)}
        match = _NAME.match(atom.text)
        if match:
            name = (match[1], int(match[2]))
            if name[1] not in self._declared[name[0]]:
                raise self._error(atom.line, f"{atom.text} is not declared")
            return {name: Fraction(1)}
        if not is_decimal(atom.text):
            raise self._error(atom.line, f"{atom.text!r} is neither X_i, Y_i nor a decimal number")
        try:
            return {None: exact_decimal(atom.text)}
        except ValueError as error:
            raise self._error(atom.line, str(error)) from None
