"""Stages on networks that are ONNX files: of torch, and of another tool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from conftest import MakeBench, MakeNetwork
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from written import Written, bench_of

from evalsuite import Network, Outcome, Split, Unsupported, export_onnx
from evalsuite.plugins import load
from evalsuite.run.child import check_takes
from evalsuite.tasks import Regression
from opgraph.onnx_network import OnnxNetwork
from pipelines.accuracy import Accuracy
from pipelines.bounds import Bounds
from pipelines.export_onnx import Export
from pipelines.quantize import Quantize
from pipelines.smt import Smt


def values(outcome: Outcome, **setting: object) -> dict[str, float | None]:
    found = [each for each in outcome.metrics if each.sample is None]
    return {
        each.name: each.value for each in found if setting.items() <= dict(each.setting).items()
    }


def verdicts(outcome: Outcome) -> dict[tuple[object, ...], str]:
    rows = [each for each in outcome.metrics if each.verdict is not None]
    return {
        (each.setting["eps"], each.setting["method"], each.sample): each.verdict.value
        for each in rows
    }


@pytest.fixture
def file(network: MakeNetwork, bench: MakeBench, tmp_path: Path) -> Network:
    """The iris network, after its swap to ReLU, as a file alone."""
    trained = network("iris-mlp", "annealed")
    export_onnx(trained.module, trained.input_shape, tmp_path / "net.onnx")
    module = OnnxNetwork(tmp_path / "net.onnx")
    return Network(
        "net.onnx", module, trained.input_shape, trained.classes, deployed=tmp_path / "net.onnx"
    )


def test_accuracy_and_export_are_those_of_the_module(
    file: Network, network: MakeNetwork, bench: MakeBench
) -> None:
    trained, there = network("iris-mlp", "annealed"), bench("iris-mlp")
    found, expected = (values(Accuracy().run(each, there)) for each in (file, trained))
    assert found["accuracy"] == expected["accuracy"]
    assert found["nll"] == pytest.approx(expected["nll"])
    assert found["parameters"] == expected["parameters"]
    assert found["dead_units"] is None
    exported = values(Export().run(file, there))
    assert exported["runtime_accuracy"] == expected["accuracy"]
    assert exported["max_abs_difference"] == 0.0


@pytest.mark.parametrize("calibration", ["percentile", "max"])
def test_quantization_is_onnx_runtimes(calibration: str, file: Network, bench: MakeBench) -> None:
    there = bench("iris-mlp")
    outcome = Quantize(calibration=calibration).run(file, there)
    found = values(outcome)
    assert found["runtime_accuracy"] > 0.8
    assert found["accuracy_drop"] == pytest.approx(
        values(Accuracy().run(file, there))["accuracy"] - found["runtime_accuracy"]
    )
    assert found["size_ratio"] > 1
    operators = {node.op_type for node in onnx.load(str(outcome.artefacts["quantized"])).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators
    # The steps that follow take the quantized file.
    again = values(Accuracy().run(outcome.network, there))
    assert again["accuracy"] == found["runtime_accuracy"]
    with pytest.raises(Unsupported, match="a step before made an ONNX file of the network already"):
        Quantize().run(outcome.network, there)
    with pytest.raises(
        Unsupported, match=r"weight_bits 4: ONNX Runtime quantizes a file to 8 bits; .* my.py:make"
    ):
        Quantize(weight_bits=4).run(file, there)


def streamed(net: Written, x: torch.Tensor) -> torch.Tensor:
    """A stream with a great feature, which a grid for all features rounds coarsely."""
    x = net.embed(x)
    for up, down in zip(net.ups, net.downs, strict=True):
        x = x + down(nn.functional.gelu(up(nn.functional.layer_norm(x, (32,)))))
    return net.head(nn.functional.layer_norm(x, (32,)))


def test_a_file_with_a_residual_stream_keeps_it_in_float(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Written(
        streamed,
        embed=nn.Linear(4, 32),
        ups=nn.ModuleList(nn.Linear(32, 64) for _ in range(4)),
        downs=nn.ModuleList(nn.Linear(64, 32) for _ in range(4)),
        head=nn.Linear(32, 3),
    ).eval()
    inputs = torch.randn(120, 4)
    with torch.no_grad():
        for down in module.downs:
            down.weight[3] *= 10.0
        targets = module(inputs).argmax(1)
    export_onnx(module, (4,), tmp_path / "net.onnx")
    split = Split(inputs, targets)
    there = bench_of(split, 3, tmp_path)
    network = Network("net.onnx", OnnxNetwork(tmp_path / "net.onnx"), (4,), 3)
    off = {}
    for placement in ("auto", "post"):
        outcome = Quantize(placement=placement).run(network, there)
        made = OnnxNetwork(outcome.artefacts["quantized"])
        with torch.no_grad():
            off[placement] = float((made(inputs) - module(inputs)).square().mean())
        reason = next(m.reason for m in outcome.metrics if m.name == "runtime_accuracy")
        said = {"auto": "products alone (squared distance", "post": "all operators"}
        assert f"static quantization of {said[placement]}" in reason
    assert off["auto"] < 0.5 * off["post"]


@pytest.mark.slow
def test_bounds_and_exact_verdicts_agree_with_those_of_the_module(
    file: Network, network: MakeNetwork, bench: MakeBench
) -> None:
    trained, there = network("iris-mlp", "annealed"), bench("iris-mlp")
    eps = (0.02, 0.2)
    certified = Bounds(eps, samples=8, methods=("ibp", "crown", "alpha-crown")).run(file, there)
    exact = Smt(eps, samples=8, proofs=False).run(file, there)
    peer = verdicts(Smt(eps, samples=8, proofs=False).run(trained, there))
    settled = {(radius, sample): said for (radius, _, sample), said in verdicts(exact).items()}
    assert set(settled.values()) == {"holds", "violated"}
    assert settled == {(radius, sample): said for (radius, _, sample), said in peer.items()}
    for (radius, method, sample), said in verdicts(certified).items():
        assert said in ("unknown", "unsupported", settled[radius, sample]), (radius, method, sample)
    near = values(certified, eps=0.02, method="graph-crown")
    assert near["certified_accuracy"] > 0
    assert (
        near["certified_accuracy"]
        >= values(certified, eps=0.02, method="graph-ibp")["certified_accuracy"]
    )
    assert values(certified, eps=0.02, method="alpha-crown")["certified_accuracy"] is None
    assert values(certified)["clean_accuracy"] == 1.0


def by_another_tool(path: Path) -> Path:
    """y = relu(x0 + x1) - relu(x0 - x1): opset 13, a batch of one, names that are not torch's."""
    first = numpy_helper.from_array(np.array([[1.0, 1.0], [1.0, -1.0]], dtype=np.float32), "w0")
    last = numpy_helper.from_array(np.array([[1.0], [-1.0]], dtype=np.float32), "w1")
    nodes = [
        helper.make_node("MatMul", ["features", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["score"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name, size in (("features", 2), ("score", 1))
    ]
    graph = helper.make_graph(nodes, "hand", ends[:1], ends[1:], [first, last])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8),
        str(path),
    )
    return path


def test_a_file_of_batches_of_one_is_quantized_by_another_metric(tmp_path: Path) -> None:
    path = by_another_tool(tmp_path / "hand.onnx")
    inputs = torch.rand(70, 2, generator=torch.Generator().manual_seed(0))
    targets = inputs.sum(1).relu() - (inputs[:, 0] - inputs[:, 1]).relu()  # what the file computes
    part = Split(inputs, targets, Regression(unit="m"))
    there = bench_of(part, 1, tmp_path / "out")
    there.folder.mkdir()
    found = values(
        Quantize().run(Network("hand", OnnxNetwork(path), (2,), 1, deployed=path), there)
    )
    assert 0 < found["runtime_rmse"] < 0.05
    assert found["rmse_increase"] == pytest.approx(found["runtime_rmse"], abs=1e-6)


def test_a_regression_by_another_tool_stays_within_its_interval(tmp_path: Path) -> None:
    # At (1, 0.5): 1.5 - 0.5 = 1. With x0 > |x1| the score is 2 x1, so in a ball of eps it moves by
    # 2 eps.
    path = by_another_tool(tmp_path / "hand.onnx")
    part = Split(
        torch.tensor([[1.0, 0.5], [2.0, 1.0]]), torch.tensor([1.0, 2.25]), Regression(tolerance=0.5)
    )
    there = bench_of(part, 1, tmp_path, domain=(-9.0, 9.0))
    file = Network("hand", OnnxNetwork(path), (2,), 1, deployed=path)
    assert values(Accuracy().run(file, there))["mae"] == pytest.approx(0.125)
    eps = (0.1, 0.2, 0.24, 0.3)
    # The first ball leaves [0.5, 1.5] beyond eps 0.25; the second starts 0.25 off its target:
    # beyond 0.125.
    wanted = {
        (0.1, 0): "holds",
        (0.2, 0): "holds",
        (0.24, 0): "holds",
        (0.3, 0): "violated",
        (0.1, 1): "holds",
        (0.2, 1): "violated",
        (0.24, 1): "violated",
        (0.3, 1): "violated",
    }
    exact = Smt(eps, samples=2, proofs=False).run(file, there)
    assert {
        (radius, sample): said for (radius, _, sample), said in verdicts(exact).items()
    } == wanted
    certified = Bounds(eps, samples=2, methods=("ibp", "crown")).run(file, there)
    for (radius, method, sample), said in verdicts(certified).items():
        assert said in ("unknown", wanted[radius, sample]), (radius, method, sample)
    assert values(certified)["clean_accuracy"] == 1.0
    assert values(certified, eps=0.1, method="graph-crown")["certified_accuracy"] == 1.0
    assert values(certified, eps=0.3)["pgd_accuracy"] == 0.0
    worst = [each for each in certified.metrics if each.name == "attacked_accuracy"]
    assert [each.value for each in worst] == [None] * 4
    assert all("of classifiers" in each.reason for each in worst)


def test_what_asks_nothing_is_not_verified(tmp_path: Path) -> None:
    part = Split(torch.zeros(3, 2), torch.zeros(3), Regression())
    there = bench_of(part, 1, tmp_path, domain=(-9.0, 9.0))
    network = Network("hand", torch.nn.Linear(2, 1), (2,), 1)
    for stage in (Bounds(), Smt()):
        with pytest.raises(Unsupported, match="a task Regression asks for no margin or interval"):
            stage.run(network, there)


@pytest.mark.slow
def test_a_regression_of_torch_is_verified_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)
    ).eval()
    inputs = torch.rand(6, 2)
    with torch.no_grad():
        targets = module(inputs) + 0.01
    targets[0, 1] = torch.nan
    part = Split(inputs, targets, Regression(tolerance=0.05))
    there = bench_of(part, 2, tmp_path, domain=(-9.0, 9.0))
    network = Network("hand", module, (2,), 2)
    exact = Smt((0.001, 0.5), samples=6, proofs=False).run(network, there)
    said = verdicts(exact)
    assert {each for (eps, *_), each in said.items() if eps == 0.001} == {"holds"}
    assert "violated" in {each for (eps, *_), each in said.items() if eps == 0.5}
    certified = Bounds((0.001, 0.5), samples=6, methods=("crown",)).run(network, replace(there))
    assert values(certified, eps=0.001, method="graph-crown")["certified_accuracy"] == 1.0


@pytest.mark.parametrize("name", ["prune", "exact-prune", "swap-certificate"])
def test_what_would_change_layers_says_so(name: str, file: Network, bench: MakeBench) -> None:
    with pytest.raises(
        Unsupported, match=r"modules; an ONNX file has no layers .* give the model as my.py"
    ):
        check_takes(load("stages", name).target(), file, bench("iris-mlp").data, "iris-mlp")


def test_gate_takes_several_inputs_where_stages_do(bench: MakeBench) -> None:
    given = {"left": torch.zeros(2, 1), "right": torch.zeros(2, 1)}
    network, data = (
        Network("pair", torch.nn.Identity(), (1,), 3, given=given),
        bench("iris-mlp").data,
    )
    taken, refused = [], set()
    for name in (
        "accuracy",
        "export",
        "quantize",
        "prune",
        "exact-prune",
        "swap-certificate",
        "bounds",
        "smt",
    ):
        try:
            check_takes(load("stages", name).target(), network, data, "iris-mlp")
            taken.append(name)
        except Unsupported as error:
            refused.add(str(error))
    assert refused == {"takes one input; iris-mlp has several"}
    assert taken == ["accuracy", "export", "quantize", "prune", "swap-certificate", "bounds", "smt"]
