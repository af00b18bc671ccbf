"""Define what ONNX's operators mean, one row each: those that compute.

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


def _number(call: OnnxCall, name: str, default: float) -> float:
    """A float32 attribute: the real number that it is."""
    return float(np.float32(call.attributes.get(name, default)))


def _hard_sigmoid(call: OnnxCall, operand: Any) -> Value:
    slope, shift = _number(call, "alpha", 0.2), _number(call, "beta", 0.5)
    moved = call.summed(call.add(op.Product(), operand, slope), shift)
    return call.add(op.Clamp(0.0, 1.0), moved)


def _bound(call: OnnxCall, source: Any) -> float:
    """Return an end of a Clip as a number. For quantized values it may be an integer of 8 bits,
    which is no constant of a graph.
    """
    return (
        float(source.first)
        if isinstance(source, Known) and source.fixed
        else float(call.known(source, "bound"))
    )


def _clip(call: OnnxCall, operand: Any, low: Any = None, high: Any = None) -> Value:
    low = call.attributes.get("min", -math.inf) if low is None else _bound(call, low)
    high = call.attributes.get("max", math.inf) if high is None else _bound(call, high)
    return (
        activation(call, operand, nn.ReLU())
        if (low, high) == (0, math.inf)
        else call.add(op.Clamp(low, high), operand)
    )


def _swish(call: OnnxCall, operand: Any) -> Value:
    call.expect(alpha=1.0)
    return activation(call, operand, nn.SiLU())


def _divide(call: OnnxCall, operand: Any, other: Any) -> Value:
    operands = call.alike(operand, other)
    if call.node(operands[0]).dtype != torch.float32:
        call.refuse("divides integers and rounds towards zero; only real numbers are divided here")
    return call.add(op.Quotient(), *operands)


def _gemm(call: OnnxCall, operand: Any, weight: Any, bias: Any = None) -> Value:
    alpha, beta = _number(call, "alpha", 1.0), _number(call, "beta", 1.0)
    operand = (
        call.transposed(call.value(operand), 0, 1)
        if call.attributes.get("transA", 0)
        else call.value(operand)
    )
    weight = (
        call.value(weight)
        if not call.attributes.get("transB", 0)
        else call.transposed(call.value(weight), 0, 1)
    )
    known = call.builder.known(weight)
    shift = None if bias is None else call.builder.known(call.value(bias))
    # A Linear where weight and bias are constants as they stand; else a product, scaled, plus the
    # bias, scaled.
    plain = (
        alpha == 1
        and beta == 1
        and known is not None
        and (bias is None or (shift is not None and shift.ndim == 1))
    )
    if plain and known is not None and (shift is None or len(shift) == known.shape[1]):
        return call.add(op.Linear(known.T, shift), operand)
    product = call.product(operand, weight)
    product = product if alpha == 1 else call.add(op.Product(), product, alpha)
    return (
        product
        if bias is None
        else call.summed(product, bias if beta == 1 else call.add(op.Product(), bias, beta))
    )


def _window(
    call: OnnxCall, kernel: tuple[int, ...], operand: Value
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Strides and dilations, and the padding: all beginnings, then all ends."""
    count = len(kernel)
    strides, dilations = (
        tuple(call.attributes.get(name, [1] * count)) for name in ("strides", "dilations")
    )
    pads = list(call.attributes.get("pads", [0] * 2 * count))
    auto = call.attributes.get("auto_pad", b"NOTSET")
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        if max(dilations) > 1:
            call.refuse(
                f"auto_pad = {auto!r} of a dilated window, which ONNX Runtime pads otherwise: give"
                " pads"
            )
        # The output has ceil(size / stride) entries: pad as much as that takes, the odd one at the
        # end (SAME_UPPER) or at the beginning.
        for place, size in enumerate(call.node(operand).shape[2:]):
            reach = dilations[place] * (kernel[place] - 1) + 1
            total = max((-(-size // strides[place]) - 1) * strides[place] + reach - size, 0)
            ends = (total // 2, total - total // 2)
            pads[place], pads[place + count] = ends if auto == b"SAME_UPPER" else ends[::-1]
    elif auto == b"VALID":
        pads = [0] * 2 * count
    elif auto not in (b"NOTSET", b""):
        call.refuse(f"auto_pad = {auto!r} is not read")
    return [strides, dilations], pads


def _padded(
    call: OnnxCall, operand: Value, pads: list[int], fill: float = 0.0, kernel: tuple[int, ...] = ()
) -> tuple[Value, tuple[int, ...]]:
    """Padding that is the same on both sides, and at most half of a pool's kernel, is left to
    the operation.
    """
    before, behind = tuple(pads[: len(pads) // 2]), tuple(pads[len(pads) // 2 :])
    within = all(2 * pad <= size for pad, size in zip(before, kernel, strict=False))
    if before == behind and min(before, default=0) >= 0 and within:
        return operand, before
    if min(pads) < 0:
        call.refuse(f"pads = {pads}: negative padding is not read")
    widths = ((0, 0), (0, 0), *zip(before, behind, strict=True))
    return call.add(Pad(widths, fill), operand), (0,) * len(before)


def _convolution(call: OnnxCall, operand: Any, weight: Any, bias: Any = None) -> Value:
    kernel = call.known(weight, "weight")
    (strides, dilations), pads = _window(call, tuple(kernel.shape[2:]), operand)
    operand, padding = _padded(call, operand, pads)
    groups = int(call.attributes.get("group", 1))
    return call.add(
        op.Convolution(kernel, call.optional(bias, "bias"), strides, padding, dilations, groups),
        operand,
    )


def _transposed(call: OnnxCall, operand: Any, weight: Any, bias: Any = None) -> Value:
    call.expect(auto_pad=b"NOTSET")
    if "output_shape" in call.attributes:
        call.refuse("output_shape is not read: give pads")
    kernel = call.known(weight, "weight")
    count = kernel.ndim - 2
    (strides, dilations), pads = _window(call, tuple(kernel.shape[2:]), operand)
    extra = tuple(call.attributes.get("output_padding", [0] * count))
    if pads[:count] != pads[count:]:
        call.refuse(f"pads = {pads} differ on the two sides")
    groups = int(call.attributes.get("group", 1))
    window = (strides, tuple(pads[:count]), dilations, groups, True, extra)
    return call.add(op.Convolution(kernel, call.optional(bias, "bias"), *window), operand)


def _batch_norm(
    call: OnnxCall, operand: Any, scale: Any, shift: Any, mean: Any, variance: Any
) -> Value:
    call.expect(training_mode=0, spatial=1)
    return batch_norm(call, operand, mean, variance, scale, shift, _number(call, "epsilon", 1e-5))


def _max_pool(call: OnnxCall, operand: Any) -> Value:
    call.expect(storage_order=0)
    kernel = tuple(call.attributes["kernel_shape"])
    (strides, dilations), pads = _window(call, kernel, operand)
    operand, padding = _padded(call, operand, pads, -math.inf, kernel)
    return call.add(
        op.MaxPool(kernel, strides, padding, dilations, bool(call.attributes.get("ceil_mode", 0))),
        operand,
    )


def _average_pool(call: OnnxCall, operand: Any) -> Value:
    kernel, counts = (
        tuple(call.attributes["kernel_shape"]),
        bool(call.attributes.get("count_include_pad", 0)),
    )
    (strides, dilations), pads = _window(call, kernel, operand)
    if set(dilations) != {1}:
        call.refuse("averages dilated windows")
    padded, padding = _padded(call, operand, pads, 0.0, kernel)
    # Padding of its own node cannot tell the pool what not to count.
    if padded != operand and not counts:
        return _counted(call, padded, kernel, strides)
    return call.add(
        op.AveragePool(kernel, strides, padding, bool(call.attributes.get("ceil_mode", 0)), counts),
        padded,
    )


def _counted(
    call: OnnxCall, padded: Value, kernel: tuple[int, ...], strides: tuple[int, ...]
) -> Value:
    """Means of the entries of each window that are no padding: their sum, divided by how many
    there are.
    """
    call.expect(ceil_mode=0)
    node = call.node(padded)
    sizes, ones = call.builder.nodes[node.sources[0]].shape, torch.ones(1, 1, *kernel)
    window = (None, strides, (0,) * len(kernel), (1,) * len(kernel))
    counts = op.Convolution(ones, *window)(node.operation(torch.ones(1, 1, *sizes[2:])))
    if not bool(counts.all()):
        call.refuse("a window lies in the padding alone")
    sums = op.Convolution(ones.repeat(sizes[1], *[1] * (ones.ndim - 1)), *window, groups=sizes[1])
    return call.add(op.Quotient(), call.add(sums, padded), counts)


def _reduce(name: str, *, of: op.Operation | None = None) -> Reader:
    """Over axes, of the operands themselves or of what `of` makes of them."""

    def read(call: OnnxCall, operand: Any, axes: Any = None) -> Value:
        value = call.value(operand)
        value = call.add(of, value) if of else value
        dims = call.axes_of(axes, value)
        if not dims and call.attributes.get("noop_with_empty_axes", 0):
            return value
        return call.add(
            op.Reduction(name, call.axes(value, dims), bool(call.attributes.get("keepdims", 1))),
            value,
        )

    return read


def _over_space(name: str) -> Reader:
    return lambda call, operand: call.add(
        op.Reduction(name, tuple(range(2, len(call.node(operand).shape))), True), operand
    )


def _softmax(log: bool) -> Reader:
    """Before opset 13 over all axes from the given one on, by default the second, as if they
    were one.
    """

    def read(call: OnnxCall, operand: Any) -> Value:
        operand = call.value(operand)
        axis = call.axis(operand, int(call.attributes.get("axis", -1 if call.opset >= 13 else 1)))
        shape = call.node(operand).shape
        if call.opset >= 13 or axis == len(shape) - 1:
            return call.add(op.Softmax(axis, log), operand)
        if min(shape[axis:]) < 0:
            call.refuse(
                f"in opset {call.opset} it is over the batch too: convert the file to opset 13 or"
                " above"
            )
        flat = call.reshaped(operand, (*shape[:axis], math.prod(shape[axis:])))
        return call.reshaped(call.add(op.Softmax(axis, log), flat), shape)

    return read


def _prelu(call: OnnxCall, operand: Any, slope: Any) -> Value:
    """One slope is a LeakyReLU's; of several, relu(x) - slope relu(-x), which rounds none of
    them.
    """
    slopes = call.known(slope, "slope")
    one = op.only_number(slopes)
    if one is not None and slopes.ndim <= len(call.node(call.value(operand)).shape):
        return activation(call, operand, nn.LeakyReLU(one))
    right, left = (
        activation(call, side, nn.ReLU()) for side in (operand, call.add(op.Sum((-1,)), operand))
    )
    return call.summed(right, call.add(op.Product(), left, slopes), -1)


def _selu(call: OnnxCall, operand: Any) -> Value:
    alpha, gamma = (
        _number(call, "alpha", 1.6732632423543772),
        _number(call, "gamma", 1.0507009873554805),
    )
    return call.add(op.Product(), activation(call, operand, nn.ELU(alpha)), gamma)


def _celu(call: OnnxCall, operand: Any) -> Value:
    alpha = _number(call, "alpha", 1.0)
    if not alpha > 0:
        call.refuse(f"alpha = {alpha:g}; only numbers above 0 are read")
    return call.add(
        op.Product(), activation(call, call.add(op.Quotient(), operand, alpha), nn.ELU()), alpha
    )


def _layer_norm(call: OnnxCall, operand: Any, weight: Any, bias: Any = None) -> Value:
    return layer_norm(
        call,
        operand,
        call.axis(operand, int(call.attributes.get("axis", -1))),
        weight,
        bias,
        _number(call, "epsilon", 1e-5),
    )


def _rms_norm(call: OnnxCall, operand: Any, weight: Any) -> Value:
    axes = tuple(
        range(
            call.axis(operand, int(call.attributes.get("axis", -1))), len(call.node(operand).shape)
        )
    )
    return call.add(
        op.RMSNorm(axes, _number(call, "epsilon", 1e-5), call.optional(weight, "weight")), operand
    )


def _grouped(call: OnnxCall, operand: Any, weight: Any, bias: Any) -> Value:
    channels = call.node(operand).shape[1]
    groups = int(call.attributes.get("num_groups", channels))
    weight, bias = call.known(weight, "weight"), call.known(bias, "bias")
    if call.opset < 21 and len(weight) == groups:  # before, there was one for each group
        weight, bias = (
            parameter.repeat_interleave(channels // groups) for parameter in (weight, bias)
        )
    return grouped(call, operand, groups, weight, bias, _number(call, "epsilon", 1e-5))


def _cumulative(call: OnnxCall, operand: Any, axis: Any) -> Value:
    call.expect(exclusive=0, reverse=0)
    return call.add(
        op.CumulativeSum(call.axis(call.value(operand), call.numbers(axis)[0])), operand
    )


def _modulo(call: OnnxCall, operand: Any, other: Any) -> Value:
    call.expect(fmod=0)
    return call.add(op.Pair("modulo"), *call.alike(operand, other))


COMPUTING: dict[str, Reader] = {
    "Abs": function("abs"),
    "Add": lambda call, operand, other: call.summed(operand, other),
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
    "Elu": lambda call, operand: activation(call, operand, nn.ELU(_number(call, "alpha", 1.0))),
    "Equal": pair("equal"),
    "Erf": function("erf"),
    "Exp": function("exp"),
    "Floor": function("floor"),
    "Gelu": lambda call, operand: activation(
        call, operand, nn.GELU(call.attributes.get("approximate", b"none").decode())
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
    "LeakyRelu": lambda call, operand: activation(
        call, operand, nn.LeakyReLU(_number(call, "alpha", 0.01))
    ),
    "Less": pair("less"),
    "LessOrEqual": pair("less-equal"),
    "Log": function("log"),
    "LogSoftmax": _softmax(True),
    "MatMul": lambda call, operand, other: call.product(operand, other),
    "Max": pair("maximum"),
    "MaxPool": _max_pool,
    "Min": pair("minimum"),
    "Mish": acts(nn.Mish),
    "Mod": _modulo,
    "Mul": product,
    "Neg": lambda call, operand: call.add(op.Sum((-1,)), operand),
    "Not": function("not", torch.bool),
    "Or": pair("or"),
    "PRelu": _prelu,
    "Pow": power,
    "RMSNormalization": _rms_norm,
    "Reciprocal": lambda call, operand: call.add(op.Quotient(), 1.0, operand),
    "ReduceL1": _reduce("sum", of=op.Function("abs")),
    "ReduceL2": lambda call, *operands: call.add(
        op.Function("sqrt"), _reduce("sum", of=op.Power(2.0))(call, *operands)
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
    "Sub": lambda call, operand, other: call.summed(operand, other, -1),
    "Sum": lambda call, *operands: call.add(op.Sum((1,) * len(operands)), *call.alike(*operands)),
    "Swish": _swish,
    "Tanh": acts(nn.Tanh),
    "Where": where,
    "Xor": pair("xor"),
}


_UINT8 = Known(*2 * (np.zeros((), dtype=np.uint8),))
_OF_UINT8 = 2


def _along(call: OnnxCall, parameter: torch.Tensor, dimensions: int) -> torch.Tensor:
    """One number, or one for each place of the axis, to be broadcast."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    axis = int(call.attributes.get("axis", 1)) % max(dimensions, 1)
    return parameter.reshape([-1 if place == axis else 1 for place in range(dimensions)])


def _zero(call: OnnxCall, source: Any) -> Known:
    call.expect(block_size=0)
    if not isinstance(source, Known) or not source.fixed or source.first.dtype.kind not in "iu":
        call.refuse("its zero point is no constant integer")
    return source


def _quantize(call: OnnxCall, operand: Any, scale: Any, zero: Any = None) -> Value:
    if zero is None:
        call.expect(output_dtype=_OF_UINT8)
    held, source = _zero(call, _UINT8 if zero is None else zero).first, call.value(operand)
    dimensions, kind = len(call.node(source).shape), np.iinfo(held.dtype)
    # clamp(round(x / scale) + zero point), in real numbers that are whole.
    steps = call.add(Quotient(), source, _along(call, call.known(scale, "scale"), dimensions))
    rounded, shift = call.add(Function("round"), steps), torch.from_numpy(held.astype(np.float32))
    rounded = (
        call.summed(rounded, _along(call, shift, dimensions)) if bool(shift.any()) else rounded
    )
    return call.add(Clamp(float(kind.min), float(kind.max)), rounded)


def _dequantize(call: OnnxCall, operand: Any, scale: Any, zero: Any = None) -> Value:
    """Read a DequantizeLinear; constants become the float32 numbers that the file computes with."""
    shift = (
        torch.zeros(())
        if zero is None
        else torch.from_numpy(_zero(call, zero).first.astype(np.float32))
    )
    factor = call.known(scale, "scale")
    if isinstance(operand, Known):
        # Exact in float64, then rounded once, as float32 rounds the product.
        held = torch.from_numpy(_zero(call, operand).first.astype(np.float64))
        shift, factor = (
            _along(call, parameter, held.ndim).double() for parameter in (shift, factor)
        )
        return call.value(((held - shift) * factor).float())
    source = call.value(operand)
    shift, factor = (
        _along(call, parameter, len(call.node(source).shape)) for parameter in (shift, factor)
    )
    moved = call.summed(source, shift, -1) if bool(shift.any()) else source
    return call.add(Product(), moved, factor)


QUANTIZED = {"DequantizeLinear": _dequantize, "QuantizeLinear": _quantize}
