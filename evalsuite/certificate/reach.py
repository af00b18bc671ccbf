"""Which values can reach the activations of a network over a box: what is provably off, on or constant there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from evalsuite.certificate.propagation import Propagation
from evalsuite.certificate.routes import Twins, read_twins

# Bytes of the largest array of coefficients of the boxes that are bounded at once.
_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class UnitBounds:
    """An activation: its dotted path, and what bounds its inputs, (boxes, units) float64, units in row-major order.

    Example: docs/reference.md#certify-a-swap
    """

    path: str
    lower: torch.Tensor
    upper: torch.Tensor


class _Reaching(Propagation):
    """A propagation that tells the intervals before its activations."""

    def reached(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [level.reach.a for level in self._levels]


@torch.no_grad()
def preactivation_bounds(module: nn.Module, lower: torch.Tensor, upper: torch.Tensor) -> list[UnitBounds]:
    """Bounds of the inputs of every activation of `module` over boxes, in the order in which they are applied.

    Interval arithmetic and backward linear bounds (CROWN, arXiv 1811.00866) are intersected, as neither is always the
    tighter one. The statement is about the real functions of the float32 parameters; rounding here is accounted for.

    Args:
        module: affine layers and activations, one behind the other, in any mode: eval mode is meant.
        lower: (boxes, *input_shape), float32 or float64.
        upper: of the same shape, >= lower.

    Raises:
        Unsupported: a layer or an activation without a rule, named by its dotted path; values beyond 1e100.
        ValueError: boxes that are no boxes.

    Example: docs/reference.md#certify-a-swap
    """
    if lower.shape != upper.shape or lower.ndim < 2 or not len(lower):
        raise ValueError(f"boxes must be (boxes, *input_shape), got {tuple(lower.shape)} and {tuple(upper.shape)}")
    if not bool((lower.isfinite() & upper.isfinite() & (lower <= upper)).all()):
        raise ValueError("a box is reversed, or has an end that is NaN or infinite")
    twins = read_twins(module, tuple(lower.shape[1:]))
    low, high = lower.double().flatten(1), upper.double().flatten(1)
    batch = max(1, _BYTES // (8 * twins.largest))
    parts = [_reached(twins, low[at : at + batch], high[at : at + batch]) for at in range(0, len(low), batch)]
    return [
        UnitBounds(place.path, *(torch.cat(ends) for ends in zip(*(part[at] for part in parts), strict=True)))
        for at, place in enumerate(twins.smooth.places)
    ]


def _reached(twins: Twins, lower: torch.Tensor, upper: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return _Reaching(twins, lower, upper).reached()
