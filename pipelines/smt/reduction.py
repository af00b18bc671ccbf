"""The exact reduction: in a small box most neurons are stable, and what they compute is an affine form.

Everything is a row over the columns [1, t, a]: t are the free inputs, measured from the box's lower corner, and a are
the outputs of the unstable neurons, layer by layer. Bounds replace each a by a line below or above it (DeepPoly, POPL
2019; CROWN, arXiv 1811.00866), from the last layer to the first, in exact arithmetic: they need no rounding argument.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from evalsuite import Property
from pipelines.smt.dyadic import Dyadic, side_by_side
from pipelines.smt.exact_network import Affine, ExactNetwork

# An upper line's slope may be any number in [0, 1], as its intercept is computed from it: few bits keep it fast. Proof
# files state how these lines are chosen: who changes them changes the format.
_SLOPE_BITS = 12
# Products of exact numbers between two looks at the clock: a fraction of a second.
_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of the inputs z of all ReLUs of one layer, each (neurons,)."""

    lower: Dyadic
    upper: Dyadic


@dataclass(frozen=True, slots=True)
class Unstable:
    """The unstable neurons of one layer, a = max(z, 0) where z takes both signs.

    Args:
        forms: z, (neurons, columns before this layer's own).
        lower: of z, (neurons,), < 0.
        upper: of z, (neurons,), > 0.
        depth: which layer of the network, from 0.
        index: the neurons' places in that layer, (neurons,), ascending.
    """

    forms: Dyadic
    lower: Dyadic
    upper: Dyadic
    depth: int
    index: NDArray[np.intp]

    def lines(self) -> tuple[Dyadic, Dyadic, Dyadic]:
        """Slope below (through 0), slope above and intercept above, each (neurons,): all hold on [lower, upper]."""
        below = Dyadic.of(np.array((self.upper + self.lower).units > 0, dtype=np.float64))
        above = self.upper.share_of(self.upper - self.lower, _SLOPE_BITS)
        # max(z, 0) is convex: a line that is above it at both ends is above it between them.
        intercept = (-(above * self.lower)).larger(self.upper - above * self.upper)
        return below, above, intercept


@dataclass(frozen=True, slots=True)
class Reduced:
    """A network on one box.

    Args:
        corner: the box's lower corner, (inputs,).
        free: indices of the inputs that the box lets vary.
        widths: of those, (free inputs,), > 0.
        layers: the unstable neurons, first layer first.
        margins: what must be positive, (rows, columns); of robustness, the label's logit minus each other one.
        least: a lower bound of each margin, (rows,).
        bounds: of all neurons, layer by layer.
    """

    corner: Dyadic
    free: NDArray[np.intp]
    widths: Dyadic
    layers: tuple[Unstable, ...]
    margins: Dyadic
    least: Dyadic
    bounds: tuple[Bounds, ...] = ()

    @property
    def unstable_neurons(self) -> int:
        """How many neurons the solver would have to split on."""
        return sum(each.forms.shape[0] for each in self.layers)

    def open_margins(self) -> list[int]:
        """The rows of `margins` that the bounds do not prove positive, the least bound first."""
        least = self.least.units.tolist()
        return sorted((row for row, value in enumerate(least) if value <= 0), key=lambda row: least[row])

    def point(self, offsets: Sequence[Fraction]) -> list[Fraction]:
        """The input at t = `offsets`."""
        values = self.corner.fractions()
        for index, offset in zip(self.free.tolist(), offsets, strict=True):
            values[index] += offset
        return values


def reduce_network(network: ExactNetwork, property_: Property, deadline: float = math.inf) -> Reduced:
    """Substitute every stable neuron, bound the margins. Raises as `reduce_rows`."""
    lower, upper = (Dyadic.of(end.numpy().ravel()) for end in (property_.lower, property_.upper))
    return reduce_rows(network, lower, upper, label_margins(network.classes, property_.label), deadline)


def label_margins(classes: int, label: int) -> Affine:
    """The label's logit minus each other one, as rows over the logits.

    Raises ValueError where there is no such label, or no other one.
    """
    if classes < 2:
        raise ValueError("there is no row to prove: a network with one output is robust to everything")
    if not 0 <= label < classes:
        raise ValueError(f"label must be >= 0 and < {classes}, got {label}")
    others = [index for index in range(classes) if index != label]
    units = np.full((len(others), classes), 0, dtype=object)
    units[:, label] = 1
    units[np.arange(len(others)), others] = -1
    return Affine(Dyadic(units, 0), Dyadic.zeros(len(others)))


class OutOfTimeError(Exception):
    """The deadline is reached before the bounds are computed."""


def reduce_rows(
    network: ExactNetwork, lower: Dyadic, upper: Dyadic, rows: Affine, deadline: float = math.inf
) -> Reduced:
    """The same for any linear rows over the outputs, on the box [lower, upper], each (inputs,).

    Raises:
        OutOfTimeError: the clock of `time.monotonic` is beyond `deadline`.
        ValueError: the box is not one of the network's inputs.
    """
    check_box(network.maps[0], lower, upper)
    widths = upper - lower
    free = np.flatnonzero(np.array(widths.units != 0, dtype=bool))
    widths = widths[free].shortened()
    first = network.maps[0]
    constant = (first.weight @ lower + first.bias)[:, None]
    forms = side_by_side([constant, first.weight[:, free]]).shortened()
    layers: list[Unstable] = []
    bounds: list[Bounds] = []
    for depth, following in enumerate(network.maps[1:]):
        found = _bounds(forms, layers, widths, deadline)
        kept, unstable = _relu(forms, found, depth)
        outputs = product(following.weight, kept, deadline)
        if unstable is not None:
            layers.append(unstable)
            outputs = side_by_side([outputs, following.weight[:, unstable.index]])
        bounds.append(found)
        forms = add_constant(outputs, following.bias).shortened()
    margins = add_constant(product(rows.weight, forms, deadline), rows.bias).shortened()
    least = least_values(margins, layers, widths, deadline)
    return Reduced(lower, free, widths, tuple(layers), margins, least, tuple(bounds))


def bound_rows(network: ExactNetwork, lower: Dyadic, upper: Dyadic, rows: Affine) -> Dyadic:
    """What interval arithmetic alone knows of each row, (rows,), which is quick."""
    check_box(network.maps[0], lower, upper)
    low, high = lower, upper
    for depth, each in enumerate((*network.maps, rows)):
        plus, minus = each.weight.above_zero(), each.weight.below_zero()
        if depth and each is not rows:
            low, high = low.above_zero(), high.above_zero()
        low, high = plus @ low + minus @ high + each.bias, plus @ high + minus @ low + each.bias
    return low.shortened()


def check_box(first: Affine, lower: Dyadic, upper: Dyadic) -> None:
    """Raises ValueError where the box [lower, upper] is not one of the first map's inputs."""
    inputs = first.weight.shape[1]
    if lower.shape != (inputs,) or upper.shape != (inputs,):
        raise ValueError(f"a box of {lower.shape} and {upper.shape} ends, for a network of {inputs} inputs")
    if (lower - upper).above_zero().units.any():
        raise ValueError("the box is reversed: lower > upper")


def _bounds(forms: Dyadic, layers: Sequence[Unstable], widths: Dyadic, deadline: float) -> Bounds:
    count = forms.shape[0]
    both = Dyadic(np.concatenate([forms.units, -forms.units]), forms.exponent)
    least = least_values(both, layers, widths, deadline)
    return Bounds(least[:count].shortened(), -least[count:].shortened())


def _relu(forms: Dyadic, bounds: Bounds, depth: int) -> tuple[Dyadic, Unstable | None]:
    """The forms of the layer's outputs, 0 where not stable, and its unstable neurons, which extend the columns."""
    positive = np.array(bounds.lower.units >= 0, dtype=bool)
    split = np.flatnonzero(~positive & np.array(bounds.upper.units > 0, dtype=bool))
    kept = Dyadic(np.where(positive[:, None], forms.units, 0), forms.exponent)
    if not len(split):
        return kept, None
    lower, upper = bounds.lower[split].shortened(), bounds.upper[split].shortened()
    return kept, Unstable(forms[split].shortened(), lower, upper, depth, split)


def least_values(rows: Dyadic, layers: Sequence[Unstable], widths: Dyadic, deadline: float = math.inf) -> Dyadic:
    """A lower bound of each row over the box, (rows,): neurons replaced by lines, last layer first."""
    for layer in reversed(layers):
        before = layer.forms.shape[1]
        below, above, intercept = layer.lines()
        raised, lowered = rows[:, before:].above_zero(), rows[:, before:].below_zero()
        slopes = (raised * below + lowered * above).shortened()
        made = product(slopes, layer.forms, deadline)
        rows = add_constant(rows[:, :before] + made, lowered @ intercept).shortened()
    return rows[:, 0] + rows[:, 1:].below_zero() @ widths


def product(left: Dyadic, right: Dyadic, deadline: float) -> Dyadic:
    """left @ right, in blocks of rows between which the clock is looked at; raises OutOfTimeError."""
    rows, columns = left.shape[0], right.shape[1]
    size = max(1, _BLOCK // max(1, right.units.size))
    found = np.full((rows, columns), 0, dtype=object)
    for start in range(0, rows, size):
        if time.monotonic() > deadline:
            raise OutOfTimeError
        found[start : start + size] = np.dot(left.units[start : start + size], right.units)
    return Dyadic(found, left.exponent + right.exponent)


def add_constant(rows: Dyadic, constant: Dyadic) -> Dyadic:
    """Forms over [1, ...] with `constant`, (rows,), added to the first column."""
    return rows + side_by_side([constant[:, None], Dyadic.zeros(rows.shape[0], rows.shape[1] - 1)])
