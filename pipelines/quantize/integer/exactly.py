"""The fake-quantized network in float64: what its definition says where float32 would round."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import torch
from brevitas.nn import QuantIdentity
from torch import fx, nn
from torch.nn import functional

from pipelines.quantize.integer.islands import quantize
from pipelines.quantize.integer.lowering import grid_of
from pipelines.quantize.integer.network import INPUT, Convolution, Grid, IntegerNetwork, Integers, Linear
from pipelines.quantize.tracing import layer_of

_QUANTIZE_INPUT = "quantize_input"


def quantizers_of(quantized: fx.GraphModule) -> list[tuple[str, QuantIdentity]]:
    """By the names of the integer network's tensors."""
    found = []
    for node in quantized.graph.nodes:
        layer = layer_of(quantized, node)
        if isinstance(layer, QuantIdentity):
            found.append((INPUT if node.all_input_nodes[0].op == "placeholder" else str(node.target), layer))
    return found


class _Step(nn.Module):
    """Stands for a quantizer, in float64: keeps what it is given, in steps of its grid, and the integers it makes.

    Args:
        grid: of the quantizer.
        integers: to hand on, whatever it is given; None to round, half to even.
    """

    def __init__(self, grid: Grid, integers: Integers | None = None) -> None:
        super().__init__()
        self._grid = grid
        self._forced = integers
        self.steps: npt.NDArray[np.float64] = np.empty(0)
        self.made: Integers = np.empty(0, dtype=np.int64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = self._grid
        self.steps = x.numpy() / grid.scale + grid.zero_point
        rounded = np.clip(np.rint(self.steps), grid.low, grid.high).astype(np.int64)
        self.made = rounded if self._forced is None else self._forced
        return torch.from_numpy(grid.scale * (self.made - grid.zero_point))


class _Exact(nn.Module):
    """A quantized layer on the real values of its integer weights and biases, in float64."""

    def __init__(self, layer: nn.Module, operation: Linear | Convolution) -> None:
        super().__init__()
        shape = (-1, *[1] * (operation.weight.ndim - 1))
        scales = np.broadcast_to(operation.scale, len(operation.weight))
        self._layer = layer
        self._weight = torch.from_numpy(operation.weight * (scales / operation.input.scale).reshape(shape))
        self._bias = torch.from_numpy(operation.bias * scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self._layer
        if isinstance(layer, nn.Linear):
            return functional.linear(x, self._weight, self._bias)
        if not isinstance(layer, (nn.Conv1d, nn.Conv2d)):
            raise TypeError(f"no quantized layer: {type(layer).__name__}")
        convolve = functional.conv1d if isinstance(layer, nn.Conv1d) else functional.conv2d
        made: torch.Tensor = convolve(
            x, self._weight, self._bias, layer.stride, layer.padding, layer.dilation, layer.groups
        )
        return made


class Exactly:
    """The fake-quantized network in float64, from the scales, integer weights and biases that `network` has.

    Args:
        quantized: stays as it is.
        network: what `lower` made of it.
        integers: by quantizer, to hand on instead of what it would round.
    """

    def __init__(
        self, quantized: fx.GraphModule, network: IntegerNetwork, integers: dict[str, Integers] | None = None
    ) -> None:
        forced = integers or {}
        self._input = network.input
        self._steps = {name: _Step(grid_of(layer), forced.get(name)) for name, layer in quantizers_of(quantized)}
        self._module = copy.deepcopy(quantized).double()
        for name, step in self._steps.items():
            setattr(self._module, _QUANTIZE_INPUT if name == INPUT else name, step)
        for operation in network.operations:
            if isinstance(operation, (Linear, Convolution)):
                layer = self._module.get_submodule(operation.name)
                setattr(self._module, operation.name, _Exact(layer, operation))

    def integers(self, inputs: torch.Tensor) -> dict[str, Integers]:
        """What each quantizer makes. The input, which is float32, is quantized in float32, as both networks do."""
        grid = self._input
        first = quantize(inputs.numpy(), grid, "the inputs")
        self._module(torch.from_numpy(grid.scale * (first - grid.zero_point)))
        return {name: step.made for name, step in self._steps.items()}

    def steps(self, inputs: torch.Tensor) -> dict[str, npt.NDArray[np.float64]]:
        """What each quantizer rounds, in steps of its grid."""
        self._module(inputs.double())
        return {name: step.steps for name, step in self._steps.items()}
