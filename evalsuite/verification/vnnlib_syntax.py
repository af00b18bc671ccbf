"""The syntax of VNN-LIB: nested lists of words, each with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    """What stands between parentheses; `line` is that of the opening one."""

    items: tuple[Word | Group, ...]
    line: int


Tree = Word | Group


def _words(text: str, check: Callable[[], None]) -> Iterator[Word]:
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
    open_: list[tuple[int, list[Tree]]] = []
    for word in _words(text, check):
        if word.text == "(":
            open_.append((word.line, []))
            if len(open_) > _DEEPEST:
                raise VnnLibError(f"{where}:{word.line}: more than {_DEEPEST} parentheses deep")
        elif not open_:
            fault = "a ')' without its '('" if word.text == ")" else f"{word.text!r} stands outside of any command"
            raise VnnLibError(f"{where}:{word.line}: {fault}")
        elif word.text != ")":
            open_[-1][1].append(word)
        else:
            line, items = open_.pop()
            if open_:
                open_[-1][1].append(Group(tuple(items), line))
            else:
                yield Group(tuple(items), line)
    if open_:
        raise VnnLibError(f"{where}:{open_[-1][0]}: a '(' without its ')'")
