"""Keeping this process off the network for a while, whatever library would use it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_REASONS: list[str] = []  # why the network is closed; empty while it is open
_INSTALLED: list[bool] = []


@contextmanager
def offline(reason: str) -> Iterator[None]:
    """Inside, looking up a host or connecting to one is an OSError that gives the reason. Local sockets work."""
    if not _INSTALLED:  # once in a process: a hook cannot be removed
        sys.addaudithook(_refuse)
        _INSTALLED.append(True)
    _REASONS.append(reason)
    try:
        yield
    finally:
        _REASONS.pop()


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    connects = event == "socket.connect" and isinstance(arguments[1], tuple)
    if _REASONS and (connects or event == "socket.getaddrinfo"):
        raise OSError(_REASONS[-1])
