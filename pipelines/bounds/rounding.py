"""How far rounding can move a network's logits: a forward bound, layer by layer, over the boxes of properties.

Assumed of float32 libraries: products are summed as they stand (no Winograd or Fourier transforms, no bfloat16), erf
is right to 2**-19, and softplus to a few units in the last place.
"""

from __future__ import annotations

import copy
from collections import deque

import torch
from torch import nn

from evalsuite import GELU, Found, Unsupported, census, replace
from pipelines.bounds.spread import TINY, UNIT, Recording, Run, Spread, between

# Relative to a GELU's input: scaling, erf, 1 + erf, two products and a division, and the error of the hardness.
_GELU_UNITS = 32
# float64 bounds go forward and backward through the same sums of magnitudes, with a few more operations each.
_FLOAT64 = 16 * 2.0**-53 / UNIT


class _Gelu(nn.Module):
    """gelu(hardness x) / hardness of a Spread."""

    def __init__(self, hardness: torch.Tensor) -> None:
        super().__init__()
        self._hardness = hardness.detach().double().flatten()

    def forward(self, x: Spread) -> Spread:
        center, radius, error = x.parts()
        hardness = self._hardness.reshape(1, -1, *[1] * (center.ndim - 2))
        lower, upper = x.run.narrowed(center - radius, center + radius)
        steepest = _steepest(hardness * (lower - 1.01 * error), hardness * (upper + 1.01 * error))
        magnitude = torch.maximum(lower.abs(), upper.abs()) + error
        x.run.reached(hardness * magnitude)
        moved = steepest * error + _GELU_UNITS * (UNIT * magnitude + TINY)
        first, last = hardness * lower, hardness * upper
        ends = torch.stack([GELU.value(first), GELU.value(last)])
        # g falls and then rises: its minimum is inside where the slopes say so.
        inside = (GELU.slope(first) < 0) & (GELU.slope(last) > 0)
        lowest = torch.where(inside, -GELU.relu_distance, ends.amin(0))
        return between(lowest / hardness, ends.amax(0) / hardness, moved, x.run)


def _steepest(lower: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
    """The greatest |g'| on [lower, upper]: at an end or at an inflection."""
    inside = [torch.minimum(torch.maximum(torch.tensor(at).double(), lower), upper) for at in GELU.inflections]
    slopes = [GELU.slope(at).abs() for at in (lower, upper, *inside)]
    return torch.stack(slopes).amax(0) + 1e-6


def _stand_in(found: Found) -> nn.Module:
    return found.module if found.traits.name == "relu" else _Gelu(found.traits.hardness(found.module))


class Rounding:
    """Bounds of the rounding errors of one network, whose activations are ReLU and GELU, with or without hardness."""

    def __init__(self, module: nn.Module) -> None:
        exact = copy.deepcopy(module).double().eval()
        self._module = replace(exact, _stand_in) if census(exact) else exact
        # Bounds sum over a layer's outputs where the network sums over its inputs.
        shapes = [each.shape for each in exact.parameters() if each.ndim > 1]
        self._widest = max([1.0, *[shape[0] / shape[1] for shape in shapes]])

    @torch.no_grad()
    def in_order(self, points: torch.Tensor, inputs: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
        """Whether `inputs`, bounds for boxes that are `points`, are what the activations get, one after another."""
        seen: list[torch.Tensor] = []
        run = Recording(None, torch.zeros(len(points), dtype=torch.bool), seen)
        self._module(between(points, points, torch.zeros_like(points), run))
        return len(seen) == len(inputs) and all(
            low.shape == value.shape and torch.allclose(low, value, rtol=1e-6, atol=1e-6)
            for (low, _), value in zip(inputs, seen, strict=True)
        )

    @torch.no_grad()
    def errors(
        self, lower: torch.Tensor, upper: torch.Tensor, inputs: list[tuple[torch.Tensor, torch.Tensor]] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """How far the logits can be off, in float32 (infinite where it may overflow) and in float64 bounds of them.

        Each (batch, classes), for the boxes' ends (batch, *input_shape); `inputs` are bounds of each activation's
        input, in the order of their evaluation: they make the errors smaller.

        Raises:
            Unsupported: a function without rule, named.
        """
        run = Run(None if inputs is None else deque(inputs), torch.zeros(len(lower), dtype=torch.bool))
        run.reached(torch.maximum(lower.abs(), upper.abs()))
        logits = self._module(between(lower, upper, torch.zeros_like(lower), run))
        if not isinstance(logits, Spread):
            raise Unsupported("the network's output does not come from its input")
        error = logits.error.nan_to_num(torch.inf, torch.inf)
        single = error.masked_fill(run.overflow[:, None], torch.inf)
        return single, error * _FLOAT64 * self._widest
