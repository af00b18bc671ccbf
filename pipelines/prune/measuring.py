"""What pruning bought and cost: accuracy, size, multiply-accumulates, memory and latency, against the unpruned one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from evalsuite import Bench, Direction, Metric, Network, Outcome, Split, fold_hardness
from pipelines.prune.cost import runtime_metrics, size_metrics
from pipelines.prune.narrowing import Narrowed, narrow, probe_of
from pipelines.prune.obstacles import check_weights

if TYPE_CHECKING:
    from pipelines.prune import Prune

HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL
_CHUNK = 256


def measure(network: Network, bench: Bench, options: Prune) -> Outcome:
    """Prune and fine-tune a copy of `network`, and hand it on with its metrics; see `Prune` for what is raised."""
    check_weights(network.module)
    unpruned = fold_hardness(network.module, network.example(2))
    made = narrow(unpruned, probe_of(bench), bench, options)
    test, path = bench.data.test, bench.folder / "pruned.onnx"
    metrics = [
        *_removal(made, options),
        *_quality(unpruned, made, test),
        *size_metrics(unpruned, made.module, network.example(1)),
        *runtime_metrics(unpruned, made.module, network, test.inputs, path),
    ]
    handed_on = dataclasses.replace(network, module=made.module, unswapped=None)
    return Outcome(metrics, {"onnx": path} if path.exists() else {}, handed_on)


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


@dataclass(frozen=True, slots=True)
class _Score:
    accuracy: float
    nll: float


@torch.no_grad()
def _score(module: nn.Module, split: Split) -> _Score:
    """Share of right classes, and mean loss in nats, over the targets that count."""
    counted = int(split.counted.sum())
    right, loss = 0, 0.0
    chunks = (torch.split(each, _CHUNK) for each in (split.inputs, split.targets))
    for inputs, targets in zip(*chunks, strict=True):
        logits = module(inputs).double()
        right += int((logits.argmax(-1) == targets).sum())
        loss += functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum").item()
    return _Score(right / counted, loss / counted)


def _quality(unpruned: nn.Module, made: Narrowed, test: Split) -> list[Metric]:
    whole, untuned, tuned = (_score(each, test) for each in (unpruned, made.untuned, made.module))
    return [
        Metric("accuracy_before_tuning", untuned.accuracy, "fraction", HIGHER),
        Metric("accuracy", tuned.accuracy, "fraction", HIGHER),
        Metric("accuracy_drop", whole.accuracy - tuned.accuracy, "fraction", LOWER,
               reason="from this network's own accuracy before pruning"),
        Metric("nll_before_tuning", untuned.nll, "nats", LOWER),
        Metric("nll", tuned.nll, "nats", LOWER),
        Metric("nll_increase", tuned.nll - whole.nll, "nats", LOWER,
               reason="from this network's own before pruning"),
    ]  # fmt: skip
