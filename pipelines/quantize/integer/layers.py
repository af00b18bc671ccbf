"""What single layers become: operations on integers, and what the tensors that they make stand for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from brevitas.quant_tensor import QuantTensor
from torch import nn

from pipelines.quantize.integer.network import Convolution, Flatten, Grid, Linear, MaxPool, Operation, SumPool
from pipelines.quantize.tracing import Reshape


@dataclass(frozen=True, slots=True)
class OnGrid:
    """Integers of a grid, made by the operation `name`."""

    name: str
    grid: Grid


@dataclass(frozen=True, slots=True)
class Accumulated:
    """Accumulators: real = scale x integer, one scale per index of dimension `axis`, or one for all."""

    name: str
    scale: npt.NDArray[np.float64]
    axis: int


def accumulate(name: str, layer: nn.Module, source: OnGrid, given: QuantTensor) -> tuple[Operation, Accumulated]:
    """The integer operation of a quantized linear or convolutional layer, and the grid of its sums; `given` is any
    tensor on the grid of its input.

    Brevitas rounds the bias in the scale of the accumulator, which it takes from a quantized input.

    Raises:
        TypeError: the layer is of another kind.
    """
    weight = layer.quant_weight()  # type: ignore[operator]
    integers = weight.int(float_datatype=False).numpy().astype(np.int8)
    bias = np.zeros(len(integers), dtype=np.int32)
    if layer.bias is not None:
        bias = _bias_integers(layer.bias_quant(layer.bias, given, weight))  # type: ignore[operator]
    scale = source.grid.scale * weight.scale.double().flatten().numpy()
    if isinstance(layer, nn.Linear):
        linear = Linear(name, (source.name,), source.grid, integers, bias, scale)
        return linear, Accumulated(name, scale, -1)
    if not isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        raise TypeError(f"{name} is a {type(layer).__name__}")
    convolution = Convolution(
        name, (source.name,), source.grid, integers, bias, scale, _ints(layer.stride), ends_of_padding(layer),
        _ints(layer.dilation), layer.groups,
    )  # fmt: skip
    return convolution, Accumulated(name, scale, 1)


def keep(name: str, layer: nn.Module, source: OnGrid) -> tuple[Operation, OnGrid]:
    """Of a layer that moves or chooses among the integers of its input: flattening or a maximum."""
    if isinstance(layer, Reshape):
        return Flatten(name, (source.name,)), OnGrid(name, source.grid)
    dimensions = 1 if isinstance(layer, nn.MaxPool1d) else 2
    kernel, stride, padding, dilation = (
        _ints(getattr(layer, key), dimensions) for key in ("kernel_size", "stride", "padding", "dilation")
    )
    both = tuple((each, each) for each in padding)
    return MaxPool(name, (source.name,), kernel, stride, both, dilation), OnGrid(name, source.grid)


def sum_windows(name: str, layer: nn.Module, source: OnGrid, spatial: tuple[int, ...]) -> tuple[Operation, Accumulated]:
    """Of an average pool of maps of a size, or over all of each: sums in steps of scale / places."""
    if isinstance(layer, (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)):
        kernel, stride, padding, places = spatial, spatial, (0,) * len(spatial), math.prod(spatial)
    else:
        kernel, stride, padding = (
            _ints(getattr(layer, key), len(spatial)) for key in ("kernel_size", "stride", "padding")
        )
        places = getattr(layer, "divisor_override", None) or math.prod(kernel)
    both = tuple((each, each) for each in padding)
    made = SumPool(name, (source.name,), source.grid, kernel, stride, both)
    return made, Accumulated(name, np.array([source.grid.scale / places]), 1)


def _bias_integers(bias: QuantTensor) -> npt.NDArray[np.int32]:
    """From value and scale: of integers in the millions, whose quotient float32 rounds, Brevitas says "not valid"."""
    steps = (bias.value.double() / bias.scale.double().flatten()).round().numpy()
    limits = np.iinfo(np.int32)
    return np.asarray(np.clip(steps, limits.min, limits.max).astype(np.int32))


def _ints(given: int | Iterable[int], dimensions: int = 1) -> tuple[int, ...]:
    return (given,) * dimensions if isinstance(given, int) else tuple(int(each) for each in given)


def ends_of_padding(layer: nn.Conv1d | nn.Conv2d) -> tuple[tuple[int, int], ...]:
    """What is added before and after each dimension."""
    return tuple((int(each), int(each)) for each in layer.padding)
