"""An integer network: integer affine layers, and after each a function of one integer per neuron."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipelines.smt.integer.steps import Integers, Runs

# Between the keys of two neurons, whose accumulators fit into 32 bits.
_APART = 2**33


@dataclass(frozen=True, eq=False)
class Layer:
    """x -> f(weight x + bias): `weight` (neurons, inputs), `bias` (neurons,), int64, f a function for each neuron.

    `runs` are these functions, tables of all arguments, the accumulators, that any input of the network gives; they fit
    into 32 bits.
    """

    weight: Integers
    bias: Integers
    runs: tuple[Runs, ...]

    def __call__(self, x: Integers) -> Integers:
        """The outputs, (points, neurons), of (points, inputs)."""
        keys, values = self._table
        places = np.searchsorted(keys, self.accumulate(x) + _APART * np.arange(len(self.bias)))
        return np.asarray(values[places])

    @cached_property
    def _table(self) -> tuple[Integers, Integers]:
        """Of all neurons together, the last argument of each run, raised by the neuron, and its value."""
        keys = [each.lasts + _APART * index for index, each in enumerate(self.runs)]
        return np.concatenate(keys), np.concatenate([each.values for each in self.runs])

    def accumulate(self, x: Integers) -> Integers:
        """weight x + bias of (points, inputs), exactly: all sums are below 2^31, so float64 holds them."""
        made = x.astype(np.float64) @ self.weight.T.astype(np.float64)
        return np.asarray(made.astype(np.int64) + self.bias)


@dataclass(frozen=True, slots=True)
class Grid:
    """Real numbers scale x (integer - zero_point), low <= integer <= high."""

    scale: float
    zero_point: int
    low: int
    high: int

    def integers(self, real: npt.ArrayLike) -> Integers:
        """The grid's nearest integers, in float32; a tie goes to the even integer, the zero point added before."""
        steps = np.asarray(real, dtype=np.float32) / np.float32(self.scale) + np.float32(self.zero_point)
        return np.asarray(np.clip(np.rint(steps), self.low, self.high).astype(np.int64))

    def real(self, integers: Integers) -> npt.NDArray[np.float64]:
        """The real numbers of the grid's integers."""
        return np.asarray(self.scale * (integers - self.zero_point))


@dataclass(frozen=True, slots=True, eq=False)
class IntegerNetwork:
    """Layers in order; the last one makes the logits. Inputs are the integers of the grid `input`, flattened."""

    layers: tuple[Layer, ...]
    input: Grid
    input_shape: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """How many integers one input has."""
        return int(self.layers[0].weight.shape[1])

    @property
    def classes(self) -> int:
        """The number of logits, which the last layer gives."""
        return len(self.layers[-1].bias)

    @property
    def neurons(self) -> int:
        """How many hidden neurons there are."""
        return sum(len(each.bias) for each in self.layers[:-1])

    def logits(self, points: Integers) -> Integers:
        """The logits, int64 (points, classes), of integer inputs (points, inputs)."""
        state = points
        for layer in self.layers:
            state = layer(state)
        return state

    def margins(self, points: Integers, label: int) -> Integers:
        """The label's logit minus the greatest other one, (points,)."""
        logits = self.logits(points)
        others = np.delete(logits, label, axis=1)
        return np.asarray(logits[:, label] - others.max(1))
