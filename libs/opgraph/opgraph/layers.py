"""A network whose values follow one another, as the layers that they are: what readers of
nn.Sequential take.

A value bears the path of the module that its last operation comes from. A formula may begin in
front of that module, and one that is applied twice in a row bears one path: so the layer is run
beside the operations that bear its path.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from itertools import chain, count, groupby

import onnx
import torch
from torch import nn

from lambda_gelu.activations import Activation
from lambda_gelu.activations.census import identify
from opgraph import operations as op
from opgraph.errors import Unsupported
from opgraph.graph import Graph, Node
from opgraph.moving import Reshape
from opgraph.onnx_file import graph_of_model
from opgraph.patterns import recognised
from opgraph.reading import read
from opgraph.sizes import at

_BATCH, _SCALES, _TOLERANCE = 3, (1.0, 10.0, 100.0), 1e-12


def times_applied(owner: nn.Module, graph: Graph, nodes: list[Node]) -> int:
    """How often the layer, applied in a row, makes up these values, each of which takes the one
    before it.

    Raises:
        Unsupported: it computes something else, as where operations in front of it belong to the
            same formula.
    """
    operations = [type(node.operation) for node in nodes]
    if _is_row(owner, nodes):
        for count in range(len(nodes), 0, -1):
            part = operations[: len(nodes) // count]
            if part * count == operations and all(
                _same(owner, count, graph, nodes, scale) for scale in _SCALES
            ):
                return count
    raise Unsupported(
        f"{nodes[-1].name} is not all that computes its values: what is before it may belong to"
        " them"
    )


def _is_row(owner: nn.Module, nodes: list[Node]) -> bool:
    """Whether the activations among the values are exactly rows, and that which the layer is
    known as.
    """
    curves = [node.operation for node in nodes if isinstance(node.operation, op.Pointwise)]
    found = identify(owner, gates=True)
    own = type(owner).__module__.startswith(("torch.nn.modules", "lambda_gelu.", "evalsuite."))
    if not all(curve.is_exact for curve in curves) or (not own and len(curves) < len(nodes)):
        return False
    named = found is not None and all(curve.traits.name == found.traits.name for curve in curves)
    return (
        named
        or len(curves) < len(nodes)
        or (own and all(curve.hardness is not None for curve in curves))
    )


@torch.no_grad()
def _same(owner: nn.Module, count: int, graph: Graph, nodes: list[Node], scale: float) -> bool:
    before = next(
        source
        for source in nodes[0].sources
        if not isinstance(graph.nodes[source].operation, op.Constant)
    )
    # 1. The module itself in float64, as often as it is applied.
    generator = torch.Generator().manual_seed(0)
    size = at(graph.nodes[before].shape, _BATCH)
    ours = theirs = torch.randn(size, generator=generator, dtype=torch.float64) * scale
    layer = copy.deepcopy(owner).double().eval()
    try:
        for _ in range(count):
            ours = layer(ours.clone())
    except (RuntimeError, ValueError):  # such a shape is none that the layer takes
        return False
    # 2. What was read of it, node by node, at the same numbers.
    for node in nodes:
        given = [graph.nodes[source].operation for source in node.sources]
        constants = [
            op.converted(each, torch.float64).value if isinstance(each, op.Constant) else None
            for each in given
        ]
        theirs = op.converted(node.operation, torch.float64)(
            *(theirs if constant is None else constant for constant in constants)
        )
    return close(ours, theirs, _TOLERANCE)


def close(ours: torch.Tensor, theirs: torch.Tensor, relative: float) -> bool:
    """Whether two tensors have one shape and agree to `relative` of each entry, or to 1e-12 of
    the greatest.
    """
    if ours.shape != theirs.shape or not theirs.numel():
        return ours.shape == theirs.shape
    rounding = 1e-12 * float(theirs.abs().max())
    return bool(torch.allclose(ours.double(), theirs.double(), rtol=relative, atol=rounding))


Placed = tuple[str, nn.Module]
FileLayer = nn.Module | torch.Tensor | tuple[Activation, float]
"""A layer of torch, a constant that is added, or an activation with its one hardness.
"""
_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_AVERAGES = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
_MAXIMA = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
_GLOBAL = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


def in_layers(
    module: nn.Module, input_shape: tuple[int, ...], graph: Graph | None = None
) -> nn.Module:
    """The network as an nn.Sequential of torch's layers and known activations; itself, where it is
    one already.

    Layers that are modules keep their parameters, which are shared, and their dotted paths; what is
    a function in a `forward` becomes the module that computes it, named by its operation. The real
    function is the same, exactly.

    Args:
        module: the network.
        input_shape: of one sample, of real numbers.
        graph: of the module, where it was read before.

    Raises:
        Unsupported: hooks or replaced forwards; a value that several others take, or an operation
            that is no layer, named by the path; whatever `opgraph.read` refuses.
    """
    if is_layered(module):
        return module
    # 1. Refuse what would be lost, as hooks, and what is not read exactly.
    for path, layer in module.named_modules():
        if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
            raise Unsupported(
                f"{path or 'the network'} has forward hooks, or a forward of its own: remove them"
            )
    for name, each in (*module.named_parameters(), *module.named_buffers()):
        if each.is_floating_point() and each.dtype != torch.float32:
            raise Unsupported(
                f"{name} is {each.dtype}: a forward of its own is read exactly in float32 alone"
            )
    # 2. Read the graph as layers in a row, and put these in modules at their paths.
    example = torch.rand((2, *input_shape), generator=torch.Generator().manual_seed(0))
    graph = read(module, example) if graph is None else graph
    layers = list(_layers(graph, module))
    made = _nested(
        [((path.replace("-", "_") or "layer").split("."), layer) for path, layer in layers]
    )
    if sum(1 for _ in _leaves(made)) != len(layers):
        raise Unsupported(
            "its layers have names under which they cannot be put in a row: rename them"
        )
    # 3. The result must compute the same.
    _compare(made, module, example)
    return made.train(module.training)


def is_layered(module: nn.Module) -> bool:
    """Whether a network is an nn.Sequential of torch's layers and known activations already."""
    return not any(_is_foreign(layer) for layer in _leaves(module))


def layers_in_file(model: onnx.ModelProto) -> list[tuple[str, FileLayer]]:
    """The layers of an ONNX file with their names, in order; not yet compared with the file.

    Raises:
        Unsupported: an operator has no reader; a value that several others take; an operation that
            is no layer, or one of numbers that were rounded; the text names the node.
    """
    graph = recognised(graph_of_model(model))
    return [(node.name, _in_file(graph, node)) for node in _chain(graph)]


def _in_file(graph: Graph, node: Node) -> FileLayer:
    operation = node.operation
    if isinstance(operation, op.Pointwise):
        # 1. Activations: only exactly known ones, of a single hardness.
        operation = operation.as_written
        hardness = (
            [1.0] if operation.hardness is None else operation.hardness.double().flatten().tolist()
        )
        if not operation.is_exact or len({*hardness}) > 1:
            raise Unsupported(
                f"{node.name} ({operation.traits.name}): of constants that are rounded, or are"
                " several"
            )
        return operation.traits, hardness[0]
    # 2. Adding a constant, or multiplying by one, is an affine layer where float32 has its numbers
    # exactly.
    refuse_computed(node)
    added = [
        each.value
        for each in (graph.nodes[i].operation for i in node.sources)
        if isinstance(each, op.Constant)
    ]
    if isinstance(operation, op.Sum) and len(added) == 1 and added[0].dtype == torch.float32:
        first = isinstance(graph.nodes[node.sources[0]].operation, op.Constant)
        if operation.signs == (1, 1):
            return added[0]
        if operation.signs == (1, -1) and not first:  # x - c is x + (-c), without rounding
            return -added[0]
    if (
        isinstance(operation, op.Product | op.Quotient)
        and len(added) == 1
        and added[0].dtype == torch.float32
    ):
        factor = _factor(graph, node, added[0])
        if factor is not None:
            return _with(nn.Linear, (len(factor),) * 2, torch.diag(factor), None)
    # 3. Layers as they are.
    if isinstance(operation, op.Linear):
        return _linear(operation)
    if isinstance(operation, Reshape) and len(node.shape) == 2:
        return nn.Flatten()
    kind = getattr(operation, "name", type(operation).__name__)
    raise Unsupported(
        f"node {node.name!r} ({kind}): exact engines read chains of affine layers and known"
        " activations, and this is neither; take the engine auto"
    )


def _factor(graph: Graph, node: Node, constant: torch.Tensor) -> torch.Tensor | None:
    """Return what each entry of a vector is multiplied by, exactly; None where float32 has no such
    number, or of no vector.
    """
    if isinstance(node.operation, op.Quotient):
        if isinstance(graph.nodes[node.sources[0]].operation, op.Constant) or not bool(
            constant.all()
        ):
            return None
        mantissa, _ = torch.frexp(constant)
        # only of a power of 2 the inverse is a number of float32
        if not bool((mantissa.abs() == 0.5).all()):
            return None
        constant = 1 / constant
    size = math.prod(node.shape[1:])
    fits = (
        len(node.shape) == 2 and constant.numel() in (1, size) and bool(constant.isfinite().all())
    )
    return constant.reshape(-1).expand(size) if fits else None


@torch.no_grad()
def _compare(made: nn.Module, module: nn.Module, example: torch.Tensor) -> None:
    """Raise Unsupported where the two differ in float64, at the example or at random inputs of
    three magnitudes.
    """
    ours, theirs = (copy.deepcopy(each).double().eval() for each in (made, module))
    generator = torch.Generator().manual_seed(1)
    points = torch.randn((16, *example.shape[1:]), generator=generator, dtype=torch.float64)
    for inputs in (example.double(), points, 10 * points, 100 * points):
        try:
            same = close(ours(inputs.clone()), theirs(inputs.clone()), 1e-9)
        except (RuntimeError, ValueError) as error:
            raise Unsupported(
                f"the network fails in float64, in which its layers are compared: {error}"
            ) from error
        if not same:
            raise Unsupported("the network computes something else than its layers in order")


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is not nn.Sequential:
        yield module
        return
    for child in module._modules.values():
        if child is not None:
            yield from _leaves(child)


def _is_foreign(layer: nn.Module) -> bool:
    """Whether it is neither torch's own layer without children nor a known activation."""
    if type(layer).__module__.startswith("torch.nn.modules"):
        return bool(layer._modules)
    return identify(layer, gates=True) is None


def _layers(graph: Graph, module: nn.Module) -> Iterator[Placed]:
    """The layers in order: modules of the network where they are torch's or known, else what
    computes the same.
    """
    for path, group in groupby(_chain(graph), key=lambda node: node.name):
        nodes, owner = list(group), module.get_submodule(path)
        # a layer, all of whose operations are taken
        if type(owner) is not nn.Sequential and not _is_foreign(owner):
            yield from [(path, owner)] * times_applied(owner, graph, nodes)
            continue
        for node in nodes:
            refuse_computed(node)
            for kind, layer in _made(node):
                yield f"{path}.{kind}" if path else kind, layer


def _where(node: Node) -> str:
    return f"{node.name or 'the network'} ({type(node.operation).__name__.lower()})"


def refuse_computed(node: Node) -> None:
    """Raise Unsupported where weights are computed from parameters: in float64, they are not
    exactly the weights.
    """
    for variable in vars(node.operation).values():
        if isinstance(variable, torch.Tensor) and variable.dtype != torch.float32:
            raise Unsupported(
                f"{_where(node)}: its weights are computed from others: remove the parametrization"
                " before"
            )


def _chain(graph: Graph) -> Iterator[Node]:
    """The values behind the input, each of which takes the one before it, and nothing else but
    constants.
    """
    before = next(
        index for index, node in enumerate(graph.nodes) if isinstance(node.operation, op.Input)
    )
    batch = graph.nodes[before].shape[0]
    for index, node in enumerate(graph.nodes):
        if isinstance(node.operation, op.Input | op.Constant):
            continue
        # A batch that is reshaped away, or joined with another axis, would mix samples: layers keep
        # it.
        taken = [
            source
            for source in node.sources
            if not isinstance(graph.nodes[source].operation, op.Constant)
        ]
        if (
            taken != [before]
            or not graph.nodes[before].shape
            or graph.nodes[before].shape[0] != batch
        ):
            said = "takes other values than the one before it: only layers in a row are read here"
            raise Unsupported(f"{_where(node)} {said}")
        yield node
        before = index
    if before != graph.output:
        raise Unsupported("its output does not depend on its input")


def _made(node: Node) -> list[Placed]:
    made = _reshaped(node) if isinstance(node.operation, Reshape) else torch_layers(node)
    if not made:
        raise Unsupported(
            f"{_where(node)}: it is neither an affine layer nor exactly a known activation"
        )
    return made


def torch_layers(node: Node) -> list[Placed]:
    """Layers of torch, with names of their kinds, that compute the operation one behind the other;
    none if none do.

    Raises:
        Unsupported: a linear map of a shape that no layer has.
    """
    operation = node.operation
    if isinstance(operation, op.Linear):
        return [("linear", _linear(operation))]
    if isinstance(operation, op.Convolution) and not operation.transposed:
        return [("conv", _convolution(operation))]
    if isinstance(operation, op.BatchNorm):
        return [("norm", _norm(operation, len(node.shape) - 2))]
    if isinstance(operation, op.Pointwise) and operation.hardness is None and operation.is_exact:
        layer = operation.traits.make(1)
        return (
            [(operation.traits.name, layer.eval())]
            if operation.traits.of(layer) == operation.traits
            else []
        )
    return _pooled(node)


def _pooled(node: Node) -> list[Placed]:
    operation = node.operation
    if isinstance(operation, op.AveragePool) and operation.divisor is None:
        window = (
            operation.kernel,
            operation.stride,
            operation.padding,
            operation.ceil,
            operation.counts,
        )
        return [("pool", _AVERAGES[len(operation.kernel)](*window))]
    if isinstance(operation, op.MaxPool):
        reach = (operation.kernel, operation.stride, operation.padding, operation.dilation)
        return [("pool", _MAXIMA[len(operation.kernel)](*reach, ceil_mode=operation.ceil))]
    if (
        isinstance(operation, op.Reduction)
        and operation.name == "mean"
        and len(operation.axes) in _GLOBAL
    ):
        # A mean over all spatial axes, and over nothing else, is global pooling; `whole` is the
        # number of axes before it.
        whole = len(node.shape) + (0 if operation.keeps else len(operation.axes))
        if operation.axes == tuple(range(2, whole)):
            pool = _GLOBAL[len(operation.axes)](1)
            return (
                [("mean", pool)] if operation.keeps else [("mean", pool), ("flatten", nn.Flatten())]
            )
    return []


def _reshaped(node: Node) -> list[Placed]:
    shape = node.shape[1:]
    if node.shape[0] != -1:
        raise Unsupported(
            f"{node.name or 'the network'} (reshape): the batch is not its first dimension"
        )
    flat: list[Placed] = [("flatten", nn.Flatten())]
    return flat if len(shape) == 1 else [*flat, ("unflatten", nn.Unflatten(1, shape))]


def _with(
    kind: type[nn.Module],
    sizes: tuple[int, ...],
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    **window: object,
) -> nn.Module:
    layer = kind(*sizes, bias=bias is not None, device="meta", **window)
    layer.weight = nn.Parameter(weight.detach())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach())
    return layer


def _linear(made: op.Linear) -> nn.Module:
    """One that adds a number to all outputs becomes one of as many biases."""
    weight, bias = made.weight, made.bias
    if weight.ndim != 2 or (
        bias is not None and (bias.ndim > 1 or bias.numel() not in (1, len(weight)))
    ):
        shapes = tuple(weight.shape), None if bias is None else tuple(bias.shape)
        raise Unsupported(
            f"a linear map of the shapes {shapes}: only (outputs, inputs) and (outputs) are read"
        )
    bias = None if bias is None else bias.reshape(-1).expand(len(weight)).contiguous()
    return _with(nn.Linear, weight.shape[::-1], weight, bias)


def _convolution(made: op.Convolution) -> nn.Module:
    channels = (made.weight.shape[1] * made.groups, made.weight.shape[0])
    window = {
        "kernel_size": tuple(made.weight.shape[2:]),
        "stride": made.stride,
        "padding": made.padding,
        "dilation": made.dilation,
        "groups": made.groups,
    }
    return _with(_CONVOLUTIONS[len(made.stride)], channels, made.weight, made.bias, **window)


def _norm(made: op.BatchNorm, spatial: int) -> nn.Module:
    kind = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[spatial]
    affine = made.weight is not None or made.bias is not None
    norm = kind(len(made.mean), eps=made.eps, affine=affine).to(made.mean.dtype)
    norm.running_mean, norm.running_var = made.mean.detach().clone(), made.variance.detach().clone()
    if affine:
        norm.weight = nn.Parameter(
            torch.ones_like(made.mean) if made.weight is None else made.weight.detach()
        )
        norm.bias = nn.Parameter(
            torch.zeros_like(made.mean) if made.bias is None else made.bias.detach()
        )
    return norm.eval()


def _nested(placed: list[tuple[list[str], nn.Module]]) -> nn.Sequential:
    """The layers at their paths; under another name where that would change the order, or is
    taken.
    """
    whole = nn.Sequential()
    for (name, inside), group in groupby(placed, key=lambda each: (each[0][0], len(each[0]) > 1)):
        if inside:
            whole.add_module(
                _free(whole, name), _nested([(path[1:], layer) for path, layer in group])
            )
            continue
        for _, layer in group:
            whole.add_module(_free(whole, name), layer)
    return whole


def _free(whole: nn.Sequential, name: str) -> str:
    """The name, with the first number behind it that makes it neither a layer's nor an attribute
    of any Sequential.
    """
    numbered = (f"{name}__{number}" for number in count(1))
    return next(
        each
        for each in chain([name], numbered)
        if each not in whole._modules and not hasattr(whole, each)
    )
