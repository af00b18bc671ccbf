"""Removing the least important channels of a copy, and checking that they, and nothing else,
went.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from evalsuite import Unsupported
from lambda_gelu import census
from pipelines.prune.equality import equality_error
from pipelines.prune.graph import (
    BATCH_NORM,
    CONVOLUTION,
    LAYERS,
    Graph,
    Group,
    check_trainable,
    check_weights,
    explained,
    items_of,
    narrowed,
    operations,
    trace,
)
from pipelines.prune.importance import channel_scores
from pipelines.prune.selection import Probe, Pruned, Selection


@dataclass(frozen=True, slots=True)
class Layout:
    """Describes what a module consists of: its modules by path, their widths, and the number of
    weights.
    """

    layers: dict[str, nn.Module]
    widths: dict[str, int]
    parameters: int

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of `module` as it is now."""
        layers = dict(module.named_modules())
        widths = {
            path: _width(layer) for path, layer in layers.items() if isinstance(layer, LAYERS)
        }
        return cls(layers, widths, sum(parameter.numel() for parameter in module.parameters()))


def check_layout(pruned: Pruned, before: Layout) -> None:
    """Hold what torch-pruning promises: exactly the removed channels are gone.

    Raises:
        Unsupported: they are not.
    """
    after = Layout.of(pruned.module)
    for path, layer in before.layers.items():
        if after.layers.get(path) is not layer:
            raise Unsupported(f"torch-pruning replaced {path}")
    for path, width in before.widths.items():
        left = width - len(pruned.removed.get(path, []))
        if after.widths[path] != left:
            raise Unsupported(
                f"torch-pruning left {path} {after.widths[path]} channels wide instead of {left}"
            )
    if pruned.removed and not after.parameters < before.parameters:
        raise Unsupported(
            f"torch-pruning removed no parameter: {before.parameters} before, {after.parameters}"
            " after"
        )


def _width(layer: nn.Module) -> int:
    """Output channels, by the tensors themselves where there are any: a field alone makes no
    layer narrower.
    """
    if isinstance(layer, BATCH_NORM):
        return layer.num_features if layer.running_mean is None else len(layer.running_mean)
    transposed = isinstance(layer, CONVOLUTION) and layer.transposed
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    return weight.shape[1] * layer.groups if transposed else len(weight)  # type: ignore[operator,return-value]


class _Inexact(Unsupported):
    """The network without some channels is not the one with these zeroed.

    Args:
        said: what is wrong with it.
        doomed: root of each group that lost channels -> these.
        between: the operations on the channels of these groups.
    """

    def __init__(self, said: str, doomed: Mapping[str, list[int]], between: str) -> None:
        super().__init__(f"{', '.join(doomed)}: {said}")
        self.said, self.doomed, self.between = said, doomed, between


def prune(module: nn.Module, probe: Probe, selection: Selection) -> Pruned:
    """A copy of `module` without the channels that `selection` removes, in eval mode; every score
    is of `module`.

    Channels that feed an activation may go: hidden units, channels of convolutions. Outputs, what a
    normalisation across channels or a grouped convolution couples, and layers that share parameters
    stay as they are. The outputs of the copy are compared with those of `module` with the removed
    channels zeroed, in float64: groups of channels whose removal alone makes them differ stay
    whole, with a note.

    Raises:
        Unsupported: nothing can be pruned, the scores cannot be computed, torch-pruning cannot
            follow the network, or the copy computes something else than the zeroed module.
    """
    check_weights(module)
    check_trainable(module)
    if not census(module):
        raise Unsupported(
            "no activation module found, so no layer feeds one; activations called as functions are"
            " not seen"
        )
    try:
        return _attempt(module, probe, selection, {})
    except _Inexact as error:
        faults = _faults(module, probe, selection, error)
    return _attempt(module, probe, selection, faults)


def _faults(
    module: nn.Module, probe: Probe, selection: Selection, error: _Inexact
) -> dict[str, str]:
    """The roots of the groups that cannot even go alone, and why: each is removed from a copy of
    its own.

    Raises:
        Unsupported: the network already differs from itself, or each group could go alone.
    """
    try:
        equality_error(module, Pruned(module, {}), probe.outputs)
    except Unsupported as without_pruning:
        raise Unsupported(f"even with nothing removed: {without_pruning}") from without_pruning
    # Remove each group alone, to tell those at fault from those that only went with them.
    faults: dict[str, str] = {}
    for root, channels in error.doomed.items():
        try:
            _attempt(module, probe, selection, {}, {root: channels})
        except _Inexact as alone:
            faults[root] = (
                f"{alone.said}; operations on them: {alone.between or 'none'}; to prune them,"
                " replace the one at fault"
            )
    if not faults:
        raise error
    return faults


def _attempt(
    module: nn.Module,
    probe: Probe,
    selection: Selection,
    faults: Mapping[str, str],
    doomed: Mapping[str, list[int]] | None = None,
) -> Pruned:
    """`module` without the channels that `selection` chooses, or without `doomed`; the groups in
    `faults` stay whole.

    Raises:
        Unsupported: as `prune` says; `_Inexact` where something else than the zeroed network is
            left.
    """
    copied = copy.deepcopy(module).eval()
    with _all_trainable(copied):
        graph = _without(trace(copied, probe), faults)
        if not graph.groups:
            nothing = "no Linear or Conv feeds an activation without also being an output"
            raise Unsupported(f"no prunable layer: {'; '.join(graph.refused) or nothing}")
        if doomed is None:
            doomed = _choose(copied, graph, probe, selection) if selection.sparsity > 0 else {}
        pruned = _cut(module, copied, graph, doomed, probe)
    gone = any(selection.gone.get(group.root) for group in graph.groups)
    if selection.sparsity > 0 and selection.last and not pruned.removed and not gone:
        raise Unsupported(
            f"sparsity {selection.sparsity} removes no channel: layers are at most"
            f" {max(group.size for group in graph.groups)} wide; raise sparsity, or lower round_to"
            f" ({selection.round_to})"
        )
    return dataclasses.replace(pruned, notes=graph.refused + _spared(graph.groups, selection))


def _without(graph: Graph, faults: Mapping[str, str]) -> Graph:
    return dataclasses.replace(
        graph,
        groups=[group for group in graph.groups if group.root not in faults],
        refused=graph.refused
        + [f"{root} keeps its channels: {reason}" for root, reason in faults.items()],
    )


def _cut(
    module: nn.Module,
    copied: nn.Module,
    graph: Graph,
    doomed: Mapping[str, list[int]],
    probe: Probe,
) -> Pruned:
    """Prune `copied`, whose groups `graph` has, in place, and compare it with `module`."""
    chosen = [(group, doomed[group.root]) for group in graph.groups if group.root in doomed]
    between = operations([items_of(graph, *choice) for choice in chosen])
    before = Layout.of(copied)
    try:
        with explained("cannot prune the network"):
            pruned = Pruned(copied, _remove(copied, graph, chosen))
        check_layout(pruned, before)
        return dataclasses.replace(
            pruned, equality_error=equality_error(module, pruned, probe.outputs)
        )
    except Unsupported as error:
        raise _Inexact(str(error), doomed, between) from error


@contextmanager
def _all_trainable(module: nn.Module) -> Iterator[None]:
    """All parameters trainable, and the buffers of activations parameters; on leaving, as it was.

    torch-pruning follows the autograd graph: of what is frozen or a buffer it would see nothing,
    and prune nothing.
    """
    # 1. Note how all is, to restore it.
    trainable = {
        name: parameter.requires_grad
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    buffers = [
        (activation.module, name)
        for activation in census(module)
        for name, value in activation.module.named_buffers(recurse=False)
        if value.is_floating_point()
    ]
    temporary = {owner: set(owner._non_persistent_buffers_set) for owner, _ in buffers}
    # 2. Make parameters of the activations' buffers, and all trainable.
    for owner, name in buffers:
        value = getattr(owner, name)
        delattr(owner, name)
        owner.register_parameter(name, nn.Parameter(value))
    module.requires_grad_(True)
    try:
        yield
    finally:
        for owner, name in buffers:
            value = getattr(owner, name).detach()
            delattr(owner, name)
            owner.register_buffer(name, value, persistent=name not in temporary[owner])
        for name, each in module.named_parameters(remove_duplicate=False):
            each.requires_grad_(trainable[name])


def _choose(
    module: nn.Module, graph: Graph, probe: Probe, selection: Selection
) -> dict[str, list[int]]:
    """Root of a group -> the channels that go, ascending; groups that lose none are left out."""
    scores = channel_scores(module, graph, probe, selection)
    doomed = selection.chosen(scores, [selection.gone.get(group.root, 0) for group in graph.groups])
    return {group.root: lost for group, lost in zip(graph.groups, doomed, strict=True) if lost}


def _remove(
    module: nn.Module, graph: Graph, doomed: list[tuple[Group, list[int]]]
) -> dict[str, list[int]]:
    """Remove the chosen channels of `module` in place; gives the indices that each layer lost, by
    its path.

    Raises:
        Unsupported: channels that were not chosen would go with those that were.
    """
    paths = {layer: path for path, layer in module.named_modules()}
    removed: dict[str, set[int]] = {}
    # Before anything goes: behind a concatenation several groups have channels of one layer, which
    # move up later.
    for group, channels in doomed:
        gone = narrowed(graph, items_of(graph, group, channels), paths)
        if gone[group.root] != channels:
            raise Unsupported(
                f"{group.root}: other channels would go with those chosen; something couples them"
            )
        for path, lost in gone.items():
            removed.setdefault(path, set()).update(lost)
    for group, channels in doomed:
        items_of(graph, group, channels).prune()
    return {path: sorted(lost) for path, lost in removed.items()}


def _spared(groups: list[Group], selection: Selection) -> list[str]:
    """Which groups are too narrow to lose a channel at this sparsity: torch-pruning would not
    say so.
    """
    if selection.sparsity <= 0:
        return []
    spared = []
    for group in groups:
        least = (
            selection.rounded(1, group.size)
            if selection.scope == "global"
            else selection.kept(group.size)
        )
        if least == group.size and not selection.gone.get(group.root):
            spared.append(
                f"{group.root} keeps all its {group.size} channels: sparsity {selection.sparsity}"
                " would leave fewer than one, or less than a multiple of round_to ="
                f" {selection.round_to}"
            )
    return spared
