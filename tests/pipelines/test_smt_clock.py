"""What the clock ended is marked: the rows that rest on it, and the line of a report that has one of these."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from evalsuite import Property, Verdict
from evalsuite.report.tables import comparison
from pipelines.smt import Smt
from pipelines.smt.methods import Limits, Method, Settled, method_for
from pipelines.smt.rows import effort, rows, setting_of
from pipelines.smt.solvers import End, Reply
from tests.pipelines.test_smt import bench_of
from tests.pipelines.test_smt_search_cases import chain
from tests.pipelines.test_smt_stage import curved

LIMITS = Limits(2.0, math.inf)


class Stopped(Method):
    """Every query ends without an answer, after so many nodes."""

    name, limits = "search", LIMITS

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
    [(LIMITS.nodes, Verdict.TIMEOUT, False), (LIMITS.nodes - 1, Verdict.TIMEOUT, True), (None, Verdict.TIMEOUT, True),
     (3, Verdict.HOLDS, False), (3, Verdict.UNKNOWN, False)],
)  # fmt: skip
def test_rows_of_a_question_that_the_clock_ended_are_timing(nodes: int | None, verdict: Verdict, clocked: bool) -> None:
    found = settled(nodes, verdict)
    assert found.clocked is clocked
    setting = setting_of(0.1, "search")
    metrics = {each.name: each for each in [*rows([0, 1], [found, settled(3, Verdict.HOLDS)], 2.0, setting),
                                            *effort([found], setting)] if each.sample is None}  # fmt: skip
    depends = {"verified_accuracy", "violated_fraction", "undecided_fraction", "exactness_gap", "nodes", "solver_calls"}
    assert {name for name, each in metrics.items() if each.timing} == {
        "solve_time",
        "par2",
        *(depends if clocked else ()),
    }
    said = [each for each in rows([0], [found], 2.0, setting) if each.name == "robustness"]
    assert [each.timing for each in said] == [clocked]


@pytest.mark.parametrize("smooth", [False, True])
def test_budgets_are_nodes_and_a_curved_network_has_ten_times_as_many(smooth: bool, tmp_path: Path) -> None:
    given = curved((4, 6, 3), 0) if smooth else chain([4, 6, 3], 0)
    bench = bench_of(torch.rand(1, 4), torch.tensor([0]), tmp_path)
    plain, budgeted = (method_for(Smt(nodes=nodes, query_time_limit=60.0), given, bench, math.inf) for nodes in (0, 3))
    assert plain.nodes == plain.limits.nodes
    assert budgeted.nodes == (30 if smooth else 3)
    assert budgeted.undecided(budgeted.nodes, 5, None) == f"all {budgeted.nodes} nodes taken"
    assert budgeted.undecided(budgeted.nodes - 1, 5, None) == "query_time_limit of 60 s reached"
    with pytest.raises(ValueError, match="nodes must be >= 0, got -1"):
        Smt(nodes=-1)


def test_z3_is_asked_in_the_encoding_of_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spied(*given: Any, encoding: str, **others: Any) -> Reply:
        asked.append(encoding)
        return Reply(End.OUT_OF_STEPS)

    monkeypatch.setattr("pipelines.smt.deciding.ask", spied)
    given, bench = chain([4, 6, 3], 0), bench_of(torch.rand(1, 4), torch.tensor([0]), tmp_path)
    method = method_for(Smt(method="z3", encoding="or-triangle", query_time_limit=60.0), given, bench, math.inf)
    method.settle(Property(0, 0, 3.0, torch.full((4,), -3.0).double(), torch.full((4,), 3.0).double()), None)
    assert asked == ["or-triangle"]


def test_a_line_is_timing_where_one_of_its_rows_is() -> None:
    """Else the seeds of a line would fall apart, and the rest of it would be judged."""
    clocked = ("gelu", 1)
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
    lines = [
        {**place, "variant": variant, "seed": seed, "value": value + 0.01 * seed, "timing": (variant, seed) == clocked}
        for variant, value in (("gelu", 0.5), ("relu", 0.9))
        for seed in range(3)
    ]
    frame = pd.DataFrame([{**each, "value": each["value"] + 0.001 * (each["seed"] == 2)} for each in lines])
    frame.loc[frame["variant"] == "relu", "value"] += [0.0, 0.002, 0.001]
    found = comparison(frame, "gelu")
    assert list(found["n"]) == [3, 3]
    assert list(found["timing"]) == [True, True]
    assert list(found["better"]) == ["", ""]
    plain = comparison(frame.assign(timing=False), "gelu")
    assert list(plain["better"]) == ["", "better"]
