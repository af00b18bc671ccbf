"""A command that another process watches: its signals, its stops and its end are those of a
single process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from test_guard import gone
from workshop import wait_until

PROGRAM = """\
import os, signal, sys, time
from evalsuite.run.watched import watched

def command():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    print(os.getpid(), flush=True)
    for line in sys.stdin:
        print(line, end="", flush=True)
    os._exit(5)

watched(command)
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PROGRAM]
    # In a group of its own, as a shell starts a job: a group whose parents are all outside its
    # session is not stopped.
    settings: dict[str, Any] = {"text": True, "bufsize": 1, "preexec_fn": os.setpgrp}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, **settings) as process:
        yield process
        process.kill()


def command_of(program: subprocess.Popen[str]) -> psutil.Process:
    assert program.stdout is not None
    return psutil.Process(int(program.stdout.readline()))


def test_ctrl_z_stops_a_command_and_its_watcher_and_both_go_on(
    program: subprocess.Popen[str],
) -> None:
    """A shell waits for the process that it has started: that one has to stop too."""
    assert program.stdin is not None
    assert program.stdout is not None
    command, watcher = command_of(program), psutil.Process(program.pid)
    for _ in range(2):
        program.send_signal(signal.SIGTSTP)
        wait_until(
            lambda: {each.status() for each in (command, watcher)} == {psutil.STATUS_STOPPED}
        )
        program.send_signal(signal.SIGCONT)
        program.stdin.write("on\n")
        assert program.stdout.readline() == "on\n"
    program.stdin.close()
    assert program.wait(60) == 5


def test_a_signal_reaches_the_command_and_its_exit_code_the_shell(
    program: subprocess.Popen[str],
) -> None:
    command_of(program)
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == 7


def test_a_command_ends_with_its_watcher(program: subprocess.Popen[str]) -> None:
    command = command_of(program)
    program.kill()
    wait_until(lambda: gone(command.pid))


def test_a_command_that_is_killed_is_told(program: subprocess.Popen[str]) -> None:
    os.kill(command_of(program).pid, signal.SIGKILL)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 128 + signal.SIGKILL
    assert "the process was ended by SIGKILL, as by the system, where memory is short" in errors
