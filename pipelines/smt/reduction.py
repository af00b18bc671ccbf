"""The exact reduction: in a small box most neurons are stable, and what they compute is an affine
form.

Everything is a row over the columns [1, t, a]: t are the free inputs, measured from the box's lower
corner, and a are the outputs of the neurons that are left, layer by layer. From the last layer to
the first, an output a = f(z) with coefficient q is replaced by p z + r, where p may be any number
and r is the exact minimum of q f(z) - p z: the Lagrangian bound with p as the multiplier of z's
definition (arXiv 2103.06624). By default p is q times the slope of a line below or above f
(DeepPoly, POPL 2019; CROWN, arXiv 1811.00866). All is exact: no rounding argument is needed.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalsuite import Property, Unsupported
from pipelines.smt.dyadic import Dyadic, Floats, side_by_side
from pipelines.smt.exact_network import Affine, Curve, ExactNetwork

# An upper line's slope may be any number in [0, 1], as its intercept is computed from it: few bits
# keep it fast. Proof files state how these lines are chosen: who changes them changes the format.
_SLOPE_BITS = 12
# Products of exact numbers between two looks at the clock: a fraction of a second.
_BLOCK = 2**20
Ends = tuple[Dyadic, Dyadic]  # lower and upper ones
Places = NDArray[np.intp]
Phases = NDArray[np.int8]  # of neurons: 0 open, 1 on (z >= 0), -1 off (z <= 0)


class OutOfTimeError(Exception):
    """The deadline is reached before the bounds are computed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Whether every row over the network's outputs is > 0 on the box [lower, upper], each
    (inputs,).
    """

    network: ExactNetwork
    lower: Dyadic
    upper: Dyadic
    rows: Affine

    @classmethod
    def robustness(
        cls, network: ExactNetwork, property_: Property, takes: str = "bounds take boxes"
    ) -> Asked:
        """Ask whether the label's margins are positive in the property's box. Raises Unsupported,
        with what `takes` boxes alone, where the property is a ball.
        """
        if property_.center is not None:
            raise Unsupported(f"{takes}, and this property is an L2 ball")
        lower, upper = (
            Dyadic.of(end.numpy().ravel()) for end in (property_.lower, property_.upper)
        )
        return cls(network, lower, upper, label_margins(network.classes, property_.label))

    @property
    def singly(self) -> list[list[int]]:
        """The cases of robustness, any of which violates it: each row alone is <= 0."""
        return [[row] for row in range(self.rows.bias.shape[0])]

    def value(self, row: int, logits: Sequence[Fraction]) -> Fraction:
        """Return what a row is of these outputs."""
        products = (
            factor * logit
            for factor, logit in zip(self.rows.weight[row].fractions(), logits, strict=True)
        )
        return sum(products, self.rows.bias[[row]].fractions()[0])


def label_margins(classes: int, label: int) -> Affine:
    """The label's logit minus each other one, as rows over the logits.

    Raises ValueError where there is no such label, or no other one.
    """
    if classes < 2:
        raise ValueError(
            "there is no row to prove: a network with one output is robust to everything"
        )
    if not 0 <= label < classes:
        raise ValueError(f"label must be >= 0 and < {classes}, got {label}")
    others = [index for index in range(classes) if index != label]
    units = np.full((len(others), classes), 0, dtype=object)
    units[:, label] = 1
    units[np.arange(len(others)), others] = -1
    return Affine(Dyadic(units, 0), Dyadic.zeros(len(others)))


@dataclass(frozen=True, slots=True)
class Layer(ABC):
    """Neurons of one layer whose activations are bounded.

    Args:
        depth: which layer of the network, from 0.
        index: the neurons' places in that layer, (neurons,), ascending.
        forms: their inputs z, (neurons, columns before this layer's own).
        lower: of z, (neurons,).
        upper: of z, (neurons,).
        below: slope of a line below each activation, on [lower, upper], (neurons,).
        above: the same of a line above.
    """

    depth: int
    index: Places
    forms: Dyadic
    lower: Dyadic
    upper: Dyadic
    below: Dyadic
    above: Dyadic

    def slopes(self, q: Dyadic) -> Dyadic:
        """The default p of coefficients q, each (rows, neurons)."""
        return q.above_zero() * self.below + q.below_zero() * self.above

    def within(self, **changed: Any) -> Layer:
        """Return the layer in a part of the box, with phases, or ends and lines, of its own."""
        return replace(self, **changed)

    @abstractmethod
    def rest(self, q: Dyadic, p: Dyadic) -> Dyadic:
        """The sum of r over the neurons, (rows,), for coefficients and multipliers, (rows,
        neurons).
        """


@dataclass(frozen=True, slots=True)
class Lined(Layer):
    """All neurons of a layer of curves between lines, which start at `below_start` and
    `above_start`.
    """

    below_start: Dyadic
    above_start: Dyadic

    @staticmethod
    def of(curve: Curve, forms: Dyadic, lower: Floats, upper: Floats, depth: int) -> Lined:
        """With lines that hold on [lower, upper]. Raises Unsupported where there are none."""
        numbers = {
            name: Dyadic.of(part) for name, part in curve.lines(lower, upper)._asdict().items()
        }
        return Lined(depth, np.arange(len(lower)), forms, **numbers)

    def rest(self, q: Dyadic, p: Dyadic) -> Dyadic:
        """The lines hold for every real z: so does the bound."""
        sloped = self.slopes(q) - p
        starts = q.above_zero() @ self.below_start + q.below_zero() @ self.above_start
        return starts + (sloped * self.lower).smaller(sloped * self.upper).total()


@dataclass(frozen=True, slots=True)
class Unstable(Layer):
    """Neurons a = max(z, 0) with lower < 0 < upper, and the `phases` of a part of the box; the
    lines go through 0.
    """

    phases: Phases

    @staticmethod
    def of(forms: Dyadic, lower: Dyadic, upper: Dyadic, depth: int, index: Places) -> Unstable:
        """With lines that hold on [lower, upper], and no neuron held."""
        below = Dyadic.of(np.array((upper + lower).units > 0, dtype=np.float64))
        above, phases = (
            upper.share_of(upper - lower, _SLOPE_BITS),
            np.zeros(len(index), dtype=np.int8),
        )
        return Unstable(depth, index, forms, lower, upper, below, above, phases)

    @property
    def intercept(self) -> Dyadic:
        """Where the line above starts: max(z, 0) is convex, so that it must be above at both
        ends.
        """
        return -(self.above * self.lower).smaller(self.above * self.upper - self.upper)

    def slopes(self, q: Dyadic) -> Dyadic:
        """q of a neuron that is on, 0 of one that is off, and the lines' of the open ones."""
        lines = Layer.slopes(self, q)
        units = np.where(
            self.phases == 0, lines.units, np.where(self.phases > 0, q.at(lines.exponent), 0)
        )
        return Dyadic(units, lines.exponent)

    def rest(self, q: Dyadic, p: Dyadic) -> Dyadic:
        """The minimum is at an end or at 0, as far as the phase reaches."""
        low, high = (-(p * self.lower)).below_zero(), ((q - p) * self.upper).below_zero()
        both, exponent = low.smaller(high), max(low.exponent, high.exponent)
        held = np.where(self.phases > 0, high.at(exponent), low.at(exponent))
        return Dyadic(np.where(self.phases == 0, both.units, held), exponent).total()


@dataclass(frozen=True, slots=True)
class Reduced:
    """A network on one box.

    Args:
        asked: the network, the box, and the rows that must be positive.
        free: indices of the inputs that the box lets vary.
        widths: of those, (free inputs,), > 0.
        layers: the neurons that are left, first layer first: of ReLU the unstable ones.
        margins: the rows, (rows, columns).
        least: a lower bound of each margin, (rows,).
        bounds: of the inputs z of all activations, layer by layer, each (neurons,).
    """

    asked: Asked
    free: Places
    widths: Dyadic
    layers: tuple[Layer, ...]
    margins: Dyadic
    least: Dyadic
    bounds: tuple[Ends, ...]

    @property
    def neurons(self) -> int:
        """How many neurons a search would have to split on."""
        return sum(len(layer.index) for layer in self.layers)

    def open_margins(self) -> list[int]:
        """The rows of `margins` that the bounds do not prove positive, the least bound first."""
        least = self.least.units.tolist()
        return sorted(
            (row for row, value in enumerate(least) if value <= 0), key=lambda row: least[row]
        )

    def point(self, offsets: Sequence[Fraction]) -> list[Fraction]:
        """The input at t = `offsets`."""
        values = self.asked.lower.fractions()
        for index, offset in zip(self.free.tolist(), offsets, strict=True):
            values[index] += offset
        return values

    @property
    def places(self) -> list[slice]:
        """The slice of each layer's neurons among all neurons."""
        return [
            slice(*ends)
            for ends in pairwise(accumulate((len(layer.index) for layer in self.layers), initial=0))
        ]


def reduce(asked: Asked, deadline: float = math.inf) -> Reduced:
    """Substitute every stable neuron, bound the others and the rows.

    Raises:
        OutOfTimeError: the clock of `time.monotonic` is beyond `deadline`.
        Unsupported: of a network with curves, numbers beyond what has sound lines.
        ValueError: the box is not one of the network's inputs.
    """
    network, rows = asked.network, asked.rows
    check_box(asked)
    # Fixed inputs go into the constants; the others are t, measured from the lower corner, so that
    # a row over [1, t] is least where t is 0 or the width.
    widths = asked.upper - asked.lower
    free = np.flatnonzero(np.array(widths.units != 0, dtype=bool))
    widths, first = widths[free].shortened(), network.maps[0]
    constant = (first.weight @ asked.lower + first.bias)[:, None]
    forms = side_by_side([constant, first.weight[:, free]]).shortened()
    layers, bounds = list[Layer](), list[Ends]()
    # `forms` are a layer's inputs z as rows over the columns [1, t, a].
    for depth, following in enumerate(network.maps[1:]):
        # 1. Bound z: its greatest value is minus the least of -z.
        count, both = (
            forms.shape[0],
            Dyadic(np.concatenate([forms.units, -forms.units]), forms.exponent),
        )
        least = least_values(both, layers, widths, deadline)
        low, high = least[:count].shortened(), (-least[count:]).shortened()
        bounds.append((low, high))
        # 2. Neurons that are left become columns; of ReLU those without a certain sign.
        if network.curves:
            ends = np.nextafter(low.floats(), -np.inf), np.nextafter(high.floats(), np.inf)
            layers.append(Lined.of(network.curves[depth], forms, *ends, depth))
            active, left = np.arange(0), np.arange(count)
        else:
            positive = np.array(low.units >= 0, dtype=bool)
            active, left = (
                np.flatnonzero(positive),
                np.flatnonzero(~positive & np.array(high.units > 0, dtype=bool)),
            )
            if len(left):
                open_forms, lower, upper = (part[left].shortened() for part in (forms, low, high))
                layers.append(Unstable.of(open_forms, lower, upper, depth, left))
        # 3. Go through the next map: neurons that are on pass z, and those that are off give 0.
        forms = product(following.weight[:, active], forms[active], deadline)
        forms = _raised(
            side_by_side([forms, following.weight[:, left]]), following.bias
        ).shortened()
    # 4. The rows asked for are one more map over the outputs.
    margins = _raised(product(rows.weight, forms, deadline), rows.bias).shortened()
    return Reduced(
        asked,
        free,
        widths,
        tuple(layers),
        margins,
        least_values(margins, layers, widths, deadline),
        tuple(bounds),
    )


def bound_rows(asked: Asked) -> Dyadic:
    """Return what interval arithmetic alone knows of each row of a ReLU network, (rows,), which is
    quick.
    """
    check_box(asked)
    low, high = asked.lower, asked.upper
    for depth, map_ in enumerate((*asked.network.maps, asked.rows)):
        plus, minus = map_.weight.above_zero(), map_.weight.below_zero()
        if depth and map_ is not asked.rows:
            low, high = low.above_zero(), high.above_zero()
        low, high = plus @ low + minus @ high + map_.bias, plus @ high + minus @ low + map_.bias
    return low.shortened()


def check_box(asked: Asked) -> None:
    """Raises ValueError where the box is not one of the network's inputs."""
    lower, upper, inputs = asked.lower, asked.upper, asked.network.maps[0].weight.shape[1]
    if lower.shape != (inputs,) or upper.shape != (inputs,):
        raise ValueError(
            f"a box of {lower.shape} and {upper.shape} ends, for a network of {inputs} inputs"
        )
    if (lower - upper).above_zero().units.any():
        raise ValueError("the box is reversed: lower > upper")


def carried(
    rows: Dyadic, layers: Sequence[Layer], chosen: Dyadic | None = None, deadline: float = math.inf
) -> tuple[Dyadic, list[Dyadic]]:
    """Rows over [1, t, a] as rows over [1, t] that are not above them where the layers' bounds
    hold.

    `chosen` is p of each neuron, (neurons,); by default that of `Layer.slopes`, which is the second
    result: of each layer, the first one first, (rows, neurons), given what was taken of later
    layers.
    """
    usual, end = list[Dyadic](), sum(len(layer.index) for layer in layers)
    for layer in reversed(layers):
        # Replace q a by p z + r: z is a row over the columns before this layer's own.
        before, start = layer.forms.shape[1], end - len(layer.index)
        q = rows[:, before:]
        usual.insert(0, layer.slopes(q))
        p = usual[0] if chosen is None else chosen[None, start:end]
        carried_rows = rows[:, :before] + product(p.shortened(), layer.forms, deadline)
        rows, end = _raised(carried_rows, layer.rest(q, p)).shortened(), start
    return rows, usual


def least_values(
    rows: Dyadic,
    layers: Sequence[Layer],
    widths: Dyadic,
    deadline: float = math.inf,
    chosen: Dyadic | None = None,
) -> Dyadic:
    """A lower bound of each row over the box, (rows,): the least value of what is `carried`
    back.
    """
    rows, _ = carried(rows, layers, chosen, deadline)
    return rows[:, 0] + rows[:, 1:].below_zero() @ widths


def product(left: Dyadic, right: Dyadic, deadline: float) -> Dyadic:
    """left @ right, in blocks of rows between which the clock is looked at; raises
    OutOfTimeError.
    """
    rows, columns = left.shape[0], right.shape[1]
    size = max(1, _BLOCK // max(1, right.units.size))
    result = np.full((rows, columns), 0, dtype=object)
    for start in range(0, rows, size):
        if time.monotonic() > deadline:
            raise OutOfTimeError
        result[start : start + size] = np.dot(left.units[start : start + size], right.units)
    return Dyadic(result, left.exponent + right.exponent)


def _raised(rows: Dyadic, constant: Dyadic) -> Dyadic:
    """Forms over [1, ...] with `constant`, (rows,), added to the first column."""
    return rows + side_by_side([constant[:, None], Dyadic.zeros(rows.shape[0], rows.shape[1] - 1)])
