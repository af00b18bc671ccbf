"""The errors of this library: a network that is not supported, and a file that cannot be used."""

from __future__ import annotations


class Unsupported(Exception):
    """Raised where a network, or an operator of it, is not read, bounded or lowered; its text is
    the reason.
    """


class OwnError(ValueError):
    """Raised where what a user brought cannot be used; the text names the culprit, the value and
    the cure.
    """
