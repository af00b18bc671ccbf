"""Training: one loop for every variant and for fine-tuning, so that budgets are equal by construction."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from evalsuite.contract import IGNORED, Split
from evalsuite.reluize.optimizer import HARDNESS_STEP, parameter_groups
from evalsuite.reluize.repair import distill_loss

if TYPE_CHECKING:
    from evalsuite.workloads import Workload

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(_inputs: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over the targets that count, in nats; logits (..., classes), targets (...): samples, and positions."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


def imitation(logits: torch.Tensor, teacher_logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """`distill_loss` where the targets count; both logits (..., classes), targets (...)."""
    counted = targets != IGNORED
    return distill_loss(logits[counted], teacher_logits[counted])


def distilled(teacher: nn.Module) -> Loss:
    """Half the cross-entropy, half the divergence from the teacher's softened predictions (arXiv 1503.02531)."""
    teacher = copy.deepcopy(teacher).eval().requires_grad_(False)

    def loss(inputs: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (cross_entropy(inputs, logits, targets) + imitation(logits, teacher(inputs), targets)) / 2

    return loss


def fit(
    module: nn.Module,
    split: Split,
    budget: Workload,
    *,
    seed: int,
    share: float = 1.0,
    rate: float = 1.0,
    step: float = HARDNESS_STEP,
    loss: Loss = cross_entropy,
    before_step: Callable[[float], None] | None = None,
    after_step: Callable[[float], None] | None = None,
) -> float:
    """Train `module` in place with the budget's optimizer and a cosine schedule; leave it in eval mode.

    Samples none of whose targets counts are left out: a batch of nothing else would have no loss.

    Args:
        budget: its epochs, batch size, optimizer and peak learning rate.
        seed: of the order of the samples.
        share: of the budget's optimizer steps to take.
        rate: the share of the peak learning rate to start from.
        step: c, the effective step of a hardness relative to the other parameters' (arXiv 2603.21991).
        loss: of (inputs, logits, targets).
        before_step: called before each step with the share of training done after it, in (0, 1].
        after_step: called after each step with the learning rate of its first parameter group.

    Returns:
        The mean loss of the last epoch, or of all steps where they are fewer.
    """
    groups = parameter_groups(
        module,
        learning_rate=rate * budget.learning_rate,
        optimizer=budget.optimizer,
        momentum=budget.momentum,
        weight_decay=budget.weight_decay,
        step=step,
    )
    optimizer: torch.optim.Optimizer
    if budget.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, momentum=budget.momentum)
    else:
        optimizer = torch.optim.AdamW(groups)
    taught = split.labelled.nonzero().flatten()
    per_epoch = len(range(0, len(taught) - 1, budget.batch_size))  # a last batch of one would break BatchNorm
    steps = max(1, round(share * budget.epochs * per_epoch))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order = torch.Generator().manual_seed(seed)
    losses: deque[float] = deque(maxlen=per_epoch)
    module.train()
    for done in range(steps):
        if done % per_epoch == 0:
            batches = torch.split(taught[torch.randperm(len(taught), generator=order)], budget.batch_size)
        batch = batches[done % per_epoch]
        if before_step is not None:
            before_step((done + 1) / steps)
        optimizer.zero_grad()
        inputs, targets = split.inputs[batch], split.targets[batch]
        found = loss(inputs, module(inputs), targets)
        found.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if after_step is not None:
            after_step(optimizer.param_groups[0]["lr"])
        schedule.step()
        losses.append(found.item())
    module.eval()
    return sum(losses) / len(losses)
