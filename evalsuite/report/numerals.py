"""Numbers, and lists of them, as text: one scale for all cells of a line, so that they can be
compared by eye.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Kind = TypeVar("Kind")
Key = TypeVar("Key")
MINUS = "\N{MINUS SIGN}"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_STEPS = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")),
    # Radii are distances between inputs, on the scale that the network reads.
    "input": ((1.0, "input units"),),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How the numbers of one line are written: shown = value / divisor, with fixed decimals.

    `unit` is the label of means and `difference_unit` that of differences: they differ for percent
    and points. `powers` writes all numbers in powers of ten.
    """

    divisor: float
    unit: str
    difference_unit: str
    decimals: int
    powers: bool = False

    @property
    def label(self) -> str:
        """The unit of means, and of differences where it is another: "%, Δ in pp"."""
        return (
            self.unit
            if self.difference_unit == self.unit
            else f"{self.unit}, Δ in {self.difference_unit}"
        )

    def number(self, value: float, *, sign: bool = False) -> str:
        """`value` in this scale, e.g. "96.2" or, with `sign`, "+1.3"; exact zeros are "0". Raises
        ValueError where `value` is NaN or infinite.
        """
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a number to show")
        shown = value / self.divisor
        text = "0" if shown == 0 else self._digits(abs(shown))
        return (MINUS if shown < 0 else "+" if sign and shown > 0 else "") + text

    def _digits(self, shown: float) -> str:
        if self.powers:
            return _powers(shown)
        # A number that is not 0 must not read "0.00"; one more digit does for most, powers of ten
        # for the rest.
        if 10**-4 <= shown < 0.5 * 10**-self.decimals:
            return f"{shown:.{-math.floor(math.log10(shown))}f}"
        if shown < 0.5 * 10**-self.decimals or shown >= 1e7:
            return _powers(shown)
        return f"{shown:,.{self.decimals}f}"


def power_text(value: float) -> str:
    """The nearest power of ten of a positive number: "10⁻³"."""
    return f"10{str(round(math.log10(value))).translate(_SUPERSCRIPTS)}"


def _powers(shown: float) -> str:
    mantissa, exponent = f"{shown:.1e}".split("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPTS)}"


def scale_of(unit: str, values: Iterable[float], spreads: Iterable[float] = ()) -> Scale:
    """The scale on which the numbers of one line of a table are written.

    Args:
        unit: the metric's unit; "fraction" and "share" become percent, with differences in
            percentage points.
        values: the line's means.
        spreads: the line's differences and half widths; where most would round to nothing, there
            are more decimals.
    """
    means, rest = [abs(value) for value in values], [abs(value) for value in spreads if value != 0]
    # 1. Shares are percents; a count is whole where its numbers are.
    if unit in ("fraction", "share"):
        return Scale(0.01, "%", "pp", 2 if any(value < 0.001 for value in rest) else 1)
    largest = max([*means, *rest], default=0.0)
    if unit == "count":
        whole = largest >= 1000 or all(float(value).is_integer() for value in [*means, *rest])
        return Scale(1.0, "count", "count", 0 if whole else 1)
    # 2. The largest number of the line chooses the unit's prefix for all cells.
    divisor, label = 1.0, unit
    if unit in _STEPS and largest > 0:
        divisor, label = next(
            (step for step in _STEPS[unit] if largest >= step[0]), _STEPS[unit][-1]
        )
    largest /= divisor
    if unit == "bytes" and divisor == 1:
        return Scale(divisor, label, label, 0)
    # 3. Three digits of the largest number, and at least so many that the spreads show.
    decimals = 2 if largest == 0 else min(max(2 - math.floor(math.log10(largest)), 0), 4)
    if rest and (middle := statistics.median(rest) / divisor) < 10**-decimals:
        # 1.89 ± 0.00 says nothing of how sure it is: most spreads have two digits, as far as four
        # decimals go.
        decimals = min(1 - math.floor(math.log10(middle)), 4)
    return Scale(divisor, label, label, decimals, powers=0 < largest < 1e-3)


def listed(names: Iterable[str]) -> str:
    """The names as they stand in a sentence: "a", "a and b" or "a, b and c"; there must be at least
    one.
    """
    every = list(names)
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}"


def grouped(pairs: Iterable[tuple[Key, Kind]]) -> dict[Key, list[Kind]]:
    """Return what has the same key together, keys and items in the order in which they come."""
    groups: dict[Key, list[Kind]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def sentence(head: str, parts: Iterable[str], joint: str = ", ", end: str = ".") -> str:
    """A head and its parts as a sentence; empty where there are no parts."""
    joined = joint.join(parts)
    return f"{head}{joined}{end}" if joined else ""


def labels(words: Sequence[Sequence[str]], *more: Sequence[str]) -> list[str]:
    """A label for each, of its words; labels that are alike get one word more, and those that are
    still alike the next.
    """
    shown = [tuple(word) for word in words]
    for column in more:
        shown = [
            (*words_of_label, name) if name and shown.count(words_of_label) > 1 else words_of_label
            for words_of_label, name in zip(shown, column, strict=True)
        ]
    return [", ".join(words_of_label) for words_of_label in shown]


def p_text(value: float) -> str:
    """A p value to two significant digits, as "0.031"; below 0.001 it is "< 0.001"."""
    return f"{value:.2g}" if value >= 0.001 else "< 0.001"


def percent_text(share: float) -> str:
    """A share as percent that never rounds to all or nothing: "99.97 %", "> 99.99 %"."""
    text = f"{100 * share:.2f}"
    if text == "100.00" and share < 1:
        return "> 99.99 %"
    if text == "0.00" and share > 0:
        return "< 0.01 %"
    return f"{text.rstrip('0').rstrip('.')} %"


FEW_SAMPLES = 20  # of fewer test samples a share is told as a count


def of_few(share: float, samples: int) -> str:
    """A share of few test samples as a count: "4 of 5"; empty where there are more samples, or the
    share is no count of them.
    """
    count = share * samples
    if not 0 < samples < FEW_SAMPLES or abs(count - round(count)) > 1e-6:
        return ""
    return f"{round(count)} of {samples}"
