"""Scoring: the task's metrics of a network on a part of the data, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evalsuite.contract import Metric, Setting, Split

if TYPE_CHECKING:
    import torch

    from evalsuite.samples import Inputs

BATCH = 256


@dataclass(frozen=True)
class Score:
    """The task's metrics, the headline first, and what the network decides for each sample where it was asked for."""

    metrics: tuple[Metric, ...]
    decisions: torch.Tensor | None = None

    @property
    def headline(self) -> Metric:
        """The task's first metric."""
        return self.metrics[0]

    def named(self, name: str, setting: Mapping[str, Setting] | None = None, *, reason: str = "") -> Metric:
        """The headline as a metric of another name, `{}` in it standing for the task's own, and setting."""
        made = self.headline
        return replace(
            made,
            name=name.format(made.name),
            setting={**made.setting, **(setting or {})},
            reason="; ".join(each for each in (made.reason, reason) if each),
        )


def changes(one: Score, other: Score, split: Split) -> float | None:
    """The share of the split's targets that count where two networks decide otherwise; None of real-valued decisions.

    Where a task decides another number of things than there are targets, it is the share of all decisions.
    """
    if one.decisions is None or other.decisions is None:
        return None
    changed, counted = one.decisions != other.decisions, split.counted
    return (changed[counted] if changed.shape == counted.shape else changed).double().mean().item()


def score(run: Callable[[Inputs], torch.Tensor], split: Split, *, batch: int = BATCH, decisions: bool = False) -> Score:
    """The metrics of the split's task, of outputs that `run` gives batch by batch.

    Args:
        run: gives the outputs for a batch of inputs; a module in eval mode, or a runtime's session.
        split: the part of the data.
        batch: samples at a time, fewer where each is large.
        decisions: whether to keep what the task decides, on the CPU: for comparing two networks. Decisions that are
            real numbers, as of a regression, are none to agree in, and not kept.
    """
    import torch

    from evalsuite.samples import batch_of

    total: torch.Tensor | None = None
    kept: list[torch.Tensor] = []
    with torch.no_grad():
        for inputs, targets in split.batches(batch_of(split.inputs, batch)):
            outputs = run(inputs).cpu()
            sums = split.task.tally(outputs, targets)
            total = sums if total is None else total + sums
            if decisions and not (decided := split.task.decisions(outputs)).is_floating_point():
                kept.append(decided)
    assert total is not None  # a split has samples
    return Score(tuple(split.task.metrics(total)), torch.cat(kept) if kept else None)
