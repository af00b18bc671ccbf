"""A plain generator of proofs, in fractions, which shares nothing with the checker that its
proofs are for.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from files_of_mlps import model_of
from onnx import helper

Vector = list[Fraction]
Matrix = list[Vector]
Json = dict[str, Any]
ZERO = Fraction(0)


@dataclass
class Net:
    """Affine layers (weight (outputs, inputs), bias), with a ReLU between each two."""

    layers: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]

    def onnx(self) -> bytes:
        nodes, tensors, current = [], dict[str, Any](), "x"
        for k, (weight, bias) in enumerate(self.layers):
            last = k == len(self.layers) - 1
            tensors |= {f"w{k}": weight, f"b{k}": bias}
            after = "y" if last else f"z{k}"
            nodes.append(helper.make_node("Gemm", [current, f"w{k}", f"b{k}"], [after], transB=1))
            if not last:
                nodes.append(helper.make_node("Relu", [after], [f"h{k}"]))
            current = f"h{k}"
        given, made = (
            {"x": ["n", self.layers[0][0].shape[1]]},
            {"y": ["n", len(self.layers[-1][1])]},
        )
        data: bytes = model_of(nodes, tensors, given, made).SerializeToString()
        return data

    def exact(self) -> list[tuple[Matrix, Vector]]:
        return [
            ([[Fraction(float(w)) for w in row] for row in a], [Fraction(float(v)) for v in b])
            for a, b in self.layers
        ]

    def outputs(self, x: Vector) -> Vector:
        for k, (weight, bias) in enumerate(self.exact()):
            x = [max(v, ZERO) for v in x] if k else x
            x = [
                sum((w * v for w, v in zip(row, x, strict=True)), b)
                for row, b in zip(weight, bias, strict=True)
            ]
        return x


def text(value: Fraction) -> str:
    power = value.denominator.bit_length() - 1
    assert value.denominator == 1 << power
    return f"{value.numerator}p-{power}" if power else f"{value.numerator}"


class Prover:
    """Splits until every part is proven; lists a p, rounded, for every third open neuron."""

    def __init__(self, net: Net, lower: Vector, upper: Vector, listed: bool = True) -> None:
        self.net, self.lower, self.upper, self.listed = net, lower, upper, listed
        self.layers = net.exact()
        self.lost: dict[tuple[int, int], Fraction] = {}  # r of each open neuron, in the last bound
        self.bounds: list[list[tuple[Fraction, Fraction]]] = []
        for k, (_, bias) in enumerate(self.layers[:-1]):
            units = [[Fraction(int(i == j)) for j in range(len(bias))] for i in range(len(bias))]
            self.bounds.append(
                [
                    (
                        self.least(k, unit, ZERO, {}, {}),
                        -self.least(k, [-c for c in unit], ZERO, {}, {}),
                    )
                    for unit in units
                ]
            )

    def least(
        self,
        k: int,
        row: Vector,
        constant: Fraction,
        phases: dict[tuple[int, int], str],
        given: dict[tuple[int, int], Fraction | None],
    ) -> Fraction:
        """The bound; where `given` has None, it is filled with a rounded p."""
        while True:
            weight, bias = self.layers[k]
            constant += sum((c * b for c, b in zip(row, bias, strict=True)), ZERO)
            back = [
                sum((row[j] * weight[j][i] for j in range(len(row))), ZERO)
                for i in range(len(weight[0]))
            ]
            if k == 0:
                ends = list(zip(back, self.lower, self.upper, strict=True))
                self.middle = constant + sum((q * (low + up) / 2 for q, low, up in ends), ZERO)
                return constant + sum((q * (low if q > 0 else up) for q, low, up in ends), ZERO)
            k -= 1
            row = []
            for i, q in enumerate(back):
                low, up = self.bounds[k][i]
                if low >= 0 or up <= 0:
                    row.append(q if low >= 0 else ZERO)
                    continue
                phase = phases.get((k, i), "open")
                p = {"on": q, "off": ZERO, "open": self.default(q, low, up)}[phase]
                if (k, i) in given and phase == "open":
                    if given[k, i] is None:
                        given[k, i] = Fraction(round(p * 64) + 1, 64)
                    p = given[k, i] or ZERO
                points = {"on": [ZERO, up], "off": [low, ZERO], "open": [low, ZERO, up]}[phase]
                self.lost[k, i] = min(q * max(z, ZERO) - p * z for z in points)
                constant += self.lost[k, i]
                row.append(p)

    @staticmethod
    def default(q: Fraction, low: Fraction, up: Fraction) -> Fraction:
        if q > 0:
            return q if up > -low else ZERO
        return q * Fraction((4096 * up / (up - low)).__floor__(), 4096)

    def tree(
        self, row: Vector, constant: Fraction, phases: dict[tuple[int, int], str], depth: int
    ) -> Json | None:
        open_ = [
            (k, i)
            for k, layer in enumerate(self.bounds)
            for i, (low, up) in enumerate(layer)
            if low < 0 < up
        ]
        some = [key for key in open_ if sum(key) % 3 == 0 and key not in phases]
        for chosen in (some, []) if self.listed else ([],):
            given: dict[tuple[int, int], Fraction | None] = dict.fromkeys(chosen)
            bound = self.least(len(self.layers) - 1, row, constant, phases, given)
            if bound > 0:
                entries = [
                    [k, i, text(given[k, i] or ZERO)]
                    for k, i in sorted(given, key=lambda key: (-key[0], key[1]))
                ]
                return {"bound": text(bound), "middle": text(self.middle), "p": entries}
        split = min(
            (key for key in open_ if key not in phases),
            key=lambda key: self.lost[key],
            default=None,
        )
        if split is None or self.lost[split] == 0 or depth == 0:
            return None
        parts = {}
        for phase in ("on", "off"):
            part = self.tree(row, constant, {**phases, split: phase}, depth - 1)
            if part is None:
                return None
            parts[phase] = part
        return {"neuron": list(split), **parts}

    def proof(self, rows: list[tuple[Vector, Fraction]], depth: int = 6) -> Json | None:
        trees = [self.tree(row, constant, {}, depth) for row, constant in rows]
        if any(tree is None for tree in trees):
            return None
        data = self.net.onnx()
        stated = [
            {
                "coefficients": {str(i): text(c) for i, c in enumerate(row) if c},
                "constant": text(constant),
            }
            for row, constant in rows
        ]
        return sealed(
            {
                "format": "evalsuite-proof/1",
                "network": {
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "inputs": len(self.lower),
                    "layers": [len(bias) for _, bias in self.layers],
                },
                "box": {
                    "lower": [text(v) for v in self.lower],
                    "upper": [text(v) for v in self.upper],
                },
                "property": {"rows": stated},
                "neurons": [
                    [{"lower": text(low), "upper": text(up)} for low, up in layer]
                    for layer in self.bounds
                ],
                "trees": trees,
            }
        )


def sealed(proof: Json) -> Json:
    """With the digest of the rest."""
    rest = {key: value for key, value in proof.items() if key != "digest"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "digest": hashlib.sha256(canonical.encode()).hexdigest()}


def random_net(widths: list[int], seed: int, scale: float = 1.0) -> Net:
    rng = np.random.default_rng(seed)
    return Net(
        [
            (
                (scale * rng.normal(size=(b, a))).astype(np.float32),
                (scale * rng.normal(size=b)).astype(np.float32),
            )
            for a, b in pairwise(widths)
        ]
    )


def margins(net: Net, x: Vector) -> list[tuple[Vector, Fraction]]:
    """The greatest output is greater than each other one."""
    y = net.outputs(x)
    label = max(range(len(y)), key=lambda i: y[i])
    return [
        ([Fraction((j == label) - (j == other)) for j in range(len(y))], ZERO)
        for other in range(len(y))
        if other != label
    ]


def proven(net: Net, seed: int, eps: Fraction, listed: bool = True) -> Json | None:
    rng = np.random.default_rng(1000 + seed)
    x = [Fraction(float(np.float32(v))) for v in rng.uniform(size=net.layers[0][0].shape[1])]
    prover = Prover(net, [v - eps for v in x], [v + eps for v in x], listed)
    return prover.proof(margins(net, x))


def splits(tree: Json) -> int:
    return 1 + splits(tree["on"]) + splits(tree["off"]) if "neuron" in tree else 0


def examples(count: int) -> list[tuple[Net, Json]]:
    """Proofs of random networks, of which some have splits, and some p."""
    found = []
    for seed in range(1000):
        net = random_net([4, 6, 6, 3], seed)
        proof = proven(net, seed, Fraction(1, 4), listed=seed % 3 > 0)
        if proof is not None and (len(found) % 3 == 0 or any(map(splits, proof["trees"]))):
            found.append((net, proof))
        if len(found) == count:
            return found
    raise AssertionError("too few proofs")
