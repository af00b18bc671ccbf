"""Quantization-aware training: fine-tuning the weights, and the scales if asked for, under their rounding."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from brevitas.nn import QuantIdentity
from torch import fx

from evalsuite import Bench, Direction, Metric, Unsupported, mean_loss
from pipelines.quantize.calibration import check_grid, check_ranges
from pipelines.quantize.processor import one_thread
from pipelines.quantize.quantizers import COMPUTE
from pipelines.quantize.scale_learning import ScaleLearning
from pipelines.quantize.tracing import at_a_time

# Octaves a step, the same for every network. Of equally good ones the first is taken: 0 keeps calibration's scales.
RATES = (0.0, 0.003, 0.01)
_CHUNK = 1000  # samples at a time, at most


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rate of the scales: the task's validation loss it led to, or None and the reason why there is none."""

    rate: float
    loss: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trained:
    """The network trained at the `rate` that was chosen, and all attempts."""

    network: fx.GraphModule
    rate: float
    attempts: tuple[Attempt, ...]


def train(quantized: fx.GraphModule, bench: Bench, epochs: int, rate: float = 0.0) -> fx.GraphModule:
    """A copy of a calibrated network with weights and biases trained for `epochs` passes, in eval mode.

    Gradients pass through the rounding unchanged (the straight-through estimator, arXiv 1308.3432). Scales move by up
    to `rate` octaves a step, see `ScaleLearning`; at 0 they stay what calibration found. The same seed gives the same
    network, bit for bit, for every number of threads.

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
    # Whatever draws random numbers in a float island does so from the seed, and the caller's generator stays as it was.
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(bench.seed)
        bench.fine_tune(trained, epochs, after_step=scales.step if scales else None)
    if scales:
        scales.finish()
    trained.eval()
    trained.zero_grad(set_to_none=True)
    for name, parameter in trained.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise Unsupported(f"training under quantization diverged: {name} is not finite after {epochs} epochs")
    check_ranges(trained)
    check_grid(trained)
    return trained


def train_scales(quantized: fx.GraphModule, bench: Bench, epochs: int, rates: Sequence[float] = RATES) -> Trained:
    """Train at each rate of the scales, and take the network of least loss on the validation data.

    Raises:
        ValueError: see `train`; there is no rate.
        Unsupported: training diverged at every rate.
    """
    if not rates:
        raise ValueError("there is no rate to train the scales at")
    best, attempts, least = None, [], math.inf
    for rate in rates:
        try:
            network = train(quantized, bench, epochs, rate)
        except Unsupported as error:
            attempts.append(Attempt(rate, None, str(error)))
            continue
        loss = mean_loss(network, bench.data.validation, batch=at_a_time(network, _CHUNK))
        if not math.isfinite(loss):
            attempts.append(Attempt(rate, None, f"the validation loss is {loss}"))
            continue
        attempts.append(Attempt(rate, loss))
        if loss < least:
            best, least = (network, rate), loss
    if best is None:
        raise Unsupported(attempts[0].reason)
    return Trained(*best, tuple(attempts))


def least_bits(quantized: fx.GraphModule) -> int:
    """The fewest that a layer's weights or a quantized tensor have."""
    kinds = [each.weight_quant for each in quantized.modules() if isinstance(each, COMPUTE)]
    kinds += [each.act_quant for each in quantized.modules() if isinstance(each, QuantIdentity)]
    return min(int(each.bit_width()) for each in kinds)


def metrics_of_training(trained: Trained, unit: str = "nats") -> list[Metric]:
    """The rate that was chosen, and the validation loss in `unit` at each, with the setting "scale_rate"."""
    neutral = Direction.NEUTRAL
    chosen = f"of {', '.join(f'{each.rate:g}' for each in trained.attempts)}, by validation; 0 keeps calibration's"
    return [
        Metric("scale_learning_rate", trained.rate, "octave", neutral, reason=chosen),
        *(Metric("validation_loss", each.loss, unit, neutral, {"scale_rate": each.rate}, reason=each.reason)
          for each in trained.attempts),
    ]  # fmt: skip
