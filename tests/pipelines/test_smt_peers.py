"""Encodings on the same random queries say the same. And Marabou under control, where it is
installed.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from torch import nn

from benchmarks.smt import ask_plainly, plain_question
from evalsuite import Network, Property, Unsupported, Verdict
from pipelines.smt import marabou
from pipelines.smt.counterexample import ROUNDING_ONLY, Judge
from pipelines.smt.deciding import EXACT_ONLY, Z3, ask, question
from pipelines.smt.marabou import Marabou, Portfolio, installed
from pipelines.smt.options import EncodingName
from pipelines.smt.reading import read
from pipelines.smt.reduction import Asked, reduce
from pipelines.smt.settling import Limits as JobLimits
from pipelines.smt.settling import Search
from pipelines.smt.solvers import End, Limits, ask_z3
from tests.pipelines.smt_networks import absolute, chain, odd_network

DOMAIN = (-2.0, 2.0)


@pytest.mark.slow
def test_all_encodings_say_the_same() -> None:
    findings: Counter[tuple[End, End]] = Counter()
    for seed in range(208, 216):
        network, property_ = odd_network(seed, "plain")
        exact = read(network)
        reduced = reduce(Asked.robustness(exact, property_))
        plain = {
            ask_plainly(exact, property_, limits=Limits(60), encoding=each).end
            for each in get_args(EncodingName)
            if not each.endswith("-triangle")
        } | {ask_plainly(exact, property_, limits=Limits(60), bounds=reduced.bounds).end}
        assert len(plain) == 1
        possible = False
        for row in reduced.open_margins():
            limits = Limits(60.0, 10**9)
            (finding,) = {
                ask(reduced, [row], limits, encoding=each).end for each in get_args(EncodingName)
            }
            possible = possible or finding is End.SAT
            for each in get_args(EncodingName):
                rounded = ask(reduced, [row], limits, bits=4, encoding=each).end
                assert rounded is End.SAT or finding is End.UNSAT
                findings[finding, rounded] += 1
        assert possible == (plain == {End.SAT})
    assert len(findings) >= 2


def test_questions_are_smt_lib_that_another_parser_reads_back() -> None:
    network, property_ = odd_network(208, "plain")
    exact = read(network)
    text = plain_question(exact, property_, "or")
    names = [f"x{index}" for index in range(property_.lower.numel())]
    once = ask_z3(text, names, Limits(30))
    assert once == ask_plainly(exact, property_, limits=Limits(30), encoding="or")
    assert text.count("(declare-const x") == len(names)
    reduced = reduce(Asked.robustness(exact, property_))
    assert "(assert (<=" in question(reduced, reduced.open_margins()[:1])
    with pytest.raises(ValueError, match="no triangle: 'or-triangle'"):
        ask_plainly(exact, property_, encoding="or-triangle")


def test_balls_are_refused_by_all() -> None:
    network = absolute(1.0, 0.0, 0.25)
    exact = read(network)
    given = exact, Judge(network, exact, 0), JobLimits(1.0, time.monotonic() + 9)
    ball = Property.robustness(torch.zeros(1), sample=0, label=0, eps=0.1, domain=DOMAIN, norm="l2")
    for ask_it in (
        lambda: Z3(*given).query(ball, None, 1.0),
        lambda: Search(*given).query(ball, None, 1.0),
        lambda: ask_plainly(exact, ball),
    ):
        with pytest.raises(Unsupported, match="L2 ball"):
            ask_it()


needs_marabou = pytest.mark.skipif(not installed(), reason=marabou.MISSING)


@needs_marabou
def test_marabou_is_believed_under_control_only() -> None:
    reasons: Counter[str] = Counter()
    for seed in range(24):
        torch.manual_seed(seed)
        first, last = nn.Linear(2, 8), nn.Linear(8, 3)
        with torch.no_grad():
            for each in (first, last):  # none too small, but for two thirds of the networks
                each.weight.copy_(each.weight.sign() * each.weight.abs().clamp(min=1e-3))
            if seed % 3:
                first.weight.mul_(torch.where(torch.rand(8, 2) < 0.5, 1e-5, 1.0))
        network = Network("small weights", nn.Sequential(first, nn.ReLU(), last).eval(), (2,), 3)
        exact = read(network)
        judge = Judge(network, exact, 0)
        center = torch.rand(2)
        label = int(network.module(center[None]).argmax())
        property_ = Property.robustness(center, sample=0, label=label, eps=0.3, domain=DOMAIN)
        opinion = Marabou(exact, judge, JobLimits(20.0, math.inf)).query(property_, None, 20.0)
        decision = Z3(exact, judge, JobLimits(20.0, time.monotonic() + 60)).query(
            property_, None, 1.0
        )
        reasons[opinion.reason.split(" like ")[0]] += 1
        if opinion.verdict in (Verdict.HOLDS, Verdict.VIOLATED):
            assert opinion.verdict is decision.verdict or decision.reason in (
                EXACT_ONLY,
                ROUNDING_ONLY,
            )
        if opinion.verdict is Verdict.VIOLATED:
            assert opinion.counterexample is not None
            assert judge.accepts(property_, opinion.counterexample)
    assert reasons[f"Marabou: {marabou.BELIEVED}"] > 0
    assert reasons[f"Marabou: {marabou.CONTROL.format(answer='unsat')}"] > 0
    assert reasons[f"Marabou: {marabou.SMALL}".split(" like ")[0]] > 0


def left_open() -> Iterator[tuple[Portfolio, Property, Verdict]]:
    """Portfolios whose search may look at one node, which settles nothing, and what a search
    settles in the end.
    """
    for seed in range(12):
        network = chain([4, 16, 16, 3], seed)
        with torch.no_grad():
            for each in network.module[::2]:  # none too small for Marabou to be believed
                each.weight.copy_(each.weight.sign() * each.weight.abs().clamp(min=1e-3))
        exact = read(network)
        judge = Judge(network, exact, 0)
        label = int(network.module(torch.zeros(1, 4)).argmax())
        property_ = Property.robustness(
            torch.zeros(4), sample=0, label=label, eps=0.5, domain=DOMAIN
        )
        short = Portfolio(exact, judge, JobLimits(0.01, math.inf), "portfolio")
        if Search.query(short, property_, None, 60.0).verdict is Verdict.TIMEOUT:
            yield (
                short,
                property_,
                Search(exact, judge, JobLimits(60.0, math.inf))
                .query(property_, None, 60.0)
                .verdict,
            )


def test_a_portfolio_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marabou.importlib.util, "find_spec", lambda name: None)
    portfolio, property_, _ = next(left_open())
    settled = portfolio.query(property_, None, 60.0)
    assert settled.verdict is Verdict.TIMEOUT
    assert "nodes, the count for a query_time_limit of 0.01 s, reached with" in settled.reason
    assert settled.reason.endswith(marabou.MISSING)
    with pytest.raises(Unsupported, match="maraboupy is not installed: pip install"):
        Marabou(portfolio.exact, portfolio.judge, portfolio.limits)


@needs_marabou
def test_a_portfolio_asks_marabou_what_the_search_leaves_open() -> None:
    count = 0
    for portfolio, property_, verdict in left_open():
        found = portfolio.query(property_, None, 60.0)
        alone = Marabou(portfolio.exact, portfolio.judge, portfolio.limits).query(
            property_, None, 60.0
        )
        assert found.verdict is alone.verdict is verdict
        assert found.reason == alone.reason
        assert found.reason.startswith("Marabou: ")
        assert (found.proof, found.counterexample is None) == (None, verdict is Verdict.HOLDS)
        count += 1
    assert count >= 2


@needs_marabou
@pytest.mark.timeout(60)
def test_marabou_is_stopped_at_its_limit() -> None:
    network = chain([40, 80, 80, 10], 0)
    exact = read(network)
    label = int(network.module(torch.zeros(1, 40)).argmax())
    property_ = Property.robustness(torch.zeros(40), sample=0, label=label, eps=0.5, domain=DOMAIN)
    opinion = Marabou(exact, Judge(network, exact, 0), JobLimits(0.5, math.inf)).query(
        property_, None, 0.5
    )
    assert opinion.verdict in (Verdict.TIMEOUT, Verdict.VIOLATED, Verdict.UNKNOWN)
