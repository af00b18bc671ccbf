"""Decimal numbers: the one strict reading of them."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

# Of Python's own decimals it reads fewer: no 1_000, no NaN, no digits of other scripts.
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_EXPONENT = 100
_SHOWN = 40  # characters of a number, in messages


def is_decimal(text: str) -> bool:
    """Whether the text is a decimal number, such as -1.5 or 2e-3, in ASCII's digits and with
    nothing beside them.
    """
    return _NUMBER.fullmatch(text) is not None


def exact_decimal(text: str) -> Fraction:
    """The number that a decimal denotes. Raises ValueError for what is none, or beyond 1e+-100."""
    if not is_decimal(text):
        raise ValueError(f"{text!r} is no decimal number")
    try:
        number = Decimal(text)
    except InvalidOperation:  # of an exponent beyond what a Decimal holds
        number = None
    if number is None or abs(number.adjusted()) > _EXPONENT:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise ValueError(f"{shown} is beyond 1e+-{_EXPONENT}")
    return Fraction(number)
