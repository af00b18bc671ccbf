"""Clock readings: intervals of medians, what disturbs them, and that equal graphs take equally
long.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import onnx
import pandas as pd
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from evalsuite import Direction, Metric, Split, export_onnx, latency
from evalsuite.contract import Reading
from evalsuite.latency import Latency, compare_latency, median_interval, steady_latency
from evalsuite.report.clocks import without_contradictions
from evalsuite.results import Origin, read_results, row_of, write_parquet
from evalsuite.yardstick import relative_latency
from opgraph import graph_digest

JOB = {
    "workload": "digits",
    "variant": "relu",
    "seed": 0,
    "step": "export",
    "stage": "export",
    "key": "k",
}


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noisy readings have no value, as in a user's run; the other tests keep them."""
    monkeypatch.delenv("EVALSUITE_NOISY_TIMES", raising=False)


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[..., None]]:
    """Makes calls that take given seconds in turn, by a clock that only they move."""
    now = 0.0
    monkeypatch.setattr(latency.time, "perf_counter", lambda: now)

    def make(*seconds: float) -> Callable[..., None]:
        every: Iterator[float] = cycle(seconds)

        def call(*_: object) -> None:
            nonlocal now
            now += next(every)

        return call

    return make


def test_the_interval_of_a_median_covers_it_and_is_the_narrowest_of_its_kind() -> None:
    """By the binomial distribution, summed here in exact integers."""
    for count in (6, 7, 10, 30, 101, 400):
        low, high = median_interval([float(place) for place in range(1, count + 1)])
        assert low + high == count + 1

        def covered(k: int, count: int = count) -> float:
            return 1 - 2 * sum(math.comb(count, i) for i in range(k)) / 2**count

        assert covered(int(low)) >= 0.95 > covered(int(low) + 1)
    with pytest.raises(ValueError, match="no interval of the median of 5 values"):
        median_interval([1.0] * 5)


def test_medians_ratios_and_intervals_are_of_the_timings(
    takes: Callable[..., Callable[..., None]],
) -> None:
    found = compare_latency(takes(3.0), takes(4.0), pairs=8, seconds=1000)
    assert (found.first, found.second, found.ratio, found.pairs) == (3, 4, 0.75, 8)
    assert found.intervals == {"first": (3, 3), "second": (4, 4), "ratio": (0.75, 0.75)}
    assert found.noise("ratio") == ""


def test_a_scattered_reading_has_no_value_but_its_reason_and_its_interval(
    takes: Callable[..., Callable[..., None]], strict: None
) -> None:
    found = steady_latency(takes(1.0, 1.0, 2.0, 1.5, 1.0), takes(1.0), patience=50)
    metric = found.metric(
        "ratio", "relative_latency", Direction.LOWER, {"batch": 1}, reason="over gelu"
    )
    assert metric.value is None
    assert metric.reason.startswith(
        "not measured: noisy: its 95 % interval, 1 to 1.5, is wider than ± 5 %"
    )
    assert metric.reason.endswith("over gelu")
    assert metric.reading is not None
    assert (metric.reading.low, metric.reading.high) == (1.0, 1.5)
    assert found.noise("second") == ""
    assert found.metric("second", "latency", Direction.LOWER, {}).value == 1.0


def test_rounds_go_on_until_the_wanted_numbers_are_narrow(
    takes: Callable[..., Callable[..., None]],
    strict: None,
) -> None:
    """Three warm-up calls and one that counts repetitions, then a first round of six pairs that
    are scattered.
    """
    scattered = [1.0] * 4 + [1.0, 3.0, 1.0, 3.0, 1.0, 3.0]
    assert steady_latency(takes(*scattered, *[1.0] * 200), takes(1.0), patience=1000).pairs > 6
    assert (
        steady_latency(takes(*scattered, *[1.0] * 200), takes(1.0), "second", patience=1000).pairs
        == 6
    )


@pytest.mark.parametrize(
    ("loads", "load", "pairs", "noise"),
    [
        ((0.2, 0.4), 0.3, 12, ""),
        ((0.2, 1.8), 0.2, 6, ""),  # the disturbed round is dropped
        ((1.0,), 1.0, 6, ""),
        ((1.3, 1.7), 1.5, 12, "other work took 1.5 processors beside it"),
    ],
)
def test_nothing_is_read_beside_more_than_one_busy_processor(
    loads: tuple[float, ...], load: float, pairs: int, noise: str
) -> None:
    found = latency._summarize([latency._Round([(1.0, 2.0)] * 6, each) for each in loads])
    assert (found.load, found.pairs) == (pytest.approx(load), pairs)
    assert [found.noise(part) for part in ("first", "second", "ratio")] == [noise] * 3


def test_beside_work_that_goes_on_a_reading_gives_up_after_one_round(
    takes: Callable[..., Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pairs(load: float) -> int:
        monkeypatch.setattr(latency._OtherWork, "load", lambda _: load)
        return steady_latency(takes(1.0), takes(1.0), patience=40).pairs

    # Where noisy readings are kept, none waits for a quiet moment.
    latency._disturbed.set(False)
    monkeypatch.setenv("EVALSUITE_NOISY_TIMES", "keep")
    assert pairs(2.0) == 6
    monkeypatch.delenv("EVALSUITE_NOISY_TIMES")
    latency._disturbed.set(False)
    whole = pairs(2.0)
    assert whole > 6
    assert pairs(2.0) == 6
    # As soon as a round is quiet, readings are whole again.
    assert pairs(0.0) == 6
    assert pairs(2.0) == whole
    latency._disturbed.set(False)


def test_brief_rounds_are_short_and_keep_what_is_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALSUITE_NOISY_TIMES", "brief")
    assert latency._round_seconds() < latency._ROUND
    assert latency._keeps()
    monkeypatch.delenv("EVALSUITE_NOISY_TIMES")
    assert latency._round_seconds() == latency._ROUND


def test_the_work_of_other_processes_is_seen() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        beside = latency._OtherWork()
        time.sleep(0.5)
        assert beside.load() > 0.4
    finally:
        busy.kill()
        busy.wait()


def export(module: nn.Module, path: Path) -> onnx.ModelProto:
    return export_onnx(module.eval(), (1, 8, 8), path / "net.onnx")


def network(activation: nn.Module, channels: int = 4, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, channels, 3), activation, nn.Flatten(), nn.Linear(36 * channels, 3)
    )


def test_graphs_are_equal_but_for_weights(tmp_path: Path) -> None:
    digests = {
        label: graph_digest(export(module, tmp_path))
        for label, module in {
            "relu": network(nn.ReLU()),
            "other weights": network(nn.ReLU(), seed=1),
            "gelu": network(nn.GELU()),
            "wider": network(nn.ReLU(), channels=5),
        }.items()
    }
    assert digests["relu"] == digests["other weights"]
    assert len({digests[label] for label in ("relu", "gelu", "wider")}) == 3


def quantizer(zero_point: int, scale: float, name: str = "q") -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, [2]) for each in ("x", "y"))
    constants = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [scale]),
        helper.make_tensor("z", TensorProto.UINT8, [], [zero_point]),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], [name]),
        helper.make_node("DequantizeLinear", [name, "s", "z"], ["y"]),
    ]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants))


def test_a_zero_point_decides_what_is_executed_and_a_scale_or_a_name_does_not() -> None:
    """Where the zero point is the least integer, ONNX Runtime leaves a ReLU out."""
    assert graph_digest(quantizer(0, 0.5)) == graph_digest(quantizer(0, 0.25, "other"))
    assert graph_digest(quantizer(0, 0.5)) != graph_digest(quantizer(128, 0.5))


@pytest.mark.parametrize(
    ("seconds", "graphs", "measured"),
    [
        (1.5, ("same", "same"), False),
        (1.01, ("same", "same"), True),
        (1.5, ("one", "other"), True),
        (1.5, ("", ""), True),
    ],
)
def test_two_equal_graphs_that_differ_are_noise(
    seconds: float,
    graphs: tuple[str, str],
    measured: bool,
    takes: Callable[..., Callable[..., None]],
    strict: None,
) -> None:
    part = Split(torch.rand(3, 2), torch.arange(3))
    found = relative_latency(takes(seconds), takes(1.0), part, 1, reason="over gelu", graphs=graphs)
    assert (found.value is not None) == measured
    assert ("two equal graphs, and the clock says 1.5" in found.reason) == (not measured)
    assert found.reading is not None
    assert found.reading.graph == ("/".join(graphs) if graphs[0] else "")


def readings(*values: float, graph: str = "g", half: float = 0.01) -> pd.DataFrame:
    rows = []
    for place, value in enumerate(values):
        metric = Metric(
            "relative_latency",
            value,
            "ratio",
            Direction.LOWER,
            {"batch": 1},
            timing=True,
            reading=Reading(value - half, value + half, 30, 0.1, graph),
        )
        rows.append(vars_of(row_of(metric, {**JOB, "variant": f"v{place}"})))
    return pd.DataFrame(rows).assign(host="here")


def vars_of(row: object) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (
            (0.091, 1.026, 0.979),
            # As one report had them: -51, -4 and -7 points.
            (False, True, True),
        ),
        ((1.0, 1.01, 1.02), (True, True, True)),
        ((1.0, 1.4), (False, False)),
        ((1.0, 1.0, 1.0, 1.4, 0.6), (True, True, True, False, False)),
        ((0.7,), (True,)),
    ],
)
def test_readings_of_equal_graphs_that_contradict_each_other_have_no_value(
    values: tuple[float, ...], kept: tuple[bool, ...]
) -> None:
    frame = readings(*values)
    found = without_contradictions(frame)
    assert tuple(found["value"].notna()) == kept
    lost = found[~found["value"].notna()]
    assert lost["status"].eq("unavailable").all()
    assert lost["reason"].str.startswith("not measured: noisy: it reads").all()
    assert frame["value"].notna().all()  # what was given stays


def test_only_readings_of_one_graph_on_one_machine_are_compared() -> None:
    apart = pd.concat([readings(1.0, graph="g"), readings(0.3, graph="h")], ignore_index=True)
    assert without_contradictions(apart)["value"].tolist() == [1.0, 0.3]
    elsewhere = readings(1.0, 0.3)
    elsewhere["host"] = ["here", "there"]
    assert without_contradictions(elsewhere)["value"].tolist() == [1.0, 0.3]
    unknown = readings(1.0, 0.3, graph="")
    assert without_contradictions(unknown) is unknown


def test_a_row_keeps_its_reading_in_the_file(tmp_path: Path) -> None:
    reading = Reading(0.9, 1.1, 60, 0.25, "one/other")
    metric = Metric("ratio", 1.0, "ratio", Direction.LOWER, timing=True, reading=reading)
    plain = Metric("accuracy", 0.5, "fraction", Direction.HIGHER)
    write_parquet(
        [(Origin(), [row_of(metric, JOB), row_of(plain, JOB)])], tmp_path / "results.parquet"
    )
    rows = read_results(tmp_path)
    columns = ["reading_low", "reading_high", "repetitions", "load", "graph"]
    assert rows.loc[0, columns].tolist() == [0.9, 1.1, 60, 0.25, "one/other"]
    assert rows.loc[1, columns[:-1]].isna().all()
    assert rows.loc[1, "graph"] == ""


def test_noisy_readings_are_kept_where_the_machine_is_never_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = Latency(1.0, 1.0, 1.0, {"first": (0.5, 2.0), "second": (1, 1), "ratio": (1, 1)}, 30, 0.0)
    monkeypatch.setenv("EVALSUITE_NOISY_TIMES", "keep")
    metric = wide.metric("first", "latency", Direction.LOWER, {})
    assert metric.value == 1.0
    assert metric.reason.startswith("noisy: ")
