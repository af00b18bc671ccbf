"""A swap that leaves the layers with their activation where ReLU costs most: cheaper than any
training, and between the network and its direct swap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalsuite.contract import Direction
from evalsuite.tasks import score
from lambda_gelu.activations import RELU
from lambda_gelu.activations.census import built_with
from lambda_gelu.swapping import swap

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.contract import Split

_SHOWN = 6


@dataclass(frozen=True)
class PartialSwap:
    """A network in which some activations became ReLU.

    Args:
        module: that network.
        kept: the paths of the activations that stay, those whose swap costs most first.
        activation: the name of these.
    """

    module: nn.Module
    kept: tuple[str, ...]
    activation: str

    @property
    def name(self) -> str:
        shown = ", ".join(self.kept[:_SHOWN])
        more = f" and {len(self.kept) - _SHOWN} more" if len(self.kept) > _SHOWN else ""
        return f"{self.activation}-swap with {self.activation} kept at {shown}{more}"


def partial_swap(network: nn.Module, split: Split, allowed: float) -> PartialSwap | None:
    """The direct swap with as few activations kept as a greedy search needs to lose no more.

    Args:
        network: with its own activations.
        split: the validation data.
        allowed: the loss of the task's headline, in its unit.

    Returns:
        None where there are fewer than two activations, or even all but one have to stay.
    """
    activations = built_with(network)
    paths = [use.path for use in activations]
    if len(paths) < 2:
        return None
    rows = {use.traits.name for use in activations}

    def swapped(keep: Collection[str]) -> nn.Module:
        return swap(network, RELU, keep=keep, rows=rows)

    loss = _loss_of(network, split)
    # 1. Rank the layers by what it costs to swap each one alone.
    alone = {path: loss(swapped([other for other in paths if other != path])) for path in paths}
    ranked = sorted(paths, key=lambda path: -alone[path])
    # 2. Keep the activation where it costs most, one layer more at a time, until the rest may be
    # swapped.
    for count in range(1, len(paths)):
        module = swapped(ranked[:count])
        if loss(module) <= allowed + 1e-12:
            return PartialSwap(module, tuple(ranked[:count]), " and ".join(sorted(rows)))
    return None


def _loss_of(network: nn.Module, split: Split) -> Callable[[nn.Module], float]:
    """Measure how much of the headline another network loses on these samples; infinite without a
    value.
    """
    before = score(network.eval(), split).headline

    def loss(module: nn.Module) -> float:
        after = score(module.eval(), split).headline
        if before.value is None or after.value is None:
            return float("inf")
        fallen = before.value - after.value
        return fallen if before.direction is Direction.HIGHER else -fallen

    return loss
