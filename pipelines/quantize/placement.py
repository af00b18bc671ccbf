"""Which tensors are quantized, and by which quantizers of Brevitas: the quantized network, not
yet calibrated.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import torch
from brevitas.core.scaling.int_scaling import PowerOfTwoIntScaling
from brevitas.nn import QuantConv1d, QuantConv2d, QuantIdentity, QuantLinear
from brevitas.quant.fixed_point import Int8WeightPerChannelFixedPoint
from brevitas.quant.scaled_int import Int8WeightPerChannelFloat, Int32Bias
from brevitas.quant.shifted_scaled_int import (
    ShiftedUint8ActPerTensorFixedPoint,
    ShiftedUint8ActPerTensorFloat,
)
from brevitas.quant_tensor import QuantTensor
from torch import fx, nn

from evalsuite import Unsupported
from pipelines.quantize.embedding import IntegerRows, table_of
from pipelines.quantize.kinds import FLOAT_COMPUTE, is_activation, is_pool, keeps_grid
from pipelines.quantize.readers import Readers
from pipelines.quantize.tracing import Add, layer_of
from pipelines.quantize.widths import WIDE_BITS, Widths, has_attention_or_norms

COMPUTE = (QuantLinear, QuantConv1d, QuantConv2d)
# A channel's weights are taken to reach at least this share of its layer's greatest bias: else the
# scale of a channel without weights would be next to 0, and its bias would not fit into 32 bits.
_LEAST_RANGE = 2.0**-10
_LEAST_SCALE = 1e-10

Scales = Literal["float", "power-of-two"]
_Layer = TypeVar("_Layer", bound=nn.Module)


def quantizer(bits: int, scales: Scales) -> QuantIdentity:
    """Return a quantizer of activations: unsigned with a zero point, one scale per tensor, both for
    `calibrate` to set.
    """
    kinds = {
        "float": ShiftedUint8ActPerTensorFloat,
        "power-of-two": ShiftedUint8ActPerTensorFixedPoint,
    }
    return _frozen(QuantIdentity(act_quant=kinds[scales], bit_width=bits, return_quant_tensor=True))


def quantized_layer(
    layer: nn.Linear | nn.Conv1d | nn.Conv2d, bits: int, scales: Scales, name: str
) -> nn.Module:
    """The Brevitas layer with the same weights and biases; it takes quantized inputs and gives
    floats.

    The scale of each output channel is a constant from then on, at first that of its greatest
    weight: a scale that followed the weights would change under the hands of what rounds them one
    after another.

    Raises:
        Unsupported: a weight or bias is NaN or infinite.
    """
    if not all(bool(torch.isfinite(parameter).all()) for parameter in layer.parameters()):
        raise Unsupported(f"{name!r}: its weights or biases are not finite")
    kinds = {"float": Int8WeightPerChannelFloat, "power-of-two": Int8WeightPerChannelFixedPoint}
    bias = layer.bias if isinstance(layer.bias, torch.Tensor) else None
    # The least reach of a channel, for its bias to fit into 32 bits; a power of two is rounded up.
    least = max(_LEAST_RANGE * bias.abs().max().item() if bias is not None else 0.0, _LEAST_SCALE)
    options: dict[str, Any] = {
        "bias": bias is not None,
        "weight_quant": kinds[scales],
        "weight_bit_width": bits,
        "weight_scaling_impl_type": "parameter_from_stats",
        "weight_scaling_min_val": 2.0 ** math.ceil(math.log2(least))
        if scales == "power-of-two"
        else least,
        "bias_quant": Int32Bias if bias is not None else None,
        "return_quant_tensor": False,
    }
    # Brevitas draws initial weights, which are replaced: the caller's random numbers must not move.
    with torch.random.fork_rng(devices=[]):
        if isinstance(layer, nn.Linear):
            made: Any = QuantLinear(layer.in_features, layer.out_features, **options)
        else:
            made = (QuantConv1d if isinstance(layer, nn.Conv1d) else QuantConv2d)(
                layer.in_channels,
                layer.out_channels,
                layer.kernel_size,
                stride=layer.stride,
                padding=layer.padding,
                dilation=layer.dilation,
                groups=layer.groups,
                **options,
            )
    with torch.no_grad():
        made.weight.copy_(layer.weight)
        if bias is not None:
            made.bias.copy_(bias)
        made.quant_weight()  # sets the scales
    quantized: nn.Module = made.eval()
    return _frozen(quantized)


def kernel_of(layer: Any) -> Any:
    """Where Brevitas keeps the scale of a quantizer, or of the weights of a layer of `COMPUTE`."""
    if isinstance(layer, QuantIdentity):
        return layer.act_quant.fused_activation_quant_proxy.tensor_quant
    return layer.weight_quant.tensor_quant


def weight_bits(layer: Any) -> int:
    """Return the bits of the weights of a layer of `COMPUTE`, without rounding these."""
    return int(kernel_of(layer).msb_clamp_bit_width_impl())


def weight_scale(layer: Any) -> torch.Tensor:
    """Return the scale of each channel of a layer of `COMPUTE`, (channels, 1, ...), without
    rounding the weights.
    """
    kernel = kernel_of(layer)
    steps = kernel.int_scaling_impl(kernel.msb_clamp_bit_width_impl())
    scale: torch.Tensor = kernel.scaling_impl(layer.weight, steps)
    return scale


def is_power_of_two(kernel: Any) -> bool:
    """Whether its scale is one: then Brevitas keeps the logarithm of the range's length, else
    the length.
    """
    return isinstance(kernel.int_scaling_impl, PowerOfTwoIntScaling)


def kept_length(kernel: Any, length: torch.Tensor) -> torch.Tensor:
    """Return what Brevitas keeps of the length of a range."""
    return length.log2() if is_power_of_two(kernel) else length


def _frozen(layer: _Layer) -> _Layer:
    """Freeze a layer's scales and zero points, so that no optimizer moves them, and return the
    layer.
    """
    for name, parameter in layer.named_parameters():
        if name.endswith(("scaling_impl.value", "zero_point_impl.value")):
            parameter.requires_grad_(False)
    return layer


LOGIT_BITS = 8


@dataclass(frozen=True, slots=True)
class Bits:
    """The bit widths of a layer's weights and of its input."""

    weight: int
    act: int


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a network is quantized.

    `bits` are those of every layer that `layers` does not name; None leaves a layer, or all that
    are not named, in float. The logits have `LOGIT_BITS` bits, whatever `bits` says.
    `before_activations` quantizes the inputs of activations too. `by_reader` quantizes a tensor
    only where an integer kernel of ONNX Runtime reads or writes it; see `Readers`. `wide` gives 16
    bits to what norms, softmax and sums read, in networks that have norms or softmax; see `Widths`.
    """

    bits: Bits | None
    before_activations: bool = False
    scales: Scales = "float"
    layers: Mapping[str, Bits | None] = field(default_factory=lambda: MappingProxyType({}))
    by_reader: bool = False
    wide: bool = False

    def __post_init__(self) -> None:
        if self.before_activations + self.by_reader + self.wide > 1:
            raise ValueError(
                "before_activations, by_reader and wide exclude each other: take one of them"
            )

    def of(self, layer: str) -> Bits | None:
        """The bits of the layer with that name in the traced graph."""
        return self.layers.get(layer, self.bits)

    def readers(self, traced: fx.GraphModule) -> Readers:
        """Return what the integer kernels of ONNX Runtime need of the tensors of a traced
        network.
        """
        return Readers(traced, lambda layer: self.of(layer) is not None)


class Value(nn.Module):
    """The float value of a quantized tensor: what a layer outside Brevitas computes on."""

    def forward(self, x: torch.Tensor | QuantTensor) -> torch.Tensor:
        """Return the real values as a tensor of the same shape, without scale and zero point."""
        return x.value if isinstance(x, QuantTensor) else x


def place(traced: fx.GraphModule, scheme: Scheme) -> fx.GraphModule:
    """The network with quantized layers and with quantizers between them, for `calibrate`; `traced`
    stays as it is.

    Quantized are the inputs of linear and convolutional layers, of pools, of additions and of float
    islands, the logits, and, if the scheme says so, the inputs of activations. Everything for which
    there is no quantized counterpart computes in float on dequantized tensors: a float island.
    By reader, quantized are only the tensors that `Readers` names and the tables of embeddings, and
    all else computes on real numbers.

    Raises:
        Unsupported: nothing is there to quantize, or a layer cannot be.
    """
    placer = _PlacerByReader if scheme.by_reader else _Placer
    if scheme.wide and scheme.bits is not None and has_attention_or_norms(traced):
        placer = _WidePlacer
    return placer(traced, scheme).run()


class _Placer:
    """Copies the graph node by node. What a tensor is asked for, its real values or a grid, is made
    when it is asked.

    A grid is made once for each tensor. Islands are what is computed in float; the rest, and an
    input of real numbers, an integer network computes.
    """

    def __init__(self, traced: fx.GraphModule, scheme: Scheme) -> None:
        self._traced, self._scheme = traced, scheme
        self._graph = fx.Graph()
        self._owned: dict[str, Any] = {}
        self._islands: set[fx.Node] = set()
        self._raw: dict[fx.Node, fx.Node] = {}
        self._grids: dict[fx.Node, fx.Node] = {}
        self._values: dict[fx.Node, fx.Node] = {}

    def run(self) -> fx.GraphModule:
        for node in self._traced.graph.nodes:
            self._write(node)
        if not any(isinstance(layer, COMPUTE) for layer in self._owned.values()):
            raise Unsupported("no linear or convolutional layer to quantize")
        return fx.GraphModule(self._owned, self._graph).eval()

    def _write(self, node: fx.Node) -> None:
        layer = layer_of(self._traced, node)
        if node.op == "placeholder":
            # Tokens have no grid, and of several inputs each part is taken from the batch first.
            self._emit(node, self._graph.placeholder(node.name), island=not node.meta["real"])
        elif node.op == "output":
            self._graph.output(self._value(node.all_input_nodes[0], LOGIT_BITS))
        elif isinstance(layer, FLOAT_COMPUTE):
            self._write_compute(node, layer)
        elif keeps_grid(layer):
            self._write_kept(node, layer)
        elif isinstance(layer, Add) or is_pool(layer):
            read = self._read if isinstance(layer, Add) else self._value
            inputs = [read(argument) for argument in node.args if isinstance(argument, fx.Node)]
            self._call(node, layer, inputs)
        elif layer is not None and is_activation(layer):
            # A layer's sums go into an activation as they are, unless the scheme wants a grid
            # there, or no layer has made them.
            (source,) = node.all_input_nodes
            before = (
                self._scheme.before_activations
                or source in self._islands
                or source.op == "placeholder"
            )
            self._call(node, layer, [self._value(source) if before else self._real(source)])
        else:
            self._write_island(node, layer)

    def _write_compute(self, node: fx.Node, layer: nn.Linear | nn.Conv1d | nn.Conv2d) -> None:
        bits = self._scheme.of(str(node.target))
        (source,) = node.all_input_nodes
        if bits is None:
            self._call(node, layer, [self._real(source)])
        else:
            module = quantized_layer(layer, bits.weight, self._scheme.scales, str(node.target))
            self._call(node, module, [self._grid(source, bits.act)])

    def _write_kept(self, node: fx.Node, layer: nn.Module | None) -> None:
        """On the grid of its input, unless all that follows wants real values."""
        (source,) = node.all_input_nodes
        on_grid = self._scheme.bits is not None and self._grid_is_read(node)
        self._call(node, layer, [self._grid(source) if on_grid else self._real(source)])
        if on_grid:
            self._grids[node] = self._raw[node]

    def _write_island(self, node: fx.Node, layer: nn.Module | None) -> None:
        """Integers reach it dequantized from a grid, floats of another island as they are."""
        inputs = {
            all_input_node: self._raw[all_input_node]
            if all_input_node in self._islands
            else self._read(all_input_node)
            for all_input_node in node.all_input_nodes
        }
        self._copy_island(node, layer, inputs)

    def _copy_island(
        self, node: fx.Node, layer: nn.Module | None, inputs: Mapping[fx.Node, fx.Node]
    ) -> None:
        copied = self._graph.node_copy(node, inputs.__getitem__)
        if layer is not None:
            self._owned[str(node.target)] = copy.deepcopy(layer)
        elif node.op == "get_attr":
            self._owned[str(node.target)] = getattr(self._traced, str(node.target))
        self._emit(node, copied, island=True)

    def _call(self, node: fx.Node, layer: Any, inputs: list[fx.Node]) -> None:
        # Quantized layers are made for this network; what was traced belongs to the caller.
        self._owned[str(node.target)] = (
            layer if isinstance(layer, COMPUTE) else copy.deepcopy(layer)
        )
        self._emit(node, self._graph.call_module(str(node.target), tuple(inputs)))

    def _emit(self, node: fx.Node, replacement: fx.Node, *, island: bool = False) -> None:
        replacement.meta["shape"] = node.meta.get("shape", ())
        self._raw[node] = replacement
        if island:
            self._islands.add(node)

    def _behind(self, node: fx.Node, kind: str, layer: nn.Module, source: fx.Node) -> fx.Node:
        """A layer that the traced network does not have, on what a node makes."""
        # Named by the layer, or, where there is none, by the function.
        origin = {"placeholder": "input", "call_module": str(node.target)}.get(node.op, node.name)
        name = f"{kind}_{origin}"
        self._owned[name] = layer
        quantizer_node = self._graph.call_module(name, (source,))
        quantizer_node.meta["shape"] = node.meta["shape"]
        return quantizer_node

    def _grid(self, node: fx.Node, bits: int | None = None) -> fx.Node:
        """The tensor on a grid; as it is where nothing asks for one."""
        if node not in self._grids:
            wanted = bits or (self._scheme.bits and self._scheme.bits.act)
            if not wanted:
                return self._raw[node]
            layer = quantizer(max(wanted, self._most_bits(node)), self._scheme.scales)
            self._grids[node] = self._behind(node, "quantize", layer, self._raw[node])
        return self._grids[node]

    def _real(self, node: fx.Node) -> fx.Node:
        """The real values as they are made: not yet on a grid, unless they were made on one."""
        return self._value(node) if self._grids.get(node) is self._raw[node] else self._raw[node]

    def _grid_is_read(self, node: fx.Node) -> bool:
        """Whether anything that reads this tensor, through layers that keep the grid, computes
        in integers.
        """
        layers = [(user, layer_of(self._traced, user)) for user in node.users]
        return any(
            self._grid_is_read(user)
            if keeps_grid(layer)
            else not isinstance(layer, FLOAT_COMPUTE)
            or self._scheme.of(str(user.target)) is not None
            for user, layer in layers
        )

    def _most_bits(self, node: fx.Node) -> int:
        """The most bits that a layer reading this tensor wants, or the logits, if it is what
        they are made of.
        """
        bits_found = [0]
        for user in node.users:
            layer = layer_of(self._traced, user)
            if user.op == "output" and self._scheme.bits is not None:
                bits_found.append(LOGIT_BITS)
            elif keeps_grid(layer):
                bits_found.append(self._most_bits(user))
            elif isinstance(layer, FLOAT_COMPUTE) and (bits := self._scheme.of(str(user.target))):
                bits_found.append(bits.act)
        return max(bits_found)

    def _read(self, node: fx.Node) -> fx.Node:
        """The real values that a sum or a float part reads."""
        return self._value(node)

    def _value(self, node: fx.Node, bits: int | None = None) -> fx.Node:
        """The real values of the tensor on its grid."""
        if node not in self._values:
            gridded = self._grid(node, bits if self._scheme.bits is not None else None)
            if gridded is self._raw[node] and node not in self._grids:
                return gridded
            self._values[node] = self._behind(node, "value", Value(), gridded)
        return self._values[node]


class _PlacerByReader(_Placer):
    """Quantizes a tensor where an integer kernel reads it, on a branch of its own; float operators
    read the real numbers, unless an integer kernel wrote the tensor and there are none.
    """

    def __init__(self, traced: fx.GraphModule, scheme: Scheme) -> None:
        super().__init__(traced, scheme)
        self._readers = scheme.readers(traced)

    def run(self) -> fx.GraphModule:
        placed = super().run()
        placed.graph.eliminate_dead_code()  # tables whose rows are integers now
        placed.delete_all_unused_submodules()
        placed.recompile()
        return placed

    def _write(self, node: fx.Node) -> None:
        layer = layer_of(self._traced, node)
        if node.op == "placeholder":
            self._emit(node, self._graph.placeholder(node.name))
        elif node.op == "output":
            self._graph.output(self._real(node.all_input_nodes[0]))
        elif isinstance(layer, FLOAT_COMPUTE):
            self._write_compute(node, layer)
        elif keeps_grid(layer) and self._readers.written(node):
            self._call(node, layer, [self._grid(node.all_input_nodes[0])])
            self._grids[node] = self._raw[node]
        elif self._readers.adds(node):
            self._call(
                node,
                layer,
                [self._value(all_input_node) for all_input_node in node.all_input_nodes],
            )
        elif (table := table_of(self._traced, node)) is not None and self._scheme.bits is not None:
            rows = IntegerRows(table, power_of_two=self._scheme.scales == "power-of-two")
            self._owned[str(node.target)] = rows
            indices = self._real(node.all_input_nodes[1])
            self._emit(node, self._graph.call_module(str(node.target), (indices,)))
        else:
            self._write_island(node, layer)

    def _write_island(self, node: fx.Node, layer: nn.Module | None) -> None:
        copied = self._graph.node_copy(node, self._real)
        if layer is not None:
            self._owned[str(node.target)] = copy.deepcopy(layer)
        elif node.op == "get_attr":
            self._owned[str(node.target)] = getattr(self._traced, str(node.target))
        self._emit(node, copied)

    def _real(self, node: fx.Node) -> fx.Node:
        return self._value(node) if self._readers.written(node) else self._raw[node]

    def _most_bits(self, node: fx.Node) -> int:
        """The most bits that a layer reading this tensor wants; all that the kernel writes, where
        no layer asks for fewer.
        """
        return super()._most_bits(node) if self._readers.read(node) else LOGIT_BITS


class _WidePlacer(_Placer):
    """Puts what norms, softmax and sums read on grids of 16 bits, and quantizes from there to the
    8 bits that products of matrices read.
    """

    def __init__(self, traced: fx.GraphModule, scheme: Scheme) -> None:
        super().__init__(traced, scheme)
        self._widths = Widths(traced)
        self._wide_grids: dict[fx.Node, fx.Node] = {}
        self._wide_values: dict[fx.Node, fx.Node] = {}

    def _write_kept(self, node: fx.Node, layer: nn.Module | None) -> None:
        (source,) = node.all_input_nodes
        if not self._widths.wide(node):
            super()._write_kept(node, layer)
            return
        self._call(node, layer, [self._wide_grid(source)])
        self._wide_grids[node] = self._raw[node]

    def _write_island(self, node: fx.Node, layer: nn.Module | None) -> None:
        multiplied = self._widths.multiplied(node)

        def read(source: fx.Node) -> fx.Node:
            if source in multiplied and not self._widths.multiplied_on_its_grid(source):
                return self._value(source)
            return self._raw[source] if source in self._islands else self._read(source)

        inputs = {source: read(source) for source in node.all_input_nodes}
        self._copy_island(node, layer, inputs)

    def _grid(self, node: fx.Node, bits: int | None = None) -> fx.Node:
        if node not in self._grids and self._widths.wide(node):
            assert self._scheme.bits is not None
            layer = quantizer(
                max(bits or self._scheme.bits.act, self._most_bits(node)), self._scheme.scales
            )
            self._grids[node] = self._behind(node, "quantize", layer, self._wide_value(node))
        return super()._grid(node, bits)

    def _real(self, node: fx.Node) -> fx.Node:
        kept = self._wide_grids.get(node) is self._raw[node]
        return self._wide_value(node) if kept else super()._real(node)

    def _read(self, node: fx.Node) -> fx.Node:
        return self._wide_value(node) if self._widths.wide(node) else self._value(node)

    def _wide_grid(self, node: fx.Node) -> fx.Node:
        if node not in self._wide_grids:
            layer = quantizer(WIDE_BITS, self._scheme.scales)
            self._wide_grids[node] = self._behind(node, "quantize16", layer, self._raw[node])
        return self._wide_grids[node]

    def _wide_value(self, node: fx.Node) -> fx.Node:
        if node not in self._wide_values:
            gridded = self._wide_grid(node)
            self._wide_values[node] = self._behind(node, "value16", Value(), gridded)
        return self._wide_values[node]
