"""Training: one loop for every variant and for fine-tuning, so that budgets are equal by
construction.

The raw hardness s has a learning rate of its own, see `lambda_gelu.parameters`.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from evalsuite.contract import Split, Task
from lambda_gelu.activations.census import kept_of_a_pass
from lambda_gelu.parameters import HARDNESS_STEP, parameter_groups
from opgraph.inputs import Inputs, mapped, on

if TYPE_CHECKING:
    from evalsuite.workloads import Workload


Loss = Callable[[Inputs, torch.Tensor, torch.Tensor], torch.Tensor]


def distilled(task: Task, teacher: nn.Module, share: float = 0.5) -> Loss:
    """The task's loss, and the given share of imitating the teacher (arXiv 1503.02531), of (inputs,
    outputs, targets).

    Classifiers imitate the teacher's softened predictions; see `Task.imitation`.
    """
    teacher = copy.deepcopy(teacher).eval().requires_grad_(False)

    def loss(inputs: Inputs, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher.to(outputs.device)(inputs)
        return share * task.imitation(outputs, wanted, targets) + (1 - share) * task.loss(
            outputs, targets
        )

    return loss


def device_of(asked: str) -> torch.device:
    """The device that a budget asks for; "auto" is a GPU where there is one. Raises ValueError:
    there is no such device.
    """
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(asked)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(
            f"device: {asked!r}, but torch sees {count} GPUs here; use 'auto' or 'cpu'"
        )
    return device


def _schedule(
    optimizer: torch.optim.Optimizer, steps: int, warm_up: float
) -> torch.optim.lr_scheduler.LRScheduler:
    """The cosine from the peak to 0, after a linear rise in that share of the steps."""
    rising = round(warm_up * steps)
    if not rising:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def factor(done: int) -> float:
        if done < rising:
            return (done + 1) / (rising + 1)
        return (1 + math.cos(math.pi * (done - rising) / max(1, steps - rising))) / 2

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def fit(
    module: nn.Module,
    split: Split,
    budget: Workload,
    *,
    seed: int,
    share: float = 1.0,
    rate: float = 1.0,
    step: float = HARDNESS_STEP,
    loss: Loss | None = None,
    before_step: Callable[[float], None] | None = None,
    after_step: Callable[[float], None] | None = None,
    after_epoch: Callable[[float], None] | None = None,
) -> float:
    """Train `module` in place with the budget's optimizer and a cosine schedule; leave it in eval
    mode.

    Samples none of whose targets counts are left out: a batch of nothing else would have no loss.

    Args:
        budget: its epochs, batch size, optimizer and peak learning rate; the device, the precision
            of forward and backward passes, the layout of images, and the share of warm-up. The
            module comes back on the CPU.
        seed: of the order of the samples.
        share: of the budget's optimizer steps to take.
        rate: the share of the peak learning rate to start from.
        step: c, the effective step of a hardness relative to the other parameters' (arXiv
            2603.21991).
        loss: of (inputs, outputs, targets); the task's by default.
        before_step: called before each step with the share of training done after it, in (0, 1].
        after_step: called after each step with the learning rate of its first parameter group.
        after_epoch: called after each epoch with the share of training done.

    Returns:
        The mean loss of the last epoch, or of all steps where they are fewer.
    """
    device = device_of(getattr(budget, "device", "cpu"))
    innermost = getattr(budget, "channels_last", False)
    module.to(device)
    if innermost:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
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
    # a last batch of one would break BatchNorm
    per_epoch = len(range(0, len(taught) - 1, budget.batch_size))
    steps = max(1, round(share * budget.epochs * per_epoch))
    schedule = _schedule(optimizer, steps, getattr(budget, "warm_up", 0.0))
    order, chance = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    reduced = getattr(budget, "precision", "float32") == "bfloat16"
    losses: deque[float] = deque(maxlen=per_epoch)
    module.train()
    for done in range(steps):
        if done % per_epoch == 0:
            batches = torch.split(
                taught[torch.randperm(len(taught), generator=order)], budget.batch_size
            )
        batch = batches[done % per_epoch]
        if before_step is not None:
            before_step((done + 1) / steps)
        optimizer.zero_grad()
        inputs, targets = split.inputs[batch], split.targets[batch].to(device)
        inputs = on(device, split.augment(inputs, chance) if split.augment is not None else inputs)
        if innermost:  # the images, which have four dimensions
            inputs = mapped(
                inputs,
                lambda x: x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x,
            )
        with torch.autocast(device.type, torch.bfloat16, enabled=reduced):
            outputs = module(inputs)
        outputs = outputs.float() if reduced else outputs
        metrics_of_training = (
            split.task.loss(outputs, targets) if loss is None else loss(inputs, outputs, targets)
        )
        metrics_of_training.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if after_step is not None:
            after_step(optimizer.param_groups[0]["lr"])
        schedule.step()
        losses.append(metrics_of_training.item())
        if after_epoch is not None and (done + 1) % per_epoch == 0:
            after_epoch((done + 1) / steps)
    for layer, name, kept in kept_of_a_pass(module):
        # torch copies no tensor that knows what it was computed from
        vars(layer)[name] = kept.detach()
    module.eval().to("cpu")
    if innermost:
        module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return sum(losses) / len(losses)
