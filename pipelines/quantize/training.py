"""Quantization-aware training: fine-tuning the weights under their rounding."""

from __future__ import annotations

import copy

import torch
from torch import fx

from evalsuite import Bench, Unsupported
from pipelines.quantize.calibration import check_grid, check_ranges
from pipelines.quantize.threads import one_thread


def train(quantized: fx.GraphModule, bench: Bench, epochs: int) -> fx.GraphModule:
    """A copy of a calibrated network with weights and biases trained for `epochs` passes, in eval mode.

    Gradients pass through the rounding unchanged (the straight-through estimator, arXiv 1308.3432). Scales and zero
    points stay what calibration found: they need a learning rate of their own (arXiv 1902.08153), but the workload's
    optimizer has one for all parameters, and weight decay, which would pull every range towards 0. The same seed gives
    the same network, bit for bit, for every number of threads.

    Raises:
        ValueError: `epochs` is negative.
        Unsupported: training diverged, or a bias outgrew 32 bits.
    """
    if epochs < 0:
        raise ValueError(f"epochs must be at least 0, got {epochs}")
    trained = copy.deepcopy(quantized)
    # Whatever draws random numbers in a float island does so from the seed, and the caller's generator stays as it was.
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(bench.seed)
        bench.fine_tune(trained, epochs)
    trained.eval()
    trained.zero_grad(set_to_none=True)
    for name, parameter in trained.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise Unsupported(f"training under quantization diverged: {name} is not finite after {epochs} epochs")
    check_ranges(trained)
    check_grid(trained)
    return trained
