"""Values with intervals and rounding errors, propagated by a network's modules, and what an
evaluation of it shares.

A sum of n products, in any order, is off by at most (n + 2) u / (1 - (n + 2) u) times the sum of
their magnitudes (N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1);
errors of the inputs pass through
|W|, and through activations by their Lipschitz constants. A function without a rule is refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from evalsuite import Unsupported

_GREATEST = torch.finfo(torch.float32).max


@dataclass(slots=True)
class Run:
    """One evaluation over boxes.

    Args:
        overflow: (batch,) bool: where a float32 value, or a partial sum, can be infinite.
        known: bounds of the activations' inputs that are still to come, in the order of their
            evaluation; or None.
        norms: the same of what is divided in a LayerNorm.
    """

    overflow: torch.Tensor
    known: deque[tuple[torch.Tensor, torch.Tensor]] | None = None
    norms: deque[tuple[torch.Tensor, torch.Tensor]] | None = None

    def reached(self, magnitude: torch.Tensor) -> None:
        """Mark where a magnitude is beyond float32."""
        self.overflow = self.overflow | (~(magnitude * 1.001 < _GREATEST)).reshape(
            len(self.overflow), -1
        ).any(1)

    def narrowed(
        self, lower: torch.Tensor, upper: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The interval of an activation's input within what is known of it."""
        if self.known is None:
            return lower, upper
        low, high = self.known.popleft()
        return torch.minimum(torch.maximum(lower, low), high), torch.maximum(
            torch.minimum(upper, high), low
        )

    def normalised(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Bounds of what the next LayerNorm divides, as far as they are known."""
        return self.norms.popleft() if self.norms else None


UNIT = 2.0**-24
# What a product loses by underflow, at the most, also where subnormal numbers are flushed to zero.
TINY = 2.0**-126
_NORM_UNITS = 16
_CHOICES = ("eq", "ge", "gt", "le", "lt", "ne", "where")
_CURE = (
    ": a choice by what depends on the input, as PReLU's with a slope for each channel; with slopes"
    " a it is torch.relu(x) - a * torch.relu(-x)"
)


class Spread(torch.Tensor):
    """A layer's values over boxes, (batch, *shape) float64: the interval's center, with the rest as
    attributes.

    Args:
        radius: of the interval that holds the real values.
        error: how far the float32 values can be from them.
        run: what the whole evaluation shares.
    """

    radius: torch.Tensor
    error: torch.Tensor
    run: Run

    @staticmethod
    def of(center: torch.Tensor, radius: torch.Tensor, error: torch.Tensor, run: Run) -> Spread:
        """A tensor with this center, radius and rounding error, elementwise."""
        spread = center.as_subclass(Spread)
        spread.radius, spread.error, spread.run = radius, error, run
        return spread

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The rule of `func`; sizes are those of the center."""
        name = getattr(func, "__name__", str(func))
        with torch._C.DisableTorchFunctionSubclass():
            if func in RULES:
                return RULES[func](*args, **(kwargs or {}))
            if name in _SIZES or func in _ATTRIBUTES:
                return func(*args, **(kwargs or {}))
        cure = _CURE if name in _CHOICES else ""
        raise Unsupported(f"no bound of the rounding of {name}{cure}")

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Center, radius and rounding error, as plain tensors of one shape."""
        return self.as_subclass(torch.Tensor), self.radius, self.error

    def magnitude(self) -> torch.Tensor:
        """The greatest magnitude of the float32 values."""
        center, radius, error = self.parts()
        return center.abs() + radius + error

    def each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Spread:
        """The tensor with center, radius and error rearranged by one function."""
        center, radius, error = (function(part) for part in self.parts())
        return Spread.of(center, radius, error, self.run)


def units(count: int) -> float:
    """n u / (1 - n u): how far n roundings in a row are off, relatively, at the most."""
    return count * UNIT / (1 - count * UNIT) if count * UNIT < 0.5 else float("inf")


def is_number(value: torch.Tensor) -> bool:
    """Whether it is one number as it is written, as in `x + 0.1`, which float32 rounds once, and
    not to an extreme.
    """
    return (
        value.ndim == 0 and value.dtype == torch.float64 and bool(TINY <= value.abs() <= _GREATEST)
    )


def exact(value: torch.Tensor) -> torch.Tensor:
    """A constant that float32 holds; others would be computed with rounding of their own."""
    if not torch.equal(value, value.float().double()):
        raise Unsupported("no bound of the rounding of weights that are computed")
    return value.double().detach()


def _sums(
    spread: Spread,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    apply: Callable[[Any, Any, Any], torch.Tensor],
    count: int = 0,
) -> Spread:
    """`apply` of the spread, weight and bias sums at most `count` products, by default as many as
    the weight has in a row.
    """
    weight, bias = exact(weight.detach().double()), None if bias is None else exact(bias)
    size, count = weight.abs(), count or weight[0].numel()
    center, radius, error = spread.parts()
    reach = apply(spread.magnitude(), size, None if bias is None else bias.abs())
    moved = apply(error, size, None) + units(count + 2) * reach + (count + 2) * TINY
    spread.run.reached(reach)
    return Spread.of(apply(center, weight, bias), apply(radius, size, None), moved, spread.run)


def _linear(spread: Spread, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Spread:
    return _sums(spread, weight, bias, functional.linear)


def _convolution(
    apply: Callable[..., torch.Tensor], *, transposed: bool = False
) -> Callable[..., Spread]:
    def rule(
        spread: Spread,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *window: Any,
        **named: Any,
    ) -> Spread:
        count = len(weight) * weight[0, 0].numel() if transposed else 0
        return _sums(
            spread, weight, bias, lambda *operands: apply(*operands, *window, **named), count
        )

    return rule


def _batch_norm(
    spread: Spread,
    mean: torch.Tensor,
    variance: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    **_: Any,
) -> Spread:
    center, radius, error = spread.parts()
    shape = (1, -1, *[1] * (center.ndim - 2))
    scale = (variance + eps).rsqrt().abs() * (1 if weight is None else weight.abs())
    scale, shift = scale.reshape(shape), mean.abs().reshape(shape)
    offset = torch.zeros_like(scale) if bias is None else bias.abs().reshape(shape)
    reach = scale * (spread.magnitude() + shift) + offset
    moved = scale * error + _NORM_UNITS * (UNIT * reach + TINY * (1 + spread.magnitude() + shift))
    spread.run.reached(reach)
    spread.run.reached(scale.max().expand(len(center)))
    center = functional.batch_norm(center, mean, variance, weight, bias, eps=eps)
    return Spread.of(center, scale * radius, moved, spread.run)


def between(lower: torch.Tensor, upper: torch.Tensor, error: torch.Tensor, run: Run) -> Spread:
    return Spread.of((lower + upper) / 2, (upper - lower) / 2, error, run)


def _relu(spread: Spread, inplace: bool = False) -> Spread:
    del inplace  # what was written by an operator in place is read by its result
    center, radius, error = spread.parts()
    lower, upper = spread.run.narrowed(center - radius, center + radius)
    # Where even the float32 input is below 0, both values are 0. The bounds' own rounding is far
    # below `error`.
    off = upper + 1.01 * error <= 0
    return between(lower.relu(), upper.relu(), error.masked_fill(off, 0), spread.run)


def _max_pool(spread: Spread, *window: Any, **named: Any) -> Spread:
    center, radius, error = spread.parts()
    lower, upper, moved = (
        functional.max_pool2d(end, *window, **named)
        for end in (center - radius, center + radius, error)
    )
    return between(lower, upper, moved, spread.run)


def averaged(spread: Spread, mean: Callable[[torch.Tensor], torch.Tensor], count: int) -> Spread:
    """`mean` of the spread, each of at most `count` values."""
    means, magnitude = spread.each(mean), spread.magnitude()
    error = means.error + units(count + 2) * mean(magnitude) + (count + 2) * TINY
    spread.run.reached(count * magnitude)
    return Spread.of(means.parts()[0], means.radius, error, spread.run)


def _average(pool: Callable[..., torch.Tensor]) -> Callable[..., Spread]:
    # No window has more values than a channel.
    return lambda spread, *window, **named: averaged(
        spread, lambda part: pool(part, *window, **named), math.prod(spread.shape[2:])
    )


def _sum_of_two(sign: int) -> Callable[..., Spread]:
    def rule(first: Any, second: Any) -> Spread:
        left, right = as_spread(first, second), as_spread(second, first)
        (center, radius, error), (other, spare, moved) = left.parts(), right.parts()
        reach = left.magnitude() + right.magnitude()
        left.run.reached(reach)
        return Spread.of(
            center + sign * other, radius + spare, error + moved + UNIT * reach + TINY, left.run
        )

    return rule


def as_spread(value: torch.Tensor, like: Any) -> Spread:
    """A constant as values that do not spread; one number may be rounded."""
    if isinstance(value, Spread):
        return value
    center = value if is_number(value) else exact(value)
    off = (center - center.float().double()).abs()
    return Spread.of(center, torch.zeros_like(center), off, like.run)


def _rearranged(function: Callable[..., torch.Tensor]) -> Callable[..., Spread]:
    return lambda spread, *operands, **named: spread.each(
        lambda part: function(part, *operands, **named)
    )


def _cat(spreads: Any, dim: int = 0) -> Spread:
    operands = [
        as_spread(spread, next(one for one in spreads if isinstance(one, Spread)))
        for spread in spreads
    ]
    center, radius, error = (
        torch.cat(parts, dim) for parts in zip(*[one.parts() for one in operands], strict=True)
    )
    return Spread.of(center, radius, error, operands[0].run)


_SIZES = ("size", "dim", "__len__", "is_floating_point")
_ATTRIBUTES = {torch.Tensor.shape.__get__, torch.Tensor.ndim.__get__}  # type: ignore[attr-defined]
_SHAPES = (
    torch.reshape,
    torch.Tensor.reshape,
    torch.Tensor.flatten,
    torch.Tensor.permute,
    torch.Tensor.movedim,
    torch.Tensor.__getitem__,
)
# What the modules and functions of `in_modules` call, but for the rules that build on these.
RULES: dict[Any, Callable[..., Any]] = {
    functional.linear: _linear,
    **{
        function: _convolution(function)
        for function in (functional.conv1d, functional.conv2d, functional.conv3d)
    },
    **{
        function: _convolution(function, transposed=True)
        for function in (
            functional.conv_transpose1d,
            functional.conv_transpose2d,
            functional.conv_transpose3d,
        )
    },
    # of interpolation, to the type of what it is applied to
    torch.Tensor.to: lambda matrix, _: matrix.double(),
    functional.batch_norm: _batch_norm,
    functional.max_pool2d: _max_pool,
    functional.avg_pool2d: _average(functional.avg_pool2d),
    functional.adaptive_avg_pool2d: _average(functional.adaptive_avg_pool2d),
    functional.relu: _relu,
    torch.cat: _cat,
    torch.Tensor.add: _sum_of_two(1),
    torch.Tensor.sub: _sum_of_two(-1),
    torch.Tensor.neg: lambda spread: Spread.of(
        -spread.parts()[0], spread.radius, spread.error, spread.run
    ),
    **{function: _rearranged(function) for function in _SHAPES},
}
