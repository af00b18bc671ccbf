"""Training: one loop for every variant and for fine-tuning, so that budgets are equal by construction."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from evalsuite.activations import LambdaGELU
from evalsuite.contract import Split

HARDNESS_STEP = 9.0  # c of arXiv 2603.21991, found there by grid search together with t = 0.1.


def parameter_groups(module: nn.Module, learning_rate: float) -> list[dict[str, object]]:
    """AdamW's groups: the raw hardness s gets its own step and no weight decay.

    Adam moves s by about its learning rate, whatever the gradient, so lambda by sigmoid(s/t)/t times that: a rate of
    c t times the others' makes lambda's effective step c times theirs (arXiv 2603.21991, c = 9).
    """
    raw = {id(layer.s): layer for layer in module.modules() if isinstance(layer, LambdaGELU)}
    others = [p for p in module.parameters() if p.requires_grad and id(p) not in raw]
    groups: list[dict[str, object]] = [{"params": others, "lr": learning_rate}]
    for layer in raw.values():
        if layer.s.requires_grad:
            rate = HARDNESS_STEP * layer.temperature * learning_rate
            groups.append({"params": [layer.s], "lr": rate, "weight_decay": 0.0})
    return groups


def fit(
    module: nn.Module,
    split: Split,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    before_step: Callable[[float], None] | None = None,
) -> float:
    """Train `module` in place with AdamW and a cosine schedule on the cross-entropy; leave it in eval mode.

    Args:
        before_step: called before each step with the share of training done after it, in (0, 1].

    Returns:
        The mean loss of the last epoch, in nats.
    """
    optimizer = torch.optim.AdamW(parameter_groups(module, learning_rate))
    per_epoch = len(range(0, len(split) - 1, batch_size))  # a last batch of one sample would break BatchNorm
    steps = epochs * per_epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order = torch.Generator().manual_seed(seed)
    module.train()
    step, total = 0, 0.0
    for _ in range(epochs):
        total = 0.0
        shuffled = torch.randperm(len(split), generator=order)
        for batch in torch.split(shuffled, batch_size)[:per_epoch]:
            step += 1
            if before_step is not None:
                before_step(step / steps)
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(split.inputs[batch]), split.targets[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += loss.item()
    module.eval()
    return total / per_epoch
