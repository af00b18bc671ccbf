"""Many instances, each in a process of its own that is killed at its time limit and whose crash
is a row.

Instances are the lines of a VNN-COMP file: a network, a property and a time limit. The rows have
the columns of that competition's results.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from evalsuite.signals import start
from opgraph.limits import reading

COLUMNS = ("category", "onnx", "vnnlib", "prepare_s", "result", "run_s")
ERROR = "error"
# What a child may take beyond its time limit: it keeps the limit itself, unless one operation takes
# very long.
_GRACE = 1.0
_START = 60.0
_READY = "ready"


@dataclass(frozen=True, slots=True)
class Instance:
    """One line of an instances file: the paths as written there, and where they lie."""

    category: str
    onnx: str
    vnnlib: str
    timeout: float
    folder: Path


@dataclass(frozen=True, slots=True)
class InstanceResult:
    """A row, in VNN-COMP's columns, and the reason, which is not part of it."""

    category: str
    onnx: str
    vnnlib: str
    prepare_s: float
    result: str
    run_s: float
    reason: str

    def row(self) -> list[str]:
        """The cells of the row as text, in the order of `COLUMNS`; seconds have three decimals."""
        return [
            self.category,
            self.onnx,
            self.vnnlib,
            f"{self.prepare_s:.3f}",
            self.result,
            f"{self.run_s:.3f}",
        ]


def read_instances(path: Path, timeout: float | None = None) -> list[Instance]:
    """The instances of a CSV file, with a header that names onnx, vnnlib and timeout, or just these
    three columns.

    Args:
        path: the paths in it are relative to its folder; the category is the column of that name,
            or `benchmark`, or the folder's name.
        timeout: seconds, instead of the file's.

    Raises:
        ValueError: no instances, a line without the columns, a timeout that is not > 0; the text
            names file and line.
        OSError: the file can't be read.
    """
    with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        try:
            lines = [(reader.line_num, line) for line in reader if line]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}:{max(1, reader.line_num)}: not a CSV file: {error}") from None
    header = ["onnx", "vnnlib", "timeout"]
    if lines and "onnx" in lines[0][1]:
        header = lines.pop(0)[1]
    if not lines:
        raise ValueError(f"{path}: no instances")
    return [
        _instance(path, number, dict(zip(header, line, strict=False)), timeout)
        for number, line in lines
    ]


def _instance(path: Path, number: int, cells: dict[str, str], timeout: float | None) -> Instance:
    missing = [name for name in ("onnx", "vnnlib") if not cells.get(name)]
    if missing or (timeout is None and "timeout" not in cells):
        raise ValueError(f"{path}:{number}: needs the columns onnx, vnnlib and timeout")
    try:
        seconds = float(cells["timeout"]) if timeout is None else timeout
    except ValueError:
        raise ValueError(f"{path}:{number}: timeout {cells['timeout']!r} is no number") from None
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{path}:{number}: timeout must be > 0 and finite, got {seconds:g}")
    category = cells.get("category") or cells.get("benchmark") or path.absolute().parent.name
    return Instance(
        category, cells["onnx"].strip(), cells["vnnlib"].strip(), seconds, path.absolute().parent
    )


def run_instances(
    instances: list[Instance], engine: str = "auto", inputs: str = "exact"
) -> Iterator[InstanceResult]:
    """Verify one after the other by an engine of `verify`, each in a fresh process with one
    thread.
    """
    context = multiprocessing.get_context("forkserver")
    # The imports are made once: each process is forked from a server that has them.
    context.set_forkserver_preload(["evalsuite.forked", "netverify.cascade"])
    for instance in instances:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_child, args=(theirs, instance, engine, inputs), daemon=True
        )
        try:
            start(process)
            theirs.close()
            yield _outcome(instance, process, ours)
        finally:
            _kill(process)
            ours.close()


def _child(connection: Connection, instance: Instance, engine: str, inputs: str) -> None:
    """The entry point of an instance's process: sends that it is ready, then what was found."""
    # A group of its own, so that `_kill` ends whatever an engine starts.
    os.setsid()
    import torch

    from evalsuite.contract import Unsupported
    from evalsuite.plugins import PluginError
    from netverify.cascade import verify

    torch.set_num_threads(1)
    connection.send((_READY, 0.0, 0.0, ""))
    try:
        files = instance.folder / instance.onnx, instance.folder / instance.vnnlib
        verification = verify(*files, engine=engine, timeout=instance.timeout, inputs=inputs)
        connection.send(
            (
                verification.answer.value,
                verification.prepare_seconds,
                verification.seconds,
                verification.reason,
            )
        )
    except OSError as error:
        connection.send(
            (ERROR, 0.0, 0.0, f"{error.filename}: {error.strerror}" if error.errno else str(error))
        )
    except (Unsupported, ValueError, PluginError) as error:
        connection.send((ERROR, 0.0, 0.0, str(error)))


def _outcome(instance: Instance, process: BaseProcess, connection: Connection) -> InstanceResult:

    def row(result: str, prepare: float, seconds: float, reason: str) -> InstanceResult:
        return InstanceResult(
            instance.category, instance.onnx, instance.vnnlib, prepare, result, seconds, reason
        )

    # The clock of an instance starts when its process says that it is ready: imports are not its
    # own. Past its limit by the grace it is killed from outside.
    started, limit = time.perf_counter(), _START
    try:
        while connection.poll(limit):
            result, prepare, seconds, reason = connection.recv()
            if result != _READY:
                return row(result, prepare, seconds, reason)
            started, limit = time.perf_counter(), instance.timeout + _GRACE
        seconds = time.perf_counter() - started
        return row("timeout", 0.0, seconds, f"killed {_GRACE:g} s after its time limit")
    except EOFError:  # the pipe of a process that ended is readable, and empty
        process.join(_GRACE)
        seconds = time.perf_counter() - started
        return row(ERROR, 0.0, seconds, f"its process ended with exit code {process.exitcode}")


def _kill(process: BaseProcess) -> None:
    if process.pid is None:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # before its setsid it leads no group
    process.join()
