"""Define what VNN-LIB files are made of: nested lists of words, tensors of VNN-LIB 2.0, and cases.

Entries of tensors become X_i and Y_i, and comparisons become cases: a box and constraints for each
disjunct.

Of two networks the outputs of the second follow those of the first, and their inputs must be said
to be equal, entry by entry: only then there is one box for both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

import numpy as np

from netverify.specification import Box, Case, Constraint

_TOKEN = re.compile(r";[^\n]*|\n|[()]|[^\s();]+")
_DEEPEST = 100


class VnnLibError(ValueError):
    """A property that can't be read; the text begins with file:line."""


@dataclass(frozen=True, slots=True)
class Word:
    """A name or a number as it is spelt in the file, and the number of its line."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Group:
    """Holds what stands between parentheses; `line` is that of the opening one."""

    items: tuple[Word | Group, ...]
    line: int


Tree = Word | Group


def _spelt(text: str, check: Callable[[], None]) -> Iterator[Word]:
    line = 1
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "\n":
            line += 1
            check()
        elif not token.startswith(";"):
            yield Word(token, line)


def groups(text: str, where: str, check: Callable[[], None] = lambda: None) -> Iterator[Group]:
    """The outermost groups in order; `check` is called in each line.

    Raises VnnLibError for words outside, unbalanced or too deep parentheses.
    """
    # A stack of open groups instead of a recursion, whose depth a file could exceed.
    open_: list[tuple[int, list[Tree]]] = []
    for word in _spelt(text, check):
        if word.text == "(":
            open_.append((word.line, []))
            if len(open_) > _DEEPEST:
                raise VnnLibError(f"{where}:{word.line}: more than {_DEEPEST} parentheses deep")
        elif not open_:
            fault = (
                "a ')' without its '('"
                if word.text == ")"
                else f"{word.text!r} stands outside of any command"
            )
            raise VnnLibError(f"{where}:{word.line}: {fault}")
        elif word.text != ")":
            open_[-1][1].append(word)
        else:
            # A group is closed: it belongs to the one around it, or is a whole command.
            line, items = open_.pop()
            if open_:
                open_[-1][1].append(Group(tuple(items), line))
            else:
                yield Group(tuple(items), line)
    if open_:
        raise VnnLibError(f"{where}:{open_[-1][0]}: a '(' without its ')'")


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
    """Makes the cases of one file. Equal boxes are one object, and so are the constraints of one
    comparison.

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

        Raises VnnLibError for an input without bounds, a constraint that is no bound, or if every
        box is reversed.
        """
        # 1. What is asserted of all cases: constraints, and the whole box as far as it is bounded.
        shared, bounds = self._parted(tuple(common))
        lower, upper = self._narrowed({}, {}, bounds)
        whole: Box | VnnLibError | None = None
        faults, cases = [], []
        for clause in clauses:
            self._check()
            # 2. Each clause adds constraints, and may narrow the box. Without bounds of its own it
            # shares the whole one. A box that is reversed has no points, and is no case.
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
            constraint = self._constraints[id(atomic)]
            if constraint is None:
                bounds.append(atomic)
            else:
                constraints.append(constraint)
        return tuple(constraints), bounds

    def _constraint(self, atomic: Atomic) -> Constraint | None:
        """None for what bounds an input."""
        kinds = {kind for kind, _ in atomic.terms}
        if kinds == {"Y"}:
            terms = tuple((index, factor) for (_, index), factor in sorted(atomic.terms.items()))
            return Constraint(terms, atomic.bound, atomic.strict)
        if kinds == {"X", "Y"} or len(atomic.terms) > 1:
            raise self._error(
                atomic.line, "a constraint on an input must bound this one input by a number"
            )
        return None

    def _narrowed(self, lower: _Side, upper: _Side, bounds: list[Atomic]) -> tuple[_Side, _Side]:
        lower, upper = lower.copy(), upper.copy()
        for atomic in bounds:
            ((_, index), factor), *_ = atomic.terms.items()
            if atomic.strict:
                raise self._error(
                    atomic.line, f"a strict bound on X_{index}: boxes are closed; use <= or >="
                )
            # factor X <= bound: an upper bound where the factor is > 0, else a lower one; the
            # tighter stays.
            bound = atomic.bound / factor, atomic.line
            if abs(bound[0]) > LARGEST:
                raise self._error(atomic.line, f"X_{index} is bounded by a number beyond 1e+-100")
            side, tighter = (upper, min) if factor > 0 else (lower, max)
            side[index] = tighter(side.get(index, bound), bound, key=lambda pair: pair[0])
        return lower, upper

    def _box(self, lower: _Side, upper: _Side) -> Box | VnnLibError:
        for index in range(self._inputs):
            for side, name in ((lower, "lower"), (upper, "upper")):
                if index not in side:
                    raise self._error(self._line, f"X_{index} has no {name} bound")
            (low, one), (high, other) = lower[index], upper[index]
            if low > high:
                ends = f"{float(low):g} <= X_{index} <= {float(high):g}"
                return self._error(max(one, other), f"the box is reversed: {ends}")
        places = range(self._inputs)
        box = Box(
            tuple(lower[place][0] for place in places), tuple(upper[place][0] for place in places)
        )
        return self._boxes.setdefault(box, box)


_BRACKETS = re.compile(r"[ \t]*\[[0-9, \t]*\]")
_ENTRY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)(?:\[((?:[0-9]+(?:,[0-9]+)*)?)\])?")
_REAL = ("float32", "float64", "real", "Real")
# The second network's inputs, until they are the first one's.
_OTHER = "Z"
_MOST_NETWORKS = 2


def closed_up(text: str) -> str:
    """Without blanks in and before brackets: a name and its index are one word."""
    return _BRACKETS.sub(lambda match: "".join(match.group().split()), text)


@dataclass(frozen=True, slots=True)
class _Tensor:
    kind: str
    shape: tuple[int, ...]
    first: int


@dataclass(slots=True)
class Tensors:
    """Keeps what networks declare; `error` makes the error of a line."""

    error: Callable[[int, str], VnnLibError]
    named: dict[str, _Tensor] = field(default_factory=dict)
    networks: list[str] = field(default_factory=list)

    def declare(self, tree: Group) -> None:
        """Read a declaration:
        (declare-network name (declare-input x type[shape]) (declare-output y type[shape])).

        (isomorphic-to name) may stand before, of which nothing follows here.
        """
        words = [_words(item) for item in tree.items[1:]]
        others = [word for word in words[1:] if word[0] != "isomorphic-to"]
        kinds = [other[0] for other in others]
        if not words or len(words[0]) != 1 or sorted(kinds) != ["declare-input", "declare-output"]:
            raise self.error(
                tree.line,
                f"a network with one declare-input and one declare-output is read, got {kinds}",
            )
        if len(self.networks) == _MOST_NETWORKS or words[0][0] in self.networks:
            raise self.error(
                tree.line, f"network {words[0][0]!r} is declared twice, or is the third"
            )
        # Outputs of both networks are Y, one behind the other. Inputs of the second are told apart
        # until it is known that they equal the first one's.
        for kind, *rest in others:
            self._tensor(
                tree.line,
                "Y" if kind == "declare-output" else _OTHER if self.networks else "X",
                rest,
            )
        self.networks.append(words[0][0])

    def _tensor(self, line: int, kind: str, words: list[str]) -> None:
        match = _ENTRY.fullmatch(words[1]) if len(words) == 2 else None
        if match is None or match[1] not in _REAL or match[2] is None:
            raise self.error(
                line, f"expected a name, {', '.join(_REAL)} and [a shape], got {' '.join(words)}"
            )
        if words[0] in self.named:
            raise self.error(line, f"{words[0]} is declared twice")
        sizes = tuple(int(size) for size in match[2].split(",") if size)
        if prod(sizes) < 1:
            raise self.error(line, f"{words[0]} has no entries")
        before = sum(prod(tensor.shape) for tensor in self.named.values() if tensor.kind == kind)
        self.named[words[0]] = _Tensor(kind, sizes, before)

    def entry(self, word: Word) -> Variable | None:
        """The variable that a word is; None where it is no name."""
        match = _ENTRY.fullmatch(word.text) if self.named else None
        if match is None or match[1] not in self.named:
            return None
        tensor = self.named[match[1]]
        # x[1,2] is an entry; a tensor without dimensions is its only entry.
        index = tuple(int(number) for number in (match[2] or "").split(",") if number)
        within = len(index) == len(tensor.shape) and all(
            place < count for place, count in zip(index, tensor.shape, strict=True)
        )
        if not within:
            raise self.error(
                word.line,
                f"{word.text} is no entry of {match[1]}, whose shape is {list(tensor.shape)}",
            )
        return tensor.kind, tensor.first + (
            int(np.ravel_multi_index(index, tensor.shape)) if index else 0
        )

    def size(self, kind: str) -> int:
        """How many X, or Y, there are."""
        return sum(prod(tensor.shape) for tensor in self.named.values() if tensor.kind == kind)

    def joined(
        self, common: list[Atomic], clauses: list[Clause], line: int
    ) -> tuple[list[Atomic], list[Clause]]:
        """With one network's inputs for both. Raises VnnLibError where they are not said to be
        equal.
        """
        if len(self.networks) < _MOST_NETWORKS:
            return common, clauses
        # 1. X_i - Z_i <= 0 and >= 0 must be asserted for each entry, in all cases.
        size = self.size("X")
        wanted = {(index, sign) for index in range(size) for sign in (1, -1)}
        signs = {_sign(atomic) for atomic in common}
        if self.size(_OTHER) != size or not wanted <= signs:
            raise self.error(
                line,
                "the inputs of the two networks are not said to be equal, entry by entry, with ==",
            )
        # One of each, which clauses share.
        renamed = {
            id(atomic): self._renamed(atomic)
            for clause in (common, *clauses)
            for atomic in clause
            if _sign(atomic) is None
        }
        # 2. Leave out these equalities, and write X for Z in all others.
        rest = [renamed[id(atomic)] for atomic in common if id(atomic) in renamed]
        return rest, [
            tuple(renamed[id(atomic)] for atomic in clause if id(atomic) in renamed)
            for clause in clauses
        ]

    def _renamed(self, atomic: Atomic) -> Atomic:
        terms: dict[Variable, Fraction] = {}
        for (kind, index), factor in atomic.terms.items():
            key = ("X" if kind == _OTHER else kind, index)
            terms[key] = terms.get(key, Fraction(0)) + factor
        kept = {key: factor for key, factor in terms.items() if factor}
        if not kept:
            raise self.error(atomic.line, "a comparison of inputs that are equal")
        return replace(atomic, terms=kept)


def _words(tree: Tree) -> list[str]:
    if isinstance(tree, Word):
        return [tree.text]
    return [item.text if isinstance(item, Word) else "(" for item in tree.items] or ["("]


def _sign(atomic: Atomic) -> tuple[int, int] | None:
    """Return i and the sign of c, of c X_i - c Z_i <= 0, which holds where inputs are equal; None
    for any other comparison.
    """
    terms = [(index, factor) for (kind, index), factor in atomic.terms.items() if kind == "X"]
    if len(terms) != 1 or len(atomic.terms) != 2 or atomic.bound or atomic.strict:
        return None
    ((index, factor),) = terms
    return (
        (index, 1 if factor > 0 else -1) if atomic.terms.get((_OTHER, index)) == -factor else None
    )
