"""Apply treatments to weights: like ranges for neighbouring layers, and rounding so that a layer's
outputs come near.

Cross-layer equalization in float (arXiv 1906.04721, section 4.1); GPTQ (arXiv 2210.17323) and GPFQ
(arXiv 2201.11113).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import torch
from brevitas.nn import QuantLinear
from torch import fx, nn
from torch.nn import functional

from pipelines.quantize.kinds import FLOAT_COMPUTE, is_activation
from pipelines.quantize.tracing import Reshape, layer_of

WeightRounding = Literal["nearest", "gptq", "gpfq"]

# Share of the mean of the Hessian's diagonal that is added to it (arXiv 2210.17323).
_DAMPING = 0.01
# Columns of inputs, one for each sample and place of a convolution, from which products are taken.
_COLUMNS = 2**14
# Of a step: how far from its integer a weight is left, so that float32 rounds it there.
_INSIDE = 0.49


class Products:
    """Sums over calibration inputs of products of a layer's inputs, for each of its groups,
    float64.

    `own` is X^T X of what the layer is given, (groups, weights, weights); `other` is X^T F with the
    inputs F that it has in the float network.
    """

    def __init__(
        self, layer: Any, quantized_input: torch.Tensor, in_float: torch.Tensor | None = None
    ) -> None:
        # A sample has about one column for each place.
        channels = layer.weight.shape[1] * getattr(layer, "groups", 1)
        step = max(1, quantized_input.numel() // channels // _COLUMNS)
        columns = _columns(layer, quantized_input[::step])
        self.own = columns.mT @ columns
        self.other = (
            self.own if in_float is None else columns.mT @ _columns(layer, in_float[::step])
        )


def _columns(layer: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The inputs of each product that the layer takes, (groups, samples x places, weights of an
    output).
    """
    if isinstance(layer, QuantLinear):
        return tensor.reshape(1, -1, tensor.shape[-1]).double()
    sizes = layer.kernel_size
    padded = functional.pad(
        tensor, [width for width in reversed(layer.padding) for _ in range(2)]
    ).double()
    strides, dilation = layer.stride, layer.dilation
    if len(sizes) == 1:
        padded, sizes, strides, dilation = (
            padded[:, :, None],
            (1, *sizes),
            (1, *strides),
            (1, *dilation),
        )
    # A row for each place of the window turns a convolution into a product.
    patches = functional.unfold(padded, sizes, dilation, 0, strides)
    return (
        patches.view(len(tensor), layer.groups, -1, patches.shape[-1])
        .permute(1, 0, 3, 2)
        .flatten(1, 2)
    )


@torch.no_grad()
def round_weights(layer: Any, rounding: WeightRounding, products: Products) -> float:
    """Put the layer's weights on its grid, in place; the share of integers that are not those of
    rounding to nearest.

    An input that is 0 in all samples says nothing of its weights, which are rounded to nearest.
    """
    before = layer.quant_weight()
    scale, nearest = before.scale.double().flatten(), before.int().flatten(1)
    most = 2 ** (int(before.bit_width) - 1) - 1
    weight = layer.weight.double().flatten(1)
    real, to_grid = weight / scale[:, None], _gptq if rounding == "gptq" else _gpfq
    parts = zip(real.chunk(len(products.own)), products.own, products.other, strict=True)
    steps = torch.cat([to_grid(part, columns_of, other, most) for part, columns_of, other in parts])
    # Weights move no further than into the step that was chosen, so that rounding gives it.
    kept = torch.clamp(real, steps - _INSIDE, steps + _INSIDE)
    layer.weight.copy_((kept * scale[:, None]).view_as(layer.weight))
    return float((steps != nearest).double().mean())


def _gptq(
    weight: torch.Tensor, inputs: torch.Tensor, _other: torch.Tensor, most: int
) -> torch.Tensor:
    """Weights in steps, (outputs, inputs), as integers: each column's error goes to the columns
    after it.

    GPTQ, arXiv 2210.17323: the shares come from the upper Cholesky factor of the inverse Hessian.
    """
    hessian = inputs.clone()
    diagonal = hessian.diagonal()
    seen = diagonal > 0
    if not bool(seen.any()):
        return weight.round().clamp(-most, most)
    # Damping keeps the Hessian invertible, also where an input is always 0.
    diagonal += _DAMPING * diagonal[seen].mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor = torch.linalg.cholesky(inverse, upper=True)
    # Round one column after another: those that are still to come make up for its error.
    left, integers = weight.clone(), torch.empty_like(weight)
    for j in range(weight.shape[1]):
        integers[:, j] = left[:, j].round().clamp(-most, most)
        error = (left[:, j] - integers[:, j]) / factor[j, j]
        left[:, j + 1 :].addr_(error, factor[j, j + 1 :], alpha=-1)
    return integers


def _gpfq(
    weight: torch.Tensor, inputs: torch.Tensor, other: torch.Tensor, most: int
) -> torch.Tensor:
    """Weights in steps, (outputs, inputs), as integers: each follows the path of the float layer's
    outputs.

    q_t = Q(<X_t, u + w_t F_t> / <X_t, X_t>) with u = sum over s < t of w_s F_s - q_s X_s (GPFQ,
    arXiv 2201.11113).
    """
    integers = torch.empty_like(weight)
    for t in range(weight.shape[1]):
        norm = inputs[t, t]
        wanted = weight[:, : t + 1] @ other[t, : t + 1] - integers[:, :t] @ inputs[t, :t]
        integers[:, t] = (wanted / norm if norm > 0 else weight[:, t]).round().clamp(-most, most)
    return integers


# Multiplying their input by a positive number multiplies their output by it.
_HOMOGENEOUS = (
    nn.ReLU,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    Reshape,
)
_ROUNDS = 20
_CLOSE = 1e-4


@torch.no_grad()
def equalize(traced: fx.GraphModule) -> tuple[fx.GraphModule, tuple[tuple[str, str], ...], str]:
    """Scale channel i between two layers by 1 / s_i and s_i, s_i = sqrt(r1_i / r2_i), until no s_i
    differs from 1.

    r1_i is the greatest magnitude of the weights that make channel i, r2_i that of those that read
    it (eq. 11). It takes a positively homogeneous path between the two layers, ReLU and pools, and
    no other reader on it. The outputs stay the same but for rounding. Returned are the network, the
    names of the pairs of layers, and why there are no more of them: the activations behind which
    there is none.

    No pair spans a smooth activation, and a network of GELU alone comes back as it is: of GELU's x
    Phi(x) the scaling makes x Phi(s_i x), exact only with another hardness in each channel. That
    has no single table, so a layer that runs in integers would become a float island.
    """
    equalized = copy.deepcopy(traced)
    pairs = _pairs(equalized)
    for _ in range(_ROUNDS):
        moved = [
            _balance(equalized.get_submodule(first), equalized.get_submodule(second))
            for first, second in pairs
        ]
        if max(moved, default=0.0) < _CLOSE:
            break
    stopping = [
        f"{node.target} ({type(layer).__name__})"
        for node in equalized.graph.nodes
        if (layer := layer_of(equalized, node))
        and is_activation(layer)
        and not isinstance(layer, _HOMOGENEOUS)
    ]
    parts = [] if pairs else ["no pair of layers to equalize"]
    if stopping:
        parts.append(f"scales in front of {', '.join(stopping)} do not cancel behind it")
    return equalized, pairs, "; ".join(parts)


def _pairs(traced: fx.GraphModule) -> tuple[tuple[str, str], ...]:
    """The layers whose outputs reach one other layer only, by layers that are positively
    homogeneous.
    """
    pairs = []
    for node in traced.graph.nodes:
        making = layer_of(traced, node)
        if not isinstance(making, FLOAT_COMPUTE):
            continue
        path, last = [], node
        while len(last.users) == 1 and isinstance(
            layer := layer_of(traced, next(iter(last.users))), _HOMOGENEOUS
        ):
            path.append(layer)
            last = next(iter(last.users))
        reader = next(iter(last.users))
        if len(last.users) == 1 and _same_channels(node, making, path, layer_of(traced, reader)):
            pairs.append((str(node.target), str(reader.target)))
    return tuple(pairs)


def _same_channels(
    node: fx.Node, making: nn.Module, path: Sequence[nn.Module], reading: nn.Module | None
) -> bool:
    """Whether channel i of the first layer is channel i of the second, or a block of its
    features.
    """
    if not isinstance(reading, FLOAT_COMPUTE):
        return False
    flattened = any(isinstance(module, Reshape) for module in path)
    if isinstance(making, nn.Linear):
        # Its channels come last, where a pool would mix them.
        only = (nn.ReLU, Reshape) if len(node.meta["shape"]) == 2 else nn.ReLU
        return isinstance(reading, nn.Linear) and all(isinstance(module, only) for module in path)
    return isinstance(reading, nn.Linear) == flattened


def _balance(making: nn.Module, reading: nn.Module) -> float:
    """One round for one pair, in place; the greatest |s_i - 1|. A channel that nothing makes or
    reads stays.
    """
    assert isinstance(making.weight, torch.Tensor)
    assert isinstance(reading.weight, torch.Tensor)
    making_weight, weight = making.weight.flatten(1), reading.weight
    groups = reading.groups if isinstance(reading, (nn.Conv1d, nn.Conv2d)) else 1
    # (groups, outputs per group, channels per group, weights per channel): a linear layer behind
    # flattened channels reads several features of each.
    read = weight.view(groups, len(weight) // groups, len(making_weight) // groups, -1)
    greatest, reach = making_weight.abs().amax(1), read.abs().amax((1, 3)).flatten()
    scale = torch.where(
        (greatest > 0) & (reach > 0), (greatest / reach).sqrt(), torch.ones_like(greatest)
    )
    making_weight /= scale[:, None]
    if isinstance(making.bias, torch.Tensor):
        making.bias /= scale
    read *= scale.view(len(read), 1, -1, 1)
    return float((scale - 1).abs().max())
