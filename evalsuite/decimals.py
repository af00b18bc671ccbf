"""Other spellings of numbers than plain decimals, and what stands for a missing number."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from netverify.decimals import is_decimal

# What stands for a number that is missing, in small letters.
_WINDOWS = ("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan")
MISSING = {
    *(
        "",
        "?",
        "na",
        "n/a",
        "nan",
        "-nan",
        "+nan",
        "null",
        "none",
        "<na>",
        "#n/a",
        "#na",
        "#n/a n/a",
        "nat",
    ),
    *_WINDOWS,
}

_GAPS = "\u0020\u00a0\u2009\u202f"
_PLAIN = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_COMMA = r"\d*,\d+(?:[eE][-+]?\d+)?"
_GROUPED = rf"\d{{1,3}}(?:[,.'’_{_GAPS}]\d{{3}})+(?:[.,]\d+)?"
_DIGITS = rf"(?:{_GROUPED}|{_COMMA}|{_PLAIN})"
_SIGNED = rf"[-+−–]?\s*{_DIGITS}"
_MONEY = r"(?:[$€£¥₹₩₽]|US\$|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD)"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
# Each spelling of a number that is not read, in the order in which they are tried.
_SPELLINGS = {
    "numbers with decimal commas": rf"[-+−–]?{_COMMA}",
    "numbers with separators of thousands": rf"[-+−–]?{_GROUPED}",
    "numbers with underscores": r"[-+−–]?\d+(?:_\d+)+(?:\.\d*)?",
    "numbers with signs of percent": rf"{_SIGNED}\s*[%‰]|[%‰]\s*{_SIGNED}",
    "amounts of a currency": rf"[-+−–]?\s*{_MONEY}\s*{_SIGNED}|{_SIGNED}\s*{_MONEY}",
    "hexadecimal, octal or binary numbers": (
        r"[-+]?0[xX][0-9a-fA-F]+|[-+]?0[oO][0-7]+|[-+]?0[bB][01]+"
    ),
    "numbers with a minus that is no hyphen": rf"[−–]\s*{_PLAIN}",
    "numbers with a sign apart or behind": rf"[-+]\s+{_DIGITS}|{_DIGITS}\s*-",
    "numbers in parentheses": rf"\(\s*{_SIGNED}\s*\)",
    "numbers with another exponent": (
        rf"{_SIGNED}(?:[dD][-+]?\d+|\s*[x×*·]\s*10\s*(?:\^|\*\*)?\s*[-+]?\d*)"
    ),
    "numbers with a sign of comparison": rf"(?:[<>≤≥~≈±]|<=|>=)\s*{_SIGNED}",
    "numbers behind an apostrophe": rf"'{_SIGNED}",
    "fractions": r"[-+]?\d+\s*[/⁄]\s*\d+|[-+]?\d*\s*[¼½¾⅐-⅞]",
    "dates that are not written YYYY-MM-DD": (
        rf"\d{{1,4}}([./-])\d{{1,2}}\1\d{{1,4}}(?:[ T].*)?|\d{{1,2}}[ .-]*{_MONTH}[ .,-]*\d{{2,4}}"
        rf"|{_MONTH}[ .-]*\d{{1,2}},?\s+\d{{4}}"
    ),
    "times of day": r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s*[AaPp]\.?[Mm]\.?)?",
}
_PATTERNS = {
    name: re.compile(pattern, re.ASCII | re.IGNORECASE) for name, pattern in _SPELLINGS.items()
}
_WITH_UNIT = re.compile(rf"({_SIGNED})\s*([a-zµμ°Ω/²³^*·]{{1,6}}\d?)", re.ASCII | re.IGNORECASE)
_ORDINALS = ("st", "nd", "rd", "th")
# Single letters that number grades, as 1a and 1b, are no units, unless all have the same.
_UNIT_NAMES = (
    "nm µm μm um mm cm dm m km in ft yd mi m2 m3 m² m³ ml cl l mg g kg t lb lbs oz ms s sec min h"
    " hr hrs yr yrs km/h mph m/s hz khz mhz ghz mv kv ma kw kwh mwh kj kcal cal pa hpa kpa bar psi"
    " °c °f kb mb gb tb kib mib gib px pt k m bn mio mrd db bpm rpm ha"
)
_UNITS = frozenset(_UNIT_NAMES.split())


def without_hidden(text: str) -> str:
    """The text without characters that do not show, such as zero-width spaces and byte order
    marks.
    """
    return "".join(letter for letter in text if unicodedata.category(letter) != "Cf")


def other_spelling(text: str) -> str:
    """Return what a number is called that is written in a way that `is_decimal` does not read; ""
    of what is no number.

    >>> other_spelling("3,4")
    'numbers with decimal commas'
    """
    shown = without_hidden(text)
    if shown != text and (is_decimal(shown) or other_spelling(shown)):
        return "numbers with characters that do not show"
    plain = "".join(str(unicodedata.decimal(letter, letter)) for letter in text)
    if plain != text and (is_decimal(plain) or other_spelling(plain)):
        return "numbers in digits of another script"
    return next((name for name, pattern in _PATTERNS.items() if pattern.fullmatch(text)), "")


def with_units(texts: Iterable[str]) -> bool:
    """Whether all of the texts are numbers with a unit behind: a known one, or one and the same
    of several numbers.
    """
    matches = [_WITH_UNIT.fullmatch(text) for text in texts]
    suffixes = {match[2].lower() for match in matches if match is not None}
    if not suffixes or None in matches or not suffixes.isdisjoint(_ORDINALS):
        return False
    several = len({match[1] for match in matches if match is not None}) > 2
    return suffixes <= _UNITS or (several and len(suffixes) == 1)
