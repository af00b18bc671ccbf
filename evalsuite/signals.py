"""Signals that end a program, held back while a process is being started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_back() -> Iterator[None]:
    """Inside, the first signal that ends a program waits until the block is left; a second one is obeyed at once.

    A process that is forked by a server is asked for in several messages. Were the asking cut off between two of
    them, the server would end with a traceback, or the process would run on with nobody to stop it.
    """
    if threading.current_thread() is not threading.main_thread():  # Python tells signals to the main thread alone
        yield
        return
    came: list[int] = []
    before = {each: handler for each in ENDING if callable(handler := signal.getsignal(each))}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def wait(number: int, _: object) -> None:
        came.append(number)
        restore()

    for each in tuple(before):
        signal.signal(each, wait)
    try:
        yield
    finally:
        restore()
        if came:
            signal.raise_signal(came[0])
