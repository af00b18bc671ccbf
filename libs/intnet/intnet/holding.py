"""Describe what the values of a float part hold on integers, and their way onto a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from intnet.grids import Dyadic, Grid, OnGrid
from intnet.operation import Operation
from intnet.pointwise import Add, Affine, Requantize
from intnet.transformer import (
    OCTAVE,
    QUOTIENT_BITS,
    Divide,
    Exponential,
    powers,
)

Real = npt.NDArray[np.float64]
FINE, COARSE = 16, 8
"""Bits of what is summed, normalised and multiplied element by element; of products of matrices."""
_MULTIPLIER_BITS, _TOTAL_BITS = 30, 61


@dataclass(frozen=True, slots=True)
class Raw:
    """32-bit integers whose real value is scale x integer, within `ends`; none is beyond
    `greatest`.
    """

    name: str
    scale: float
    ends: tuple[float, float]
    greatest: float


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """Not yet computed: source x factor + offset, arrays that broadcast to one sample.

    An offset of minus infinity is a mask: only a softmax can follow.
    """

    source: OnGrid | Raw
    factor: Real
    offset: Real


@dataclass(frozen=True, slots=True)
class Added:
    """Not yet computed: the terms, each times its sign, added up."""

    terms: tuple[Held, ...]
    signs: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """Integers that are moved, not yet in one block.

    `numbers` are of two samples, in the layout that the moves make: from 1 on, where each number
    comes from among the sources of the first sample and then of the second; 0 where `constants`, of
    the same shape, stand instead.
    """

    sources: tuple[OnGrid | Raw, ...]
    numbers: torch.Tensor
    constants: torch.Tensor
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Not yet computed: the softmax of source x factor over the last dimension, where `keep`
    lets it count.
    """

    source: OnGrid | Raw
    factor: float
    keep: npt.NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class Fixed:
    """Holds what does not depend on the input."""

    value: torch.Tensor


Held = OnGrid | Raw | Scaled | Added | Moved | Shares | Fixed


class Holding:
    """Operations under construction, each under the name of the part and a number.

    `inserted` names the tensors on grids that the float part does not have, `normed` those that a
    norm made.
    """

    def __init__(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._name, self._shapes = name, dict(shapes)
        self.operations: list[Operation] = []
        self.inserted: list[str] = []
        self.normed: set[str] = set()
        self.made: dict[tuple[int, Grid | None], tuple[Held, OnGrid | Raw | Scaled]] = {}

    def add(self, make: Any, *inputs: str, **more: Any) -> str:
        """Append an operation under a free name."""
        name = f"{self._name}.{len(self.operations)}"
        if self.normed.intersection(inputs):
            self.normed.add(name)
        operation = make(name, tuple(inputs), **more)
        self._shapes[name] = operation.shape([self._shapes[source] for source in inputs])
        self.operations.append(operation)
        return name

    def shape(self, held: Held) -> tuple[int, ...]:
        """The shape of what is held of one sample. Raises ValueError for a constant."""
        match held:
            case OnGrid() | Raw():
                return self._shapes[held.name]
            case Scaled():
                return np.broadcast_shapes(
                    self.shape(held.source), held.factor.shape, held.offset.shape
                )
            case Added():
                return np.broadcast_shapes(*(self.shape(term) for term in held.terms))
            case Moved():
                return tuple(held.numbers.shape[1:])
            case Shares():
                return self.shape(held.source)
        raise ValueError("needs numbers where there is a constant")

    def widened(self, held: Held, shape: tuple[int, ...]) -> Held:
        """In a shape that it broadcasts to.

        Raises:
            ValueError: it does not, or the shape depends on the batch beyond its first dimension.
        """
        if isinstance(held, Fixed | Moved) or self.shape(held) == shape:
            return held
        if min(shape, default=0) < 0 or np.broadcast_shapes(self.shape(held), shape) != shape:
            raise ValueError(f"gives {self.shape(held)} of a sample where {shape} is expected")
        if isinstance(held, Scaled):
            return replace(held, offset=held.offset + np.zeros(shape))
        source = held if isinstance(held, OnGrid | Raw) else self.fine(held)
        return Scaled(source, np.ones(()), np.zeros(shape))

    def weights(self, held: Shares, bits: int) -> OnGrid:
        """The shares before their division, `bits` wide, in no scale of their own."""
        octaves = Dyadic.nearest(held.factor * held.source.scale * math.log2(math.e) * OCTAVE)
        grid = Grid(1.0, 0, 0, 2**bits - 1)
        name = self.add(
            Exponential,
            held.source.name,
            factor=octaves,
            table=powers(grid.high),
            output=grid,
            keep=held.keep,
        )
        self.inserted.append(name)
        return OnGrid(name, grid)

    def reach(self, held: Held) -> tuple[float, float]:
        """The least and the greatest real value that the value may have. Raises ValueError where it
        is a mask or a constant, which have no such ends.
        """
        match held:
            case OnGrid(_, grid):
                return grid.ends
            case Raw():
                return held.ends
            case Scaled() if not np.isfinite(held.offset).all():
                raise ValueError("needs numbers where there is a mask")
            case Scaled():
                ends = [held.factor * end + held.offset for end in self.reach(held.source)]
                return float(np.minimum(*ends).min()), float(np.maximum(*ends).max())
            case Added():
                pairs = [
                    self.reach(term)
                    if sign > 0
                    else tuple(-end for end in reversed(self.reach(term)))
                    for term, sign in zip(held.terms, held.signs, strict=True)
                ]
                return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
            case Shares():
                return 0.0, 1.0
        raise ValueError("needs numbers where there is a mask or a constant")

    def grid(self, held: Held, bits: int) -> OnGrid:
        """The value on a grid of at most `bits` bits; itself, where it is on such a grid
        already.
        """
        if isinstance(held, OnGrid) and held.grid.high - held.grid.low < 2**bits:
            return held
        return self.onto(held, Grid.over(*self.reach(held), bits))

    def fine(self, held: Held) -> OnGrid:
        """The value on a grid of at most 16 bits."""
        return self.grid(held, FINE)

    def onto(self, held: Held, grid: Grid) -> OnGrid:
        """Computed on an inserted grid, once for all that read it."""
        if (id(held), grid) not in self.made:
            name = self._computed(held, grid)
            self.inserted.append(name)
            self.made[id(held), grid] = held, OnGrid(name, grid)
        on_grid = self.made[id(held), grid][1]
        assert isinstance(on_grid, OnGrid)
        return on_grid

    def end(self, held: Held, grid: Grid) -> None:
        """Computed on the part's output, under its name."""
        self._computed(held, grid)
        self.operations.append(replace(self.operations.pop(), name=self._name))

    def _computed(self, held: Held, grid: Grid) -> str:
        match held:
            case OnGrid() | Raw():
                return self._rescaled(
                    held.name, _zero_point(held), Dyadic.nearest(held.scale / grid.scale), grid
                )
            case Scaled():
                return self._affine(held, grid)
            case Added():
                return self._added(held, grid)
            case Shares():
                weights = self.weights(held, FINE)
                divided = self.add(Divide, weights.name, weights.name, weights=weights.grid)
                return self._rescaled(
                    divided, 0, Dyadic.nearest(1 / 2**QUOTIENT_BITS / grid.scale), grid
                )
        raise ValueError("gives the same for all inputs")

    def _rescaled(self, name: str, zero_point: int, factor: Dyadic, grid: Grid) -> str:
        return self.add(
            Requantize, name, zero_point=zero_point, factor=factor, axis=-1, output=grid
        )

    def _affine(self, held: Scaled, grid: Grid) -> str:
        source = held.source
        factor, offset = held.factor * source.scale / grid.scale, held.offset / grid.scale
        if not (np.isfinite(factor).all() and np.isfinite(offset).all()):
            raise ValueError("scales or shifts by what is not finite")
        # The greatest shift with which multiplier and sum still fit is the most precise one.
        most = max(float(np.abs(factor).max()), 2.0**-32)
        total = source.greatest * most + float(np.abs(offset).max())
        shift = min(_MULTIPLIER_BITS - math.frexp(most)[1], _TOTAL_BITS - math.frexp(total)[1], 62)
        if shift < 0:
            raise ValueError(f"scales by {most:.3g} steps of the grid behind it: beyond 64 bits")
        multiplier, shifted = (
            np.rint(np.ldexp(part, shift)).astype(np.int64) for part in (factor, offset)
        )
        constants = {
            "zero_point": _zero_point(source),
            "multiplier": multiplier,
            "offset": shifted,
            "shift": shift,
        }
        return self.add(Affine, source.name, **constants, output=grid)

    def _added(self, held: Added, grid: Grid) -> str:
        terms = [self.fine(term) for term in held.terms]
        return self.add(
            Add.of,
            *(term.name for term in terms),
            grids=[term.grid for term in terms],
            signs=held.signs,
            output=grid,
        )


def _zero_point(source: OnGrid | Raw) -> int:
    return source.grid.zero_point if isinstance(source, OnGrid) else 0


def needed(operations: list[Operation]) -> list[Operation]:
    """Return the operations that the last one depends on, and itself, in their order."""
    wanted, kept = {operations[-1].name}, []
    for operation in reversed(operations):
        if operation.name in wanted:
            wanted.update(operation.inputs)
            kept.append(operation)
    return kept[::-1]


def product_of(name: str, first: Grid, second: Grid, terms: int) -> Raw:
    """The sum of `terms` products, each of a value on either grid, as 32-bit integers with their
    range.
    """
    corners = terms * np.outer(first.ends, second.ends)
    greatest = terms * (first.high - first.low) * (second.high - second.low)
    return Raw(
        name, first.scale * second.scale, (float(corners.min()), float(corners.max())), greatest
    )
