"""The ONNX operators that compute: sums, products with constants, and activations."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from torch import nn

from evalsuite.activations import GELU, RELU, Activation
from evalsuite.activations.gelu_tanh import GELU_TANH
from evalsuite.activations.leaky import LEAKY_RELU
from evalsuite.relaxations import SIGMOID, TANH
from evalsuite.verification.graph import Affine, Pointwise
from evalsuite.verification.linear import Dense, Linear, Same, Scale
from evalsuite.verification.onnx_call import Array, Call, Tensor, double, indices, selected


def _broadcast(call: Call, source: Tensor, shape: tuple[int, ...], sign: int = 1) -> Linear:
    if source.shape == shape or prod(source.shape) == prod(shape):
        return Same(sign)
    if sign < 0:
        call.refuse("a subtrahend that is broadcast is not read")
    return selected(source, np.broadcast_to(indices(source.shape), shape))


def _sum(call: Call, sign: int = 1) -> Tensor:
    """Add and Sub: of two tensors, or of one and a constant."""
    first, second = call.inputs
    shapes = [each.shape for each in (first, second) if each is not None]
    shape = tuple(np.broadcast_shapes(*shapes))
    bias = np.zeros(shape)
    parts: list[tuple[int, Linear]] = []
    for each, factor in ((first, 1), (second, sign)):
        if isinstance(each, Tensor):
            parts.append((each.value, _broadcast(call, each, shape, factor)))
        elif each is not None:
            bias = bias + factor * np.asarray(each, dtype=np.float64)
    before = call.reading.operation_of(Tensor(parts[0][0], shape))
    plain = len(parts) == 1 and parts[0][1] == Same()
    if plain and isinstance(before, Affine) and not bool(before.bias.any()):
        # Adding to a zero bias is exact, and one node is faster than two.
        return call.reading.append(Affine(before.parts, double(bias).flatten()), call.name, shape)
    return call.reading.append(Affine(tuple(parts), double(bias).flatten()), call.name, shape)


def _product(call: Call) -> Tensor:
    """Mul, by a constant."""
    tensors = [each for each in call.inputs if isinstance(each, Tensor)]
    constants = [each for each in call.inputs if isinstance(each, np.ndarray)]
    if len(tensors) != 1 or len(constants) != 1:
        call.refuse("only products with a constant are read")
    return _scaled(call, tensors[0], constants[0].astype(np.float64))


def _quotient(call: Call) -> Tensor:
    """Div, by a constant."""
    divisor = call.needed(1).astype(np.float64)
    if not divisor.all():
        call.refuse("divides by zero")
    return _scaled(call, call.tensor(), 1 / divisor)


def _scaled(call: Call, source: Tensor, factor: Array) -> Tensor:
    shape = tuple(np.broadcast_shapes(source.shape, factor.shape))
    if prod(shape) != prod(source.shape):
        source = call.affine(source, _broadcast(call, source, shape), shape)
    return call.affine(source, Scale(double(np.broadcast_to(factor, shape)).flatten()), shape)


def _gemm(call: Call) -> Tensor:
    source, weight = call.tensor(), call.needed(1).astype(np.float64)
    call.expect(transA=0)
    if len(source.shape) != 2 or weight.ndim != 2:
        call.refuse(f"takes matrices, got shapes {source.shape} and {weight.shape}")
    weight = weight if call.attributes.get("transB", 0) else weight.T
    # A product of two float32 numbers is exact in float64.
    dense = Dense(double(float(call.attributes.get("alpha", 1.0)) * weight), source.shape[0])
    shape, bias = (source.shape[0], len(weight)), call.constant(2)
    if bias is not None:
        bias = np.broadcast_to(float(call.attributes.get("beta", 1.0)) * bias.astype(np.float64), shape)
    return call.affine(source, dense, shape, bias)


def _matmul(call: Call) -> Tensor:
    left, right = call.inputs
    if isinstance(left, Tensor) and isinstance(right, np.ndarray) and right.ndim in (1, 2):
        matrix = right.reshape(len(right), -1)
        shape = (*left.shape[:-1], *right.shape[1:])
        return call.affine(left, Dense(double(matrix.T), prod(left.shape[:-1])), shape)
    if isinstance(right, Tensor) and isinstance(left, np.ndarray) and left.ndim in (1, 2) and len(right.shape) <= 2:
        matrix = left.reshape(-1, left.shape[-1])
        columns = prod(right.shape[1:])
        if columns == 1:
            return call.affine(right, Dense(double(matrix)), (*left.shape[:-1], *right.shape[1:]))
    return call.refuse("only products with a constant matrix are read")


def _activation(traits: Activation) -> Callable[[Call], Tensor]:
    def read(call: Call) -> Tensor:
        source = call.tensor()
        return call.reading.append(Pointwise(source.value, traits), call.name, source.shape)

    return read


def _leaky(call: Call) -> Tensor:
    slope = float(np.float32(call.attributes.get("alpha", 0.01)))
    return _activation(LEAKY_RELU.of(nn.LeakyReLU(slope)))(call)


def _gelu(call: Call) -> Tensor:
    kind = call.attributes.get("approximate", b"none")
    rows = {b"none": GELU, b"tanh": GELU_TANH}
    if kind not in rows:
        call.refuse(f"approximate = {kind!r} is not read")
    return _activation(rows[kind])(call)


COMPUTED: dict[str, Callable[[Call], Tensor]] = {
    "Add": _sum,
    "Div": _quotient,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "LeakyRelu": _leaky,
    "MatMul": _matmul,
    "Mul": _product,
    "Relu": _activation(RELU),
    "Sigmoid": _activation(SIGMOID),
    "Sub": lambda call: _sum(call, -1),
    "Tanh": _activation(TANH),
}
