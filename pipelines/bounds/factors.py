"""What norms and attention divide and multiply, found among auto_LiRPA's nodes: the operands of our own steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pipelines.bounds.spread import Norm
from pipelines.bounds.steps import BoundStep, Normalised


def factors(module: nn.Module) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Bounds of the operands of curved steps, by node: CROWN's may leave an operator's domain, intervals do not."""
    curved = [each for each in module.children() if isinstance(each, BoundStep) and each.rule.curved]
    inputs = [given for each in curved for given in each.inputs]
    return {each.name: (each.lower, each.upper) for each in inputs if each.perturbed and each.lower is not None}


def normalised(module: nn.Module) -> list[Any]:
    """The nodes that divide a LayerNorm's x - mean, which is their operand."""
    return [each for each in module.children() if isinstance(each, BoundStep) and isinstance(each.rule, Normalised)]


def norm_bounds(module: nn.Module) -> list[Norm]:
    """Bounds of what LayerNorms divide, where the last propagation left them for all of them; else none."""
    found = [(each.rule, each.inputs[0]) for each in normalised(module)]
    if any(getattr(centered, end, None) is None for _, centered in found for end in ("lower", "upper")):
        return []
    return [
        Norm(ends[0], ends[1], *(each.clamp(min=0).sqrt() for each in rule.squares(ends)))
        for rule, ends in ((rule, (centered.lower, centered.upper)) for rule, centered in found)
    ]
