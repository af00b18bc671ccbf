"""Signals that end a program: it answers them in order, and alone while it starts a process that
a server forks.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess

DRIVER = "EVALSUITE_DRIVER"  # the process whose death a server must not outlive
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asks the run to end; `name` is the signal's."""

    def __init__(self, name: signal.Signals = signal.SIGINT) -> None:
        super().__init__(name.name)
        self.name = name


def _stop(number: int, _: object) -> None:
    # What was measured is being made safe: a second signal must not prevent that.
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(signal.Signals(number))


@contextmanager
def stoppable(pause: Callable[[], None], resume: Callable[[], None]) -> Iterator[None]:
    """Inside, the signals raise `Stopped`; those that are ignored, as under nohup, stay ignored.

    Ctrl-Z stops this process, after `pause` and before `resume`.
    """

    def stand(*_: object) -> None:
        pause()
        # the shell sees it, and this line returns when it continues the run
        os.kill(os.getpid(), signal.SIGSTOP)
        resume()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Ignored signals stay so: under nohup a lost terminal is not to end the run.
    before = {each: signal.getsignal(each) for each in (*ENDING, signal.SIGTSTP)}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, stand if each is signal.SIGTSTP else _stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """Inside, the first signal that ends a program waits until the block is left; a second one is
    obeyed at once.

    A process that is forked by a server is asked for in several messages. Were the asking cut off
    between two of them, the server would end with a traceback, or the process would run on with
    nobody to stop it.
    """
    # Python tells signals to the main thread alone
    if threading.current_thread() is not threading.main_thread():
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
        # The old handlers first, so that the signal that waited is answered as if it came now.
        restore()
        if came:
            signal.raise_signal(came[0])


def start(process: BaseProcess) -> None:
    """Start a process that is forked by a server, which is started where there is none.

    A terminal tells Ctrl-C to the server too, and python's own start would answer with a traceback.
    So the server begins with the signal blocked. What it loads first, `evalsuite.forked`, lets it
    in.

    Raises:
        EOFError, ConnectionError: the server ended meanwhile.
    """
    with held_back():
        os.environ[DRIVER] = str(os.getpid())  # read by evalsuite.forked
        resource_tracker.ensure_running()  # as the server is started, this would lift the block
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        process.start()
