"""The operations that move, repeat or leave out entries, and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional

from opgraph.operations import Operation, Tensor
from opgraph.sizes import Shape, at


@dataclass(frozen=True)
class Moving(Operation):
    """An operation that moves, repeats or leaves out entries of its operands, and does no
    arithmetic with them.
    """

    moves: ClassVar[bool] = True


@dataclass(frozen=True)
class Reshape(Moving):
    """A reshape: it gives the same entries in the same order, in another shape, which may name the
    batch (see `sizes`).
    """

    shape: Shape

    def __call__(self, *operands: Tensor) -> Tensor:
        """See `Operation`. The batch is what the number of entries leaves."""
        known = [extent for extent in self.shape if extent >= 0]
        times = [-extent for extent in self.shape if extent < 0]
        if not times:
            return operands[0].reshape(self.shape)
        batch = operands[0].numel()
        for number in (*known, *times):
            batch //= max(number, 1)
        return operands[0].reshape(at(self.shape, batch))


@dataclass(frozen=True)
class Transpose(Moving):
    """Axis i of the result is axis order[i] of the operand."""

    order: tuple[int, ...]

    def __call__(self, *operands: Tensor) -> Tensor:
        return operands[0].permute(self.order)


@dataclass(frozen=True)
class Expand(Moving):
    """Repeated to `shape`, as torch broadcasts. The second operand, if any, tells the batch by
    its first axis.
    """

    shape: Shape

    def __call__(self, *operands: Tensor) -> Tensor:
        if all(extent >= 0 for extent in self.shape):
            return operands[0].expand(self.shape)
        # a symbol, as it is exported
        return operands[0].expand(at(self.shape, operands[-1].shape[0]))


@dataclass(frozen=True)
class Positions(Moving):
    """0, 1, ... along a batch: int64, as many as the operand's first axis."""

    times: int = 1

    def __call__(self, *operands: Tensor) -> Tensor:
        return torch.arange(self.times * operands[0].shape[0], device=operands[0].device)


@dataclass(frozen=True)
class Slice(Moving):
    """Every step-th entry of an axis from start to before stop; no stop is the end."""

    axis: int
    start: int
    stop: int | None
    step: int = 1

    def __call__(self, *operands: Tensor) -> Tensor:
        return operands[0][(slice(None),) * self.axis + (slice(self.start, self.stop, self.step),)]


@dataclass(frozen=True)
class Concat(Moving):
    """The operands one behind the other along an axis."""

    axis: int

    def __call__(self, *operands: Tensor) -> Tensor:
        return torch.cat(operands, self.axis)


@dataclass(frozen=True)
class Pad(Moving):
    """`value` before and behind each axis: widths[i] = (before, behind), all >= 0."""

    widths: tuple[tuple[int, int], ...]
    value: float = 0.0

    def __call__(self, *operands: Tensor) -> Tensor:
        flat = [width for pair in reversed(self.widths) for width in pair]
        return functional.pad(operands[0], flat, value=self.value)


@dataclass(frozen=True)
class Edges(Moving):
    """The first and the last entry of each axis repeated: widths[i] = (before, behind), all >=
    0.
    """

    widths: tuple[tuple[int, int], ...]

    def __call__(self, *operands: Tensor) -> Tensor:
        tensor = operands[0]
        for axis, (before, behind) in enumerate(self.widths):
            if before or behind:
                size, outer = tensor.shape[axis], (slice(None),) * axis
                first, last = tensor[(*outer, slice(0, 1))], tensor[(*outer, slice(size - 1, size))]
                tensor = torch.cat([first] * before + [tensor] + [last] * behind, axis)
        return tensor


@dataclass(frozen=True)
class Gather(Moving):
    """Entries of the first operand: axes[i] is indexed by operand i + 1, int64 tensors that are
    broadcast together.

    As torch's advanced indexing: an embedding is the gathering of rows of a constant; indices may
    be negative.
    """

    axes: tuple[int, ...]

    def __call__(self, *operands: Tensor) -> Tensor:
        index: list[slice | Tensor] = [slice(None)] * operands[0].ndim
        for axis, operand in zip(self.axes, operands[1:], strict=True):
            index[axis] = operand
        return operands[0][tuple(index)]


@dataclass(frozen=True)
class GatherAlong(Moving):
    """As torch.gather: the second operand indexes the first along one axis, at its own place in
    all others.
    """

    axis: int

    def __call__(self, *operands: Tensor) -> Tensor:
        return operands[0].gather(self.axis, operands[1])
