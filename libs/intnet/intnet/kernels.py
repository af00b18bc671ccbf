"""Fast operations of an integer-only network: integers kept in floats where ranges prove float
arithmetic exact.

A kernel holds prepared constants; `bind` ties it to the buffers of one batch size and gives the
calls that fill them. Convolutions and pools read their input through a sliding window. Stored
tensors are (batch, *places, channels) if channels are last, else in the network's order, and hold
integer - offset. Sums are exact in any order because every partial sum is an integer below 2^24
(float32) or 2^53 (float64).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from intnet.grids import Grid, Integers, Rounding

if TYPE_CHECKING:
    from intnet.operation import Operation, Span, Sum


Padding = Sequence[tuple[int, int]]
Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Kernel, stride and dilation, one number for each dimension."""


def pad(x: Array, padding: Padding, value: int) -> Array:
    """`x` (batch, channels, *places) with `value` around its places."""
    return np.pad(x, ((0, 0), (0, 0), *padding), constant_values=value)


def windows(
    x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Array:
    """View (batch, channels, *places, *kernel) of `x` (batch, channels, *places before)."""
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    view = sliding_window_view(x, reach, axis=tuple(range(2, x.ndim)))
    places = tuple(slice(None, None, s) for s in stride)
    return view[(slice(None), slice(None), *places, *(slice(None, None, d) for d in dilation))]


@dataclass(slots=True, eq=False)
class Padded:
    """A window reader's input with its edges: `fill` is what the padded places hold."""

    name: str
    source: Slot
    zero_point: int
    padding: Padding
    fill: float = 0.0

    @property
    def takes_results(self) -> bool:
        """Whether the producer may write straight into the padded buffer."""
        return (
            self.source.last
            and self.source.offset == self.zero_point
            and any(map(any, self.padding))
        )

    def buffer(self, batch: int) -> Array:
        """(batch, *padded places, channels), the edges filled."""
        *places, channels = self._shape
        edged = [
            length + before + after
            for length, (before, after) in zip(places, self.padding, strict=True)
        ]
        return np.full((batch, *edged, channels), self.fill, np.float32)

    def interior(self, buffer: Array) -> Array:
        """The view of a buffer without its edges."""
        inner = tuple(slice(a, buffer.shape[1 + i] - b) for i, (a, b) in enumerate(self.padding))
        return buffer[(slice(None), *inner)]

    @property
    def _shape(self) -> tuple[int, ...]:
        shape = self.source.shape
        return shape if self.source.last else (*shape[1:], shape[0])

    def bind(self, source: Array, room: Room) -> Bound:
        """The padded input and the copy that it may need."""
        buffer = room.padded.get(self.name)
        # The operation before has written into the inside of the buffer: nothing is left to copy.
        if buffer is not None and np.may_share_memory(source, buffer):
            return buffer, []
        stored = source if self.source.last else np.moveaxis(source, 1, -1)
        shift = self.source.offset - self.zero_point
        if not any(map(any, self.padding)) and not shift:
            return stored, []
        buffer = self.buffer(room.batch)
        inner = self.interior(buffer)
        return buffer, [partial(np.add, stored, np.float32(shift), inner, casting="unsafe")]


def _view(padded: Array, window: Window) -> Array:
    """View (batch, *places, *kernel, channels) of `padded` (batch, *places before, channels)."""
    return np.moveaxis(windows(np.moveaxis(padded, -1, 1), *window), 1, -1)


def _each_place(padded: Array, window: Window) -> list[Array]:
    """Views (batch, *places, channels), one per place of the window."""
    view, rank = _view(padded, window), len(window[0])
    return [view[(slice(None),) * (1 + rank) + place] for place in product(*map(range, window[0]))]


def correlation(
    padded: Padded, weight: Array, window: Window, given: Sequence[Array], room: Room
) -> Bound:
    """Convolution as one matrix product per group over copied windows; a constant column carries
    the bias.

    `weight` is (groups, window + 1, out / groups), a window being (*kernel, channels of the group).
    """
    # All windows of the padded input as one view, of which the groups come first; nothing is
    # copied.
    x, steps = padded.bind(given[0], room)
    view, rank = _view(x, window), len(window[0])
    groups, size, made = weight.shape
    shape = view.shape[: 1 + rank]
    rows = int(np.prod(shape))
    view = view.reshape(*view.shape[:-1], groups, -1) if groups > 1 else view[..., None, :]
    by_group = np.moveaxis(view, -2, 0)
    # The copy runs along the innermost dimension: the window's row, or the output's row where that
    # is longer.
    if view.shape[-1] * window[0][-1] >= view.shape[rank]:
        columns = np.ones((groups, rows, size), weight.dtype)
        copy = partial(
            np.copyto, _split(columns[..., :-1], (groups, *by_group.shape[1:])), by_group
        )
    else:
        block = np.ones((groups, size, rows), weight.dtype)
        dims = range(1, by_group.ndim)
        turned = by_group.transpose(0, *dims[1 + rank :], *dims[: 1 + rank])
        columns, copy = (
            block.transpose(0, 2, 1),
            partial(np.copyto, _split(block[:, :-1], turned.shape), turned),
        )
    # The result is a view, and the steps fill it: each run uses the same memory.
    out = np.empty((rows, groups, made), weight.dtype)
    product_of = (
        (columns[0], weight[0], out[:, 0])
        if groups == 1
        else (columns, weight, out.transpose(1, 0, 2))
    )
    return out.reshape(*shape, groups * made), [*steps, copy, partial(np.matmul, *product_of)]


def _split(block: Array, shape: tuple[int, ...]) -> Array:
    """A view of `block` in another shape. Raises ValueError where the reshape would have to
    copy.
    """
    view = block.reshape(shape)
    if not np.may_share_memory(view, block):
        raise ValueError(f"a block of shape {block.shape} has no view of shape {shape}")
    return view


def depthwise(
    padded: Padded, weight: Array, bias: Array, window: Window, given: Sequence[Array], room: Room
) -> Bound:
    """Convolution with one weight per channel and window place: `weight` (window, channels),
    `bias` (channels,).
    """
    x, steps = padded.bind(given[0], room)
    views = _each_place(x, window)
    length = views[0].shape[-2]
    # Weights repeated along a row of places let numpy multiply whole rows at once.
    weights = [np.ascontiguousarray(np.broadcast_to(each, (length, len(each)))) for each in weight]
    out = np.empty(views[0].shape, weight.dtype)
    term = np.empty_like(out)
    steps.append(partial(np.multiply, views[0], weights[0], out))
    for view, factor in zip(views[1:], weights[1:], strict=True):
        steps += [partial(np.multiply, view, factor, term), partial(np.add, out, term, out)]
    return out, [*steps, partial(np.add, out, bias, out)]


def pool(
    padded: Padded, join: np.ufunc, kind: Any, window: Window, given: Sequence[Array], room: Room
) -> Bound:
    """The sum (`join` np.add) or the greatest (np.maximum) of each window, in the type `kind`."""
    x, steps = padded.bind(given[0], room)
    views = _each_place(x, window)
    out = np.empty(views[0].shape, kind) if join is np.add else room.place(views[0].shape[1:])
    steps.append(partial(np.copyto, out, views[0]))
    return out, [*steps, *(partial(join, out, view, out=out) for view in views[1:])]


# ruff: noqa: ARG001 - all kernels are bound alike


Array = npt.NDArray[Any]
Step = Callable[[], Any]
Bound = tuple[Array, list[Step]]
"""A stored result, and the calls that compute it, in order."""

SINGLE_LIMIT = 2**24
"""Integers up to this are exact in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """How a tensor is stored: shape of one sample, whether its channels are last, and what is
    subtracted from it.

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
    """The buffers of one batch size: `destination` is where a kernel's reader wants its result,
    if it cares.
    """

    batch: int
    destination: Array | None = None
    padded: dict[str, Array] = field(default_factory=dict)

    def place(self, shape: tuple[int, ...]) -> Array:
        """Where the kernel that is being bound puts its result: float32 (batch, *shape)."""
        if self.destination is not None and self.destination.shape == (self.batch, *shape):
            return self.destination
        return np.empty((self.batch, *shape), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One operation with its constants prepared.

    Args:
        slot: how its result is stored.
        bind: gives, of the stored inputs and a room, the result and the calls that fill it.
        padded: the input with its edges, of what reads through a window.
        window: how many numbers it copies for each place.
    """

    slot: Slot
    bind: Callable[[Sequence[Array], Room], Bound]
    padded: Padded | None = None
    window: int = 0


class Preparation:
    """How tensors are stored so that their readers are fast; `slots` grows as operations are
    prepared in order.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        spans: Mapping[str, Span],
        sums: Mapping[str, Sum],
        rounding: Rounding,
    ) -> None:
        self.spans, self.rounding = spans, rounding
        self._sums = sums
        self.slots: dict[str, Slot] = {}
        self._readers: dict[str, list[Operation]] = {}
        for operation in operations:
            for name in operation.inputs:
                self._readers.setdefault(name, []).append(operation)

    def read_by(self, name: str, trait: str, some: Callable[[list[bool]], bool] = all) -> bool:
        """Whether all that read a tensor have a trait, or others than all; not where nothing
        reads it.
        """
        readers = self._readers.get(name, [])
        return bool(readers) and some([getattr(reader, trait) for reader in readers])

    def slot(self, name: str, last: bool, offset: int) -> Slot:
        """A new tensor's, with its channels last if it has some and it is asked for."""
        shape = self.spans[name].lower.shape
        last = last and len(shape) > 1
        return Slot((*shape[1:], shape[0]) if last else shape, last, offset)

    def offset(self, name: str, grid: Grid) -> int:
        """Readers multiply integer - zero point, tables index integer - low: what all readers
        want is stored.
        """
        return grid.low if self.read_by(name, "looks_up") else grid.zero_point

    def kind(self, name: str) -> Any:
        """The type in which an operation's sums are exact."""
        found = self._sums[name]
        return np.float32 if max(-found.least, found.greatest) < SINGLE_LIMIT else np.float64


def contiguous(source: Array, shape: tuple[int, ...], kind: npt.DTypeLike) -> Bound:
    """`source` as one block of memory of a shape and type, and the copy that this may need."""
    if source.dtype == kind and source.flags.c_contiguous:
        return source.reshape(shape), []
    block = np.empty(source.shape, kind)
    return block.reshape(shape), [partial(np.copyto, block, source)]


def dense(source: Slot, weight: Array, bias: Array, given: Sequence[Array], room: Room) -> Bound:
    """A linear layer: `weight` (in, out) and `bias` (out,) in the type in which sums are exact."""
    features, made = weight.shape
    x = source.natural(given[0])
    rows, steps = contiguous(x, (-1, features), weight.dtype)
    out = np.empty((len(rows), made), weight.dtype)
    steps += [partial(np.matmul, rows, weight, out), partial(np.add, out, bias, out)]
    return out.reshape(*x.shape[:-1], made), steps


def floor(least: int, given: Sequence[Array], room: Room) -> Bound:
    """The elementwise maximum of a stored tensor and `least`: a ReLU that is not fused into
    another operation.
    """
    out = np.empty_like(given[0])
    return out, [partial(np.maximum, given[0], given[0].dtype.type(least), out=out)]


def flattening(source: Slot, keep: bool, given: Sequence[Array], room: Room) -> Bound:
    """(batch, ...) to (batch, features), in the order `keep`: stored or the network's."""
    x = given[0] if keep else source.natural(given[0])
    return contiguous(x, (len(x), -1), x.dtype)


def lookup(table: Array, start: int, given: Sequence[Array], room: Room) -> Bound:
    """table[x]: `table` float32, indexed by the stored integer + `start`."""
    x = given[0]
    index = np.empty(x.shape, np.intp)
    out = room.place(x.shape[1:])
    steps: list[Step] = [partial(np.copyto, index, x, casting="unsafe")]
    if start:
        steps.append(partial(np.add, index, start, index))
    if out.flags.c_contiguous:
        return out, [*steps, partial(np.take, table, index, out=out, mode="clip")]
    block = np.empty(out.shape, np.float32)
    steps += [
        partial(np.take, table, index, out=block, mode="clip"),
        partial(np.copyto, out, block),
    ]
    return out, steps


def checked(
    operation: Operation,
    sources: Sequence[Slot],
    rounding: Rounding,
    made: Slot,
    given: Sequence[Array],
    room: Room,
) -> Bound:
    """Any operation by its definition: where no faster way is proven exact."""
    out = np.empty((room.batch, *made.shape), np.float64)

    def run() -> None:
        integers = [slot.integers(x) for slot, x in zip(sources, given, strict=True)]
        np.subtract(operation.apply(integers, rounding), made.offset, made.natural(out))

    return out, [run]
