"""Building a workload's network, and the proof that it executes each activation that it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from evalsuite.activations.census import settle_transformers
from evalsuite.reluize.swap import is_in, places_of

Make = Callable[[int], nn.Module]
_MARK = "_given_to_build"


def build_executing(build: Callable[[Make], nn.Module], make: Make, activation: str, example: Any) -> nn.Module:
    """The network that `build` makes, after a run has shown that it executes each `activation` that it was given.

    Args:
        build: a workload's.
        make: makes each activation, given the number of channels.
        activation: the registered name of what `make` makes.
        example: see `swap`.

    Raises:
        ValueError: it has none of what `make` makes, or leaves one uncalled, or executes another (`check_executes`).
    """
    given: list[nn.Module] = []

    def noted(channels: int) -> nn.Module:
        given.append(make(channels))
        # A mark, since a copy of the module counts too: nn.TransformerEncoder copies its layer.
        vars(given[-1])[_MARK] = True
        return given[-1]

    network = build(noted)
    settle_transformers(network)
    found = [path for path, each in network.named_modules() if _MARK in vars(each)]
    for each in [*given, *network.modules()]:
        vars(each).pop(_MARK, None)
    executing = places_of(network, activation, example)
    idle = [path for path in found if not any(is_in(place, [path]) for place in executing)]
    if idle or not found:
        said = f"never calls the one at {', '.join(idle)}" if idle else "contains none that this function made"
        raise ValueError(
            f"build() is to make {activation!r} by the function that it is given, but the network {said}: call that"
            " function for each activation, keep what it returns as a module, and let forward() call that"
        )
    return network
