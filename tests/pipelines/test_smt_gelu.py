"""Branch and bound on curved activations: lines against many digits, bounds against samples,
verdicts on digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from mpmath import mp, mpf, ncdf
from sklearn.datasets import load_digits
from torch import nn

from evalsuite import LambdaGELU, Network, Property, Unsupported, Verdict
from netverify import falsify
from pipelines.smt.counterexample import MARGIN
from pipelines.smt.exact_network import Intervals
from pipelines.smt.reading import read_curved
from pipelines.smt.reduction import Asked, reduce
from pipelines.smt.search.decision import Decided
from pipelines.smt.search.exploring import Finding, multipliers
from pipelines.smt.search.space import IntervalSpace
from tests.pipelines.smt_networks import (
    around,
    box,
    chain,
    decide_exactly,
    decider,
    linear,
    of,
    samples,
)

ACTIVATIONS = (nn.GELU, LambdaGELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Hardswish)


def spaces(network: Network, property_: Property) -> IntervalSpace:
    return IntervalSpace(reduce(Asked.robustness(read_curved(network), property_)))


def test_the_lines_of_gelu_in_many_digits() -> None:
    (curve,) = read_curved(chain([1, 1, 2], 0, nn.GELU)).curves
    chance = np.random.default_rng(0)
    lower = chance.normal(size=60) * 3
    upper = lower + 10 ** chance.uniform(-3, 1, size=60)
    lines = curve.lines(lower, upper)
    with mp.workdps(40):
        for i in range(60):
            for share in range(11):
                z = (
                    mpf(float(lower[i]))
                    + (mpf(float(upper[i])) - mpf(float(lower[i]))) * share / 10
                )
                exact = z * ncdf(z)
                assert mpf(float(lines.below[i])) * z + mpf(float(lines.below_start[i])) <= exact
                assert mpf(float(lines.above[i])) * z + mpf(float(lines.above_start[i])) >= exact


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bounds_of_random_parts_hold_for_samples(activation: type[nn.Module]) -> None:
    network = chain([3, 6, 5, 3], 1, activation)
    property_ = around(network, 0.5, 1)
    space = spaces(network, property_)
    points = samples(property_, 1500, 0)
    state, inputs = points, []
    for layer in nn.Sequential(*network.module).double():
        state = layer(state)
        inputs.append(state.detach())
    network.module.float()
    own = torch.cat([inputs[0], inputs[2]], 1).numpy()
    assert bool(((own >= space.root.lower) & (own <= space.root.upper)).all())
    others = [index for index in range(3) if index != property_.label]
    margins = (state[:, [property_.label]] - state[:, others]).detach().numpy()
    chance = np.random.default_rng(0)
    for trial in range(12):
        row = trial % 2
        space.aim(row)
        part = space.root
        kept = own[chance.integers(len(own))]
        for _ in range(trial % 6):
            found = space.solve(part, math.inf)
            assert found is not None
            neuron = int(chance.integers(len(part.lower)))
            halves = space.halves(part, neuron, found)
            part = halves[0] if kept[neuron] <= halves[0].upper[neuron] else halves[1]
        inside = ((own >= part.lower) & (own <= part.upper)).all(axis=1)
        least = float(margins[inside, row].min())
        chosen = multipliers(chance.normal(size=len(part.lower)), 12)
        found = space.solve(part, math.inf)
        assert found is not None
        for used in (None, chosen, multipliers(found.duals, 24)):
            assert float(space.certify(part, used)) <= least + 1e-9
        # The program's value is what the best multipliers give.
        assert float(space.certify(part, multipliers(found.duals, 30))) == pytest.approx(
            found.value, abs=1e-5
        )


def test_halves_make_up_the_whole() -> None:
    network = chain([2, 4, 2], 0, nn.GELU)
    space = spaces(network, around(network, 0.5, 0))
    space.aim(0)
    found = space.solve(space.root, math.inf)
    assert found is not None
    first, second = space.halves(space.root, 2, found)
    assert (
        first.lower[2] == space.root.lower[2] < first.upper[2] == second.lower[2] < second.upper[2]
    )
    assert second.upper[2] == space.root.upper[2]
    others = [0, 1, 3]
    for half in (first, second):
        assert (half.lower[others] == space.root.lower[others]).all()
        assert gap(half) < gap(space.root)


def gap(part: Intervals) -> float:
    middle = (part.lower[2] + part.upper[2]) / 2
    return float(
        (part.above[2] - part.below[2]) * middle + part.above_start[2] - part.below_start[2]
    )


@pytest.mark.slow
def test_a_known_distance() -> None:
    # logits (gelu(x), gelu(1/2)) by the bias: equal at x = 1/2, as gelu rises from -0.75 on
    half = float(torch.nn.functional.gelu(torch.tensor(0.5, dtype=torch.float64)))
    network = of(linear([[1.0]], [0.0]), nn.GELU(), linear([[1.0], [0.0]], [0.0, half]))
    decide = decider(network)
    for lower, expected in ((0.501, "holds"), (0.499, "violated")):
        decided = decide(box([lower], [2.0]), seconds=20.0)
        assert decided.verdict.value == expected
        if decided.counterexample is None:
            assert 0 < decided.margin < 0.002
        else:
            assert lower <= float(decided.counterexample) < 0.5


def test_too_close_to_call_is_no_verdict() -> None:
    # logits (gelu(x) + gelu(-x), 0): not below 0, and 0 at x = 0 alone
    hidden = linear([[1.0], [-1.0]], [0.0, 0.0])
    network = of(hidden, nn.GELU(), linear([[1.0, 1.0], [0.0, 0.0]], [0.0, 0.0]))
    decided = decider(network)(box([-0.5], [1.0]), seconds=20.0, nodes=400)
    assert decided.verdict in (Verdict.UNKNOWN, Verdict.TIMEOUT)
    assert decided.reason in (Finding.NUMERICAL.value, Finding.OUT_OF_NODES.value)
    root = spaces(network, box([-0.5], [1.0])).reduced.least.fractions()[0]
    assert root < decided.margin <= 0


@pytest.mark.slow
def test_relu_by_intervals_and_by_phases_agree() -> None:
    seen = set()
    for seed in (4, 36):
        network = chain([2, 8, 8, 3], seed)
        property_ = around(network, 0.7, seed)
        by_phases = decide_exactly(network, property_).verdict
        assert decider(network)(property_, seconds=30.0).verdict is by_phases
        seen.add(by_phases)
    assert seen == {Verdict.HOLDS, Verdict.VIOLATED}


@cache
def trained(
    activation: type[nn.Module], *hidden: int
) -> tuple[Network, torch.Tensor, torch.Tensor]:
    """A small network of the digits, and samples that it was not trained on."""
    data = load_digits()
    inputs, targets = torch.tensor(data.data / 16).float(), torch.tensor(data.target)
    network = chain([64, *hidden, 10], 0, activation)
    network.module.train()
    optimizer = torch.optim.Adam(network.module.parameters(), 5e-3)
    for _ in range(15):
        for batch in torch.randperm(1500, generator=torch.Generator().manual_seed(0)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network.module(inputs[batch]), targets[batch]).backward()
            optimizer.step()
    network.module.eval()
    return network, inputs[1500:], targets[1500:]


@cache
def decider_of(activation: type[nn.Module], *hidden: int) -> Callable[..., Decided]:
    return decider(trained(activation, *hidden)[0])


@pytest.mark.parametrize("activation", [nn.GELU, LambdaGELU])
@pytest.mark.slow
def test_trained_digits(activation: type[nn.Module]) -> None:
    network, inputs, targets = trained(activation, 16)
    decide, read = decider_of(activation, 16), read_curved(network)
    seen = []
    for sample, eps in ((0, 0.05), (2, 0.1), (4, 0.1)):
        label = int(targets[sample])
        property_ = Property.robustness(
            inputs[sample], sample=sample, label=label, eps=eps, domain=(0.0, 1.0)
        )
        decided = decide(property_, seconds=60.0)
        seen.append(decided.verdict)
        if decided.verdict is Verdict.HOLDS:
            assert decided.margin > 0
            assert falsify(network.module, [property_], seed=0) == [None]
            points = samples(property_, 300, sample).numpy()
            logits = read.in_float32(points)[0]
            rest = logits[:, [label]] - np.delete(logits, label, axis=1)
            assert rest.min() >= float(decided.margin)
        else:
            assert decided.counterexample is not None
            assert property_.contains(decided.counterexample)
            assert int(network.module(decided.counterexample[None]).argmax()) != label
            logits = read.in_float32(decided.counterexample.double().numpy()[None])[0][0]
            assert logits[label] - np.delete(logits, label).max() < -MARGIN
    assert set(seen) == {Verdict.HOLDS, Verdict.VIOLATED}


def test_limits_leave_the_best_proven_margin() -> None:
    _, inputs, targets = trained(nn.GELU, 16)
    decide = decider_of(nn.GELU, 16)
    property_ = Property.robustness(
        inputs[0], sample=0, label=int(targets[0]), eps=0.3, domain=(0.0, 1.0)
    )
    decided = decide(property_, seconds=1e-9)
    assert (decided.verdict, decided.reason) == (Verdict.TIMEOUT, Finding.OUT_OF_TIME.value)
    assert decided.margin is None
    harder = Property.robustness(
        inputs[2], sample=2, label=int(targets[2]), eps=0.12, domain=(0.0, 1.0)
    )
    few = decide(harder, seconds=60.0, nodes=1)
    assert (few.verdict, few.reason) == (Verdict.TIMEOUT, Finding.OUT_OF_NODES.value)
    assert len(few.trees) == 9
    assert few.margin is not None
    assert few.margin < 0


def test_what_has_no_lines_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"layer '1' \(Softmax\)"):
        read_curved(of(linear([[1.0]], [0.0]), nn.Softmax(1), linear([[1.0], [0.0]], [0.0, 0.0])))


@pytest.mark.slow
def test_most_gelu_queries_are_decided() -> None:
    verdicts = []
    _, inputs, targets = trained(nn.GELU, 16, 16)
    for eps, sample in product((0.03, 0.08), range(5)):
        label = int(targets[sample])
        property_ = Property.robustness(
            inputs[sample], sample=sample, label=label, eps=eps, domain=(0.0, 1.0)
        )
        verdicts.append(decider_of(nn.GELU, 16, 16)(property_, seconds=240.0).verdict)
    assert sum(each in (Verdict.HOLDS, Verdict.VIOLATED) for each in verdicts) >= 9
