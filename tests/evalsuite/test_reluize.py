from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evalsuite import Hardening, LambdaGELU, census, fold_hardness, swap_to_relu
from evalsuite.contract import Split
from evalsuite.plugins import load
from evalsuite.reluize.training import fit
from evalsuite.variants import Setup, standing
from evalsuite.variants.annealed import Annealed
from evalsuite.workloads.options import Budget


def test_hardening_is_linear_from_the_learnt_lambda_to_the_target() -> None:
    layer = LambdaGELU(hardness=2.0)
    harden = Hardening(nn.Sequential(layer), start=0.25, target=160.0)
    harden(0.25)
    assert layer.hardness.item() == pytest.approx(2.0, rel=1e-5)
    assert layer.s.requires_grad
    harden(0.625)
    assert layer.hardness.item() == pytest.approx(2 + 0.5 * 158, rel=1e-5)
    assert not layer.s.requires_grad
    harden(1.0)
    assert layer.hardness.item() == pytest.approx(160.0, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"start": 1.0}, r"start must be in \[0, 1\)"),
        ({"start": -0.1}, "start"),
        ({"target": 1.0}, "target must be > 1"),
    ],
)
def test_impossible_schedules_are_refused(arguments: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Hardening(nn.Sequential(LambdaGELU()), **arguments)
    with pytest.raises(ValueError, match=text):
        Annealed(**arguments)


def test_hardening_a_network_without_lambda_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to harden"):
        Hardening(nn.Sequential(nn.GELU()))(1.0)


def test_the_swap_leaves_only_relu_and_the_original_alone() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Sequential(LambdaGELU()))
    swapped = swap_to_relu(module)
    assert {found.traits.name for found in census(swapped)} == {"relu"}
    assert {found.traits.name for found in census(module)} == {"gelu", "lambda-gelu"}
    assert torch.equal(swapped[0].weight, module[0].weight)


def test_at_lambda_160_the_swap_moves_each_activation_by_at_most_its_certificate() -> None:
    layer = LambdaGELU(hardness=160.0).double()
    layer.set_hardness(160.0)
    x = torch.linspace(-1, 1, 200_001, dtype=torch.float64)
    assert (layer(x) - torch.relu(x)).abs().max().item() <= 0.16997120747990369 / 159.99


@settings(max_examples=30, deadline=None)
@given(hardness=st.lists(st.floats(1.01, 200), min_size=4, max_size=4), seed=st.integers(0, 2**16))
def test_folding_changes_no_output_of_a_convolutional_network(hardness: list[float], seed: int) -> None:
    torch.manual_seed(seed)
    per_channel = LambdaGELU(channels=4)
    per_channel.set_hardness(torch.tensor(hardness))
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), per_channel, nn.MaxPool2d(2), nn.Conv2d(4, 2, 3),
        LambdaGELU(hardness=hardness[0]), nn.Flatten(), nn.Linear(8, 3),
    ).double().eval()  # fmt: skip
    folded = fold_hardness(module)
    assert [found.traits.name for found in census(folded)] == ["gelu", "gelu"]
    x = torch.randn(5, 1, 10, 10, dtype=torch.float64)
    torch.testing.assert_close(folded(x), module(x), rtol=1e-9, atol=1e-11)
    assert len(census(module)) == 2


def test_what_cannot_be_folded_is_kept() -> None:
    first = nn.Sequential(LambdaGELU(), nn.Linear(2, 2))
    flattened = nn.Sequential(nn.Conv2d(1, 2, 1), LambdaGELU(channels=2), nn.Flatten(), nn.Linear(8, 2))
    for module in (first, flattened):
        assert [found.traits.name for found in census(fold_hardness(module))] == ["lambda-gelu"]


def test_an_adam_step_moves_lambda_by_c_times_the_learning_rate() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), LambdaGELU(), nn.Linear(8, 3))
    before = module[1].hardness.item()
    split = Split(torch.randn(16, 4), torch.randint(0, 3, (16,)))
    fit(module, split, Budget(epochs=1, batch_size=16, learning_rate=1e-4), seed=0)  # type: ignore[arg-type]
    # d lambda / d s = sigmoid(s / t) / t = 5 at s = 0, and Adam's first step is its rate: 5 * 9 * 0.1 * 1e-4.
    assert abs(module[1].hardness.item() - before) == pytest.approx(5 * 9 * 0.1 * 1e-4, rel=0.02)


def test_a_share_of_the_budget_is_a_share_of_its_steps() -> None:
    progress: list[float] = []
    split = Split(torch.randn(50, 4), torch.randint(0, 3, (50,)))
    budget = Budget(epochs=10, batch_size=8, optimizer="sgd")
    fit(nn.Linear(4, 3), split, budget, seed=0, share=0.25, before_step=progress.append)  # type: ignore[arg-type]
    assert len(progress) == round(0.25 * 10 * 7)
    assert progress == pytest.approx([(i + 1) / len(progress) for i in range(len(progress))])


def test_variants_start_from_the_same_weights_and_see_the_same_batches() -> None:
    workload = load("workloads", "digits-mlp").target(epochs=1)
    starts, orders = [], []

    class Recorder(Budget):
        version = "1"

        def build(self, activation: object) -> nn.Module:
            module = workload.build(activation)
            starts.append(module[0].weight.detach().clone())
            module.register_forward_pre_hook(lambda _, args: orders[-1].append(args[0].sum().item()))
            orders.append([])
            return module

    data = workload.data()
    setup = Setup(Recorder(epochs=1, batch_size=64, learning_rate=1e-12), data.train, data.calibration, 3)  # type: ignore[arg-type]
    for name in ("gelu", "relu", "prelu", "silu", "lambda-gelu", "annealed", "swish-annealed", "hard-switch"):
        standing(name).make(setup, None)
    assert all(torch.equal(starts[0], each) for each in starts[1:])
    assert orders[0]
    assert all(orders[0] == each for each in orders[1:])


def test_gelu_swap_is_the_baseline_network_with_relu(network) -> None:
    baseline, swapped = network("digits-mlp", "gelu"), network("digits-mlp", "gelu-swap")
    assert torch.equal(baseline.module[0].weight, swapped.module[0].weight)
    assert [found.traits.name for found in census(swapped.module)] == ["relu", "relu"]
    assert [found.traits.name for found in census(swapped.unswapped)] == ["gelu", "gelu"]


def test_annealing_leaves_nothing_for_the_swap_to_change(network, bench) -> None:
    annealed, test = network("digits-mlp", "annealed"), bench("digits-mlp").data.test
    assert all(found.module.hardness.item() == pytest.approx(160, rel=1e-4) for found in census(annealed.unswapped))
    with torch.no_grad():
        before, after = annealed.unswapped(test.inputs), annealed.module(test.inputs)
    assert (before.argmax(1) == after.argmax(1)).float().mean() >= 0.995
