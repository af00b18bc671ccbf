"""Removing the least important channels of a copy, and checking that they, and nothing else, went."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from evalsuite import Unsupported, census
from pipelines.prune.graph import BATCH_NORM, CONVOLUTION, LAYERS, Graph, Group, explained, items_of, narrowed, trace
from pipelines.prune.importance import channel_scores
from pipelines.prune.selection import Probe, Pruned, Selection, share_of


def prune(module: nn.Module, probe: Probe, selection: Selection) -> Pruned:
    """A copy of `module` without the channels that `selection` removes, in eval mode; every score is of `module`.

    Channels that feed an activation may go: hidden units, channels of convolutions. Outputs, what a normalisation
    across channels or a grouped convolution couples, and layers that share parameters stay as they are.

    Raises:
        Unsupported: nothing can be pruned, the scores cannot be computed, or torch-pruning cannot follow the network.
    """
    parameters = list(module.parameters())
    if parameters and not any(each.requires_grad for each in parameters):
        raise Unsupported("every parameter is frozen; set requires_grad on those that may change")
    if not census(module):
        raise Unsupported(
            "no activation module found, so no layer feeds one; activations called as functions are not seen"
        )
    module = copy.deepcopy(module).eval()
    with _all_trainable(module):
        graph = trace(module, probe)
        before = Layout.of(module, graph.outputs)
        if not graph.groups:
            reasons = "".join(f"; {each}" for each in graph.refused)
            raise Unsupported(
                f"no prunable layer: no Linear or Conv feeds an activation without also being an output{reasons}"
            )
        doomed = _choose(module, graph, probe, selection) if selection.sparsity > 0 else []
        with explained("cannot prune the network"):
            removed = _remove(module, graph, doomed)
    gone = any(selection.gone.get(group.root) for group in graph.groups)
    if selection.sparsity > 0 and selection.last and not removed and not gone:
        raise Unsupported(
            f"sparsity {selection.sparsity} removes no channel: layers are at most "
            f"{max(each.size for each in graph.groups)} wide; raise sparsity, or lower round_to ({selection.round_to})"
        )
    pruned = Pruned(module.eval(), removed, graph.refused + _spared(graph.groups, selection))
    check_layout(pruned, before, probe)
    return pruned


@contextmanager
def _all_trainable(module: nn.Module) -> Iterator[None]:
    """All parameters trainable, and the buffers of activations parameters; on leaving, as it was.

    torch-pruning follows the autograd graph: of what is frozen or a buffer it would see nothing, and prune nothing.
    """
    trainable = {name: each.requires_grad for name, each in module.named_parameters(remove_duplicate=False)}
    buffers = [
        (found.module, name)
        for found in census(module)
        for name, value in found.module.named_buffers(recurse=False)
        if value.is_floating_point()
    ]
    temporary = {owner: set(owner._non_persistent_buffers_set) for owner, _ in buffers}
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


def _choose(module: nn.Module, graph: Graph, probe: Probe, selection: Selection) -> list[tuple[Group, list[int]]]:
    """The channels that go from each group, ascending; groups that lose none are left out."""
    scores = channel_scores(module, graph, probe, selection)
    gone = [selection.gone.get(group.root, 0) for group in graph.groups]
    counts = (
        _global_counts(scores, selection, sum(gone))
        if selection.scope == "global"
        else [len(each) - selection.kept(len(each), lost) for each, lost in zip(scores, gone, strict=True)]
    )
    return [
        (group, torch.argsort(each, stable=True)[:count].sort().values.tolist())
        for group, each, count in zip(graph.groups, scores, counts, strict=True)
        if count
    ]


def _global_counts(scores: list[torch.Tensor], selection: Selection, gone: int) -> list[int]:
    """How many channels each group loses when all are ranked together, after division by the mean of their group.

    A group loses the blocks of channels that leave a multiple of `round_to`, the least important block first. Blocks
    are taken as long as the share of all channels that `sparsity` is allows it; `gone` went in earlier rounds.
    """
    budget = share_of(sum(map(len, scores)) + gone, selection.sparsity) - gone
    blocks: list[tuple[float, int, int]] = []
    for place, each in enumerate(scores):
        mean = each.mean().item()
        ordered = each.sort().values / mean if mean > 0 else torch.zeros_like(each)
        kept, least, rank = len(each), selection.rounded(1, len(each)), 0.0
        while kept > least:
            smaller = (kept - 1) // selection.round_to * selection.round_to
            # Never below the block before: the rounding of means must not turn their order around.
            rank = max(rank, ordered[len(each) - kept : len(each) - smaller].mean().item())
            blocks.append((rank, place, kept - smaller))
            kept = smaller
    counts = [0] * len(scores)
    # Of equal blocks the first comes first: those of a group stay in their order. The first, which leaves a multiple
    # of round_to, is the smallest: where it does not fit, no later one of its group does.
    for _, place, size in sorted(blocks, key=lambda block: block[0]):
        if size <= budget:
            counts[place] += size
            budget -= size
    return counts


def _remove(module: nn.Module, graph: Graph, doomed: list[tuple[Group, list[int]]]) -> dict[str, list[int]]:
    """Prune `module` in place."""
    paths = {layer: path for path, layer in module.named_modules()}
    removed: dict[str, list[int]] = {}
    for group, channels in doomed:
        items = items_of(graph, group, channels)
        gone = narrowed(graph, items, paths)
        if gone[group.root] != channels:
            raise Unsupported(f"{group.root}: other channels would go with those chosen; something couples them")
        items.prune()
        removed.update(gone)
    return removed


def _spared(groups: list[Group], selection: Selection) -> list[str]:
    """Which groups are too narrow to lose a channel at this sparsity: torch-pruning would not say so."""
    if selection.sparsity <= 0:
        return []
    spared = []
    for group in groups:
        least = selection.rounded(1, group.size) if selection.scope == "global" else selection.kept(group.size)
        if least == group.size and not selection.gone.get(group.root):
            spared.append(
                f"{group.root} keeps all its {group.size} channels: sparsity {selection.sparsity} would leave fewer "
                f"than one, or less than a multiple of round_to = {selection.round_to}"
            )
    return spared


@dataclass(frozen=True, slots=True)
class Layout:
    """What a module consists of: its modules by path, their widths, the number of weights, the outputs' shape."""

    layers: dict[str, nn.Module]
    widths: dict[str, int]
    parameters: int
    outputs: torch.Size

    @classmethod
    def of(cls, module: nn.Module, outputs: torch.Size) -> Layout:
        """The layout of `module` as it is now."""
        layers = dict(module.named_modules())
        widths = {path: _width(layer) for path, layer in layers.items() if isinstance(layer, LAYERS)}
        return cls(layers, widths, sum(each.numel() for each in module.parameters()), outputs)


def check_layout(pruned: Pruned, before: Layout, probe: Probe) -> None:
    """Hold what torch-pruning promises: exactly the removed channels are gone, and the outputs are all there.

    Raises:
        Unsupported: they are not.
    """
    try:
        with torch.no_grad():
            outputs = probe.outputs(pruned.module).shape
    except (MemoryError, OSError):  # the machine's limit, not the network's
        raise
    except Exception as error:  # whatever a module's own code says of sizes that it did not expect
        said = (str(error).splitlines() or [""])[0]
        raise Unsupported(f"the pruned network does not run: {type(error).__name__}: {said}") from error
    if outputs != before.outputs:
        raise Unsupported(f"pruning changed the outputs: shape {tuple(outputs)} instead of {tuple(before.outputs)}")
    after = Layout.of(pruned.module, outputs)
    for path, layer in before.layers.items():
        if after.layers.get(path) is not layer:
            raise Unsupported(f"torch-pruning replaced {path}")
    for path, width in before.widths.items():
        left = width - len(pruned.removed.get(path, []))
        if after.widths[path] != left:
            raise Unsupported(f"torch-pruning left {path} {after.widths[path]} channels wide instead of {left}")
    if pruned.removed and not after.parameters < before.parameters:
        raise Unsupported(f"torch-pruning removed no parameter: {before.parameters} before, {after.parameters} after")


def _width(layer: nn.Module) -> int:
    """Output channels, by the tensors themselves where there are any: a field alone makes no layer narrower."""
    if isinstance(layer, BATCH_NORM):
        return layer.num_features if layer.running_mean is None else len(layer.running_mean)
    transposed = isinstance(layer, CONVOLUTION) and layer.transposed
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    return weight.shape[1] * layer.groups if transposed else len(weight)  # type: ignore[operator,return-value]
