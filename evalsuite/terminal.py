"""Text for a terminal: what comes from a file or a run moves no cursor there, changes no colour
and hides nothing.
"""

from __future__ import annotations

import sys
from typing import TextIO


def printable(text: str) -> str:
    """Spell what cannot be printed as Python spells it: control characters, and marks that turn
    the way of writing.
    """
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )


def say(
    *values: object,
    sep: str = " ",
    end: str = "\n",
    file: TextIO | None = None,
    flush: bool = False,
) -> None:
    """Print values as `print` does, spelled by `printable`: a run's rows may hold what anybody
    wrote.
    """
    text = sep.join(map(str, values)) + end
    print(printable(text), end="", file=sys.stdout if file is None else file, flush=flush)


def write(text: str) -> None:
    """Write a document to standard output: a file or another program gets it exactly, a terminal
    what `say` prints.
    """
    if on_terminal():
        say(text, end="")
    else:
        sys.stdout.write(text)


def on_terminal() -> bool:
    """Whether standard output is read by a person."""
    return sys.stdout.isatty()
