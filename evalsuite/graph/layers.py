"""A network whose values follow one another, as the layers that they are: what readers of nn.Sequential take."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn

from evalsuite.activations.census import identify
from evalsuite.contract import Unsupported
from evalsuite.graph.graph import Graph, Node
from evalsuite.graph.moving import Reshape
from evalsuite.graph.operations import (
    AveragePool,
    BatchNorm,
    Constant,
    Convolution,
    Input,
    Linear,
    MaxPool,
    Pointwise,
    Reduction,
)
from evalsuite.graph.reading import read

# A constant of a formula that is no further off than float64 rounds it.
_EXACT = 4 * torch.finfo(torch.float64).eps
_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_AVERAGES = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
_MAXIMA = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
_GLOBAL = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


def in_layers(module: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """The network as an nn.Sequential of torch's layers and known activations; itself, where it is one already.

    Layers that are modules keep their parameters, which are shared, and their dotted paths; what is a function in a
    `forward` becomes the module that computes it, named by its operation. The real function is the same, exactly.

    Raises:
        Unsupported: hooks or replaced forwards; a value that several others take, or an operation that is no layer,
            named by the path; whatever `evalsuite.graph.read` refuses.
    """
    if not any(_is_foreign(layer) for layer in _leaves(module)):
        return module
    for path, layer in module.named_modules():
        if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
            raise Unsupported(f"{path or 'the network'} has forward hooks, or a forward of its own: remove them")
    dtype = next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float32)
    example = torch.rand((2, *input_shape), generator=torch.Generator().manual_seed(0)).to(dtype)
    graph = read(module, example)
    made = nn.Sequential()
    for path, layer in _layers(graph, module):
        _place(made, path, layer)
    _compare(made, module, example)
    return made.train(module.training)


@torch.no_grad()
def _compare(made: nn.Module, module: nn.Module, example: torch.Tensor) -> None:
    ours, theirs = (copy.deepcopy(each).double().eval()(example.double()) for each in (made, module))
    if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9):
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


def _layers(graph: Graph, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers in order: modules of the network where they are torch's or known, else what computes the same."""
    within = ""
    for node in _chain(graph):
        owner = _owner(module, node.name)
        if owner is None:
            within = ""
            _refuse_computed(node, next(module.parameters(), torch.ones(())).dtype)
            for kind, layer in _made(node):
                yield f"{node.name}.{kind}" if node.name else kind, layer
        elif node.name != within or isinstance(node.operation, Linear | Convolution | BatchNorm | Pointwise):
            # Of a module that is applied twice in a row each of these is one application.
            within = node.name
            yield node.name, owner


def _refuse_computed(node: Node, dtype: torch.dtype) -> None:
    """What is computed from parameters, in float64, is rounded: it is not what they say exactly."""
    for each in vars(node.operation).values():
        if isinstance(each, torch.Tensor) and each.dtype != dtype:
            where = f"{node.name or 'the network'} ({type(node.operation).__name__.lower()})"
            raise Unsupported(f"{where}: its weights are computed from others: remove the parametrization before")


def _chain(graph: Graph) -> Iterator[Node]:
    """The values behind the input, each of which takes the one before it, and nothing else but constants."""
    before = next(index for index, node in enumerate(graph.nodes) if isinstance(node.operation, Input))
    for index, node in enumerate(graph.nodes):
        if isinstance(node.operation, Input | Constant):
            continue
        taken = [each for each in node.sources if not isinstance(graph.nodes[each].operation, Constant)]
        if taken != [before] or not graph.nodes[before].shape or graph.nodes[before].shape[0] != -1:
            where = f"{node.name or 'the network'} ({type(node.operation).__name__.lower()})"
            raise Unsupported(f"{where} takes other values than the one before it: only layers in a row are read here")
        yield node
        before = index


def _owner(module: nn.Module, path: str) -> nn.Module | None:
    """The module at the path, if it is a layer whose operations are taken together."""
    owner = module.get_submodule(path)
    return None if _is_foreign(owner) or type(owner) is nn.Sequential else owner


def _made(node: Node) -> list[tuple[str, nn.Module]]:
    """Modules that compute the node's operation, with the same numbers."""
    operation = node.operation
    made: list[tuple[str, nn.Module]] = []
    if isinstance(operation, Linear):
        made = [("linear", _with(nn.Linear, operation.weight.shape[::-1], operation.weight, operation.bias))]
    elif isinstance(operation, Convolution) and not operation.transposed:
        made = [("conv", _convolution(operation))]
    elif isinstance(operation, BatchNorm):
        made = [("norm", _norm(operation, len(node.shape) - 2))]
    elif isinstance(operation, Pointwise) and operation.hardness is None and operation.deviation <= _EXACT:
        layer = operation.traits.make(1)
        made = [(operation.traits.name, layer.eval())] if operation.traits.of(layer) == operation.traits else []
    elif isinstance(operation, Reshape):
        made = _reshaped(node)
    else:
        made = _pooled(node)
    if not made:
        where = f"{node.name or 'the network'} ({type(operation).__name__.lower()})"
        raise Unsupported(f"{where}: it is neither an affine layer nor exactly a known activation")
    return made


def _pooled(node: Node) -> list[tuple[str, nn.Module]]:
    operation = node.operation
    if isinstance(operation, AveragePool) and operation.divisor is None:
        window = (operation.kernel, operation.stride, operation.padding, operation.ceil, operation.counts)
        return [("pool", _AVERAGES[len(operation.kernel)](*window))]
    if isinstance(operation, MaxPool):
        reach = (operation.kernel, operation.stride, operation.padding, operation.dilation)
        return [("pool", _MAXIMA[len(operation.kernel)](*reach, ceil_mode=operation.ceil))]
    if isinstance(operation, Reduction) and operation.name == "mean" and len(operation.axes) in _GLOBAL:
        whole = len(node.shape) + (0 if operation.keeps else len(operation.axes))
        if operation.axes == tuple(range(2, whole)):
            pool = _GLOBAL[len(operation.axes)](1)
            return [("mean", pool)] if operation.keeps else [("mean", pool), ("flatten", nn.Flatten())]
    return []


def _reshaped(node: Node) -> list[tuple[str, nn.Module]]:
    shape = node.shape[1:]
    if node.shape[0] != -1:
        raise Unsupported(f"{node.name or 'the network'} (reshape): the batch is not its first dimension")
    flat: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
    return flat if len(shape) == 1 else [*flat, ("unflatten", nn.Unflatten(1, shape))]


def _with(kind: type[nn.Module], sizes: tuple[int, ...], weight: torch.Tensor, bias: torch.Tensor | None,
          **window: object) -> nn.Module:  # fmt: skip
    """A layer with these parameters; it draws no random number."""
    layer = kind(*sizes, bias=bias is not None, device="meta", **window)
    layer.weight = nn.Parameter(weight.detach())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach())
    return layer


def _convolution(made: Convolution) -> nn.Module:
    channels = (made.weight.shape[1] * made.groups, made.weight.shape[0])
    window = {"kernel_size": tuple(made.weight.shape[2:]), "stride": made.stride, "padding": made.padding,
              "dilation": made.dilation, "groups": made.groups}  # fmt: skip
    return _with(_CONVOLUTIONS[len(made.stride)], channels, made.weight, made.bias, **window)


def _norm(made: BatchNorm, spatial: int) -> nn.Module:
    kind = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[spatial]
    norm = kind(len(made.mean), eps=made.eps, affine=made.weight is not None).to(made.mean.dtype)
    norm.running_mean, norm.running_var = made.mean.detach().clone(), made.variance.detach().clone()
    if made.weight is not None:
        norm.weight = nn.Parameter(made.weight.detach())
        norm.bias = nn.Parameter(torch.zeros_like(made.mean) if made.bias is None else made.bias.detach())
    return norm.eval()


def _place(whole: nn.Sequential, path: str, layer: nn.Module) -> None:
    """At the dotted path; under another name where that would change the order, or is taken."""
    *containers, name = path.replace("-", "_").split(".") if path else ["layer"]
    for each in containers:
        last = next(reversed(whole._modules), None)
        child = whole._modules[last] if last is not None and last.split("__")[0] == each else None
        if type(child) is not nn.Sequential:
            child = nn.Sequential()
            whole.add_module(_free(whole, each), child)
        whole = child
    whole.add_module(_free(whole, name), layer)


def _free(whole: nn.Sequential, name: str) -> str:
    taken = sum(each.split("__")[0] == name for each in whole._modules)
    return f"{name}__{taken}" if taken else name
