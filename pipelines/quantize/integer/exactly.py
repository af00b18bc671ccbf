"""The fake-quantized network in float64: what its definition says, where float32 would round otherwise."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from brevitas.nn import QuantConv1d, QuantConv2d, QuantIdentity, QuantLinear
from brevitas.quant_tensor import QuantTensor
from torch import fx

from pipelines.quantize.integer.grids import INPUT, Integers
from pipelines.quantize.integer.layers import Convolution, Linear
from pipelines.quantize.integer.lowering import grid_of
from pipelines.quantize.integer.network import IntegerNetwork
from pipelines.quantize.quantizers import is_power_of_two, kept_length, kernel_of
from pipelines.quantize.readout import quantizers


def tensor_of(quantizer: str) -> str:
    """The integer network's name of the tensor that a quantizer makes."""
    return INPUT if quantizer == "quantize_input" else quantizer


def in_float64(quantized: fx.GraphModule, network: IntegerNetwork) -> fx.GraphModule:
    """A copy of the fake-quantized network that computes in float64, with the grids, integer weights and biases it has.

    It is Brevitas' own code. Float32 decides by its rounding errors what lies nearly half-way between two integers;
    here nothing that the network defines is decided so.

    Args:
        quantized: stays as it is.
        network: what `lower` made of it: the biases are its integers.

    Raises:
        RuntimeError: a layer keeps its scale in a way that is not known here, so that its integers would move.
    """
    exact = copy.deepcopy(quantized).double()
    biases = {each.name: each for each in network.operations if isinstance(each, (Linear, Convolution))}
    for name, layer in quantized.named_modules():
        twin = exact.get_submodule(name)
        if isinstance(layer, QuantIdentity):
            _keep_grid(name, layer, twin)
        elif isinstance(layer, (QuantLinear, QuantConv1d, QuantConv2d)):
            _keep_weights(name, layer, twin)
            if name in biases and twin.bias is not None:
                twin.bias.data = torch.from_numpy(biases[name].bias * biases[name].scale)
    return exact


def _keep_grid(name: str, layer: QuantIdentity, twin: Any) -> None:
    grid = grid_of(layer)
    kernel = kernel_of(twin)
    # Brevitas keeps a grid's reach and its zero, both as real numbers, and divides: in float64, once more.
    kernel.scaling_impl.value.data.copy_(_reach(kernel, torch.tensor(grid.scale, dtype=torch.float64), grid.high))
    kernel.zero_point_impl.value.data.fill_(grid.scale * grid.zero_point)
    if grid_of(twin) != grid:
        raise RuntimeError(f"{name}: in float64 its grid became {grid_of(twin)} instead of {grid}")


def _keep_weights(name: str, layer: Any, twin: Any) -> None:
    weight = layer.quant_weight()
    scale, integers = weight.scale.double(), weight.int()
    for part in twin.weight_quant.modules():
        if hasattr(part, "min_val"):  # A limit that float32 rounded would lift the scales that it made by that little.
            part.min_val = 0.0
    kernel = kernel_of(twin)
    value = kernel.scaling_impl.value
    value.data = _reach(kernel, scale.view_as(value), 2 ** (int(weight.bit_width) - 1) - 1)
    twin.weight.data = integers * scale
    made = twin.quant_weight()
    if not torch.equal(made.scale, scale) or not torch.equal(made.int(), integers):
        raise RuntimeError(f"{name}: in float64 its weights are quantized otherwise")


def _reach(kernel: Any, scale: torch.Tensor, greatest: int) -> torch.Tensor:
    """What Brevitas keeps to find `scale` again: that of the greatest integer, or the logarithm of the next power's."""
    return kept_length(kernel, scale * (greatest + is_power_of_two(kernel)))


def real_steps(
    quantized: fx.GraphModule, network: IntegerNetwork, integers: dict[str, Integers], inputs: torch.Tensor
) -> dict[str, npt.NDArray[np.float64]]:
    """What each quantizer rounds, in steps of its grid, in float64.

    Args:
        quantized: stays as it is.
        network: what `lower` made of it.
        integers: by quantizer, to hand on instead of what it would round.
        inputs: of the network.
    """
    exact = in_float64(quantized, network)
    steps: dict[str, npt.NDArray[np.float64]] = {}

    def see(tensor: str, layer: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor]:
        grid, real = grid_of(layer), args[0].value if isinstance(args[0], QuantTensor) else args[0]
        steps[tensor] = real.numpy() / grid.scale + grid.zero_point
        return (torch.from_numpy(grid.scale * (integers[tensor] - grid.zero_point)),)

    for name in quantizers(exact):
        exact.get_submodule(name).register_forward_pre_hook(partial(see, tensor_of(name)))
    exact(inputs if network.tokens else inputs.double())
    return steps
