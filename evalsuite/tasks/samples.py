"""Single samples contribute to a task's metrics by their tallies, from which the scores follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalsuite.contract import SampleScores, Split, Task

if TYPE_CHECKING:
    import torch

_BLOCKS = 50  # of samples that follow one another
_MOST = 50_000  # samples whose tallies a task takes one by one
_WHOLE = 1e-7  # of 0 or 1: what is nearer is meant to be it


def sample_tallies(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
    """The tally of each sample, float64 (samples, k), whose sum is that of all; None where the task
    takes none of single samples.

    A task may give them at once by a method `tallies`, written beside its `tally`.
    """
    import torch

    # 1. All at once, where the task can.
    if _is_of_samples(task):
        try:
            tensor: torch.Tensor = task.tallies(outputs, targets)  # type: ignore[attr-defined]
        except ValueError:
            return None
        return tensor
    if len(targets) > _MOST:
        return None
    # 2. Else one sample at a time.
    places = [slice(place, place + 1) for place in range(len(targets))]
    try:
        return torch.stack([task.tally(outputs[one], targets[one]) for one in places])
    except (
        Exception
    ):  # a user's tally may need many samples; what it raises for all is raised there
        return None


def _is_of_samples(task: Task) -> bool:
    """Whether `tallies` belongs to the task's own `tally`: a subclass may change the one alone."""
    lines = type(task).__mro__
    owners = [
        next((kind for kind in lines if name in vars(kind)), None) for name in ("tally", "tallies")
    ]
    return owners[0] is not None and owners[0] is owners[1]


def scores_of(tallies: torch.Tensor, split: Split, place: int) -> SampleScores:
    """The samples' scores in the metric at `place` of the split's task, from their tallies, of
    shape (samples, k).

    They are made when they are asked for. Samples without a target are left out.
    """
    return SampleScores(
        lambda: pseudo_values(tallies[split.labelled], split.task, place), blocks_of(split)
    )


def blocks_of(split: Split) -> torch.Tensor | None:
    """The block of each sample with a target, int64, for a task whose samples are windows of one
    text: 50 blocks of windows that follow one another; else None.
    """
    import torch

    if not getattr(split.task, "consecutive", False):
        return None
    count = int(split.labelled.sum())
    return torch.arange(count) * min(count, _BLOCKS) // count


def pseudo_values(tallies: torch.Tensor, task: Task, place: int) -> torch.Tensor:
    """The jackknife's pseudo-values of a metric (Tukey, Annals of Mathematical Statistics 29:614,
    1958), shifted to its value: of a mean over samples they are the samples' own values.

    Raises:
        ValueError: the metric has no value without some sample.
    """
    import torch

    count, total = len(tallies), tallies.sum(0)
    whole = task.metrics(total)[place].value
    without = (
        [task.metrics(total - tally)[place].value for tally in tallies] if count > 1 else [None]
    )
    known = [value for value in without if value is not None]
    if whole is None or len(known) < count:
        raise ValueError("the metric has no value without some sample")
    values = whole - (count - 1) * (torch.tensor(known, dtype=torch.float64) - whole)
    values += whole - values.mean()
    rounded = values.round()
    near = ((rounded == 0) | (rounded == 1)) & ((values - rounded).abs() < _WHOLE)
    return torch.where(near, rounded, values)
