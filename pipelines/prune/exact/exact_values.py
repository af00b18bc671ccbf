"""Networks of Linear layers and ReLU over the rationals: the exact values of their float parameters."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import nn

from pipelines.prune.exact.layers import UNCHANGED, in_order

Interval = tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class Affine:
    """x -> weight x + bias."""

    weight: list[list[Fraction]]
    bias: list[Fraction]

    @staticmethod
    def of(layer: nn.Linear) -> Affine:
        """The layer's parameters as exact fractions."""
        weight = [fractions(row) for row in layer.weight.detach()]
        return Affine(weight, [Fraction(0)] * len(weight) if layer.bias is None else fractions(layer.bias.detach()))

    def intervals(self, inputs: list[Interval]) -> list[Interval]:
        """What the outputs can be where the inputs are in `inputs`."""
        return [self.interval(row, inputs) for row in range(len(self.bias))]

    def interval(self, row: int, inputs: list[Interval]) -> Interval:
        """The interval of one output, for inputs within theirs."""
        low = high = self.bias[row]
        for weight, (least, most) in zip(self.weight[row], inputs, strict=True):
            low += weight * (least if weight > 0 else most)
            high += weight * (most if weight > 0 else least)
        return low, high


def fractions(values: torch.Tensor) -> list[Fraction]:
    """The elements of a vector of floats (n,) as fractions, without any rounding."""
    return [Fraction(each) for each in values.double().tolist()]


def read_affine(module: nn.Module, activation: int) -> list[Affine] | str:
    """The maps up to activation number `activation`, ReLU between each two, or why there are none over the rationals.

    With -1, all of the network's maps.
    """
    maps: list[Affine] = []
    opened = True  # whether the last layer was a ReLU, or there was none
    seen = 0
    for path, layer in in_order(module):
        if isinstance(layer, (nn.Flatten, *UNCHANGED)):
            continue
        if isinstance(layer, nn.Linear) and opened:
            maps, opened = [*maps, Affine.of(layer)], False
        elif isinstance(layer, nn.ReLU) and not opened:
            if seen == activation:
                return maps
            seen, opened = seen + 1, True
        elif isinstance(layer, (nn.Linear, nn.ReLU)):
            return f"layer '{path}' follows another of its kind: only Linear and ReLU in turn are read exactly"
        elif isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            return f"layer '{path}': the square root in BatchNorm is no rational number"
        else:
            return f"layer '{path}' ({type(layer).__name__}): only Linear and ReLU are read exactly"
    return maps
