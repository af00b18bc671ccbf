"""ReLU6, the activation of MobileNets (arXiv 1801.04381), and any other clipping of values to an
interval.
"""

from __future__ import annotations

import math
from functools import lru_cache

from torch import nn

from lambda_gelu.activations.traits import Activation


def _bounds(module: nn.Module) -> tuple[float, float] | None:
    return (
        (float(module.min_val), float(module.max_val)) if isinstance(module, nn.Hardtanh) else None
    )


@lru_cache(maxsize=256)
def clip(low: float, high: float) -> Activation:
    """The row of min(max(x, low), high), which nn.Hardtanh(low, high) computes; the ends may be
    infinite.

    Raises:
        ValueError: low >= high, or a NaN.
    """
    if not low < high:
        raise ValueError(f"clip needs low < high, got {low} and {high}")

    return Activation(
        name="relu6" if (low, high) == (0, 6) else f"clip({low:g}, {high:g})",
        help="ReLU, clipped at 6",
        source="arXiv 1801.04381",
        formula=f"min(max(x, {low:g}), {high:g})",
        value=lambda z: z.clamp(low, high),
        slope=lambda z: ((z > low) & (z < high)).to(z.dtype),
        relu_distance=math.inf if high < math.inf else abs(low),
        make=lambda _: nn.ReLU6() if (low, high) == (0, 6) else nn.Hardtanh(low, high),
        matches=lambda module: _bounds(module) == (low, high),
        onnx="Clip",
        limits=(float(low == -math.inf), float(high == math.inf)),
        kinks=tuple(end for end in (low, high) if math.isfinite(end)),
        swaps=False,
    )


RELU6 = clip(0.0, 6.0)
"""The row of ReLU6, which is ReLU clipped at 6."""
