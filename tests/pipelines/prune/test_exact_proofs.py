"""Proofs: the solver agrees with planted truth, refutes planted falsehood, and says what it
cannot decide.
"""

from __future__ import annotations

import copy
import re
import time
from fractions import Fraction

import pytest
import torch
import z3
from torch import nn

from evalsuite import Verdict
from pipelines.prune.exact.kinds import Kind, Removal
from pipelines.prune.exact.layers import read_layers
from pipelines.prune.exact.proofs import NOTHING_REMOVED, Prover, difference_bound
from pipelines.prune.exact.questions import Question, box_of, read_affine
from pipelines.prune.exact.removing import Claim, Removed, reads_chain, remove_all

pytestmark = pytest.mark.usefixtures("by_hand")

DOMAIN = (0.0, 1.0)


def prover(
    *, seconds: float = 5.0, neurons: int = 64, tolerance: float = 1e-6, left: float = 60.0
) -> Prover:
    return Prover(
        DOMAIN,
        tolerance=tolerance,
        neurons=neurons,
        seconds=seconds,
        deadline=time.monotonic() + left,
    )


def claim(module: nn.Module, layer: int, removal: Removal, shape: tuple[int, ...] = (3,)) -> Claim:
    module = copy.deepcopy(module).double().eval()
    layers = read_layers(module, shape).hidden
    return Claim(module, layers, layers[layer], removal, removal.unit)


@pytest.fixture
def module() -> nn.Sequential:
    """3-8-6-2: of the first layer 0 is constant, 1 off, 2 unused, 3 = 4, 5 to 7 on; 7 = 5 + 2 *
    6 - 0.5.
    """
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)
    ).eval()
    first, second = made[0], made[2]
    for layer in (first, second):
        layer.weight.copy_((layer.weight * 16).round() / 16)
        layer.bias.copy_(-layer.weight.sum(1) / 2 + 1 / 64)
    first.weight[0], first.bias[0] = 0.0, 0.75
    first.weight[1], first.bias[1] = torch.tensor([-1.0, -0.5, -2.0]), 0.0
    second.weight[:, 2] = 0.0
    first.weight[4], first.bias[4] = first.weight[3], first.bias[3]
    first.weight[5:7], first.bias[5:7] = torch.tensor([[0.25, 0.5, 1.0], [1.0, 0.125, 0.5]]), 0.5
    first.weight[7], first.bias[7] = first.weight[5] + 2 * first.weight[6], 1.0
    return made


TRUE = (
    Removal(0, Kind.CONSTANT, 0.75),
    Removal(1, Kind.OFF),  # its greatest value, 0, is reached at a corner
    Removal(2, Kind.UNUSED),
    Removal(4, Kind.DUPLICATE, shares={3: 1.0}),
    Removal(7, Kind.MERGED, -0.5, {5: 1.0, 6: 2.0}),
)
FALSE = (
    Removal(5, Kind.CONSTANT, 0.5),
    Removal(3, Kind.OFF),
    Removal(5, Kind.OFF),
    Removal(1, Kind.UNUSED),
    Removal(4, Kind.DUPLICATE, shares={5: 1.0}),
    Removal(7, Kind.MERGED, -0.5, {5: 1.0, 6: 2.001}),
    Removal(7, Kind.MERGED, -0.501, {5: 1.0, 6: 2.0}),
    Removal(4, Kind.MERGED, 0.0, {3: 1.0}),  # equal, but not always on
)


@pytest.mark.parametrize("removal", TRUE + FALSE, ids=lambda each: f"{each.kind.value} {each.unit}")
def test_what_is_true_holds_and_what_is_false_is_violated(
    module: nn.Sequential, removal: Removal
) -> None:
    proof = prover().unit(claim(module, 0, removal))
    assert proof.verdict is (Verdict.HOLDS if removal in TRUE else Verdict.VIOLATED)
    assert removal in TRUE or proof.reason


def test_a_wrong_by_the_least_bit_is_found(module: nn.Sequential) -> None:
    module[0].bias[1] = 1e-38  # at the corner 0, unit 1 is positive by that
    module[0].weight[0, 1] = 1e-38
    module[0].weight[4, 0] += 2.0**-20
    assert prover().unit(claim(module, 0, Removal(1, Kind.OFF))).verdict is Verdict.VIOLATED
    assert prover().unit(claim(module, 0, Removal(0, Kind.CONSTANT))).verdict is Verdict.VIOLATED
    assert (
        prover().unit(claim(module, 0, Removal(4, Kind.DUPLICATE, shares={3: 1.0}))).verdict
        is Verdict.VIOLATED
    )


@pytest.mark.parametrize(
    ("bias", "verdict"), [(-1.75, Verdict.HOLDS), (-1.7421875, Verdict.VIOLATED)]
)
def test_the_upper_corner_counts(module: nn.Sequential, bias: float, verdict: Verdict) -> None:
    module[0].weight[1], module[0].bias[1] = torch.tensor([1.0, 0.5, 0.25]), bias
    assert prover().unit(claim(module, 0, Removal(1, Kind.OFF))).verdict is verdict


def test_second_layer_units_through_the_relus_before(module: nn.Sequential) -> None:
    # relu(z) - relu(z) of the two duplicates, minus 0.1: off, which intervals cannot say.
    module[2].weight[0], module[2].bias[0] = torch.tensor([0, 0, 0, 3.0, -3.0, 0, 0, 0]), -0.1
    assert prover().unit(claim(module, 1, Removal(0, Kind.OFF))).verdict is Verdict.HOLDS
    module[2].bias[0] = 0.1
    assert prover().unit(claim(module, 1, Removal(0, Kind.OFF))).verdict is Verdict.VIOLATED
    # relu(z) - relu(z') with z' = z + 1/64: at most 0.1 - 1.5 / 64 is left
    module[2].weight[0] *= 0.5
    module[0].bias[4] += 1 / 64
    module[2].bias[0] = 0.0
    assert prover().unit(claim(module, 1, Removal(0, Kind.OFF))).verdict is Verdict.HOLDS


def test_the_whole_network(module: nn.Sequential) -> None:
    removed = remove_all(module, reads_chain((3,), DOMAIN))
    assert len(removed.claims) >= 5
    assert prover().network(module, removed).verdict is Verdict.HOLDS
    for index in (0, 2, 4):
        wrong = copy.deepcopy(removed)
        wrong.module[index].bias[0] += 1e-2
        said = prover().network(module, wrong)
        assert said.verdict is Verdict.VIOLATED, index
        assert "logit" in said.reason


def test_the_bounds_of_the_difference_find_a_wrong_network_too(module: nn.Sequential) -> None:
    module[0].bias[4] += 0.25
    removed = remove_all(module, reads_chain((3,), DOMAIN))
    assert removed.claims
    assert difference_bound(module, removed, (3,), DOMAIN) < 1e-6
    removed.module[4].bias[0] += 0.01
    assert difference_bound(module, removed, (3,), DOMAIN) >= 0.0099


def test_what_is_not_decided_says_so(module: nn.Sequential) -> None:
    nothing = Removed(module, read_layers(module, (3,)), {})
    assert prover().network(module, nothing).reason == NOTHING_REMOVED
    assert difference_bound(module, nothing, (3,), DOMAIN) == 0.0
    off = claim(module, 0, Removal(1, Kind.OFF))
    assert prover(left=-1.0).unit(off).verdict is Verdict.TIMEOUT
    removed = remove_all(module, reads_chain((3,), DOMAIN))
    assert prover(left=-1.0).network(module, removed).verdict is Verdict.TIMEOUT
    short = prover(seconds=1e-6).network(module, removed)
    assert short.verdict is Verdict.TIMEOUT
    assert "not decided in" in short.reason
    few = prover(neurons=4)
    assert (
        few.network(module, removed).reason == "it depends on 14 hidden units; max_neurons allows 4"
    )
    assert few.unit(claim(module, 1, Removal(0, Kind.OFF))).verdict is Verdict.UNSUPPORTED
    assert few.unit(off).verdict is Verdict.HOLDS  # of the first layer: no unit is before it


@pytest.mark.timeout(60)
def test_the_clock_stops_a_hard_question() -> None:
    module = nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
    ).eval()
    bound = 0.5 * float(module[2].weight[0].abs().sum())
    module[2].bias[0] = -0.2 * bound
    found = prover(seconds=0.5).unit(claim(module, 1, Removal(0, Kind.OFF), (64,)))
    assert found.verdict in (Verdict.TIMEOUT, Verdict.HOLDS, Verdict.VIOLATED)


@pytest.mark.parametrize("seed", range(3))
def test_terms_compute_what_torch_computes(seed: int) -> None:
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)
    ).double()
    maps = read_affine(module, -1)
    assert not isinstance(maps, str)
    point = torch.rand(2, dtype=torch.float64)
    logit = Fraction(module(point[None]).item())
    for shift, verdict in (
        (Fraction(-1, 10**9), Verdict.VIOLATED),
        (Fraction(1, 10**9), Verdict.HOLDS),
    ):
        question = Question(box_of(DOMAIN, 2), 5.0)
        (output,) = question.after(maps)
        assert (
            question.never(
                z3.And(*there_in(question, point), output > question.number(logit + shift))
            )
            is verdict
        )
        question = Question(box_of(DOMAIN, 2), 5.0)
        (output,) = question.after(maps)
        assert (
            question.never(
                z3.And(*there_in(question, point), output < question.number(logit - shift))
            )
            is verdict
        )


def there_in(question: Question, point: torch.Tensor) -> list[z3.BoolRef]:
    values = [question.number(Fraction(value)) for value in point.tolist()]
    return [term == value for term, value in zip(question.inputs, values, strict=True)]


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)], "'1' .GELU.: only Linear and ReLU"),
        (
            [nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(2, 2)],
            "'1': the square root in BatchNorm",
        ),
        (
            [nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)],
            "'1' follows another of its kind",
        ),
    ],
)
def test_what_has_no_exact_encoding_is_unsupported(layers: list[nn.Module], text: str) -> None:
    module = nn.Sequential(*layers).eval()
    module[0].weight[0] = 0.0
    module[-1].weight[:, 0] = 0.0
    removed = remove_all(module, reads_chain((2,), DOMAIN))
    assert removed.claims
    proof = prover().network(module, removed)
    assert proof.verdict is Verdict.UNSUPPORTED
    assert re.search(text, proof.reason)
    if isinstance(module[-2], nn.ReLU):
        off = prover().unit(claim(module, 0, Removal(1, Kind.OFF), (2,)))
        assert off.verdict is Verdict.UNSUPPORTED
        assert re.search(text, off.reason)


def test_differences_of_gelu_networks_are_bounded_too() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2)).eval()
    module[0].weight[0] = 0.0
    removed = remove_all(module, reads_chain((2,), DOMAIN))
    assert removed.claims
    bound = difference_bound(module, removed, (2,), DOMAIN)
    inputs = DOMAIN[0] + (DOMAIN[1] - DOMAIN[0]) * torch.rand(1000, 2, dtype=torch.float64)
    moved = copy.deepcopy(module).double()(inputs) - copy.deepcopy(removed.module).double()(inputs)
    assert float(moved.abs().max()) <= bound < 1e-6


def test_claims_about_weights_need_no_relu() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.Linear(12, 2)
    ).eval()
    module[1].weight[0] = 0.0
    module[0].weight[2], module[0].bias[2] = module[0].weight[1], module[0].bias[1]
    for removal, verdict in (
        (Removal(0, Kind.CONSTANT), Verdict.HOLDS),
        (Removal(1, Kind.CONSTANT), Verdict.VIOLATED),
        (Removal(2, Kind.DUPLICATE, shares={1: 1.0}), Verdict.HOLDS),
        (Removal(2, Kind.DUPLICATE, shares={0: 1.0}), Verdict.VIOLATED),
        (Removal(2, Kind.UNUSED), Verdict.VIOLATED),
    ):
        assert prover().unit(claim(module, 0, removal, (1, 4, 4))).verdict is verdict
