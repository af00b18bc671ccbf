"""What a stage gives: times are taken when metrics are read first, by copies too, and in their place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evalsuite import Direction, Metric, Outcome


def metric(name: str) -> Metric:
    return Metric(name, 1.0, "count", Direction.HIGHER)


def test_times_are_taken_once_and_when_metrics_are_read() -> None:
    taken = []

    def times() -> list[Metric]:
        taken.append("now")
        return [metric("one"), metric("two")]

    outcome = Outcome([metric("first"), times, metric("last")])
    copied = replace(outcome, artefacts={"file": Path("file")})
    assert (outcome.timed, copied.timed, taken) == (True, True, [])
    for each in (outcome, copied):
        assert [found.name for found in each.metrics] == ["first", "one", "two", "last"]
        assert each.metrics is each.metrics
    assert (outcome.timed, copied.timed, taken) == (False, False, ["now", "now"])


def test_metrics_are_any_iterable_by_place_or_by_name() -> None:
    given = Outcome(metrics=(metric(name) for name in ("a", "b")))
    assert ([each.name for each in given.metrics], given.timed, given.network) == (["a", "b"], False, None)
    assert [each.name for each in replace(given, metrics=[metric("c")]).metrics] == ["c"]
    assert given == Outcome([metric("a"), metric("b")])


def test_what_is_no_metric_is_named() -> None:
    with pytest.raises(TypeError, match="metrics are a list of `Metric`, or of functions that take times, got 'a' in"):
        _ = Outcome({"a": 1.0}).metrics  # type: ignore[arg-type]
