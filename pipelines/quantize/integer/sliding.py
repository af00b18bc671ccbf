"""Fast convolutions and pools: kernels that read their input through a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from pipelines.quantize.integer.kernels import Array, Kernel, Room, Slot, Step
from pipelines.quantize.integer.oracle import Padding, windows


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

    def bind(self, source: Array, room: Room) -> tuple[Array, list[Step]]:
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


def window_view(padded: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Array:
    """View (batch, *places, *kernel, channels) of `padded` (batch, *places before, channels)."""
    view = windows(np.moveaxis(padded, -1, 1), kernel, stride, dilation)
    return np.moveaxis(view, 1, -1)


def each_window_place(
    padded: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[Array]:
    """Views (batch, *places, channels), one per place of the window."""
    view = window_view(padded, kernel, stride, dilation)
    rank = len(kernel)
    return [view[(slice(None),) * (1 + rank) + place] for place in product(*map(range, kernel))]


@dataclass(slots=True, eq=False)
class Correlation(Kernel):
    """Convolution as one matrix product per group over copied windows; a constant column carries the bias.

    `weight` is (groups, window + 1, out / groups), a window being (*kernel, channels of the group).
    """

    name: str
    padded: Padded
    weight: Array
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def bind(self, sources: Sequence[Array], room: Room) -> tuple[Array, list[Step]]:
        padded, steps = self.padded.bind(sources[0], room)
        view = window_view(padded, self.kernel, self.stride, self.dilation)
        groups, size, made = self.weight.shape
        shape = view.shape[: 1 + len(self.kernel)]
        rows = int(np.prod(shape))
        view = view.reshape(*view.shape[:-1], groups, -1) if groups > 1 else view[..., None, :]
        columns, copy = self._columns(view, rows, size, groups)
        out = np.empty((rows, groups, made), self.weight.dtype)
        if groups == 1:
            steps += [copy, partial(np.matmul, columns[0], self.weight[0], out[:, 0])]
        else:
            steps += [copy, partial(np.matmul, columns, self.weight, out.transpose(1, 0, 2))]
        return out.reshape(*shape, groups * made), steps

    def _columns(self, view: Array, rows: int, size: int, groups: int) -> tuple[Array, Step]:
        """Windows (groups, rows, window + 1) and the call that fills them from the view of all windows."""
        rank = len(self.kernel)
        by_group = np.moveaxis(view, -2, 0)
        # The copy runs along the innermost dimension: the window's row, or the output's row where that is longer.
        if view.shape[-1] * self.kernel[-1] >= view.shape[rank]:
            block = np.ones((groups, rows, size), self.weight.dtype)
            target = _split(block[..., :-1], (groups, *by_group.shape[1:]))
            return block, partial(np.copyto, target, by_group)
        block = np.ones((groups, size, rows), self.weight.dtype)
        dims = range(1, by_group.ndim)
        turned = by_group.transpose(0, *dims[1 + rank :], *dims[: 1 + rank])
        target = _split(block[:, :-1], turned.shape)
        return block.transpose(0, 2, 1), partial(np.copyto, target, turned)


def _split(block: Array, shape: tuple[int, ...]) -> Array:
    """A view of `block` in another shape. Raises ValueError where the reshape would have to copy."""
    view = block.reshape(shape)
    if not np.may_share_memory(view, block):
        raise ValueError(f"a block of shape {block.shape} has no view of shape {shape}")
    return view


@dataclass(slots=True, eq=False)
class Depthwise(Kernel):
    """Convolution with one weight per channel and window place: `weight` (window, channels), `bias` (channels,)."""

    name: str
    padded: Padded
    weight: Array
    bias: Array
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def bind(self, sources: Sequence[Array], room: Room) -> tuple[Array, list[Step]]:
        padded, steps = self.padded.bind(sources[0], room)
        views = each_window_place(padded, self.kernel, self.stride, self.dilation)
        length = views[0].shape[-2]
        # Weights repeated along a row of places let numpy multiply whole rows at once.
        weights = [np.ascontiguousarray(np.broadcast_to(each, (length, len(each)))) for each in self.weight]
        out = np.empty(views[0].shape, self.weight.dtype)
        term = np.empty_like(out)
        steps.append(partial(np.multiply, views[0], weights[0], out))
        for view, weight in zip(views[1:], weights[1:], strict=True):
            steps += [partial(np.multiply, view, weight, term), partial(np.add, out, term, out)]
        return out, [*steps, partial(np.add, out, self.bias, out)]


@dataclass(slots=True, eq=False)
class Pool(Kernel):
    """The sum (`join` np.add) or the greatest (np.maximum) of each window, in the type `kind`."""

    name: str
    padded: Padded
    join: np.ufunc
    kind: type[np.floating[Any]]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def bind(self, sources: Sequence[Array], room: Room) -> tuple[Array, list[Step]]:
        padded, steps = self.padded.bind(sources[0], room)
        views = each_window_place(padded, self.kernel, self.stride, self.dilation)
        out = np.empty(views[0].shape, self.kind) if self.join is np.add else room.place(views[0].shape[1:])
        steps.append(partial(np.copyto, out, views[0]))
        return out, [*steps, *(partial(self.join, out, view, out=out) for view in views[1:])]
