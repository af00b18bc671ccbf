"""The operations of a graph: what they are, and the plain way to compute them.

Each is called with its operands, in the order of its node's sources. Where an operation has
weights, they are of the dtype in which the graph is run (`converted`); axes count from 0.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn
from torch.nn import functional

from lambda_gelu.activations import Activation
from opgraph.errors import Unsupported

Tensor = torch.Tensor
Some = TypeVar("Some", bound="Operation")


def _sign(values: Tensor) -> Tensor:
    """The sign; of what is no number no number, as in ONNX, where torch's own is 0."""
    return torch.where(values.isnan(), values, values.sign())


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "floor": torch.floor,
    "log": torch.log,
    "nan": torch.isnan,
    "not": torch.logical_not,
    "round": torch.round,
    "rsqrt": torch.rsqrt,
    "sign": _sign,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
}


def _divided(
    divide: Callable[[Tensor, Tensor], Tensor], dividend: Tensor, divisor: Tensor
) -> Tensor:
    """The quotient, or the remainder. Raises Unsupported where an integer is divided by 0, which
    gives no number.
    """
    try:
        return divide(dividend, divisor)
    except RuntimeError as error:
        if "ZeroDivisionError" not in str(error):
            raise
        raise Unsupported(
            "an integer is divided by 0, which gives no number: divide by what is never 0"
        ) from None


PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "and": torch.logical_and,
    "equal": torch.eq,
    "greater": torch.gt,
    "greater-equal": torch.ge,
    "less": torch.lt,
    "less-equal": torch.le,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "modulo": partial(_divided, torch.remainder),
    "or": torch.logical_or,
    "unequal": torch.ne,
    "xor": torch.logical_xor,
}
REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "all": torch.all,
    "any": torch.any,
    "maximum": torch.amax,
    "mean": torch.mean,
    "minimum": torch.amin,
    "sum": torch.sum,
}
_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
# 8 units of float32's last place.
_NEAR = 2.0**-21
_MAXIMA = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


@dataclass(frozen=True)
class Operation:
    """Defines what a node computes of its operands."""

    elementwise: ClassVar[bool] = False
    """Whether each entry depends on the operands' entries at its place alone (operands are
    broadcast).
    """
    moves: ClassVar[bool] = False
    """Whether it moves, repeats or leaves out entries and computes nothing."""

    def __call__(self, *operands: Tensor) -> Tensor:
        """The result for the operands, computed by plain PyTorch; every subclass that is
        computed defines it.
        """
        raise NotImplementedError


def converted(operation: Some, dtype: torch.dtype, device: str | None = None) -> Some:
    """The operation with real weights, and real results of casts, of another dtype."""

    def change(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
        if isinstance(value, nn.Module):
            return copy.deepcopy(value).to(device=device, dtype=dtype)
        return dtype if isinstance(value, torch.dtype) and value.is_floating_point else value

    return replace(
        operation,
        **{field.name: change(getattr(operation, field.name)) for field in fields(operation)},
    )


def only_number(value: Tensor) -> float | None:
    """The number that all entries are; None where there are several, or none."""
    first = value.flatten()[:1]
    return float(first) if len(first) and bool((value == first).all()) else None


@dataclass(frozen=True)
class Input(Operation):
    """An input of the network, the one at index `place` of `Graph.inputs`."""

    place: int


@dataclass(frozen=True)
class Constant(Operation):
    """`value`; `exact` is whether no arithmetic rounded it since it was read.

    `single` is what float32 arithmetic gives for it, None where that is `value` itself.
    """

    value: Tensor
    exact: bool = True
    single: Tensor | None = None

    @property
    def in_float32(self) -> Tensor:
        """Return what float32 arithmetic gives for it."""
        value = self.value if self.single is None else self.single
        return value.float() if value.is_floating_point() else value

    @property
    def is_near(self) -> bool:
        """Whether float32 arithmetic gives it, up to a few units of its last place."""
        return self.single is None or torch.allclose(
            self.single.double(), self.value.double(), rtol=_NEAR, atol=0.0
        )


@dataclass(frozen=True)
class Linear(Operation):
    """weight (outputs, inputs) applied to the last axis, and bias (outputs,) added."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, *operands: Tensor) -> Tensor:
        return functional.linear(operands[0], self.weight, self.bias)


@dataclass(frozen=True)
class Convolution(Operation):
    """A convolution of (batch, channels, *spatial), as torch.nn.functional's; `transposed` with
    its extra output.
    """

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    extra: tuple[int, ...] = ()

    def __call__(self, *operands: Tensor) -> Tensor:
        dims, axes = (
            len(self.stride),
            (operands[0], self.weight, self.bias, self.stride, self.padding),
        )
        if self.transposed:
            return _TRANSPOSED[dims](*axes, self.extra or (0,) * dims, self.groups, self.dilation)
        return _CONVOLUTIONS[dims](*axes, self.dilation, self.groups)


@dataclass(frozen=True)
class BatchNorm(Operation):
    """(x - mean) / sqrt(variance + eps) * weight + bias, per channel of axis 1, by fixed
    statistics.
    """

    mean: Tensor
    variance: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def __call__(self, *operands: Tensor) -> Tensor:
        return functional.batch_norm(
            operands[0], self.mean, self.variance, self.weight, self.bias, eps=self.eps
        )


@dataclass(frozen=True)
class Pointwise(Operation):
    """g(hardness x) / hardness, g by its row of traits; `hardness` is broadcast, None for 1.

    `deviation` is how far a constant of the formula that was recognised is from the row's,
    relatively; 0 where the activation was an operator of its own. `written` is, where such a
    formula is the row at another hardness as near as float64 is, that: x (1 + erf(x / 1.4142135)) /
    2 is GELU at a hardness near 1.
    """

    elementwise = True
    traits: Activation
    hardness: Tensor | None = None
    deviation: float = 0.0
    written: float | None = None

    @property
    def as_written(self) -> Pointwise:
        """The row at the hardness that the formula has, where it has one; itself in any other
        case.
        """
        if self.is_exact or self.written is None:
            return self
        return Pointwise(self.traits, torch.tensor(self.written, dtype=torch.float64))

    @property
    def is_exact(self) -> bool:
        """Whether it is its row: where that is piecewise linear, without any rounding, else as
        near as float64 is.
        """
        return self.deviation <= (4 * torch.finfo(torch.float64).eps if self.traits.shape else 0.0)

    def __call__(self, *operands: Tensor) -> Tensor:
        if self.hardness is None:
            return self.traits.value(operands[0])
        return self.traits.value(self.hardness * operands[0]) / self.hardness


@dataclass(frozen=True)
class Whole(Operation):
    """A module of one tensor that makes one of the same shape, taken as it is, whatever it
    computes inside.
    """

    module: nn.Module

    def __call__(self, *operands: Tensor) -> Tensor:
        tensor: Tensor = self.module(operands[0])
        return tensor


@dataclass(frozen=True)
class Function(Operation):
    """One of `FUNCTIONS`, of each entry."""

    elementwise = True
    name: str

    def __call__(self, *operands: Tensor) -> Tensor:
        return FUNCTIONS[self.name](operands[0])


@dataclass(frozen=True)
class Power(Operation):
    """Each entry of the operand raised to `exponent`, a constant."""

    elementwise = True
    exponent: float

    def __call__(self, *operands: Tensor) -> Tensor:
        return torch.pow(operands[0], self.exponent)


@dataclass(frozen=True)
class Clamp(Operation):
    """Each entry of the operand, or the number of [low, high] that is nearest to it."""

    elementwise = True
    low: float
    high: float

    def __call__(self, *operands: Tensor) -> Tensor:
        return operands[0].clamp(self.low, self.high)


@dataclass(frozen=True)
class Sum(Operation):
    """The operands, each times its sign, added up."""

    elementwise = True
    signs: tuple[int, ...] = (1, 1)

    def __call__(self, *operands: Tensor) -> Tensor:
        total = operands[0] if self.signs[0] > 0 else -operands[0]
        for sign, operand in zip(self.signs[1:], operands[1:], strict=True):
            total = total + operand if sign > 0 else total - operand
        return total


@dataclass(frozen=True)
class Product(Operation):
    """The operands multiplied, entry by entry."""

    elementwise = True

    def __call__(self, *operands: Tensor) -> Tensor:
        return reduce(operator.mul, operands)


@dataclass(frozen=True)
class Quotient(Operation):
    """The first divided by the second; of integers the floor."""

    elementwise = True

    def __call__(self, *operands: Tensor) -> Tensor:
        if operands[0].is_floating_point() or operands[1].is_floating_point():
            return operands[0] / operands[1]
        return _divided(operator.floordiv, operands[0], operands[1])


@dataclass(frozen=True)
class Pair(Operation):
    """One of `PAIRS`, of each two entries."""

    elementwise = True
    name: str

    def __call__(self, *operands: Tensor) -> Tensor:
        return PAIRS[self.name](operands[0], operands[1])


@dataclass(frozen=True)
class Where(Operation):
    """The second where the first is true, else the third."""

    elementwise = True

    def __call__(self, *operands: Tensor) -> Tensor:
        return torch.where(operands[0], operands[1], operands[2])


@dataclass(frozen=True)
class Cast(Operation):
    """A cast to a kind: float32 stands for real numbers, int64 for integers, bool for truth."""

    elementwise = True
    dtype: torch.dtype

    def __call__(self, *operands: Tensor) -> Tensor:
        return operands[0].to(self.dtype)


@dataclass(frozen=True)
class MatMul(Operation):
    """The matrix product of two tensors that both depend on the input, as torch.matmul
    broadcasts it.
    """

    def __call__(self, *operands: Tensor) -> Tensor:
        return operands[0] @ operands[1]


@dataclass(frozen=True)
class Reduction(Operation):
    """One of `REDUCTIONS` over axes, which stay with size 1 if `keeps`."""

    name: str
    axes: tuple[int, ...]
    keeps: bool

    def __call__(self, *operands: Tensor) -> Tensor:
        return REDUCTIONS[self.name](operands[0], dim=self.axes, keepdim=self.keeps)


@dataclass(frozen=True)
class CumulativeSum(Operation):
    """The sum of the entries up to and including each place of an axis."""

    axis: int

    def __call__(self, *operands: Tensor) -> Tensor:
        return operands[0].cumsum(self.axis)


@dataclass(frozen=True)
class MaxPool(Operation):
    """The greatest entry of each window of (batch, channels, *spatial)."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil: bool = False

    def __call__(self, *operands: Tensor) -> Tensor:
        window = (self.kernel, self.stride, self.padding, self.dilation)
        return _MAXIMA[len(self.kernel)](operands[0], *window, ceil_mode=self.ceil)


@dataclass(frozen=True)
class AveragePool(Operation):
    """The mean of each window; `counts` says whether padding counts; `divisor`, if any, is what
    sums are divided by.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    ceil: bool = False
    counts: bool = True
    divisor: int | None = None

    def __call__(self, *operands: Tensor) -> Tensor:
        window = (self.kernel, self.stride, self.padding, self.ceil, self.counts)
        if len(self.kernel) == 1:
            return functional.avg_pool1d(operands[0], *window)
        pool = functional.avg_pool2d if len(self.kernel) == 2 else functional.avg_pool3d
        return pool(operands[0], *window, self.divisor)


@dataclass(frozen=True)
class Resample(Operation):
    """matrices[i] (outputs, inputs) applied along the last axes: interpolation, adaptive means.
    Rows sum to 1.
    """

    matrices: tuple[Tensor, ...]

    def __call__(self, *operands: Tensor) -> Tensor:
        result = operands[0]
        for place, matrix in enumerate(reversed(self.matrices), start=1):
            axis, last = result.ndim - place, result.ndim - 1  # ONNX counts axes from the first
            moved = functional.linear(result.movedim(axis, last), matrix.to(result))
            result = moved.movedim(last, axis)
        return result


@dataclass(frozen=True)
class Softmax(Operation):
    """exp(x) / sum exp(x) along an axis, or its logarithm; `safe`: where all entries are -inf, 0
    and not NaN.
    """

    axis: int
    log: bool = False
    safe: bool = False

    def __call__(self, *operands: Tensor) -> Tensor:
        result = operands[0].log_softmax(self.axis) if self.log else operands[0].softmax(self.axis)
        if not self.safe:
            return result
        return result.masked_fill((operands[0] == -torch.inf).all(self.axis, keepdim=True), 0.0)


@dataclass(frozen=True)
class LayerNorm(Operation):
    """(x - mean) / sqrt(variance + eps) over axes, the variance of all entries; weight and bias
    are broadcast.
    """

    axes: tuple[int, ...]
    eps: float
    weight: Tensor | None = None
    bias: Tensor | None = None

    def __call__(self, *operands: Tensor) -> Tensor:
        centered = operands[0] - operands[0].mean(self.axes, keepdim=True)
        result = centered * torch.rsqrt(centered.square().mean(self.axes, keepdim=True) + self.eps)
        result = result if self.weight is None else result * self.weight
        return result if self.bias is None else result + self.bias


@dataclass(frozen=True)
class RMSNorm(Operation):
    """x / sqrt(mean of x^2 + eps) over axes (arXiv 1910.07467, with eps); weight is broadcast."""

    axes: tuple[int, ...]
    eps: float
    weight: Tensor | None = None

    def __call__(self, *operands: Tensor) -> Tensor:
        result = operands[0] * torch.rsqrt(
            operands[0].square().mean(self.axes, keepdim=True) + self.eps
        )
        return result if self.weight is None else result * self.weight
