"""What sound lines cost: `relax` of several activations over `relax` of ReLU, and over F.gelu on ten times as much."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional

from evalsuite import GELU, RELU, TANH, Activation, compare_latency, interval, relax
from evalsuite.plugins import load

Ratio = tuple[str, float]


def relaxations() -> Iterator[Ratio]:
    """On as many intervals as a small and a large layer have in a batch, float64."""
    generator = torch.Generator().manual_seed(0)
    rows: list[Activation] = [GELU, load("activations", "silu").target, TANH, load("activations", "hard-swish").target]
    for count in (1_600, 100_000):
        lower = 2 * torch.randn(count, dtype=torch.float64, generator=generator)
        upper = lower + 3 * torch.rand(count, dtype=torch.float64, generator=generator)
        inputs = torch.randn(10 * count, dtype=torch.float64, generator=generator)
        exact, forward = partial(relax, RELU, lower, upper), partial(functional.gelu, inputs)
        for row in rows:
            lines = partial(relax, row, lower, upper)
            yield f"lines of {row.name} / of relu, {count:,} intervals", compare_latency(lines, exact, seconds=3).ratio
        for name, call in (("lines", relax), ("ranges", interval)):
            bounds = partial(call, GELU, lower, upper)
            ratio = compare_latency(bounds, forward, seconds=3).ratio
            yield f"{name} of gelu on {count:,} intervals / F.gelu of {10 * count:,} numbers", ratio
