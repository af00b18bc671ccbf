"""`python -m benchmarks.soundness` notices bounds that exclude a point, and engines that contradict each other."""

from __future__ import annotations

import pytest
import torch

from benchmarks import soundness
from evalsuite.verification.propagation import LowerBounds


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_bounds_that_are_too_narrow_are_noticed(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = soundness.OfGraph.lower_bounds

    def narrowed(self: soundness.OfGraph, rows: torch.Tensor, value: int | None = None) -> LowerBounds:
        found = right(self, rows, value)
        if value is not None:
            return found
        return LowerBounds(found.value - share * (found.value + right(self, -rows).value), found.coefficients)

    monkeypatch.setattr(soundness.OfGraph, "lower_bounds", narrowed)
    tally = soundness.tried("hand-written", 1000)
    assert tally.points >= 1000
    assert set(tally.methods) == {"graph-ibp", "graph-crown", "ibp", "crown", "alpha-crown"}
    assert bool(tally.violations) == bool(share)
    assert not tally.contradictions or share
