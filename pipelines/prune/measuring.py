"""What pruning bought and cost: accuracy, size, multiply-accumulates, memory and latency, against the unpruned one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from torch import nn

from evalsuite import (
    Bench,
    Classification,
    Direction,
    Metric,
    Network,
    Outcome,
    Split,
    Unsupported,
    census,
    expose,
    fold_hardness,
    scores,
    worsening,
)
from pipelines.prune.conv1d import conv1d_to_linear
from pipelines.prune.cost import runtime_metrics
from pipelines.prune.narrowing import Narrowed, narrow, probe_of
from pipelines.prune.obstacles import check_weights
from pipelines.prune.size import size_metrics

if TYPE_CHECKING:
    from pipelines.prune import Prune

LOWER, NEUTRAL = Direction.LOWER, Direction.NEUTRAL


def measure(network: Network, bench: Bench, options: Prune) -> Outcome:
    """Prune and fine-tune a copy of `network`, and hand it on with its metrics; see `Prune` for what is raised."""
    check_weights(network.module)
    readable = dataclasses.replace(network, module=_readable(network))
    unpruned = fold_hardness(readable.module, (network.example(2),))
    made = narrow(unpruned, probe_of(bench), bench, options)
    test, path = bench.data.test, bench.folder / "pruned.onnx"
    metrics = [
        *_removal(made, options),
        *_quality(unpruned, made, test),
        *size_metrics(unpruned, made.module, network.example(1)),
        *runtime_metrics(readable, unpruned, made.module, test, path),
    ]
    handed_on = dataclasses.replace(network, module=made.module, unswapped=None)
    return Outcome(metrics, {"onnx": path} if path.exists() else {}, handed_on)


def _readable(network: Network) -> nn.Module:
    """The network with GPT-2's `Conv1D` as linear layers and, where all its activations are functions, as modules.

    Raises:
        Unsupported: it calls its activations, or shares its weights, in a way that has no such form.
    """
    module = conv1d_to_linear(network.module)
    try:
        return module if census(module) else expose(module, (network.example(2),))
    except ValueError as error:
        raise Unsupported(f"its activations cannot be made modules: {error}") from error


def _removal(made: Narrowed, options: Prune) -> list[Metric]:
    notes = "; ".join(made.notes)
    unpruned = "nothing was removed: the control" if options.control else ""
    return [
        Metric("removed_channels", made.channels, "count", NEUTRAL, reason=unpruned or notes),
        Metric("removed_heads", made.heads, "count", NEUTRAL, reason=unpruned),
        Metric("equality_error", made.equality_error, "ratio", LOWER,
               reason=unpruned or "from the network with the removed channels zeroed, over max(1, |logit|), float64"),
        Metric("fine_tune_epochs", options.fine_tune_epochs, "count", NEUTRAL,
               reason="taught by the unpruned network" if options.distill else ""),
    ]  # fmt: skip


def _quality(unpruned: nn.Module, made: Narrowed, test: Split) -> list[Metric]:
    """The task's metrics; of a classifier or a language model the headline, accuracy and loss."""
    whole, untuned, tuned = scores([unpruned, made.untuned, made.module], test)
    shown = {tuned.headline.name, "accuracy", "nll"}
    if not isinstance(test.task, Classification):
        shown = {each.name for each in tuned.metrics}
    rows: list[Metric] = []
    for before, between, after in zip(whole.metrics, untuned.metrics, tuned.metrics, strict=True):
        if after.name in shown:
            own = "accuracy" if after.name == "accuracy" else ""
            reason = f"from this network's own {own} before pruning".replace("  ", " ")
            name = f"{between.name}_before_tuning"
            rows += [dataclasses.replace(between, name=name), after, worsening(before, after, reason=reason)]
    return rows
