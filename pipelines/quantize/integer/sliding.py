"""Fast convolutions and pools: kernels that read their input through a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pipelines.quantize.integer.kernels import Array, Bound, Room, Slot

Padding = Sequence[tuple[int, int]]
Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Kernel, stride and dilation, one number for each dimension."""


def pad(x: Array, padding: Padding, value: int) -> Array:
    """`x` (batch, channels, *places) with `value` around its places."""
    return np.pad(x, ((0, 0), (0, 0), *padding), constant_values=value)


def windows(x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Array:
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
        return self.source.last and self.source.offset == self.zero_point and any(map(any, self.padding))

    def buffer(self, batch: int) -> Array:
        """(batch, *padded places, channels), the edges filled."""
        *places, channels = self._shape
        edged = [length + before + after for length, (before, after) in zip(places, self.padding, strict=True)]
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


def correlation(padded: Padded, weight: Array, window: Window, given: Sequence[Array], room: Room) -> Bound:
    """Convolution as one matrix product per group over copied windows; a constant column carries the bias.

    `weight` is (groups, window + 1, out / groups), a window being (*kernel, channels of the group).
    """
    x, steps = padded.bind(given[0], room)
    view, rank = _view(x, window), len(window[0])
    groups, size, made = weight.shape
    shape = view.shape[: 1 + rank]
    rows = int(np.prod(shape))
    view = view.reshape(*view.shape[:-1], groups, -1) if groups > 1 else view[..., None, :]
    by_group = np.moveaxis(view, -2, 0)
    # The copy runs along the innermost dimension: the window's row, or the output's row where that is longer.
    if view.shape[-1] * window[0][-1] >= view.shape[rank]:
        columns = np.ones((groups, rows, size), weight.dtype)
        copy = partial(np.copyto, _split(columns[..., :-1], (groups, *by_group.shape[1:])), by_group)
    else:
        block = np.ones((groups, size, rows), weight.dtype)
        dims = range(1, by_group.ndim)
        turned = by_group.transpose(0, *dims[1 + rank :], *dims[: 1 + rank])
        columns, copy = block.transpose(0, 2, 1), partial(np.copyto, _split(block[:, :-1], turned.shape), turned)
    out = np.empty((rows, groups, made), weight.dtype)
    product_of = (columns[0], weight[0], out[:, 0]) if groups == 1 else (columns, weight, out.transpose(1, 0, 2))
    return out.reshape(*shape, groups * made), [*steps, copy, partial(np.matmul, *product_of)]


def _split(block: Array, shape: tuple[int, ...]) -> Array:
    """A view of `block` in another shape. Raises ValueError where the reshape would have to copy."""
    view = block.reshape(shape)
    if not np.may_share_memory(view, block):
        raise ValueError(f"a block of shape {block.shape} has no view of shape {shape}")
    return view


def depthwise(padded: Padded, weight: Array, bias: Array, window: Window, given: Sequence[Array], room: Room) -> Bound:
    """Convolution with one weight per channel and window place: `weight` (window, channels), `bias` (channels,)."""
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


def pool(padded: Padded, join: np.ufunc, kind: Any, window: Window, given: Sequence[Array], room: Room) -> Bound:
    """The sum (`join` np.add) or the greatest (np.maximum) of each window, in the type `kind`."""
    x, steps = padded.bind(given[0], room)
    views = _each_place(x, window)
    out = np.empty(views[0].shape, kind) if join is np.add else room.place(views[0].shape[1:])
    steps.append(partial(np.copyto, out, views[0]))
    return out, [*steps, *(partial(join, out, view, out=out) for view in views[1:])]
