"""Proof files: accepted by the checker, which shares no code with them; refused where nothing is proven."""

from __future__ import annotations

import copy
import hashlib
import json
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from evalsuite import Network, Unsupported, Verdict, export_onnx
from evalsuite.verification.proofs import ProofError, check_proof
from pipelines.smt.proving import canonical, proof_of, proof_text
from pipelines.smt.reading import read, read_file
from tests.pipelines.smt_networks import (
    around,
    box,
    chain,
    decide_exactly,
    leaves_of,
    linear,
    of,
    onnx_of,
    value,
)


def searched() -> tuple[Network, Any, bytes]:
    """A proof with splits, as data."""
    network = chain([3, 10, 10, 3], 18)
    decided = decide_exactly(network, around(network, 0.7, 18))
    assert (decided.verdict, decided.reason) == (Verdict.HOLDS, "search")
    content = onnx_of(network)
    return network, proof_of(decided, content), content


def test_a_searched_proof_is_accepted_as_text_too() -> None:
    network, proof, content = searched()
    check_proof(proof, content)
    leaves = json.dumps(proof["trees"]).count('"bound"')
    assert leaves - len(proof["trees"]) == json.dumps(proof["trees"]).count('"neuron"') > 10
    decided = decide_exactly(network, around(network, 0.05, 18))
    check_proof(json.loads(proof_text(partial(proof_of, decided), content)), content)
    for name in ("split", "bound", "multiplier"):
        with pytest.raises(ProofError):
            check_proof(changed(proof, name), content)


def changed(proof: Any, what: str) -> Any:
    """One choice changed, with a digest to match."""
    other = copy.deepcopy(proof)
    node = next(tree for tree in other["trees"] if "neuron" in tree)
    while "neuron" in node:
        parent, node = node, node["on"]
    if what == "split":
        parent["on"], parent["off"] = parent["off"], parent["on"]
    elif what == "bound":
        node["bound"] = "1p-40"
    else:
        leaf = next(leaf for tree in other["trees"] for leaf in leaves_of(tree) if leaf["p"])
        leaf["p"][0][2] = "1" if leaf["p"][0][2] == "0" else "0"
    del other["digest"]
    return {**other, "digest": hashlib.sha256(canonical(other).encode()).hexdigest()}


def test_a_proof_by_hand() -> None:
    # logits (|x| + 1/4, 0) on [-1, 1/2]: the default lines give -1/4, the best multipliers 1/4
    hidden = linear([[1.0], [-1.0]], [0.0, 0.0])
    network = of(hidden, nn.ReLU(), linear([[1.0, 1.0], [0.0, 0.0]], [0.25, 0.0]))
    decided = decide_exactly(network, box([-1.0], [0.5]))
    content = onnx_of(network)
    proof = proof_of(decided, content)
    check_proof(proof, content)
    assert proof["network"] == {"sha256": hashlib.sha256(content).hexdigest(), "inputs": 1, "layers": [2, 2]}
    assert proof["box"] == {"lower": ["-1"], "upper": ["1p-1"]}
    assert proof["property"] == {"rows": [{"coefficients": {"0": "1", "1": "-1"}, "constant": "0"}]}
    assert proof["neurons"] == [[{"lower": "-1", "upper": "1p-1"}, {"lower": "-1p-1", "upper": "1"}]]
    (leaf,) = proof["trees"]
    assert 0 < value(leaf["bound"]) <= Fraction(1, 4)
    # |x| >= p x for p between -1 and 1, whichever two numbers make it up
    listed = {(layer, index): value(number) for layer, index, number in leaf["p"]}
    assert listed
    # without a p, the lines below are taken: 0 where the lower end is farther from 0, 1 where the upper one is
    assert all(0 <= each <= 1 for each in ({(0, 0): Fraction(0), (0, 1): Fraction(1)} | listed).values())
    assert listed.get((0, 0)) != 0
    assert listed.get((0, 1)) != 1


def test_only_what_holds_has_a_proof() -> None:
    network = chain([2, 8, 8, 3], 4)
    decided = decide_exactly(network, around(network, 0.7, 4))
    assert decided.verdict is Verdict.VIOLATED
    with pytest.raises(ValueError, match="only what holds has a proof, and the verdict is violated"):
        proof_of(decided, onnx_of(network))


def test_a_proof_is_of_one_file() -> None:
    network = chain([2, 8, 8, 3], 4)
    decided = decide_exactly(network, around(network, 0.01, 4))
    with torch.no_grad():
        network.module[0].weight[0, 0] += 2.0**-20
    changed_file = onnx_of(network)
    with torch.no_grad():
        network.module[0].weight[0, 0] -= 2.0**-20
    with pytest.raises(Unsupported, match="does not say the network that was verified"):
        proof_of(decided, changed_file)


def test_the_exported_file_of_a_trained_network_is_read(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 5, bias=False), nn.ReLU()]
    network = Network("flat", nn.Sequential(*layers, nn.Linear(5, 3)).eval(), (2, 2), 3)
    path = tmp_path / "network.onnx"
    export_onnx(network.module, network.input_shape, path)
    assert read_file(path.read_bytes()).equals(read(network))
    decided = decide_exactly(network, around(network, 0.01, 0))
    check_proof(proof_of(decided, path.read_bytes()), path.read_bytes())
