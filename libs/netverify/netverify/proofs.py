"""The checker of proof files, which needs `onnx` alone: python proofs.py PROOF.json NETWORK.onnx

A proof says that rows c . y + d are > 0 for all real inputs of a box, y being the ONNX file's
outputs without rounding. It splits the box by signs of pre-activations z, and chooses multipliers
p: any are sound. Back from a row, q max(z, 0) becomes p z + r, r the least of q max(z, 0) - p z in
z's interval. All is recomputed. (arXiv 1803.06567, 2103.06624.)
"""

import hashlib
import json
import math
import re
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from operator import mul
from typing import Any

import onnx

_ONNX = ("", "ai.onnx")  # two names of one domain
# in all; in a branch; products of 60 bits; of p / q not chosen
_NODES, _SPLITS, _WORK, _SHARE = 200, 250, 2**32, 12
# m or mp-e: m 2**-e
_NUMBER = re.compile("(0|-?[1-9][0-9]{0,3999})(?:(?<=[13579])p-([1-9][0-9]{0,3}))?")
# operators and attributes that are read
_SHAPING = r"Flatten(\.axis=1)?|Identity|Reshape(\.allowzero=[01])?"
_READ = re.compile(
    _SHAPING + r"|Add|MatMul|Relu|Gemm(\.alpha=1\.0|\.beta=1\.0|\.transA=0|\.transB=[01])*"
)
_FOLLOWS = {"Gemm": "Relu", "MatMul": "Relu", "Add": "MatMul", "Relu": "Gemm, MatMul, Add"}
Row = tuple[dict[int, Fraction], Fraction]  # coefficients of outputs, constant
# of neurons, by layer and index: a p, or z's interval and p / q where q > 0, and where not
Known = dict[Any, Any]


class ProofError(ValueError):
    """The file proves nothing; the text says where and why."""


@dataclass(frozen=True)
class Statement:
    """States what is proven: for all real inputs in the box (pairs lower, upper), the rows are >=
    these bounds > 0.
    """

    sha256: str
    layers: list[int]
    box: list[tuple[Fraction, Fraction]]
    rows: list[Row]
    bounds: list[Fraction]
    leaves: int


def _require(true: object, message: str) -> None:
    if not true:
        raise ProofError(message)


def _number(text: str) -> Fraction:
    match = _NUMBER.fullmatch(text)
    _require(match, f"{text[:40]!r} is not m or mp-e in lowest terms, of at most 4000 and 4 digits")
    return Fraction(int(match[1]), 2 ** int(match[2] or 0)) if match else Fraction(0)


def _exponent(values: Any) -> int:  # the least e such that all values are multiples of 2**-e
    return max((value.denominator.bit_length() - 1 for value in values), default=0)


def _text(value: Fraction) -> str:
    return f"{value.numerator}p-{_exponent([value])}".removesuffix("p-0")


def _compare(stated: Any, recomputed: Any, place: str) -> str:
    is_, must = (
        json.dumps(value, sort_keys=True, separators=(",", ":")) for value in (stated, recomputed)
    )
    _require(is_ == must, f"{place} is {is_[:120]}, recomputed {must[:120]}")
    return must


def read_network(model: onnx.ModelProto) -> tuple[dict[str, Any], list[list[list[int]]], int]:
    """Sizes; a chain's affine layers, as each input's weights and last the biases, in units of
    2**-e; and that e.
    """
    onnx.checker.check_model(model)
    graph, tensors = model.graph, {tensor.name: tensor for tensor in model.graph.initializer}
    (source,) = [value for value in graph.input if value.name not in tensors]
    (output,) = graph.output
    # A free size is 0, and one of 0, of which there is no output, -1.
    batch, *sizes = [
        size.dim_value or -size.HasField("dim_value") for size in source.type.tensor_type.shape.dim
    ]
    types = {value.type.tensor_type.elem_type for value in (source, output)}
    known = [
        o.version <= onnx.defs.onnx_opset_version() for o in model.opset_import if o.domain in _ONNX
    ] == [True]
    plain = known and types == {onnx.TensorProto.FLOAT} and batch in (0, 1) and min(sizes) > 0
    outside = model.functions or any(
        tensor.data_location or tensor.external_data for tensor in tensors.values()
    )
    _require(
        plain and not outside,
        "network: needs float32 (batch, fixed sizes), one known opset, and all weights in the file",
    )
    # Each node must take what the one before it gave, `current`: so the file is a chain.
    width, flat, before, current, affine = (
        math.prod(sizes),
        len(sizes) == 1,
        "Relu",
        source.name,
        list[list[Any]](),
    )
    for number, node in enumerate(graph.node[:_NODES]):
        operator, place = node.op_type, f"network: node {number} ({node.op_type})"
        asked = operator + "".join(
            f".{entry.name}={onnx.helper.get_attribute_value(entry)}" for entry in node.attribute
        )
        _require(_READ.fullmatch(asked) and not node.domain, f"{place}: {asked} is not read")
        _require(
            node.input[0] == current and before in _FOLLOWS.get(operator, before),
            f"{place}: breaks the chain",
        )
        arrays = [onnx.numpy_helper.to_array(tensors[name]) for name in node.input[1:]]
        _require(
            operator == "Reshape" or {array.dtype.name for array in arrays} <= {"float32"},
            f"{place}: not float32",
        )
        if operator in ("Gemm", "MatMul"):
            weight = arrays[0].T if "transB=1" in asked else arrays[0]
            _require(
                flat and weight.ndim == 2 and len(weight) == width,
                f"{place}: must take (batch, {width})",
            )
            width = weight.shape[1]
            affine.append([weight, arrays[1] if arrays[1:] else 0 * weight[0]])
        elif operator == "Add":
            affine[-1][1] = arrays[0]
        elif operator == "Reshape":
            # It may only flatten: to (batch, width), where -1 may stand for one of both.
            targets = [[batch, size] for batch in (-1, 0, 1) for size in (-1, width)][1:]
            _require(arrays[0].tolist() in targets, f"{place}: must give (batch, {width})")
        _require(
            not affine or affine[-1][1].shape in ((width,), (1, width)),
            f"{place}: needs one bias for each output",
        )
        flat = flat or operator in ("Flatten", "Reshape")
        before, current = operator if operator in _FOLLOWS else before, node.output[0]
    _require(
        current == output.name and before != "Relu",
        f"network: must end in Gemm, MatMul or Add by {_NODES} nodes",
    )
    # A float32 is a whole multiple of a power of 2: in units of 2**-e all numbers are integers.
    rows = [[*weight.tolist(), bias.flatten().tolist()] for weight, bias in affine]
    exponent = _exponent(Fraction(number) for layer in rows for row in layer for number in row)
    layers = [
        [[int(Fraction(number) * 2**exponent) for number in row] for row in layer] for layer in rows
    ]
    return (
        {"inputs": math.prod(sizes), "layers": [len(layer[-1]) for layer in layers]},
        layers,
        exponent,
    )


@dataclass
# Bounds of rows, for one network and box; `neurons`, by layer and index, are of the layers done.
class _Check:
    layers: list[list[list[int]]]
    exponent: int
    box: list[tuple[Fraction, Fraction]]
    words: list[int]  # of each layer's longest weight, of 60 bits
    neurons: Known = field(default_factory=dict)
    work: int = 0

    def bound(self, top: int, row: Row, split: Known, chosen: Known) -> tuple[Fraction, Fraction]:
        """The least value over the box, and the value at its middle, of a linear lower bound of
        row . z, z of layer `top`, where `split` holds.
        """
        (coefficients, total), e = row, _exponent(row[0].values())
        q = [int(coefficients.get(i, 0) * 2**e) for i in range(len(self.layers[top][-1]))]
        for depth, layer in reversed([*enumerate(self.layers[: top + 1])]):
            self.work += (
                self.words[depth] * len(layer) * sum(1 + factor.bit_length() // 60 for factor in q)
            )
            _require(self.work <= _WORK, f"takes more than {_WORK} products to check")
            # Back through z = W x + b: row . b is added, and W^T row is the row of what is before.
            e += self.exponent
            total += Fraction(sum(map(mul, q, layer[-1])), 2**e)
            finer = max(e + _SHARE, _exponent(chosen.values()))
            q, e = [sum(map(mul, q, column)) << (finer - e) for column in layer[:-1]], finer
            for i in range(len(q) if depth else 0):
                low, up, *shares = (
                    split[key] if (key := (depth - 1, i)) in split else self.neurons[key]
                )
                # Back through ReLU, by a share of q as of CROWN's lines, unless a leaf chose p.
                usual = (q[i] >> _SHARE) * shares[q[i] <= 0]
                p = int(chosen[key] * 2**e) if key in chosen else usual
                _require(
                    p != usual or key not in chosen,
                    f"the p of neuron {[*key]} is what is taken without it",
                )
                # q max(z, 0) - p z bends only at 0: it is least there or at an end of z's interval.
                q[i], total = p, total + min(Fraction(0), -p * low, (q[i] - p) * up) / 2**e
        ends = [
            (factor * low / 2**e, factor * up / 2**e)
            for factor, (low, up) in zip(q, self.box, strict=True)
        ]
        return sum((min(pair) for pair in ends), total), sum(
            (low / 2 + up / 2 for low, up in ends), total
        )

    def check_intervals(self, stated: Any) -> None:  # of all neurons
        _compare(
            [*map(len, stated)],
            [len(layer[-1]) for layer in self.layers[:-1]],
            "neurons: their number",
        )
        for depth, i in [
            (depth, i) for depth, layer in enumerate(stated) for i in range(len(layer))
        ]:
            # Bound z and -z as rows: the layers before have their intervals by now.
            low, up = (
                s * self.bound(depth, ({i: Fraction(s)}, Fraction(0)), {}, {})[0] for s in (1, -1)
            )
            _compare(
                stated[depth][i],
                {"lower": _text(low), "upper": _text(up)},
                f"neurons[{depth}][{i}]",
            )
            # Slopes of lines around an open ReLU: above it the chord's, below it 1 or 0, by area.
            share = (
                math.floor(2**_SHARE * up / (up - low)) if low < 0 < up else 2**_SHARE * (low >= 0)
            )
            self.neurons[depth, i] = (
                min(low, 0),
                max(up, 0),
                2**_SHARE * (low >= 0 or up > -low),
                share,
            )

    # of its leaves
    def check_tree(self, tree: Any, place: str, row: Row, split: Known) -> list[Fraction]:
        chosen: Known = {}
        for depth, index, number in [[*tree["neuron"], "0"]] if "neuron" in tree else tree["p"]:
            low, up, *_ = self.neurons.get((depth, index), (Fraction(0), Fraction(0)))
            _require(low < 0 < up, f"{place}: neuron [{depth}, {index}] is not open")
            chosen[int(depth), int(index)] = _number(number)
        if "neuron" in tree:
            ((key, zero),) = chosen.items()
            _compare({**tree, "on": 0, "off": 0}, {"neuron": key, "on": 0, "off": 0}, place)
            _require(
                key not in split and len(split) < _SPLITS,
                f"{place}: split above, or {_SPLITS} others are",
            )
            _require(
                tree["on"] != tree["off"],
                f"{place}: a split into halves that are alike is of no use",
            )
            # On, z >= 0 and ReLU is z; off, z <= 0 and it is 0: the halves hold all inputs.
            leaves = self.check_tree(
                tree["on"], f"{place}.on", row, {**split, key: (zero, up, 2**_SHARE, 2**_SHARE)}
            )
            return leaves + self.check_tree(
                tree["off"], f"{place}.off", row, {**split, key: (low, zero, 0, 0)}
            )
        # A leaf: recompute its numbers; they must stand in the one form that there is of them.
        bound, middle = self.bound(len(self.layers) - 1, row, split, chosen)
        entries = [
            [*key, _text(chosen[key])] for key in sorted(chosen, key=lambda key: (-key[0], key[1]))
        ]
        _compare(tree, {"bound": _text(bound), "middle": _text(middle), "p": entries}, place)
        _require(bound > 0, f"{place}: bound {_text(bound)} is not > 0")
        return [bound]


def check_proof(proof: dict[str, Any], onnx_bytes: bytes) -> Statement:
    """Return what the proof proves of a network, an ONNX file; else ProofError."""
    place, sha256 = "network", hashlib.sha256(onnx_bytes).hexdigest()
    try:
        sizes, layers, exponent = read_network(onnx.load_model_from_string(onnx_bytes))
        _compare(proof["network"], {"sha256": sha256, **sizes}, "network")
        place, inputs, outputs = "box", sizes["inputs"], sizes["layers"][-1]
        lower, upper = ([*map(_number, proof["box"][end])] for end in ("lower", "upper"))
        box = list(zip(lower, upper, strict=True))
        _require(
            len(box) == inputs and all(low <= up for low, up in box),
            f"box: needs {inputs} ends, lower <= upper",
        )
        _compare(
            proof["box"], {"lower": [*map(_text, lower)], "upper": [*map(_text, upper)]}, "box"
        )
        place, rows = "property", list[Row]()
        for stated in proof["property"]["rows"]:
            rows.append(
                (
                    {int(i): _number(c) for i, c in stated["coefficients"].items()},
                    _number(stated["constant"]),
                )
            )
        known = all(
            row and all(row.values()) and set(row) <= set(range(outputs)) for row, _ in rows
        )
        _require(
            rows and known, f"property: needs rows, with coefficients != 0 of outputs < {outputs}"
        )
        texts = [
            {"coefficients": {str(i): _text(c) for i, c in row.items()}, "constant": _text(d)}
            for row, d in rows
        ]
        _compare(proof["property"], {"rows": texts}, "property")
        words = [
            1 + max(each.bit_length() for row in layer for each in row) // 60 for layer in layers
        ]
        place, check, bounds = (
            "neurons",
            _Check(layers, exponent, box, words),
            list[list[Fraction]](),
        )
        check.check_intervals(list.copy(proof["neurons"]))
        for tree, row in zip(proof["trees"], rows, strict=True):
            place = f"trees[{len(bounds)}]"
            bounds.append(check.check_tree(tree, place, row, {}))
        read = {name: proof[name] for name in ("network", "box", "property", "neurons", "trees")}
        # Nothing in the file may be unread: all entries but the digest were checked above.
        rest = {name: entry for name, entry in proof.items() if name != "digest"}
        text = _compare(rest, {"format": "evalsuite-proof/1", **read}, "proof")
        _compare(proof.get("digest"), hashlib.sha256(text.encode()).hexdigest(), "digest")
    except Exception as error:  # whatever Python and onnx make of what is malformed
        kind = "" if isinstance(error, ProofError) else f"malformed: {type(error).__name__}: "
        raise ProofError(
            f"{place}: {kind}{str(error)[:999]}".replace(f"{place}: {place}", place, 1)
        ) from None
    return Statement(
        sha256, sizes["layers"], box, rows, [min(bound) for bound in bounds], sum(map(len, bounds))
    )


if __name__ == "__main__":
    print(check_proof(json.load(open(sys.argv[1])), open(sys.argv[2], "rb").read()))  # noqa: PTH123, SIM115
