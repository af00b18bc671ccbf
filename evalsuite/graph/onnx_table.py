"""What ONNX's operators mean, one row each: those that compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from evalsuite.graph.aten import activation
from evalsuite.graph.call import Value
from evalsuite.graph.moving import Pad
from evalsuite.graph.onnx_call import Known, OnnxCall
from evalsuite.graph.operations import (
    AveragePool,
    BatchNorm,
    Clamp,
    Convolution,
    CumulativeSum,
    Function,
    LayerNorm,
    Linear,
    MaxPool,
    Operation,
    Pair,
    Power,
    Product,
    Quotient,
    Reduction,
    RMSNorm,
    Softmax,
    Sum,
    Where,
)

Reader = Callable[..., Any]


def _act(make: Callable[[OnnxCall], nn.Module]) -> Reader:
    return lambda c, x: activation(c, x, make(c))


def _function(name: str, kind: torch.dtype = torch.float32) -> Reader:
    return lambda c, x: c.add(Function(name), c.as_kind(x, kind))


def _pair(name: str) -> Reader:
    def read(c: OnnxCall, first: Any, *more: Any) -> Value:
        total = c.value(first)
        for each in more:
            total = c.add(Pair(name), *c.alike(total, each))
        return total

    return read


def _number(c: OnnxCall, name: str, default: float) -> float:
    """A float32 attribute: the real number that it is."""
    return float(np.float32(c.attributes.get(name, default)))


def _elu(c: OnnxCall) -> nn.Module:
    return nn.ELU(_number(c, "alpha", 1.0))


def _gelu(c: OnnxCall) -> nn.Module:
    return nn.GELU({b"none": "none", b"tanh": "tanh"}[c.attributes.get("approximate", b"none")])


def _hard_sigmoid(c: OnnxCall, x: Any) -> Value:
    slope, shift = _number(c, "alpha", 0.2), _number(c, "beta", 0.5)
    moved = c.summed(c.add(Product(), x, slope), shift)
    return c.add(Clamp(0.0, 1.0), moved)


def _hard_swish(c: OnnxCall, x: Any) -> Value:
    return activation(c, x, nn.Hardswish())


def _bound(c: OnnxCall, given: Any) -> float:
    """Of quantized values it may be an integer of 8 bits, which is no constant of a graph."""
    return float(given.first) if isinstance(given, Known) and given.fixed else float(c.known(given, "bound"))


def _clip(c: OnnxCall, x: Any, low: Any = None, high: Any = None) -> Value:
    low = c.attributes.get("min", -math.inf) if low is None else _bound(c, low)
    high = c.attributes.get("max", math.inf) if high is None else _bound(c, high)
    return activation(c, x, nn.ReLU()) if (low, high) == (0, math.inf) else c.add(Clamp(low, high), x)


def _swish(c: OnnxCall, x: Any) -> Value:
    c.expect(alpha=1.0)
    return activation(c, x, nn.SiLU())


def _divide(c: OnnxCall, x: Any, y: Any) -> Value:
    given = c.alike(x, y)
    if c.node(given[0]).dtype != torch.float32:
        c.refuse("divides integers and rounds towards zero; only real numbers are divided here")
    return c.add(Quotient(), *given)


def _power(c: OnnxCall, x: Any, exponent: Any) -> Value:
    return c.add(Power(float(c.known(exponent, "exponent"))), c.as_kind(x, torch.float32))


def _gemm(c: OnnxCall, x: Any, weight: Any, bias: Any = None) -> Value:
    alpha, beta = _number(c, "alpha", 1.0), _number(c, "beta", 1.0)
    x = c.transposed(c.value(x), 0, 1) if c.attributes.get("transA", 0) else c.value(x)
    weight = c.value(weight) if not c.attributes.get("transB", 0) else c.transposed(c.value(weight), 0, 1)
    known = c.builder.known(weight)
    shift = None if bias is None else c.builder.known(c.value(bias))
    plain = alpha == 1 and beta == 1 and known is not None and (bias is None or (shift is not None and shift.ndim == 1))
    if plain and known is not None and (shift is None or len(shift) == known.shape[1]):
        return c.add(Linear(known.T, shift), x)
    made = c.product(x, weight)
    made = made if alpha == 1 else c.add(Product(), made, alpha)
    return made if bias is None else c.summed(made, bias if beta == 1 else c.add(Product(), bias, beta))


def _window(c: OnnxCall, kernel: tuple[int, ...], x: Value) -> tuple[list[tuple[int, ...]], list[int]]:
    """Strides and dilations, and the padding: all beginnings, then all ends."""
    count = len(kernel)
    strides, dilations = (tuple(c.attributes.get(each, [1] * count)) for each in ("strides", "dilations"))
    pads = list(c.attributes.get("pads", [0] * 2 * count))
    auto = c.attributes.get("auto_pad", b"NOTSET")
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        for place, size in enumerate(c.node(x).shape[2:]):
            reach = dilations[place] * (kernel[place] - 1) + 1
            total = max((-(-size // strides[place]) - 1) * strides[place] + reach - size, 0)
            ends = (total // 2, total - total // 2)
            pads[place], pads[place + count] = ends if auto == b"SAME_UPPER" else ends[::-1]
    elif auto == b"VALID":
        pads = [0] * 2 * count
    elif auto not in (b"NOTSET", b""):
        c.refuse(f"auto_pad = {auto!r} is not read")
    return [strides, dilations], pads


def _padded(
    c: OnnxCall, x: Value, pads: list[int], fill: float = 0.0, kernel: tuple[int, ...] = ()
) -> tuple[Value, tuple[int, ...]]:
    """Padding that is the same on both sides, and at most half of a pool's kernel, is left to the operation."""
    before, behind = tuple(pads[: len(pads) // 2]), tuple(pads[len(pads) // 2 :])
    within = all(2 * pad <= size for pad, size in zip(before, kernel, strict=False))
    if before == behind and min(before, default=0) >= 0 and within:
        return x, before
    if min(pads) < 0:
        c.refuse(f"pads = {pads}: negative padding is not read")
    widths = ((0, 0), (0, 0), *zip(before, behind, strict=True))
    return c.add(Pad(widths, fill), x), (0,) * len(before)


def _convolution(c: OnnxCall, x: Any, weight: Any, bias: Any = None) -> Value:
    kernel = c.known(weight, "weight")
    (strides, dilations), pads = _window(c, tuple(kernel.shape[2:]), x)
    x, padding = _padded(c, x, pads)
    groups = int(c.attributes.get("group", 1))
    return c.add(Convolution(kernel, c.optional(bias, "bias"), strides, padding, dilations, groups), x)


def _transposed(c: OnnxCall, x: Any, weight: Any, bias: Any = None) -> Value:
    c.expect(auto_pad=b"NOTSET")
    if "output_shape" in c.attributes:
        c.refuse("output_shape is not read: give pads")
    kernel = c.known(weight, "weight")
    count = kernel.ndim - 2
    (strides, dilations), pads = _window(c, tuple(kernel.shape[2:]), x)
    extra = tuple(c.attributes.get("output_padding", [0] * count))
    if pads[:count] != pads[count:]:
        c.refuse(f"pads = {pads} differ on the two sides")
    groups = int(c.attributes.get("group", 1))
    window = (strides, tuple(pads[:count]), dilations, groups, True, extra)
    return c.add(Convolution(kernel, c.optional(bias, "bias"), *window), x)


def _batch_norm(c: OnnxCall, x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Value:
    c.expect(training_mode=0, spatial=1)
    given = [c.known(each, "statistics") for each in (mean, variance, scale, shift)]
    return c.add(BatchNorm(given[0], given[1], given[2], given[3], _number(c, "epsilon", 1e-5)), x)


def _max_pool(c: OnnxCall, x: Any) -> Value:
    c.expect(storage_order=0)
    kernel = tuple(c.attributes["kernel_shape"])
    (strides, dilations), pads = _window(c, kernel, x)
    x, padding = _padded(c, x, pads, -math.inf, kernel)
    return c.add(MaxPool(kernel, strides, padding, dilations, bool(c.attributes.get("ceil_mode", 0))), x)


def _average_pool(c: OnnxCall, x: Any) -> Value:
    kernel, counts = tuple(c.attributes["kernel_shape"]), bool(c.attributes.get("count_include_pad", 0))
    (strides, dilations), pads = _window(c, kernel, x)
    if set(dilations) != {1}:
        c.refuse("averages dilated windows")
    padded, padding = _padded(c, x, pads, 0.0, kernel)
    if padded != x and not counts:
        return _counted(c, padded, kernel, strides)
    return c.add(AveragePool(kernel, strides, padding, bool(c.attributes.get("ceil_mode", 0)), counts), padded)


def _counted(c: OnnxCall, padded: Value, kernel: tuple[int, ...], strides: tuple[int, ...]) -> Value:
    """Means of the entries of each window that are no padding: their sum, divided by how many there are."""
    c.expect(ceil_mode=0)
    node = c.node(padded)
    sizes, ones = c.builder.nodes[node.sources[0]].shape, torch.ones(1, 1, *kernel)
    window = (None, strides, (0,) * len(kernel), (1,) * len(kernel))
    counts = Convolution(ones, *window)(node.operation(torch.ones(1, 1, *sizes[2:])))
    if not bool(counts.all()):
        c.refuse("a window lies in the padding alone")
    sums = Convolution(ones.repeat(sizes[1], *[1] * (ones.ndim - 1)), *window, groups=sizes[1])
    return c.add(Quotient(), c.add(sums, padded), counts)


def _reduce(name: str, *, of: Operation | None = None) -> Reader:
    """Over axes, of the operands themselves or of what `of` makes of them."""

    def read(c: OnnxCall, given: Any, axes: Any = None) -> Value:
        x = c.value(given)
        x = c.add(of, x) if of else x
        found = c.axes_of(axes, x)
        if not found and c.attributes.get("noop_with_empty_axes", 0):
            return x
        return c.add(Reduction(name, c.axes(x, found), bool(c.attributes.get("keepdims", 1))), x)

    return read


def _over_space(name: str) -> Reader:
    return lambda c, x: c.add(Reduction(name, tuple(range(2, len(c.node(x).shape))), True), x)


def _softmax(log: bool) -> Reader:
    def read(c: OnnxCall, x: Any) -> Value:
        if c.opset < 13:
            c.refuse(f"it flattens in opset {c.opset}; only 13 and above are read: convert the file")
        return c.add(Softmax(c.axis(x, int(c.attributes.get("axis", -1))), log), x)

    return read


def _layer_norm(c: OnnxCall, x: Any, weight: Any, bias: Any = None) -> Value:
    axes = tuple(range(c.axis(x, int(c.attributes.get("axis", -1))), len(c.node(x).shape)))
    eps = _number(c, "epsilon", 1e-5)
    return c.add(LayerNorm(axes, eps, c.optional(weight, "weight"), c.optional(bias, "bias")), x)


def _rms_norm(c: OnnxCall, x: Any, weight: Any) -> Value:
    axes = tuple(range(c.axis(x, int(c.attributes.get("axis", -1))), len(c.node(x).shape)))
    return c.add(RMSNorm(axes, _number(c, "epsilon", 1e-5), c.optional(weight, "weight")), x)


def _grouped(c: OnnxCall, x: Any, weight: Any, bias: Any) -> Value:
    """InstanceNormalization and GroupNormalization: each group of channels is normed, then scaled and shifted."""
    sizes = c.node(x).shape
    groups = int(c.attributes.get("num_groups", sizes[1]))
    parted = c.reshaped(x, (sizes[0], groups, sizes[1] // groups, *sizes[2:]))
    made = c.add(LayerNorm(tuple(range(2, len(sizes) + 1)), _number(c, "epsilon", 1e-5)), parted)
    column = (-1, *[1] * (len(sizes) - 2))
    scaled = c.add(Product(), c.reshaped(made, sizes), c.known(weight, "weight").reshape(column))
    return c.summed(scaled, c.known(bias, "bias").reshape(column))


def _cumulative(c: OnnxCall, x: Any, axis: Any) -> Value:
    c.expect(exclusive=0, reverse=0)
    return c.add(CumulativeSum(c.axis(c.value(x), c.numbers(axis)[0])), x)


def _where(c: OnnxCall, mask: Any, first: Any, second: Any) -> Value:
    return c.add(Where(), mask, *c.alike(first, second))


def _modulo(c: OnnxCall, x: Any, y: Any) -> Value:
    c.expect(fmod=0)
    return c.add(Pair("modulo"), *c.alike(x, y))


def _sum(c: OnnxCall, *given: Any) -> Value:
    return c.add(Sum((1,) * len(given)), *c.alike(*given))


COMPUTING: dict[str, Reader] = {
    "Abs": _function("abs"), "Add": lambda c, x, y: c.summed(x, y), "And": _pair("and"), "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm, "Clip": _clip, "Conv": _convolution, "ConvTranspose": _transposed,
    "Cos": _function("cos"), "CumSum": _cumulative, "Div": _divide, "Elu": _act(_elu), "Equal": _pair("equal"),
    "Erf": _function("erf"), "Exp": _function("exp"), "Floor": _function("floor"), "Gelu": _act(_gelu), "Gemm": _gemm,
    "GlobalAveragePool": _over_space("mean"), "GlobalMaxPool": _over_space("maximum"), "Greater": _pair("greater"),
    "GreaterOrEqual": _pair("greater-equal"), "GroupNormalization": _grouped, "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish, "InstanceNormalization": _grouped, "IsNaN": _function("nan"),
    "LayerNormalization": _layer_norm, "LeakyRelu": _act(lambda c: nn.LeakyReLU(_number(c, "alpha", 0.01))),
    "Less": _pair("less"), "LessOrEqual": _pair("less-equal"), "Log": _function("log"), "LogSoftmax": _softmax(True),
    "MatMul": lambda c, x, y: c.product(x, y), "Max": _pair("maximum"), "MaxPool": _max_pool, "Min": _pair("minimum"),
    "Mish": _act(lambda _: nn.Mish()), "Mod": _modulo, "Mul": lambda c, x, y: c.add(Product(), *c.alike(x, y)),
    "Neg": lambda c, x: c.add(Sum((-1,)), x), "Not": _function("not", torch.bool), "Or": _pair("or"), "Pow": _power,
    "RMSNormalization": _rms_norm,
    "Reciprocal": lambda c, x: c.add(Quotient(), 1.0, x), "ReduceL1": _reduce("sum", of=Function("abs")),
    "ReduceL2": lambda c, *given: c.add(Function("sqrt"), _reduce("sum", of=Power(2.0))(c, *given)),
    "ReduceMax": _reduce("maximum"),
    "ReduceMean": _reduce("mean"), "ReduceMin": _reduce("minimum"), "ReduceSum": _reduce("sum"),
    "ReduceSumSquare": _reduce("sum", of=Power(2.0)), "Relu": _act(lambda _: nn.ReLU()),
    "Sigmoid": _act(lambda _: nn.Sigmoid()), "Sign": _function("sign"), "Sin": _function("sin"),
    "Softmax": _softmax(False),
    "Softplus": _act(lambda _: nn.Softplus(threshold=40)), "Sqrt": _function("sqrt"),
    "Sub": lambda c, x, y: c.summed(x, y, -1), "Sum": _sum, "Swish": _swish,
    "Tanh": _act(lambda _: nn.Tanh()), "Where": _where, "Xor": _pair("xor"),
}  # fmt: skip
