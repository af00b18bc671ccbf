"""Stages that misbehave, each in one way; the tests put this folder on the path with a distribution's metadata."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from evalsuite import Bench, Direction, Metric, Network, Outcome, Unsupported


class _Stage:
    version: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ()


def _fine() -> Outcome:
    return Outcome([Metric("fine", 1.0, "count", Direction.HIGHER)])


@dataclass(frozen=True)
class Segfault(_Stage):
    """Reads address 0."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        ctypes.string_at(0)
        return _fine()


@dataclass(frozen=True)
class Hang(_Stage):
    """Sleeps in C with the interpreter's lock held, out of reach of Python's signal handlers."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        ctypes.PyDLL(None).sleep(1000)
        return _fine()


@dataclass(frozen=True)
class NotANumber(_Stage):
    """One NaN beside a good value."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        bad = Metric("bad", float("nan"), "count", Direction.HIGHER)
        return Outcome([bad, *_fine().metrics])


@dataclass(frozen=True)
class Raises(_Stage):
    """An ordinary bug."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        raise KeyError("no such thing")


@dataclass(frozen=True)
class Exits(_Stage):
    """Leaves without a word."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        os._exit(7)


@dataclass(frozen=True)
class Leaves(_Stage):
    """Leaves as a script does, with the exit code by which a job says that the disk is full."""

    code: int = 28

    def run(self, network: Network, bench: Bench) -> Outcome:
        sys.exit(self.code)


@dataclass(frozen=True)
class Unversioned:
    """Has a number for its version."""

    version: ClassVar[int] = 1
    libraries: ClassVar[tuple[str, ...]] = ()

    def run(self, network: Network, bench: Bench) -> Outcome:
        return _fine()


@dataclass(frozen=True)
class Empty(_Stage):
    """Measures nothing."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        return Outcome([])


@dataclass(frozen=True)
class Declines(_Stage):
    """Supports nothing."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        raise Unsupported("not this network")


@dataclass(frozen=True)
class NotANumberButANetwork(_Stage):
    """A NaN beside a network that could be handed on."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        return Outcome([Metric("bad", float("nan"), "count", Direction.HIGHER)], network=replace(network))


@dataclass(frozen=True)
class Links(_Stage):
    """Leaves a dangling link among its artefacts."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        (bench.folder / "latest").symlink_to("gone")
        return _fine()


@dataclass(frozen=True)
class Outside(_Stage):
    """Declares a file that is not in its folder."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        return replace(_fine(), artefacts={"notes": Path(__file__)})


@dataclass(frozen=True)
class Files(_Stage):
    """Leaves one file, named by its option."""

    file: str = "a.txt"

    def run(self, network: Network, bench: Bench) -> Outcome:
        (bench.folder / self.file).write_text("content")
        return replace(_fine(), artefacts={"text": bench.folder / self.file})


@dataclass(frozen=True)
class Rebuilds(_Stage):
    """Hands on a network that the architecture cannot be resized to."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        changed = nn.Sequential(network.module, nn.Linear(network.classes, network.classes)).eval()
        return replace(_fine(), network=replace(network, module=changed))


@dataclass(frozen=True)
class Slow(_Stage):
    """Takes its time, and says what it saw; the value depends on the seed and the network."""

    seconds: float = 0.3

    def run(self, network: Network, bench: Bench) -> Outcome:
        time.sleep(self.seconds)
        noise = torch.rand(()).item()
        weight = next(network.module.parameters()).sum().item()
        clock = Metric("clock", time.time(), "s", Direction.LOWER, timing=True)
        return Outcome(
            [
                Metric("noise", noise, "count", Direction.HIGHER),
                Metric("weight", weight, "count", Direction.HIGHER),
                clock,
            ]
        )
