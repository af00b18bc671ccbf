"""Pruning a network in one round or several, each checked against the zeroed network and
fine-tuned; and its rows: accuracy, size, multiply-accumulates, memory and latency, against the
unpruned network.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from evalsuite import Bench, Direction, Metric, Network, Outcome, Split, Task, Unsupported
from evalsuite.contract import IGNORED
from evalsuite.tasks import Classification
from evalsuite.tasks.score import scores, worsening
from lambda_gelu import census, expose, fold_hardness
from opgraph.estimates import allowed, work_of
from pipelines.prune.attention import find_attentions
from pipelines.prune.channels import prune
from pipelines.prune.conv1d import conv1d_to_linear
from pipelines.prune.cost import runtime_metrics
from pipelines.prune.equality import equality_error
from pipelines.prune.graph import check_weights
from pipelines.prune.heads import prune_heads
from pipelines.prune.selection import Probe, Pruned, Selection
from pipelines.prune.size import size_metrics

if TYPE_CHECKING:
    from pipelines.prune.options import PruneOptions


_COMPARED = 64  # inputs that the pruned and the zeroed network are compared on, at most
# of losses: second-order importances go back through a whole batch for each of its samples
_BATCH = 8
# Of the memory that is left, what those inputs may take: torch-pruning keeps all values for
# gradients, in float32, and the comparison holds several copies of the outputs in float64.
_SHARE, _SINGLE, _DOUBLE, _HELD_OUTPUTS = 0.5, 4, 8, 8
# of layers with the same channels, BatchNorm is not counted
_COUNTED = (nn.Linear, nn.modules.conv._ConvNd)


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Tells what became of a network.

    Args:
        untuned: after the last removal, before the last fine-tuning.
        module: fine-tuned.
        equality_error: the greatest of all rounds.
        channels: how many output channels of Linear and convolutional layers are gone, without
            those of heads.
        heads: how many attention heads are gone.
        notes: what could not be removed, and why.
    """

    untuned: nn.Module
    module: nn.Module
    equality_error: float
    channels: int
    heads: int
    notes: list[str]


def probe_of(bench: Bench, count: int = _COMPARED) -> Probe:
    """Runs modules on so many inputs of the calibration data; the loss of a sample is the mean over
    its targets that are not ignored.
    """
    calibration = bench.data.calibration
    # Real inputs, with all their positions: of an untypical one a wrong regrouping of heads may not
    # show.
    compared = calibration.first(count)

    def losses(module: nn.Module) -> Iterator[torch.Tensor]:
        for inputs, targets in calibration.batches(min(_BATCH, count)):
            yield _losses(calibration.task, module(inputs), targets)

    return Probe(lambda module: module(compared), losses)


def _affordable(module: nn.Module, network: Network, bench: Bench) -> tuple[int, str]:
    """On how many inputs networks are compared, and why they are fewer than usual, or ""."""
    wanted, work = min(_COMPARED, len(bench.data.calibration)), work_of(module, network.example(1))
    size = _SINGLE * work.made + _DOUBLE * _HELD_OUTPUTS * work.outputs
    count = max(1, int(_SHARE * allowed() / size)) if size else wanted
    if count >= wanted:
        return wanted, ""
    needed = f"{wanted} would take about {wanted * size / 2**30:.2g} GiB of memory, by estimate"
    return count, f"on the first {count} calibration inputs: {needed}"


def _losses(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compute the loss of each sample that has a target, (samples with a target,)."""
    counted = (
        (~targets.isnan() if targets.is_floating_point() else targets != IGNORED)
        .reshape(len(targets), -1)
        .sum(1)
    )
    if not isinstance(task, Classification):
        places = counted.nonzero().flatten().tolist()
        each = [
            task.loss(outputs[place : place + 1], targets[place : place + 1]) for place in places
        ]
        return torch.stack(each) if each else outputs.new_zeros(0)
    losses = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    # The losses of ignored targets are 0; a sample of which nothing else is left has no mean.
    return losses.view(len(targets), -1).sum(1)[counted > 0] / counted[counted > 0]


def narrow(unpruned: nn.Module, probe: Probe, bench: Bench, options: PruneOptions) -> Narrowed:
    """Remove what `options` say from a copy of `unpruned`, and fine-tune it.

    Raises:
        Unsupported: nothing can be removed, or the pruned network is not the zeroed one.
    """
    module = untuned = unpruned
    error, notes, gone = 0.0, list[str](), dict[str, int]()
    for done in range(options.rounds):
        # 1. Remove a round's share of what the sparsity asks for; the control is trained alike,
        # whole.
        if not options.control:
            pruned = remove(module, probe, _selection(options, done, bench.seed, gone))
            # What went is counted by path over all rounds, as a later round takes less for it.
            error = max(error, pruned.equality_error)
            gone = {
                path: gone.get(path, 0) + len(lost) for path, lost in pruned.removed.items()
            } | {path: lost for path, lost in gone.items() if path not in pruned.removed}
            module, notes = pruned.module, pruned.notes
        untuned = module
        # 2. Train for a round's share of the epochs, which add up to all of them.
        first, last = (
            epochs * options.fine_tune_epochs // options.rounds for epochs in (done, done + 1)
        )
        module = _fine_tuned(module, bench, last - first, unpruned if options.distill else None)
    # 3. Count what is gone: rows of attention are heads, and the others channels.
    attentions = find_attentions(unpruned)
    heads = sum(attention.heads for attention in attentions) - sum(
        find_attention.heads for find_attention in find_attentions(module)
    )
    in_heads = {path for attention in attentions for path in attention.rows}
    channels = sum(
        lost
        for path, lost in gone.items()
        if path not in in_heads and isinstance(unpruned.get_submodule(path), _COUNTED)
    )
    return Narrowed(untuned, module, error, channels, heads, notes)


def remove(module: nn.Module, probe: Probe, selection: Selection) -> Pruned:
    """A copy of `module` without the channels, hidden units and attention heads that `selection`
    removes.

    It has been compared with `module` with the same channels zeroed: `equality_error` says how far
    they are apart.

    Raises:
        Unsupported: see `prune`, `prune_heads` and `equality_error`.
    """
    if selection.sparsity == 0:
        return prune_heads(module, probe, selection)
    pruned = prune(module, probe, selection)
    if selection.head_sparsity == 0:
        return pruned
    fewer = prune_heads(pruned.module, probe, selection)
    both = Pruned(fewer.module, {**pruned.removed, **fewer.removed}, pruned.notes + fewer.notes)
    return dataclasses.replace(both, equality_error=equality_error(module, both, probe.outputs))


def _selection(options: PruneOptions, done: int, seed: int, gone: dict[str, int]) -> Selection:
    """Return what round `done`, counted from 0, removes: after it, `(done + 1) / rounds` of what
    shall go of the unpruned network is gone.
    """
    share = (done + 1) / options.rounds
    return Selection(
        options.sparsity * share,
        options.importance,
        options.scope,
        options.round_to,
        options.heads * share,
        seed,
        gone,
        last=share == 1,
    )


def _fine_tuned(
    module: nn.Module, bench: Bench, epochs: int, teacher: nn.Module | None
) -> nn.Module:
    tuned = copy.deepcopy(module)
    if epochs:
        # Dropout draws from the global generator; the seed must fix it, and the caller's generator
        # stay as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(bench.seed)
            bench.fine_tune(tuned, epochs, teacher=teacher)
        tuned.zero_grad(set_to_none=True)
    return tuned.eval()


LOWER, NEUTRAL = Direction.LOWER, Direction.NEUTRAL


def measure(network: Network, bench: Bench, options: PruneOptions) -> Outcome:
    """Prune and fine-tune a copy of `network`, and hand it on with its metrics; see `Prune` for
    what is raised.
    """
    check_weights(network.module)
    readable = dataclasses.replace(network, module=_readable(network))
    unpruned = fold_hardness(readable.module, (network.example(2),))
    compared, fewer = _affordable(unpruned, network, bench)
    narrowed = narrow(unpruned, probe_of(bench, compared), bench, options)
    test, path = bench.data.test, bench.folder / "pruned.onnx"
    metrics = [
        *_removal(narrowed, options, fewer),
        *_quality(unpruned, narrowed, test),
        *size_metrics(unpruned, narrowed.module, network.example(1)),
        *runtime_metrics(readable, unpruned, narrowed.module, test, path, bench.time_limit),
    ]
    handed_on = dataclasses.replace(network, module=narrowed.module, unswapped=None)
    return Outcome(metrics, {"onnx": path} if path.exists() else {}, handed_on)


def _readable(network: Network) -> nn.Module:
    """The network with GPT-2's `Conv1D` as linear layers and, where all its activations are
    functions, as modules.

    Raises:
        Unsupported: it calls its activations, or shares its weights, in a way that has no such
            form.
    """
    module = conv1d_to_linear(network.module)
    try:
        return module if census(module) else expose(module, (network.example(2),))
    except ValueError as error:
        raise Unsupported(f"its activations cannot be made modules: {error}") from error


def _removal(narrowed: Narrowed, options: PruneOptions, fewer: str) -> list[Metric]:
    """Rows of what was removed and of how exact that is; `fewer` says why it was compared on fewer
    inputs than usual, or is "".
    """
    exact = "from the network with the removed channels zeroed, over max(1, |logit|), float64"
    notes = "; ".join(narrowed.notes)
    unpruned = "nothing was removed: the control" if options.control else ""
    return [
        Metric("removed_channels", narrowed.channels, "count", NEUTRAL, reason=unpruned or notes),
        Metric("removed_heads", narrowed.heads, "count", NEUTRAL, reason=unpruned),
        Metric(
            "equality_error",
            narrowed.equality_error,
            "ratio",
            LOWER,
            reason=unpruned or "; ".join(filter(None, [exact, fewer])),
        ),
        Metric(
            "fine_tune_epochs",
            options.fine_tune_epochs,
            "count",
            NEUTRAL,
            reason="taught by the unpruned network" if options.distill else "",
        ),
    ]


def _quality(unpruned: nn.Module, narrowed: Narrowed, test: Split) -> list[Metric]:
    """The task's metrics; of a classifier or a language model the headline, accuracy and loss."""
    whole, untuned, tuned = scores([unpruned, narrowed.untuned, narrowed.module], test)
    shown = {tuned.headline.name, "accuracy", "nll"}
    if not isinstance(test.task, Classification):
        shown = {metric.name for metric in tuned.metrics}
    rows: list[Metric] = []
    for before, between, after in zip(whole.metrics, untuned.metrics, tuned.metrics, strict=True):
        if after.name in shown:
            own_metric = "accuracy" if after.name == "accuracy" else ""
            reason = f"from this network's own {own_metric} before pruning".replace("  ", " ")
            name = f"{between.name}_before_tuning"
            rows += [
                dataclasses.replace(between, name=name),
                after,
                worsening(before, after, reason=reason),
            ]
    return rows
