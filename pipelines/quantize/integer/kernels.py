"""Fast operations of an integer-only network: integers kept in floats where `ranges` proves float arithmetic exact.

A kernel holds prepared constants; `bind` ties it to the buffers of one batch size and gives the calls that fill them.
Stored tensors are (batch, *places, channels) if channels are last, else in the network's order, and hold integer -
offset. Sums are exact in any order because every partial sum is an integer below 2^24 (float32) or 2^53 (float64).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.quantize.integer.network import Integers, Operation, Rounding
from pipelines.quantize.integer.oracle import apply

Array = npt.NDArray[Any]
Step = Callable[[], Any]

SINGLE_LIMIT = 2**24
"""Integers up to this are exact in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """How a tensor is stored: shape of one sample, whether its channels are last, and what is subtracted from it.

    `order` gives the network's index of every stored feature, where they differ.
    """

    shape: tuple[int, ...]
    last: bool
    offset: int
    order: Integers | None = None

    def natural(self, stored: Array) -> Array:
        """View of a stored tensor, dimensions in the network's order."""
        return np.moveaxis(stored, -1, 1) if self.last else stored

    def integers(self, stored: Array) -> Integers:
        """The tensor's integers, int64, dimensions in the network's order."""
        return self.natural(stored).astype(np.int64) + self.offset


@dataclass(slots=True, eq=False)
class Room:
    """The buffers of one batch size: `destination` is where a kernel's reader wants its result, if it cares."""

    batch: int
    destination: Array | None = None
    padded: dict[str, Array] = field(default_factory=dict)

    def place(self, shape: tuple[int, ...]) -> Array:
        """Where the kernel that is being bound puts its result: float32 (batch, *shape)."""
        if self.destination is not None and self.destination.shape == (self.batch, *shape):
            return self.destination
        return np.empty((self.batch, *shape), np.float32)


class Kernel(ABC):
    """One operation with its constants prepared, which `bind` ties to the buffers of one batch size."""

    name: str

    @abstractmethod
    def bind(self, sources: Sequence[Array], room: Room) -> tuple[Array, list[Step]]:
        """The stored result, and the calls that compute it from `sources`, in order."""


def contiguous(source: Array, shape: tuple[int, ...], kind: npt.DTypeLike) -> tuple[Array, list[Step]]:
    """`source` as one block of memory of a shape and type, and the copy that this may need."""
    if source.dtype == kind and source.flags.c_contiguous:
        return source.reshape(shape), []
    block = np.empty(source.shape, kind)
    return block.reshape(shape), [partial(np.copyto, block, source)]


@dataclass(slots=True, eq=False)
class Dense(Kernel):
    """Linear: `weight` (in, out) and `bias` (out,) in the type in which sums are exact."""

    name: str
    source: Slot
    weight: Array
    bias: Array

    def bind(self, sources: Sequence[Array], room: Room) -> tuple[Array, list[Step]]:
        features, made = self.weight.shape
        x = self.source.natural(sources[0])
        rows, steps = contiguous(x, (-1, features), self.weight.dtype)
        out = np.empty((len(rows), made), self.weight.dtype)
        steps += [partial(np.matmul, rows, self.weight, out), partial(np.add, out, self.bias, out)]
        return out.reshape(*x.shape[:-1], made), steps


@dataclass(slots=True, eq=False)
class Floor(Kernel):
    """The elementwise maximum of a stored tensor and `floor`: a ReLU that is not fused into another operation."""

    name: str
    source: Slot
    floor: int

    def bind(self, sources: Sequence[Array], room: Room) -> tuple[Array, list[Step]]:
        out = np.empty_like(sources[0])
        return out, [partial(np.maximum, sources[0], sources[0].dtype.type(self.floor), out=out)]


@dataclass(slots=True, eq=False)
class Flattening(Kernel):
    """(batch, ...) to (batch, features), in the order `keep`: stored or the network's."""

    name: str
    source: Slot
    keep: bool

    def bind(self, sources: Sequence[Array], room: Room) -> tuple[Array, list[Step]]:
        x = sources[0] if self.keep else self.source.natural(sources[0])
        return contiguous(x, (len(x), -1), x.dtype)


@dataclass(slots=True, eq=False)
class Lookup(Kernel):
    """table[x]: `table` float32, indexed by the stored integer + `start`."""

    name: str
    table: Array
    start: int

    def bind(self, sources: Sequence[Array], room: Room) -> tuple[Array, list[Step]]:
        x = sources[0]
        index = np.empty(x.shape, np.intp)
        out = room.place(x.shape[1:])
        steps: list[Step] = [partial(np.copyto, index, x, casting="unsafe")]
        if self.start:
            steps.append(partial(np.add, index, self.start, index))
        if out.flags.c_contiguous:
            return out, [*steps, partial(np.take, self.table, index, out=out, mode="clip")]
        block = np.empty(out.shape, np.float32)
        steps += [partial(np.take, self.table, index, out=block, mode="clip"), partial(np.copyto, out, block)]
        return out, steps


@dataclass(slots=True, eq=False)
class Checked(Kernel):
    """Any operation as the oracle computes it: where no faster way is proven exact."""

    name: str
    operation: Operation
    sources: tuple[Slot, ...]
    rounding: Rounding
    made: Slot

    def bind(self, sources: Sequence[Array], room: Room) -> tuple[Array, list[Step]]:
        out = np.empty((room.batch, *self.made.shape), np.float64)

        def run() -> None:
            integers = [slot.integers(x) for slot, x in zip(self.sources, sources, strict=True)]
            np.subtract(apply(self.operation, integers, self.rounding), self.made.offset, self.made.natural(out))

        return out, [run]
