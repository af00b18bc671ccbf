"""Which channels can go together: torch-pruning's dependency graph (arXiv 2301.12900), and where
it would be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch_pruning as tp
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch_pruning.ops import OPTYPE

from evalsuite import Unsupported
from lambda_gelu import census
from pipelines.prune.selection import Probe

_TRANSPARENT = {
    OPTYPE.ELEMENTWISE,
    OPTYPE.RESHAPE,
    OPTYPE.CONCAT,
    OPTYPE.SPLIT,
    OPTYPE.SLICE,
    OPTYPE.EXPAND,
}
_PRUNABLE = {
    OPTYPE.CONV,
    OPTYPE.DEPTHWISE_CONV,
    OPTYPE.LINEAR,
    OPTYPE.BN,
    OPTYPE.PARAMETER,
    OPTYPE.PRELU,
}

# What makes channels of places in an image, and places of channels; by autograd's names.
_REGROUPING = {"PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "NativeChannelShuffle"}
# Hooks that compute a weight before each call, and what ends them.
_UNDONE_BY = {
    WeightNorm: "torch.nn.utils.remove_weight_norm",
    SpectralNorm: "torch.nn.utils.remove_spectral_norm",
    BasePruningMethod: "torch.nn.utils.prune.remove",
}


CONVOLUTION = nn.modules.conv._ConvNd
BATCH_NORM = nn.modules.batchnorm._BatchNorm
LAYERS = (nn.Linear, CONVOLUTION, BATCH_NORM)


@dataclass(frozen=True, slots=True)
class Part:
    """Describes what a group takes of one Linear, Conv or BatchNorm layer: outputs, or the inputs
    that come from them.

    `channels` are those of the layer, `roots` the group's channel that each belongs to: a flattened
    image gives many inputs to one channel.
    """

    path: str
    layer: nn.Module
    output: bool
    channels: list[int]
    roots: list[int]


@dataclass(frozen=True, slots=True)
class Group:
    """Channels that are coupled over several layers, so that each goes from all of them or from
    none.

    Args:
        root: the path of a layer whose output channels number the group's.
        layer: that layer.
        size: the number of channels.
        parts: of the layers that have them.
        activations: which calls of activation modules they feed, counted in the order of the calls.
    """

    root: str
    layer: nn.Module
    size: int
    parts: list[Part]
    activations: list[int]


@dataclass(frozen=True, slots=True)
class Graph:
    """The prunable groups of a module.

    Args:
        dependencies: torch-pruning's graph.
        groups: in the order of `module.named_modules()`.
        refused: for people: each layer that feeds an activation and cannot be pruned, and why.
        channel_dimensions: for each call of an activation module, the dimension of its output that
            holds the channels; None where it gets none of a single kind of layer.
    """

    dependencies: tp.DependencyGraph
    groups: list[Group]
    refused: list[str]
    channel_dimensions: list[int | None]


def check_weights(module: nn.Module) -> None:
    """Refuse layers whose weights a hook computes: torch cannot copy them, nor can they lose
    channels.

    Raises:
        Unsupported: with the path of the layer and the cure.
    """
    for path, layer in module.named_modules():
        for hook in layer._forward_pre_hooks.values():
            cure = next((cure for kind, cure in _UNDONE_BY.items() if isinstance(hook, kind)), "")
            if cure:
                raise Unsupported(
                    f"{path or 'the module'}: {type(hook).__name__} computes its weights before"
                    f" each call; call {cure} on it first, which leaves the network's function as"
                    " it is"
                )


def check_trainable(module: nn.Module) -> None:
    """Raise Unsupported where every parameter is frozen: nothing may change."""
    parameters = list(module.parameters())
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        raise Unsupported("every parameter is frozen; set requires_grad on those that may change")


def _obstacles(
    dependencies: tp.DependencyGraph,
    layer: nn.Module,
    items: tp.Group,
    parts: list[Part],
    paths: dict[nn.Module, str],
    fixed: dict[nn.Module, str],
) -> Iterator[str]:
    """Why the layer's group may not be pruned: it is an output, or something mixes, couples or
    shares its channels.
    """
    # Channels may only leave together if each item of the group keeps them apart and in order.
    last = isinstance(items[0].dep.target.module, nn.Linear)
    for item in items.items:
        node = item.dep.target
        name, groups = paths.get(node.module, ""), getattr(node.module, "groups", 1)
        if node.type == OPTYPE.OUTPUT or (
            dependencies.is_out_channel_pruning_fn(item.dep.handler) and not node.outputs
        ):
            yield "they are outputs of the network"
        elif node.type not in _TRANSPARENT | _PRUNABLE:
            yield f"{name} ({type(node.module).__name__}) mixes them"
        elif _operation(node) in _REGROUPING:
            yield f"{_operation(node)} regroups them"
        elif node.type == OPTYPE.RESHAPE and not _keeps_channels(node.grad_fn, last=last):
            yield "a reshape regroups them"
        # Channels of a grouped convolution cannot leave one by one, except where each group is one
        # channel.
        elif groups > 1 and node.type != OPTYPE.DEPTHWISE_CONV:
            yield f"{name} is a convolution with groups={groups}"
        elif node.module in fixed:
            yield f"{name} {fixed[node.module]}"
        elif isinstance(node.module, nn.Module) and is_parametrized(node.module):
            cure = "torch.nn.utils.parametrize.remove_parametrizations"
            yield f"{name} computes its weights from others; call {cure} first"
    if len(_items(dependencies, layer, [0])[0].idxs) > 1:  # as in x.chunk(2)
        yield "a split couples them with one another"
    yield from _misfits(parts, _width(layer))


def operations(groups: list[tp.Group]) -> str:
    """Return what is done, other than by layers, to the channels of the groups: autograd's names of
    the operations.
    """
    names = (_operation(item.dep.target) for items in groups for item in items.items)
    return ", ".join(dict.fromkeys(filter(None, names)))


def _operation(node: Any) -> str:
    """Autograd's name, as "Relu"; empty for layers, and for the transposed weight of a Linear."""
    name: str = (
        node.grad_fn.name().partition("Backward")[0] if node.type == OPTYPE.ELEMENTWISE else ""
    )
    return "" if name == "T" else name


def _conv1d(paths: dict[nn.Module, str]) -> list[str]:
    """For people: that the layers that GPT-2 has in place of Linear are not followed, and the
    cure.
    """
    paths_of_conv = [path for layer, path in paths.items() if type(layer).__name__ == "Conv1D"]
    if not paths_of_conv:
        return []
    others = f" and {len(paths_of_conv) - 1} more are" if len(paths_of_conv) > 1 else " is a"
    return [
        f"{paths_of_conv[0]}{others} Conv1D, not Linear; convert with"
        " pipelines.prune.conv1d.conv1d_to_linear first"
    ]


def _keeps_channels(reshape: Any, *, last: bool) -> bool:
    """Whether channels stay what they are: dimension 1 of images, which may be flattened, or the
    last one of tokens.

    torch-pruning follows heads that a reshape makes of channels as if they were flattened images.
    """
    source, place = reshape.next_functions[0]
    if hasattr(source, "variable"):  # a parameter, as the slopes of PReLU
        return True
    before, after = (
        tuple(source._input_metadata[place].shape),
        tuple(reshape._input_metadata[0].shape),
    )
    if before[-1:] == after[-1:]:
        return True
    return not last and (before[:2] == after[:2] or (len(after) == 2 and before[0] == after[0]))


def _shared_parameters(module: nn.Module) -> dict[nn.Module, str]:
    """Each module that shares a parameter with another one, and which: pruned alone, they would
    no longer share.
    """
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for path, layer in module.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            owners.setdefault(parameter, []).append((layer, f"{path}.{name}".lstrip(".")))
    shared = {}
    for places in owners.values():
        for layer, shared_paths in places if len(places) > 1 else []:
            other = next(name for _, name in places if name != shared_paths)
            shared[layer] = f"shares its {shared_paths.rpartition('.')[2]} with {other}"
    return shared


@contextmanager
def explained(what: str) -> Iterator[None]:
    """A context that turns what torch-pruning raises, on a layout that it does not know, into
    Unsupported.
    """
    try:
        yield
    # the machine's limit, not the network's; or what is explained already
    except (MemoryError, Unsupported):
        raise
    except Exception as error:
        lines = str(error).splitlines() or [""]
        raise Unsupported(f"torch-pruning {what}: {type(error).__name__}: {lines[0]}") from error


def trace(module: nn.Module, probe: Probe) -> Graph:
    """The groups of `module` (in eval mode, all parameters trainable) that feed an activation and
    may be pruned.

    Raises:
        Unsupported: torch-pruning cannot follow the network.
    """
    with explained("cannot follow the network"):
        dependencies, feeders, reused = _follow(module, probe)
        paths = {layer: path for path, layer in module.named_modules()}
        fixed = _shared_parameters(module) | dict.fromkeys(reused, "is called more than once")
        groups: list[Group] = []
        refused: list[str] = []
        seen: set[nn.Module] = set()
        for path, layer in module.named_modules():
            # 1. A group once, and only if its layer is the last one before an activation.
            if layer in seen or not any(layer in feeder for feeder in feeders):
                continue
            items = _items(dependencies, layer, range(_width(layer)))
            parts = _parts(dependencies, items, paths)
            outputs_of = {part.layer for part in parts if part.output}
            seen |= outputs_of
            # 2. It is refused for the first obstacle, which is told; else it knows the calls that
            # it feeds.
            reason = next(_obstacles(dependencies, layer, items, parts, paths, fixed), "")
            if reason:
                refused.append(f"{path} keeps its channels: {reason}")
            else:
                calls = [call for call, layers in enumerate(feeders) if layers & outputs_of]
                groups.append(Group(path, layer, _width(layer), parts, calls))
        refused += _conv1d(paths)
        return Graph(
            dependencies, groups, refused, [_channel_dimension(feeder) for feeder in feeders]
        )


def _misfits(parts: list[Part], size: int) -> Iterator[str]:
    """Which layers cannot have the group's channels, as those behind a mean over channels."""
    for part in parts:
        if isinstance(part.layer, BATCH_NORM):
            width: Any = part.layer.num_features
        elif part.output:
            width = _width(part.layer)
        else:
            width = (
                part.layer.in_features
                if isinstance(part.layer, nn.Linear)
                else part.layer.in_channels
            )
        if max(part.channels) >= width or (part.output and size == 1 < width):
            what = "makes" if part.output else "takes"
            yield (
                f"{part.path} {what} {width} for these {size}; an operation between them regroups"
                " or reduces them"
            )


def items_of(graph: Graph, group: Group, channels: list[int]) -> tp.Group:
    """torch-pruning's group that removes `channels` of `group`."""
    return _items(graph.dependencies, group.layer, channels)


def narrowed(graph: Graph, items: tp.Group, paths: dict[nn.Module, str]) -> dict[str, list[int]]:
    """Per path of a Linear, Conv or BatchNorm layer the output channels that `items` removes,
    ascending.
    """
    return {
        part.path: sorted(part.channels)
        for part in _parts(graph.dependencies, items, paths)
        if part.output
    }


def _follow(
    module: nn.Module, probe: Probe
) -> tuple[tp.DependencyGraph, list[set[nn.Module]], set[nn.Module]]:
    """The graph; per call of an activation the layers that reach it first; layers called twice."""
    # 1. Note each activation's output and each layer's call, while torch-pruning traces a run.
    activated: list[torch.Tensor] = []
    called: list[nn.Module] = []
    activations = [activation.module for activation in census(module)]
    layers = [layer for layer in module.modules() if isinstance(layer, LAYERS)]
    handles = [
        *(
            activation.register_forward_hook(
                lambda _module, _inputs, output: activated.append(output)
            )
            for activation in activations
        ),
        *(
            each.register_forward_hook(lambda layer, _inputs, _output: called.append(layer))
            for each in layers
        ),
    ]
    # Of the inputs of an operation torch-pruning asks the last for its channels: one lambda or
    # slope has none.
    scalars = [
        parameter
        for owner in activations
        for parameter in owner.parameters()
        if parameter.numel() == 1
    ]
    try:
        for scalar in scalars:
            scalar.requires_grad_(False)
        with torch.enable_grad():
            graph = tp.DependencyGraph().build_dependency(
                module, None, forward_fn=lambda traced, _: probe.outputs(traced), verbose=False
            )
    finally:
        for scalar in scalars:
            scalar.requires_grad_(True)
        for handle in handles:
            handle.remove()
    # 2. Walk back from each output, in the autograd graph, to the layers that reach it first.
    nodes = {node.grad_fn: node for node in graph.module2node.values()}
    ends = {output.grad_fn for output in activated}
    feeders = [_feeders(nodes.get(output.grad_fn), ends) for output in activated]
    return graph, feeders, {layer for layer in called if called.count(layer) > 1}


def _feeders(activation: Any, activations: set[Any]) -> set[nn.Module]:
    """The Linear and Conv layers whose output reaches the activation before another activation
    or layer.
    """
    feeders: set[nn.Module] = set()
    seen: set[int] = set()
    waiting = [] if activation is None else list(activation.inputs)
    while waiting:
        node = waiting.pop()
        if id(node) in seen or node.grad_fn in activations:
            continue
        seen.add(id(node))
        if isinstance(node.module, (nn.Linear, CONVOLUTION)):
            feeders.add(node.module)
        else:
            waiting += node.inputs
    return feeders


def _channel_dimension(feeders: set[nn.Module]) -> int | None:
    """Channels come last behind Linear layers, and second behind convolutions."""
    dimensions = {-1 if isinstance(feeder, nn.Linear) else 1 for feeder in feeders}
    return dimensions.pop() if len(dimensions) == 1 else None


def _width(layer: nn.Module) -> int:
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)  # type: ignore[arg-type]


def _items(dependencies: tp.DependencyGraph, layer: nn.Module, channels: Any) -> tp.Group:
    prune = dependencies.get_pruner_of_module(layer).prune_out_channels
    return dependencies.get_pruning_group(layer, prune, list(channels))


def _parts(
    dependencies: tp.DependencyGraph, items: tp.Group, paths: dict[nn.Module, str]
) -> list[Part]:
    parts = []
    for item in items.items:
        layer = item.dep.target.module
        if isinstance(layer, LAYERS):
            output = dependencies.is_out_channel_pruning_fn(item.dep.handler)
            parts.append(Part(paths[layer], layer, output, list(item.idxs), list(item.root_idxs)))
    return parts
