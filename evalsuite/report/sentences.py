"""Parts of sentences that every section uses, and what a section says of one of its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Finding:
    """What a section says of `subject`, a workload or a step of one: the headline, then sentences."""

    subject: str
    headline: str
    sentences: tuple[str, ...]


def listed(names: Iterable[str]) -> str:
    """ "a, b and c"."""
    every = list(names)
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}"


def labels(words: Sequence[Sequence[str]], *more: Sequence[str]) -> list[str]:
    """The words of each together; those that are alike have one more, and what is alike still has the next."""
    told = [tuple(each) for each in words]
    for column in more:
        told = [(*own, name) if name and told.count(own) > 1 else own for own, name in zip(told, column, strict=True)]
    return [", ".join(each) for each in told]


def ranges_text(found: Sequence[Kind], every: Sequence[Kind], text: Callable[[Kind], str]) -> str:
    """ "10 % to 50 % and 90 %": three or more in a row as a range."""
    # What lies in a row is as far from its place among all as the one before.
    alike = groupby(enumerate(found), key=lambda each: every.index(each[1]) - each[0])
    runs = [[each for _, each in run] for _, run in alike]
    told = [[f"{text(run[0])} to {text(run[-1])}"] if len(run) > 2 else [text(each) for each in run] for run in runs]
    return listed([part for parts in told for part in parts])


def p_text(value: float) -> str:
    """ "0.031", never "0"."""
    return f"{value:.2g}" if value >= 0.001 else "< 0.001"


def percent_text(share: float) -> str:
    """A share as percent that never rounds to all or nothing: "99.97 %", "> 99.99 %"."""
    text = f"{100 * share:.2f}"
    if text == "100.00" and share < 1:
        return "> 99.99 %"
    if text == "0.00" and share > 0:
        return "< 0.01 %"
    return f"{text.rstrip('0').rstrip('.')} %"
