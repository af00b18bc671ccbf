"""The errors of a network on single validation samples, by which trainings are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evalsuite.contract import IGNORED
from evalsuite.tasks import Classification, Segmentation

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.contract import Split

_JUDGED = 2_000  # samples at most


@torch.no_grad()
def errors_of(module: nn.Module, split: Split) -> list[torch.Tensor]:
    """The errors of each validation sample, float64 (samples,): its loss and, for classification,
    the share of its targets that is missed. Samples without targets have NaN.
    """
    task = getattr(split.task, "task", split.task)
    losses: list[torch.Tensor] = []
    missed: list[torch.Tensor] = []
    # Sample by sample: two trainings are compared on the same samples, which takes fewer of them.
    for inputs, targets in split.batches(64):
        outputs = module(inputs)
        samples = [slice(at, at + 1) for at in range(len(targets))]
        losses += [
            split.task.loss(outputs[one], targets[one]).double().reshape(()) for one in samples
        ]
        if isinstance(task, (Classification, Segmentation)):
            counted = (targets != IGNORED).reshape(len(targets), -1)
            wrong = (task.decisions(outputs) != targets).reshape(len(targets), -1) & counted
            missed += [*(wrong.sum(1).double() / counted.sum(1))]
        if len(losses) >= _JUDGED:
            break
    return [torch.stack(values) for values in (losses, missed) if values]
