"""VNN-LIB 2.0: networks with tensors that have names and shapes, whose entries become X_i and Y_i.

Of two networks the outputs of the second follow those of the first, and their inputs must be said to be equal, entry
by entry: only then there is one box for both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

import numpy as np

from evalsuite.verification.vnnlib_cases import Atomic, Clause, Variable
from evalsuite.verification.vnnlib_syntax import Group, Tree, VnnLibError, Word

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
    """What networks declare; `error` makes the error of a line."""

    error: Callable[[int, str], VnnLibError]
    named: dict[str, _Tensor] = field(default_factory=dict)
    networks: list[str] = field(default_factory=list)

    def declare(self, tree: Group) -> None:
        """Of (declare-network name (declare-input x type[shape]) (declare-output y type[shape])).

        (isomorphic-to name) may stand before, of which nothing follows here.
        """
        words = [_words(each) for each in tree.items[1:]]
        others = [each for each in words[1:] if each[0] != "isomorphic-to"]
        kinds = [each[0] for each in others]
        if not words or len(words[0]) != 1 or sorted(kinds) != ["declare-input", "declare-output"]:
            raise self.error(tree.line, f"a network with one declare-input and one declare-output is read, got {kinds}")
        if len(self.networks) == _MOST_NETWORKS or words[0][0] in self.networks:
            raise self.error(tree.line, f"network {words[0][0]!r} is declared twice, or is the third")
        for kind, *rest in others:
            self._tensor(tree.line, "Y" if kind == "declare-output" else _OTHER if self.networks else "X", rest)
        self.networks.append(words[0][0])

    def _tensor(self, line: int, kind: str, words: list[str]) -> None:
        match = _ENTRY.fullmatch(words[1]) if len(words) == 2 else None
        if match is None or match[1] not in _REAL or match[2] is None:
            raise self.error(line, f"expected a name, {', '.join(_REAL)} and [a shape], got {' '.join(words)}")
        if words[0] in self.named:
            raise self.error(line, f"{words[0]} is declared twice")
        sizes = tuple(int(each) for each in match[2].split(",") if each)
        if prod(sizes) < 1:
            raise self.error(line, f"{words[0]} has no entries")
        before = sum(prod(each.shape) for each in self.named.values() if each.kind == kind)
        self.named[words[0]] = _Tensor(kind, sizes, before)

    def entry(self, word: Word) -> Variable | None:
        """The variable that a word is; None where it is no name."""
        match = _ENTRY.fullmatch(word.text) if self.named else None
        if match is None or match[1] not in self.named:
            return None
        tensor = self.named[match[1]]
        index = tuple(int(each) for each in (match[2] or "").split(",") if each)
        within = len(index) == len(tensor.shape) and all(i < n for i, n in zip(index, tensor.shape, strict=True))
        if not within:
            raise self.error(word.line, f"{word.text} is no entry of {match[1]}, whose shape is {list(tensor.shape)}")
        return tensor.kind, tensor.first + (int(np.ravel_multi_index(index, tensor.shape)) if index else 0)

    def size(self, kind: str) -> int:
        """How many X, or Y, there are."""
        return sum(prod(each.shape) for each in self.named.values() if each.kind == kind)

    def joined(self, common: list[Atomic], clauses: list[Clause], line: int) -> tuple[list[Atomic], list[Clause]]:
        """With one network's inputs for both. Raises VnnLibError where they are not said to be equal."""
        if len(self.networks) < _MOST_NETWORKS:
            return common, clauses
        size = self.size("X")
        wanted = {(i, sign) for i in range(size) for sign in (1, -1)}
        found = {_sign(each) for each in common}
        if self.size(_OTHER) != size or not wanted <= found:
            raise self.error(line, "the inputs of the two networks are not said to be equal, entry by entry, with ==")
        # One of each, which clauses share.
        renamed = {id(each): self._renamed(each) for clause in (common, *clauses) for each in clause
                   if _sign(each) is None}  # fmt: skip
        rest = [renamed[id(each)] for each in common if id(each) in renamed]
        return rest, [tuple(renamed[id(each)] for each in clause if id(each) in renamed) for clause in clauses]

    def _renamed(self, atomic: Atomic) -> Atomic:
        terms: dict[Variable, Fraction] = {}
        for (kind, index), factor in atomic.terms.items():
            key = ("X" if kind == _OTHER else kind, index)
            terms[key] = terms.get(key, Fraction(0)) + factor
        kept = {key: each for key, each in terms.items() if each}
        if not kept:
            raise self.error(atomic.line, "a comparison of inputs that are equal")
        return replace(atomic, terms=kept)


def _words(tree: Tree) -> list[str]:
    if isinstance(tree, Word):
        return [tree.text]
    return [each.text if isinstance(each, Word) else "(" for each in tree.items] or ["("]


def _sign(atomic: Atomic) -> tuple[int, int] | None:
    """Of c X_i - c Z_i <= 0, which holds where inputs are equal, i and the sign of c."""
    own = [(index, factor) for (kind, index), factor in atomic.terms.items() if kind == "X"]
    if len(own) != 1 or len(atomic.terms) != 2 or atomic.bound or atomic.strict:
        return None
    ((index, factor),) = own
    return (index, 1 if factor > 0 else -1) if atomic.terms.get((_OTHER, index)) == -factor else None
