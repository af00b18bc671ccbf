"""Any network as a torch.fx module of torch's layers and few functions: one vocabulary for
readers of fx graphs.

The network is read as a typed graph (`reading`), and each operation is written as the layer of
torch that computes it, or as a function; the result is compared with the graph.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from itertools import count
from keyword import iskeyword
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from opgraph import operations as op
from opgraph.aten import LEFT_OUT
from opgraph.errors import Unsupported
from opgraph.graph import Graph, Node
from opgraph.inputs import Inputs, mapped
from opgraph.layers import Placed, refuse_computed, torch_layers
from opgraph.moving import Concat, Expand, Pad, Positions, Reshape, Transpose
from opgraph.patterns import Attention, attentions
from opgraph.reading import compare, read

_TAKEN = frozenset(["self", *dir(fx.GraphModule(nn.Module(), fx.Graph()))])
_DEFECT = (
    "the graph was not written as the modules that it is, which is a defect of opgraph: report"
    " the network"
)


class Applied(nn.Module):
    """An operation of a graph for which torch has no layer, in the precision that the module is
    cast to.
    """

    unit: torch.Tensor

    def __init__(self, operation: op.Operation) -> None:
        super().__init__()
        self.operation = operation
        self.register_buffer("unit", torch.ones(()), persistent=False)

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return op.converted(self.operation, self.unit.dtype)(*operands)

    def extra_repr(self) -> str:
        """The name of the operation's class, for print(module)."""
        return type(self.operation).__name__


def in_modules(
    module: nn.Module, example: Inputs, *, exact: bool = False, whole: Collection[nn.Module] = ()
) -> fx.GraphModule:
    """The network in evaluation mode as an fx graph, read by `opgraph.read`, with weights
    of its own.

    Linear and convolutional layers, BatchNorm, LayerNorm, pools and known activations are torch's
    modules, whatever class or function they were, at their dotted paths. Functions are
    `operator.add` of two tensors, `torch.reshape` to sizes of which one may be -1 for the batch,
    and `scaled_dot_product_attention`. All else is `Applied`; constants are buffers. Of several
    inputs `operator.getitem` takes each from the one placeholder. Each node has its tensor's shape
    in `meta["shape"]`, where a size of -k is k times the batch, and the layer's path in
    `meta["path"]`.

    Args:
        module: called with one argument, the batch.
        example: a batch of real inputs.
        exact: whether to refuse what rounds the real function of the float32 weights: constants of
            an activation's formula that are rounded, weights that are computed from others. A
            number that the network adds, or multiplies by, as in `x + 0.1`, is a buffer of the
            precision that it is written in.
        whole: modules of it, as activations, that stay one layer each: of a tensor that keeps its
            shape.

    Raises:
        Unsupported: whatever `opgraph.read` refuses, or `exact` does, by the path.
    """
    return written(read(module, example, whole), example, exact=exact)


def written(graph: Graph, example: Inputs, *, exact: bool = False) -> fx.GraphModule:
    """A graph that was read, as `in_modules` writes it; several inputs of the example are in the
    graph's order.
    """
    # 1. Write the modules, and refuse numbers that are rounded, if asked.
    writer = _Writer(graph, example, _numbers(graph) if exact else set())
    module = writer.module()
    buffers = [str(node.target) for node in module.graph.nodes if node.op == "get_attr"]
    constants = {value for name in buffers for value in writer.constants[name]} - writer.numbers
    if exact:
        _refuse_rounded(graph, constants)
    # 2. Compare with the graph in float32.
    compare(graph, module, example, because=_DEFECT)
    # In float64, with the same numbers in both, a slip that is as small as float32's rounding
    # shows. Layers and buffers hold float32: what was computed of constants, as rotary angles or a
    # normed weight, is rounded to it.
    held = graph.with_changed(
        {constant: _in_float32(graph.nodes[constant]) for constant in constants | writer.layered}
    )
    finer = mapped(
        example, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor
    )
    compare(held, copy.deepcopy(module).double(), finer, because=_DEFECT)
    return module


def _in_float32(node: Node) -> Node:
    return replace(node, operation=op.converted(node.operation, torch.float32))


def _numbers(graph: Graph) -> set[int]:
    """Constants that are one number as it was written, which sums, products and quotients alone
    use.
    """
    # Such a number keeps its own precision, as torch computes with a Python number.
    users = [(source, node.operation) for node in graph.nodes for source in node.sources]
    others = {
        source for source, user in users if not isinstance(user, op.Sum | op.Product | op.Quotient)
    }
    return {
        index
        for index, node in enumerate(graph.nodes)
        if isinstance(node.operation, op.Constant)
        and node.operation.exact
        and node.operation.single is None
        and node.operation.value.ndim == 0
        and node.operation.value.is_floating_point()
    } - others


def _refuse_rounded(graph: Graph, read: set[int]) -> None:
    """Raise Unsupported where a real number was rounded; of the constants those alone that are
    `read`.
    """
    for index, node in enumerate(graph.nodes):
        operation, rounded, what = node.operation, False, "a constant"
        if isinstance(operation, op.Constant):
            value = operation.value
            rounded = index in read and not (
                operation.exact and torch.equal(value, value.float().to(value.dtype))
            )
        elif isinstance(operation, op.Pointwise):
            # torch's own softplus is no rounded one, and nn.Softplus leaves out the same.
            rounded = not operation.is_exact and operation.deviation != LEFT_OUT
            what = operation.traits.name
        else:
            refuse_computed(node)
        if rounded:
            raise Unsupported(
                f"{node.name or 'the network'}: {what} is computed from numbers that are rounded;"
                " numbers that float32 holds, as those of a buffer, are exact"
            )


class _Writer:
    """Writes a graph node by node; `numbers` are constants that keep their own precision."""

    def __init__(self, graph: Graph, example: Inputs, numbers: set[int]) -> None:
        self.graph, self.example, self.numbers = graph, example, numbers
        self.written = fx.Graph()
        self.owned: dict[str, Any] = {}
        self.constants: dict[str, set[int]] = {}
        """For each buffer's name, the numbers of the values that it is made of."""
        self.layered: set[int] = set()
        """Which values layers of torch compute."""
        self.made: dict[int, fx.Node] = {}
        self.attentions = {attention.output: attention for attention in attentions(graph)}
        # A path that one node alone has, and that lies inside of no other, becomes the layer's own.
        computed = (
            node for node in graph.nodes if not isinstance(node.operation, op.Input | op.Constant)
        )
        paths = Counter(_path(node) for node in computed)
        inner = {
            path[:place] for path in paths for place, letter in enumerate(path) if letter == "."
        }
        self.inner = inner
        self.alone = {
            path for path, times in paths.items() if times == 1 and path and path not in inner
        }

    def module(self) -> fx.GraphModule:
        self._inputs()
        for index, node in enumerate(self.graph.nodes):
            if not isinstance(node.operation, op.Input):
                self.made[index] = self._written(index, node)
            self.made[index].meta["shape"] = node.shape
        self.written.output(self.made[self.graph.output])
        module = fx.GraphModule(self.owned, self.written).eval()
        module.graph.eliminate_dead_code()
        module.delete_all_unused_submodules()
        module.recompile()
        return module

    def _inputs(self) -> None:
        inputs = [
            index
            for index, node in enumerate(self.graph.nodes)
            if isinstance(node.operation, op.Input)
        ]
        if isinstance(self.example, torch.Tensor):
            (only,) = inputs
            self.made[only] = self.written.placeholder("input")
            return
        batch = self.written.placeholder("batch")
        keys: list[Any] = (
            list(self.example) if isinstance(self.example, dict) else list(range(len(self.example)))
        )
        for index, key in zip(inputs, keys, strict=True):
            self.made[index] = self.written.call_function(operator.getitem, (batch, key))

    def _written(self, index: int, node: Node) -> fx.Node:
        operation, sources = node.operation, [self.made[source] for source in node.sources]
        if isinstance(operation, op.Constant):
            value = operation.value
            rounded = value.is_floating_point() and index not in self.numbers
            return self._constant((value.float() if rounded else value).contiguous(), index)
        # Functions, where torch has one that needs no module; then attention; all else as modules.
        if isinstance(operation, Reshape) and sum(extent < 0 for extent in operation.shape) <= 1:
            sizes = tuple(-1 if extent < 0 else extent for extent in operation.shape)
            return self._function(node, torch.reshape, (sources[0], sizes))
        if isinstance(operation, Concat) and self._activations(node) == 1:
            return self._padded(node, operation.axis)
        if isinstance(operation, Expand | Positions):
            return self._along_batch(operation, sources)
        if isinstance(operation, op.Sum) and operation.signs == (1, 1):
            return self._function(node, operator.add, tuple(sources))
        output = self._attention(node, self.attentions[index]) if index in self.attentions else None
        return self._called(index, node, sources) if output is None else output

    def _function(
        self,
        node: Node,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> fx.Node:
        name = "_".join(part for part in (_path(node).replace(".", "_"), target.__name__) if part)
        call = self.written.create_node("call_function", target, args, kwargs, name=name)
        call.meta["path"] = self._place(node, call.name)
        return call

    def _place(self, node: Node, name: str) -> str:
        """The path of the layer that computes it; its name where it is a function in a network's
        own `forward`.
        """
        path = _path(node)
        return path if path and path not in self.inner else name

    def _called(self, index: int, node: Node, sources: list[fx.Node]) -> fx.Node:
        layers = _layers(_in_float32(node))
        if layers:
            self.layered.add(index)
        shape = self.graph.nodes[node.sources[0]].shape
        for kind, layer in layers or [(_kind(node.operation), Applied(node.operation))]:
            name = self._named(node, kind, layer)
            sources = [self.written.call_module(name, tuple(sources))]
            # Of a pool that is flattened next; the last one's is the node's.
            sources[0].meta.update(
                path=self._place(node, name), shape=(*shape[:2], *(1 for _ in shape[2:]))
            )
        return sources[0]

    def _repeated(self, index: int) -> torch.Tensor | None:
        """A constant, perhaps repeated along the batch alone, whose size is then 1; None for all
        else.
        """
        node = self.graph.nodes[index]
        if isinstance(node.operation, op.Constant):
            return node.operation.value if node.operation.value.is_floating_point() else None
        if not isinstance(node.operation, Expand):
            return None
        value, sizes = self._repeated(node.sources[0]), node.operation.shape
        if value is None or value.ndim != len(sizes) or sizes[0] >= 0 or value.shape[0] != 1:
            return None
        return value if tuple(value.shape[1:]) == sizes[1:] else None

    def _activations(self, node: Node) -> int:
        return sum(self._repeated(source) is None for source in node.sources)

    def _padded(self, node: Node, axis: int) -> fx.Node:
        """Constants beside a value: zeros, and the constants added, whose size needs no batch."""
        parts = [self._repeated(source) for source in node.sources]
        (place,) = (number for number, part in enumerate(parts) if part is None)
        shape = self.graph.nodes[node.sources[place]].shape
        # Pad the value with zeros to the size of all parts, and add the constants with zeros in its
        # place.
        zeros = torch.zeros(1, *shape[1:])
        sizes = [shape[axis] if part is None else part.shape[axis] for part in parts]
        widths = tuple(
            (sum(sizes[:place]), sum(sizes[place + 1 :])) if dim == axis else (0, 0)
            for dim in range(len(shape))
        )
        name = self._named(node, "pad", Applied(Pad(widths)))
        padded = self.written.call_module(name, (self.made[node.sources[place]],))
        padded.meta["shape"] = node.shape
        beside = torch.cat([zeros if part is None else part.float() for part in parts], axis)
        others = (source for source in node.sources if source != node.sources[place])
        return self._function(node, operator.add, (padded, self._constant(beside, *others)))

    def _constant(self, value: torch.Tensor, *made_of: int) -> fx.Node:
        name = self._own("constant", value)
        expanded = (self.graph.nodes[source] for source in made_of)
        self.constants[name] = {
            node.sources[0] if isinstance(node.operation, Expand) else index
            for node, index in zip(expanded, made_of, strict=True)
        }
        return self.written.get_attr(name)

    def _along_batch(self, operation: Expand | Positions, sources: list[fx.Node]) -> fx.Node:
        def size(times: int) -> fx.Node:
            batch = self.written.call_method("size", (sources[-1], 0))
            return batch if times == 1 else self.written.call_function(operator.mul, (batch, times))

        if isinstance(operation, Positions):
            return self.written.call_function(torch.arange, (size(operation.times),))
        sizes = [size(-extent) if extent < 0 else extent for extent in operation.shape]
        return self.written.call_method("expand", (sources[0], *sizes))

    def _attention(self, node: Node, attention: Attention) -> fx.Node | None:
        """One call of torch's; None where that computes something else."""
        # 1. torch's attention takes a softmax over the last axis, of operands with as many axes.
        nodes = self.graph.nodes
        shares = nodes[attention.shares]
        last = nodes[shares.sources[0]]
        ranks = {
            len(nodes[index].shape) for index in (attention.query, attention.keys, attention.values)
        }
        plain = isinstance(shares.operation, op.Softmax) and len(ranks) == 1 and min(ranks) >= 3
        mask: fx.Node | None = None
        causal = False
        # 2. Its mask, if any, must be one that is added or chooses by -inf; a lower triangle is
        # `is_causal`.
        if attention.masks:
            # Of a row in which nothing counts torch makes zeros.
            safe = isinstance(shares.operation, op.Softmax) and shares.operation.safe
            if not (plain and safe and _masks(self.graph, last, attention.masks)):
                return None
            causal = _is_causal(nodes[attention.masks[0]])
            mask = None if causal else self.made[attention.masks[0]]
        if not plain:
            return None
        operands = (self.made[attention.query], self._keys(attention), self.made[attention.values])
        more = {"attn_mask": mask, "is_causal": causal, "scale": attention.scale}
        return self._function(node, functional.scaled_dot_product_attention, operands, more)

    def _keys(self, attention: Attention) -> fx.Node:
        """The keys as torch's attention takes them: (..., positions, features)."""
        node = self.graph.nodes[attention.keys]
        order = [*range(len(node.shape))]
        source = attention.keys
        if isinstance(node.operation, Transpose):
            (source,), order = node.sources, list(node.operation.order)
        # The graph multiplies by transposed keys: undo that by exchanging the last two axes.
        order[-2:] = order[:-3:-1]
        if order == sorted(order):
            return self.made[source]
        name = self._named(node, "transpose", Applied(Transpose(tuple(order))))
        return self.written.call_module(name, (self.made[source],))

    def _named(self, node: Node, kind: str, layer: nn.Module) -> str:
        path = _path(node)
        if path in self.alone and path not in self.owned:
            self.owned[path] = layer
            return path
        return self._own(f"{path}.{kind}" if path else kind, layer)

    def _own(self, name: str, value: Any) -> str:
        name = name.replace("-", "_")
        tried = (f"{name}_{number}" if number else name for number in count())
        free = next(
            candidate
            for candidate in tried
            if candidate not in self.owned | dict.fromkeys(self.inner | self.alone)
        )
        self.owned[free] = value
        return free


def _kind(operation: op.Operation) -> str:
    named = (
        operation.traits.name.replace("-", "_")
        if isinstance(operation, op.Pointwise)
        else type(operation).__name__
    )
    return named.lower()


def _path(node: Node) -> str:
    """The node's dotted path, in names that Python and a module of torch.fx leave free."""
    names = node.name.replace("-", "_").split(".")
    return ".".join(f"{name}_" if iskeyword(name) or name in _TAKEN else name for name in names)


def _layers(node: Node) -> list[Placed]:
    operation, layers = node.operation, list[Placed]()
    match operation:
        case op.Whole():
            layers = [("whole", operation.module)]
        case op.LayerNorm():
            layers = _layer_norm(operation, node.shape)
        case op.Clamp() if operation.low < operation.high:
            layers = [("clamp", nn.Hardtanh(operation.low, operation.high))]
        case op.AveragePool() if operation.divisor is not None and len(operation.kernel) == 2:
            layers = [("pool", nn.AvgPool2d(*vars(operation).values()))]
        case op.Pointwise():
            layers = _activation(node, operation)
        case _:
            with suppress(Unsupported):  # of a shape that no layer has
                layers = torch_layers(node)
    return layers


def _activation(node: Node, operation: op.Pointwise) -> list[Placed]:
    row = operation.traits
    # Rows of other parameters than their own `make` has.
    sloped = {"elu": nn.ELU(row.relu_distance), "leaky-relu": nn.LeakyReLU(row.limits[0])}.get(
        row.name
    )
    if sloped is not None and operation.hardness is None and row.of(sloped) == row:
        return [(row.name, sloped)]
    # What it deviates by the caller has refused, or it is less than float32 rounds.
    return torch_layers(replace(node, operation=replace(operation, deviation=0.0)))


def _layer_norm(operation: op.LayerNorm, shape: tuple[int, ...]) -> list[Placed]:
    # torch's LayerNorm is over the last axes, with parameters of exactly their sizes.
    sizes = shape[operation.axes[0] :]
    parameters = [
        parameter for parameter in (operation.weight, operation.bias) if parameter is not None
    ]
    if operation.axes[-1] != len(shape) - 1 or len(sizes) != len(operation.axes) or min(sizes) < 1:
        return []
    if any(tuple(parameter.shape) != sizes for parameter in parameters):
        return []
    norm = nn.LayerNorm(sizes, operation.eps, elementwise_affine=bool(parameters))
    if parameters:
        norm.weight = nn.Parameter(
            torch.ones(sizes) if operation.weight is None else operation.weight.detach()
        )
        norm.bias = nn.Parameter(
            torch.zeros(sizes) if operation.bias is None else operation.bias.detach()
        )
    return [("norm", norm)]


def _masks(graph: Graph, last: Node, masks: tuple[int, ...]) -> bool:
    """Whether the only mask is added to the scaled scores, or says where they count, as torch's
    is.
    """
    if len(masks) != 1 or masks[0] not in last.sources:
        return False
    if isinstance(last.operation, op.Sum):
        return True
    if not isinstance(last.operation, op.Where) or last.sources[0] != masks[0]:
        return False
    fill = graph.nodes[last.sources[2]].operation
    return isinstance(fill, op.Constant) and bool((fill.value == -torch.inf).all())


def _is_causal(mask: Node) -> bool:
    value = mask.operation.value if isinstance(mask.operation, op.Constant) else None
    if (
        value is None
        or value.dtype != torch.bool
        or value.ndim != 2
        or value.shape[0] != value.shape[1]
    ):
        return False
    return torch.equal(value, torch.ones_like(value).tril())
