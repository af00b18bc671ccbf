"""Heads: several outputs of one network, each with a task of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import IGNORED, Direction, Metric, Task
from evalsuite.tasks.samples import sample_tallies

if TYPE_CHECKING:
    import torch

MEAN_SCORE = "mean_score"
# Of each head the first of these that it has: all are at most 1, and higher is better.
SCORES = ("f1_micro", "mean_iou", "accuracy", "r2", "cosine")


@dataclass(frozen=True)
class Heads:
    """A task for each named output. The loss is the sum of theirs, and a metric is called by its
    output, as `digit_accuracy`.

    The outputs, flattened, lie beside one another in one tensor (samples, width), and so do the
    targets: int64, or float32 where one output's are. The first metric is the mean of a score of
    each output: F1, mean IoU, accuracy, R squared or cosine.

    Args:
        heads: the name of each output, and its task.
        outputs: the shape of each output, of one sample.
        targets: the shape of each output's targets, of one sample.
        real: which of the targets are real numbers.
    """

    version: ClassVar[str] = "1"
    asks: ClassVar[str] = ""
    heads: tuple[tuple[str, Task], ...]
    outputs: tuple[tuple[int, ...], ...] = ()
    targets: tuple[tuple[int, ...], ...] = ()
    real: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        for name in self.names:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                raise ValueError(f"an output is named in snake_case, as its metrics, got {name!r}")
        if len(self.heads) < 2 or len(set(self.names)) < len(self.heads):
            raise ValueError(f"at least two outputs of different names, got {list(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.heads)

    def output_of(self, place: int, outputs: torch.Tensor) -> torch.Tensor:
        """The output at that place, as the network gives it."""
        return _part(outputs, self.outputs, place)

    def target_of(self, place: int, targets: torch.Tensor) -> torch.Tensor:
        """Its targets, as its own task takes them."""
        part = _part(targets, self.targets, place)
        if self.real[place] or not part.is_floating_point():
            return part
        return part.nan_to_num(nan=IGNORED).long()

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The targets of all outputs beside one another."""
        import torch

        flat = [part.reshape(len(part), -1) for part in parts]
        if any(part.is_floating_point() for part in flat):
            flat = [
                part
                if part.is_floating_point()
                else part.float().masked_fill(part == IGNORED, math.nan)
                for part in flat
            ]
        return torch.cat(flat, 1)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sum of the losses of the outputs that have a target in the batch, 0-d."""
        losses = [
            task.loss(self.output_of(place, outputs), wanted)
            for place, (_, task) in enumerate(self.heads)
            if _any(wanted := self.target_of(place, targets))
        ]
        return sum(losses[1:], losses[0]) if losses else outputs.sum() * math.nan

    def imitation(
        self, outputs: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """The sum of how far the outputs are from the teacher's, where they have targets, 0-d."""
        parts = [
            task.imitation(self.output_of(place, outputs), self.output_of(place, teacher), wanted)
            for place, (_, task) in enumerate(self.heads)
            if _any(wanted := self.target_of(place, targets))
        ]
        return sum(parts[1:], parts[0]) if parts else outputs.sum() * math.nan

    def decisions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The classes and labels that the outputs name, int64 (samples, decisions); the outputs
        themselves where all are real numbers.
        """
        import torch

        decided = [
            task.decisions(self.output_of(place, outputs))
            for place, (_, task) in enumerate(self.heads)
        ]
        known = [part.reshape(len(part), -1) for part in decided if not part.is_floating_point()]
        return torch.cat([part.long() for part in known], 1) if known else outputs

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sums of each output's task, one after the other, float64."""
        import torch

        return torch.cat(
            [
                task.tally(self.output_of(place, outputs), self.target_of(place, targets))
                for place, (_, task) in enumerate(self.heads)
            ]
        )

    def tallies(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The tally of each sample, float64 (samples, k)."""
        import torch

        parts = []
        for place, (name, task) in enumerate(self.heads):
            part = sample_tallies(
                task, self.output_of(place, outputs), self.target_of(place, targets)
            )
            if part is None:
                raise ValueError(f"the task of {name} takes no tally of single samples")
            parts.append(part)
        return torch.cat(parts, 1)

    @cached_property
    def _samples(self) -> list[torch.Tensor]:
        """The tally of each output for one sample of zeros: its length, and names of metrics."""
        import torch

        metrics = []
        for place, (_, task) in enumerate(self.heads):
            kind = torch.float32 if self.real[place] else torch.int64
            targets = torch.zeros((1, *self.targets[place]), dtype=kind)
            metrics.append(task.tally(torch.zeros((1, *self.outputs[place])), targets))
        return metrics

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The mean of the outputs' scores, then the metrics of each output, under its name."""
        several, scores = list[Metric](), list[str]()
        ends = list(accumulate(len(metrics_of_head) for metrics_of_head in self._samples))
        parts = [tally[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        for place, ((name, task), part) in enumerate(zip(self.heads, parts, strict=True)):
            if bool((part == 0).all()):  # no target of this output counts
                metrics_of_head = [
                    replace(metric, value=None, reason="no target counts")
                    for metric in task.metrics(self._samples[place])
                ]
            else:
                metrics_of_head = task.metrics(part)
            metrics_of_head = [
                replace(metric, name=f"{name}_{metric.name}") for metric in metrics_of_head
            ]
            several += metrics_of_head
            scores.append(score_name(name, [metric.name for metric in metrics_of_head]))
        # Where an output has no such score, there is no mean, and the first output's metrics lead.
        if not all(scores):
            return several
        known = {metric.name: metric for metric in several}
        absent = next((known[name] for name in scores if known[name].value is None), None)
        mean = None if absent else sum(known[name].value or 0.0 for name in scores) / len(scores)
        reason = f"{absent.name}: {absent.reason}" if absent else ""
        return [Metric(MEAN_SCORE, mean, "fraction", Direction.HIGHER, reason=reason), *several]


def score_name(name: str, metrics: Sequence[str]) -> str:
    """The metric of an output that counts as its score; "" where it has none."""
    return next((f"{name}_{score}" for score in SCORES if f"{name}_{score}" in metrics), "")


def _part(whole: torch.Tensor, shapes: Sequence[tuple[int, ...]], place: int) -> torch.Tensor:
    widths = [math.prod(shape) for shape in shapes]
    start = sum(widths[:place])
    return whole[:, start : start + widths[place]].reshape(len(whole), *shapes[place])


def _any(targets: torch.Tensor) -> bool:
    counted = ~targets.isnan() if targets.is_floating_point() else targets != IGNORED
    return bool(counted.any())
