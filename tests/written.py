"""Networks that a test writes in one expression, and a bench of samples that are train and test
in one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from networks_by_hand import Written
from torch import nn

from evalsuite import Bench, Data, Split

__all__ = ["Written", "affine", "bench_of", "mlp"]


def affine(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    """A layer with these numbers."""
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    state = {"weight": torch.tensor(weight)} | (
        {} if bias is None else {"bias": torch.tensor(bias)}
    )
    layer.load_state_dict(state)
    return layer


def mlp(
    *widths: int, activation: Callable[[], nn.Module] = nn.ReLU, seed: int = 0
) -> nn.Sequential:
    """Layers of these widths, drawn from the seed."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1]).eval()


def bench_of(
    part: Split,
    classes: int,
    folder: Path,
    *,
    domain: tuple[float, float] = (0.0, 1.0),
    vocabulary: int | None = None,
    time_limit: float = 60.0,
) -> Bench:
    """A bench without fine-tuning, whose data have one part for everything."""
    data = Data(part, part, part, part, domain, classes, "by hand", vocabulary)
    return Bench(data, 0, folder, time_limit, lambda *_, **__: None)
