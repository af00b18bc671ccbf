"""Training: one loop for every variant and for fine-tuning, so that budgets are equal by
construction.

The raw hardness s has a learning rate of its own, so that lambda's step is what c asks for.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evalsuite.activations.census import kept_of_a_pass
from evalsuite.activations.hardenable import Hardenable
from evalsuite.activations.recognition import known
from evalsuite.contract import Split, Task
from evalsuite.plugins import did_you_mean
from evalsuite.samples import Inputs, mapped, on

if TYPE_CHECKING:
    from evalsuite.workloads import Workload


HARDNESS_STEP = 9.0  # c of arXiv 2603.21991, found there by grid search together with t = 0.1.

# The learning rate of s, in units of c times the others', by the temperature t. See
# parameter_groups.
_RATE_OF: dict[str, Callable[[float], float]] = {
    "sgd": lambda temperature: temperature**2,
    "adam": lambda temperature: temperature,
    "adamw": lambda temperature: temperature,
}


def hardness_rate(
    temperature: float,
    *,
    learning_rate: float,
    optimizer: str = "adamw",
    step: float = HARDNESS_STEP,
) -> float:
    """The learning rate of s at temperature t: c t^2 times the others' for SGD, c t times for Adam
    and AdamW.

    lambda = 1 + softplus(s / t), so d lambda / ds = sigmoid(s / t) / t.

    - SGD moves s by -rate dL/ds, and dL/ds has that factor once more: lambda moves by -rate
      sigmoid(s / t)^2 / t^2 dL/dlambda. With c t^2 this is c learning_rate sigmoid^2: up to
      sigmoid^2 in (0, 1), which is the parametrisation's own (1/4 at s = 0), the step of a lambda
      trained directly at c times the learning rate, whatever t.
    - Adam divides the gradient by its own size, so s moves by about its rate and lambda by rate
      sigmoid(s / t) / t. With c t this is c learning_rate sigmoid.

    Momentum m multiplies the asymptotic step of every group by 1 / (1 - m) alike, so c, which is
    relative to the other parameters' steps, needs no correction by it. Raises ValueError: an
    unknown optimizer, or a step, temperature or learning rate not above 0.
    """
    if optimizer not in _RATE_OF:
        raise ValueError(f"unknown optimizer {optimizer!r}{did_you_mean(optimizer, _RATE_OF)}")
    for name, value in (
        ("step", step),
        ("learning_rate", learning_rate),
        ("temperature", temperature),
    ):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be > 0 and finite, got {value}")
    return step * _RATE_OF[optimizer](temperature) * learning_rate


def parameter_groups(
    module: nn.Module,
    *,
    learning_rate: float,
    optimizer: str = "adamw",
    momentum: float = 0.0,
    weight_decay: float = 0.01,
    step: float = HARDNESS_STEP,
) -> list[dict[str, Any]]:
    """Parameter groups for torch.optim's SGD, Adam or AdamW, in which the raw hardness of every
    Hardenable stands apart.

    The groups of s have the learning rate of `hardness_rate` and no weight decay, which would pull
    lambda towards that of s = 0; temperatures that differ have groups of their own. What other
    activations learn, such as PReLU's slope or xIELU's raw p and n, has the learning rate of the
    rest and no weight decay, which would pull an activation towards the form that its raw zeros
    happen to have. Parameters that are frozen or shared are left out or counted once. For SGD each
    group carries `momentum`.

    Args:
        module: the network, or any part of it.
        learning_rate: of all other parameters.
        optimizer: "sgd", "adam" or "adamw".
        momentum: of SGD, in [0, 1); the others take no notice of it.
        weight_decay: of all parameters that are no activation's, at least 0.
        step: c, lambda's effective step relative to the other parameters'.

    Raises:
        ValueError: an option out of its bounds, or nothing to train.

    Example: docs/reference.md#replace-activations
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), got {momentum}")
    if not 0 <= weight_decay < float("inf"):
        raise ValueError(f"weight_decay must be >= 0 and finite, got {weight_decay}")
    # validates before any module
    hardness_rate(1.0, learning_rate=learning_rate, optimizer=optimizer, step=step)
    raw = {id(each.s): each for each in module.modules() if isinstance(each, Hardenable)}
    # By their types alone: what is known by its values has no parameters.
    rows = [
        (layer, row)
        for layer in module.modules()
        for row in known()
        if row.parameters and row.matches(layer)
    ]
    shapes = {id(getattr(layer, name)) for layer, row in rows for name in row.parameters}
    taught = [each for each in module.parameters() if each.requires_grad and id(each) not in raw]
    others, learnt = (
        [each for each in taught if (id(each) in shapes) is own] for own in (False, True)
    )
    by_temperature: dict[float, list[nn.Parameter]] = {}
    for layer in raw.values():
        if layer.s.requires_grad:
            by_temperature.setdefault(layer.temperature, []).append(layer.s)
    if not taught and not by_temperature:
        raise ValueError(
            f"nothing to train: {type(module).__name__} has no parameter that requires a gradient"
        )
    groups: list[dict[str, Any]] = []
    if others:
        groups.append({"params": others, "lr": learning_rate, "weight_decay": weight_decay})
    if learnt:
        groups.append({"params": learnt, "lr": learning_rate, "weight_decay": 0.0})
    for temperature, parameters in by_temperature.items():
        rate = hardness_rate(
            temperature, learning_rate=learning_rate, optimizer=optimizer, step=step
        )
        groups.append({"params": parameters, "lr": rate, "weight_decay": 0.0})
    if optimizer == "sgd":
        for group in groups:
            group["momentum"] = momentum
    return groups


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
        found = (
            split.task.loss(outputs, targets) if loss is None else loss(inputs, outputs, targets)
        )
        found.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if after_step is not None:
            after_step(optimizer.param_groups[0]["lr"])
        schedule.step()
        losses.append(found.item())
    for layer, name, each in kept_of_a_pass(module):
        # torch copies no tensor that knows what it was computed from
        vars(layer)[name] = each.detach()
    module.eval().to("cpu")
    if innermost:
        module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return sum(losses) / len(losses)
