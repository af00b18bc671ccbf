"""Rounding weights to their grid so that a layer's outputs, not its weights, come out near: GPTQ and GPFQ."""

from __future__ import annotations

from typing import Any, Literal

import torch
from brevitas.nn import QuantLinear
from torch.nn import functional

WeightRounding = Literal["nearest", "gptq", "gpfq"]

# Share of the mean of the Hessian's diagonal that is added to it (arXiv 2210.17323).
_DAMPING = 0.01
# Columns of inputs, one for each sample and place of a convolution, from which products are taken.
_COLUMNS = 2**14
# Of a step: how far from its integer a weight is left, so that float32 rounds it there.
_INSIDE = 0.49


class Products:
    """Sums over calibration inputs of products of a layer's inputs, for each of its groups, float64.

    `own` is X^T X of what the layer is given, (groups, weights, weights); `other` is X^T F with the inputs F that it
    has in the float network.
    """

    def __init__(self, layer: Any, given: torch.Tensor, in_float: torch.Tensor | None = None) -> None:
        # A sample has about one column for each place.
        channels = layer.weight.shape[1] * getattr(layer, "groups", 1)
        step = max(1, given.numel() // channels // _COLUMNS)
        columns = _columns(layer, given[::step])
        self.own = columns.mT @ columns
        self.other = self.own if in_float is None else columns.mT @ _columns(layer, in_float[::step])


def _columns(layer: Any, given: torch.Tensor) -> torch.Tensor:
    """The inputs of each product that the layer takes, (groups, samples x places, weights of an output)."""
    if isinstance(layer, QuantLinear):
        return given.reshape(1, -1, given.shape[-1]).double()
    sizes = layer.kernel_size
    padded = functional.pad(given, [each for each in reversed(layer.padding) for _ in range(2)]).double()
    strides, dilation = layer.stride, layer.dilation
    if len(sizes) == 1:
        padded, sizes, strides, dilation = padded[:, :, None], (1, *sizes), (1, *strides), (1, *dilation)
    patches = functional.unfold(padded, sizes, dilation, 0, strides)
    return patches.view(len(given), layer.groups, -1, patches.shape[-1]).permute(1, 0, 3, 2).flatten(1, 2)


@torch.no_grad()
def round_weights(layer: Any, rounding: WeightRounding, products: Products) -> float:
    """Put the layer's weights on its grid, in place; the share of integers that are not those of rounding to nearest.

    An input that is 0 in all samples says nothing of its weights, which are rounded to nearest.
    """
    before = layer.quant_weight()
    scale, nearest = before.scale.double().flatten(), before.int().flatten(1)
    most = 2 ** (int(before.bit_width) - 1) - 1
    weight = layer.weight.double().flatten(1)
    real, to_grid = weight / scale[:, None], _gptq if rounding == "gptq" else _gpfq
    parts = zip(real.chunk(len(products.own)), products.own, products.other, strict=True)
    steps = torch.cat([to_grid(part, own, other, most) for part, own, other in parts])
    kept = torch.clamp(real, steps - _INSIDE, steps + _INSIDE)
    layer.weight.copy_((kept * scale[:, None]).view_as(layer.weight))
    return float((steps != nearest).double().mean())


def _gptq(weight: torch.Tensor, own: torch.Tensor, _other: torch.Tensor, most: int) -> torch.Tensor:
    """Weights in steps, (outputs, inputs), as integers: each column's error goes to the columns after it.

    GPTQ, arXiv 2210.17323: the shares come from the upper Cholesky factor of the inverse Hessian.
    """
    hessian = own.clone()
    diagonal = hessian.diagonal()
    seen = diagonal > 0
    if not bool(seen.any()):
        return weight.round().clamp(-most, most)
    diagonal += _DAMPING * diagonal[seen].mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor = torch.linalg.cholesky(inverse, upper=True)
    left, integers = weight.clone(), torch.empty_like(weight)
    for j in range(weight.shape[1]):
        integers[:, j] = left[:, j].round().clamp(-most, most)
        error = (left[:, j] - integers[:, j]) / factor[j, j]
        left[:, j + 1 :].addr_(error, factor[j, j + 1 :], alpha=-1)
    return integers


def _gpfq(weight: torch.Tensor, own: torch.Tensor, other: torch.Tensor, most: int) -> torch.Tensor:
    """Weights in steps, (outputs, inputs), as integers: each follows the path of the float layer's outputs.

    q_t = Q(<X_t, u + w_t F_t> / <X_t, X_t>) with u = sum over s < t of w_s F_s - q_s X_s (GPFQ,
    arXiv 2201.11113).
    """
    integers = torch.empty_like(weight)
    for t in range(weight.shape[1]):
        norm = own[t, t]
        wanted = weight[:, : t + 1] @ other[t, : t + 1] - integers[:, :t] @ own[t, :t]
        integers[:, t] = (wanted / norm if norm > 0 else weight[:, t]).round().clamp(-most, most)
    return integers
