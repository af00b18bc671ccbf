"""Random ONNX files of one operator that the reader takes: its inputs, attributes, opset and shapes
are drawn.

What an operator may be given is a row of `OPERATORS`, what an attribute may be a row of
`_ATTRIBUTES`; an attribute of ONNX's own schema that has no row is an error, so that none is
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

OPSETS = range(7, 26)
Array = np.ndarray[Any, Any]


class Unfit(Exception):
    """Raised where an operator takes no operand of the shape that there is."""


@dataclass
class Draw:
    """One node as it is drawn: random numbers, the shape of what it is applied to, and its other
    inputs.

    `kinds` says of which type the operand is, which the file casts its float32 input to.
    """

    random: np.random.Generator
    shape: tuple[int, ...]
    opset: int
    inputs: list[Any] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    kind: int = TensorProto.FLOAT
    outputs: int = 1
    # the operand's shape, where it is the value of another node
    fixed: tuple[int, ...] | None = None

    def of(self, *choices: Any) -> Any:
        """One of the choices."""
        return choices[int(self.random.integers(len(choices)))]

    def size(self, low: int, high: int) -> int:
        """A whole number of low to high."""
        return int(self.random.integers(low, high + 1))

    def sizes(self, count: int, low: int, high: int) -> list[int]:
        """So many whole numbers of low to high."""
        return [self.size(low, high) for _ in range(count)]

    def chance(self, share: float) -> bool:
        """True in a share of the draws."""
        return bool(self.random.random() < share)

    def weights(self, *shape: int) -> Array:
        """Normal numbers, some of them halves, at which functions have steps and kinks."""
        values = self.random.standard_normal(shape).astype(np.float32)
        return np.where(self.random.random(shape) < 0.3, np.round(2 * values) / 2, values).astype(
            np.float32
        )

    def whole(self, *values: int, kind: type = np.int64) -> Array:
        """A constant of whole numbers."""
        return np.array(values, dtype=kind)

    def broadcast(self) -> Array:
        """A constant that fits the operand by ONNX's rules, perhaps with more axes."""
        shape = [1 if self.chance(0.4) else each for each in self.shape][
            self.size(0, len(self.shape)) :
        ]
        if len(shape) == len(self.shape) and self.chance(0.2):
            shape = [self.size(1, 2), *shape]
        return self.weights(*shape)

    @property
    def axis(self) -> int:
        """An axis of the operand, from either end."""
        return self.size(-len(self.shape), len(self.shape) - 1)

    def axes(self) -> list[int]:
        """Some axes of the operand, from either end, in any order."""
        count = len(self.shape)
        chosen = self.random.permutation(count)[: self.size(1, count)]
        return [int(each) - count * self.chance(0.4) for each in chosen]


def _tensor(d: Draw, low: int = 1, high: int = 4, rank: tuple[int, int] = (1, 4)) -> None:
    if d.fixed is not None:
        if not (rank[0] <= len(d.fixed) <= rank[1] and min(d.fixed) >= low):
            raise Unfit
        d.shape = d.fixed
        return
    d.shape = tuple(d.sizes(d.size(*rank), low, high))


def _one(d: Draw) -> None:
    _tensor(d)
    d.inputs = ["x"]


def _two(d: Draw) -> None:
    _one(d)
    d.inputs = d.of(["x", d.broadcast()], [d.broadcast(), "x"], ["x", "x"])


def _several(d: Draw) -> None:
    _one(d)
    d.inputs = ["x", *(d.of("x", d.broadcast()) for _ in range(d.size(0, 2)))]


def _whole(then: Callable[[Draw], None]) -> Callable[[Draw], None]:
    """The same of whole numbers, half of the time."""

    def draw(d: Draw) -> None:
        then(d)
        if d.chance(0.4):
            d.kind = d.of(TensorProto.INT64, TensorProto.INT32)
            kind = np.int64 if d.kind == TensorProto.INT64 else np.int32
            d.inputs = [
                np.round(3 * each).astype(kind) if isinstance(each, np.ndarray) else each
                for each in d.inputs
            ]

    return draw


def _logical(d: Draw) -> None:
    _two(d)
    d.kind = TensorProto.BOOL
    d.inputs = [each > 0 if isinstance(each, np.ndarray) else each for each in d.inputs]


def _not(d: Draw) -> None:
    _one(d)
    d.kind = TensorProto.BOOL


def _where(d: Draw) -> None:
    _one(d)
    condition = d.of(d.broadcast() > 0, d.random.random(d.shape) < 0.5)
    d.inputs = [condition, *d.of(["x", d.broadcast()], [d.broadcast(), "x"])]


def _clip(d: Draw) -> None:
    _one(d)
    ends = [d.of("", np.float32(-1.0), np.float32(0.0)), d.of("", np.float32(1.0), np.float32(0.5))]
    if d.opset >= 11:
        d.inputs = ["x", *ends[: d.size(0, 2)]]


def _matmul(d: Draw) -> None:
    _tensor(d)
    last, rows = d.shape[-1], d.shape[-2] if len(d.shape) > 1 else 1
    right: list[Any] = [d.weights(last, d.size(1, 3)), d.weights(last)]
    left: list[Any] = [d.weights(d.size(1, 3), rows if len(d.shape) > 1 else last), d.weights(rows)]
    if len(d.shape) > 2:
        right.append(d.weights(*d.shape[:-2], last, 2))
        left.append(d.weights(d.shape[-3], 2, rows))
    d.inputs = ["x", d.of(*right)] if d.chance(0.6) else [d.of(*left), "x"]


def _gemm(d: Draw) -> None:
    _tensor(d, rank=(2, 2))
    inner, size = d.shape[d.of(0, 1)], d.size(1, 3)
    rows = d.shape[0] if inner == d.shape[1] else d.shape[1]
    weight = d.weights(*d.of((inner, size), (size, inner)))
    bias = d.of(
        d.weights(size),
        d.weights(1, size),
        d.weights(1),
        d.weights(rows, 1),
        d.weights(rows, size),
        d.weights(),
    )
    d.inputs = ["x", weight, bias][: d.of(2, 3, 3)]


def _spatial(d: Draw, low: int = 2, high: int = 6) -> int:
    count = d.of(1, 2, 2, 3)
    d.shape = (d.of(1, 1, 2), d.size(1, 4), *d.sizes(count, low, high))
    return count


def _conv(d: Draw) -> None:
    count = _spatial(d)
    group = d.of(1, d.shape[1])
    outputs = group * d.size(1, 2)
    kernel = d.sizes(count, 1, 3)
    d.inputs = ["x", d.weights(outputs, d.shape[1] // group, *kernel)]
    d.attributes |= {"group": group} if group > 1 or d.chance(0.3) else {}
    if d.chance(0.5):
        d.inputs.append(d.weights(outputs))


def _conv_transpose(d: Draw) -> None:
    count = _spatial(d, high=4)
    group = d.of(1, d.shape[1])
    each = d.size(1, 2)
    d.inputs = ["x", d.weights(d.shape[1], each, *d.sizes(count, 1, 3))]
    d.attributes |= {"group": group} if group > 1 or d.chance(0.3) else {}
    if d.chance(0.5):
        d.inputs.append(d.weights(group * each))


def _pool(d: Draw) -> None:
    count = _spatial(d)
    d.inputs = ["x"]
    d.attributes["kernel_shape"] = d.sizes(count, 1, 3)


def _over_space(d: Draw) -> None:
    _spatial(d)
    d.inputs = ["x"]


def _batch_norm(d: Draw) -> None:
    if d.chance(0.3):
        _tensor(d, rank=(2, 2))
    else:
        _spatial(d)
    channels = d.shape[1]
    d.inputs = ["x", *(d.weights(channels) for _ in range(3)), d.weights(channels) ** 2]


def _instance_norm(d: Draw) -> None:
    _spatial(d, low=3)
    d.inputs = ["x", d.weights(d.shape[1]), d.weights(d.shape[1])]


def _group_norm(d: Draw) -> None:
    _spatial(d, low=3)
    d.shape = (d.shape[0], 4, *d.shape[2:])
    groups = d.of(1, 2, 4)
    d.attributes["num_groups"] = groups
    size = 4 if d.opset >= 21 else groups
    d.inputs = ["x", d.weights(size), d.weights(size)]


def _layer_norm(d: Draw) -> None:
    _tensor(d, low=2, rank=(2, 4))
    axis = d.axis
    d.attributes |= (
        {"axis": axis} if axis % len(d.shape) != len(d.shape) - 1 or d.chance(0.5) else {}
    )
    shape = d.shape[d.attributes.get("axis", -1) :]
    d.inputs = [
        "x",
        d.weights(*d.of(shape, shape, shape[-1:])),
        *([d.weights(*shape)] if d.chance(0.6) else []),
    ]


def _rms_norm(d: Draw) -> None:
    _layer_norm(d)
    d.inputs = d.inputs[:2]


def _reduction(since: int) -> Callable[[Draw], None]:
    def draw(d: Draw) -> None:
        _one(d)
        if d.opset >= since and d.chance(0.8):
            d.inputs.append(d.of(d.whole(*d.axes()), d.whole(*d.axes()), d.whole()))

    return draw


def _power(d: Draw) -> None:
    _one(d)
    d.inputs = [
        "x",
        d.of(
            *map(np.float32, (2, 3, 4, 1, 0)), np.float32(-1), d.weights(d.shape[-1]), np.int64(2)
        ),
    ]


def _cumulative(d: Draw) -> None:
    _one(d)
    d.inputs = ["x", np.array(d.axis, d.of(np.int64, np.int32))]


def _parameter(d: Draw) -> None:
    _tensor(d, rank=(2, 4))
    slopes = d.of((1,), (d.shape[1], *[1] * (len(d.shape) - 2)), d.shape, d.shape[-1:])
    d.inputs = ["x", d.weights(*slopes)]


def _quantize(d: Draw) -> None:
    _tensor(d, rank=(2, 3))
    size = d.shape[1]
    kind = d.of(np.uint8, np.int8)
    along = d.chance(0.4)
    scale = np.abs(d.weights(*([size] if along else []))) + np.float32(0.1)
    zero = d.random.integers(0, 9, scale.shape).astype(kind)
    d.inputs = ["x", scale.astype(np.float32), *([zero] if d.chance(0.8) else [])]


def _dequantize(d: Draw) -> None:
    _quantize(d)
    kind = d.inputs[2].dtype if len(d.inputs) > 2 else np.dtype(np.uint8)
    d.kind = TensorProto.UINT8 if kind == np.uint8 else TensorProto.INT8


def _reshape(d: Draw) -> None:
    _one(d)
    sizes = list(d.random.permutation(d.shape))
    if d.chance(0.5) and len(sizes) > 1:
        sizes = [sizes[0] * sizes[1], *sizes[2:]]
    if d.chance(0.5):
        sizes[d.size(0, len(sizes) - 1)] = -1
    if d.chance(0.3):
        sizes = [0, *([-1] if len(d.shape) > 1 else [])]
    d.inputs.append(d.whole(*map(int, sizes)))


def _squeeze(d: Draw) -> None:
    _one(d)
    if not d.chance(0.3):
        ones = [
            place - len(d.shape) * d.chance(0.4) for place, each in enumerate(d.shape) if each == 1
        ]
        _axes_of(d, ones or [0], since=13)


def _unsqueeze(d: Draw) -> None:
    _one(d)
    places = d.random.permutation(len(d.shape) + 1)[: d.size(1, 1)].tolist()
    if d.chance(0.4):
        places = d.of([0, -1], [-1, 0], [1, 0], [-2])
    _axes_of(d, places, since=13)


def _axes_of(d: Draw, axes: Sequence[int], since: int) -> None:
    if d.opset >= since:
        d.inputs.append(d.whole(*map(int, axes)))
    else:
        d.attributes["axes"] = [*map(int, axes)]


def _slice(d: Draw) -> None:
    _one(d)
    axes = d.axes()
    starts, ends = (
        [d.of(d.size(-6, 6), 0, *more) for _ in axes]
        for more in ((), (2**31 - 1, 2**63 - 1, -(2**31)))
    )
    if d.opset < 10:
        d.attributes |= {"starts": starts, "ends": ends} | ({"axes": axes} if d.chance(0.7) else {})
        return
    steps = [d.of(1, 1, 2, 3, -1, -2) for _ in axes]
    rest: list[Any] = [d.of("", d.whole(*axes), d.whole(*axes)), d.whole(*steps)]
    d.inputs += [d.whole(*starts), d.whole(*ends), *rest[: d.size(0, 2)]]
    if len(d.inputs) > 3 and isinstance(d.inputs[3], str) and len(d.inputs) == 4:
        d.inputs.pop()


def _split(d: Draw) -> None:
    _tensor(d, low=2)
    d.inputs = ["x"]
    axis = d.axis
    whole = d.shape[axis]
    d.attributes |= {"axis": axis} if axis % len(d.shape) or d.chance(0.5) else {}
    first = d.size(1, whole - 1)
    d.outputs = 2
    if d.chance(0.5):
        if d.opset >= 13:
            d.inputs.append(d.whole(first, whole - first))
        else:
            d.attributes["split"] = [first, whole - first]
    elif d.opset >= 18:
        d.attributes["num_outputs"] = 2


def _gather(d: Draw) -> None:
    _one(d)
    axis = d.axis
    size = d.shape[axis]
    d.attributes |= {"axis": axis} if axis % len(d.shape) or d.chance(0.5) else {}
    shape = d.of((), (1,), (2,), (2, 2))
    d.inputs.append(d.random.integers(-size, size, shape).astype(d.of(np.int64, np.int32)))


def _gather_elements(d: Draw) -> None:
    _one(d)
    axis = d.axis
    size = d.shape[axis]
    d.attributes |= {"axis": axis} if axis % len(d.shape) or d.chance(0.5) else {}
    shape = [d.size(1, each) for each in d.shape]
    d.inputs.append(d.random.integers(-size, size, shape))


def _gather_nd(d: Draw) -> None:
    _one(d)
    count = d.size(1, len(d.shape))
    shape = d.of((), (2,), (2, 1))
    d.inputs.append(np.stack([d.random.integers(-s, s, shape) for s in d.shape[:count]], -1))


def _expand(d: Draw) -> None:
    _one(d)
    wanted = [each if d.chance(0.5) or each > 1 else d.size(1, 3) for each in d.shape]
    wanted = [1 if d.chance(0.3) else each for each in wanted][d.size(0, len(wanted) - 1) :]
    d.inputs.append(
        d.whole(*([2] if d.chance(0.3) and len(wanted) == len(d.shape) else []), *wanted)
    )


def _tile(d: Draw) -> None:
    _one(d)
    d.inputs.append(d.whole(*d.sizes(len(d.shape), 1, 3)))


def _pad(d: Draw) -> None:
    _one(d)
    axes = d.axes() if d.opset >= 18 and d.chance(0.4) else None
    widths = d.sizes(2 * len(axes or d.shape), 0, 2)
    if d.chance(0.15):
        widths[0] = -1
    if d.opset < 11:
        d.attributes |= {"pads": widths} | (
            {"value": float(d.of(0.0, 1.5))} if d.chance(0.5) else {}
        )
        return
    fill: list[Any] = [d.of("", np.float32(1.5), np.float32(0))] if d.chance(0.5) or axes else []
    d.inputs += [d.whole(*widths), *fill, *([d.whole(*axes)] if axes else [])]
    if fill and not axes and isinstance(fill[0], str):
        d.inputs.pop()


def _concat(d: Draw) -> None:
    _tensor(d)
    axis = d.axis
    d.attributes["axis"] = axis
    other = list(d.shape)
    other[axis] = d.size(1, 3)
    d.inputs = d.of(["x", d.weights(*other)], [d.weights(*other), "x", "x"], ["x"])


def _resize(d: Draw) -> None:
    if d.chance(0.15):
        _tensor(d)
    else:
        _spatial(d, low=1, high=5)
    d.inputs = ["x"]
    spatial = len(d.shape) - 2 if len(d.shape) > 2 and d.chance(0.85) else len(d.shape)
    fixed = len(d.shape) - spatial
    sizes = [*d.shape[:fixed], *d.sizes(spatial, 1, 6)]
    factors = [1.0] * fixed + [float(d.of(0.5, 1, 1.5, 2, 3, 0.6, 0.25)) for _ in range(spatial)]
    if d.opset < 11:
        d.inputs.append(np.array(factors, np.float32))
        return
    region: Any = d.of("", "", np.array([0.0] * len(d.shape) + [1.0] * len(d.shape), np.float32))
    if d.opset >= 18 and d.chance(0.2) and spatial < len(d.shape):
        d.attributes["axes"] = list(range(fixed, len(d.shape)))
        sizes, factors = sizes[fixed:], factors[fixed:]
        region = ""
    if d.chance(0.5):
        d.inputs += [region, np.array(factors, np.float32)]
    else:
        d.inputs += [region, "" if d.opset >= 13 else np.zeros(0, np.float32), d.whole(*sizes)]


def _triangle(d: Draw) -> None:
    _tensor(d, rank=(2, 4))
    d.inputs = ["x", *([np.array(d.size(-3, 3))] if d.chance(0.5) else [])]


def _cast(d: Draw) -> None:
    _one(d)
    d.kind = d.of(
        TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
    )
    kinds = (
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.INT64,
        TensorProto.INT32,
        TensorProto.BOOL,
    )
    d.attributes["to"] = d.of(*kinds, TensorProto.UINT8, TensorProto.FLOAT16, TensorProto.INT8)


def _cast_like(d: Draw) -> None:
    _one(d)
    d.inputs.append(np.zeros(1, d.of(np.float32, np.int64, np.int32, np.bool_, np.float64)))


def _dropout(d: Draw) -> None:
    _one(d)
    if d.opset >= 12:
        d.inputs += [np.float32(0.5), np.array(d.of(False, False, True))][: d.size(0, 2)]


def _flatten(d: Draw) -> None:
    _one(d)
    d.attributes |= {"axis": d.size(-len(d.shape), len(d.shape))} if d.chance(0.8) else {}


def _transpose(d: Draw) -> None:
    _one(d)
    d.attributes |= {"perm": d.random.permutation(len(d.shape)).tolist()} if d.chance(0.8) else {}


OPERATORS: dict[str, Callable[[Draw], None]] = {
    "Abs": _whole(_one),
    "Add": _whole(_two),
    "And": _logical,
    "AveragePool": _pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _one,
    "Celu": _one,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Cos": _one,
    "CumSum": _cumulative,
    "DequantizeLinear": _dequantize,
    "Div": _whole(_two),
    "Dropout": _dropout,
    "Elu": _one,
    "Equal": _whole(_two),
    "Erf": _one,
    "Exp": _one,
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _one,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gelu": _one,
    "Gemm": _gemm,
    "GlobalAveragePool": _over_space,
    "GlobalMaxPool": _over_space,
    "Greater": _whole(_two),
    "GreaterOrEqual": _whole(_two),
    "GroupNormalization": _group_norm,
    "HardSigmoid": _one,
    "HardSwish": _one,
    "Identity": _whole(_one),
    "InstanceNormalization": _instance_norm,
    "IsNaN": _one,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _one,
    "Less": _whole(_two),
    "LessOrEqual": _whole(_two),
    "Log": _one,
    "LogSoftmax": _one,
    "MatMul": _matmul,
    "Max": _whole(_several),
    "MaxPool": _pool,
    "Min": _whole(_several),
    "Mish": _one,
    "Mod": _whole(_two),
    "Mul": _whole(_two),
    "Neg": _whole(_one),
    "Not": _not,
    "Or": _logical,
    "PRelu": _parameter,
    "Pad": _pad,
    "Pow": _power,
    "QuantizeLinear": _quantize,
    "RMSNormalization": _rms_norm,
    "Reciprocal": _one,
    "ReduceL1": _reduction(18),
    "ReduceL2": _reduction(18),
    "ReduceMax": _whole(_reduction(18)),
    "ReduceMean": _reduction(18),
    "ReduceMin": _whole(_reduction(18)),
    "ReduceSum": _whole(_reduction(13)),
    "ReduceSumSquare": _reduction(18),
    "Relu": _one,
    "Reshape": _reshape,
    "Resize": _resize,
    "Selu": _one,
    "Sigmoid": _one,
    "Sign": _whole(_one),
    "Sin": _one,
    "Slice": _slice,
    "Softmax": _one,
    "Softplus": _one,
    "Split": _split,
    "Sqrt": _one,
    "Squeeze": _squeeze,
    "Sub": _whole(_two),
    "Sum": _several,
    "Swish": _one,
    "Tanh": _one,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
    "Xor": _logical,
}


def _window(d: Draw) -> int:
    return len(d.shape) - 2


def _pads(d: Draw) -> list[int]:
    pads = d.sizes(2 * _window(d), 0, 2)
    return pads[: len(pads) // 2] * 2 if d.chance(0.4) else pads


_ATTRIBUTES: dict[str, Callable[[Draw], Any]] = {
    "allowzero": lambda d: d.of(0, 1),
    "alpha": lambda d: float(d.of(0.5, 1.0, 0.3, 2.0, 0.0)),
    "antialias": lambda d: d.of(0, 0, 1),
    "approximate": lambda d: d.of("none", "tanh"),
    "auto_pad": lambda d: d.of("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "axes": lambda d: d.axes(),
    "axis": lambda d: d.axis,
    "batch_dims": lambda d: d.of(0, 1),
    "beta": lambda d: float(d.of(0.5, 1.0, -0.7, 0.0)),
    "block_size": lambda d: 0,
    "ceil_mode": lambda d: d.of(0, 1),
    "coordinate_transformation_mode": lambda d: d.of(
        "half_pixel",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "half_pixel_symmetric",
        "tf_half_pixel_for_nn",
        "tf_crop_and_resize",
    ),
    "count_include_pad": lambda d: d.of(0, 1),
    "cubic_coeff_a": lambda d: float(d.of(-0.5, -0.75)),
    "dilations": lambda d: d.sizes(_window(d), 1, 2),
    "epsilon": lambda d: float(d.of(1e-5, 1e-2, 0.5)),
    "exclude_outside": lambda d: d.of(0, 1),
    "exclusive": lambda d: d.of(0, 1),
    "extrapolation_value": lambda d: float(d.of(0.0, 2.5)),
    "fmod": lambda d: d.of(0, 1),
    "gamma": lambda d: float(d.of(1.05, 2.0)),
    "keep_aspect_ratio_policy": lambda d: d.of("stretch", "not_larger", "not_smaller"),
    "keepdims": lambda d: d.of(0, 1),
    "max": lambda d: float(d.of(0.5, 1.0)),
    "min": lambda d: float(d.of(-1.0, 0.0)),
    "mode": lambda d: (
        d.of("nearest", "linear", "cubic") if len(d.inputs) != 2 or d.opset > 10 else "nearest"
    ),
    "momentum": lambda d: 0.5,
    "nearest_mode": lambda d: d.of("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
    "noop_with_empty_axes": lambda d: d.of(0, 1),
    "output_dtype": lambda d: d.of(TensorProto.UINT8, TensorProto.INT8),
    "output_padding": lambda d: d.sizes(_window(d), 0, 1),
    "output_shape": lambda d: d.sizes(_window(d), 3, 8),
    "pads": _pads,
    "precision": lambda d: 0,
    "ratio": lambda d: 0.5,
    "reverse": lambda d: d.of(0, 1),
    "round_mode": lambda d: "up",
    "saturate": lambda d: d.of(0, 1),
    "seed": lambda d: 7,
    "spatial": lambda d: d.of(0, 1),
    "stash_type": lambda d: 1,
    "storage_order": lambda d: d.of(0, 1),
    "strides": lambda d: d.sizes(_window(d), 1, 3),
    "training_mode": lambda d: d.of(0, 0, 1),
    "transA": lambda d: d.of(0, 1),
    "transB": lambda d: d.of(0, 1),
    "upper": lambda d: d.of(0, 1),
    "value": lambda d: 1.5,
}
# The row of the operator draws these, with the inputs that they go with.
_WITH_INPUTS = {
    "kernel_shape",
    "group",
    "perm",
    "to",
    "num_outputs",
    "split",
    "starts",
    "ends",
    "num_groups",
    "shape",
    "tiles",
}
_MODES = {"Pad": ("constant", "constant", "edge", "reflect", "wrap")}


def file_of(kind: str, seed: int) -> onnx.ModelProto | None:
    """A random file of this operator; None where the opset that is drawn does not have it, or it
    fits no shape.
    """
    random = np.random.default_rng((sorted(OPERATORS).index(kind), seed))
    draw = Draw(random, (), int(random.choice(OPSETS)))
    try:
        schema = defs.get_schema(kind, draw.opset, "")
    except defs.SchemaError:
        return None
    OPERATORS[kind](draw)
    draw_attributes(draw, kind, schema)
    return _built(kind, draw)


def draw_attributes(draw: Draw, kind: str, schema: defs.OpSchema) -> None:
    """Draw some of the attributes of the operator's schema that its row has not drawn."""
    draw.attributes |= {
        name: _value(draw, kind, name)
        for name in sorted(schema.attributes)
        if name not in draw.attributes and name not in _WITH_INPUTS and draw.chance(0.4)
    }


def _value(draw: Draw, kind: str, name: str) -> Any:
    if name == "mode" and kind in _MODES:
        return draw.of(*_MODES[kind])
    if name == "axes" and kind in ("Squeeze", "Unsqueeze", "Slice", "Resize"):
        return None
    return _ATTRIBUTES[name](draw)


def _built(kind: str, draw: Draw) -> onnx.ModelProto:
    """From float32 "x" to float32 "y", which are cast where the operator is of another type."""
    constants: list[onnx.TensorProto] = []
    names = []
    for each in draw.inputs:
        if isinstance(each, str):
            names.append("of_x" if each == "x" else "")
            continue
        names.append(f"c{len(constants)}")
        constants.append(numpy_helper.from_array(np.asarray(each), names[-1]))
    first = "Identity" if draw.kind == TensorProto.FLOAT else "Cast"
    attributes = {name: value for name, value in draw.attributes.items() if value is not None}
    outputs = [f"o{number}" for number in range(draw.outputs)]
    chosen = outputs[draw.size(0, draw.outputs - 1)]
    nodes = [
        helper.make_node(
            first, ["x"], ["of_x"], **({} if first == "Identity" else {"to": draw.kind})
        ),
        helper.make_node(kind, names, outputs, name=f"the_{kind}", **attributes),
        helper.make_node("Cast", [chosen], ["y"], to=TensorProto.FLOAT),
    ]
    shapes = [helper.make_tensor_value_info("x", TensorProto.FLOAT, draw.shape)]
    graph = helper.make_graph(
        nodes, kind, shapes, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    graph.initializer.extend(constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", draw.opset)], ir_version=8
    )
