"""Quantization-aware training: fine-tuning the weights, and the scales if asked for, under their
rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from brevitas.nn import QuantIdentity
from torch import fx, nn

from evalsuite import Bench, Direction, Metric, Unsupported
from evalsuite.tasks.score import mean_loss
from intnet.threads import one_thread
from pipelines.quantize.calibration import check_grid, check_ranges
from pipelines.quantize.placement import COMPUTE, is_power_of_two, kernel_of
from pipelines.quantize.tracing import at_a_time


@dataclass(frozen=True, slots=True)
class Range:
    """One quantizer's, or one per channel: `length` is Brevitas' parameter, or its logarithm;
    `below` what is under 0.

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
        """That of a calibrated layer of Brevitas, as it is now; weights, which are signed, have
        no zero point.
        """
        kernel = kernel_of(layer)
        length, power_of_two = kernel.scaling_impl.value, is_power_of_two(kernel)
        below = kernel.zero_point_impl.value if isinstance(layer, QuantIdentity) else None
        # Brevitas rounds a logarithm up: from a whole one the least step up would double the scale,
        # so begin amid.
        start = length.detach().ceil() - 0.5 if power_of_two else length.detach().clone()
        start_below = None if below is None else below.detach().clone()
        return cls(length, below, power_of_two, start, start_below, torch.zeros_like(start))

    @property
    def factor(self) -> torch.Tensor:
        """The factor by which the scale has grown since calibration."""
        moved = (
            (self.start + self.octaves).ceil() - self.start.ceil()
            if self.power_of_two
            else self.octaves
        )
        return moved.exp2()

    def take_gradient(self) -> None:
        """That of the octaves, from those of Brevitas' parameters: both ends of the range move."""
        factor, gradient = self.factor, torch.zeros_like(self.octaves)
        if self.length.grad is not None:
            gradient += self.length.grad * (
                1 if self.power_of_two else self.start * factor * math.log(2)
            )
        if self.below is not None and self.start_below is not None and self.below.grad is not None:
            gradient += self.below.grad * self.start_below * factor * math.log(2)
        self.octaves.grad = gradient

    def write(self) -> None:
        """Write the learnt range into Brevitas' parameters."""
        self.length.copy_(
            self.start + self.octaves if self.power_of_two else self.start * self.factor
        )
        if self.below is not None and self.start_below is not None:
            self.below.copy_(self.start_below * self.factor)


class ScaleLearning:
    """Learns all scales of a calibrated network, those of activations and those of channels'
    weights, in place.

    The gradient of a scale is that of LSQ (arXiv 1902.08153): Brevitas clips as it does, and its
    rounding passes gradients through. As in TQT (arXiv 1903.08066) what moves is the scale's binary
    logarithm, by Adam: so scales stay above 0, powers of two are learnt in the same way, rounded up
    with the gradient passed through, and a step has a size of its own, whatever the workload's
    optimizer, whose weight decay would pull every range towards 0. Adam divides LSQ's factor 1 /
    sqrt(N Q) out again. Zero points, as integers, stay what calibration found.
    """

    def __init__(self, network: nn.Module, rate: float) -> None:
        """Make the scales of `network` take gradients; `rate` is the octaves that one moves in a
        step, at first.
        """
        self._rate, self._first = rate, 0.0
        self.ranges = [
            Range.of(module)
            for module in network.modules()
            if isinstance(module, (QuantIdentity, *COMPUTE))
        ]
        self._optimizer = torch.optim.Adam([range_.octaves for range_ in self.ranges], lr=rate)
        self._freeze(frozen=False)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """After a step of the workload's optimizer: one of the scales, whose rate falls as the
        workload's does.
        """
        self._first = self._first or learning_rate
        for range_ in self.ranges:
            range_.take_gradient()
        self._optimizer.param_groups[0]["lr"] = self._rate * learning_rate / self._first
        self._optimizer.step()
        for range_ in self.ranges:  # over what the workload's own optimizer made of them
            range_.write()

    @torch.no_grad()
    def finish(self) -> None:
        """Make constants of the learnt scales, as calibration leaves them."""
        for range_ in self.ranges:
            if range_.power_of_two:
                range_.length.ceil_()
        self._freeze(frozen=True)

    def _freeze(self, *, frozen: bool) -> None:
        for range_ in self.ranges:
            for parameter in (range_.length, range_.below):
                if parameter is not None:
                    parameter.requires_grad_(not frozen)


# Octaves a step, the same for every network. Of equally good ones the first is taken: 0 keeps
# calibration's scales.
RATES = (0.0, 0.003, 0.01)
_CHUNK = 1000  # samples at a time, at most


def train(
    quantized: fx.GraphModule, bench: Bench, epochs: int, rate: float = 0.0
) -> fx.GraphModule:
    """A copy of a calibrated network with weights and biases trained for `epochs` passes, in eval
    mode.

    Gradients pass through the rounding unchanged (the straight-through estimator, arXiv 1308.3432).
    Scales move by up to `rate` octaves a step, see `ScaleLearning`; at 0 they stay what calibration
    found. The same seed gives the same network, bit for bit, for every number of threads.

    Raises:
        ValueError: `epochs` or `rate` is negative.
        Unsupported: training diverged, a range became unusable, or a bias outgrew 32 bits.
    """
    if epochs < 0:
        raise ValueError(f"epochs must be at least 0, got {epochs}")
    if not 0 <= rate < math.inf:
        raise ValueError(f"rate must be at least 0 and finite, got {rate}")
    trained = copy.deepcopy(quantized)
    scales = ScaleLearning(trained, rate) if rate else None
    # Whatever draws random numbers in a float island does so from the seed, and the caller's
    # generator stays as it was.
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(bench.seed)
        bench.fine_tune(trained, epochs, after_step=scales.step if scales else None)
    if scales:
        scales.finish()
    trained.eval()
    trained.zero_grad(set_to_none=True)
    # Training must have left finite numbers, usable ranges and weights on their grids.
    for name, parameter in trained.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise Unsupported(
                f"training under quantization diverged: {name} is not finite after {epochs} epochs"
            )
    check_ranges(trained)
    check_grid(trained)
    return trained


def train_scales(
    quantized: fx.GraphModule,
    bench: Bench,
    epochs: int,
    rates: Sequence[float] = RATES,
    unit: str = "nats",
) -> tuple[fx.GraphModule, list[Metric]]:
    """Train at each rate of the scales, and take the network of least loss on the validation data.

    The rows tell the rate that was chosen, and the validation loss in `unit` at each, with the
    setting "scale_rate", or why there is none.

    Raises:
        ValueError: see `train`; there is no rate.
        Unsupported: training diverged at every rate.
    """
    if not rates:
        raise ValueError("there is no rate to train the scales at")
    best, losses, least, neutral = None, [], math.inf, Direction.NEUTRAL
    # A rate at which training diverges has a row that says so.
    for rate in rates:
        loss, reason = None, ""
        try:
            network = train(quantized, bench, epochs, rate)
        except Unsupported as error:
            reason = str(error)
        else:
            loss = mean_loss(network, bench.data.validation, batch=at_a_time(network, _CHUNK))
            if not math.isfinite(loss):
                loss, reason = None, f"the validation loss is {loss}"
            elif loss < least:
                best, least = (network, rate), loss
        losses.append(
            Metric("validation_loss", loss, unit, neutral, {"scale_rate": rate}, reason=reason)
        )
    if best is None:
        raise Unsupported(losses[0].reason)
    chosen = f"of {', '.join(f'{rate:g}' for rate in rates)}, by validation; 0 keeps calibration's"
    return best[0], [
        Metric("scale_learning_rate", best[1], "octave", neutral, reason=chosen),
        *losses,
    ]


def least_bits(quantized: fx.GraphModule) -> int:
    """The fewest that a layer's weights or a quantized tensor have."""
    kinds = [module.weight_quant for module in quantized.modules() if isinstance(module, COMPUTE)]
    kinds += [
        module.act_quant for module in quantized.modules() if isinstance(module, QuantIdentity)
    ]
    return min(int(kind.bit_width()) for kind in kinds)
