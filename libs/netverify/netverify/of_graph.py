"""Which nodes compute the operations of a typed graph.

A softmax is 1 / sum_j exp(x_j - x_i), where each sum is at least 1; a normalisation x / sqrt(mean
of x^2 + eps); a matrix product the sum of products of entries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, prod, sqrt
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from lambda_gelu.activations.gates import SOFTPLUS
from netverify.graph import Affine, Convex, Maximum, Node, Product, Rounded, Shares
from netverify.linear import Adjoint, Convolution, Dense, Linear, Same, Select
from netverify.rules import SHARED, column
from netverify.writing import Known, Padded, Rule, Tensor, Writer, numbers
from opgraph import operations as typed
from opgraph.attention import LISTED, attention_of
from opgraph.errors import Unsupported
from opgraph.estimates import refuse_beyond
from opgraph.graph import Graph as TypedGraph
from opgraph.moving import Concat, Reshape, Slice, Transpose
from opgraph.patterns import ALL_MASKED, recognised, with_norms

# Entries of a matrix that stands for a pool or an interpolation.
_MATRIX = 2**24


def nodes_of(
    graph: TypedGraph, check: Callable[[], None], *, computed: bool = False
) -> tuple[list[Node], Tensor]:
    """The nodes for one sample, and the output. `check` is called often; what it raises ends the
    writing. `computed`: see `graph_of_typed`.

    Raises:
        Unsupported: an operation has no sound bounds here, or a number was rounded on the way; by
            the node's name. Or its attention lists more than memory holds, by estimate.
    """
    refuse_attention(graph)
    try:
        return Writer(recognised(graph), _RULES, check, computed=computed).run()
    except Unsupported:
        # A formula of rounded numbers is no known activation, and may be bounded as it is written.
        try:
            return Writer(with_norms(graph), _RULES, check, computed=computed).run()
        except Unsupported:
            pass
        raise


def refuse_attention(graph: TypedGraph, networks: int = 1) -> None:
    """Raise Unsupported where the attention of so many networks of this graph lists more than
    memory holds, by estimate.
    """
    attention = attention_of(graph)
    refuse_beyond(
        networks * attention.memory,
        f"bounds through {networks * attention.pairs} scores or pairs of them and"
        f" {networks * attention.products} products of attention",
        "they grow with the square of the positions, and with the blocks; take fewer of either",
    )


def _sum(w: Writer, operation: typed.Sum, *given: Known) -> Tensor | Padded:
    """A constant of -inf leaves the other entries in a frame of it. Finite masks are numbers as
    others are.
    """
    masks = [
        known == -inf
        for known in given
        if isinstance(known, torch.Tensor) and bool((known == -inf).any())
    ]
    if masks and min(operation.signs) > 0:
        kept = (
            known.masked_fill(known == -inf, 0.0) if isinstance(known, torch.Tensor) else known
            for known in given
        )
        made = _added(w, operation, *kept)
        return Padded(made, numbers(made.shape).masked_fill(masks[0], -1.0))
    return _added(w, operation, *given)


def _added(w: Writer, operation: typed.Sum, *given: Known) -> Tensor:
    # 1. Separate constants, which become the bias, from values.
    shape = tuple(np.broadcast_shapes(*(known.shape for known in given)))
    signed = list(zip(operation.signs, given, strict=True))
    constants = [sign * each for sign, each in signed if isinstance(each, torch.Tensor)]
    if not all(bool(constant.isfinite().all()) for constant in constants):
        w.refuse("takes an infinite constant")
    tensors = [(sign, each) for sign, each in signed if isinstance(each, Tensor)]
    if len(constants) > 1:
        w.refuse("adds several constants, whose rounded sum would be none of the network")
    bias = (constants[0] if constants else torch.zeros(())).expand(shape)
    # 2. One value plus a constant is a shift, which joins an affine node without a bias.
    (sign, first), *more = tensors
    if sign > 0 and not more and prod(first.shape) == prod(shape):
        return w.shifted(Tensor(first.value, shape), bias)
    # 3. Each value by a map that repeats it to the sum's shape. No map both repeats and negates:
    # what is repeated and subtracted gets a node of its own.
    parts = list[tuple[Tensor, Linear]]()
    for sign, each in tensors:
        map_ = w.repeated(each, shape)
        if sign > 0 or map_ == Same():
            parts.append((each, Same(sign) if map_ == Same() else map_))
        else:
            parts.append((w.affine(each, map_, shape), Same(sign)))
    operands, maps = zip(*parts, strict=True)
    return w.append(Affine(maps, bias.double().flatten()), shape, *operands)


def _function(w: Writer, operation: typed.Function, x: Tensor) -> Tensor:
    if operation.name == "round":
        return w.append(Rounded(), x.shape, x)
    tensor: Tensor = SHARED[typed.Function](w, operation, x)
    return tensor


def _convolution(w: Writer, operation: typed.Convolution, x: Tensor) -> Tensor:
    weight, bias = operation.weight, operation.bias
    window: dict[str, Any] = {
        name: getattr(operation, name) for name in ("stride", "padding", "dilation", "groups")
    }
    shape = tuple(operation(torch.zeros(x.shape, dtype=torch.float64)).shape)
    map_: Linear = (
        Adjoint(Convolution(weight, shape, x.shape, window))
        if operation.transposed
        else Convolution(weight, x.shape, shape, window)
    )
    return w.affine(x, map_, shape, None if bias is None else column(bias, len(shape)))


def _as_matrix(w: Writer, operation: Any, x: Tensor) -> Tensor:
    """A linear map, by what it makes of each unit vector."""
    size = prod(x.shape)
    units = torch.eye(size, dtype=torch.float64).reshape(size, *x.shape[1:])
    if x.shape[0] != 1 or size**2 > _MATRIX:
        w.refuse(f"a map of {size} values would be a matrix too large")
    columns = operation(units)
    return w.affine(x, Dense(columns.reshape(size, -1).T.contiguous()), (1, *columns.shape[1:]))


def _average_pool(w: Writer, operation: typed.AveragePool, x: Tensor) -> Tensor:
    if operation.ceil:
        return _as_matrix(w, operation, x)
    channels, count = x.shape[1], len(operation.kernel)
    window: dict[str, Any] = {
        "stride": operation.stride,
        "padding": operation.padding,
        "dilation": (1,) * count,
    }
    # A convolution with ones sums each window; then each entry is divided by its own count, which
    # is less at the border where padding is not counted.
    ones = torch.ones(1, 1, *operation.kernel, dtype=torch.float64)
    sums = typed.Convolution(
        ones.repeat(channels, *[1] * (count + 1)), None, **window, groups=channels
    )
    divisor = torch.tensor(float(operation.divisor or prod(operation.kernel)), dtype=torch.float64)
    if not operation.counts and operation.divisor is None:
        # What the windows count of an image of ones.
        divisor = typed.Convolution(ones, None, **window)(
            torch.ones(1, 1, *x.shape[2:], dtype=torch.float64)
        )
    return w.scaled(_convolution(w, sums, x), 1 / divisor)


def _max_pool(w: Writer, operation: typed.MaxPool, x: Tensor | Padded) -> Tensor:
    """Write a MaxPool as the maximum over each window, given by the numbers of its entries."""
    inner = x.inner if isinstance(x, Padded) else x
    if operation.ceil:
        w.refuse("a MaxPool with ceil_mode")
    # 1. Pool the numbers of entries in the place of entries: -1 for what is padded.
    found = x.index if isinstance(x, Padded) else numbers(x.shape)
    shape = operation(found).shape
    found = functional.pad(
        found, [each for pad in reversed(operation.padding) for each in (pad, pad)], value=-1.0
    )
    # 2. Unfold axis by axis: each output has the numbers of its window behind it.
    for axis, (size, stride, dilation) in enumerate(
        zip(operation.kernel, operation.stride, operation.dilation, strict=True), start=2
    ):
        found = found.unfold(axis, (size - 1) * dilation + 1, stride)[..., ::dilation]
    windows = found.reshape(prod(shape), -1).long()
    if bool((windows < 0).all(1).any()):
        w.refuse("a window lies in the padding alone")
    return w.append(Maximum(windows), tuple(shape), inner)


def _reduction(w: Writer, operation: typed.Reduction, x: Tensor) -> Tensor:
    def of(y: Tensor) -> Tensor:
        if operation.name == "maximum":
            return w.append(Maximum(numbers(y.shape).long()), (y.shape[0], 1), y)
        ones = torch.ones(1, y.shape[1], dtype=torch.float64)
        return w.dense(y, ones / y.shape[1] if operation.name == "mean" else ones)

    if operation.name not in ("maximum", "mean", "sum"):
        w.refuse(f"no sound bounds of the {operation.name} over axes")
    # The axes are moved behind all others, reduced row by row, and the result has torch's shape.
    shape = operation(torch.zeros(x.shape)).shape
    return w.moved(Reshape(tuple(shape)), w.along_last(x, operation.axes, of))


def _softmax(w: Writer, operation: typed.Softmax, x: Tensor | Padded) -> Tensor:
    """Write a softmax: of each row the entries that are not masked become 1 / (1 + the sum over the
    others j of exp(x_j - x_i)), or, where there are more than `LISTED` pairs, `Shares`.
    """
    if operation.log:
        if isinstance(x, Padded):
            w.refuse(
                "no sound bounds of the logarithm of a softmax that is masked: take the softmax, or"
                " the scores"
            )
        return w.along_last(x, (operation.axis,), partial(_log_softmax, w))
    inner, index = (x.inner, x.index) if isinstance(x, Padded) else (x, numbers(x.shape))
    rows = index.movedim(operation.axis, -1).long()
    kept = rows >= 0
    if not operation.safe and not bool(kept.any(-1).all()):
        w.refuse(ALL_MASKED)
    if rows.numel() * (rows.shape[-1] - 1) > LISTED:
        # Too many pairs: the shares by sums over the rows.
        framed = w.affine(inner, Select(index.flatten().long(), prod(inner.shape)), index.shape)
        return w.append(Shares(index >= 0, operation.axis % index.ndim), tuple(index.shape), framed)
    # 1. List all pairs (i, j) of two different entries of a row, of which none is masked.
    others = kept[..., :, None] & kept[..., None, :] & ~torch.eye(rows.shape[-1], dtype=torch.bool)
    entry, other = (
        each.expand(others.shape)[others] for each in (rows[..., :, None], rows[..., None, :])
    )
    # The number of each entry among those that are kept, and of the entry of each pair.
    place = torch.where(kept, kept.flatten().cumsum(0).reshape(kept.shape) - 1, -1)
    of_pair = place[..., :, None].expand(others.shape)[others]
    size, count, pairs = prod(inner.shape), int(kept.sum()), len(entry)
    if not pairs:
        alone = kept.movedim(-1, operation.axis).double()  # 1 where one is kept, 0 where none
        return w.affine(
            inner, Select(torch.full((alone.numel(),), -1), size), tuple(alone.shape), alone
        )
    # 2. Write x_j - x_i for each pair, where what both have in common cancels, and its exponential.
    negated = w.affine(inner, Same(-1), inner.shape)
    maps = Select(other, size), Select(entry, size)
    apart = w.append(
        Affine(maps, torch.zeros(pairs, dtype=torch.float64)), (pairs,), inner, negated
    )
    powers = w.append(Convex("exp-of-softmax"), (pairs,), apart)
    # 3. Sum over j, take the reciprocal, and put each entry back in place; 0 where it is masked.
    sums = w.affine(powers, Adjoint(Select(of_pair, count)), (count,), torch.ones(()))
    shares = w.append(Convex("reciprocal", 1.0), (count,), sums)
    back = place.movedim(-1, operation.axis)
    return w.affine(shares, Select(back.flatten(), count), tuple(back.shape))


def _log_softmax(w: Writer, x: Tensor) -> Tensor:
    """x - log sum exp(x) of each row: the differences of two entries are those of x, without any
    bound between.

    log(exp a + exp b) is a + softplus(b - a), of halves of a row until one number is left.
    """
    total = x
    while (count := total.shape[1]) > 1:
        half = count // 2
        # Join the first half with the last, entry by entry; of an odd number the middle one is left
        # for the next turn.
        first, second = (
            w.moved(Slice(1, start, start + half), total) for start in (0, count - half)
        )
        above = w.curve(_added(w, typed.Sum((1, -1)), second, first), SOFTPLUS)
        joined = _added(w, typed.Sum((1, 1)), first, above)
        total = (
            w.moved(Concat(1), joined, w.moved(Slice(1, half, half + 1), total))
            if count % 2
            else joined
        )
    return _added(w, typed.Sum((1, -1)), x, total)


def _norm(w: Writer, operation: typed.LayerNorm | typed.RMSNorm, x: Tensor) -> Tensor:
    if not operation.eps > 0:
        w.refuse(f"a norm with eps = {operation.eps:g}, which may divide by 0")

    def of(y: Tensor) -> Tensor:
        size = y.shape[1]
        if isinstance(operation, typed.LayerNorm):
            y = w.dense(y, torch.eye(size, dtype=torch.float64) - 1 / size)
        # y / sqrt(mean of y^2 + eps), where y is x less its mean (LayerNorm), or x (RMSNorm).
        squares = w.append(Convex("square"), y.shape, y)
        bias = torch.tensor(operation.eps, dtype=torch.float64)
        mean = w.dense(squares, torch.ones(1, size, dtype=torch.float64) / size, bias)
        # No entry's square is greater than the sum of all, which is less than `size` times what is
        # divided by.
        return w.product(
            y, w.append(Convex("rsqrt", operation.eps), mean.shape, mean), most=sqrt(size)
        )

    tensor = w.along_last(x, operation.axes, of)
    tensor = tensor if operation.weight is None else w.scaled(tensor, operation.weight)
    bias = getattr(operation, "bias", None)
    return tensor if bias is None else w.shifted(tensor, bias)


def _matmul(w: Writer, operation: typed.MatMul, x: Known, y: Known) -> Tensor:
    shape = tuple(operation(torch.zeros(x.shape), torch.zeros(y.shape)).shape)
    # 1. With a constant the product is affine: a matrix from the right, one from the left by way of
    # a transpose, or one for each head.
    if isinstance(y, torch.Tensor) and isinstance(x, Tensor) and y.ndim == 1:
        return Tensor(w.dense(x, y[None]).value, shape)
    if isinstance(x, torch.Tensor) and isinstance(y, Tensor) and x.ndim <= 2:
        matrix, turned = x.reshape(-1, x.shape[-1]), list(range(len(y.shape)))
        turned[-2:] = reversed(turned[-2:])
        order = Transpose(tuple(turned))
        return Tensor(w.moved(order, w.dense(w.moved(order, y), matrix)).value, shape)
    if isinstance(x, Tensor) and isinstance(y, torch.Tensor):  # one matrix for each head, say
        matrices = y.double()
        return _as_matrix(w, lambda z: z @ matrices, x)
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or min(len(x.shape), len(y.shape)) < 2:
        w.refuse("no sound bounds of a product with a constant of such a shape")
    # Entry (..., row, column, k) is x[..., row, k] y[..., k, column].
    first, second = (
        numbers(x.shape)[..., :, None, :],
        numbers(y.shape).transpose(-1, -2)[..., None, :, :],
    )
    left, right = (
        each.expand(np.broadcast_shapes(first.shape, second.shape)) for each in (first, second)
    )
    one, other = (
        Select(index.flatten().long(), prod(each.shape)) for index, each in ((left, x), (right, y))
    )
    # 2. Of two values: all products of entries, and their sums.
    made = w.append(Product(one, other), tuple(left.shape), x, y)
    summed = w.dense(made, torch.ones(1, left.shape[-1]))
    return Tensor(summed.value, shape)


_RULES: dict[type, Rule] = SHARED | {
    typed.AveragePool: _average_pool,
    typed.Convolution: _convolution,
    typed.Function: _function,
    typed.LayerNorm: _norm,
    typed.Linear: lambda w, operation, x: w.dense(x, operation.weight, operation.bias),
    typed.MatMul: _matmul,
    typed.MaxPool: _max_pool,
    typed.Reduction: _reduction,
    typed.Resample: _as_matrix,
    typed.RMSNorm: _norm,
    typed.Softmax: _softmax,
    typed.Sum: _sum,
}
