"""The checker of proofs about integer networks, which needs `onnx` alone: python integer_proofs.py
PROOF.json FILE.onnx

A proof states: for all inputs x of a box, integers with lower <= x <= upper, rows of the network's
outputs y have c . y >= d. It speaks of the ONNX file as it is executed: of the same integers, with
the same rounding and clipping.

The network is a chain of layers: sums z = W x + b, and then a function f of each sum alone, x' =
f(z), which is whatever the nodes between two matrix products compute (a requantization, a table of
GELU). The checker evaluates f at every integer that z can take in the box, so that it need not know
what f is for.

How a row c . y is bounded: with y = f(z) and any number p, c f(z) is at least p z plus the least of
c f(z) - p z over the integers in z's interval. So c . y >= p . z + r, and p . z = (p W) . x + p . b
is a row over the outputs of the layer before. At the inputs, the box gives the bound. A proof
chooses the p ("prices"), and splits the box where one choice does not do: by a sum (z <= cut, or z
> cut), or by an input. Any choice is sound, and no number that depends on it is taken from the
proof. (The bound is Lagrange's; compare arXiv 1811.00866 and 1803.06567.)
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

INTEGER_PROOF = "evalsuite-integer-proof/1"
"""The entry `format` of proof files about integer networks.
"""
_BITS = 32  # rows and prices are integers times 2^-32
_CHUNK, _TABULATED = 2**14, 2**26  # values of functions that are looked at: at a time, and in all
_POINTS = 4096  # of a part whose inputs are tried one by one
_ROOM = 2.0**62  # what is computed in 64 bits stays below
_SHIFT_RIGHT = {"direction": b"RIGHT"}

Array = np.ndarray[Any, Any]
# a function by the runs on which it is constant: first and last argument, value
Runs = tuple[Array, Array, Array]


class IntegerProofError(ValueError):
    """The file proves nothing; the text says where and why."""


@dataclass(frozen=True)
class IntegerStatement:
    """States what is proven: for all integer inputs of the box, each row (c by output, d) has c . y
    >= d.
    """

    sha256: str
    sizes: list[int]
    lower: list[int]
    upper: list[int]
    rows: list[tuple[dict[int, int], int]]
    parts: int


@dataclass
class _Layer:
    """`weight` (neurons, inputs); `bias` (neurons,) is what zero points add; `nodes` act on the
    tensor `source`.
    """

    weight: Array
    bias: Array
    source: str
    nodes: list[Any]
    result: str = ""

    def function(self, sums: Array, constants: dict[str, Array]) -> Array:
        """f of sums (points, neurons), which fit into 32 bits."""
        known = {self.source: sums.astype(np.int32)}
        for node in self.nodes:
            # Each sum by itself: a result wider than the sums would mix several.
            result = _computed(
                node, [known[name] if name in known else constants[name] for name in node.input]
            )
            _require(
                np.broadcast_shapes(result.shape, sums.shape) == sums.shape,
                f"node {node.name!r} mixes sums",
            )
            known[node.output[0]] = result
        _require(
            np.abs(known[self.result].astype(np.float64)).max() < _ROOM,
            f"{self.result!r} is beyond 62 bits",
        )
        return np.broadcast_to(known[self.result], sums.shape).astype(np.int64)


@dataclass(frozen=True)
class _Part:
    """A part of the box: its inputs' ends, and each layer's functions on the sums that are
    possible in it.
    """

    lower: Array
    upper: Array
    runs: list[list[Runs]]


def _require(true: object, message: str) -> None:
    if not true:
        raise IntegerProofError(message)


def _integers(values: Any, count: int, place: str) -> Array:
    plain = (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) is int for value in values)
    )
    _require(
        plain and all(abs(value) < 2**62 for value in values),
        f"{place}: needs {count} integers of 62 bits",
    )
    return np.array(values, dtype=np.int64)


def _computed(node: Any, operands: list[Array]) -> Array:  # noqa: PLR0911
    """Return what a node makes of integers. Unsigned sums and products wrap around, as executed;
    signed ones may not.
    """
    # 1. A table, read within its entries alone: in ONNX, negative indices count from its end.
    said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Gather" and said in ({}, {"axis": 0}) and operands[0].ndim == 1:
        _require(
            0 <= operands[1].min() <= operands[1].max() < len(operands[0]),
            f"node {node.name!r} reads beside its table",
        )
        return np.asarray(operands[0][operands[1]])
    # 2. All else acts on integers of one type.
    kind = operands[0].dtype
    _require(
        kind.kind in "iu" and all(array.dtype == kind for array in operands),
        f"node {node.name!r} mixes types",
    )
    # ONNX Runtime 1.31 compares some signed 64-bit integers wrongly on x86
    # (microsoft/onnxruntime#32475).
    match (
        (node.op_type, *operands)
        if kind != np.int64 or node.op_type not in ("Clip", "Max", "Min")
        else ()
    ):
        case ["Cast", x] if (target := helper.tensor_dtype_to_np_dtype(said["to"])).kind in "iu":
            return np.asarray(x.astype(target))  # the low bits: the standard says so
        case [("Add" | "Sub" | "Mul") as name, x, y]:
            function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[name]
            if kind.kind == "i":
                # What signed overflow gives is undefined. Float64 is exact enough to exclude it.
                near = np.abs(function(x.astype(np.float64), y.astype(np.float64))).max()
                _require(
                    near <= min(np.iinfo(kind).max, _ROOM),
                    f"node {node.name!r} ({name}) may overflow {kind}",
                )
            return np.asarray(function(x, y))
        case ["Clip", x, low, high] if (low <= high).all():
            return np.asarray(np.minimum(np.maximum(x, low), high))
        case [("Max" | "Min" | "BitwiseAnd") as name, x, y]:
            return np.asarray(
                {"Max": np.maximum, "Min": np.minimum, "BitwiseAnd": np.bitwise_and}[name](x, y)
            )
        case ["Div", x, y] if (y > 0).all() and (x % y == 0).all():
            # Without a remainder: with one, runtimes differ in how they round below 0.
            return np.asarray(x // y)
        case ["BitShift", x, places] if (
            kind.kind == "u" and said == _SHIFT_RIGHT and (places < 8 * kind.itemsize).all()
        ):
            return np.asarray(np.right_shift(x, places))
        case ["Identity", x]:
            return np.asarray(x)
    raise IntegerProofError(
        f"node {node.name!r} ({node.op_type}) of {len(operands)} {kind}, with {said}, is not read"
    )


def read_network(model: onnx.ModelProto) -> tuple[list[_Layer], dict[str, Array]]:
    """The layers of a network whose input is uint8, and the file's constants by name."""
    onnx.checker.check_model(model)
    graph, versions = model.graph, {opset.domain: opset.version for opset in model.opset_import}
    # 1. Refuse what ONNX could mean otherwise than it is read here, and what is outside of the
    # file.
    outside = (
        len(model.opset_import) > 1
        or model.functions
        or graph.sparse_initializer
        or any(tensor.data_location for tensor in graph.initializer)
    )
    _require(
        set(versions) == {""} and 18 <= versions[""] <= 23 and not outside,
        f"opset {versions}, or outside data",
    )
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    (source,), (output,), layers = graph.input, graph.output, list[_Layer]()
    # A free size is 0, and one of 0, of which there is no output, -1.
    batch, *sizes = [
        dimension.dim_value or -dimension.HasField("dim_value")
        for dimension in source.type.tensor_type.shape.dim
    ]
    bytes_ = (
        source.type.tensor_type.elem_type == onnx.TensorProto.UINT8 and source.name not in constants
    )
    _require(
        bytes_ and batch in (0, 1) and sizes and min(sizes) > 0,
        "the input must be uint8 of (batch, fixed sizes)",
    )
    # 2. Follow the nodes. `current` are the values of the last layer, which alone may be taken.
    width, flat, current = math.prod(sizes), len(sizes) == 1, {source.name}
    for number, node in enumerate(graph.node):
        place = f"node {number} {node.name!r} ({node.op_type})"
        computed = [name for name in node.input if name not in constants]
        _require(
            not node.domain and current.issuperset(computed) and computed,
            f"{place} breaks the chain of layers",
        )
        if node.op_type == "Flatten" and not layers:
            _require(
                [attribute.i for attribute in node.attribute] in ([], [1]),
                f"{place} keeps more than the batch",
            )
            flat, current = True, {*node.output}
        elif node.op_type == "MatMulInteger":
            matrix, zero, offset = (constants[name] for name in node.input[1:])
            # The kernel of some processors for int8 weights saturates sums of two products in 16
            # bits.
            plain = {array.dtype.name for array in (matrix, zero, offset)} == {
                "uint8"
            } and zero.size == offset.size == 1
            _require(
                plain and flat and matrix.shape[:-1] == (width,),
                f"{place} must multiply {width} uint8 by uint8",
            )
            # A new layer, with the zero points multiplied out: (W - offset) (x - zero) is (W -
            # offset) x minus zero times the sums of rows. What it takes is the result of the layer
            # before.
            weight = matrix.T.astype(np.int64) - int(offset.item())
            layers[-1:] = [replace(layer, result=node.input[0]) for layer in layers[-1:]]
            layers.append(_Layer(weight, -int(zero.item()) * weight.sum(1), node.output[0], []))
            width, current = len(weight), {*node.output}
        else:
            # Any other node belongs to the function of the last layer: the same for each sample.
            vectors = node.op_type == "Gather" or all(
                constants[name].shape[:-1] in ((), (1,)) for name in node.input if name in constants
            )
            _require(
                layers and vectors,
                f"{place} acts on the input, or unlike on the samples of a batch",
            )
            layers[-1].nodes.append(node)
            current |= {*node.output}
    _require(layers and output.name in current, "the output does not come from the last layer")
    layers[-1].result = output.name
    return layers, constants


def _tabulated(layer: _Layer, constants: dict[str, Array], low: Array, high: Array) -> list[Runs]:
    """Each neuron's function on low, ..., high: by evaluating it at every integer."""
    # All neurons are evaluated together, in chunks; where one's interval is shorter, its end is
    # repeated, and cut off below.
    starts = range(0, int((high - low).max()) + 1, _CHUNK)
    sums = [np.minimum(low + np.arange(start, start + _CHUNK)[:, None], high) for start in starts]
    runs = []
    for index, column in enumerate(
        np.concatenate([layer.function(sum_, constants) for sum_ in sums]).T
    ):
        values = column[: high[index] - low[index] + 1]
        # The least of c f(z) - p z on a run of equal values is at one of its ends: runs are enough.
        changes = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
        runs.append(
            (
                low[index] + changes,
                np.append(low[index] + changes[1:] - 1, high[index]),
                values[changes],
            )
        )
    return runs


def _least(layers: list[_Layer], part: _Part, rows: Array, choose: Any) -> Array | None:
    """A lower bound of each row (rows, outputs) over the last layer; None where 64 bits might not
    do.

    `choose(depth, rows)` gives a layer's prices for rows over its outputs. All three are times
    2^32.
    """

    # at most 3 numbers a layer, and 1 of the inputs, are added
    def fits(numbers: Array, sizes: Any) -> bool:
        greatest = np.abs(numbers.astype(np.float64)) @ np.asarray(sizes, dtype=np.float64)
        return bool((greatest < _ROOM / (4 * (len(layers) + 3))).all())

    total = np.zeros(len(rows), dtype=np.int64)
    for depth in reversed(range(len(layers))):
        # 1. Prices of this layer; refuse sums that could leave 64 bits, as numpy would wrap around.
        layer, runs, prices = layers[depth], part.runs[depth], choose(depth, rows)
        sums = [max(abs(int(firsts[0])), abs(int(lasts[-1]))) for firsts, lasts, _ in runs]
        values = [int(np.abs(values).max()) for *_, values in runs]
        sizes = [sums, np.abs(layer.bias), np.abs(layer.weight).max(1)]
        if not (fits(rows, values) and all(fits(prices, size) for size in sizes)):
            return None
        # 2. For each neuron the least of c f(z) - p z: on each run p z is greatest at one end.
        for index, (firsts, lasts, outputs) in enumerate(runs):
            ends = np.where(prices[:, index, None] > 0, lasts, firsts)
            total += (rows[:, index, None] * outputs - prices[:, index, None] * ends).min(1)
        # 3. p z is (p W) x + p b: a row over the outputs of the layer before.
        total, rows = total + prices @ layer.bias, prices @ layer.weight
    # 4. At the inputs each coordinate decides for itself.
    if not fits(rows, np.maximum(part.lower, part.upper)):
        return None
    return np.asarray(total + np.minimum(rows * part.lower, rows * part.upper).sum(1))


def _whole(
    layers: list[_Layer], constants: dict[str, Array], lower: Array, upper: Array, slopes: Any
) -> _Part:
    """The box, with the intervals of all its sums: by interval arithmetic, and by bounds with the
    proof's slopes.

    A slope times a row is a price: slopes[depth] are those of each neuron for positive rows, and
    for negative ones.
    """
    part, low, high, tabulated = _Part(lower, upper, []), lower, upper, 0

    def choose(depth: int, rows: Array) -> Array:
        positive, negative = np.array(slopes[depth], dtype=np.float64)
        return np.asarray(np.rint(rows * np.where(rows > 0, positive, negative)).astype(np.int64))

    for depth, layer in enumerate(layers):
        # 1. A layer's sums are computed in 32 bits: refuse what may not fit there.
        sizes = np.abs(layer.weight) @ np.maximum(np.abs(low), np.abs(high)) + np.abs(layer.bias)
        _require(sizes.max() < 2**31, f"layer {depth}: a sum may not fit into 32 bits")
        # 2. Interval arithmetic.
        ends = np.stack([layer.weight * low, layer.weight * high])
        least, most = ends.min(0).sum(1) + layer.bias, ends.max(0).sum(1) + layer.bias
        # 3. Each sum and its negative as rows over the layers before. A bound of an integer is
        # rounded up to the next one. Where 64 bits do not do, the intervals are left.
        rows = np.concatenate([layer.weight, -layer.weight]) << _BITS
        bound_before = _least(layers[:depth], part, rows, choose) if depth else None
        if bound_before is not None:
            downwards, upwards = np.split(-(-bound_before >> _BITS), 2)
            least, most = (
                np.maximum(least, downwards + layer.bias),
                np.minimum(most, layer.bias - upwards),
            )
        # 4. Evaluate the layer's function on all values that are left: what it can give is the
        # interval of the next layer's inputs.
        tabulated += (int((most - least).max()) + 1) * len(least)
        _require(
            tabulated <= _TABULATED,
            f"layer {depth}: its sums take too many values for all to be looked at",
        )
        part.runs.append(_tabulated(layer, constants, least, most))
        low, high = (
            np.array([end(values) for *_, values in part.runs[-1]]) for end in (np.min, np.max)
        )
    return part


def _halves(tree: Any, part: _Part, place: str) -> tuple[_Part, _Part]:
    """The parts below and above a cut, which together hold all of the part's inputs."""
    depth, index, cut = _integers(
        [*tree.get("neuron", [-1]), *tree.get("input", []), tree["cut"]], 3, place
    ).tolist()
    if depth < 0:  # an input
        _require(
            part.lower[index] <= cut < part.upper[index] and index >= 0,
            f"{place}: the cut leaves a half empty",
        )
        is_cut = np.arange(len(part.lower)) == index
        return replace(part, upper=np.where(is_cut, cut, part.upper)), replace(
            part, lower=np.where(is_cut, cut + 1, part.lower)
        )
    # A sum: each half keeps the runs on its side, and that which the cut is in ends or begins
    # there.
    firsts, lasts, values = part.runs[depth][index]
    _require(firsts[0] <= cut < lasts[-1] and index >= 0, f"{place}: the cut leaves a half empty")
    below, above = firsts <= cut, lasts > cut
    low = firsts[below], np.minimum(lasts[below], cut), values[below]
    high = np.maximum(firsts[above], cut + 1), lasts[above], values[above]
    runs = [[[*layer] for layer in part.runs] for _ in range(2)]
    runs[0][depth][index], runs[1][depth][index] = low, high
    return replace(part, runs=runs[0]), replace(part, runs=runs[1])


@dataclass
class _Row:
    """The proof of one row: `row` (1, outputs), times 2^32, is at least `needed` in each part."""

    layers: list[_Layer]
    constants: dict[str, Array]
    row: Array
    needed: int

    def parts(self, tree: Any, part: _Part, place: str) -> int:
        """How many parts there are, all of them proven."""
        if "cut" in tree:
            low, high = _halves(tree, part, place)
            return self.parts(tree["low"], low, f"{place}.low") + self.parts(
                tree["high"], high, f"{place}.high"
            )
        # A leaf: by prices, or by trying each point, where the proof gives none.
        least = (
            self._by_prices(tree["prices"], part, place)
            if "prices" in tree
            else self._at_points(part, place)
        )
        _require(
            least >= self.needed,
            f"{place}: the row is only known to be >= {least}, not >= {self.needed}",
        )
        return 1

    def _by_prices(self, stated: Any, part: _Part, place: str) -> int:
        numbers = zip(stated, self.layers, strict=True)
        prices = [
            _integers(prices, len(layer.bias), f"{place}.prices")[None] for prices, layer in numbers
        ]
        least = _least(self.layers, part, self.row, lambda depth, _: prices[depth])
        _require(least is not None, f"{place}: its bound may not fit into 64 bits")
        # Sums are integers, so that their bound is rounded up.
        return -1 if least is None else -(-int(least[0]) >> _BITS)

    def _at_points(self, part: _Part, place: str) -> int:
        ranges = [
            range(low, high + 1)
            for low, high in zip(part.lower.tolist(), part.upper.tolist(), strict=True)
        ]
        _require(math.prod(map(len, ranges)) <= _POINTS, f"{place}: has more than {_POINTS} points")
        state = np.array([*product(*ranges)], dtype=np.int64)
        for layer in self.layers:
            state = layer.function(state @ layer.weight.T + layer.bias, self.constants)
        return int((state.astype(object) @ (self.row[0] >> _BITS).astype(object)).min())


def check_integer_proof(proof: Any, onnx_bytes: bytes) -> IntegerStatement:
    """Return what the proof proves of the network in an ONNX file's bytes. Raises IntegerProofError
    if that is nothing.
    """
    try:
        with np.errstate(all="ignore"):
            return _checked(proof, onnx_bytes)
    except IntegerProofError:
        raise
    except Exception as error:  # whatever Python, numpy and onnx make of what is malformed
        raise IntegerProofError(f"malformed: {type(error).__name__}: {str(error)[:999]}") from None


def _checked(proof: Any, onnx_bytes: bytes) -> IntegerStatement:
    sha256, (layers, constants) = (
        hashlib.sha256(onnx_bytes).hexdigest(),
        read_network(onnx.load_from_string(onnx_bytes)),
    )
    # 1. The proof must be of this very file.
    sizes = [layers[0].weight.shape[1], *(len(layer.bias) for layer in layers)]
    named = {"format": proof["format"], "network": proof["network"]}
    _require(
        named == {"format": INTEGER_PROOF, "network": {"sha256": sha256, "sizes": sizes}},
        f"is not of network {sha256}",
    )
    lower, upper = (
        _integers(proof["box"][end], sizes[0], f"box.{end}") for end in ("lower", "upper")
    )
    inside = (lower >= 0) & (lower <= upper) & (upper <= 255)
    _require(inside.all(), "box: needs 0 <= lower <= upper <= 255")
    # 2. All sums' intervals and functions on the whole box, which the trees begin with.
    whole, parts, rows = _whole(layers, constants, lower, upper, proof["slopes"]), 0, list[Any]()
    # 3. Each row with its tree: in units of 2^-32, so that prices may have fractions.
    for number, (stated, tree) in enumerate(zip(proof["rows"], proof["trees"], strict=True)):
        factors = _integers(
            [*stated["coefficients"].values()], len(stated["coefficients"]), f"rows[{number}]"
        )
        (needed,) = _integers([stated["at_least"]], 1, f"rows[{number}]").tolist()
        row = np.zeros((1, sizes[-1]), dtype=np.int64)
        known = [output for output in range(sizes[-1]) if str(output) in stated["coefficients"]]
        _require(
            len(factors) == len(known) > 0 and np.abs(factors).max() < 2**20,
            f"rows[{number}]: is no row",
        )
        row[0, known] = [stated["coefficients"][str(output)] for output in known]
        parts += _Row(layers, constants, row << _BITS, needed).parts(
            tree, whole, f"trees[{number}]"
        )
        rows.append(({output: int(row[0, output]) for output in known}, needed))
    _require(rows, "rows: there is none")
    return IntegerStatement(sha256, sizes, lower.tolist(), upper.tolist(), rows, parts)


if __name__ == "__main__":
    with open(sys.argv[1]) as _proof, open(sys.argv[2], "rb") as _network:  # noqa: PTH123
        print(check_integer_proof(json.load(_proof), _network.read()))
