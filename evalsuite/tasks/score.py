"""Scoring: the task's metrics of a network on a part of the data, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evalsuite.contract import IGNORED, Direction, Metric, Setting, Split
from evalsuite.tasks.samples import sample_tallies, scores_of

if TYPE_CHECKING:
    import torch

    from opgraph.inputs import Inputs

BATCH = 256
# values of the outputs of a batch, of all networks
_OUTPUTS = 2**24
_HELD = 5 * 4  # bytes of an output: a task holds about five times as many, in float32


@dataclass(frozen=True)
class Score:
    """The task's metrics, the headline first, and what the network decides for each sample where it
    was asked for.
    """

    metrics: tuple[Metric, ...]
    decisions: torch.Tensor | None = None

    @classmethod
    def of(cls, outputs: torch.Tensor, split: Split) -> Score:
        """The score of outputs that are known already, of all samples of a split or of the first
        ones.
        """
        part = split
        if len(outputs) < len(split):
            count = len(outputs)
            part = Split(split.inputs[:count], split.targets[:count], split.task)
        single = sample_tallies(part.task, outputs, part.targets)
        total = part.task.tally(outputs, part.targets) if single is None else single.sum(0)
        return cls(_metrics(total, [single], part))

    @property
    def headline(self) -> Metric:
        """The first metric, the task's own measure of how good a network is."""
        return self.metrics[0]

    def named(
        self, name: str, setting: Mapping[str, Setting] | None = None, *, reason: str = ""
    ) -> Metric:
        """The headline as a metric of another name, `{}` in it standing for the task's own, and
        setting.
        """
        headline = self.headline
        return replace(
            headline,
            name=name.format(headline.name),
            setting={**headline.setting, **(setting or {})},
            reason="; ".join(text for text in (headline.reason, reason) if text),
        )


def changes(one: Score, other: Score, split: Split) -> float | None:
    """The share of the targets that count on which two networks decide differently; None of
    real-valued decisions.

    Where a task decides another number of things than there are targets, it is the share of all
    decisions.
    """
    if one.decisions is None or other.decisions is None:
        return None
    changed, counted = one.decisions != other.decisions, split.counted
    return (changed[counted] if changed.shape == counted.shape else changed).double().mean().item()


def worsening(before: Metric, after: Metric, *, reason: str = "") -> Metric:
    """How far a metric got worse, as a metric of its own: its name ends in `_drop` where higher is
    better, else in `_increase`.
    """
    falls = after.direction is Direction.HIGHER
    value = None
    if before.value is not None and after.value is not None:
        value = before.value - after.value if falls else after.value - before.value
    name = f"{after.name}_{'drop' if falls else 'increase'}"
    said = before.reason or after.reason or reason
    return replace(
        after, name=name, value=value, direction=Direction.LOWER, reason=said, scores=None
    )


def score(
    run: Callable[[Inputs], torch.Tensor],
    split: Split,
    *,
    batch: int = BATCH,
    decisions: bool = False,
) -> Score:
    """The metrics of the split's task, of outputs that `run` gives batch by batch.

    Args:
        run: gives the outputs for a batch of inputs; a module in eval mode, or a runtime's session.
        split: the part of the data.
        batch: samples at a time, fewer where each is large.
        decisions: whether to keep what the task decides, on the CPU: for comparing two networks.
            Decisions that are real numbers, as of a regression, are none to agree in, and not kept.
    """
    return scores([run], split, batch=batch, decisions=decisions)[0]


def scores(
    runs: Sequence[Callable[[Inputs], torch.Tensor]],
    split: Split,
    *,
    batch: int = BATCH,
    decisions: bool = False,
    seen: Callable[[list[torch.Tensor]], None] | None = None,
) -> list[Score]:
    """Score several networks at once, as `score` does: each batch is read once, and `seen` is given
    all their outputs for it.
    """
    import torch

    totals: list[torch.Tensor] = []
    tallies: list[list[torch.Tensor | None]] = [[] for _ in runs]
    kept: list[list[torch.Tensor]] = [[] for _ in runs]
    with torch.no_grad():
        # 1. Each batch once, through all networks.
        for inputs, targets in split.batches(_batch(len(runs), split, batch)):
            outputs_of_networks = [run(inputs).cpu() for run in runs]
            if seen is not None:
                seen(outputs_of_networks)
            # 2. Sums of tallies: a metric is computed of the sums at the end, since a mean over
            # batches of different sizes would be another number.
            single = [
                sample_tallies(split.task, outputs, targets) for outputs in outputs_of_networks
            ]
            sums = [
                split.task.tally(outputs, targets)
                if tallies_of_network is None
                else tallies_of_network.sum(0)
                for outputs, tallies_of_network in zip(outputs_of_networks, single, strict=True)
            ]
            for tallies_of_batch, own_tallies in zip(single, tallies, strict=True):
                own_tallies.append(tallies_of_batch)
            totals = (
                [total + tally for total, tally in zip(totals, sums, strict=True)]
                if totals
                else sums
            )
            for outputs, known in zip(outputs_of_networks, kept, strict=True):
                if decisions and not (decided := split.task.decisions(outputs)).is_floating_point():
                    known.append(decided)
    # 3. The metrics, and the decisions where they are asked for.
    return [
        Score(_metrics(total, single, split), torch.cat(known) if known else None)
        for total, single, known in zip(totals, tallies, kept, strict=True)
    ]


def _metrics(
    total: torch.Tensor, single: Sequence[torch.Tensor | None], split: Split
) -> tuple[Metric, ...]:
    """The task's metrics of a sum of tallies, with the scores of the samples where these have
    tallies of their own.
    """
    import torch

    metrics, known = split.task.metrics(total), [tensor for tensor in single if tensor is not None]
    if len(known) < len(single):
        return tuple(metrics)
    whole = torch.cat(known)
    return tuple(
        replace(metric, scores=scores_of(whole, split, place))
        for place, metric in enumerate(metrics)
    )


def mean_loss(run: Callable[[Inputs], torch.Tensor], split: Split, *, batch: int = BATCH) -> float:
    """The task's loss over all targets of the split that count, in float64: what training
    lowers.
    """
    import torch

    total = count = 0.0
    with torch.no_grad():
        for inputs, targets in split.batches(_batch(1, split, batch)):
            wanted = targets.double() if targets.is_floating_point() else targets
            counted = int(
                (~wanted.isnan() if wanted.is_floating_point() else wanted != IGNORED).sum()
            )
            if counted:
                total += counted * split.task.loss(run(inputs).cpu().double(), wanted).item()
                count += counted
    return total / count


def _batch(networks: int, split: Split, batch: int) -> int:
    """How many samples go at a time: at most `batch`, fewer where inputs or outputs of each are
    large.

    Outputs are large where each position has logits of its own: a text of 1,024 tokens has 51
    million of 50,257 words. How many classes there are the targets tell, as well as they can
    without a network being run.
    """
    from evalsuite.samples import batch_of
    from opgraph.estimates import refuse_beyond

    size, targets = batch_of(split.inputs, batch), split.targets
    if targets.ndim < 2 or targets.is_floating_point():
        return size
    values = networks * targets[0].numel() * (int(targets.max()) + 1)
    refuse_beyond(
        _HELD * values,
        f"the outputs of one sample, {values} numbers,",
        "shorter windows of text take less",
    )
    return max(1, min(size, _OUTPUTS // max(1, values)))
