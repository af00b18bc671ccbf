"""The `smt` stage as a whole: both methods, evidence, distances, curved and integer networks,
and what goes wrong.
"""

from __future__ import annotations

import json
import math
import re
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from evalsuite import Bench, Metric, Network, Outcome, Property, Unsupported, Verdict
from evalsuite.report.tables import comparison
from evalsuite.testing import check_stage
from netverify import falsify
from netverify.proofs import check_proof
from netverify.smooth_proofs import check_smooth_proof
from pipelines.smt import Smt
from pipelines.smt.counterexample import ROUNDING_ONLY, Judge
from pipelines.smt.deciding import JOB_ENDS
from pipelines.smt.exact_network import Affine
from pipelines.smt.integer.reading import read_integer_onnx
from pipelines.smt.methods import method_for
from pipelines.smt.options import MethodName
from pipelines.smt.proving import proof_of
from pipelines.smt.reading import read, read_curved
from pipelines.smt.rows import Evidence, effort, rows, setting_of
from pipelines.smt.settling import Limits, Method, Search, Settled
from pipelines.smt.solvers import End, Reply
from tests.pipelines.integer_networks import written
from tests.pipelines.smt_networks import (
    absolute,
    bench_of,
    box,
    chain,
    curved,
    diagonal,
    linear,
    of,
)

CENTER = torch.tensor([[0.75, 0.5]])


def row(outcome: Outcome, name: str, **wanted: object) -> Metric:
    """The one row of that name, setting and sample (by default of no sample)."""
    sample = wanted.pop("sample", None)
    found = [
        each
        for each in outcome.metrics
        if each.name == name
        and each.sample == sample
        and wanted.items() <= dict(each.setting).items()
    ]
    assert len(found) == 1, f"{name}: {found}"
    return found[0]


# logits (relu(x0), relu(x1)) at (3/4, 1/2): a tie at distance 1/8.
@pytest.mark.parametrize("method", ["search", "z3"])
def test_a_network_by_hand(method: MethodName, tmp_path: Path) -> None:
    stage = Smt(eps=(0.0625, 0.25), method=method, distance=True, distance_tolerance=2**-6)
    outcome = stage.run(diagonal(), bench_of(CENTER, torch.tensor([0]), tmp_path))
    small, large = ({"eps": eps, "method": method} for eps in (0.0625, 0.25))
    for setting, verdict, value in ((small, Verdict.HOLDS, 1.0), (large, Verdict.VIOLATED, 0.0)):
        assert row(outcome, "robustness", **setting, sample=0).verdict is verdict
        assert row(outcome, "verified_accuracy", **setting).value == value
        assert row(outcome, "violated_fraction", **setting).value == 1 - value
        assert row(outcome, "bounds_accuracy", **setting).value == value
        assert row(outcome, "exactness_gap", **setting).value == 0.0
        clock = row(outcome, "query_seconds", **setting, sample=0)
        assert clock.timing
        assert 0 < (clock.value or 0) <= stage.query_time_limit
        assert not clock.reason
        assert row(outcome, "par2", **setting).value == clock.value
    for sample in (0, None):
        low, high = (
            row(outcome, name, method=method, sample=sample).value or 0
            for name in ("adversarial_distance", "adversarial_distance_upper")
        )
        assert 0.125 - 2**-6 <= low < 0.125 <= high <= low + 2**-6
    checked = row(outcome, "proofs_checked", **small)
    if method == "search":
        assert (checked.value, row(outcome, "proofs_checked", **large).value) == (1, 0)
        assert row(outcome, "proof_bytes", **large).reason == "nothing holds"
    else:
        assert (checked.value, set(outcome.artefacts)) == (None, {"counterexamples"})


def test_misclassified_inputs_are_at_distance_zero(tmp_path: Path) -> None:
    outcome = Smt(distance=True).run(diagonal(), bench_of(CENTER, torch.tensor([1]), tmp_path))
    values = [
        row(outcome, f"adversarial_distance{end}", method="search").value for end in ("", "_upper")
    ]
    assert values == [0.0, 0.0]
    assert math.copysign(1, values[0] or 0.0) == 1


@pytest.mark.slow
def test_proofs_in_the_archive_prove_what_the_rows_say(tmp_path: Path) -> None:
    network = chain([3, 10, 10, 3], 18)
    inputs = torch.rand(6, 3, generator=torch.Generator().manual_seed(1))
    labels = network.module(inputs).argmax(1)
    outcome = Smt(eps=(0.05, 0.7)).run(network, bench_of(inputs, labels, tmp_path))
    holds = {
        (each.setting["eps"], each.sample)
        for each in outcome.metrics
        if each.verdict is Verdict.HOLDS
    }
    reasons = {each.reason for each in outcome.metrics if each.verdict is Verdict.HOLDS}
    assert reasons == {"bounds", "search"}
    with zipfile.ZipFile(outcome.artefacts["proofs"]) as archive:
        content = archive.read("network.onnx")
        names = [name for name in archive.namelist() if name != "network.onnx"]
        assert set(names) == {f"eps-{eps}/sample-{sample}.json" for eps, sample in holds}
        sizes = []
        for eps, sample in holds:
            text = archive.read(f"eps-{eps}/sample-{sample}.json")
            sizes.append((eps, len(text)))
            statement = check_proof(json.loads(text), content)
            ends = [(float(low), float(high)) for low, high in statement.box]
            box_ = Property.robustness(
                inputs[sample or 0], sample=0, label=0, eps=float(eps), domain=(-10.0, 10.0)
            )
            assert ends == list(zip(box_.lower.tolist(), box_.upper.tolist(), strict=True))
            label = int(labels[sample or 0])
            others = [{label: 1, other: -1} for other in range(3) if other != label]
            assert [coefficients for coefficients, _ in statement.rows] == others
    for eps in (0.05, 0.7):
        own = [size for at, size in sizes if at == eps]
        assert row(outcome, "proofs_checked", eps=eps).value == len(own)
        assert row(outcome, "proof_bytes", eps=eps).value == pytest.approx(sum(own) / len(own))
    gap = row(outcome, "exactness_gap", eps=0.7).value or 0
    bounds, verified = (
        row(outcome, name, eps=0.7).value or 0 for name in ("bounds_accuracy", "verified_accuracy")
    )
    assert verified == pytest.approx(bounds + gap)
    assert gap > 0


def test_curved_networks_get_verdicts(tmp_path: Path) -> None:
    network = curved((3, 6, 3), 4)
    inputs = torch.rand(6, 3, generator=torch.Generator().manual_seed(2))
    labels = network.module(inputs).argmax(1)
    stage = Smt(eps=(0.05, 1.0), distance=True, distance_samples=1, distance_tolerance=0.1)
    outcome = stage.run(network, bench_of(inputs, labels, tmp_path))
    verdicts = {each.verdict for each in outcome.metrics if each.name == "robustness"}
    assert verdicts >= {Verdict.HOLDS, Verdict.VIOLATED}
    spread = torch.rand(3000, 3, generator=torch.Generator().manual_seed(3)) * 2 - 1
    for each in outcome.metrics:
        if each.verdict is Verdict.HOLDS:
            around = inputs[each.sample or 0] + float(each.setting["eps"]) * spread
            assert bool((network.module(around).argmax(1) == labels[each.sample or 0]).all())
    assert row(outcome, "unstable_neurons", eps=0.05).value == 6
    holds = [each for each in outcome.metrics if each.verdict is Verdict.HOLDS]
    checked = [row(outcome, "proofs_checked", eps=eps) for eps in (0.05, 1.0)]
    assert [each.reason for each in checked] == ["", ""]
    assert sum(each.value or 0 for each in checked) == len(holds)
    with zipfile.ZipFile(outcome.artefacts["proofs"]) as archive:
        content = archive.read("network.onnx")
        for each in holds:
            proof = json.loads(archive.read(f"eps-{each.setting['eps']}/sample-{each.sample}.json"))
            assert len(check_smooth_proof(proof, content).rows) == 2
    low = row(outcome, "adversarial_distance", method="search", sample=0).value or 0
    high = row(outcome, "adversarial_distance_upper", method="search", sample=0).value or 0
    assert 0 < low < high
    (found,) = falsify(
        network.module,
        [
            Property.robustness(
                inputs[0], sample=0, label=int(labels[0]), eps=low, domain=(-10.0, 10.0)
            )
        ],
        seed=1,
    )
    assert found is None


def curved_search(network: Network, seconds: float) -> Search:
    exact = read_curved(network)
    return Search(exact, Judge(network, exact, 0), Limits(seconds, time.monotonic() + 600))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_what_the_checker_refuses_does_not_hold(
    activation: type[nn.Module], tmp_path: Path
) -> None:
    network, other = (curved((3, 6, 3), seed, activation) for seed in (4, 5))
    center = torch.rand(3, generator=torch.Generator().manual_seed(2))
    label = int(network.module(center[None]).argmax())
    property_ = Property.robustness(center, sample=0, label=label, eps=0.02, domain=(-10.0, 10.0))
    exact = read(network) if activation is nn.ReLU else read_curved(network)
    search = Search(exact, Judge(network, exact, 0), Limits(5.0, time.monotonic() + 600))
    settled = search.query(property_, None, 60.0)
    evidence = Evidence.of_module(tmp_path, network, time.monotonic() + 60)
    assert evidence.check("first", settled).verdict is Verdict.HOLDS
    (decided,) = settled.proof.args
    rows = Affine(-decided.asked.rows.weight, decided.asked.rows.bias)
    # As if the search had taken a row for positive that is the negative of one that is.
    wrong = replace(decided, asked=replace(decided.asked, rows=rows))
    refused = evidence.check("second", replace(settled, proof=partial(proof_of, wrong)))
    assert (refused.verdict, "refuses its proof" in refused.reason) == (Verdict.UNKNOWN, True)
    checked, size = evidence.metrics(setting_of(0.02, "search"))
    assert (checked.value, checked.reason[:16]) == (1, "1 of 2 without: ")
    assert (size.value or 0) > 0
    with zipfile.ZipFile(evidence.path) as archive:
        assert len(archive.namelist()) == 2
    # The file says another network, and none was folded into another.
    evidence = Evidence.of_module(tmp_path, other, time.monotonic() + 60)
    assert evidence.check("third", settled).verdict is Verdict.UNKNOWN
    assert "number by number" in evidence.metrics(setting_of(0.02, "search"))[0].reason


def normed() -> Network:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    norm(torch.randn(64, 4) * 3 + 1)
    return of(nn.Linear(3, 4), norm, nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (curved((3, 6, 3), 4, nn.ELU), "no proof is written of such a network: node 1 (Elu)"),
        (normed(), "does not say the network that was verified"),
    ],
    ids=["a curve without series", "a norm"],
)
def test_what_has_no_proof_holds_without_a_file(
    network: Network, reason: str, tmp_path: Path
) -> None:
    center = torch.rand(1, 3, generator=torch.Generator().manual_seed(2))
    outcome = Smt(eps=(0.001,)).run(
        network, bench_of(center, network.module(center).argmax(1), tmp_path)
    )
    assert row(outcome, "robustness", sample=0).verdict is Verdict.HOLDS
    checked = row(outcome, "proofs_checked")
    assert (checked.value, checked.reason[:16]) == (0, "1 of 1 without: ")
    assert reason in checked.reason


def test_an_error_of_float_rounding_of_a_curved_network_is_unknown(tmp_path: Path) -> None:
    # 2**24 + 1 is no float32: there the margin is 0, and exactly it is 1
    big = 2.0**24
    network = of(linear([[1.0]], [big]), nn.GELU(), linear([[1.0], [0.0]], [-big, 0.0]))
    outcome = Smt(eps=(0.0,)).run(
        network, bench_of(torch.tensor([[1.0]]), torch.tensor([0]), tmp_path)
    )
    about = row(outcome, "robustness", sample=0)
    assert (about.verdict, about.reason) == (Verdict.UNKNOWN, ROUNDING_ONLY)


def test_numbers_beyond_float64_end_a_query_and_not_the_run(tmp_path: Path) -> None:
    layers: list[nn.Module] = []
    for _ in range(9):
        layers += [linear([[3e38]], [0.0]), nn.GELU()]
    network = of(*layers, linear([[1.0], [0.5]], [0.0, 0.0]))
    stage = Smt(eps=(0.1,), query_time_limit=2.0)
    outcome = stage.run(network, bench_of(torch.tensor([[0.75]]), torch.tensor([0]), tmp_path))
    about, clock = (row(outcome, name, sample=0) for name in ("robustness", "query_seconds"))
    assert about.verdict in (Verdict.UNKNOWN, Verdict.UNSUPPORTED)
    assert about.reason
    assert clock.reason == f"censored: {about.reason}"
    assert (clock.value, row(outcome, "par2").value) == (2.0, 4.0)
    assert row(outcome, "undecided_fraction").value == 1.0


def test_the_count_of_nodes_ends_queries_alike() -> None:
    network = curved((4, 12, 12, 3), 3)
    center = torch.rand(4, generator=torch.Generator().manual_seed(5))
    label = int(network.module(center[None]).argmax())
    property_ = Property.robustness(center, sample=0, label=label, eps=0.2, domain=(-10.0, 10.0))
    search = curved_search(network, 0.1)
    first, second = (search.query(property_, None, 600.0) for _ in range(2))
    assert first == second
    assert (first.verdict, first.nodes) == (Verdict.TIMEOUT, 11)
    reached = (
        "11 nodes, the count for a query_time_limit of 0.1 s, reached with 24 unstable neurons; the"
        " margin is at"
    )
    assert first.reason.startswith(reached)


def test_no_query_begins_when_the_time_is_over(tmp_path: Path) -> None:
    place = replace(bench_of(CENTER, torch.tensor([0]), tmp_path), time_limit=1e-3)
    outcome = Smt(distance=True, query_time_limit=3.0).run(diagonal(), place)
    about = row(outcome, "robustness", sample=0)
    assert (about.verdict, about.reason) == (Verdict.TIMEOUT, JOB_ENDS)
    assert row(outcome, "par2").value == 6.0
    for name in (
        "unstable_neurons",
        "adversarial_distance",
        "adversarial_distance_upper",
        "distance_seconds",
    ):
        assert row(outcome, name).value is None
        assert row(outcome, name).reason


def test_proofs_that_are_late_are_told(tmp_path: Path) -> None:
    network = absolute(1.0, 0.0, 0.25)
    exact = read(network)
    search = Search(exact, Judge(network, exact, 0), Limits(5.0, time.monotonic() + 60))
    late = Evidence.of_module(tmp_path, network, time.monotonic())
    settled = search.settle(box([-1.0], [0.5]), None)
    assert late.check("late", settled) is settled
    assert (
        late.metrics(setting_of(0.75, "search"))[0].reason
        == "1 of 1 without: the job's time limit was near"
    )


def test_the_cost_of_what_is_undecided_counts_twice() -> None:
    exact = read(diagonal())
    search = Search(exact, Judge(diagonal(), exact, 0), Limits(5.0, time.monotonic() + 60))
    property_ = Property.robustness(CENTER[0], sample=0, label=0, eps=0.0625, domain=(0.0, 1.0))
    settled = search.settle(property_, None)
    given = [
        replace(settled, seconds=1.0),
        replace(settled, verdict=Verdict.VIOLATED, reason="falsifier", seconds=6.0),
        replace(settled, verdict=Verdict.TIMEOUT, reason="too slow", seconds=5.5, nodes=8),
        replace(settled, reason="search", seconds=2.0, nodes=4),
    ]
    found = Outcome(rows(range(4), given, 5.0, setting_of(0.0625, "search")))
    assert row(found, "par2").value == pytest.approx((1 + 5 + 10 + 2) / 4)
    assert row(found, "solve_time").value == pytest.approx(14.5 / 4)
    # A count of nodes ends the third question; the clock, or a refusal, still counts as the limit.
    given += [
        replace(settled, verdict=Verdict.TIMEOUT, reason=JOB_ENDS, seconds=0.0, clocked=True),
        replace(settled, verdict=Verdict.UNSUPPORTED, reason="no", seconds=0.0),
    ]
    counted = Outcome(rows(range(6), given, 50.0, setting_of(0.0625, "search"), counted=True))
    assert row(counted, "par2").value == pytest.approx((1 + 6 + 2 * 5.5 + 2 + 4 * 50) / 6)
    assert [row(counted, "query_seconds", sample=i).value for i in (2, 4, 5)] == [5.5, 50.0, 50.0]
    assert [row(found, "query_seconds", sample=i).value for i in range(4)] == [1.0, 5.0, 5.0, 2.0]
    assert [row(found, "query_seconds", sample=i).reason for i in (1, 2)] == [
        "",
        "censored: too slow",
    ]
    shares = (
        "verified_accuracy",
        "violated_fraction",
        "undecided_fraction",
        "bounds_accuracy",
        "exactness_gap",
    )
    assert [row(found, name).value for name in shares] == [0.5, 0.25, 0.25, 0.25, 0.25]
    assert row(found, "nodes").value == 3.0


def test_an_integer_network_is_compared_with_the_float_network_it_came_from(tmp_path: Path) -> None:
    path = written(tmp_path / "integer.onnx", (3, 6, 3), 0)
    inputs = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    place = bench_of(inputs, torch.tensor([0, 1, 2, 0]), tmp_path)
    seen = set()
    for given in range(3):
        always = nn.Linear(3, 3)
        with torch.no_grad():
            always.weight.zero_()
            always.bias.copy_(9.0 * torch.eye(3)[given])
        network = Network("n", nn.Sequential(always), (3,), 3, deployed=path, integer=path)
        outcome = Smt(steps=(0,), samples=4, same_class=True).run(network, place)
        read = read_integer_onnx(path)
        own = read.logits(read.input.integers(inputs.numpy())).argmax(1)
        about = [each for each in outcome.metrics if each.name == "same_class"]
        expected = [Verdict.HOLDS if label == given else Verdict.VIOLATED for label in own]
        assert [each.verdict for each in about] == expected
        seen |= set(expected)
        names = ("same_class_fraction", "other_class_fraction", "class_undecided_fraction")
        right = float((own == given).mean())
        assert [row(outcome, name).value for name in names] == [right, 1 - right, 0.0]
    assert seen == {Verdict.HOLDS, Verdict.VIOLATED}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "cvc5"},
            "method must be one of 'search', 'z3', 'marabou', 'portfolio', got 'cvc5'",
        ),
        (
            {"encoding": "big-m"},
            "encoding must be one of 'phase', 'or', 'if', 'phase-triangle', 'or-triangle', 'if-",
        ),
        ({"distance_tolerance": 0.0}, "distance_tolerance must be finite and > 0, got 0.0"),
        ({"distance_samples": 0}, "distance_samples must be >= 1, got 0"),
        ({"steps": ()}, "steps must name at least one radius"),
        ({"steps": (2, -1)}, "steps must be finite and >= 0, got -1"),
        ({"steps": (2, 2)}, "steps must not repeat a radius"),
        ({"integer_time_limit": 0.0}, "integer_time_limit must be > 0 and <= 20000 s, got 0.0"),
        ({"eps": ()}, "eps must name at least one radius, got ()"),
        ({"eps": (0.1, -0.5)}, "eps must be finite and >= 0, got -0.5"),
        ({"eps": (math.nan,)}, "eps must be finite and >= 0, got nan"),
        ({"eps": (0.1, 0.1)}, "eps must not repeat a radius"),
        ({"samples": 0}, "samples must be >= 1, got 0"),
        (
            {"query_time_limit": 30_000.0},
            "query_time_limit must be > 0 and <= 20000 s, got 30000.0",
        ),
        ({"query_time_limit": math.nan}, "got nan"),
        ({"max_neurons": 0}, "max_neurons must be >= 1, got 0"),
        ({"max_inputs": -1}, "max_inputs must be >= 1, got -1"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Smt(**options)  # type: ignore[arg-type]


# What the clock ended is marked: the rows that rest on it, and the line of a report that has one of
# these.
COUNTED = Limits(2.0, math.inf)


class Stopped(Method):
    """Every query ends without an answer, after so many nodes."""

    name, limits = "search", COUNTED

    def __init__(self, nodes: int | None, verdict: Verdict = Verdict.TIMEOUT) -> None:
        self._settled = Settled(verdict, "stopped", nodes=nodes)

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """See `Method`."""
        return self._settled


def settled(nodes: int | None, verdict: Verdict = Verdict.TIMEOUT) -> Settled:
    asked = Property.robustness(torch.zeros(2), sample=0, label=0, eps=0.1, domain=(0.0, 1.0))
    return Stopped(nodes, verdict).settle(asked, None)


@pytest.mark.parametrize(
    ("nodes", "verdict", "clocked"),
    [
        (COUNTED.nodes, Verdict.TIMEOUT, False),
        (COUNTED.nodes - 1, Verdict.TIMEOUT, True),
        (None, Verdict.TIMEOUT, True),
        (3, Verdict.HOLDS, False),
        (3, Verdict.UNKNOWN, False),
    ],
)
def test_rows_of_a_question_that_the_clock_ended_are_timing(
    nodes: int | None, verdict: Verdict, clocked: bool
) -> None:
    found = settled(nodes, verdict)
    assert found.clocked is clocked
    setting = setting_of(0.1, "search")
    metrics = {
        each.name: each
        for each in [
            *rows([0, 1], [found, settled(3, Verdict.HOLDS)], 2.0, setting),
            *effort([found], setting),
        ]
        if each.sample is None
    }
    depends = {
        "verified_accuracy",
        "violated_fraction",
        "undecided_fraction",
        "exactness_gap",
        "nodes",
        "solver_calls",
    }
    assert {name for name, each in metrics.items() if each.timing} == {
        "solve_time",
        "par2",
        *(depends if clocked else ()),
    }
    said = [each for each in rows([0], [found], 2.0, setting) if each.name == "robustness"]
    assert [each.timing for each in said] == [clocked]


@pytest.mark.parametrize("smooth", [False, True])
def test_budgets_are_nodes_and_a_curved_network_has_ten_times_as_many(
    smooth: bool, tmp_path: Path
) -> None:
    given = curved((4, 6, 3), 0) if smooth else chain([4, 6, 3], 0)
    bench = bench_of(torch.rand(1, 4), torch.tensor([0]), tmp_path)
    plain, budgeted = (
        method_for(Smt(nodes=nodes, query_time_limit=60.0), given, bench, math.inf)
        for nodes in (0, 3)
    )
    assert plain.nodes == plain.limits.nodes
    assert budgeted.nodes == (30 if smooth else 3)
    assert budgeted.undecided(budgeted.nodes, 5, None) == f"all {budgeted.nodes} nodes taken"
    assert budgeted.undecided(budgeted.nodes - 1, 5, None) == "query_time_limit of 60 s reached"
    with pytest.raises(ValueError, match="nodes must be >= 0, got -1"):
        Smt(nodes=-1)


def test_z3_is_asked_in_the_encoding_of_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def spied(*given: Any, encoding: str, **others: Any) -> Reply:
        asked.append(encoding)
        return Reply(End.OUT_OF_STEPS)

    monkeypatch.setattr("pipelines.smt.deciding.ask", spied)
    given, bench = chain([4, 6, 3], 0), bench_of(torch.rand(1, 4), torch.tensor([0]), tmp_path)
    method = method_for(
        Smt(method="z3", encoding="or-triangle", query_time_limit=60.0), given, bench, math.inf
    )
    method.settle(
        Property(0, 0, 3.0, torch.full((4,), -3.0).double(), torch.full((4,), 3.0).double()), None
    )
    assert asked == ["or-triangle"]


def test_a_line_is_timing_where_one_of_its_rows_is() -> None:
    """Else the seeds of a line would fall apart, and the rest of it would be judged."""
    place = {
        "workload": "w",
        "step": "smt",
        "stage": "smt",
        "metric": "verified_accuracy",
        "setting": "eps=0.1",
        "unit": "fraction",
        "direction": "higher",
        "sample": None,
        "status": "ok",
        "verdict": "",
        "reason": "",
    }
    values = {"gelu": (0.5, 0.51, 0.521), "relu": (0.9, 0.912, 0.922)}
    frame = pd.DataFrame(
        {
            **place,
            "variant": variant,
            "seed": seed,
            "value": value,
            "timing": (variant, seed) == ("gelu", 1),
        }
        for variant, every in values.items()
        for seed, value in enumerate(every)
    )
    found = comparison(frame, "gelu")
    assert [list(found[name]) for name in ("n", "timing", "better")] == [
        [3, 3],
        [True, True],
        ["", ""],
    ]
    assert list(comparison(frame.assign(timing=False), "gelu")["better"]) == ["", "better"]


@pytest.mark.slow
def test_curved_digits(network: Callable[..., Network], bench: Callable[..., Bench]) -> None:
    trained, place = network("digits-mlp", "gelu"), bench("digits-mlp")
    outcome = Smt(eps=(0.015625,), samples=6).run(trained, place)
    assert (row(outcome, "verified_accuracy").value or 0) > 0.5
    assert row(outcome, "proofs_checked").value == sum(
        each.verdict is Verdict.HOLDS for each in outcome.metrics
    )
    with pytest.raises(Unsupported, match="64 neurons; max_neurons is 63"):
        Smt(max_neurons=63).run(trained, place)


@pytest.mark.timeout(120)
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"samples": 2},
        {"method": "z3", "distance": True, "distance_samples": 1, "distance_tolerance": 0.1},
    ],
)
def test_conformance(options: dict[str, Any]) -> None:
    # Long enough that no query ends by the clock: such rows would differ from run to run.
    check_stage(Smt(**{"eps": (0.01, 0.05), "samples": 1, "query_time_limit": 20.0, **options}))
