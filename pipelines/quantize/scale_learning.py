"""Learning the scales of a quantized network while its weights are trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from brevitas.nn import QuantIdentity
from torch import nn

from pipelines.quantize.quantizers import COMPUTE, is_power_of_two, kernel_of


@dataclass(frozen=True, slots=True)
class Range:
    """One quantizer's, or one per channel: `length` is Brevitas' parameter, or its logarithm; `below` what is under 0.

    `octaves`, of the shape of `length`, are how often the range has doubled since calibration.
    """

    length: nn.Parameter
    below: nn.Parameter | None
    power_of_two: bool
    start: torch.Tensor
    start_below: torch.Tensor | None
    octaves: torch.Tensor

    @classmethod
    def of(cls, layer: nn.Module) -> Range:
        """That of a calibrated layer of Brevitas, as it is now; weights, which are signed, have no zero point."""
        kernel = kernel_of(layer)
        length, power_of_two = kernel.scaling_impl.value, is_power_of_two(kernel)
        below = kernel.zero_point_impl.value if isinstance(layer, QuantIdentity) else None
        # Brevitas rounds a logarithm up: from a whole one the least step up would double the scale, so begin amid.
        start = length.detach().ceil() - 0.5 if power_of_two else length.detach().clone()
        start_below = None if below is None else below.detach().clone()
        return cls(length, below, power_of_two, start, start_below, torch.zeros_like(start))

    @property
    def factor(self) -> torch.Tensor:
        """By how much the scale has grown since calibration."""
        moved = (self.start + self.octaves).ceil() - self.start.ceil() if self.power_of_two else self.octaves
        return moved.exp2()

    def take_gradient(self) -> None:
        """That of the octaves, from those of Brevitas' parameters: both ends of the range move."""
        factor, gradient = self.factor, torch.zeros_like(self.octaves)
        if self.length.grad is not None:
            gradient += self.length.grad * (1 if self.power_of_two else self.start * factor * math.log(2))
        if self.below is not None and self.start_below is not None and self.below.grad is not None:
            gradient += self.below.grad * self.start_below * factor * math.log(2)
        self.octaves.grad = gradient

    def write(self) -> None:
        """Write the learnt range into Brevitas' parameters."""
        self.length.copy_(self.start + self.octaves if self.power_of_two else self.start * self.factor)
        if self.below is not None and self.start_below is not None:
            self.below.copy_(self.start_below * self.factor)


class ScaleLearning:
    """Learns all scales of a calibrated network, those of activations and those of channels' weights, in place.

    The gradient of a scale is that of LSQ (arXiv 1902.08153): Brevitas clips as it does, and its rounding passes
    gradients through. As in TQT (arXiv 1903.08066) what moves is the scale's binary logarithm, by Adam: so scales
    stay above 0, powers of two are learnt in the same way, rounded up with the gradient passed through, and a step has
    a size of its own, whatever the workload's optimizer, whose weight decay would pull every range towards 0. Adam
    divides LSQ's factor 1 / sqrt(N Q) out again. Zero points, as integers, stay what calibration found.
    """

    def __init__(self, network: nn.Module, rate: float) -> None:
        """Make the scales of `network` take gradients; `rate` is the octaves that one moves in a step, at first."""
        self._rate, self._first = rate, 0.0
        self.ranges = [Range.of(each) for each in network.modules() if isinstance(each, (QuantIdentity, *COMPUTE))]
        self._optimizer = torch.optim.Adam([each.octaves for each in self.ranges], lr=rate)
        self._freeze(frozen=False)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """After a step of the workload's optimizer: one of the scales, whose rate falls as the workload's does."""
        self._first = self._first or learning_rate
        for each in self.ranges:
            each.take_gradient()
        self._optimizer.param_groups[0]["lr"] = self._rate * learning_rate / self._first
        self._optimizer.step()
        for each in self.ranges:  # over what the workload's own optimizer made of them
            each.write()

    @torch.no_grad()
    def finish(self) -> None:
        """Make constants of the learnt scales, as calibration leaves them."""
        for each in self.ranges:
            if each.power_of_two:
                each.length.ceil_()
        self._freeze(frozen=True)

    def _freeze(self, *, frozen: bool) -> None:
        for each in self.ranges:
            for parameter in (each.length, each.below):
                if parameter is not None:
                    parameter.requires_grad_(not frozen)
