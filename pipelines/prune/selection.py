"""What to remove, how a module is run, and what is left: the types that the parts of pruning speak."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn


def share_of(count: int, share: float) -> int:
    """The whole part of `share` of `count`, where 0.29 of 100 is 29 and not 28.999999999999996."""
    return math.floor(round(count * share, 9))


@dataclass(frozen=True, slots=True)
class Selection:
    """Which channels and heads go: see the options of `Prune`, which has checked them.

    Shares are of the unpruned network: `gone` is how many output channels of a layer, by dotted path, went in earlier
    rounds. A round before the `last` may remove nothing.
    """

    sparsity: float
    importance: str = "l2"
    scope: str = "local"
    round_to: int = 1
    head_sparsity: float = 0.0
    seed: int = 0
    gone: Mapping[str, int] = field(default_factory=dict)
    last: bool = True

    def kept(self, channels: int, gone: int = 0) -> int:
        """How many of `channels` stay in local scope: at least one, and never fewer than the sparsity says.

        Args:
            channels: that are there.
            gone: that went before.
        """
        return self.rounded(channels - share_of(channels + gone, self.sparsity) + gone, channels)

    def rounded(self, wanted: int, channels: int) -> int:
        """`wanted`, rounded up to a multiple of `round_to`, at most `channels`."""
        return min(channels, math.ceil(max(1, wanted) / self.round_to) * self.round_to)


@dataclass(frozen=True, slots=True)
class Probe:
    """How to run a module: what pruning needs to know of its inputs.

    Args:
        outputs: a module -> its outputs for a few inputs, (samples, ...), differentiable.
        losses: a module -> for each batch of calibration data the losses (samples,) of its samples, differentiable;
            None where there are no data: importances that need gradients or activations are then refused.
    """

    outputs: Callable[[nn.Module], torch.Tensor]
    losses: Callable[[nn.Module], Iterable[torch.Tensor]] | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """The narrower module in eval mode, and what became of the unpruned one.

    Args:
        module: a copy; parameters keep their `requires_grad`.
        removed: dotted path of a layer of the unpruned module -> the output channels that are gone, ascending.
        notes: for people: layers that could not lose as many as asked, and why.
        equality_error: how far its outputs are from those of the unpruned module with the removed channels zeroed;
            NaN where they were not compared.
    """

    module: nn.Module
    removed: dict[str, list[int]]
    notes: list[str] = field(default_factory=list)
    equality_error: float = math.nan
