"""Define what torch's operators mean, one row each: those that compute."""

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
    def read(call: Call, *sources: Any) -> Value:
        if any(call.node(call.value(source)).dtype != torch.bool for source in sources):
            call.refuse("works on the bits of numbers; only truth values are read")
        return call.add(operation, *sources)

    return read


def _add(sign: int) -> Reader:
    def read(call: Call, operand: Any, other: Any, *, alpha: float = 1) -> Value:
        return call.summed(
            operand,
            other if alpha == 1 else call.add(op.Product(), *call.alike(other, alpha)),
            sign,
        )

    return read


def _divide(call: Call, tensor: Any, other: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor" and call.dtype == torch.int64:
        return call.add(op.Quotient(), *call.alike(tensor, other))
    if rounding_mode is not None:
        call.refuse(f"divides with rounding_mode {rounding_mode!r}")
    return call.add(
        op.Quotient(), *(call.as_kind(operand, torch.float32) for operand in (tensor, other))
    )


def _clamp(call: Call, operand: Any, low: Any = None, high: Any = None) -> Value:
    low, high = (
        -math.inf if low is None else _bound(call, low),
        math.inf if high is None else _bound(call, high),
    )
    if (low, high) == (0.0, math.inf):
        return activation(call, operand, nn.ReLU())
    return call.add(op.Clamp(low, high), operand)


def _bound(call: Call, source: Any) -> float:
    place = call.value(source)
    number, operation = op.only_number(call.known(place, "bound")), call.node(place).operation
    if number is None or not (isinstance(operation, op.Constant) and operation.is_near):
        call.refuse(
            "its bounds are several numbers, or float32 computes them with a loss of digits"
        )
    return number


def _elu(
    call: Call, operand: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Value:
    if scale != 1 or input_scale != 1:
        call.refuse(f"scale = {scale}, input_scale = {input_scale}; only 1 is read")
    return activation(call, operand, nn.ELU(alpha))


LEFT_OUT = math.exp(-20)
"""What torch's softplus leaves out at the most, relatively: beyond its default threshold, 20, it
is the identity.
"""


def _softplus(call: Call, operand: Any, beta: float = 1, threshold: float = 20) -> Value:
    if not beta > 0:
        call.refuse(f"beta = {beta}: give it one above 0")
    if threshold < 20:
        call.refuse(
            f"threshold = {threshold}: it is another function below 20; leave it at 20 or above"
        )
    row = row_of(nn.Softplus(threshold=40))
    assert row is not None
    hardness = None if beta == 1 else torch.tensor(float(beta), dtype=torch.float64)
    # Beyond the threshold torch leaves out the smaller part of the sum.
    gap = 0.0 if threshold >= 40 else LEFT_OUT
    return call.add(op.Pointwise(row, hardness, gap), call.as_kind(operand, torch.float32))


def _reduce(name: str) -> Reader:
    def read(
        call: Call, operand: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Value:
        del dtype
        kind = {"any": torch.bool, "all": torch.bool, "mean": torch.float32}.get(name)
        if name == "sum" and call.node(operand).dtype == torch.bool:
            kind = torch.int64
        operand = operand if kind is None else call.as_kind(operand, kind)
        return call.as_kind(
            call.add(op.Reduction(name, call.axes(operand, dim), keepdim), operand), call.dtype
        )

    return read


def _variance(call: Call, operand: Value, dim: Any = None, *args: Any, **kwargs: Any) -> Value:
    dims = (
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
    correction = dims.get("correction", 1 if dims.get("unbiased", True) else 0)
    if correction != 0:
        call.refuse("takes the variance of a sample (unbiased); only correction=0 is read")
    axes = call.axes(operand, dim)
    # The mean of (x - mean)^2.
    centered = call.summed(operand, call.add(op.Reduction("mean", axes, True), operand), -1)
    return call.add(
        op.Reduction("mean", axes, bool(dims.get("keepdim", False))),
        call.add(op.Power(2.0), centered),
    )


def _linear(call: Call, operand: Any, weight: Any, bias: Any = None) -> Value:
    known_weight = call.builder.known(call.value(weight))
    if known_weight is not None and (
        bias is None or call.builder.known(call.value(bias)) is not None
    ):
        return call.add(op.Linear(known_weight, call.optional(bias, "bias")), operand)
    product = call.product(operand, call.transposed(call.value(weight), -1, -2))
    return product if bias is None else call.summed(product, bias)


def _addmm(
    call: Call, bias: Any, operand: Any, weight: Any, *, beta: float = 1, alpha: float = 1
) -> Value:
    if beta != 1 or alpha != 1:
        call.refuse(f"beta = {beta}, alpha = {alpha}; only 1 is read")
    # bias + x W is a Linear where both are constants, with one number for each output.
    matrix, shift = call.builder.known(call.value(weight)), call.builder.known(call.value(bias))
    if (
        matrix is not None
        and shift is not None
        and shift.ndim == 1
        and len(shift) == matrix.shape[1]
    ):
        return call.add(op.Linear(matrix.T, shift), operand)
    return call.summed(call.product(operand, weight), bias)


def tupled(value: Any, count: int) -> tuple[int, ...]:
    """One number for each dimension, where one may stand for all."""
    numbers = [value] if isinstance(value, int) else list(value)
    return tuple(numbers * count if len(numbers) == 1 else numbers)


def _convolution(
    call: Call,
    operand: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    kernel = call.known(weight, "weight")
    count = kernel.ndim - 2
    dilation = tupled(dilation, count)
    if isinstance(padding, str):
        reach = [step * (size - 1) for step, size in zip(dilation, kernel.shape[2:], strict=True)]
        # torch pads one more place behind
        if padding == "same" and any(odd := [size % 2 for size in reach]):
            operand = call.add(Pad(((0, 0), (0, 0), *((0, size) for size in odd))), operand)
        padding = [size // 2 if padding == "same" else 0 for size in reach]
    window = (tupled(stride, count), tupled(padding, count), dilation, groups)
    return _batched(
        call,
        operand,
        count + 1,
        lambda batch: call.add(op.Convolution(kernel, call.optional(bias, "bias"), *window), batch),
    )


def _transposed(
    call: Call,
    operand: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    extra: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Value:
    kernel = call.known(weight, "weight")
    count = kernel.ndim - 2
    steps, pads, wide, more = (
        tupled(option, count) for option in (stride, padding, dilation, extra)
    )
    convolution = op.Convolution(
        kernel, call.optional(bias, "bias"), steps, pads, wide, groups, True, more
    )
    return _batched(call, operand, count + 1, lambda batch: call.add(convolution, batch))


def _batched(call: Call, operand: Value, dims: int, make: Callable[[Value], Value]) -> Value:
    # torch takes a sample without a batch as well, whose first axis would be read as one.
    if len(call.node(operand).shape) != dims + 1:
        call.refuse(
            f"takes an input of {len(call.node(operand).shape)} dimensions; only batches of {dims}"
            " are read"
        )
    return make(operand)


def _batch_norm(
    call: Call, operand: Any, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any
) -> Value:
    # batch_norm(..., training, momentum, eps, cudnn); _native_batch_norm_legit_no_training(...,
    # momentum, eps)
    if (isinstance(rest[0], bool) and rest[0]) or mean is None:
        call.refuse(
            "normalises by its batch: it is no function of one input; train it with"
            " track_running_stats=True"
        )
    eps = rest[2] if isinstance(rest[0], bool) else rest[1]
    return batch_norm(call, operand, mean, variance, weight, bias, float(eps))


def _instance_norm(
    call: Call,
    operand: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    uses_input: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Value:
    if uses_input:
        return grouped(call, operand, call.node(operand).shape[1], weight, bias, eps)
    return _batch_norm(call, operand, weight, bias, mean, variance, False, momentum, eps)


def _layer_norm(
    call: Call,
    operand: Any,
    shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    return layer_norm(call, operand, len(call.node(operand).shape) - len(shape), weight, bias, eps)


def _rms_norm(
    call: Call, operand: Any, shape: Any, weight: Any = None, eps: float | None = None
) -> Value:
    count = len(call.node(operand).shape)
    # Without one torch takes that of the input's type.
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return call.add(
        op.RMSNorm(tuple(range(count - len(shape), count)), eps, call.optional(weight, "weight")),
        operand,
    )


def _group_norm(
    call: Call,
    operand: Any,
    groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    return grouped(call, operand, groups, weight, bias, eps)


def _attention(
    call: Call,
    query: Any,
    keys: Any,
    values: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout:
        call.refuse(
            "has dropout in evaluation mode, so that it is no function of its input: pass"
            " dropout_p=0.0 there"
        )
    sizes = call.node(query).shape
    if enable_gqa:
        keys, values = (
            _repeated(call, heads, sizes[-3] // call.node(heads).shape[-3])
            for heads in (keys, values)
        )
    scale = 1 / math.sqrt(sizes[-1]) if scale is None else scale
    # softmax(q k^T scale + mask) v (arXiv 1706.03762, eq. 1), written out. `safe`: of a row in
    # which nothing counts torch makes zeros.
    scores = call.add(op.Product(), call.product(query, call.transposed(keys, -1, -2)), scale)
    if is_causal:
        rows, columns = sizes[-2], call.node(keys).shape[-2]
        mask = torch.ones(rows, columns, dtype=torch.bool).tril()
    if mask is not None:
        mask = call.value(mask)
        if call.node(mask).dtype == torch.bool:
            scores = call.add(op.Where(), mask, scores, -math.inf)
        else:
            scores = call.summed(scores, mask)
    shares = call.add(op.Softmax(len(call.node(scores).shape) - 1, safe=True), scores)
    return call.product(shares, values)


def _repeated(call: Call, operand: Value, times: int) -> Value:
    shape = call.node(operand).shape
    apart = call.reshaped(operand, (*shape[:-2], 1, *shape[-2:]))
    return call.reshaped(
        call.expanded(apart, (*shape[:-2], times, *shape[-2:])),
        (*shape[:-3], shape[-3] * times, *shape[-2:]),
    )


def _max_pool(
    call: Call,
    operand: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Value:
    count = len(call.node(operand).shape) - 2
    kernel = tupled(kernel, count)
    window = (
        kernel,
        tupled(stride or kernel, count),
        tupled(padding, count),
        tupled(dilation, count),
        ceil,
    )
    return _batched(call, operand, count + 1, lambda batch: call.add(op.MaxPool(*window), batch))


def _average_pool(
    call: Call,
    operand: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    counts: bool = True,
    divisor: int | None = None,
) -> Value:
    before = call.node(operand).shape
    if len(before) == 2:  # along the last axis: torch takes the batch for channels
        operand = call.reshaped(operand, (before[0], 1, before[1]))
    count = max(len(before) - 2, 1)
    kernel = tupled(kernel, count)
    pooled = call.add(
        op.AveragePool(
            kernel, tupled(stride or kernel, count), tupled(padding, count), ceil, counts, divisor
        ),
        operand,
    )
    return call.reshaped(pooled, call.shape) if len(before) == 2 else pooled


def _cumulative(call: Call, operand: Any, dim: int, *, dtype: Any = None) -> Value:
    del dtype
    operand = (
        call.as_kind(operand, torch.int64) if call.node(operand).dtype == torch.bool else operand
    )
    return call.add(op.CumulativeSum(call.axis(operand, dim)), operand)


def _extreme(name: str) -> Reader:
    def read(call: Call, operand: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Value):  # torch.max(x, y)
            return pair(name)(call, operand, dim)
        reduced = call.add(op.Reduction(name, call.axes(operand, dim), keepdim), operand)
        return reduced if dim is None else (reduced, None)

    return read


def _vector_norm(
    call: Call,
    operand: Value,
    order: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Value:
    del dtype
    if order not in (1, 2):
        call.refuse(f"the norm of order {order}; only 1 and 2 are read")
    of_each = (
        call.add(op.Function("abs"), operand) if order == 1 else call.add(op.Power(2.0), operand)
    )
    total = call.add(op.Reduction("sum", call.axes(operand, dim), keepdim), of_each)
    return total if order == 1 else call.add(op.Function("sqrt"), total)


def _weight_norm(call: Call, direction: Value, length: Any, dim: int = 0) -> Value:
    count = len(call.node(direction).shape)
    axes = tuple(axis for axis in range(count) if axis != dim % count)
    return call.add(
        op.Product(),
        direction,
        call.add(op.Quotient(), length, _vector_norm(call, direction, 2, axes, True)),
    )


COMPUTING: dict[str, Reader] = {
    "_log_softmax": lambda call, operand, dim, *_: call.add(
        op.Softmax(call.axis(operand, dim), True), operand
    ),
    "_native_batch_norm_legit_no_training": lambda call, *args: (
        _batch_norm(call, *args),
        None,
        None,
    ),
    "_safe_softmax": lambda call, operand, dim, *_: call.add(
        op.Softmax(call.axis(operand, dim), safe=True), operand
    ),
    "_softmax": lambda call, operand, dim, *_: call.add(
        op.Softmax(call.axis(operand, dim)), operand
    ),
    "_weight_norm": _weight_norm,
    "abs": function("abs"),
    **{f"adaptive_avg_pool{count}d": adaptive for count in (1, 2, 3)},
    **{f"adaptive_max_pool{count}d": adaptive_maximum for count in (1, 2, 3)},
    "add": _add(1),
    "addmm": _addmm,
    "all": _reduce("all"),
    "amax": _reduce("maximum"),
    "amin": _reduce("minimum"),
    "any": _reduce("any"),
    **{f"avg_pool{count}d": _average_pool for count in (1, 2, 3)},
    "baddbmm": _addmm,
    "batch_norm": _batch_norm,
    "bitwise_and": _logic(op.Pair("and")),
    "bitwise_not": _logic(op.Function("not")),
    "bitwise_or": _logic(op.Pair("or")),
    "bmm": Call.product,
    "celu": lambda call, operand, alpha=1.0: call.add(op.Whole(nn.CELU(alpha)), operand),
    "clamp": _clamp,
    "clamp_max": lambda call, operand, high: _clamp(call, operand, None, high),
    "clamp_min": _clamp,
    "clip": _clamp,
    **{f"conv{count}d": _convolution for count in (1, 2, 3)},
    **{f"conv_transpose{count}d": _transposed for count in (1, 2, 3)},
    "cos": function("cos"),
    "cumsum": _cumulative,
    "div": _divide,
    "elu": _elu,
    "eq": pair("equal"),
    "erf": function("erf"),
    "exp": function("exp"),
    "floor": function("floor"),
    "floor_divide": lambda call, operand, other: _divide(
        call, operand, other, rounding_mode="floor"
    ),
    "ge": pair("greater-equal"),
    "gelu": acts(lambda approximate="none": nn.GELU(approximate)),
    "group_norm": _group_norm,
    "gt": pair("greater"),
    "hardsigmoid": acts(nn.Hardsigmoid),
    "hardswish": acts(nn.Hardswish),
    "hardtanh": lambda call, operand, low=-1.0, high=1.0: call.add(
        op.Clamp(float(low), float(high)), operand
    ),
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "le": pair("less-equal"),
    "leaky_relu": acts(nn.LeakyReLU),
    "linalg_vector_norm": _vector_norm,
    "linear": _linear,
    "log": function("log"),
    "log_softmax": lambda call, operand, dim, *_: call.add(
        op.Softmax(call.axis(operand, dim), True), operand
    ),
    "logical_and": pair("and", torch.bool),
    "logical_not": function("not", torch.bool),
    "logical_or": pair("or", torch.bool),
    "lt": pair("less"),
    "masked_fill": lambda call, operand, mask, fill: call.add(
        op.Where(), mask, *reversed(call.alike(operand, fill))
    ),
    "matmul": Call.product,
    "max": _extreme("maximum"),
    **{f"max_pool{count}d": _max_pool for count in (1, 2, 3)},
    "maximum": pair("maximum"),
    "mean": _reduce("mean"),
    "min": _extreme("minimum"),
    "minimum": pair("minimum"),
    "mish": acts(nn.Mish),
    "mm": Call.product,
    "mul": product,
    "ne": pair("unequal"),
    "neg": lambda call, operand: call.add(op.Sum((-1,)), operand),
    "pow": power,
    "reciprocal": lambda call, operand: call.add(
        op.Quotient(), 1.0, call.as_kind(operand, torch.float32)
    ),
    "relu": acts(nn.ReLU),
    "relu6": acts(nn.ReLU6),
    "remainder": pair("modulo"),
    "rms_norm": _rms_norm,
    "rsqrt": function("rsqrt"),
    "rsub": lambda call, operand, other, **more: _add(-1)(call, other, operand, **more),
    "scaled_dot_product_attention": _attention,
    "selu": lambda call, operand: call.add(op.Whole(nn.SELU()), operand),
    "sigmoid": acts(nn.Sigmoid),
    "sign": function("sign"),
    "silu": acts(nn.SiLU),
    "sin": function("sin"),
    "softmax": lambda call, operand, dim, *_: call.add(
        op.Softmax(call.axis(operand, dim)), operand
    ),
    "softplus": _softplus,
    "sqrt": function("sqrt"),
    "square": lambda call, operand: power(call, operand, 2.0),
    "sub": _add(-1),
    "sum": _reduce("sum"),
    "tanh": acts(nn.Tanh),
    "upsample_bilinear2d": linear_interpolation,
    "upsample_linear1d": linear_interpolation,
    **{f"upsample_nearest{count}d": nearest for count in (1, 2, 3)},
    "var": _variance,
    "where": where,
    "__and__": _logic(op.Pair("and")),
    "__or__": _logic(op.Pair("or")),
}
