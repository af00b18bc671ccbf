"""Workloads that misbehave, each in one way; the tests put this folder on the path with a
distribution's metadata.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from evalsuite.contract import Data
from evalsuite.workloads.digits import DigitsMLP


@dataclass(frozen=True)
class WithoutVersion:
    """The digits, without the version that enters the cache key."""

    fingerprint, data, build = DigitsMLP.fingerprint, DigitsMLP.data, DigitsMLP.build


@dataclass(frozen=True)
class WithoutBuild:
    """No architecture."""

    version: ClassVar[str] = "1"
    fingerprint, data = DigitsMLP.fingerprint, DigitsMLP.data


@dataclass
class Thawed:
    """Not frozen, so that nothing can be kept of it."""

    version: ClassVar[str] = "1"


@dataclass(frozen=True)
class Asks(DigitsMLP):
    """Leaves when it is made."""

    def __post_init__(self) -> None:
        raise SystemExit("no")


@dataclass(frozen=True)
class FromFile(DigitsMLP):
    """Digits that need a file: to be told apart, or only when they are read."""

    file: str = "/nowhere/digits.csv"
    when: str = "fingerprint"

    def fingerprint(self) -> str:
        if self.when == "fingerprint":
            Path(self.file).read_bytes()
        if self.when == "exit":
            raise SystemExit(3)
        return super().fingerprint()

    def data(self) -> Data:
        Path(self.file).read_bytes()
        return super().data()


@dataclass(frozen=True)
class Overlapping(DigitsMLP):
    """Tests on what it trained on."""

    def data(self) -> Data:
        data = super().data()
        return replace(data, test=data.train)


class _Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drawn = torch.rand(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drawn


@dataclass(frozen=True)
class Unsavable(DigitsMLP):
    """A network that draws a number of its own, which no file holds, and a training without end."""

    epochs: int = 10**9

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        return nn.Sequential(_Drawn(), nn.Linear(64, 8), activation(8), nn.Linear(8, 10))


@dataclass(frozen=True)
class Downloading(DigitsMLP):
    """Asks another machine for its fingerprint."""

    def fingerprint(self) -> str:
        with urllib.request.urlopen("http://127.0.0.1:9/digits", timeout=5) as reply:
            return str(reply.read())
