"""Signals to a run: Ctrl-C, SIGTERM and SIGHUP end it in order, Ctrl-Z stops its jobs and their clocks too."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evalsuite.signals import ENDING

if TYPE_CHECKING:
    from evalsuite.run.executor import Executor


class Stopped(KeyboardInterrupt):
    """A signal asks the run to end; `name` is the signal's."""

    def __init__(self, name: signal.Signals = signal.SIGINT) -> None:
        super().__init__(name.name)
        self.name = name


def _stop(number: int, _: object) -> None:
    for each in ENDING:  # What was measured is being made safe: a second signal must not prevent that.
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(signal.Signals(number))


@contextmanager
def stoppable(executor: Executor) -> Iterator[None]:
    """Inside, the signals raise `Stopped`; those that are ignored, as under nohup, stay ignored."""

    def pause(*_: object) -> None:
        executor.pause()
        os.kill(os.getpid(), signal.SIGSTOP)  # the shell sees it, and this line returns when it continues the run
        executor.resume()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in (*ENDING, signal.SIGTSTP)}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, pause if each is signal.SIGTSTP else _stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
