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
Ends = tuple[Dyadic, Dyadic]  # lower and upper ones


@dataclass(frozen=True, slots=True)
class Lined:
    """One layer's activations between lines.

    Args:
        forms: their inputs z, (neurons, columns before this layer's own).
        lower: of z, (neurons,).
        upper: of z, (neurons,).
        below: slope and start of a line below each, on [lower, upper], each (neurons,).
        above: the same of a line above.
    """

    forms: Dyadic
    lower: Dyadic
    upper: Dyadic
    below: tuple[Dyadic, Dyadic]
    above: tuple[Dyadic, Dyadic]

    def through(self, rows: Dyadic, chosen: Dyadic | None, deadline: float) -> Dyadic:
        """Rows over the columns up to this layer's outputs, as rows without these: lower bounds of them.

        An output a with coefficient q is replaced by p z + r, where p may be any number, `chosen` or else q times its
        line's slope, and r is the exact minimum of q times the line less p z.
        """
        before = self.forms.shape[1]
        raised, lowered = rows[:, before:].above_zero(), rows[:, before:].below_zero()
        slopes = raised * self.below[0] + lowered * self.above[0]
        constant = raised @ self.below[1] + lowered @ self.above[1]
        if chosen is not None:
            rest = slopes - chosen
            ends = rest * self.lower, rest * self.upper
            exponent = max(each.exponent for each in ends)
            least = np.minimum(ends[0].at(exponent), ends[1].at(exponent))
            constant = constant + Dyadic(least.sum(axis=1), exponent)
            slopes = Dyadic(np.broadcast_to(chosen.units, slopes.shape), chosen.exponent)
        made = product(slopes.shortened(), self.forms, deadline)
        return add_constant(rows[:, :before] + made, constant).shortened()


@dataclass(frozen=True, slots=True)
class Unstable(Lined):
    """The unstable neurons of one layer, a = max(z, 0) where z takes both signs; the lines below go through 0.

    Args:
        depth: which layer of the network, from 0.
        index: the neurons' places in that layer, (neurons,), ascending.
    """

    depth: int
    index: NDArray[np.intp]

    @staticmethod
    def of(forms: Dyadic, lower: Dyadic, upper: Dyadic, depth: int, index: NDArray[np.intp]) -> Unstable:
        """With lines of the forms that hold on [lower, upper], each (neurons,), lower < 0 < upper."""
        below = Dyadic.of(np.array((upper + lower).units > 0, dtype=np.float64))
        above = upper.share_of(upper - lower, _SLOPE_BITS)
        # max(z, 0) is convex: a line that is above it at both ends is above it between them.
        intercept = (-(above * lower)).larger(upper - above * upper)
        through_0 = Dyadic.zeros(*below.shape)
        return Unstable(forms, lower, upper, (below, through_0), (above, intercept), depth, index)


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
        bounds: of the inputs z of all ReLUs, layer by layer, each (neurons,).
    """

    corner: Dyadic
    free: NDArray[np.intp]
    widths: Dyadic
    layers: tuple[Unstable, ...]
    margins: Dyadic
    least: Dyadic
    bounds: tuple[Ends, ...] = ()

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
    free, widths, forms = entered(network.maps[0], lower, upper)
    layers: list[Unstable] = []
    bounds: list[Ends] = []
    for depth, following in enumerate(network.maps[1:]):
        low, high = (each.shortened() for each in ends_of(forms, layers, widths, deadline))
        kept, unstable = _relu(forms, low, high, depth)
        outputs = product(following.weight, kept, deadline)
        if unstable is not None:
            layers.append(unstable)
            outputs = side_by_side([outputs, following.weight[:, unstable.index]])
        bounds.append((low, high))
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


def entered(first: Affine, lower: Dyadic, upper: Dyadic) -> tuple[NDArray[np.intp], Dyadic, Dyadic]:
    """The inputs that the box [lower, upper] lets vary, their widths, and what the first map makes, over [1, t].

    Raises ValueError where the box is not one of the map's inputs.
    """
    check_box(first, lower, upper)
    widths = upper - lower
    free = np.flatnonzero(np.array(widths.units != 0, dtype=bool))
    constant = (first.weight @ lower + first.bias)[:, None]
    return free, widths[free].shortened(), side_by_side([constant, first.weight[:, free]]).shortened()


def check_box(first: Affine, lower: Dyadic, upper: Dyadic) -> None:
    """Raises ValueError where the box [lower, upper] is not one of the first map's inputs."""
    inputs = first.weight.shape[1]
    if lower.shape != (inputs,) or upper.shape != (inputs,):
        raise ValueError(f"a box of {lower.shape} and {upper.shape} ends, for a network of {inputs} inputs")
    if (lower - upper).above_zero().units.any():
        raise ValueError("the box is reversed: lower > upper")


def ends_of(forms: Dyadic, layers: Sequence[Lined], widths: Dyadic, deadline: float) -> Ends:
    """Lower and upper bounds of forms over the box, each (forms,)."""
    count = forms.shape[0]
    both = Dyadic(np.concatenate([forms.units, -forms.units]), forms.exponent)
    least = least_values(both, layers, widths, deadline)
    return least[:count], -least[count:]


def _relu(forms: Dyadic, low: Dyadic, high: Dyadic, depth: int) -> tuple[Dyadic, Unstable | None]:
    """The forms of the layer's outputs, 0 where not stable, and its unstable neurons, which extend the columns."""
    positive = np.array(low.units >= 0, dtype=bool)
    split = np.flatnonzero(~positive & np.array(high.units > 0, dtype=bool))
    kept = Dyadic(np.where(positive[:, None], forms.units, 0), forms.exponent)
    if not len(split):
        return kept, None
    lower, upper = low[split].shortened(), high[split].shortened()
    return kept, Unstable.of(forms[split].shortened(), lower, upper, depth, split)


def least_values(
    rows: Dyadic, layers: Sequence[Lined], widths: Dyadic, deadline: float = math.inf, chosen: Dyadic | None = None
) -> Dyadic:
    """A lower bound of each row over the box, (rows,): outputs replaced, last layer first; see `Lined.through`."""
    end = sum(each.forms.shape[0] for each in layers)
    for layer in reversed(layers):
        start = end - layer.forms.shape[0]
        rows = layer.through(rows, None if chosen is None else chosen[start:end], deadline)
        end = start
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
