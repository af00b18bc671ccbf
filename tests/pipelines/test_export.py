"""`export`: the file, its operators, and agreement with torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from conftest import MakeBench, MakeNetwork
from torch import nn
from written import Written, bench_of

from evalsuite import (
    Direction,
    LambdaGELU,
    Network,
    Outcome,
    Split,
    Unsupported,
    export_onnx,
    open_onnx,
)
from evalsuite.samples import Several
from evalsuite.tasks import LanguageModel, Regression
from evalsuite.testing import check_stage
from opgraph import run_onnx
from pipelines.export_onnx import Export


def values(outcome: Outcome) -> dict[str, float | None]:
    return {metric.name: metric.value for metric in outcome.metrics if not metric.setting}


@pytest.mark.parametrize(
    ("variant", "gelus", "yardstick", "reason"),
    [
        ("gelu", 2, "gelu", "this network has gelu in each place"),
        (
            "lambda-gelu",
            2,
            "silu",
            "over that of this network with silu in each activation's place",
        ),
        ("annealed", 0, "gelu", "over that of this network with gelu in each activation's place"),
    ],
)
def test_mlp(
    network: MakeNetwork, bench: MakeBench, variant: str, gelus: int, yardstick: str, reason: str
) -> None:
    trained, there = network("digits-mlp", variant), bench("digits-mlp")
    outcome = Export(yardstick).run(trained, there)
    found = values(outcome)
    assert found["opset"] == 20
    assert found["gelu_nodes"] == gelus
    assert found["graph_nodes"] == 5  # three Gemm, two activations
    assert found["argmax_agreement"] == 1.0
    path = outcome.artefacts["onnx"]
    assert found["model_bytes"] == path.stat().st_size
    # Read back by itself, the file computes what the network handed in computes, but for the
    # difference that is told.
    inputs = there.data.test.inputs
    with torch.no_grad():
        differences = run_onnx(open_onnx(path), inputs).double() - trained.module(inputs).double()
    assert found["max_abs_difference"] == differences.abs().max().item() < 1e-4
    # The latency, alone and against another activation, whose file is no artefact.
    for name, unit in (("latency", "s"), ("relative_latency", "ratio")):
        rows = [each for each in outcome.metrics if each.name == name]
        assert [dict(each.setting) for each in rows] == [{"batch": 1}, {"batch": 64}]
        assert all(
            each.timing and each.value > 0 and each.direction is Direction.LOWER for each in rows
        )
        assert {each.unit for each in rows} == {unit}
    assert all(each.reason.startswith(reason) for each in rows)
    assert [each.name for each in path.parent.iterdir()] == ["model.onnx"]


def test_the_test_data_are_run_in_batches(bench: MakeBench, tmp_path: Path) -> None:
    def mute(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        assert len(x) <= 256
        return torch.zeros_like(x[:, :10])

    # Says in every logit how many samples it was given at once.
    size = Written(lambda _, x: torch.zeros_like(x[:, :10]) + x.shape[0])
    there = bench("digits-mlp")
    assert len(there.data.test) > 256
    export_onnx(size, (64,), tmp_path / "size.onnx")
    file = Network("size", Written(mute).eval(), (64,), 10, deployed=tmp_path / "size.onnx")
    assert values(Export().run(file, there))["max_abs_difference"] == 256


def test_targets_of_padding_count_in_no_accuracy(network: MakeNetwork, bench: MakeBench) -> None:
    trained, there = network("digits-mlp", "gelu"), bench("digits-mlp")
    inputs, targets = there.data.test.inputs, there.data.test.targets.clone()
    targets[::2] = -100
    wanted = Split(inputs[1::2], targets[1::2]).accuracy(trained.module(inputs[1::2]).argmax(1))
    padded = replace(there, data=replace(there.data, test=Split(inputs, targets)))
    assert values(Export().run(trained, padded))["runtime_accuracy"] == wanted > 0.8


def test_a_regression_of_several_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    left, right = torch.randn(300, 2), torch.randn(300, 2)
    pair = Written(lambda _, inputs: nn.functional.gelu(inputs["left"] + 2 * inputs["right"]))
    targets = pair({"left": left, "right": right}) + 0.5
    part = Split(Several({"left": left, "right": right}), targets, Regression(unit="m"))
    there = bench_of(part, 2, tmp_path, domain=(-9.0, 9.0))
    outcome = Export().run(Network("pair", pair, (2,), 2, given=there.data.example), there)
    found = values(outcome)
    assert found["runtime_rmse"] == pytest.approx(0.5, abs=1e-6)
    assert 0 <= found["max_abs_difference"] < 1e-5
    assert not {"argmax_agreement", "runtime_accuracy"} & set(found)
    assert [each.name for each in onnx.load(str(outcome.artefacts["onnx"])).graph.input] == [
        "left",
        "right",
    ]


def test_a_language_model_has_bits_and_accuracy(tmp_path: Path) -> None:
    unigram = Written(lambda net, tokens: net.table(tokens), table=nn.Embedding(4, 4))
    part = Split(torch.randint(4, (70, 3)), torch.randint(4, (70, 3)), LanguageModel())
    there = bench_of(part, 4, tmp_path, domain=(0.0, 3.0), vocabulary=4)
    found = values(Export().run(Network("unigram", unigram, (3,), 4, vocabulary=4), there))
    assert found["argmax_agreement"] == 1.0
    assert {"runtime_accuracy", "runtime_bits_per_token"} <= set(found)


def test_a_file_has_no_other_activation_to_be_compared_with(
    network: MakeNetwork, bench: MakeBench, tmp_path: Path
) -> None:
    trained, there = network("digits-mlp", "relu"), bench("digits-mlp")
    path = Export().run(trained, there).artefacts["onnx"]
    outcome = Export().run(replace(trained, deployed=path), replace(there, folder=tmp_path))
    rows = [each for each in outcome.metrics if each.name == "relative_latency"]
    assert [(each.value, each.reason) for each in rows] == [
        (None, "an ONNX file has no layers in which another activation could be put")
    ] * 2


def test_an_unknown_yardstick_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"yardstick must be the name of an activation, got 'gelo'; did you mean"
    ):
        Export("gelo")


@pytest.mark.slow
def test_the_file_says_nothing_of_the_installation(network: MakeNetwork, bench: MakeBench) -> None:
    path = (
        Export().run(network("digits-cnn", "gelu", epochs=2), bench("digits-cnn")).artefacts["onnx"]
    )
    content = path.read_bytes()
    assert b"site-packages" not in content
    assert b"stack_trace" not in content
    onnx.checker.check_model(onnx.load(str(path)), full_check=True)


@pytest.mark.slow
def test_what_the_exporter_refuses_is_unsupported_in_one_line(bench: MakeBench) -> None:
    cumulative = Written(lambda _, x: torch.cumprod(x[:, :10], dim=1)).eval()
    with pytest.raises(Unsupported, match=r"cannot be exported to ONNX: .*prims.prod") as caught:
        Export().run(Network("cumulative", cumulative, (64,), 10), bench("digits-mlp"))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_lambda_that_cannot_be_folded_still_exports(bench: MakeBench) -> None:
    def block(net: Any, x: torch.Tensor) -> torch.Tensor:
        before = net.hidden(x)  # used twice: lambda has no place to go
        return net.head(net.activation(before) + before)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    layers = {
        "hidden": nn.Linear(64, 8),
        "activation": LambdaGELU(8, hardness=3.0),
        "head": nn.Linear(8, 10),
    }
    found = values(
        Export().run(
            Network("block", Written(block, **layers).eval(), (64,), 10), bench("digits-mlp")
        )
    )
    assert found["max_abs_difference"] < 1e-5
    assert found["gelu_nodes"] == 1
    assert found["graph_nodes"] > 3


@pytest.mark.slow
def test_conformance() -> None:
    assert "artefacts" in check_stage(Export())
