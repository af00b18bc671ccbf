"""Removing channels with torch-pruning's dependency graph (arXiv 2301.12900), and refusing where it would be wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch_pruning as tp
from torch import nn
from torch_pruning.ops import OPTYPE

from evalsuite import Unsupported, census

_LAYERS = (tp.ops.TORCH_CONV, tp.ops.TORCH_LINEAR)
_TRANSPARENT = {OPTYPE.ELEMENTWISE, OPTYPE.RESHAPE, OPTYPE.CONCAT, OPTYPE.SPLIT, OPTYPE.SLICE, OPTYPE.EXPAND}
_PRUNABLE = {OPTYPE.CONV, OPTYPE.DEPTHWISE_CONV, OPTYPE.LINEAR, OPTYPE.BN, OPTYPE.PARAMETER, OPTYPE.PRELU}


@dataclass(frozen=True)
class Choice:
    """Which channels go: see the options of `Prune`."""

    sparsity: float
    importance: str
    round_to: int
    seed: int

    def kept(self, channels: int) -> int:
        """How many of `channels` stay: at least one, and never fewer than the sparsity says."""
        # Rounded first: 0.29 of 100 is 28.999999999999996.
        wanted = channels - math.floor(round(channels * self.sparsity, 9))
        return min(channels, math.ceil(wanted / self.round_to) * self.round_to)


@dataclass(frozen=True)
class Pruned:
    """The narrower module, and per path of the unpruned module the output channels that were removed."""

    module: nn.Module
    removed: dict[str, list[int]]


def prune(module: nn.Module, input_shape: tuple[int, ...], choice: Choice) -> Pruned:
    """A copy of `module` without the channels that `choice` removes, in eval mode.

    Raises:
        Unsupported: nothing can be pruned, or torch-pruning cannot follow the network.
    """
    parameters = list(module.parameters())
    if parameters and not any(each.requires_grad for each in parameters):
        raise Unsupported("every parameter is frozen; set requires_grad on those that may change")
    if not census(module):
        raise Unsupported(
            "no activation module found, so no layer feeds one; activations called as functions are not seen"
        )
    module = copy.deepcopy(module).eval()
    trainable = {name: each.requires_grad for name, each in module.named_parameters()}
    # torch-pruning follows the autograd graph: of what is frozen it would see nothing, and prune nothing.
    module.requires_grad_(True)
    with _explained("cannot follow the network"):
        graph, feeders = _trace(module, input_shape)
        groups = [each for each in graph.get_all_groups() if _may_be_pruned(graph, each, feeders)]
    if not groups:
        raise Unsupported("no prunable layer: no Linear or Conv feeds an activation without also being an output")
    with _explained("cannot prune the network"):
        removed = _remove(module, graph, groups, choice)
    for name, each in module.named_parameters():
        each.requires_grad_(trainable[name])
    if choice.sparsity > 0 and not removed:
        raise Unsupported(
            f"sparsity {choice.sparsity} removes no channel: layers are at most "
            f"{max(len(each[0].idxs) for each in groups)} wide; raise sparsity, or lower round_to ({choice.round_to})"
        )
    return Pruned(module.eval(), removed)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:  # the machine's limit, not the network's
        raise
    except Exception as error:  # torch-pruning fails on layouts it does not know with whatever error comes first
        lines = str(error).splitlines() or [""]
        raise Unsupported(f"torch-pruning {what}: {type(error).__name__}: {lines[0]}") from error


def _trace(module: nn.Module, input_shape: tuple[int, ...]) -> tuple[tp.DependencyGraph, set[nn.Module]]:
    """The dependency graph, and the Linear and Conv layers whose output reaches an activation before another one."""
    outputs: list[torch.Tensor] = []
    handles = [
        found.module.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
        for found in census(module)
    ]
    try:
        with torch.enable_grad():
            graph = tp.DependencyGraph().build_dependency(
                module,
                torch.zeros(2, *input_shape),
                forward_fn=lambda traced, example: traced(example),
                verbose=False,
            )
    finally:
        for handle in handles:
            handle.remove()
    activations = {output.grad_fn for output in outputs}
    nodes = [node for node in graph.module2node.values() if node.grad_fn in activations]
    return graph, {layer for node in nodes for layer in _feeders(node, activations)}


def _feeders(activation: Any, activations: set[Any]) -> set[nn.Module]:
    feeders: set[nn.Module] = set()
    seen: set[int] = set()
    waiting = list(activation.inputs)
    while waiting:
        node = waiting.pop()
        if id(node) in seen or node.grad_fn in activations:
            continue
        seen.add(id(node))
        if isinstance(node.module, _LAYERS):
            feeders.add(node.module)
        else:
            waiting += node.inputs
    return feeders


def _may_be_pruned(graph: tp.DependencyGraph, group: tp.Group, feeders: set[nn.Module]) -> bool:
    """Whether the group feeds an activation, leaves the logits alone, and holds nothing that mixes its channels."""
    feeds = False
    for dependency, _ in group:
        node = dependency.target
        narrowed = graph.is_out_channel_pruning_fn(dependency.handler)
        if narrowed and not node.outputs:
            return False
        if node.type not in _TRANSPARENT | _PRUNABLE:
            return False
        # Channels of a grouped convolution cannot leave one by one, except where each group is one channel.
        if getattr(node.module, "groups", 1) not in (1, getattr(node.module, "in_channels", 1)):
            return False
        feeds = feeds or (narrowed and node.module in feeders)
    return feeds


def _remove(
    module: nn.Module, graph: tp.DependencyGraph, groups: list[tp.Group], choice: Choice
) -> dict[str, list[int]]:
    """Prune `module` in place; every score is of the unpruned network, so that the order of groups does not matter."""
    generator = torch.Generator().manual_seed(choice.seed)
    doomed = []
    for group in groups:
        scores = _scores(group, choice.importance, generator)
        count = len(scores) - choice.kept(len(scores))
        if count:
            doomed.append((group[0].dep, torch.argsort(scores, stable=True)[:count].sort().values.tolist()))
    paths = {layer: path for path, layer in module.named_modules()}
    removed: dict[str, list[int]] = {}
    for root, channels in doomed:
        group = graph.get_pruning_group(root.target.module, root.handler, channels)
        for dependency, indices in group:
            if graph.is_out_channel_pruning_fn(dependency.handler) and dependency.target.module in paths:
                removed[paths[dependency.target.module]] = sorted(indices)
        group.prune()
    return removed


def _scores(group: tp.Group, importance: str, generator: torch.Generator) -> torch.Tensor:
    """The importance of each channel of the group, (channels,); the least important go first."""
    if importance == "random":
        return torch.rand(len(group[0].idxs), generator=generator)
    # No normalizer: each group is ranked alone, and a group of zeros would become NaN.
    norm = tp.importance.GroupMagnitudeImportance(p=2 if importance == "l2" else 1, normalizer=None)
    return torch.as_tensor(norm(group))
