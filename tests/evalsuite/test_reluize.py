from __future__ import annotations

import pytest
import torch
from torch import nn

from evalsuite import LambdaGELU, census
from evalsuite.contract import Split
from evalsuite.plugins import load
from evalsuite.reluize.training import fit
from evalsuite.variants import Setup, standing
from evalsuite.workloads.options import Budget


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
