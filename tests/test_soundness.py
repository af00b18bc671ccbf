"""`python -m benchmarks.soundness` notices bounds that exclude a point, and engines that
contradict each other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import soundness
from benchmarks.graph_lirpa import GraphEngine
from evalsuite.verification.subjects import subjects
from netverify.propagation import LowerBounds, Propagation
from pipelines.bounds.margins import rows_of


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_bounds_that_are_too_narrow_are_noticed(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = soundness.OfGraph.lower_bounds

    def narrowed(
        self: soundness.OfGraph, rows: torch.Tensor, value: int | None = None
    ) -> LowerBounds:
        found = right(self, rows, value)
        if value is not None:
            return found
        width = -right(self, -rows).value - found.value
        return replace(found, value=found.value + share * width)

    monkeypatch.setattr(soundness.OfGraph, "lower_bounds", narrowed)
    tally = soundness.tried("hand-written", 1000)
    assert tally.points >= 1000
    # The stage looks for such points itself, and gives no bounds then.
    own = set[str]() if share else {"crown", "alpha-crown"}
    assert set(tally.methods) == {"graph-ibp", "graph-crown", "ibp"} | own
    assert ("crown" in tally.refusals) == bool(share)
    assert bool(tally.violations) == bool(share)
    assert not tally.contradictions or share


@pytest.mark.slow
def test_what_auto_lirpa_cannot_convert_it_bounds_by_the_graph() -> None:
    tally = soundness.tried("vit", 1000)
    assert tally.refusals.keys() & {"auto_LiRPA", "float32"}
    assert {"ibp of the graph", "crown of the graph"} < set(tally.methods)
    assert (tally.violations, tally.contradictions) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "resnet", "unet"])
def test_auto_lirpa_carries_the_bounds_of_a_graph_as_the_own_engine_does(
    name: str, tmp_path: Path
) -> None:
    asked = subjects(*soundness.network_of(name, tmp_path), 1)[0]
    graph, properties = asked.graph(), asked.properties(2.0**-10)
    rows = rows_of(properties, graph.outputs)
    lower, upper = (
        torch.stack([getattr(each, end).flatten() for each in properties])
        for end in ("lower", "upper")
    )
    own = Propagation(graph, lower, upper)
    ends = [
        torch.stack([own.lower_bounds(sign * row).value[at] for at, row in enumerate(rows)])
        for sign in (1, -1)
    ]
    share = torch.rand(
        2000, 1, graph.inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).round()
    values = torch.stack([graph(point) for point in lower + share * (upper - lower)])
    reached = torch.einsum("brc,pbc->pbr", rows, values)
    for method, low, high in GraphEngine(graph).bounds(properties, rows):
        assert bool((low <= reached.amin(0) + 1e-9).all())
        assert bool((high >= reached.amax(0) - 1e-9).all())
        if method == "crown":
            assert ((high - low).mean() / (-ends[1] - ends[0]).mean()).item() == pytest.approx(
                1, abs=0.05
            )
