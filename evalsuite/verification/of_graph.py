"""What a chain of affine operators does not hold, read as a typed graph and written in the few kinds of nodes here.

A softmax is 1 / sum_j exp(x_j - x_i), where each sum is at least 1; a normalisation x / sqrt(mean of x^2 + eps); a
matrix product the sum of products of entries. What only moves entries is known from where it moves their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, NoReturn

import numpy as np
import onnx
import torch

from evalsuite.activations.relu6 import clip
from evalsuite.contract import Unsupported
from evalsuite.graph import operations as typed
from evalsuite.graph.graph import Graph as TypedGraph
from evalsuite.graph.graph import Node as TypedNode
from evalsuite.graph.moving import Expand, Pad, Positions, Reshape, Transpose
from evalsuite.graph.norms import with_norms
from evalsuite.graph.onnx_file import graph_of_model
from evalsuite.graph.owned import is_exact
from evalsuite.graph.patterns import recognised
from evalsuite.graph.sizes import at
from evalsuite.verification.graph import Affine, Convex, Maximum, Node, Operation, Pointwise, Product
from evalsuite.verification.linear import Adjoint, Convolution, Dense, Linear, Same, Scale, Select
from evalsuite.verification.onnx_call import Tensor

Known = Tensor | torch.Tensor
# Entries of a matrix that stands for a pool or an interpolation.
_MATRIX = 2**24
# The factor of a batch normalization takes a sum, a root and products.
_NORM_TERMS = 16


def nodes_of(model: onnx.ModelProto) -> tuple[list[Node], Tensor]:
    """The nodes of a file with one input, of one sample, and the output.

    Raises:
        Unsupported: an operation has no sound bounds here, or a number was rounded on the way; by the node's name.
    """
    graph = graph_of_model(model)
    try:
        return _Writer(recognised(graph)).run()
    except Unsupported:
        # A formula of rounded numbers is no known activation, and may be bounded as it is written.
        try:
            return _Writer(with_norms(graph)).run()
        except Unsupported:
            pass
        raise


class _Writer:
    def __init__(self, graph: TypedGraph) -> None:
        self.graph, self.nodes = graph, list[Node]()
        self.found: list[Known] = []
        self.name = ""

    def run(self) -> tuple[list[Node], Tensor]:
        for node in self.graph.nodes:
            self.name = node.name
            self.found.append(self._written(node))
        output = self.found[self.graph.output]
        if not isinstance(output, Tensor):
            raise Unsupported("the output does not depend on the input")
        return self.nodes, output

    def refuse(self, why: str) -> NoReturn:
        raise Unsupported(f"node {self.name!r}: {why}")

    def append(self, operation: Operation, shape: tuple[int, ...]) -> Tensor:
        self.nodes.append(Node(self.name, operation, prod(shape)))
        return Tensor(len(self.nodes), shape)

    def affine(self, x: Tensor, map_: Linear, shape: tuple[int, ...], bias: torch.Tensor | None = None) -> Tensor:
        flat = torch.zeros(prod(shape)) if bias is None else bias.expand(shape).flatten()
        return self.append(Affine(((x.value, map_),), flat.double()), shape)

    def _written(self, node: TypedNode) -> Known:
        operation: Any = node.operation
        if isinstance(operation, typed.Input):
            return Tensor(0, at(node.shape, 1))
        self._refuse_rounded(operation)
        if isinstance(operation, typed.Constant):
            return operation.value.double() if operation.value.is_floating_point() else operation.value
        given = [self.found[each] for each in node.sources]
        if isinstance(operation, Positions):
            return torch.arange(operation.times)
        if isinstance(operation, Expand | Reshape):
            # The batch is known: it is one.
            operation, given = replace(operation, shape=at(operation.shape, 1)), given[:1]
        constants = [each for each in given if isinstance(each, torch.Tensor)]
        if len(constants) == len(given):
            result: torch.Tensor = typed.converted(operation, torch.float64)(*constants)
            if result.is_floating_point() and not (operation.moves or isinstance(operation, typed.Where)):
                self.refuse("takes constants alone, whose rounded result would be none of the network")
            if not bool(result.isfinite().all()):
                self.refuse("its numbers are NaN or infinite, as of a mask")
            return result
        if operation.moves:
            return self.moved(operation, *given)
        if type(operation) not in _RULES:
            self.refuse(f"no sound bounds of {getattr(operation, 'name', type(operation).__name__)}")
        return _RULES[type(operation)](self, typed.converted(operation, torch.float64), *given)

    def _refuse_rounded(self, operation: Any) -> None:
        weights = [each for each in vars(operation).values() if isinstance(each, torch.Tensor)]
        single = isinstance(operation, typed.Constant)
        if not operation.exact if single else any(each.dtype == torch.float64 for each in weights):
            self.refuse("its numbers are computed from others, and rounded")
        if not all(bool(each.isfinite().all()) for each in weights if each.is_floating_point()):
            self.refuse("it has numbers that are NaN or infinite")

    def moved(self, operation: Any, *given: Known) -> Tensor:
        """Of entries that are only moved: the same moves of their numbers, -1 for all that is none of them."""
        numbered = replace(operation, value=-1.0) if isinstance(operation, Pad) else operation
        parts, shape = list[tuple[int, Linear]](), tuple[int, ...]()
        for place, own in enumerate(given):
            if isinstance(own, Tensor):
                marked = [_marked(each, number == place) for number, each in enumerate(given)]
                index = numbered(*marked)
                shape = tuple(index.shape)
                parts.append((own.value, Select(index.flatten().long(), prod(own.shape))))
        bias = operation(*(torch.zeros(each.shape).double() if isinstance(each, Tensor) else each for each in given))
        if not bool(bias.isfinite().all()):
            self.refuse("pads with infinity")
        (value, first), *more = parts
        plain = isinstance(first, Select) and torch.equal(first.index, torch.arange(first.inputs))
        if plain and not more and not bool(bias.any()):
            return Tensor(value, shape)
        return self.append(Affine(tuple(parts), bias.flatten()), shape)

    def along_last(self, x: Tensor, axes: tuple[int, ...], then: Callable[[Tensor], Tensor]) -> Tensor:
        """`then` of (groups, entries), the entries those along the axes; back in place, where it keeps their number."""
        rest = [each for each in range(len(x.shape)) if each not in axes]
        order = (*rest, *axes)
        y = self.moved(Transpose(order), x)
        made = then(self.moved(Reshape((prod(x.shape[each] for each in rest), -1)), y))
        if made.shape[1] == 1 != prod(x.shape[each] for each in axes):
            return made
        back = tuple(sorted(range(len(order)), key=order.__getitem__))
        return self.moved(Transpose(back), self.moved(Reshape(y.shape), made))

    def dense(self, x: Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        shape = (*x.shape[:-1], len(weight))
        return self.affine(x, Dense(weight.double(), prod(x.shape[:-1])), shape, bias)

    def repeated(self, x: Tensor, shape: tuple[int, ...]) -> Linear:
        """The choice of entries that broadcasts."""
        if x.shape == shape:
            return Same()
        return Select(_numbers(x.shape).expand(shape).flatten().long(), prod(x.shape))

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        if x == y:
            return self.append(Convex(x.value, "square"), x.shape)
        shape = tuple(np.broadcast_shapes(x.shape, y.shape))
        return self.append(Product(x.value, y.value, self.repeated(x, shape), self.repeated(y, shape)), shape)

    def scaled(self, x: Tensor, factor: torch.Tensor, *, terms: int = 2) -> Tensor:
        shape = tuple(np.broadcast_shapes(x.shape, factor.shape))
        x = x if x.shape == shape else self.affine(x, self.repeated(x, shape), shape)
        return self.affine(x, Scale(factor.double().expand(shape).flatten(), terms), shape)


def _numbers(shape: tuple[int, ...]) -> torch.Tensor:
    """The flat number of each entry, float64, which a move keeps exactly."""
    return torch.arange(prod(shape), dtype=torch.float64).reshape(shape)


def _marked(each: Known, own: bool) -> torch.Tensor:
    if isinstance(each, Tensor):
        return _numbers(each.shape) if own else torch.full(each.shape, -1.0, dtype=torch.float64)
    # Integers say where, all else is none of the entries.
    return torch.full_like(each, -1.0) if each.is_floating_point() else each


def _sum(w: _Writer, operation: typed.Sum, *given: Known) -> Tensor:
    shape = tuple(np.broadcast_shapes(*(each.shape for each in given)))
    bias, parts = torch.zeros(shape).double(), list[tuple[int, Linear]]()
    for sign, each in zip(operation.signs, given, strict=True):
        if isinstance(each, torch.Tensor):
            bias = bias + sign * each
            continue
        wide = each if each.shape == shape else w.affine(each, w.repeated(each, shape), shape)
        parts.append((wide.value, Same(sign)))
    if len(given) - len(parts) > 1:
        w.refuse("adds several constants, whose rounded sum would be none of the network")
    return w.append(Affine(tuple(parts), bias.flatten()), shape)


def _product(w: _Writer, _: typed.Product, *given: Known) -> Tensor:
    constants = [each for each in given if isinstance(each, torch.Tensor)]
    (made, *rest) = [each for each in given if isinstance(each, Tensor)]
    for each in rest:
        made = w.product(made, each)
    for factor in constants:
        made = w.scaled(made, factor)
    return made


def _quotient(w: _Writer, _: typed.Quotient, x: Known, y: Known) -> Tensor:
    if isinstance(y, torch.Tensor):
        if not isinstance(x, Tensor) or not bool(y.all()):
            w.refuse("divides by zero")
        return w.scaled(x, 1 / y)
    inverse = w.append(Convex(y.value, "reciprocal"), y.shape)
    return w.product(x, inverse) if isinstance(x, Tensor) else w.scaled(inverse, x)


def _power(w: _Writer, operation: typed.Power, x: Tensor) -> Tensor:
    names = {2.0: "square", -1.0: "reciprocal", -0.5: "rsqrt"}
    if operation.exponent not in names:
        w.refuse(f"no sound bounds of a power of {operation.exponent:g}")
    return w.append(Convex(x.value, names[operation.exponent]), x.shape)


def _function(w: _Writer, operation: typed.Function, x: Tensor) -> Tensor:
    if operation.name not in ("exp", "rsqrt"):
        w.refuse(f"no sound bounds of {operation.name}")
    return w.append(Convex(x.value, operation.name), x.shape)


def _pointwise(w: _Writer, operation: typed.Pointwise, x: Tensor) -> Tensor:
    if not is_exact(operation):
        w.refuse(f"{operation.traits.name} is computed from numbers that are rounded")
    if operation.hardness is None:
        return w.append(Pointwise(x.value, operation.traits), x.shape)
    inside = w.scaled(x, operation.hardness)
    return w.scaled(w.append(Pointwise(inside.value, operation.traits), inside.shape), 1 / operation.hardness)


def _clamp(w: _Writer, operation: typed.Clamp, x: Tensor) -> Tensor:
    if not operation.low < operation.high:
        w.refuse(f"clamps to [{operation.low:g}, {operation.high:g}]")
    return w.append(Pointwise(x.value, clip(operation.low, operation.high)), x.shape)


def _convolution(w: _Writer, operation: typed.Convolution, x: Tensor) -> Tensor:
    weight, bias = operation.weight, operation.bias
    window: dict[str, Any] = {name: getattr(operation, name) for name in ("stride", "padding", "dilation", "groups")}
    shape = tuple(operation(torch.zeros(x.shape, dtype=torch.float64)).shape)
    map_: Linear = (
        Adjoint(Convolution(weight, shape, x.shape, window)) if operation.transposed
        else Convolution(weight, x.shape, shape, window)
    )  # fmt: skip
    return w.affine(x, map_, shape, None if bias is None else _column(bias, len(shape)))


def _column(values: torch.Tensor, dimensions: int) -> torch.Tensor:
    """One per channel, of (samples, channels, *spatial)."""
    return values.reshape(1, -1, *[1] * (dimensions - 2))


def _batch_norm(w: _Writer, operation: typed.BatchNorm, x: Tensor) -> Tensor:
    spread = operation.variance + operation.eps
    if not bool((spread > 0).all()):
        w.refuse("a variance plus epsilon is not above 0")
    factor = spread.rsqrt() if operation.weight is None else operation.weight / spread.sqrt()
    # Moved before it is scaled: the mean is exact.
    centered = w.affine(x, Same(), x.shape, _column(-operation.mean, len(x.shape)))
    made = w.scaled(centered, _column(factor, len(x.shape)), terms=_NORM_TERMS)
    return made if operation.bias is None else w.affine(made, Same(), made.shape, _column(operation.bias, len(x.shape)))


def _as_matrix(w: _Writer, operation: Any, x: Tensor) -> Tensor:
    """A linear map, by what it makes of each unit vector."""
    size = prod(x.shape)
    units = torch.eye(size, dtype=torch.float64).reshape(size, *x.shape[1:])
    if x.shape[0] != 1 or size**2 > _MATRIX:
        w.refuse(f"a map of {size} values would be a matrix too large")
    columns = operation(units)
    return w.affine(x, Dense(columns.reshape(size, -1).T.contiguous()), (1, *columns.shape[1:]))


def _max_pool(w: _Writer, operation: typed.MaxPool, x: Tensor) -> Tensor:
    if operation.ceil or len(operation.kernel) != 2:
        w.refuse("a MaxPool with ceil_mode, or of another number of dimensions than two")
    high, wide = operation.padding
    padded = torch.nn.functional.pad(_numbers(x.shape), (wide, wide, high, high), value=-1.0)
    found = torch.nn.functional.unfold(padded, operation.kernel, operation.dilation, 0, operation.stride)
    windows = found.reshape(*x.shape[:2], prod(operation.kernel), -1).transpose(-1, -2).flatten(0, -2).long()
    shape = operation(torch.zeros(x.shape)).shape
    return w.append(Maximum(x.value, windows), tuple(shape))


def _reduction(w: _Writer, operation: typed.Reduction, x: Tensor) -> Tensor:
    def of(y: Tensor) -> Tensor:
        if operation.name == "maximum":
            return w.append(Maximum(y.value, _numbers(y.shape).long()), (y.shape[0], 1))
        ones = torch.ones(1, y.shape[1], dtype=torch.float64)
        return w.dense(y, ones / y.shape[1] if operation.name == "mean" else ones)

    if operation.name not in ("maximum", "mean", "sum"):
        w.refuse(f"no sound bounds of the {operation.name} over axes")
    shape = operation(torch.zeros(x.shape)).shape
    return w.moved(Reshape(tuple(shape)), w.along_last(x, operation.axes, of))


def _softmax(w: _Writer, operation: typed.Softmax, x: Tensor) -> Tensor:
    if operation.log:
        w.refuse("no sound bounds of the logarithm of a softmax")

    def of(y: Tensor) -> Tensor:
        groups, size = y.shape
        ones = torch.eye(size, dtype=torch.float64)
        # Row (i, j): x_j - x_i.
        apart = w.dense(y, (ones[None] - ones[:, None]).reshape(size**2, size))
        powers = w.append(Convex(apart.value, "exp"), (groups * size, size))
        sums = w.dense(powers, torch.ones(1, size))
        return w.append(Convex(sums.value, "reciprocal", 1.0), (groups, size))

    return w.along_last(x, (operation.axis,), of)


def _norm(w: _Writer, operation: typed.LayerNorm | typed.RMSNorm, x: Tensor) -> Tensor:
    if not operation.eps > 0:
        w.refuse(f"a norm with eps = {operation.eps:g}, which may divide by 0")

    def of(y: Tensor) -> Tensor:
        size = y.shape[1]
        if isinstance(operation, typed.LayerNorm):
            y = w.dense(y, torch.eye(size, dtype=torch.float64) - 1 / size)
        squares = w.append(Convex(y.value, "square"), y.shape)
        bias = torch.tensor(operation.eps, dtype=torch.float64)
        mean = w.dense(squares, torch.ones(1, size, dtype=torch.float64) / size, bias)
        return w.product(y, w.append(Convex(mean.value, "rsqrt", operation.eps), mean.shape))

    made = w.along_last(x, operation.axes, of)
    made = made if operation.weight is None else w.scaled(made, operation.weight)
    bias = getattr(operation, "bias", None)
    return made if bias is None else w.affine(made, Same(), made.shape, bias)


def _matmul(w: _Writer, _: typed.MatMul, x: Known, y: Known) -> Tensor:
    if isinstance(x, torch.Tensor) and isinstance(y, Tensor) and x.ndim == 2 and len(y.shape) >= 2:
        turned = (*range(len(y.shape) - 2), len(y.shape) - 1, len(y.shape) - 2)
        return w.moved(Transpose(turned), w.dense(w.moved(Transpose(turned), y), x))
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or min(len(x.shape), len(y.shape)) < 2:
        w.refuse("no sound bounds of a product with a constant of such a shape")
    # Entry (..., row, column, k) is x[..., row, k] y[..., k, column].
    first, second = _numbers(x.shape)[..., :, None, :], _numbers(y.shape).transpose(-1, -2)[..., None, :, :]
    left, right = (each.expand(np.broadcast_shapes(first.shape, second.shape)) for each in (first, second))
    maps = [Select(index.flatten().long(), prod(each.shape)) for index, each in ((left, x), (right, y))]
    made = w.append(Product(x.value, y.value, *maps), tuple(left.shape))
    summed = w.dense(made, torch.ones(1, left.shape[-1]))
    return Tensor(summed.value, summed.shape[:-1])


_RULES: dict[type, Callable[..., Tensor]] = {
    typed.AveragePool: _as_matrix, typed.BatchNorm: _batch_norm,
    typed.Clamp: _clamp, typed.Convolution: _convolution, typed.Function: _function, typed.LayerNorm: _norm,
    typed.Linear: lambda w, operation, x: w.dense(x, operation.weight, operation.bias), typed.MatMul: _matmul,
    typed.MaxPool: _max_pool, typed.Pointwise: _pointwise, typed.Power: _power, typed.Product: _product,
    typed.Quotient: _quotient, typed.Reduction: _reduction, typed.Resample: _as_matrix, typed.RMSNorm: _norm,
    typed.Softmax: _softmax, typed.Sum: _sum,
}  # fmt: skip
