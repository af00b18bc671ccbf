"""What torch's operators mean, one row each: those that compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from opgraph import operations as op
from opgraph.aten_moving import adaptive, adaptive_maximum, linear_interpolation, nearest
from opgraph.call import Call, Value
from opgraph.moving import Pad
from opgraph.operators import (
    Reader,
    activation,
    acts,
    batch_norm,
    function,
    grouped,
    layer_norm,
    pair,
    power,
    product,
    row_of,
    where,
)


def _logic(operation: op.Operation) -> Reader:
    def read(c: Call, *given: Any) -> Value:
        if any(c.node(c.value(each)).dtype != torch.bool for each in given):
            c.refuse("works on the bits of numbers; only truth values are read")
        return c.add(operation, *given)

    return read


def _add(sign: int) -> Reader:
    def read(c: Call, x: Any, y: Any, *, alpha: float = 1) -> Value:
        return c.summed(x, y if alpha == 1 else c.add(op.Product(), *c.alike(y, alpha)), sign)

    return read


def _divide(c: Call, x: Any, y: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor" and c.dtype == torch.int64:
        return c.add(op.Quotient(), *c.alike(x, y))
    if rounding_mode is not None:
        c.refuse(f"divides with rounding_mode {rounding_mode!r}")
    return c.add(op.Quotient(), *(c.as_kind(each, torch.float32) for each in (x, y)))


def _clamp(c: Call, x: Any, low: Any = None, high: Any = None) -> Value:
    low, high = (
        -math.inf if low is None else _bound(c, low),
        math.inf if high is None else _bound(c, high),
    )
    if (low, high) == (0.0, math.inf):
        return activation(c, x, nn.ReLU())
    return c.add(op.Clamp(low, high), x)


def _bound(c: Call, source: Any) -> float:
    place = c.value(source)
    found, operation = op.only_number(c.known(place, "bound")), c.node(place).operation
    if found is None or not (isinstance(operation, op.Constant) and operation.is_near):
        c.refuse("its bounds are several numbers, or float32 computes them with a loss of digits")
    return found


def _elu(c: Call, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    if scale != 1 or input_scale != 1:
        c.refuse(f"scale = {scale}, input_scale = {input_scale}; only 1 is read")
    return activation(c, x, nn.ELU(alpha))


LEFT_OUT = math.exp(-20)
"""What torch's softplus leaves out at the most, relatively: beyond its default threshold, 20, it
is the identity.
"""


def _softplus(c: Call, x: Any, beta: float = 1, threshold: float = 20) -> Value:
    if not beta > 0:
        c.refuse(f"beta = {beta}: give it one above 0")
    if threshold < 20:
        c.refuse(
            f"threshold = {threshold}: it is another function below 20; leave it at 20 or above"
        )
    row = row_of(nn.Softplus(threshold=40))
    assert row is not None
    hardness = None if beta == 1 else torch.tensor(float(beta), dtype=torch.float64)
    # Beyond the threshold torch leaves out the smaller part of the sum.
    gap = 0.0 if threshold >= 40 else LEFT_OUT
    return c.add(op.Pointwise(row, hardness, gap), c.as_kind(x, torch.float32))


def _reduce(name: str) -> Reader:
    def read(
        c: Call, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Value:
        del dtype
        kind = {"any": torch.bool, "all": torch.bool, "mean": torch.float32}.get(name)
        if name == "sum" and c.node(x).dtype == torch.bool:
            kind = torch.int64
        x = x if kind is None else c.as_kind(x, kind)
        return c.as_kind(c.add(op.Reduction(name, c.axes(x, dim), keepdim), x), c.dtype)

    return read


def _variance(c: Call, x: Value, dim: Any = None, *args: Any, **kwargs: Any) -> Value:
    given = (
        dict(
            zip(
                (
                    ("correction", "keepdim")
                    if args and not isinstance(args[0], bool)
                    else ("unbiased", "keepdim")
                ),
                args,
                strict=False,
            )
        )
        | kwargs
    )
    correction = given.get("correction", 1 if given.get("unbiased", True) else 0)
    if correction != 0:
        c.refuse("takes the variance of a sample (unbiased); only correction=0 is read")
    axes = c.axes(x, dim)
    # The mean of (x - mean)^2.
    centered = c.summed(x, c.add(op.Reduction("mean", axes, True), x), -1)
    return c.add(
        op.Reduction("mean", axes, bool(given.get("keepdim", False))),
        c.add(op.Power(2.0), centered),
    )


def _linear(c: Call, x: Any, weight: Any, bias: Any = None) -> Value:
    known_weight = c.builder.known(c.value(weight))
    if known_weight is not None and (bias is None or c.builder.known(c.value(bias)) is not None):
        return c.add(op.Linear(known_weight, c.optional(bias, "bias")), x)
    made = c.product(x, c.transposed(c.value(weight), -1, -2))
    return made if bias is None else c.summed(made, bias)


def _addmm(c: Call, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Value:
    if beta != 1 or alpha != 1:
        c.refuse(f"beta = {beta}, alpha = {alpha}; only 1 is read")
    # bias + x W is a Linear where both are constants, with one number for each output.
    matrix, shift = c.builder.known(c.value(weight)), c.builder.known(c.value(bias))
    if (
        matrix is not None
        and shift is not None
        and shift.ndim == 1
        and len(shift) == matrix.shape[1]
    ):
        return c.add(op.Linear(matrix.T, shift), x)
    return c.summed(c.product(x, weight), bias)


def tupled(value: Any, count: int) -> tuple[int, ...]:
    """One number for each dimension, where one may stand for all."""
    given = [value] if isinstance(value, int) else list(value)
    return tuple(given * count if len(given) == 1 else given)


def _convolution(
    c: Call,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    kernel = c.known(weight, "weight")
    count = kernel.ndim - 2
    dilation = tupled(dilation, count)
    if isinstance(padding, str):
        reach = [step * (size - 1) for step, size in zip(dilation, kernel.shape[2:], strict=True)]
        # torch pads one more place behind
        if padding == "same" and any(odd := [each % 2 for each in reach]):
            x = c.add(Pad(((0, 0), (0, 0), *((0, each) for each in odd))), x)
        padding = [each // 2 if padding == "same" else 0 for each in reach]
    window = (tupled(stride, count), tupled(padding, count), dilation, groups)
    return _batched(
        c,
        x,
        count + 1,
        lambda y: c.add(op.Convolution(kernel, c.optional(bias, "bias"), *window), y),
    )


def _transposed(
    c: Call,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    extra: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Value:
    kernel = c.known(weight, "weight")
    count = kernel.ndim - 2
    steps, pads, wide, more = (tupled(each, count) for each in (stride, padding, dilation, extra))
    convolution = op.Convolution(
        kernel, c.optional(bias, "bias"), steps, pads, wide, groups, True, more
    )
    return _batched(c, x, count + 1, lambda y: c.add(convolution, y))


def _batched(c: Call, x: Value, dims: int, make: Callable[[Value], Value]) -> Value:
    # torch takes a sample without a batch as well, whose first axis would be read as one.
    if len(c.node(x).shape) != dims + 1:
        c.refuse(
            f"takes an input of {len(c.node(x).shape)} dimensions; only batches of {dims} are read"
        )
    return make(x)


def _batch_norm(
    c: Call, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any
) -> Value:
    # batch_norm(..., training, momentum, eps, cudnn); _native_batch_norm_legit_no_training(...,
    # momentum, eps)
    if (isinstance(rest[0], bool) and rest[0]) or mean is None:
        c.refuse(
            "normalises by its batch: it is no function of one input; train it with"
            " track_running_stats=True"
        )
    eps = rest[2] if isinstance(rest[0], bool) else rest[1]
    return batch_norm(c, x, mean, variance, weight, bias, float(eps))


def _instance_norm(
    c: Call,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    own: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Value:
    if own:
        return grouped(c, x, c.node(x).shape[1], weight, bias, eps)
    return _batch_norm(c, x, weight, bias, mean, variance, False, momentum, eps)


def _layer_norm(
    c: Call, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Value:
    return layer_norm(c, x, len(c.node(x).shape) - len(shape), weight, bias, eps)


def _rms_norm(c: Call, x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Value:
    count = len(c.node(x).shape)
    # Without one torch takes that of the input's type.
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return c.add(
        op.RMSNorm(tuple(range(count - len(shape), count)), eps, c.optional(weight, "weight")), x
    )


def _group_norm(
    c: Call, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Value:
    return grouped(c, x, groups, weight, bias, eps)


def _attention(
    c: Call,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout:
        c.refuse(
            "has dropout in evaluation mode, so that it is no function of its input: pass"
            " dropout_p=0.0 there"
        )
    sizes = c.node(q).shape
    if enable_gqa:
        k, v = (_repeated(c, each, sizes[-3] // c.node(each).shape[-3]) for each in (k, v))
    scale = 1 / math.sqrt(sizes[-1]) if scale is None else scale
    # softmax(q k^T scale + mask) v (arXiv 1706.03762, eq. 1), written out. `safe`: of a row in
    # which nothing counts torch makes zeros.
    scores = c.add(op.Product(), c.product(q, c.transposed(k, -1, -2)), scale)
    if is_causal:
        rows, columns = sizes[-2], c.node(k).shape[-2]
        mask = torch.ones(rows, columns, dtype=torch.bool).tril()
    if mask is not None:
        mask = c.value(mask)
        if c.node(mask).dtype == torch.bool:
            scores = c.add(op.Where(), mask, scores, -math.inf)
        else:
            scores = c.summed(scores, mask)
    shares = c.add(op.Softmax(len(c.node(scores).shape) - 1, safe=True), scores)
    return c.product(shares, v)


def _repeated(c: Call, x: Value, times: int) -> Value:
    shape = c.node(x).shape
    apart = c.reshaped(x, (*shape[:-2], 1, *shape[-2:]))
    return c.reshaped(
        c.expanded(apart, (*shape[:-2], times, *shape[-2:])),
        (*shape[:-3], shape[-3] * times, *shape[-2:]),
    )


def _max_pool(
    c: Call,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Value:
    count = len(c.node(x).shape) - 2
    kernel = tupled(kernel, count)
    window = (
        kernel,
        tupled(stride or kernel, count),
        tupled(padding, count),
        tupled(dilation, count),
        ceil,
    )
    return _batched(c, x, count + 1, lambda y: c.add(op.MaxPool(*window), y))


def _average_pool(
    c: Call,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    counts: bool = True,
    divisor: int | None = None,
) -> Value:
    before = c.node(x).shape
    if len(before) == 2:  # along the last axis: torch takes the batch for channels
        x = c.reshaped(x, (before[0], 1, before[1]))
    count = max(len(before) - 2, 1)
    kernel = tupled(kernel, count)
    pooled = c.add(
        op.AveragePool(
            kernel, tupled(stride or kernel, count), tupled(padding, count), ceil, counts, divisor
        ),
        x,
    )
    return c.reshaped(pooled, c.shape) if len(before) == 2 else pooled


def _cumulative(c: Call, x: Any, dim: int, *, dtype: Any = None) -> Value:
    del dtype
    x = c.as_kind(x, torch.int64) if c.node(x).dtype == torch.bool else x
    return c.add(op.CumulativeSum(c.axis(x, dim)), x)


def _extreme(name: str) -> Reader:
    def read(c: Call, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Value):  # torch.max(x, y)
            return pair(name)(c, x, dim)
        made = c.add(op.Reduction(name, c.axes(x, dim), keepdim), x)
        return made if dim is None else (made, None)

    return read


def _vector_norm(
    c: Call, x: Value, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    del dtype
    if order not in (1, 2):
        c.refuse(f"the norm of order {order}; only 1 and 2 are read")
    of_each = c.add(op.Function("abs"), x) if order == 1 else c.add(op.Power(2.0), x)
    total = c.add(op.Reduction("sum", c.axes(x, dim), keepdim), of_each)
    return total if order == 1 else c.add(op.Function("sqrt"), total)


def _weight_norm(c: Call, direction: Value, length: Any, dim: int = 0) -> Value:
    count = len(c.node(direction).shape)
    axes = tuple(axis for axis in range(count) if axis != dim % count)
    return c.add(
        op.Product(),
        direction,
        c.add(op.Quotient(), length, _vector_norm(c, direction, 2, axes, True)),
    )


COMPUTING: dict[str, Reader] = {
    "_log_softmax": lambda c, x, dim, *_: c.add(op.Softmax(c.axis(x, dim), True), x),
    "_native_batch_norm_legit_no_training": lambda c, *args: (_batch_norm(c, *args), None, None),
    "_safe_softmax": lambda c, x, dim, *_: c.add(op.Softmax(c.axis(x, dim), safe=True), x),
    "_softmax": lambda c, x, dim, *_: c.add(op.Softmax(c.axis(x, dim)), x),
    "_weight_norm": _weight_norm,
    "abs": function("abs"),
    **{f"adaptive_avg_pool{n}d": adaptive for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": adaptive_maximum for n in (1, 2, 3)},
    "add": _add(1),
    "addmm": _addmm,
    "all": _reduce("all"),
    "amax": _reduce("maximum"),
    "amin": _reduce("minimum"),
    "any": _reduce("any"),
    **{f"avg_pool{n}d": _average_pool for n in (1, 2, 3)},
    "baddbmm": _addmm,
    "batch_norm": _batch_norm,
    "bitwise_and": _logic(op.Pair("and")),
    "bitwise_not": _logic(op.Function("not")),
    "bitwise_or": _logic(op.Pair("or")),
    "bmm": Call.product,
    "celu": lambda c, x, alpha=1.0: c.add(op.Whole(nn.CELU(alpha)), x),
    "clamp": _clamp,
    "clamp_max": lambda c, x, high: _clamp(c, x, None, high),
    "clamp_min": _clamp,
    "clip": _clamp,
    **{f"conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _transposed for n in (1, 2, 3)},
    "cos": function("cos"),
    "cumsum": _cumulative,
    "div": _divide,
    "elu": _elu,
    "eq": pair("equal"),
    "erf": function("erf"),
    "exp": function("exp"),
    "floor": function("floor"),
    "floor_divide": lambda c, x, y: _divide(c, x, y, rounding_mode="floor"),
    "ge": pair("greater-equal"),
    "gelu": acts(lambda approximate="none": nn.GELU(approximate)),
    "group_norm": _group_norm,
    "gt": pair("greater"),
    "hardsigmoid": acts(nn.Hardsigmoid),
    "hardswish": acts(nn.Hardswish),
    "hardtanh": lambda c, x, low=-1.0, high=1.0: c.add(op.Clamp(float(low), float(high)), x),
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "le": pair("less-equal"),
    "leaky_relu": acts(nn.LeakyReLU),
    "linalg_vector_norm": _vector_norm,
    "linear": _linear,
    "log": function("log"),
    "log_softmax": lambda c, x, dim, *_: c.add(op.Softmax(c.axis(x, dim), True), x),
    "logical_and": pair("and", torch.bool),
    "logical_not": function("not", torch.bool),
    "logical_or": pair("or", torch.bool),
    "lt": pair("less"),
    "masked_fill": lambda c, x, mask, fill: c.add(op.Where(), mask, *reversed(c.alike(x, fill))),
    "matmul": Call.product,
    "max": _extreme("maximum"),
    **{f"max_pool{n}d": _max_pool for n in (1, 2, 3)},
    "maximum": pair("maximum"),
    "mean": _reduce("mean"),
    "min": _extreme("minimum"),
    "minimum": pair("minimum"),
    "mish": acts(nn.Mish),
    "mm": Call.product,
    "mul": product,
    "ne": pair("unequal"),
    "neg": lambda c, x: c.add(op.Sum((-1,)), x),
    "pow": power,
    "reciprocal": lambda c, x: c.add(op.Quotient(), 1.0, c.as_kind(x, torch.float32)),
    "relu": acts(nn.ReLU),
    "relu6": acts(nn.ReLU6),
    "remainder": pair("modulo"),
    "rms_norm": _rms_norm,
    "rsqrt": function("rsqrt"),
    "rsub": lambda c, x, y, **more: _add(-1)(c, y, x, **more),
    "scaled_dot_product_attention": _attention,
    "selu": lambda c, x: c.add(op.Whole(nn.SELU()), x),
    "sigmoid": acts(nn.Sigmoid),
    "sign": function("sign"),
    "silu": acts(nn.SiLU),
    "sin": function("sin"),
    "softmax": lambda c, x, dim, *_: c.add(op.Softmax(c.axis(x, dim)), x),
    "softplus": _softplus,
    "sqrt": function("sqrt"),
    "square": lambda c, x: power(c, x, 2.0),
    "sub": _add(-1),
    "sum": _reduce("sum"),
    "tanh": acts(nn.Tanh),
    "upsample_bilinear2d": linear_interpolation,
    "upsample_linear1d": linear_interpolation,
    **{f"upsample_nearest{n}d": nearest for n in (1, 2, 3)},
    "var": _variance,
    "where": where,
    "__and__": _logic(op.Pair("and")),
    "__or__": _logic(op.Pair("or")),
}
