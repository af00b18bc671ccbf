"""Latency beside a yardstick: what is put in place, which way the ratio goes, and what the rows
say.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from written import Written

from evalsuite import Direction, LambdaGELU, Split, census, export_onnx, latency, open_onnx
from evalsuite.yardstick import (
    no_relative_latency,
    relative_latency,
    timing_inputs,
    with_yardstick,
    yardstick_graph,
    yardstick_reason,
)
from lambda_gelu.activations.census import let_stay
from opgraph import run_onnx


def chain(activation: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), activation, nn.Linear(20, 3)).eval()


def split(samples: int = 10) -> Split:
    return Split(
        torch.arange(6.0 * samples).reshape(samples, 6), torch.zeros(samples, dtype=torch.int64)
    )


def test_the_ratio_is_own_over_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that says what the calls take: 3 s and 4 s a sample."""
    now = 0.0
    monkeypatch.setattr(latency.time, "perf_counter", lambda: now)

    def takes(seconds: float) -> object:
        def run(inputs: torch.Tensor) -> None:
            nonlocal now
            now += seconds * len(inputs)

        return run

    for batch in (1, 64):
        found = relative_latency(
            takes(3.0), takes(4.0), split(), batch, reason="why", setting={"precision": "int8"}
        )
        assert found.value == pytest.approx(0.75)
        assert dict(found.setting) == {"precision": "int8", "batch": batch}
        assert (found.name, found.unit, found.direction) == (
            "relative_latency",
            "ratio",
            Direction.LOWER,
        )
        assert found.timing
        assert found.reason == "why"


def test_few_test_inputs_are_repeated() -> None:
    assert torch.equal(timing_inputs(split(10), 64), split(10).inputs[[i % 10 for i in range(64)]])
    assert timing_inputs(split(10), 1).shape == (1, 6)


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.SiLU(), LambdaGELU(1, hardness=3.0)],
    ids=lambda a: type(a).__name__,
)
def test_the_yardstick_is_the_same_network_with_the_activation_in_each_place(
    activation: nn.Module, tmp_path: Path
) -> None:
    module = chain(activation)
    other = with_yardstick(module, "gelu")
    assert [each.traits.name for each in census(other)] == ["gelu"]
    inputs = torch.randn(5, 6)
    expected = nn.Sequential(module[0], nn.GELU(), module[2])(inputs)
    torch.testing.assert_close(other(inputs), expected)
    assert [
        node.op_type for node in export_onnx(other, (6,), tmp_path / "other.onnx").graph.node
    ].count("Gelu") == 1
    assert type(module[1]) is type(activation)  # a copy was changed
    assert "over that of this network with gelu" in yardstick_reason(module, other, "gelu")


@pytest.mark.parametrize(("activation", "name"), [(nn.ReLU(), "gelu"), (nn.GELU(), "relu")])
def test_a_graph_of_relu_or_gelu_is_the_yardsticks_with_its_nodes_renamed(
    activation: nn.Module, name: str, tmp_path: Path
) -> None:
    module = chain(activation)
    written = export_onnx(module, (6,), tmp_path / "own.onnx")
    graph = yardstick_graph(written, module, name)
    exported = export_onnx(with_yardstick(module, name), (6,), tmp_path / "other.onnx")
    assert [each.op_type for each in graph.graph.node] == [
        each.op_type for each in exported.graph.node
    ]
    inputs = torch.randn(5, 6)
    found = run_onnx(open_onnx(graph.SerializeToString()), inputs)
    torch.testing.assert_close(found, with_yardstick(module, name)(inputs), rtol=1e-5, atol=1e-6)


def test_a_graph_whose_nodes_do_not_tell_the_activations_is_not_renamed(tmp_path: Path) -> None:
    twice = Written(
        lambda net, x: net.act(torch.relu(net.layer(x)) - 1), layer=nn.Linear(6, 6), act=nn.ReLU()
    )
    staying = chain(nn.ReLU())
    let_stay(staying[1])
    for module, name in (
        (chain(nn.SiLU()), "gelu"),
        (chain(nn.ReLU()), "silu"),
        (twice, "gelu"),
        (staying, "gelu"),
    ):
        assert (
            yardstick_graph(export_onnx(module, (6,), tmp_path / "own.onnx"), module, name) is None
        )


def test_a_network_that_has_it_already_is_its_own_yardstick_and_one_without_any_has_none() -> None:
    with pytest.raises(ValueError, match="no GELU-like activation found in Linear"):
        with_yardstick(nn.Linear(3, 3), "gelu")
    module = chain(nn.GELU())
    assert with_yardstick(module, "gelu") is module
    assert yardstick_reason(module, module, "gelu").startswith(
        "this network has gelu in each place"
    )


def test_rows_without_a_value_have_the_same_places() -> None:
    rows = no_relative_latency("why", {"precision": "int8"})
    assert [(each.value, each.setting["batch"], each.timing, each.reason) for each in rows] == [
        (None, 1, True, "why"),
        (None, 64, True, "why"),
    ]
