"""Define what to remove, how a module is run, and what is left: the types that the parts of pruning
speak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn


def share_of(count: int, share: float) -> int:
    """The whole part of `share` of `count`, where 0.29 of 100 is 29 and not 28.999999999999996."""
    return math.floor(round(count * share, 9))


def counts_of_all(scores: Sequence[torch.Tensor], budget: int, round_to: int = 1) -> list[int]:
    """How many each group loses when all are ranked together, after division by the mean of their
    group.

    A group loses the blocks that leave a multiple of `round_to`, the least important block first,
    and one stays. Blocks are taken as long as they are no more than the `budget` in all.
    """
    # 1. Divide each group into blocks, each of which leaves a multiple of `round_to`.
    blocks: list[tuple[float, int, int]] = []
    for place, score in enumerate(scores):
        mean = score.mean().item()
        ordered = score.sort().values / mean if mean > 0 else torch.zeros_like(score)
        kept, rank = len(score), 0.0
        while kept > round_to:
            smaller = (kept - 1) // round_to * round_to
            # Never below the block before: the rounding of means must not turn their order around.
            rank = max(rank, ordered[len(score) - kept : len(score) - smaller].mean().item())
            blocks.append((rank, place, kept - smaller))
            kept = smaller
    # 2. Take the least important blocks of all groups while the budget lasts.
    counts = [0] * len(scores)
    # Of equal blocks the first comes first: those of a group stay in their order. The first, which
    # leaves a multiple of round_to, is the smallest: where it does not fit, no later one of its
    # group does.
    for _, place, size in sorted(blocks, key=lambda block: block[0]):
        if size <= budget:
            counts[place] += size
            budget -= size
    return counts


@dataclass(frozen=True, slots=True)
class Selection:
    """Which channels and heads go: see the options of `Prune`, which has checked them.

    Shares are of the unpruned network: `gone` is how many output channels of a layer, by dotted
    path, went in earlier rounds. A round before the `last` may remove nothing.
    """

    sparsity: float
    importance: str = "group_norm"
    scope: str = "local"
    round_to: int = 1
    head_sparsity: float = 0.0
    seed: int = 0
    gone: Mapping[str, int] = field(default_factory=dict)
    last: bool = True

    def kept(self, channels: int, gone: int = 0) -> int:
        """How many of `channels` stay in local scope: at least one, and never fewer than the
        sparsity says.

        Args:
            channels: that are there.
            gone: that went before.
        """
        return self.rounded(channels - share_of(channels + gone, self.sparsity) + gone, channels)

    def chosen(self, scores: Sequence[torch.Tensor], gone: Sequence[int]) -> list[list[int]]:
        """The places that go, ascending, for each group with these scores that lost so many
        before.
        """
        if self.scope == "global":
            budget = share_of(sum(map(len, scores)) + sum(gone), self.sparsity) - sum(gone)
            counts = counts_of_all(scores, budget, self.round_to)
        else:
            counts = [
                len(score) - self.kept(len(score), lost)
                for score, lost in zip(scores, gone, strict=True)
            ]
        # Of equal scores the first.
        ordered = [torch.argsort(score, stable=True) for score in scores]
        return [
            order[:count].sort().values.tolist()
            for order, count in zip(ordered, counts, strict=True)
        ]

    def rounded(self, wanted: int, channels: int) -> int:
        """`wanted`, rounded up to a multiple of `round_to`, at most `channels`."""
        return min(channels, math.ceil(max(1, wanted) / self.round_to) * self.round_to)


@dataclass(frozen=True, slots=True)
class Probe:
    """How to run a module: what pruning needs to know of its inputs.

    Args:
        outputs: a module -> its outputs for a few inputs, (samples, ...), differentiable.
        losses: a module -> for each batch of calibration data the losses (samples,) of its samples,
            differentiable; None where there are no data: importances that need gradients or
            activations are then refused.
    """

    outputs: Callable[[nn.Module], torch.Tensor]
    losses: Callable[[nn.Module], Iterable[torch.Tensor]] | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """The narrower module in eval mode, and what became of the unpruned one.

    Args:
        module: a copy; parameters keep their `requires_grad`.
        removed: dotted path of a layer of the unpruned module -> the output channels that are gone,
            ascending.
        notes: for people: layers that could not lose as many as asked, and why.
        equality_error: how far its outputs are from those of the unpruned module with the removed
            channels zeroed; NaN where they were not compared.
    """

    module: nn.Module
    removed: dict[str, list[int]]
    notes: list[str] = field(default_factory=list)
    equality_error: float = math.nan
