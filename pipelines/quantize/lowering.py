"""From the fake-quantized network to the integer-only one: the same integers, without a float in
between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from brevitas.nn import QuantIdentity
from brevitas.quant_tensor import QuantTensor
from torch import fx, nn

from evalsuite import Unsupported
from intnet.grids import INPUT, Dyadic, Grid, OnGrid, Rounding
from intnet.islands import carve
from intnet.layers import Convolution, Flatten, Linear, MaxPool, SumPool
from intnet.network import IntegerNetwork
from intnet.operation import Operation
from intnet.parts import in_integers
from intnet.pointwise import Add, Rectify, Requantize
from intnet.smooth import make_polynomial, make_table, smooth_input_grid
from lambda_gelu import GELU, LAMBDA_GELU, RELU, RELU6, Activation, census
from pipelines.quantize.calibration import FloatRun, quantizer_of
from pipelines.quantize.kinds import FLOAT_COMPUTE, is_activation, is_pool, keeps_grid
from pipelines.quantize.placement import COMPUTE, Value
from pipelines.quantize.tracing import Add as FloatAdd
from pipelines.quantize.tracing import Reshape, layer_of

Smooth = Literal["table", "polynomial"]
"""How an activation that is not ReLU is computed on integers."""
_INPUT_BITS: dict[Smooth, int] = {"table": 8, "polynomial": 16}


@dataclass(frozen=True, slots=True)
class _Accumulated:
    """Accumulators: real = scale x integer, one scale per index of dimension `axis`, or one for
    all.
    """

    name: str
    scale: npt.NDArray[np.float64]
    axis: int


@dataclass(frozen=True, slots=True)
class _Sum:
    """Not yet computed: the sum of tensors on grids."""

    terms: tuple[OnGrid, ...]


@dataclass(frozen=True, slots=True)
class _Activated:
    """Not yet computed: an activation of what is held."""

    name: str
    source: _Held
    row: Activation
    hardness: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Float:
    """Stands for what a float island computes at this node."""

    node: fx.Node


_Held = OnGrid | _Accumulated | _Sum | _Activated | _Float


def lower(
    quantized: fx.GraphModule,
    input_shape: tuple[int, ...],
    *,
    smooth: Smooth = "table",
    rounding: Rounding = Rounding.HALF_EVEN,
    islands: bool = False,
    tokens: int | None = None,
) -> IntegerNetwork:
    """The integer-only network of a calibrated `quantized`, which `place` made.

    ReLU is part of the requantization behind it: its grid begins at 0. Another activation is a
    table or a polynomial; where its input has no grid, one is inserted, of 8 bits for a table and
    16 for a polynomial.

    Args:
        quantized: stays as it is.
        input_shape: of one input.
        smooth: how activations that are not ReLU are computed.
        rounding: of every rescaling.
        islands: whether norms, attention and what else the fake-quantized network computes in float
            stay float islands. Otherwise only those do that have no integer form.
        tokens: how many there are, where the input is tokens.

    Raises:
        Unsupported: a layer was left in float, an activation has no integer form, a rescaling is
            beyond its factors, or a quantized tensor is not of one sample after the other.
    """
    first = next(node for node in quantized.graph.nodes if node.op == "placeholder")
    # A layer that was left in float has a reason of its own.
    on_grid = any(
        isinstance(layer_of(quantized, user), (QuantIdentity, *FLOAT_COMPUTE))
        for user in first.users
    )
    if tokens is None and not on_grid:
        raise Unsupported(
            f"its input {first.name!r} is on no grid: several inputs go into float islands;"
            " integers take one input, of real numbers or of tokens"
        )
    kind = torch.float32 if tokens is None else torch.int64
    _check_batch_first(quantized, torch.zeros(2, *input_shape, dtype=kind))
    return _Lowering(quantized, smooth, islands, tokens).run(input_shape, rounding)


def grid_of(layer: QuantIdentity) -> Grid:
    """The grid of a calibrated quantizer. Raises RuntimeError where its zero point is no
    integer.
    """
    quantizer = layer.act_quant
    zero_point = quantizer.zero_point().item()
    if zero_point != round(zero_point):
        raise RuntimeError(f"the zero point {zero_point} is no integer")
    return Grid(
        float(quantizer.scale().item()),
        int(zero_point),
        0,
        2 ** int(quantizer.bit_width().item()) - 1,
    )


class _Lowering:
    """Follows the graph; what a node holds becomes operations when a quantizer asks for its
    integers.
    """

    def __init__(
        self, quantized: fx.GraphModule, smooth: Smooth, islands: bool, tokens: int | None
    ) -> None:
        self._quantized, self._smooth, self._islands, self._tokens = (
            quantized,
            smooth,
            islands,
            tokens,
        )
        self._targets = {str(node.target) for node in quantized.graph.nodes}
        self._held: dict[fx.Node, _Held] = {}
        self._operations: list[Operation] = []
        self._inserted: list[str] = []
        self._output: OnGrid | None = None

    @torch.no_grad()
    def run(self, input_shape: tuple[int, ...], rounding: Rounding) -> IntegerNetwork:
        first: OnGrid | None = None
        # In the graph's order note what each tensor holds; operations are made where a grid asks
        # for integers.
        for node in self._quantized.graph.nodes:
            layer = layer_of(self._quantized, node)
            if node.op == "placeholder":
                if self._tokens is not None:
                    self._held[node] = first = OnGrid(INPUT, Grid(1.0, 0, 0, self._tokens - 1))
            elif node.op == "output":
                self._output = self._on_grid(node.all_input_nodes[0])
            elif isinstance(layer, QuantIdentity) and node.all_input_nodes[0].op == "placeholder":
                self._held[node] = first = OnGrid(INPUT, grid_of(layer))
            else:
                self._held[node] = self._hold(node, layer)
        if first is None or self._output is None or not self._operations:
            raise Unsupported("the network's input is not quantized")
        return IntegerNetwork(
            first.grid,
            input_shape,
            tuple(self._operations),
            self._output.grid,
            rounding,
            tuple(self._inserted),
            self._tokens is not None,
        )

    def _hold(self, node: fx.Node, layer: nn.Module | None) -> _Held:
        """Return what the node's tensor holds: floats, integers on a grid, or a sum that is not
        rounded yet.
        """
        # Floats, unless a form in integers is known: what stays float is cut out as an island
        # later.
        held: _Held = _Float(node)
        if isinstance(layer, QuantIdentity):
            held = self._gridded(self._held_by_first(node), grid_of(layer), str(node.target))
        elif isinstance(layer, Value):
            held = self._held_by_first(node)
        elif isinstance(layer, COMPUTE):
            held = self._accumulate(node, layer)
        elif isinstance(layer, FLOAT_COMPUTE):
            raise Unsupported(
                f"{node.target} was left in float: the network is not quantized as a whole"
            )
        elif isinstance(layer, FloatAdd):
            held = _Sum(
                tuple(
                    self._on_grid(argument)
                    for argument in node.args
                    if isinstance(argument, fx.Node)
                )
            )
        elif layer is not None and self._given_integers(node) and keeps_grid(layer):
            held = self._keep(node, layer)
        elif layer is not None and is_pool(layer):
            held = self._sum_windows(node, layer)
        elif (
            layer is not None
            and is_activation(layer)
            and not isinstance(self._held_by_first(node), _Float)
        ):
            held = self._activated(node, layer)
        return held

    def _accumulate(self, node: fx.Node, layer: Any) -> _Accumulated:
        """The sums of a quantized linear or convolutional layer.

        Brevitas rounds the bias in the scale of the accumulator, which it takes from a quantized
        input.
        """
        (before,) = node.all_input_nodes
        source, weight = self._on_grid(before), layer.quant_weight()
        integers = weight.int(float_datatype=False).numpy().astype(np.int8)
        bias = np.zeros(len(integers), dtype=np.int32)
        if layer.bias is not None:
            # Of its input the bias quantizer only takes the scale: zeros on that grid will do.
            quantizer = quantizer_of(self._quantized, before)(
                torch.zeros((1,) * len(node.meta["shape"]))
            )
            bias = _bias_integers(layer.bias_quant(layer.bias, quantizer, weight))
        scale = source.grid.scale * weight.scale.double().flatten().numpy()
        constants = str(node.target), (source.name,), source.grid, integers, bias, scale
        if isinstance(layer, nn.Linear):
            return _Accumulated(self._append(Linear(*constants)), scale, -1)
        dilation, rank = _ints(layer.dilation), len(layer.kernel_size)
        window = _ints(layer.stride), _both(_ints(layer.padding, rank)), dilation
        return _Accumulated(self._append(Convolution(*constants, *window, layer.groups)), scale, 1)

    def _keep(self, node: fx.Node, layer: nn.Module) -> OnGrid:
        """Lower a layer that moves or chooses among the integers of its input: flattening or a
        maximum.
        """
        name, source = str(node.target), self._on_grid(node.all_input_nodes[0])
        if isinstance(layer, Reshape):
            return OnGrid(self._append(Flatten(name, (source.name,))), source.grid)
        rank = 1 if isinstance(layer, nn.MaxPool1d) else 2
        kernel, stride, padding, dilation = (
            _ints(getattr(layer, key), rank)
            for key in ("kernel_size", "stride", "padding", "dilation")
        )
        pool = MaxPool(name, (source.name,), kernel, stride, _both(padding), dilation)
        return OnGrid(self._append(pool), source.grid)

    def _sum_windows(self, node: fx.Node, layer: nn.Module) -> _Accumulated:
        """Lower an average pool, over windows of a size or over the whole of each map, to sums in
        steps of scale / places.
        """
        (before,) = node.all_input_nodes
        source, spatial = self._on_grid(before), before.meta["shape"][2:]
        kernel, stride, padding = spatial, spatial, (0,) * len(spatial)
        if not isinstance(layer, (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)):
            kernel, stride, padding = (
                _ints(getattr(layer, key), len(spatial))
                for key in ("kernel_size", "stride", "padding")
            )
        places = getattr(layer, "divisor_override", None) or math.prod(kernel)
        pool = SumPool(
            str(node.target), (source.name,), source.grid, kernel, stride, _both(padding)
        )
        return _Accumulated(self._append(pool), np.array([source.grid.scale / places]), 1)

    def _activated(self, node: fx.Node, layer: nn.Module) -> _Activated:
        row = census(layer, gates=True)[0].traits
        # a third party's, known by its values: without parameters, and at lambda = 1
        if not row.matches(layer):
            return _Activated(str(node.target), self._held_by_first(node), row, torch.ones(()))
        try:
            of_layer = row.of(layer)
        except ValueError as error:  # parameters per channel
            raise Unsupported(f"{node.target}: {error}") from error
        return _Activated(
            str(node.target), self._held_by_first(node), of_layer, row.hardness(layer)
        )

    def _held_by_first(self, node: fx.Node) -> _Held:
        return self._held[node.all_input_nodes[0]]

    def _given_integers(self, node: fx.Node) -> bool:
        """Whether the layer is given integers, and not the dequantized values that an island
        reads.
        """
        source = layer_of(self._quantized, node.all_input_nodes[0])
        return not isinstance(source, Value) and isinstance(self._held_by_first(node), OnGrid)

    def _held_on_grid(self, node: fx.Node) -> OnGrid | None:
        held = self._held.get(node)
        return held if isinstance(held, OnGrid) else None

    def _on_grid(self, node: fx.Node) -> OnGrid:
        if (held := self._held_on_grid(node)) is None:
            raise Unsupported(
                f"{node.name} is not on a grid: the network is not quantized as a whole"
            )
        return held

    def _append(self, operation: Operation) -> str:
        self._operations.append(operation)
        return operation.name

    def _gridded(self, held: _Held, grid: Grid, name: str) -> OnGrid:
        """Append what computes `held` on `grid`, as the tensor `name`."""
        try:
            operation = self._compute(held, grid, name)
        except ValueError as error:  # a factor, a table or a polynomial out of reach
            raise Unsupported(f"{name}: {error}") from error
        return OnGrid(self._append(operation), grid)

    def _compute(self, held: _Held, grid: Grid, name: str) -> Operation:
        """A float part is computed in integers where all of it has such a form, else as an
        island.
        """
        if isinstance(held, _Activated):
            return self._activate(held, grid, name)
        if isinstance(held, _Sum):
            return Add.of(
                name,
                tuple(term.name for term in held.terms),
                grids=[term.grid for term in held.terms],
                output=grid,
            )
        if isinstance(held, _Float):
            # Cut out the float part. Where integers can compute it, their operations stand in its
            # place, and where not, the reason stays with the island.
            island, shapes = carve(self._quantized, held.node, self._held_on_grid, name, grid)
            if self._islands:
                return island
            try:
                part = in_integers(island, shapes)
            except Unsupported as error:
                return replace(island, reason=str(error))
            self._operations += part.operations[:-1]
            self._inserted += part.inserted
            return part.operations[-1]
        # A sum of products, or integers of another grid, is rescaled by one dyadic factor.
        zero_point, axis = (
            (0, held.axis) if isinstance(held, _Accumulated) else (held.grid.zero_point, -1)
        )
        return Requantize(
            name, (held.name,), zero_point, Dyadic.nearest(held.scale / grid.scale), axis, grid
        )

    def _activate(self, held: _Activated, grid: Grid, name: str) -> Operation:
        if held.row.name == RELU.name:
            # Rounding is monotone and keeps 0, so ReLU may follow it; where the grid begins at 0
            # its clipping is ReLU.
            if grid.zero_point == grid.low:
                return self._compute(held.source, grid, name)
            before = self._gridded(held.source, grid, f"{name}_before")
            return Rectify(name, (before.name,), grid.zero_point)
        ends_at_6 = (
            grid.zero_point == grid.low and round(6 / grid.scale) >= grid.high - grid.zero_point
        )
        if held.row.name == RELU6.name and ends_at_6:
            return self._compute(held.source, grid, name)  # the grid's clipping is that of ReLU6
        # Other activations become integers for one hardness, as a function of integers on one grid.
        if held.hardness.numel() != 1:
            raise Unsupported(f"{held.name}: lambda per channel has no single table or polynomial")
        hardness = float(held.hardness)
        source = (
            held.source if isinstance(held.source, OnGrid) else self._insert(held, hardness, grid)
        )
        if self._smooth == "table":
            return make_table(name, (source.name,), held.row, hardness, source.grid, grid)
        if held.row.name not in (GELU.name, LAMBDA_GELU.name):
            raise Unsupported(
                f"{held.name}: the integer polynomial is of GELU, not of {held.row.name}"
            )
        return make_polynomial(name, (source.name,), hardness, source.grid, grid)

    def _insert(self, held: _Activated, hardness: float, grid: Grid) -> OnGrid:
        """A grid for the input of an activation that has none in the fake-quantized network."""
        name = f"{held.name}_input"
        while name in self._targets or f"quantize_{name}" in self._targets:
            name = f"{name}_"
        self._inserted.append(name)
        return self._gridded(
            held.source,
            smooth_input_grid(hardness, grid, _INPUT_BITS[self._smooth], held.row),
            name,
        )


def _bias_integers(bias: QuantTensor) -> npt.NDArray[np.int32]:
    """From value and scale: of integers in the millions, whose quotient float32 rounds, Brevitas
    says "not valid".
    """
    steps = (bias.value.double() / bias.scale.double().flatten()).round().numpy()
    limits = np.iinfo(np.int32)
    return np.asarray(np.clip(steps, limits.min, limits.max).astype(np.int32))


def _ints(numbers: int | Iterable[int], rank: int = 1) -> tuple[int, ...]:
    return (
        (numbers,) * rank if isinstance(numbers, int) else tuple(int(number) for number in numbers)
    )


def _both(padding: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return what is added before and after each dimension."""
    return tuple((width, width) for width in padding)


def _check_batch_first(quantized: fx.GraphModule, two: torch.Tensor) -> None:
    """Raise Unsupported unless dimension 0 of every quantized tensor counts the samples, as the
    operations take it.
    """
    shapes = {
        str(node.target): node.meta["shape"]
        for node in quantized.graph.nodes
        if node.op == "call_module"
    }

    def see(name: str, _layer: nn.Module, _given: torch.Tensor, output: torch.Tensor) -> None:
        if tuple(output.shape) != (2, *shapes[name][1:]):
            raise Unsupported(
                f"{name}: of one sample its tensor is {shapes[name]}, of two {tuple(output.shape)};"
                " the integer network takes tensors whose dimension 0 counts the samples: write"
                " the layers before it so (batch_first=True)"
            )

    with torch.no_grad():
        FloatRun(quantized, see).run(two)
