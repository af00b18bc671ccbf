"""A quick falsifier that starts where the relaxation is least: corners of the box, down the margin's slope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.smt.exact_network import Affine
from pipelines.smt.search.program import Floats


class Scalar(Protocol):
    """A scalar function and its slope, applied to each element of an array."""

    def value(self, x: Floats, /) -> Floats:
        """The values f(x), elementwise, of the shape of x."""
        ...

    def slope(self, x: Floats, /) -> Floats:
        """The derivatives f'(x), elementwise, of the shape of x."""
        ...


class Relu:
    """ReLU, max(x, 0), for the search of ReLU networks."""

    def value(self, x: Floats) -> Floats:
        """See `Scalar`."""
        return np.maximum(x, 0.0)

    def slope(self, x: Floats) -> Floats:
        """See `Scalar`; 0 at the kink."""
        return (x > 0).astype(np.float64)


class Descent:
    """Points of the box with a small margin, in float64: suspects only.

    Args:
        maps: of the network; their weights are rounded to float64.
        activations: between them.
        box: the input's lower and upper ends, each (inputs,).
        free: the inputs with offsets.
        rows: whose values are the margins, over the outputs.
    """

    def __init__(
        self,
        maps: Sequence[Affine],
        activations: Sequence[Scalar],
        box: tuple[Floats, Floats],
        free: NDArray[np.intp],
        rows: Affine,
    ) -> None:
        self._maps = [(each.weight.floats(), each.bias.floats()) for each in maps]
        self._activations = activations
        self._rows, self._constants = rows.weight.floats(), rows.bias.floats()
        self._lower, self._upper = box
        self._free = free

    def at(self, offsets: Floats) -> Floats:
        """The input at these offsets from the lower corner, moved into the box."""
        point = self._lower.copy()
        point[self._free] += offsets
        return np.clip(point, self._lower, self._upper)

    def margin(self, point: Floats, row: int) -> float:
        """The margin at an input, with the rounding errors of float64."""
        return self._slope(point, row)[0]

    def suspects(self, start: Floats, row: int, steps: int) -> Iterator[Floats]:
        """`start` and what is met from it, where the margin is not positive."""
        point = start
        for step in range(steps + 1):
            value, slope = self._slope(point, row)
            if not value > 0:
                yield point
            corner = np.where(slope > 0, self._lower, np.where(slope < 0, self._upper, point))
            following = corner if step % 2 == 0 else (point + corner) / 2
            if np.array_equal(following, point):
                return
            point = following

    def together(self, start: Floats, steps: int) -> Iterator[Floats]:
        """`start`, and points on the way to where no row is positive, down the slopes of positive rows in turn."""
        point, width = start, self._upper - self._lower
        for step in range(steps):
            slopes = [self._slope(point, row) for row in range(len(self._constants))]
            yield point
            positive = [slope for value, slope in slopes if value > 0]
            if not positive:
                return
            size = 0.5 * (1 - step / steps)
            moved = point - size * width * np.sign(positive[step % len(positive)])
            point = np.clip(moved, self._lower, self._upper)

    @np.errstate(over="ignore", invalid="ignore")  # Beyond float64 it is no guide, and nothing else rests on it.
    def _slope(self, point: Floats, row: int) -> tuple[float, Floats]:
        (weight, bias), *rest = self._maps
        state, steep = weight @ point + bias, []
        for activation, (weight, bias) in zip(self._activations, rest, strict=True):
            steep.append(activation.slope(state))
            state = weight @ activation.value(state) + bias
        value = float(self._rows[row] @ state + self._constants[row])
        slope = self._rows[row] @ self._maps[-1][0]
        for (weight, _), factor in zip(reversed(self._maps[:-1]), reversed(steep), strict=True):
            slope = (slope * factor) @ weight
        return value, slope
