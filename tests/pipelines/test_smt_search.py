"""Branch and bound on ReLU networks: known distances, ties, Z3's answers, samples, limits."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import slow
from torch import nn

from evalsuite import Network, Property, Unsupported, Verdict, export_onnx
from netverify.proofs import ProofError, check_proof
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import Affine
from pipelines.smt.proving import canonical, proof_of, proof_text
from pipelines.smt.reading import read, read_file
from pipelines.smt.reduction import Asked, Reduced, reduce
from pipelines.smt.search import exploring
from pipelines.smt.search.decision import decide_rows
from pipelines.smt.search.exploring import Finding, multipliers
from pipelines.smt.search.program import solve_vertex
from pipelines.smt.search.space import PhaseSpace
from tests.pipelines.smt_networks import (
    KINDS,
    ExactJudge,
    absolute,
    around,
    box,
    chain,
    decide_exactly,
    diagonal,
    leaves_of,
    linear,
    odd_network,
    of,
    onnx_of,
    plain_encoding,
    samples,
    value,
)


@pytest.mark.parametrize(
    ("slope", "shift", "rest", "expected"),
    [
        # Smaller than what a float next to 1 can tell: only the rational vertex does.
        (1.0, 0.0, 2.0**-70, Verdict.HOLDS),
        (1.0, 0.0, -(2.0**-70), Verdict.VIOLATED),
        # |3 x - 1| + rest: no float is the least input, and no float64 margin is the least margin.
        (3.0, 1.0, 2.0**-70, Verdict.HOLDS),
        (3.0, 1.0, 2.0**-40, Verdict.HOLDS),
    ],
)
def test_two_phases_that_bounds_cannot_settle(
    slope: float, shift: float, rest: float, expected: Verdict
) -> None:
    decided = decide_exactly(absolute(slope, shift, rest), box([-1.0], [0.5]))
    assert (decided.verdict, decided.reason, decided.neurons) == (expected, "search", 2)
    assert expected is Verdict.VIOLATED or 0 < decided.margin <= Fraction(rest)


def test_the_rational_vertex_by_hand() -> None:
    reduced = reduce(Asked.robustness(read(absolute(3.0, 1.0, 0.25)), box([-1.0], [0.5])))
    # Where 3 x - 1 >= 0 and 1 - 3 x <= 0 the least margin is 1/4, at x = 1/3: t = 4/3.
    vertex = solve_vertex(reduced, 0, np.array([1, -1], dtype=np.int8))
    assert vertex is not None
    assert (vertex.value, vertex.offsets) == (Fraction(1, 4), [Fraction(4, 3)])
    reached = PhaseSpace(reduced).certify(np.array([1, -1], dtype=np.int8), vertex.multipliers(60))
    assert Fraction(1, 4) - Fraction(1, 2**50) < reached <= Fraction(1, 4)


def agree(network: Network, property_: Property) -> str:
    """Z3 without bounds gives the same verdict, a proof is accepted, and samples do not
    contradict it.
    """
    decided = decide_exactly(network, property_)
    assert decided.verdict in (Verdict.HOLDS, Verdict.VIOLATED)
    assert plain_encoding(network, property_) == (
        "unsat" if decided.verdict is Verdict.HOLDS else "sat"
    )
    assert (decided.margin > 0) == (decided.verdict is Verdict.HOLDS)
    if decided.verdict is Verdict.HOLDS:
        content = onnx_of(network)
        check_proof(proof_of(decided, content), content)
    logits = nn.Sequential(*network.module).double()(samples(property_, 600, 0)).detach()
    network.module.float()
    rest = logits[:, property_.label, None] - logits
    rest[:, property_.label] = math.inf
    assert float(rest.min()) >= float(decided.margin) - 1e-9
    return f"{decided.verdict.value} by {decided.reason}"


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root's program alone, of networks of any size: all else is searched by ascents."""
    monkeypatch.setattr(exploring, "_PROGRAMS", 1)
    monkeypatch.setattr(exploring, "_DEAR", 0)


@pytest.mark.parametrize(
    ("ascents", "seeds"),
    [
        (False, range(10)),
        (True, range(4)),
        slow(False, range(100, 120)),
        slow(True, range(100, 115)),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_odd_networks_against_z3(
    kind: str, ascents: bool, seeds: range, request: pytest.FixtureRequest
) -> None:
    if ascents:
        request.getfixturevalue("few_programs")
    for seed in seeds:
        agree(*odd_network(seed, kind))


@pytest.mark.slow
@pytest.mark.parametrize("ascents", [False, True])
def test_networks_that_need_the_search_against_z3(
    ascents: bool, request: pytest.FixtureRequest
) -> None:
    if ascents:
        request.getfixturevalue("few_programs")
    for widths, eps, seeds in (([2, 8, 8, 3], 0.7, (4, 8, 36)), ([3, 10, 10, 3], 0.5, (18, 24))):
        networks = [(seed, chain(widths, seed)) for seed in seeds]
        seen = [agree(network, around(network, eps, seed)) for seed, network in networks]
        assert "holds by search" in seen
        assert eps < 0.7 or "violated by search" in seen


def unstable_case(seed: int) -> tuple[Network, Property, Reduced]:
    network = chain([3, 10, 10, 4], seed)
    property_ = around(network, 0.6, seed)
    return network, property_, reduce(Asked.robustness(read(network), property_))


@pytest.mark.parametrize("seed", range(2))
def test_any_multipliers_give_a_sound_bound_of_any_part(seed: int) -> None:
    network, property_, reduced = unstable_case(seed)
    points = samples(property_, 2000, seed)
    state, inputs = points, []
    for layer in nn.Sequential(*network.module).double():
        state = layer(state)
        inputs.append(state)
    network.module.float()
    places = [inputs[2 * layer.depth][:, layer.index] for layer in reduced.layers]
    unstable = torch.cat(places, 1).detach().numpy()
    label = property_.label
    margins = (
        (state[:, label, None] - state)[:, [i for i in range(4) if i != label]].detach().numpy()
    )
    chance = np.random.default_rng(seed)
    checked, space = 0, PhaseSpace(reduced)
    for _ in range(60):
        # A part that some sample belongs to, and multipliers of all sizes.
        signs = np.where(unstable[chance.integers(len(unstable))] > 0, 1, -1)
        phases = (signs * (chance.random(len(signs)) < 0.3)).astype(np.int8)
        inside = ((unstable * phases) >= 0).all(axis=1)
        chosen = multipliers(chance.normal(size=len(signs)) * 10 ** chance.uniform(-3, 1), 12)
        for row in range(3):
            least = float(margins[inside, row].min())
            space.aim(row)
            for used in (None, chosen):
                assert float(space.certify(phases, used)) <= least + 1e-9
                checked += 1
    assert checked == 360


def test_programs_are_bounds_that_the_certificates_reach() -> None:
    _, _, reduced = unstable_case(1)
    space = PhaseSpace(reduced)
    for row in range(3):
        space.aim(row)
        phases = np.zeros(reduced.neurons, dtype=np.int8)
        for neuron, phase in ((0, 1), (3, -1), (-1, 1)):
            phases[neuron] = phase
            found = space.solve(phases, math.inf)
            assert found is not None
            reached = float(space.certify(phases, multipliers(found.duals, 30)))
            assert reached == pytest.approx(found.value, abs=1e-5)
            assert reached >= float(space.certify(phases, None)) - 1e-6


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_units_do_not_matter(scale: float) -> None:
    # The linear programs have absolute tolerances: weights and boxes far from 1 must not be lost in
    # them.
    verdicts = []
    for factor in (1.0, scale):
        network = chain([2, 8, 8, 3], 3)
        with torch.no_grad():
            first, last = network.module[0], network.module[-1]
            for layer, by in ((first, factor), (last, factor)):
                layer.weight.mul_(by)
                layer.bias.mul_(by)
            network.module[2].bias.mul_(factor)
            last.bias.mul_(factor)
        property_ = around(network, 0.3, 3)
        verdicts.append((decide_exactly(network, property_).verdict, property_.label))
    assert verdicts[0] == verdicts[1]


def test_numbers_beyond_float64_are_no_verdict_and_no_error() -> None:
    layers: list[nn.Module] = [linear([[3e38], [-3e38]], [-1.5e38, 1.5e38]), nn.ReLU()]
    for _ in range(9):
        layers += [linear([[3e38, 1e38], [1e38, -3e38]], [1e30, -1e30]), nn.ReLU()]
    network = of(*layers, linear([[1.0, -1.0], [0.5, 1.0]], [0.0, 0.0]))
    decided = decide_exactly(network, box([-0.25], [1.0]))
    assert (decided.verdict, decided.reason) == (Verdict.UNKNOWN, Finding.NUMERICAL.value)


def hard() -> tuple[Network, Property]:
    network = chain([8, 40, 40, 40, 3], 0)
    return network, around(network, 0.2, 0)


def test_the_search_is_anytime_and_counts_its_nodes() -> None:
    network, property_ = hard()
    bounds = []
    for nodes in (1, 15, 40):
        decided = decide_exactly(network, property_, nodes=nodes)
        assert (decided.verdict, decided.reason) == (Verdict.TIMEOUT, Finding.OUT_OF_NODES.value)
        assert decided.nodes <= nodes + 1
        bounds.append(decided.margin)
    assert bounds[0] == min(decided.space.reduced.least.fractions())
    assert bounds[0] < bounds[-1] <= 0
    assert bounds == sorted(bounds)


@pytest.mark.parametrize(
    ("sizes", "factor", "eps", "seed", "expected"),
    [
        ([2, 24, 24, 2], 2, 1.0, 17, Verdict.VIOLATED),
        ([2, 8, 8, 8, 8, 3], 3, 2.0, 4, Verdict.HOLDS),
    ],
)
def test_steep_networks_are_decided_by_few_programs(
    sizes: list[int], factor: int, eps: float, seed: int, expected: Verdict
) -> None:
    """Where most parts are empty ascents need thousands."""
    network = chain(sizes, seed)
    with torch.no_grad():
        for each in network.module.parameters():
            each.mul_(factor)
    assert decide_exactly(network, around(network, eps, seed), nodes=500).verdict is expected


def test_numbers_beyond_what_ascents_take_are_left_to_programs(few_programs: None) -> None:
    network = chain([2, 8, 8, 8, 8, 3], 4)
    with torch.no_grad():
        for each in network.module.parameters():
            each.mul_(1e22)
    assert decide_exactly(network, around(network, 2.0, 4), nodes=500).verdict is Verdict.HOLDS


@pytest.mark.slow
def test_ascents_decide_what_programs_leave_open(few_programs: None) -> None:
    """Their bounds are exact, so that the proof of many of them is accepted."""
    network = chain([8, 32, 32, 3], 0)
    property_ = around(network, 0.4, 0)
    few, all_ = (decide_exactly(network, property_, nodes=nodes) for nodes in (100, 100_000))
    assert few.reason == Finding.OUT_OF_NODES.value
    assert few.nodes == 100
    assert few.margin <= 0
    assert all_.verdict is Verdict.HOLDS
    assert all_.nodes > 300
    content = onnx_of(network)
    statement = check_proof(proof_of(all_, content), content)
    assert statement.leaves > 100


def test_no_time_is_left() -> None:
    decided = decide_exactly(*hard(), seconds=1e-9)
    assert (decided.verdict, decided.reason) == (Verdict.TIMEOUT, Finding.OUT_OF_TIME.value)
    assert (decided.programs, decided.space) == (0, None)
    assert decided.margin <= 0  # by interval arithmetic
    assert not any(tree.is_closed() for tree in decided.trees)


def test_rows_of_any_kind() -> None:
    # x0 + x1 - 1/4 > 0 and 5 - x0 > 0 where both x are in [1/4, 1]; with 1/2 for 1/4 the first
    # fails at (1/4, 1/4)
    for constant, expected in ((-0.25, Verdict.HOLDS), (-0.5, Verdict.VIOLATED)):
        rows = Affine(
            Dyadic.of(np.array([[1.0, 1.0], [-1.0, 0.0]])), Dyadic.of(np.array([constant, 5.0]))
        )
        decided = decide_exactly(diagonal(), box([0.25, 0.25], [1.0, 1.0]), rows=rows)
        assert decided.verdict is expected
        assert decided.margin == Fraction(constant) + Fraction(1, 2)


def test_a_known_counterexample_ends_the_search() -> None:
    suspect, asked = (
        torch.tensor([0.25, 0.5]),
        Asked.robustness(read(diagonal()), box([0.0, 0.0], [1.0, 1.0])),
    )
    decided = decide_rows(asked, ExactJudge(asked), seconds=10.0, known=suspect)
    assert (decided.verdict, decided.reason, decided.programs) == (Verdict.VIOLATED, "falsifier", 0)
    proven = Asked.robustness(asked.network, box([0.5, 0.0], [1.0, 0.25]))
    with pytest.raises(
        RuntimeError, match="proven positive by bounds, but a counterexample is confirmed"
    ):
        decide_rows(proven, ExactJudge(proven), seconds=10.0, known=suspect)


def test_what_is_refused() -> None:
    asked = Asked.robustness(read(diagonal()), box([0, 0], [1, 1]))
    with pytest.raises(ValueError, match=r"seconds must be > 0, got 0\.0"):
        decide_rows(asked, ExactJudge(asked), seconds=0.0)
    with pytest.raises(ValueError, match="nodes must be >= 1, got 0"):
        decide_rows(asked, ExactJudge(asked), seconds=1.0, nodes=0)
    none = Affine(Dyadic.zeros(0, 2), Dyadic.zeros(0))
    with pytest.raises(ValueError, match="no row to prove"):
        decide_exactly(diagonal(), box([0, 0], [1, 1]), rows=none)


# Proof files: accepted by the checker, which shares no code with them; refused where nothing is
# proven.
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
    network = absolute(1.0, 0.0, 0.25)
    decided = decide_exactly(network, box([-1.0], [0.5]))
    content = onnx_of(network)
    proof = proof_of(decided, content)
    check_proof(proof, content)
    assert proof["network"] == {
        "sha256": hashlib.sha256(content).hexdigest(),
        "inputs": 1,
        "layers": [2, 2],
    }
    assert proof["box"] == {"lower": ["-1"], "upper": ["1p-1"]}
    assert proof["property"] == {"rows": [{"coefficients": {"0": "1", "1": "-1"}, "constant": "0"}]}
    assert proof["neurons"] == [
        [{"lower": "-1", "upper": "1p-1"}, {"lower": "-1p-1", "upper": "1"}]
    ]
    (leaf,) = proof["trees"]
    assert 0 < value(leaf["bound"]) <= Fraction(1, 4)
    # |x| >= p x for p between -1 and 1, whichever two numbers make it up
    listed = {(layer, index): value(number) for layer, index, number in leaf["p"]}
    assert listed
    # without a p, the lines below are taken: 0 where the lower end is farther from 0, 1 where the
    # upper one is
    assert all(
        0 <= each <= 1 for each in ({(0, 0): Fraction(0), (0, 1): Fraction(1)} | listed).values()
    )
    assert listed.get((0, 0)) != 0
    assert listed.get((0, 1)) != 1


def test_only_what_holds_has_a_proof() -> None:
    network = chain([2, 8, 8, 3], 4)
    decided = decide_exactly(network, around(network, 0.7, 4))
    assert decided.verdict is Verdict.VIOLATED
    with pytest.raises(
        ValueError, match="only what holds has a proof, and the verdict is violated"
    ):
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
    layers = [
        nn.Flatten(),
        nn.Linear(4, 6),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(6, 5, bias=False),
        nn.ReLU(),
    ]
    network = Network("flat", nn.Sequential(*layers, nn.Linear(5, 3)).eval(), (2, 2), 3)
    path = tmp_path / "network.onnx"
    export_onnx(network.module, network.input_shape, path)
    assert read_file(path.read_bytes()).equals(read(network))
    decided = decide_exactly(network, around(network, 0.01, 0))
    check_proof(proof_of(decided, path.read_bytes()), path.read_bytes())
