"""What ONNX's operators mean, one row each: those that compute.

QuantizeLinear and DequantizeLinear make whole numbers, which are kept as the real numbers that they
are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from opgraph import operations as op
from opgraph.call import Known, OnnxCall, Value
from opgraph.moving import Pad
from opgraph.operations import Clamp, Function, Product, Quotient
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
    where,
)


def _number(c: OnnxCall, name: str, default: float) -> float:
    """A float32 attribute: the real number that it is."""
    return float(np.float32(c.attributes.get(name, default)))


def _hard_sigmoid(c: OnnxCall, x: Any) -> Value:
    slope, shift = _number(c, "alpha", 0.2), _number(c, "beta", 0.5)
    moved = c.summed(c.add(op.Product(), x, slope), shift)
    return c.add(op.Clamp(0.0, 1.0), moved)


def _bound(c: OnnxCall, given: Any) -> float:
    """Return an end of a Clip as a number. For quantized values it may be an integer of 8 bits,
    which is no constant of a graph.
    """
    return (
        float(given.first)
        if isinstance(given, Known) and given.fixed
        else float(c.known(given, "bound"))
    )


def _clip(c: OnnxCall, x: Any, low: Any = None, high: Any = None) -> Value:
    low = c.attributes.get("min", -math.inf) if low is None else _bound(c, low)
    high = c.attributes.get("max", math.inf) if high is None else _bound(c, high)
    return (
        activation(c, x, nn.ReLU())
        if (low, high) == (0, math.inf)
        else c.add(op.Clamp(low, high), x)
    )


def _swish(c: OnnxCall, x: Any) -> Value:
    c.expect(alpha=1.0)
    return activation(c, x, nn.SiLU())


def _divide(c: OnnxCall, x: Any, y: Any) -> Value:
    given = c.alike(x, y)
    if c.node(given[0]).dtype != torch.float32:
        c.refuse("divides integers and rounds towards zero; only real numbers are divided here")
    return c.add(op.Quotient(), *given)


def _gemm(c: OnnxCall, x: Any, weight: Any, bias: Any = None) -> Value:
    alpha, beta = _number(c, "alpha", 1.0), _number(c, "beta", 1.0)
    x = c.transposed(c.value(x), 0, 1) if c.attributes.get("transA", 0) else c.value(x)
    weight = (
        c.value(weight)
        if not c.attributes.get("transB", 0)
        else c.transposed(c.value(weight), 0, 1)
    )
    known = c.builder.known(weight)
    shift = None if bias is None else c.builder.known(c.value(bias))
    # A Linear where weight and bias are constants as they stand; else a product, scaled, plus the
    # bias, scaled.
    plain = (
        alpha == 1
        and beta == 1
        and known is not None
        and (bias is None or (shift is not None and shift.ndim == 1))
    )
    if plain and known is not None and (shift is None or len(shift) == known.shape[1]):
        return c.add(op.Linear(known.T, shift), x)
    made = c.product(x, weight)
    made = made if alpha == 1 else c.add(op.Product(), made, alpha)
    return (
        made
        if bias is None
        else c.summed(made, bias if beta == 1 else c.add(op.Product(), bias, beta))
    )


def _window(
    c: OnnxCall, kernel: tuple[int, ...], x: Value
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Strides and dilations, and the padding: all beginnings, then all ends."""
    count = len(kernel)
    strides, dilations = (
        tuple(c.attributes.get(each, [1] * count)) for each in ("strides", "dilations")
    )
    pads = list(c.attributes.get("pads", [0] * 2 * count))
    auto = c.attributes.get("auto_pad", b"NOTSET")
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        if max(dilations) > 1:
            c.refuse(
                f"auto_pad = {auto!r} of a dilated window, which ONNX Runtime pads otherwise: give"
                " pads"
            )
        # The output has ceil(size / stride) entries: pad as much as that takes, the odd one at the
        # end (SAME_UPPER) or at the beginning.
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
    """Padding that is the same on both sides, and at most half of a pool's kernel, is left to
    the operation.
    """
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
    return c.add(
        op.Convolution(kernel, c.optional(bias, "bias"), strides, padding, dilations, groups), x
    )


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
    return c.add(op.Convolution(kernel, c.optional(bias, "bias"), *window), x)


def _batch_norm(c: OnnxCall, x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Value:
    c.expect(training_mode=0, spatial=1)
    return batch_norm(c, x, mean, variance, scale, shift, _number(c, "epsilon", 1e-5))


def _max_pool(c: OnnxCall, x: Any) -> Value:
    c.expect(storage_order=0)
    kernel = tuple(c.attributes["kernel_shape"])
    (strides, dilations), pads = _window(c, kernel, x)
    x, padding = _padded(c, x, pads, -math.inf, kernel)
    return c.add(
        op.MaxPool(kernel, strides, padding, dilations, bool(c.attributes.get("ceil_mode", 0))), x
    )


def _average_pool(c: OnnxCall, x: Any) -> Value:
    kernel, counts = (
        tuple(c.attributes["kernel_shape"]),
        bool(c.attributes.get("count_include_pad", 0)),
    )
    (strides, dilations), pads = _window(c, kernel, x)
    if set(dilations) != {1}:
        c.refuse("averages dilated windows")
    padded, padding = _padded(c, x, pads, 0.0, kernel)
    # Padding of its own node cannot tell the pool what not to count.
    if padded != x and not counts:
        return _counted(c, padded, kernel, strides)
    return c.add(
        op.AveragePool(kernel, strides, padding, bool(c.attributes.get("ceil_mode", 0)), counts),
        padded,
    )


def _counted(
    c: OnnxCall, padded: Value, kernel: tuple[int, ...], strides: tuple[int, ...]
) -> Value:
    """Means of the entries of each window that are no padding: their sum, divided by how many
    there are.
    """
    c.expect(ceil_mode=0)
    node = c.node(padded)
    sizes, ones = c.builder.nodes[node.sources[0]].shape, torch.ones(1, 1, *kernel)
    window = (None, strides, (0,) * len(kernel), (1,) * len(kernel))
    counts = op.Convolution(ones, *window)(node.operation(torch.ones(1, 1, *sizes[2:])))
    if not bool(counts.all()):
        c.refuse("a window lies in the padding alone")
    sums = op.Convolution(ones.repeat(sizes[1], *[1] * (ones.ndim - 1)), *window, groups=sizes[1])
    return c.add(op.Quotient(), c.add(sums, padded), counts)


def _reduce(name: str, *, of: op.Operation | None = None) -> Reader:
    """Over axes, of the operands themselves or of what `of` makes of them."""

    def read(c: OnnxCall, given: Any, axes: Any = None) -> Value:
        x = c.value(given)
        x = c.add(of, x) if of else x
        found = c.axes_of(axes, x)
        if not found and c.attributes.get("noop_with_empty_axes", 0):
            return x
        return c.add(op.Reduction(name, c.axes(x, found), bool(c.attributes.get("keepdims", 1))), x)

    return read


def _over_space(name: str) -> Reader:
    return lambda c, x: c.add(op.Reduction(name, tuple(range(2, len(c.node(x).shape))), True), x)


def _softmax(log: bool) -> Reader:
    """Before opset 13 over all axes from the given one on, by default the second, as if they
    were one.
    """

    def read(c: OnnxCall, x: Any) -> Value:
        x = c.value(x)
        axis = c.axis(x, int(c.attributes.get("axis", -1 if c.opset >= 13 else 1)))
        shape = c.node(x).shape
        if c.opset >= 13 or axis == len(shape) - 1:
            return c.add(op.Softmax(axis, log), x)
        if min(shape[axis:]) < 0:
            c.refuse(
                f"in opset {c.opset} it is over the batch too: convert the file to opset 13 or"
                " above"
            )
        flat = c.reshaped(x, (*shape[:axis], math.prod(shape[axis:])))
        return c.reshaped(c.add(op.Softmax(axis, log), flat), shape)

    return read


def _prelu(c: OnnxCall, x: Any, slope: Any) -> Value:
    """One slope is a LeakyReLU's; of several, relu(x) - slope relu(-x), which rounds none of
    them.
    """
    slopes = c.known(slope, "slope")
    one = op.only_number(slopes)
    if one is not None and slopes.ndim <= len(c.node(c.value(x)).shape):
        return activation(c, x, nn.LeakyReLU(one))
    right, left = (activation(c, each, nn.ReLU()) for each in (x, c.add(op.Sum((-1,)), x)))
    return c.summed(right, c.add(op.Product(), left, slopes), -1)


def _selu(c: OnnxCall, x: Any) -> Value:
    alpha, gamma = _number(c, "alpha", 1.6732632423543772), _number(c, "gamma", 1.0507009873554805)
    return c.add(op.Product(), activation(c, x, nn.ELU(alpha)), gamma)


def _celu(c: OnnxCall, x: Any) -> Value:
    alpha = _number(c, "alpha", 1.0)
    if not alpha > 0:
        c.refuse(f"alpha = {alpha:g}; only numbers above 0 are read")
    return c.add(op.Product(), activation(c, c.add(op.Quotient(), x, alpha), nn.ELU()), alpha)


def _layer_norm(c: OnnxCall, x: Any, weight: Any, bias: Any = None) -> Value:
    return layer_norm(
        c,
        x,
        c.axis(x, int(c.attributes.get("axis", -1))),
        weight,
        bias,
        _number(c, "epsilon", 1e-5),
    )


def _rms_norm(c: OnnxCall, x: Any, weight: Any) -> Value:
    axes = tuple(range(c.axis(x, int(c.attributes.get("axis", -1))), len(c.node(x).shape)))
    return c.add(op.RMSNorm(axes, _number(c, "epsilon", 1e-5), c.optional(weight, "weight")), x)


def _grouped(c: OnnxCall, x: Any, weight: Any, bias: Any) -> Value:
    channels = c.node(x).shape[1]
    groups = int(c.attributes.get("num_groups", channels))
    weight, bias = c.known(weight, "weight"), c.known(bias, "bias")
    if c.opset < 21 and len(weight) == groups:  # before, there was one for each group
        weight, bias = (each.repeat_interleave(channels // groups) for each in (weight, bias))
    return grouped(c, x, groups, weight, bias, _number(c, "epsilon", 1e-5))


def _cumulative(c: OnnxCall, x: Any, axis: Any) -> Value:
    c.expect(exclusive=0, reverse=0)
    return c.add(op.CumulativeSum(c.axis(c.value(x), c.numbers(axis)[0])), x)


def _modulo(c: OnnxCall, x: Any, y: Any) -> Value:
    c.expect(fmod=0)
    return c.add(op.Pair("modulo"), *c.alike(x, y))


COMPUTING: dict[str, Reader] = {
    "Abs": function("abs"),
    "Add": lambda c, x, y: c.summed(x, y),
    "And": pair("and"),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Celu": _celu,
    "Clip": _clip,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "Cos": function("cos"),
    "CumSum": _cumulative,
    "Div": _divide,
    "Elu": lambda c, x: activation(c, x, nn.ELU(_number(c, "alpha", 1.0))),
    "Equal": pair("equal"),
    "Erf": function("erf"),
    "Exp": function("exp"),
    "Floor": function("floor"),
    "Gelu": lambda c, x: activation(
        c, x, nn.GELU(c.attributes.get("approximate", b"none").decode())
    ),
    "Gemm": _gemm,
    "GlobalAveragePool": _over_space("mean"),
    "GlobalMaxPool": _over_space("maximum"),
    "Greater": pair("greater"),
    "GreaterOrEqual": pair("greater-equal"),
    "GroupNormalization": _grouped,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": acts(nn.Hardswish),
    "InstanceNormalization": _grouped,
    "IsNaN": function("nan"),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda c, x: activation(c, x, nn.LeakyReLU(_number(c, "alpha", 0.01))),
    "Less": pair("less"),
    "LessOrEqual": pair("less-equal"),
    "Log": function("log"),
    "LogSoftmax": _softmax(True),
    "MatMul": lambda c, x, y: c.product(x, y),
    "Max": pair("maximum"),
    "MaxPool": _max_pool,
    "Min": pair("minimum"),
    "Mish": acts(nn.Mish),
    "Mod": _modulo,
    "Mul": product,
    "Neg": lambda c, x: c.add(op.Sum((-1,)), x),
    "Not": function("not", torch.bool),
    "Or": pair("or"),
    "PRelu": _prelu,
    "Pow": power,
    "RMSNormalization": _rms_norm,
    "Reciprocal": lambda c, x: c.add(op.Quotient(), 1.0, x),
    "ReduceL1": _reduce("sum", of=op.Function("abs")),
    "ReduceL2": lambda c, *given: c.add(
        op.Function("sqrt"), _reduce("sum", of=op.Power(2.0))(c, *given)
    ),
    "ReduceMax": _reduce("maximum"),
    "ReduceMean": _reduce("mean"),
    "ReduceMin": _reduce("minimum"),
    "ReduceSum": _reduce("sum"),
    "ReduceSumSquare": _reduce("sum", of=op.Power(2.0)),
    "Relu": acts(nn.ReLU),
    "Selu": _selu,
    "Sigmoid": acts(nn.Sigmoid),
    "Sign": function("sign"),
    "Sin": function("sin"),
    "Softmax": _softmax(False),
    "Softplus": acts(lambda: nn.Softplus(threshold=40)),
    "Sqrt": function("sqrt"),
    "Sub": lambda c, x, y: c.summed(x, y, -1),
    "Sum": lambda c, *given: c.add(op.Sum((1,) * len(given)), *c.alike(*given)),
    "Swish": _swish,
    "Tanh": acts(nn.Tanh),
    "Where": where,
    "Xor": pair("xor"),
}


_UINT8 = Known(*2 * (np.zeros((), dtype=np.uint8),))
_OF_UINT8 = 2


def _along(c: OnnxCall, given: torch.Tensor, dimensions: int) -> torch.Tensor:
    """One number, or one for each place of the axis, to be broadcast."""
    if given.numel() == 1:
        return given.reshape(())
    axis = int(c.attributes.get("axis", 1)) % max(dimensions, 1)
    return given.reshape([-1 if place == axis else 1 for place in range(dimensions)])


def _zero(c: OnnxCall, given: Any) -> Known:
    c.expect(block_size=0)
    if not isinstance(given, Known) or not given.fixed or given.first.dtype.kind not in "iu":
        c.refuse("its zero point is no constant integer")
    return given


def _quantize(c: OnnxCall, x: Any, scale: Any, zero: Any = None) -> Value:
    if zero is None:
        c.expect(output_dtype=_OF_UINT8)
    held, source = _zero(c, _UINT8 if zero is None else zero).first, c.value(x)
    dimensions, kind = len(c.node(source).shape), np.iinfo(held.dtype)
    # clamp(round(x / scale) + zero point), in real numbers that are whole.
    steps = c.add(Quotient(), source, _along(c, c.known(scale, "scale"), dimensions))
    made, shift = c.add(Function("round"), steps), torch.from_numpy(held.astype(np.float32))
    made = c.summed(made, _along(c, shift, dimensions)) if bool(shift.any()) else made
    return c.add(Clamp(float(kind.min), float(kind.max)), made)


def _dequantize(c: OnnxCall, x: Any, scale: Any, zero: Any = None) -> Value:
    """Read a DequantizeLinear; constants become the float32 numbers that the file computes with."""
    shift = (
        torch.zeros(())
        if zero is None
        else torch.from_numpy(_zero(c, zero).first.astype(np.float32))
    )
    factor = c.known(scale, "scale")
    if isinstance(x, Known):
        # Exact in float64, then rounded once, as float32 rounds the product.
        held = torch.from_numpy(_zero(c, x).first.astype(np.float64))
        shift, factor = (_along(c, each, held.ndim).double() for each in (shift, factor))
        return c.value(((held - shift) * factor).float())
    source = c.value(x)
    shift, factor = (_along(c, each, len(c.node(source).shape)) for each in (shift, factor))
    moved = c.summed(source, shift, -1) if bool(shift.any()) else source
    return c.add(Product(), moved, factor)


QUANTIZED = {"DequantizeLinear": _dequantize, "QuantizeLinear": _quantize}
