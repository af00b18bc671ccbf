"""The `smt` stage: verdicts by hand, against an encoding of its own, by sampling and by replay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from written import mlp

from evalsuite import Bench, LambdaGELU, Network, Outcome, Property, Unsupported, Verdict
from netverify import Replay, falsify
from pipelines.smt import Smt
from pipelines.smt.counterexample import OVERFLOW, ROUNDING_ONLY, Judge
from pipelines.smt.deciding import EXACT_ONLY, Z3, ask
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.reading import read
from pipelines.smt.reduction import Asked, reduce
from pipelines.smt.settling import Limits as QueryLimits
from pipelines.smt.settling import Search
from pipelines.smt.solvers import End, Limits
from tests.pipelines.smt_networks import absolute, box, diagonal, linear, of


def near(eps: float) -> Property:
    """Of `diagonal`: the nearest tie is at distance 1/8."""
    return Property.robustness(
        torch.tensor([0.75, 0.5]), sample=0, label=0, eps=eps, domain=(-1.0, 1.0)
    )


# logits (1/2 - relu(x), 0): a tie at x = 1/2 and nowhere before
def one_neuron() -> Network:
    return of(linear([[1.0]], [0.0]), nn.ReLU(), linear([[-1.0], [0.0]], [0.5, 0.0]))


# 2**24 + 1 is no float32: there the margin is 0, and exactly it is 1
def rounding() -> Network:
    big = 2.0**24
    return of(linear([[1.0]], [big]), nn.ReLU(), linear([[1.0], [0.0]], [-big, 0.0]))


# right of -shift the first logit is beyond float32, and where `steep` is 500 the second one too:
# NaN
def beyond(shift: float, steep: float) -> Network:
    first = linear([[1.0], [1.0]], [shift, 0.0])
    second, last = (
        linear([[3e38, 0.0], [0.0, 1.0]], [0, 0]),
        linear([[1e3, 1.0], [steep, 0.5]], [0, 0]),
    )
    return of(first, nn.ReLU(), second, nn.ReLU(), last)


# What queries of a network say, exactly and in float32; "" where more than one step may say it.
BY_HAND: dict[str, tuple[Network, list[tuple[Property, str, str]]]] = {
    "tie at 1/8": (
        diagonal(),
        [
            (near(eps), "holds" if eps < 0.125 else "violated", "")
            for eps in (0.0, 0.0625, 0.125 - 2**-20, 0.125, 0.25)
        ],
    ),
    "two phases": (absolute(1.0, 0.0, 0.25), [(box([-1.0], [0.5]), "holds", "the method")]),
    "two phases, a tie": (
        absolute(1.0, 0.0, 0.0),
        [(box([-1.0], [0.5]), "violated", "the method")],
    ),
    "two phases, bounded": (absolute(1.0, 0.0, 0.75), [(box([-1.0], [0.5]), "holds", "bounds")]),
    "one neuron": (
        one_neuron(),
        [(box([-1.0], [0.4375]), "holds", ""), (box([-1.0], [0.5]), "violated", "")],
    ),
    "a tie that no float reaches": (
        absolute(3.0, 1.0, 0.0),
        [(box([-1.0], [0.5]), "unknown", EXACT_ONLY)],
    ),
    "rounding": (rounding(), [(box([1.0], [1.0]), "unknown", ROUNDING_ONLY)]),
    "overflow": (beyond(-0.7, 0.0), [(box([0.65], [0.75]), "unknown", OVERFLOW)]),
    "overflow to NaN": (beyond(-0.69, 500.0), [(box([0.65], [0.75]), "unknown", ROUNDING_ONLY)]),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_what_is_known_by_hand(case: str) -> None:
    network, queries = BY_HAND[case]
    exact = read(network)
    judge, limits = Judge(network, exact, 0), QueryLimits(30.0, time.monotonic() + 60)
    deciders = {"search": Search(exact, judge, limits), "solver": Z3(exact, judge, limits)}
    for property_, expected, reason in queries:
        (suspect,) = falsify(network.module, [property_], seed=0)
        # A reason is named where one step alone may say it: where rounding decides with a
        # falsifier, else without.
        helped = (suspect,) if expected == "unknown" else (None,) if reason else (None, suspect)
        for given, (method, decider) in product(helped, deciders.items()):
            found = decider.query(property_, given, 30.0)
            assert found.verdict.value == expected
            assert not reason or found.reason == reason.replace("the method", method)
            if found.counterexample is not None:
                assert property_.contains(found.counterexample)
                assert judge.runs_wrong(property_, found.counterexample)


def test_the_smallest_boxes() -> None:
    # so that the bounds are below the least float64 number
    eye, eps = [[1e-3, 0.0], [0.0, 1e-3]], 5e-324
    network, asked = (
        of(linear(eye, [0, 0]), nn.ReLU(), linear(eye, [0.5, 0])),
        box([-eps, -eps], [eps, eps]),
    )
    exact = read(network)
    assert reduce(Asked.robustness(exact, asked)).neurons == 2
    decider = Z3(exact, Judge(network, exact, 0), QueryLimits(30.0, time.monotonic() + 60))
    assert decider.query(asked, None, 30.0).verdict is Verdict.HOLDS


def test_weights_that_are_not_finite_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"layer '0' \(Linear\): a value that is not finite"):
        read(of(linear([[float("inf")]], [0.0])))


# The greatest limits of time and steps do not wrap around.
@pytest.mark.parametrize(
    ("limits", "bits"),
    [
        *((Limits(10, 10**7), bits) for bits in (4, 10, None)),
        *((Limits(2**32 / 1000, 2**32 + more), 10) for more in (-1, 0, 1)),
    ],
)
def test_the_solver_without_help_finds_the_exact_answer(limits: Limits, bits: int | None) -> None:
    reduced = reduce(Asked.robustness(read(absolute(1.0, 0.0, 0.25)), box([-1.0], [0.5])))
    assert ask(reduced, [0], limits, bits=bits).end is End.UNSAT
    reduced = reduce(Asked.robustness(read(absolute(3.0, 1.0, 0.0)), box([-1.0], [0.5])))
    answer = ask(reduced, [0], limits)
    assert reduced.point([Fraction(each) for each in answer.values]) == [Fraction(1, 3)]


def test_flatten_dropout_nesting_and_batch_norm_are_read_exactly() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(5)
    norm(torch.randn(64, 5) * 3 + 1)
    head = nn.Sequential(
        nn.Linear(5, 5, bias=False), nn.BatchNorm1d(5, affine=False), nn.ReLU(), nn.Dropout()
    )
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 5), norm, nn.Identity(), nn.ReLU(), head, nn.Linear(5, 3)
    ).eval()
    exact = read(Network("nested", module, (2, 2), 3))
    assert exact.neurons == 10
    point = torch.randn(2, 2)
    logits = exact.logits([Fraction(value) for value in point.double().flatten().tolist()])
    expected = module.double()(point.double()[None])[0].tolist()
    assert [float(value) for value in logits] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_dyadic_arithmetic_is_exact() -> None:
    values = np.array([[0.1, -3.5e-20], [1e15, 0.0]])
    exact = Dyadic.of(values)
    assert exact.fractions() == [Fraction(value) for value in values.ravel().tolist()]
    squared = (exact @ exact).fractions()
    assert squared[0] == Fraction(0.1) ** 2 + Fraction(-3.5e-20) * Fraction(1e15)
    assert (exact + Dyadic.of(np.full((2, 2), 0.25))).shortened().fractions()[3] == Fraction(1, 4)
    floored = Dyadic.of(np.array([0.3, -0.3])).floored(2).fractions()
    assert floored == [Fraction(1, 4), Fraction(-1, 2)]
    with pytest.raises(ValueError, match="not finite"):
        Dyadic.of(np.array([np.nan]))


@pytest.mark.parametrize(
    ("layers", "shape", "reason"),
    [
        (
            [nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)],
            (2,),
            "gelu: only ReLU has an exact encoding",
        ),
        (
            [nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)],
            (2,),
            "tanh: only ReLU has an exact encoding",
        ),
        ([nn.Conv1d(1, 1, 1), nn.Flatten(), nn.Linear(2, 2)], (1, 2), r"layer '0' \(Conv1d\)"),
        ([nn.Linear(2, 2), nn.Flatten()], (1, 2), r"layer '0' \(Linear\) acts on shape \(1, 2\)"),
        ([nn.Linear(2, 3)], (2,), r"not 2 logits"),
        ([nn.BatchNorm1d(2, track_running_stats=False)], (2,), r"normalises by its batch"),
    ],
)
def test_what_has_no_exact_encoding(
    layers: list[nn.Module], shape: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        read(Network("odd", nn.Sequential(*layers).eval(), shape, 2))


LINEAR = "only ReLU has an exact encoding in linear arithmetic"


@pytest.mark.parametrize(
    ("options", "module", "reason"),
    [
        ({"method": "z3"}, mlp(64, 8, 10, activation=nn.GELU), LINEAR),
        ({"method": "z3"}, mlp(64, 8, 10, activation=LambdaGELU), LINEAR),
        (
            {"max_neurons": 63},
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)).eval(),
            "Conv2d.*; nor by its graph: ",
        ),
        ({"max_neurons": 63}, mlp(64, 32, 32, 10), "64 ReLU neurons; max_neurons is 63"),
        ({"max_inputs": 63}, mlp(64, 32, 32, 10), "64 inputs; max_inputs is 63"),
    ],
)
def test_variants_and_sizes_that_are_refused(
    options: dict[str, Any], module: nn.Module, reason: str, bench: Callable[..., Bench]
) -> None:
    place = bench("digits-cnn" if "Conv2d" in reason else "digits-mlp")
    given = Network("n", module, tuple(place.data.test.inputs.shape[1:]), 10)
    with pytest.raises(Unsupported, match=reason):
        Smt(**options).run(given, place)


@pytest.mark.slow
def test_trained_digits_twice(network: Callable[..., Network], bench: Callable[..., Bench]) -> None:
    trained, place = network("digits-mlp", "annealed"), bench("digits-mlp", time_limit=120.0)
    stage = Smt(eps=(0.0, 0.03125, 0.0625), samples=8, query_time_limit=1.0)
    outcome, again = (stage.run(trained, place) for _ in range(2))
    kept = [row for row in outcome.metrics if not row.timing]
    assert kept == [row for row in again.metrics if not row.timing]
    values = {(row.name, row.setting["eps"]): row.value for row in kept if row.sample is None}
    for eps in stage.eps:
        shares = [
            values[name, eps]
            for name in ("verified_accuracy", "violated_fraction", "undecided_fraction")
        ]
        assert sum(share for share in shares if share is not None) == pytest.approx(1)
    test = place.data.test
    right = trained.module(test.inputs[:8]).argmax(1) == test.targets[:8]
    assert values["verified_accuracy", 0.0] == pytest.approx(right.double().mean().item())
    assert values["unstable_neurons", 0.0] == 0
    assert (
        0 < (values["verified_accuracy", 0.03125] or 0) <= (values["verified_accuracy", 0.0] or 0)
    )
    check_counterexamples(trained, place, outcome)


def check_counterexamples(trained: Network, place: Bench, outcome: Outcome) -> None:
    records = json.loads(outcome.artefacts["counterexamples"].read_text())
    violated = [row for row in outcome.metrics if row.verdict is Verdict.VIOLATED]
    assert [(row.sample, row.setting["eps"]) for row in violated] == [
        (each["sample"], each["eps"]) for each in records
    ]
    assert records
    replay = Replay(trained)
    for each in records:
        property_ = place.properties(each["eps"], each["sample"] + 1)[-1]
        assert replay.confirms(property_, torch.tensor(each["input"]))
        logits = each["logits"]
        assert logits[each["label"]] <= max(
            value for i, value in enumerate(logits) if i != each["label"]
        )
        assert logits[each["class"]] == max(
            value for i, value in enumerate(logits) if i != each["label"]
        )
        assert each["clean"] == place.data.test.inputs[each["sample"]].tolist()
        assert each["picture"] == [1, 8, 8]
