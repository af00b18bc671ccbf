"""Which channels can go together: torch-pruning's dependency graph (arXiv 2301.12900), and where it would be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch_pruning as tp
from torch import nn

from evalsuite import Unsupported, census
from pipelines.prune.obstacles import conv1d, coupling, obstacle, shared_parameters
from pipelines.prune.selection import Probe

CONVOLUTION = nn.modules.conv._ConvNd
BATCH_NORM = nn.modules.batchnorm._BatchNorm
LAYERS = (nn.Linear, CONVOLUTION, BATCH_NORM)


@dataclass(frozen=True, slots=True)
class Part:
    """What a group takes of one Linear, Conv or BatchNorm layer: outputs, or the inputs that come from them.

    `channels` are those of the layer, `roots` the group's channel that each belongs to: a flattened image gives
    many inputs to one channel.
    """

    path: str
    layer: nn.Module
    output: bool
    channels: list[int]
    roots: list[int]


@dataclass(frozen=True, slots=True)
class Group:
    """Channels that are coupled over several layers, so that each goes from all of them or from none.

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
        channel_dimensions: for each call of an activation module, the dimension of its output that holds the
            channels; None where it gets none of a single kind of layer.
    """

    dependencies: tp.DependencyGraph
    groups: list[Group]
    refused: list[str]
    channel_dimensions: list[int | None]


@contextmanager
def explained(what: str) -> Iterator[None]:
    """A context that turns what torch-pruning raises, on a layout that it does not know, into Unsupported."""
    try:
        yield
    except (MemoryError, Unsupported):  # the machine's limit, not the network's; or what is explained already
        raise
    except Exception as error:
        lines = str(error).splitlines() or [""]
        raise Unsupported(f"torch-pruning {what}: {type(error).__name__}: {lines[0]}") from error


def trace(module: nn.Module, probe: Probe) -> Graph:
    """The groups of `module` (in eval mode, all parameters trainable) that feed an activation and may be pruned.

    Raises:
        Unsupported: torch-pruning cannot follow the network.
    """
    with explained("cannot follow the network"):
        dependencies, feeders, reused = _follow(module, probe)
        paths = {layer: path for path, layer in module.named_modules()}
        fixed = shared_parameters(module) | dict.fromkeys(reused, "is called more than once")
        groups: list[Group] = []
        refused: list[str] = []
        seen: set[nn.Module] = set()
        for path, layer in module.named_modules():
            if layer in seen or not any(layer in each for each in feeders):
                continue
            items = _items(dependencies, layer, range(_width(layer)))
            parts = _parts(dependencies, items, paths)
            outputs_of = {part.layer for part in parts if part.output}
            seen |= outputs_of
            reason = (
                obstacle(dependencies, items, paths, fixed)
                or coupling(_items(dependencies, layer, [0]))
                or _misfit(parts, _width(layer))
            )
            if reason:
                refused.append(f"{path} keeps its channels: {reason}")
            else:
                calls = [call for call, layers in enumerate(feeders) if layers & outputs_of]
                groups.append(Group(path, layer, _width(layer), parts, calls))
        refused += conv1d(paths)
        return Graph(dependencies, groups, refused, [_channel_dimension(each) for each in feeders])


def _misfit(parts: list[Part], size: int) -> str:
    """Which layer cannot have the group's channels, as those behind a mean over channels; else empty."""
    for part in parts:
        if isinstance(part.layer, BATCH_NORM):
            width: Any = part.layer.num_features
        elif part.output:
            width = _width(part.layer)
        else:
            width = part.layer.in_features if isinstance(part.layer, nn.Linear) else part.layer.in_channels
        if max(part.channels) >= width or (part.output and size == 1 < width):
            what = "makes" if part.output else "takes"
            return f"{part.path} {what} {width} for these {size}; an operation between them regroups or reduces them"
    return ""


def items_of(graph: Graph, group: Group, channels: list[int]) -> tp.Group:
    """torch-pruning's group that removes `channels` of `group`."""
    return _items(graph.dependencies, group.layer, channels)


def narrowed(graph: Graph, items: tp.Group, paths: dict[nn.Module, str]) -> dict[str, list[int]]:
    """Per path of a Linear, Conv or BatchNorm layer the output channels that `items` removes, ascending."""
    return {part.path: sorted(part.channels) for part in _parts(graph.dependencies, items, paths) if part.output}


def _follow(module: nn.Module, probe: Probe) -> tuple[tp.DependencyGraph, list[set[nn.Module]], set[nn.Module]]:
    """The graph; per call of an activation the layers that reach it first; layers called twice."""
    activated: list[torch.Tensor] = []
    called: list[nn.Module] = []
    activations = [found.module for found in census(module)]
    layers = [each for each in module.modules() if isinstance(each, LAYERS)]
    handles = [
        *(
            each.register_forward_hook(lambda _module, _inputs, output: activated.append(output))
            for each in activations
        ),
        *(each.register_forward_hook(lambda layer, _inputs, _output: called.append(layer)) for each in layers),
    ]
    # Of the inputs of an operation torch-pruning asks the last for its channels: one lambda or slope has none.
    scalars = [each for owner in activations for each in owner.parameters() if each.numel() == 1]
    try:
        for each in scalars:
            each.requires_grad_(False)
        with torch.enable_grad():
            graph = tp.DependencyGraph().build_dependency(
                module, None, forward_fn=lambda traced, _: probe.outputs(traced), verbose=False
            )
    finally:
        for each in scalars:
            each.requires_grad_(True)
        for handle in handles:
            handle.remove()
    nodes = {node.grad_fn: node for node in graph.module2node.values()}
    ends = {output.grad_fn for output in activated}
    feeders = [_feeders(nodes.get(output.grad_fn), ends) for output in activated]
    return graph, feeders, {layer for layer in called if called.count(layer) > 1}


def _feeders(activation: Any, activations: set[Any]) -> set[nn.Module]:
    """The Linear and Conv layers whose output reaches the activation before another activation or layer."""
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
    dimensions = {-1 if isinstance(each, nn.Linear) else 1 for each in feeders}
    return dimensions.pop() if len(dimensions) == 1 else None


def _width(layer: nn.Module) -> int:
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)  # type: ignore[arg-type]


def _items(dependencies: tp.DependencyGraph, layer: nn.Module, channels: Any) -> tp.Group:
    prune = dependencies.get_pruner_of_module(layer).prune_out_channels
    return dependencies.get_pruning_group(layer, prune, list(channels))


def _parts(dependencies: tp.DependencyGraph, items: tp.Group, paths: dict[nn.Module, str]) -> list[Part]:
    parts = []
    for item in items.items:
        layer = item.dep.target.module
        if isinstance(layer, LAYERS):
            output = dependencies.is_out_channel_pruning_fn(item.dep.handler)
            parts.append(Part(paths[layer], layer, output, list(item.idxs), list(item.root_idxs)))
    return parts
