"""Which activations to replace first: the quality of a network of which some layers have ReLU, in three orders.

The orders are by learnt hardness, the nearest to ReLU first; by sensitivity, first the layer whose replacement alone
raises the loss on validation data least; and random ones, of which the mean is told: over all sets of layers of a size
where there are few, else over sets that the seed draws.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from evalsuite import Bench, Found, Metric

if TYPE_CHECKING:
    from torch import nn

AT, OVER = "{}_of_partial_swap", "{}_over_partial_swaps"
_SETS = 20  # of layers, of each size, for the random order
ORDERS = ("hardness", "sensitivity", "random")
_FEW = "an order takes two activations that ReLU can replace, and the network has {}"
_UNLEARNT = "no layer has a learnt hardness, so there is no order by it"


def without_orders(headline: Metric, reason: str) -> list[Metric]:
    """The rows of a network whose layers are not replaced one after the other."""
    return [
        replace(headline, name=OVER.format(headline.name), value=None, setting={"order": order}, reason=reason)
        for order in ORDERS
    ]


def partial_swaps(module: nn.Module, bench: Bench, headline: Metric, batch: int) -> list[Metric]:
    """The task's first metric on the test data with k of n layers replaced, and its mean over k = 1, ..., n - 1.

    All orders begin with the network as it is and end with all of it replaced, so that these two say nothing of them.

    Args:
        module: any network.
        bench: its test data measure, its validation data order by sensitivity.
        headline: the metric of the network as it is.
        batch: samples at a time.
    """
    from evalsuite import expose

    try:
        # Functions become layers, as the swap has them.
        exposed = expose(module, bench.data.calibration.first(2)).eval()
    except ValueError as error:
        return without_orders(headline, str(error))
    layers = _layers(exposed)
    if len(layers) < 2:
        return without_orders(headline, _FEW.format(len(layers)))
    measured = _Measured(exposed, bench, headline, batch)
    hardness = {path: float(each.traits.hardness(each.module).mean()) for path, each in layers.items()}
    losses = {path: measured.loss([path]) for path in layers}
    orders = {
        "hardness": sorted(layers, key=lambda path: -hardness[path]),
        "sensitivity": sorted(layers, key=losses.__getitem__),
    }
    found = []
    for order in ORDERS:
        if order == "hardness" and len({*hardness.values()}) == 1:
            found.append(measured.metric(OVER, None, _UNLEARNT, order=order))
            continue
        sets = [
            _drawn([*layers], size, bench.seed) if order == "random" else [orders[order][:size]]
            for size in range(len(layers) + 1)
        ]
        values = [math.fsum(measured.quality(each) for each in of_size) / len(of_size) for of_size in sets]
        found += [measured.metric(AT, value, order=order, layers=size) for size, value in enumerate(values)]
        found.append(measured.metric(OVER, math.fsum(values[1:-1]) / len(values[1:-1]), order=order))
    return found


def _layers(module: nn.Module) -> dict[str, Found]:
    """The activations in whose place the swap puts ReLU, by their paths."""
    from evalsuite import census, swap_to_relu

    try:
        replaced = {each.path for each in census(swap_to_relu(module)) if each.traits.name == "relu"}
    except ValueError:  # there is none
        return {}
    return {each.path: each for each in census(module) if each.path in replaced and each.traits.name != "relu"}


def _drawn(paths: Sequence[str], size: int, seed: int) -> list[tuple[str, ...]]:
    """All sets of that many layers, or as many of them as are enough."""
    if math.comb(len(paths), size) <= _SETS:
        return [*combinations(paths, size)]
    draw = random.Random(f"{seed}, {size} of {len(paths)}")
    return [tuple(draw.sample(paths, size)) for _ in range(_SETS)]


class _Measured:
    """Networks of which some layers have ReLU, each measured once."""

    def __init__(self, module: nn.Module, bench: Bench, headline: Metric, batch: int) -> None:
        self._module, self._bench, self._batch, self._headline = module, bench, batch, headline
        self._known: dict[frozenset[str], float] = {}

    def quality(self, replaced: Collection[str]) -> float:
        """The task's first metric on the test data."""
        from evalsuite import score

        place = frozenset(replaced)
        if place not in self._known:
            value = score(self._swapped(place), self._bench.data.test, batch=self._batch).headline.value
            self._known[place] = math.nan if value is None else value
        return self._known[place]

    def loss(self, replaced: Collection[str]) -> float:
        """The task's loss on the validation data."""
        from evalsuite import mean_loss

        return mean_loss(self._swapped(frozenset(replaced)), self._bench.data.validation, batch=self._batch)

    def metric(self, name: str, value: float | None, reason: str = "", **setting: str | int) -> Metric:
        """A row with the headline's unit and direction; a value that is not finite becomes a reason instead."""
        if value is not None and not math.isfinite(value):
            value, reason = None, "a network with some layers replaced has no value"
        own = self._headline
        return replace(own, name=name.format(own.name), value=value, setting=setting, reason=reason)

    def _swapped(self, replaced: frozenset[str]) -> nn.Module:
        from evalsuite import census, swap_to_relu

        if not replaced:
            return self._module
        return swap_to_relu(
            self._module, keep=[each.path for each in census(self._module) if each.path not in replaced]
        )
