"""Linear maps between flat vectors: what the affine operators of a graph are made of.

Each maps (..., inputs) to (..., outputs), knows the same map with the magnitudes of its
coefficients, and its transpose, which carries rows of coefficients of the outputs back to the
inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch.nn import functional
from torch.nn import grad as adjoint

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_ADJOINTS: dict[int, Callable[..., torch.Tensor]] = {
    1: adjoint.conv1d_input,
    2: adjoint.conv2d_input,
    3: adjoint.conv3d_input,
}


class Linear(ABC):
    """A linear map on flat vectors."""

    __slots__ = ()

    @property
    @abstractmethod
    def terms(self) -> int:
        """The most rounded operations that a coefficient, an output or a pulled row is a sum of."""

    @abstractmethod
    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        """The values of the map at x (batch, inputs): (batch, outputs)."""

    @abstractmethod
    def pull(self, rows: torch.Tensor, /) -> torch.Tensor:
        """The transpose: (batch, rows, outputs) -> (batch, rows, inputs)."""

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor], /) -> Linear:
        """The map with other coefficients in the place of those that it holds as a tensor; by
        default it holds none.
        """
        del change
        return self

    def absolute(self) -> Linear:
        """The map with the magnitudes of its coefficients."""
        return self.changed(torch.abs)

    def to(self, dtype: torch.dtype, /) -> Linear:
        """The map with coefficients of another dtype."""
        return self.changed(lambda coefficients: coefficients.to(dtype))


@dataclass(frozen=True, slots=True)
class Same(Linear):
    """The identity map, or its negative where `sign` is -1."""

    sign: int = 1
    terms: int = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.sign > 0 else -x

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        return self(rows)

    def absolute(self) -> Linear:
        return Same()


@dataclass(frozen=True, slots=True)
class Scale(Linear):
    """factor * x, elementwise; `terms` is how many units in the last place the factor itself may be
    off.

    `of` has the numbers that it was computed from, where others may round to the same factor.
    """

    factor: torch.Tensor
    terms: int = 2
    of: tuple[torch.Tensor, ...] = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        return self(rows)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Linear:
        return replace(self, factor=change(self.factor))


@dataclass(frozen=True, slots=True)
class _Weighted(Linear):
    weight: torch.Tensor

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Linear:
        return replace(self, weight=change(self.weight))


@dataclass(frozen=True, slots=True)
class Dense(_Weighted):
    """weight (outputs, inputs) applied to each of `blocks` consecutive parts of the input."""

    blocks: int = 1

    @property
    def terms(self) -> int:
        return max(self.weight.shape) + 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.blocks == 1:
            return functional.linear(x, self.weight)
        parts = x.reshape(*x.shape[:-1], self.blocks, self.weight.shape[1])
        return functional.linear(parts, self.weight).flatten(-2)

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        if self.blocks == 1:
            return rows @ self.weight
        parts = rows.reshape(*rows.shape[:-1], self.blocks, self.weight.shape[0])
        return (parts @ self.weight).flatten(-2)


@dataclass(frozen=True, slots=True)
class Select(Linear):
    """Output i is input index[i], or 0 where index[i] is -1: transposes, broadcasts, padding,
    parts of a concat.
    """

    index: torch.Tensor
    inputs: int

    @property
    def terms(self) -> int:
        return len(self.index) + 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., self.index.clamp(min=0)] * (self.index >= 0)

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        kept = self.index >= 0
        out = torch.zeros((*rows.shape[:-1], self.inputs), dtype=rows.dtype)
        return out.index_add_(-1, self.index[kept], rows[..., kept])


@dataclass(frozen=True, slots=True)
class Convolution(_Weighted):
    """A convolution without bias in one to three dimensions.

    Args:
        weight: (channels out, channels in per group, *kernel).
        shape: (samples, channels in, *spatial) of the input.
        out_shape: the same of the output.
        window: stride, padding, dilation and groups, as torch takes them.
    """

    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    window: dict[str, Any]

    @property
    def terms(self) -> int:
        # An output sums one kernel's entries, a pulled coefficient at most one entry per output
        # channel and tap.
        return max(self.weight[0].numel(), self.weight[:, 0].numel()) + 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        images = x.reshape(-1, *self.shape[1:])
        out: torch.Tensor = _CONVOLUTIONS[len(self.shape) - 2](images, self.weight, **self.window)
        return out.reshape(*x.shape[:-1], prod(self.out_shape))

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        images = rows.reshape(-1, *self.out_shape[1:])
        size = (len(images), *self.shape[1:])
        pulled = _ADJOINTS[len(self.shape) - 2](size, self.weight, images, **self.window)
        return pulled.reshape(*rows.shape[:-1], prod(self.shape))


@dataclass(frozen=True, slots=True)
class Adjoint(Linear):
    """The transpose of a map, as a transposed convolution is of a convolution."""

    of: Linear

    @property
    def terms(self) -> int:
        return self.of.terms

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.of.pull(x)

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        return self.of(rows)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Linear:
        return Adjoint(self.of.changed(change))
