"""The checker of proofs about smooth networks (GELU, SiLU, ...), which needs `onnx` alone:
smooth_proofs.py PROOF ONNX

A proof says that rows c . y + d are > 0 for all real inputs of a box, y being the ONNX file's
outputs without rounding. It gives slopes of lines below and above each neuron's function f, and
splits the box by pre-activations z (z <= cut, or z >= cut). The checker computes where the lines
start, and all bounds: back from a row, q f(z) is >= q (s z + t), with the line below for q > 0 and
the one above for q < 0, and that is >= p z + r for any p, r being the least of the rest over z's
interval. Any slope, cut and p is sound: no other number of the file is used. (arXiv 1811.00866,
2103.06624.)

How lines start: with the least of f(z) - s z on the interval, by pieces on which f is convex or
concave (`_pieces`). A concave function is least at an end, and a convex one is above each of its
tangents. f and f' are enclosed by series in integers, with remainders that are bounded where they
are computed. Floats only choose a tangent: any is sound.
"""

import hashlib
import json
import math
import re
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from operator import mul
from typing import Any

import onnx

SMOOTH_PROOF = "evalsuite-smooth-proof/1"
"""The entry `format` of proof files about smooth networks.
"""
# binary places: of slopes and p; of z and cuts; of f, f' and starts; of series
_S, _Z, _T, _W = 32, 40, 72, 112
_ONE, _FAR = 1 << _W, 64 << _W
_LIMIT = 2**12 << _Z  # of |z|, times the hardness
_NODES, _SPLITS, _WORK = 200, 250, 2**31  # in all; in a branch; products
# m or mp-e: m 2**-e
_NUMBER = re.compile("(0|-?[1-9][0-9]{0,3999})(?:(?<=[13579])p-([1-9][0-9]{0,3}))?")
# operators and attributes that are read
_SHAPING = r"Flatten(\.axis=1)?|Identity|Reshape(\.allowzero=[01])?"
_READ = re.compile(
    _SHAPING + r"|Add|MatMul|Gemm(\.alpha=1\.0|\.beta=1\.0|\.transA=0|\.transB=[01])*|Mul|Div"
    r"|Relu|Sigmoid|Tanh"
    r"|Gelu(\.approximate=b'(none|tanh)')?"
)
_UNARY = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Gelu": "gelu"}
_PI = 314159265358979323846264338327950288419716939937510 * _ONE // 10**50
_DENSITY_AT_0 = isqrt((1 << 3 * _W) // (2 * _PI))  # 1 / sqrt(2 pi)
# 2 sqrt(2 / pi): the tanh form is z / (1 + e**-v), v = rate (z + a z**3)
_TANH_RATE = isqrt((8 << 3 * _W) // _PI)
# Where the gates change from convex (inside) to concave, rounded down to 2**-40. GELU'' = (2 -
# z**2) phi(z). For SiLU (a = 0, rate = 1) and the tanh form, f'' >= 0 where (rate / 2) z tanh(v /
# 2) (1 + 3 a z**2)**2 / (1 + 6 a z**2) <= 1, and the left side is even and rises for z > 0: the
# logarithm of the quotient has slope 6 / (1 + 3 y) - 6 / (1 + 6 y) in y = a z**2. So there is one
# root; that it is between these numbers and the next is a matter of computing it.
_BENDS = {"gelu": isqrt(2 << 2 * _Z), "silu": 2638121229115, "gelu-tanh": 1559661651712}

Row = tuple[dict[int, Fraction], Fraction]  # coefficients of outputs, constant
# z's interval; slope and start of the lines below and above
Neuron = tuple[int, int, tuple[int, int], tuple[int, int]]
Symbol = tuple[str, Fraction, Fraction]  # K, h, g: K(h z) / g of a layer's sum z


class SmoothProofError(ValueError):
    """The file proves nothing; the text says where and why."""


class SmoothBoundError(SmoothProofError):
    """A bound of the proof, recomputed, is not > 0."""


@dataclass(frozen=True)
class SmoothStatement:
    """States what is proven: for all real inputs in the box (pairs lower, upper), the rows are >=
    these bounds > 0.
    """

    sha256: str
    layers: list[int]
    box: list[tuple[Fraction, Fraction]]
    rows: list[Row]
    bounds: list[Fraction]
    leaves: int
    computed: str  # SHA-256 of all numbers that the checker computed


def _require(true: object, message: str) -> None:
    if not true:
        raise SmoothProofError(message)


def _exp(x: int) -> int:
    """e**x for 0 <= x < 64, in units of 2**-112: at most a part of 2**-97 below it."""
    halvings = max(0, x.bit_length() - (_W - 4))
    y, total, term, n = x >> halvings, _ONE, _ONE, 0  # y < 1/16
    # 18 terms, each rounded down by at most 1.1 units, and a tail of at most 2; the same for y: in
    # all 25 units.
    while term:
        n += 1
        term = term * y // n >> _W
        total += term
    # at most 10 times: the relative error doubles, and one unit is rounded off
    for _ in range(halvings):
        total = total * total >> _W
    return total


def _logistic(v: int) -> int:
    """1 / (1 + e**-v) to 2**-90; beyond 64 it is 0 or 1 to e**-64 < 2**-92."""
    if abs(v) >= _FAR:
        return _ONE if v > 0 else 0
    # e**|v| is >= 1, so that the quotient loses no digits; 1 - share gives the negative side.
    power = _exp(abs(v))
    share = (power << _W) // (power + _ONE)
    return share if v >= 0 else _ONE - share


def _normal(z: int) -> tuple[int, int]:
    """The normal distribution's Phi(z) and phi(z) to 2**-90; where z**2 / 2 >= 64, 0 or 1 to
    e**-64 / 2, and 0.
    """
    square = z * z >> _W
    if square >= 2 * _FAR:
        return (_ONE if z > 0 else 0), 0
    power = _exp(square // 2)
    # Phi(z) - 1/2 = phi(z) (z + z**3 / 3 + z**5 / (3 5) + ...). An error of one unit in a term
    # becomes at most e**(z**2 / 2) units of the sum, since 3 5 ... (2 i + 1) >= 2**i i!, which phi
    # takes away again: 400 terms, 2**-103 in all. Where the loop ends, terms at least halve, so
    # that the rest is at most the last one.
    total, term, n = abs(z), abs(z), 1
    while 2 * square > (n + 2) << _W or term > total >> _W:
        n += 2
        term = term * square // n >> _W
        total += term
    half = total * _DENSITY_AT_0 // power
    return (_ONE // 2 + half if z >= 0 else _ONE // 2 - half), (_DENSITY_AT_0 << _W) // power


@lru_cache(maxsize=2**14)
def _curve(kind: str, z: int) -> tuple[int, int]:
    """K(z) and K'(z) at z 2**-40, |z| <= 2**12, each to less than 2 units of 2**-72: see the
    errors of the gates.
    """
    x = z << (_W - _Z)
    if kind == "relu":
        return max(z, 0) << (_T - _Z), (z > 0) << _T
    if kind == "gelu":
        gate, density = _normal(x)
        more = x * density >> _W
    else:
        # v and z v'; errors in v count where |v| < 64 alone
        turn = rise = 2 * x if kind == "tanh" else x
        if kind == "gelu-tanh":
            cube = ((x * x >> _W) * x >> _W) * 44715 // 10**6
            turn, rise = (x + cube) * _TANH_RATE >> _W, (x + 3 * cube) * _TANH_RATE >> _W
        gate = _logistic(turn)
        steep = gate * (_ONE - gate) >> _W
        if kind in ("sigmoid", "tanh"):
            pair = (gate, steep) if kind == "sigmoid" else (2 * gate - _ONE, 4 * steep)
            return pair[0] >> (_W - _T), pair[1] >> (_W - _T)
        more = rise * steep >> _W
    return z * gate >> (_W + _Z - _T), (gate + more) >> (_W - _T)


def _steepness(kind: str, z: float) -> float:
    """K'(z) in floats, roughly: it only chooses where a tangent touches, and no bound rests on
    it.
    """
    if kind == "gelu":
        return math.erfc(-z * math.sqrt(0.5)) / 2 + z * math.exp(-z * z / 2) / math.sqrt(
            2 * math.pi
        )
    cubic, rate = (
        (0.044715, math.sqrt(8 / math.pi)) if kind == "gelu-tanh" else (0.0, 1.0 + (kind == "tanh"))
    )
    gate = (1 + math.tanh(rate * (z + cubic * z**3) / 2)) / 2
    if kind in ("sigmoid", "tanh"):
        return gate * (1 - gate) * rate * rate
    return (
        gate + gate * (1 - gate) * rate * (z + 3 * cubic * z**3) if kind != "relu" else float(z > 0)
    )


def _pieces(kind: str) -> list[tuple[int, int, int]]:
    """Intervals with 1 where K is convex on them, -1 where concave, 2 where linear, and 0 where
    it may be neither.
    """
    if kind == "relu":
        return [(-_LIMIT, 0, 2), (0, _LIMIT, 2)]
    if kind not in _BENDS:
        return [(-_LIMIT, 0, 1), (0, _LIMIT, -1)]
    k = _BENDS[kind]
    return [(-_LIMIT, -k - 1, -1), (-k - 1, -k, 0), (-k, k, 1), (k, k + 1, 0), (k + 1, _LIMIT, -1)]


def _least(kind: str, sign: int, slope: int, low: int, high: int) -> int:
    """A lower bound of sign (K(z) - slope z) on [low, up], in units of 2**-72."""

    def at(z: int) -> int:
        return sign * (_curve(kind, z)[0] - slope * z) - 2

    values = []
    for start, end, bent in _pieces(kind):
        a, b = max(low, start), min(high, end)
        if a <= b and bent == sign:
            # sign K is convex here and lies above its tangent. The tangent's own slope is known to
            # 2 units, so that both ends of what it may be are tried at both ends of the piece.
            touch = _touch(kind, sign, slope, a, b)
            steep = sign * (_curve(kind, touch)[1] - (slope << _Z))
            rises = [d * (z - touch) >> _Z for d in (steep - 2, steep + 2) for z in (a, b)]
            values.append(at(touch) + min(rises))
        # at an end, as a linear function's; of the pieces with 0, whose ends are neighbours, by
        # |K'| < 2
        elif a <= b:
            values.append(min(at(a), at(b)) - (not bent) * (b - a) * ((2 << _S) + abs(slope)))
    return min(values)


def _touch(kind: str, sign: int, slope: int, low: int, high: int) -> int:
    # Where K' is the slope, the tangent is parallel to the line and loses nothing. Halve the
    # interval for it: sign K' rises on this piece. Any point between is sound.
    a, b = low / 2**_Z, high / 2**_Z
    for _ in range(48):
        middle = (a + b) / 2
        a, b = (a, middle) if sign * (_steepness(kind, middle) - slope / 2**_S) > 0 else (middle, b)
    return min(max(int(a * 2**_Z), low), high)


def _lines(curve: tuple[str, Fraction], low: int, high: int, slopes: Any) -> Neuron:
    """A neuron on an interval of z: K(h z) / h - s z = (K(w) - s w) / h, w = h z."""
    (kind, h), (below, above) = curve, slopes
    # 1. The interval of w = h z, rounded outward.
    ends = low * h.numerator // h.denominator, -(-high * h.numerator // h.denominator)
    _require(max(map(abs, ends)) <= _LIMIT, "the input of a function is beyond 2**12")
    # 2. How far down the line below must start, and, by the same bound of -(K - s w), how far up
    # the line above: both rounded away from the curve, also when they are divided by h.
    under, over = (_least(kind, sign, slope, *ends) for sign, slope in ((1, below), (-1, above)))
    under, over = (start * h.denominator // h.numerator for start in (under, over))
    return low, high, (below, under), (above, -over)


def _number(text: str) -> Fraction:
    match = _NUMBER.fullmatch(text)
    _require(match, f"{text[:40]!r} is not m or mp-e in lowest terms, of at most 4000 and 4 digits")
    return Fraction(int(match[1]), 2 ** int(match[2] or 0)) if match else Fraction(0)


def _integers(values: Any, count: int) -> list[int]:
    plain = (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) is int for value in values)
    )
    _require(
        plain and all(abs(value) < 2**96 for value in values), f"needs {count} integers of 96 bits"
    )
    return [*values]


def _exponent(values: Any) -> int:  # the least e such that all values are multiples of 2**-e
    return max((value.denominator.bit_length() - 1 for value in values), default=0)


def _applied(operator: str, attributes: str, symbols: list[Symbol], constants: list[Any]) -> Symbol:
    """Return what an elementwise node makes of functions of one z; constants are single numbers >
    0.
    """
    (kind, h, g), one = symbols[0], Fraction(1)
    # A function K of h z alone, with nothing divided yet.
    if operator in _UNARY and kind == "z" and g == 1 and not constants:
        return _UNARY[operator] + ("-tanh" if "tanh" in attributes else ""), h, one
    # z sigmoid(h z) is SiLU(h z) / h.
    if operator == "Mul" and len(symbols) == 2 and ("z", one, one) in symbols:
        kind, h, g = symbols[symbols[0] == ("z", one, one)]
        if (kind, g) == ("sigmoid", one):
            return "silu", h, h
    # A factor before the function is its hardness h, and a divisor behind it is g.
    if operator in ("Mul", "Div") and len(symbols) == len(constants) == g == 1:
        _require(
            constants[0].size == 1 and constants[0].ndim < 3,
            f"{operator} by an array of {constants[0].shape}",
        )
        factor = Fraction(constants[0].item())
        if factor > 0 and (operator == "Div" or (kind, h) == ("z", one)):
            return (kind, h, factor) if operator == "Div" else (kind, factor, g)
    raise SmoothProofError(f"{operator} of {symbols} and {len(constants)} constants is not read")


def read_smooth_network(
    model: onnx.ModelProto,
) -> tuple[list[list[list[int]]], int, list[tuple[str, Fraction]], int]:
    """A chain's affine layers, as each input's weights and last the biases, in units of 2**-e; that
    e; the functions between them, as K and h of K(h z) / h; and the number of inputs.
    """
    # 1. Refuse what ONNX could mean otherwise than it is read here: other types and shapes,
    # operators of other versions, weights outside of the file.
    onnx.checker.check_model(model)
    graph, tensors = model.graph, {tensor.name: tensor for tensor in model.graph.initializer}
    (graph_input,), (output,) = (
        [value_info for value_info in graph.input if value_info.name not in tensors],
        graph.output,
    )
    # A free size is 0, and one of 0, of which there is no output, -1.
    batch, *sizes = [
        dimension.dim_value or -dimension.HasField("dim_value")
        for dimension in graph_input.type.tensor_type.shape.dim
    ]
    types = {value_info.type.tensor_type.elem_type for value_info in (graph_input, output)}
    plain = types == {onnx.TensorProto.FLOAT} and batch in (0, 1) and min(sizes) > 0
    outside = model.functions or any(
        tensor.data_location or tensor.external_data for tensor in tensors.values()
    )
    newest = onnx.defs.onnx_opset_version()
    recent = [
        13 <= opset.version <= newest
        for opset in model.opset_import
        if opset.domain in ("", "ai.onnx")
    ] == [True]
    _require(
        plain and recent and not outside,
        "needs float32 inputs (batch, fixed sizes), operators of 13 or later",
    )
    # 2. Follow the chain. `known` holds what later nodes may take: the input x, or functions of the
    # last layer's sum z alone, each as a symbol. `bare`: the last layer has no bias yet.
    one, inputs, flat, bare = Fraction(1), math.prod(sizes), len(sizes) == 1, False
    width, known, layers, curves = (
        inputs,
        {graph_input.name: ("x", one, one)},
        list[list[Any]](),
        list[tuple[str, Fraction]](),
    )
    for number, node in enumerate(graph.node[:_NODES]):
        operator, place = node.op_type, f"node {number} ({node.op_type})"
        asked = "".join(
            f".{attribute.name}={onnx.helper.get_attribute_value(attribute)}"
            for attribute in node.attribute
        )
        _require(
            _READ.fullmatch(operator + asked) and not node.domain,
            f"{place}: {operator + asked} is not read",
        )
        arrays = [
            onnx.numpy_helper.to_array(tensors[name]) for name in node.input if name in tensors
        ]
        symbols = [known[name] for name in node.input if name not in tensors]
        chained = len(node.output) == 1 and symbols and node.output[0] not in {*known, *tensors}
        once = len({attribute.name for attribute in node.attribute}) == len(node.attribute)
        _require(chained and once, f"{place}: breaks the chain, or says an attribute twice")
        _require(
            operator == "Reshape" or {array.dtype.name for array in arrays} <= {"float32"},
            f"{place}: not float32",
        )
        first = node.input[0] not in tensors and len(symbols) == 1
        if operator in ("Gemm", "MatMul"):
            # A new layer. What it takes is the input, if it is the first, else K(h z) / h: other
            # scales have no lines here. Its sum replaces all that is known, so that no node can
            # pass by a layer.
            kind, h, g = symbols[0]
            _require(
                first and h == g and kind != "z" and (kind == "x") == (not layers),
                f"{place}: takes {symbols[0]}",
            )
            weight = arrays[0].T if "transB=1" in asked else arrays[0]
            _require(
                flat and weight.ndim == 2 and len(weight) == width,
                f"{place}: must take (batch, {width})",
            )
            width, bare = weight.shape[1], operator == "MatMul"
            curves += [(kind, h)] * (kind != "x")
            layers.append([weight, arrays[1] if arrays[1:] else 0 * weight[0]])
            known = {node.output[0]: ("z", one, one)}
        elif operator == "Add":
            _require(
                first and bare and symbols[0][0] == "z" and len(known) == 1,
                f"{place}: adds to no MatMul",
            )
            layers[-1][1], bare = arrays[0], False
            known = {node.output[0]: ("z", one, one)}
        elif operator in ("Flatten", "Identity", "Reshape"):
            # A reshape may only flatten: to (batch, width), where -1 may stand for one of both.
            targets = [[batch, size] for batch in (-1, 0, 1) for size in (-1, width)][1:]
            fits = first and (operator != "Reshape" or arrays[0].tolist() in targets)
            _require(fits, f"{place}: must give (batch, {width})")
            known[node.output[0]], flat = symbols[0], flat or operator != "Identity"
        else:
            _require(first or operator == "Mul", f"{place}: divides something else than the chain")
            known[node.output[0]] = _applied(operator, asked, symbols, arrays)
        _require(
            not layers or layers[-1][1].shape in ((width,), (1, width)),
            f"{place}: needs a bias for each output",
        )
    # 3. The output must be a bare sum: rows are over z of the last layer, with no function behind.
    done = known.get(output.name, ("", one, one))[0] == "z" and known[output.name] == (
        "z",
        one,
        one,
    )
    _require(
        done and len(graph.node) <= _NODES, f"must end in Gemm, MatMul or Add by {_NODES} nodes"
    )
    # 4. A float32 is a whole multiple of a power of 2: in units of 2**-e all numbers are integers.
    rows = [[*weight.tolist(), bias.flatten().tolist()] for weight, bias in layers]
    e = _exponent(Fraction(number) for layer in rows for row in layer for number in row)
    return (
        [[[int(Fraction(number) * 2**e) for number in row] for row in layer] for layer in rows],
        e,
        curves,
        inputs,
    )


@dataclass
class _Check:
    """Bounds of rows for one network and box; `neurons` are of the layers that are done, first
    layer first.

    Rows of z and p are in units of 2**-32, and bounds of 2**-unit, with unit = 32 + exponent + 72.
    """

    layers: list[list[list[int]]]
    exponent: int
    curves: list[tuple[str, Fraction]]
    box: list[tuple[int, int]]  # in units of 2**-72
    neurons: list[list[Neuron]] = field(default_factory=list)
    work: int = 0
    computed: Any = field(default_factory=hashlib.sha256)

    def bound(self, row: list[int], part: list[list[Neuron]], chosen: Any = None) -> int:
        """A lower bound of a row over z of the layer behind those of `part`; `chosen` are the p
        of each layer.
        """
        total, down, q = 0, _S + self.exponent, list[int]()
        for depth in range(len(part), -1, -1):
            *columns, biases = self.layers[depth]
            self.work += len(row) * len(columns)
            _require(self.work <= _WORK, f"takes more than {_WORK} products to check")
            # 1. Back through z = W x + b: row . b is added, and W^T row is the row of what is
            # before.
            total += sum(map(mul, row, biases)) << _T
            q, row = [sum(map(mul, row, column)) for column in columns], []
            for i in range(len(q) if depth else 0):
                low, high, below, above = part[depth - 1][i]
                # 2. Back through the function, by the line that bounds q f(z) from below. Without a
                # choice p is the line's slope, rounded to 32 places; the rest of the slope is paid
                # at an end of z's interval.
                slope, start = below if q[i] > 0 else above
                p: int = q[i] * slope >> down if chosen is None else chosen[depth - 1][i]
                rest = q[i] * slope - (p << down)
                total += q[i] * start + min(rest * low, rest * high)
                row.append(p)
        # 3. At the input each coordinate decides for itself.
        return total + sum(
            min(factor * low, factor * up) for factor, (low, up) in zip(q, self.box, strict=True)
        )

    def note(self, *numbers: Any) -> None:
        self.computed.update(f"{numbers}".encode())

    def check_intervals(self, slopes: Any) -> None:  # of all neurons
        _require(len(slopes) == len(self.curves), f"slopes: needs {len(self.curves)} layers")
        for curve, stated in zip(self.curves, slopes, strict=True):
            depth, count = len(self.neurons), len(self.layers[len(self.neurons)][-1])
            _require(len(stated) == count, f"slopes[{depth}]: needs {count} neurons")
            neurons, shift = list[Neuron](), self.exponent + _T + _S - _Z
            for index, pair in enumerate(stated):
                # Bound z and -z as rows, with the lines of the layers before; `shift` rounds
                # downward, so that the interval is rounded outward.
                low, high = (
                    self.bound([s * (index == j) << _S for j in range(count)], self.neurons)
                    >> shift
                    for s in (1, -1)
                )
                neurons.append(_lines(curve, low, -high, _integers(pair, 2)))
                self.note(neurons[-1])
            self.neurons.append(neurons)

    def check_tree(
        self, tree: Any, place: str, row: list[int], least: int, part: list[list[Neuron]]
    ) -> list[int]:
        """The bounds of its leaves, all above -least."""
        # A leaf: the row, plus its constant, must be > 0 with the lines of this part.
        if "cut" not in tree:
            _require(set(tree) <= {"p"}, f"{place}: has {[*tree]}, and a leaf has p or nothing")
            p = (
                [
                    _integers(numbers, len(layer))
                    for numbers, layer in zip(tree["p"], part, strict=True)
                ]
                if tree
                else None
            )
            bound = self.bound(row, part, p) + least
            self.note(bound)
            if bound <= 0:
                raise SmoothBoundError(
                    f"{place}: the bound is {bound / 2 ** (self.exponent + _T + _S):.3g}, not > 0"
                )
            return [bound]
        _require(set(tree) == {"neuron", "cut", "slopes", "low", "high"}, f"{place}: has {[*tree]}")
        # A split: z <= cut or z >= cut of one neuron, which gets lines of its own in each half. On
        # the shorter interval they lie nearer to the curve; all other lines stay sound.
        (depth, i), (cut,), bounds = (
            _integers(tree["neuron"], 2),
            _integers([tree["cut"]], 1),
            list[int](),
        )
        _require(place.count(".") < _SPLITS, f"{place}: more than {_SPLITS} splits")
        _require(
            0 <= depth < len(part) and 0 <= i < len(part[depth]),
            f"{place}: there is no neuron [{depth}, {i}]",
        )
        low, high, *_ = part[depth][i]
        _require(
            low < cut < high and len(tree["slopes"]) == 2,
            f"{place}: the cut is outside of the neuron's interval",
        )
        for name, ends, slopes in zip(
            ("low", "high"), ((low, cut), (cut, high)), tree["slopes"], strict=True
        ):
            half = [[*layer] for layer in part]
            half[depth][i] = _lines(self.curves[depth], *ends, _integers(slopes, 2))
            self.note(half[depth][i])
            bounds += self.check_tree(tree[name], f"{place}.{name}", row, least, half)
        return bounds


def _checked(proof: Any, onnx_bytes: bytes) -> SmoothStatement:
    sha256, (layers, e, curves, inputs) = (
        hashlib.sha256(onnx_bytes).hexdigest(),
        read_smooth_network(onnx.load_model_from_string(onnx_bytes)),
    )
    # 1. The proof must be of this very file.
    sizes = [len(layer[-1]) for layer in layers]
    _require(proof["format"] == SMOOTH_PROOF, f"format: is not {SMOOTH_PROOF}")
    stated = {"sha256": sha256, "inputs": inputs, "layers": sizes}
    _require(
        json.dumps(proof["network"], sort_keys=True) == json.dumps(stated, sort_keys=True),
        f"is not of {stated}",
    )
    _require(
        set(proof) <= {"format", "network", "box", "property", "slopes", "trees", "computed"},
        "unknown keys",
    )
    # 2. The box, rounded outward to the checker's units: a larger box is proven with it.
    lower, upper = ([*map(_number, proof["box"][end])] for end in ("lower", "upper"))
    box = list(zip(lower, upper, strict=True))
    whole = (
        set(proof["box"]) == {"lower", "upper"}
        and len(box) == inputs
        and all(low <= high for low, high in box)
    )
    _require(whole, f"box: needs {inputs} ends, lower <= upper")
    outward = [(math.floor(low * 2**_T), math.ceil(high * 2**_T)) for low, high in box]
    # 3. Intervals and lines of all neurons, layer by layer, from the slopes that the proof chose.
    check, rows, bounds = _Check(layers, e, curves, outward), list[Row](), list[list[int]]()
    check.check_intervals(proof["slopes"])
    _require(
        set(proof["property"]) == {"rows"} and proof["property"]["rows"], "property: needs rows"
    )
    # 4. Each row with its tree. A constant is rounded down, to the proof's disadvantage.
    for number, (stated_row, tree) in enumerate(
        zip(proof["property"]["rows"], proof["trees"], strict=True)
    ):
        place, factors = (
            f"rows[{number}]",
            {int(i): _number(c) for i, c in stated_row["coefficients"].items()},
        )
        known = (
            set(stated_row["coefficients"]) <= {*map(str, range(sizes[-1]))}
            and _exponent(factors.values()) <= _S
        )
        _require(set(stated_row) == {"coefficients", "constant"}, f"{place}: has {[*stated_row]}")
        _require(
            factors and all(factors.values()) and known,
            f"{place}: needs multiples of 2**-32 != 0 of outputs",
        )
        rows.append((factors, _number(stated_row["constant"])))
        row = [int(factors.get(i, Fraction(0)) * 2**_S) for i in range(sizes[-1])]
        least = math.floor(rows[-1][1] * 2 ** (e + _S + _T))
        check.note(rows[-1], box)
        bounds.append(check.check_tree(tree, f"trees[{number}]", row, least, check.neurons))
    ends = [Fraction(min(bound), 2 ** (e + _S + _T)) for bound in bounds]
    return SmoothStatement(
        sha256, sizes, box, rows, ends, sum(map(len, bounds)), check.computed.hexdigest()
    )


def recompute_smooth_proof(proof: Any, onnx_bytes: bytes) -> SmoothStatement:
    """Return what the proof's choices prove of the network in an ONNX file's bytes, whatever
    "computed" says.

    Raises SmoothProofError if that is nothing.
    """
    try:
        return _checked(proof, onnx_bytes)
    except SmoothProofError:
        raise
    except Exception as error:  # whatever Python and onnx make of what is malformed
        raise SmoothProofError(f"malformed: {type(error).__name__}: {str(error)[:999]}") from None


def check_smooth_proof(proof: Any, onnx_bytes: bytes) -> SmoothStatement:
    """Recompute what the proof proves, and require that its "computed" is the digest of all numbers
    that were recomputed: else it was changed.
    """
    smooth_statement = recompute_smooth_proof(proof, onnx_bytes)
    _require(
        proof.get("computed") == smooth_statement.computed,
        f"computed: is not the digest {smooth_statement.computed} of what it proves",
    )
    return smooth_statement


if __name__ == "__main__":
    with open(sys.argv[1]) as _proof, open(sys.argv[2], "rb") as _network:  # noqa: PTH123
        print(check_smooth_proof(json.load(_proof), _network.read()))
