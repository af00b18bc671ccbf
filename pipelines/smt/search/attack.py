"""A quick falsifier that starts where the relaxation is least: corners of the box, down the margin's slope."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipelines.smt.dyadic import Floats
from pipelines.smt.exact_network import Affine, ExactNetwork


class Descent:
    """Points of the box with a small margin, in float64: suspects only.

    Args:
        network: its weights are rounded to float64.
        box: the input's lower and upper ends, each (inputs,).
        free: the inputs with offsets.
        rows: whose values are the margins, over the outputs.
    """

    def __init__(self, network: ExactNetwork, box: tuple[Floats, Floats], free: NDArray[np.intp], rows: Affine) -> None:
        self._network = network
        self._maps = [(each.weight.floats(), each.bias.floats()) for each in network.maps]
        self._rows, self._constants = rows.weight.floats(), rows.bias.floats()
        self._lower, self._upper = box
        self._free = free

    def at(self, offsets: Floats) -> Floats:
        """The input at these offsets from the lower corner, moved into the box."""
        point = self._lower.copy()
        point[self._free] += offsets
        return np.clip(point, self._lower, self._upper)

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

    @np.errstate(over="ignore", invalid="ignore")  # Beyond float64 it is no guide, and nothing else rests on it.
    def _slope(self, point: Floats, row: int) -> tuple[float, Floats]:
        (weight, bias), *rest = self._maps
        state, steep = weight @ point + bias, []
        for depth, (weight, bias) in enumerate(rest):
            steep.append(self._network.slope(depth, state))
            state = weight @ self._network.activated(depth, state) + bias
        value = float(self._rows[row] @ state + self._constants[row])
        slope = self._rows[row] @ self._maps[-1][0]
        for (weight, _), factor in zip(reversed(self._maps[:-1]), reversed(steep), strict=True):
            slope = (slope * factor) @ weight
        return value, slope
