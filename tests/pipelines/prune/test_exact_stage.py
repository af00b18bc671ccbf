"""The stage `exact-prune`: really trained networks, planted units, saving, refusals and its
rows.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from evalsuite import Bench, Metric, Network, Outcome, Unsupported, Verdict
from evalsuite.networks import load_network, save_network
from evalsuite.testing import check_stage
from evalsuite.workloads.digits import DigitsCNN, DigitsMLP, DigitsResNet
from pipelines.prune.exact import ExactPrune
from pipelines.prune.exact.kinds import Kind, Removal
from pipelines.prune.exact.layers import read_layers
from pipelines.prune.exact.measuring import _check, train
from pipelines.prune.exact.proofs import Proof
from pipelines.prune.exact.removing import reads_chain, remove_all

MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]
KINDS = ("constant_units", "unused_units", "off_units", "duplicate_units", "merged_units")


def row(outcome: Outcome, name: str, **setting: str) -> Metric:
    (found,) = [
        each for each in outcome.metrics if each.name == name and dict(each.setting) == setting
    ]
    return found


def value(outcome: Outcome, name: str, **setting: str) -> float:
    found = row(outcome, name, **setting).value
    assert found is not None
    return found


def with_planted_units(network: Network, first: str) -> Network:
    """Two constant units and one unused or off one in the first hidden layer."""
    module = copy.deepcopy(network.module)
    layer = module.get_submodule(first)
    with torch.no_grad():
        layer.weight[[1, 4]] = 0.0
        layer.weight[6] = -layer.weight[6].abs()
        if layer.bias is not None:
            layer.bias[6] = -0.1
    return dataclasses.replace(network, module=module)


@pytest.mark.parametrize("variant", ["gelu", "lambda-gelu", "annealed"])
def test_digits_mlp(network: MakeNetwork, bench: MakeBench, tmp_path: Path, variant: str) -> None:
    trained = with_planted_units(network("digits-mlp", variant), "0")
    there = bench("digits-mlp")
    outcome = ExactPrune(query_time_limit=0.5).run(trained, there)
    relu = variant == "annealed"
    assert [value(outcome, name) for name in KINDS] == [2, 0, 1 if relu else 0, 0, 0]
    gone = 3 if relu else 2
    assert value(outcome, "removed_units") == gone
    assert value(outcome, "hidden_units") == 64
    assert value(outcome, "removed_share") == gone / 64
    assert 0 < value(outcome, "equality_error") < 1e-6
    assert value(outcome, "unit_proofs", verdict="holds") == gone
    assert value(outcome, "unit_proofs", verdict="violated") == 0
    by_bounds, by_solver = (row(outcome, "equality", method=each) for each in ("bounds", "smt"))
    assert by_bounds.verdict is Verdict.HOLDS
    assert value(outcome, "equality_error") <= value(outcome, "equality_bound") < 1e-6
    if relu:
        assert by_solver.verdict in (Verdict.HOLDS, Verdict.TIMEOUT)
    else:
        assert by_solver.verdict is Verdict.UNSUPPORTED
        assert "no activation is ReLU" in row(outcome, "off_units").reason
    narrow = 32 - gone
    size = 65 * narrow + (narrow + 1) * 32 + 33 * 10
    assert value(outcome, "parameters") == size
    assert value(outcome, "parameter_fraction") == size / (65 * 32 + 33 * 32 + 33 * 10)
    assert value(outcome, "macs") == 64 * narrow + narrow * 32 + 320
    test = there.data.test
    with torch.no_grad():
        right = (
            (outcome.network.module(test.inputs).argmax(1) == test.targets).double().mean().item()
        )
    assert value(outcome, "accuracy") == right == value(outcome, "accuracy_before_removal")
    assert value(outcome, "accuracy_drop") == 0
    written = json.loads(outcome.artefacts["units"].read_text())
    assert {each["unit"] for each in written["removed"]} == ({1, 4, 6} if relu else {1, 4})
    assert outcome.network.unswapped is None
    save_network(outcome.network, tmp_path / "saved", DigitsMLP())
    restored = load_network(tmp_path / "saved", DigitsMLP(), there.data)
    assert torch.equal(restored.module(test.inputs), outcome.network.module(test.inputs))


@pytest.mark.slow
def test_digits_cnn_and_its_padding(network: MakeNetwork, bench: MakeBench, tmp_path: Path) -> None:
    trained = network("digits-cnn", "relu")
    module = copy.deepcopy(trained.module)
    with torch.no_grad():
        for at, channel, constant in ((1, 3, 0.5), (1, 5, -0.5), (7, 2, 0.5)):
            module[at].weight[channel] = 0.0
            module[at].bias[channel] = constant
    outcome = ExactPrune().run(dataclasses.replace(trained, module=module), bench("digits-cnn"))
    # 0.5 before a padded convolution stays; 0, and 0.5 before a linear layer, go.
    assert value(outcome, "constant_units") == 2
    assert "1 constant channels stay" in row(outcome, "constant_units").reason
    assert row(outcome, "equality", method="bounds").verdict is Verdict.HOLDS
    assert row(outcome, "equality", method="smt").verdict is Verdict.UNSUPPORTED
    assert value(outcome, "unit_proofs", verdict="holds") == 2
    save_network(outcome.network, tmp_path / "saved", DigitsCNN())


def test_proximal_training_makes_units_that_do_nothing(
    network: MakeNetwork, bench: MakeBench
) -> None:
    trained, there = network("digits-mlp", "relu"), bench("digits-mlp")
    stage = ExactPrune(proximal=2.0, epochs=15, max_neurons=0)
    outcome = stage.run(trained, there)
    assert value(outcome, "removed_units") > 0
    assert value(outcome, "accuracy_drop") < 0.05
    assert value(outcome, "training_epochs") == 15
    assert row(outcome, "equality", method="bounds").verdict is Verdict.HOLDS
    # Without it there is no unit that provably does nothing.
    control = dataclasses.replace(stage, proximal=0.0, epochs=1).run(trained, there)
    assert [value(control, name) for name in KINDS] == [0, 0, 0, 0, 0]
    assert value(control, "equality_bound") == 0
    assert {row(control, "equality", method=each).verdict for each in ("bounds", "smt")} == {
        Verdict.HOLDS
    }
    zeros = [
        float((each.network.module[0].weight == 0).double().mean()) for each in (outcome, control)
    ]
    assert zeros[0] > 0.1
    assert zeros[1] == 0.0


@pytest.mark.slow
def test_a_long_gentle_training_costs_little_accuracy(
    network: MakeNetwork, bench: MakeBench
) -> None:
    trained, there = network("digits-mlp", "relu", epochs=20), bench("digits-mlp", epochs=20)
    outcome = ExactPrune(proximal=0.3, epochs=100).run(trained, there)
    assert value(outcome, "removed_units") >= 4
    assert value(outcome, "accuracy_drop") < 0.015
    assert value(outcome, "unit_proofs", verdict="violated") == 0


def test_the_threshold_is_that_of_the_learning_rate(network: MakeNetwork) -> None:
    module = copy.deepcopy(network("digits-mlp", "gelu").module)
    before = copy.deepcopy(module.state_dict())

    def fine_tune(
        module: nn.Module, epochs: int, /, *, teacher: object = None, after_step: object = None
    ) -> None:
        assert epochs == 3
        after_step(0.01)

    train(module, read_layers(module, (64,)), fine_tune, epochs=3, proximal=2.0)
    weight = before["0.weight"]
    torch.testing.assert_close(
        module[0].weight.detach(),
        torch.where(
            weight > 0.02,
            weight - 0.02,
            torch.where(weight < -0.02, weight + 0.02, torch.zeros(())),
        ),
    )
    for name in ("0.bias", "2.bias", "4.weight", "4.bias"):
        assert torch.equal(module.state_dict()[name], before[name])
    assert not torch.equal(module.state_dict()["2.weight"], before["2.weight"])


def test_coarse_parameters_are_refused(network: MakeNetwork, bench: MakeBench) -> None:
    trained = with_planted_units(network("digits-mlp", "gelu"), "0")
    with torch.no_grad():
        # 10000 in each unit of the second layer, where float32 has steps of 1e-3; the logits take
        # it away again.
        trained.module[0].bias[1] = 1e4
        trained.module[2].weight[:, 1] = 1.0
        trained.module[4].weight.copy_(0.1 * torch.tensor([1.0, -1.0]).repeat(10, 16))
    with pytest.raises(
        Unsupported, match=r"removing 2 units changes logits by .* for float32 parameters"
    ):
        ExactPrune().run(trained, bench("digits-mlp"))


def test_a_contradiction_of_bounds_and_solver_is_a_bug(network: MakeNetwork) -> None:
    trained = with_planted_units(network("digits-mlp", "gelu"), "0")
    removed = remove_all(trained.module, reads_chain((64,), (0.0, 1.0)))
    proofs = [Proof(Verdict.HOLDS), Proof(Verdict.VIOLATED, "an input refutes it")]
    with pytest.raises(
        RuntimeError, match="unit 4 of 0: constant by its bounds, but the solver refutes it"
    ):
        _check(removed, proofs)
    merged = dataclasses.replace(removed.claims[1], removal=Removal(4, Kind.MERGED, 0.0, {0: 1.0}))
    _check(dataclasses.replace(removed, claims=[removed.claims[0], merged]), proofs)


def test_networks_without_bounds_are_refused_by_name(bench: MakeBench) -> None:
    network = Network("residual", DigitsResNet().build(lambda _: nn.GELU()).eval(), (1, 8, 8), 10)
    for stage in (ExactPrune(), ExactPrune(proximal=1.0, epochs=1)):
        with pytest.raises(Unsupported, match=r"neither an affine layer|only layers in a row"):
            stage.run(network, bench("digits-resnet"))


def test_a_network_without_units_is_refused_and_not_divided_by(bench: MakeBench) -> None:
    """The share of removed units was a division by zero."""
    affine = Network("affine", nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval(), (1, 8, 8), 10)
    with pytest.raises(Unsupported, match="no activation stands between two layers"):
        ExactPrune().run(affine, bench("digits-mlp"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"proximal": -1.0}, "proximal must be finite and >= 0, got -1.0"),
        ({"proximal": float("nan")}, "proximal must be finite"),
        ({"proximal": 1.0}, "epochs must be at least 1, got 0"),
        ({"epochs": -1}, "epochs must be a whole number of at least 0, got -1"),
        ({"query_time_limit": 0.0}, "query_time_limit must be > 0"),
        ({"max_neurons": -1}, "max_neurons must be a whole number of at least 0, got -1"),
    ],
)
def test_options_are_checked(options: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ExactPrune(**options)


def test_conformance() -> None:
    check_stage(ExactPrune(proximal=20.0, epochs=1, max_neurons=0))
