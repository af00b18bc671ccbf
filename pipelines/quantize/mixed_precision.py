"""How many bits the weights of each layer get where all of them together must not exceed a size.

The method, in four steps:

1. The loss with all weights at the greatest width, then with one layer at each lesser width and the
   rest at the greatest: what a layer's width costs. (`sensitivity` says what a loss is.)
2. The assumption that these costs add up. HAWQ-V2 and V3 make it too (arXiv 1911.03852; arXiv
   2011.10680, on integer linear programming) with costs from the trace of the Hessian; here they
   are measured.
3. The assignment of least predicted loss within the budget: a multiple-choice knapsack, solved
   exactly.
4. The real loss of that assignment against the real one of the best single width within the same
   budget. The lesser is taken: the answer never loses more than one width for all, on the
   calibration data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from torch import fx

from evalsuite import Direction, Metric
from intnet.threads import one_thread
from opgraph.inputs import Inputs
from pipelines.quantize.placement import Bits, Scheme
from pipelines.quantize.sensitivity import Make, Reference, layers_of

WIDTHS = (8, 6, 4, 3, 2)
FULL_WIDTH = 8
LOWER, NEUTRAL = Direction.LOWER, Direction.NEUTRAL


@dataclass(frozen=True, slots=True)
class Plan:
    """The bits of each layer's weights, layers in the network's order.

    `weight_bytes` are those of all weights, packed; `share` is theirs of the bytes at 8 bits.
    `predicted_loss` adds up the layers' costs; `loss` is measured, both in nats on the calibration
    data. `uniform_loss` is measured with `uniform_bits` in every layer, the best single width
    within the budget. `reason` says which of the two was taken.
    """

    weight_bits: Mapping[str, int]
    act_bits: int
    weight_bytes: int
    share: float
    predicted_loss: float
    loss: float
    uniform_bits: int
    uniform_loss: float
    reason: str

    @property
    def scheme(self) -> Scheme:
        """For `place`: every layer by its name."""
        return _scheme(self.weight_bits, self.act_bits)

    def metrics(self) -> list[Metric]:
        """The bits of each layer with the setting "layer", the size, the losses."""
        width = f"{self.uniform_bits} bits in every layer"
        why = f"{width}, the best single width within the budget, on calibration data"
        return [
            *(
                Metric("chosen_weight_bits", bits, "count", NEUTRAL, {"layer": name})
                for name, bits in self.weight_bits.items()
            ),
            Metric(
                "weight_bytes",
                self.weight_bytes,
                "bytes",
                LOWER,
                reason="of quantized layers, packed",
            ),
            Metric(
                "weight_bytes_share", self.share, "share", LOWER, reason="of the bytes at 8 bits"
            ),
            Metric("mixed_loss", self.loss, "nats", NEUTRAL, reason=self.reason),
            Metric(
                "mixed_predicted_loss",
                self.predicted_loss,
                "nats",
                NEUTRAL,
                reason="the sum of the layers' costs",
            ),
            Metric("uniform_loss", self.uniform_loss, "nats", NEUTRAL, reason=why),
        ]


def search(
    make: Make,
    traced: fx.GraphModule,
    inputs: Inputs,
    act_bits: int,
    size_budget: float,
    widths: Sequence[int] = WIDTHS,
) -> Plan:
    """The widths of all layers' weights by the method above, at most 3 + layers x (widths - 1)
    networks made for it.

    Args:
        make: gives the calibrated network for a scheme.
        traced: the float network.
        inputs: a batch of the calibration data.
        act_bits: bits of every activation.
        size_budget: greatest share of the bytes that the same weights take at 8 bits, in (0, 1].
        widths: that a layer may have.

    Raises:
        ValueError: an option is out of bounds, or no assignment meets the budget; there is no
            input.
        Unsupported: there is no layer to quantize.
    """
    widths = _checked(act_bits, size_budget, widths)
    layers = layers_of(traced)
    weights = list(layers.values())
    with one_thread():
        reference = Reference(traced, inputs)

        @cache
        def loss(*bits: int) -> float:
            return reference.loss(
                make(_scheme(dict(zip(layers, bits, strict=True)), act_bits))
            ).divergence

        # 1. What each layer costs at each width, with all others at the widest.
        widest = (widths[0],) * len(layers)
        least = loss(*widest)
        costs = [
            # A narrower width that happens to lose less is luck, not worth bytes elsewhere.
            {
                width: max(0.0, loss(*widest[:place], width, *widest[place + 1 :]) - least)
                for width in widths
            }
            for place in range(len(layers))
        ]
        # 2. The assignment of the least sum of costs, unless one width for all loses less when both
        # are measured.
        uniform = max(width for width in widths if width <= FULL_WIDTH * _exactly(size_budget))
        plain = (uniform,) * len(layers)
        better, reason = _better(loss, tuple(cheapest(weights, costs, size_budget)), plain)
        bits = sum(size * width for size, width in zip(weights, better, strict=True))
        predicted = least + sum(cost[width] for width, cost in zip(better, costs, strict=True))
        return Plan(
            dict(zip(layers, better, strict=True)),
            act_bits,
            -(-bits // 8),
            bits / (FULL_WIDTH * sum(weights)),
            predicted,
            loss(*better),
            uniform,
            loss(*plain),
            reason,
        )


def _better(
    loss: Callable[..., float], widths: tuple[int, ...], plain: tuple[int, ...]
) -> tuple[tuple[int, ...], str]:
    """The widths of lesser loss, those of one width for all where they are the same, and why."""
    every = f"{plain[0]} bits in every layer"
    if widths == plain:
        return plain, f"{every} are the best by prediction"
    if loss(*widths) > loss(*plain):
        return plain, f"{every}: the predicted best widths lose {loss(*widths):.3g} nats, more"
    return widths, f"{every} lose {loss(*plain):.3g} nats, not less"


def cheapest(
    weights: Sequence[int], costs: Sequence[Mapping[int, float]], size_budget: float
) -> list[int]:
    """The width of each layer with the least sum of costs within the budget; of equal sums the one
    of least size.

    Exact: all sizes that layers up to one can have, with the least cost for each, less those that a
    smaller size equals or beats. An integer program's solver stops at an absolute gap of about
    1e-6, as much as a layer may cost.

    Args:
        weights: how many each layer has.
        costs: of each layer, by width in bits.
        size_budget: share of the size at 8 bits.

    Raises:
        ValueError: no assignment meets the budget; names the least share that one has.
    """
    full = FULL_WIDTH * sum(weights)
    room = int(_exactly(size_budget) * full)
    # The least that the layers from each one on take.
    rest = [0]
    for count, cost in zip(reversed(weights), reversed(costs), strict=True):
        rest.append(rest[-1] + count * min(cost))
    if rest[-1] > room:
        raise _too_small(size_budget, rest[-1] / full)
    # From layer to layer keep each size with its least cost, unless a smaller size is as good.
    size, cost_so_far = np.zeros(1, dtype=np.int64), np.zeros(1)
    steps = []
    for count, cost, needed in zip(weights, costs, reversed(rest[:-1]), strict=True):
        widths = sorted(cost)
        sizes = (size[:, None] + count * np.array(widths, dtype=np.int64)).ravel()
        sums = (cost_so_far[:, None] + np.array([cost[width] for width in widths])).ravel()
        # In order of size: keep what costs less than all that is smaller, and leaves room for the
        # rest.
        order = np.lexsort((sums, sizes))
        before = np.concatenate([[np.inf], np.minimum.accumulate(sums[order])[:-1]])
        kept = order[(sums[order] < before) & (sizes[order] + needed <= room)]
        size, cost_so_far = sizes[kept], sums[kept]
        steps.append((widths, kept))
    # The widths that led to the last entry of the last step.
    chosen, last = [], len(size) - 1
    for widths, kept in reversed(steps):
        last, which = divmod(int(kept[last]), len(widths))
        chosen.append(widths[which])
    return chosen[::-1]


def _scheme(weight_bits: Mapping[str, int], act_bits: int) -> Scheme:
    layers = {name: Bits(bits, act_bits) for name, bits in weight_bits.items()}
    return Scheme(Bits(max(weight_bits.values()), act_bits), layers=layers)


def _checked(act_bits: int, size_budget: float, widths: Sequence[int]) -> tuple[int, ...]:
    """The different widths, greatest first. Raises ValueError for an option out of range or a
    budget too small.
    """
    if not 2 <= act_bits <= FULL_WIDTH:
        raise ValueError(f"act_bits must be in [2, {FULL_WIDTH}], got {act_bits}")
    if not 0 < size_budget <= 1:
        raise ValueError(f"size_budget must be in (0, 1], got {size_budget}")
    if not widths or not set(widths) <= set(range(2, FULL_WIDTH + 1)):
        raise ValueError(
            f"widths must be some of the integers in [2, {FULL_WIDTH}], got {tuple(widths)}"
        )
    if min(widths) > FULL_WIDTH * _exactly(size_budget):
        raise _too_small(size_budget, min(widths) / FULL_WIDTH)
    return tuple(sorted(set(widths), reverse=True))


def _exactly(size_budget: float) -> Fraction:
    """The decimal that was written: 3 of 10 bits are within 0.3, whose nearest float is less."""
    return Fraction(str(size_budget))


def _too_small(size_budget: float, least: float) -> ValueError:
    return ValueError(
        f"size_budget must be at least {least:.6g}, the share with the least of the widths in every"
        f" layer, got {size_budget}"
    )
