"""The digits with networks so small that exact verifiers decide most of what they are asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.workloads.digits import Digits
from evalsuite.workloads.layers import mlp

if TYPE_CHECKING:
    from torch import nn

_WIDEST = 1024


@dataclass(frozen=True)
class DigitsTinyMLP(Digits):
    """Digits, fully connected 64-16-16-10, or with other hidden layers.

    Args:
        hidden: widths of the hidden layers as text: "16", "16-16", "32-32".
    """

    shape: ClassVar[tuple[int, ...]] = (64,)
    epochs: int = 40
    hidden: str = "16-16"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"\d{1,4}(-\d{1,4})*", self.hidden, re.ASCII):
            raise ValueError(
                f"hidden must be widths joined by '-', as in '16-16', got {self.hidden!r}"
            )
        for width in self._widths():
            if not 1 <= width <= _WIDEST:
                raise ValueError(
                    f"hidden must be of widths from 1 to {_WIDEST}, got {width} in {self.hidden!r}"
                )

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        return mlp([64, *self._widths(), 10], activation)

    def _widths(self) -> list[int]:
        return [int(width) for width in self.hidden.split("-")]
