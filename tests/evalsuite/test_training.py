"""Training: its options, targets that count nowhere, what variants share, and the raw hardness'
own learning rate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MakeBench, MakeNetwork
from torch import nn
from torch.nn import functional

from evalsuite import LambdaGELU, Split, census
from evalsuite.plugins import load
from evalsuite.reluize.profile import learnt_parameters
from evalsuite.reluize.training import distilled, fit
from evalsuite.run.child import _validation
from evalsuite.run.making import make_bench
from evalsuite.tasks import Classification
from evalsuite.variants import Setup, standing
from evalsuite.workloads.digits import DigitsMLP
from evalsuite.workloads.layers import convolution
from evalsuite.workloads.options import Budget
from lambda_gelu.activations.expanded import XSiLU
from lambda_gelu.activations.integrated import XIELU, XIPReLU
from lambda_gelu.parameters import hardness_rate, parameter_groups

# 12 steps an epoch in batches of 8.
SPLIT = Split(
    torch.rand(96, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(96) % 3
)


@dataclass(frozen=True)
class Short(Budget):
    """Two epochs of twelve steps."""

    epochs: int = 2
    batch_size: int = 8
    learning_rate: float = 0.1
    optimizer: str = "sgd"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (
        *convolution(3, 8, lambda _: nn.GELU()),
        *convolution(8, 8, lambda _: nn.GELU(), stride=2),
    )
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


def rates(budget: Budget, **options: float) -> list[float]:
    found: list[float] = []
    fit(network(), SPLIT, budget, seed=0, after_step=found.append, **options)  # type: ignore[arg-type]
    return found


def test_the_learning_rate_falls_as_a_cosine_and_rises_before_where_warm_up_is_asked_for() -> None:
    assert rates(Short()) == pytest.approx(
        [0.05 * (1 + math.cos(math.pi * done / 24)) for done in range(24)]
    )
    warm = rates(Short(warm_up=0.25))
    assert warm[:6] == pytest.approx([0.1 * (done + 1) / 7 for done in range(6)])
    assert warm[6:] == pytest.approx(
        [0.05 * (1 + math.cos(math.pi * done / 18)) for done in range(18)]
    )
    # as a short fine-tuning
    assert max(rates(Short(warm_up=0.25), share=0.5, rate=0.1)) == pytest.approx(0.01)


def seen(module: nn.Module, budget: Budget) -> tuple[nn.Module, torch.Tensor]:
    """The module trained, and what its first activation was given last."""
    kept: list[torch.Tensor] = []
    hook = module[2].register_forward_hook(lambda _, given, __: kept.append(given[0].detach()))  # type: ignore[index]
    fit(module, SPLIT, budget, seed=0)  # type: ignore[arg-type]
    hook.remove()
    return module, kept[-1]


def test_channels_last_computes_the_same_and_comes_back_as_it_was() -> None:
    plain, before = seen(network(), Short())
    other, given = seen(network(), Short(channels_last=True))
    assert before.is_contiguous()
    assert given.is_contiguous(memory_format=torch.channels_last)
    assert not given.is_contiguous()
    for (name, ours), theirs in zip(
        other.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        assert ours.is_contiguous(), name
        assert torch.allclose(ours, theirs, atol=1e-4), name


def test_bfloat16_is_of_the_passes_alone() -> None:
    module, given = seen(network(), Short(precision="bfloat16"))
    assert given.dtype == torch.bfloat16
    assert {each.dtype for each in module.parameters()} == {torch.float32}
    exact, _ = seen(copy.deepcopy(network()), Short())
    with torch.no_grad():
        apart = (module(SPLIT.inputs) - exact(SPLIT.inputs)).abs().max()
    assert 0 < apart < 0.5


def test_what_activations_learnt_is_told_by_layer_and_a_raw_parameter_as_what_it_stands_for() -> (
    None
):
    first, second = XIELU(), nn.PReLU(3)
    with torch.no_grad():
        first.raw_p.fill_(1.0)
        first.raw_n.fill_(-2.0)
        second.weight.copy_(torch.tensor([0.1, 0.2, 0.6]))
    module = nn.Sequential(
        nn.Linear(2, 3), first, nn.Linear(3, 3), second, LambdaGELU(), nn.ReLU(), nn.GELU()
    )
    told = {
        (each.setting["layer"], each.setting["parameter"]): each.value
        for each in learnt_parameters(module)
    }
    softplus = {value: math.log1p(math.exp(value)) for value in (1.0, -2.0)}
    assert told == {
        ("1", "p"): pytest.approx(softplus[1.0]),
        ("1", "n"): pytest.approx(0.5 + softplus[-2.0]),
        ("3", "weight"): pytest.approx(0.3),
    }


MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


@pytest.mark.parametrize("temperature", [0.03, 0.1, 1.0])
def test_sgd_moves_lambda_as_if_it_were_trained_directly_whatever_the_temperature(
    temperature: float,
) -> None:
    layer = LambdaGELU(temperature=temperature).double()  # s = 0: sigmoid = 1/2
    (3.0 * layer.hardness).backward()
    before = layer.hardness.item()
    torch.optim.SGD(parameter_groups(layer, learning_rate=1e-6, optimizer="sgd", step=9.0)).step()
    assert layer.hardness.item() - before == pytest.approx(-9.0 * 1e-6 * 3.0 / 4, rel=1e-3)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("temperature", [0.03, 0.1, 1.0])
@pytest.mark.parametrize("gradient", [1e-3, 50.0])
def test_adam_moves_lambda_by_c_rates_whatever_the_gradient_and_the_temperature(
    make: MakeOptimizer, temperature: float, gradient: float
) -> None:
    layer = LambdaGELU(temperature=temperature).double()
    (gradient * layer.hardness).backward()
    before = layer.hardness.item()
    make(parameter_groups(layer, learning_rate=1e-6, optimizer=make.__name__.lower())).step()
    assert layer.hardness.item() - before == pytest.approx(-9.0 * 1e-6 / 2, rel=1e-3)


def test_momentum_multiplies_every_step_alike_so_that_c_stays_relative() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = LambdaGELU()
            self.weight = nn.Parameter(torch.zeros(()))

    module = Both().double()
    groups = parameter_groups(
        module, learning_rate=1e-7, optimizer="sgd", momentum=0.9, weight_decay=0.0
    )
    optimizer = torch.optim.SGD(groups)
    for _ in range(200):
        before = module.layer.hardness.item(), module.weight.item()
        optimizer.zero_grad()
        (module.layer.hardness + module.weight).backward()
        optimizer.step()
    steps = module.layer.hardness.item() - before[0], module.weight.item() - before[1]
    assert steps[1] == pytest.approx(-1e-7 / (1 - 0.9), rel=1e-3)
    assert steps[0] / steps[1] == pytest.approx(9.0 / 4, rel=1e-2)


@pytest.mark.parametrize(
    "layer", [LambdaGELU(hardness=5.0), nn.PReLU(), XIELU(), XIPReLU(), XSiLU()]
)
def test_no_decay_on_what_an_activation_learns_and_a_rate_of_its_own_for_lambda(
    layer: nn.Module,
) -> None:
    groups = parameter_groups(
        nn.Sequential(nn.Linear(2, 2), layer), learning_rate=0.1, weight_decay=0.3
    )
    rate = pytest.approx(9 * 0.1 * 0.1) if isinstance(layer, LambdaGELU) else 0.1
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(0.1, 0.3), (rate, 0.0)]
    assert {id(each) for each in groups[1]["params"]} == {id(each) for each in layer.parameters()}


def test_every_parameter_once_frozen_ones_never() -> None:
    shared, frozen, other = LambdaGELU(), LambdaGELU(3), LambdaGELU(temperature=0.2)
    frozen.s.requires_grad_(False)
    linear = nn.Linear(3, 3)
    linear.bias.requires_grad_(False)
    module = nn.Sequential(linear, shared, linear, frozen, nn.Linear(3, 3), shared, other)
    groups = parameter_groups(module, learning_rate=0.1)
    listed = [id(each) for group in groups for each in group["params"]]
    expected = {id(each) for each in module.parameters() if each.requires_grad}
    assert len(listed) == len(set(listed)) == 5
    assert set(listed) == expected
    assert [group["lr"] for group in groups[1:]] == pytest.approx([9 * 0.1 * 0.1, 9 * 0.2 * 0.1])


def groups_of(**options: Any) -> Callable[[], object]:
    return lambda: parameter_groups(nn.Linear(2, 2), **{"learning_rate": 0.1, **options})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (groups_of(optimizer="sdg"), "unknown optimizer 'sdg'; did you mean 'sgd'"),
        (groups_of(step=0.0), r"step must be > 0 and finite, got 0\.0"),
        (groups_of(step=math.inf), "step must be > 0 and finite, got inf"),
        (groups_of(learning_rate=-0.1), r"learning_rate must be > 0 and finite, got -0\.1"),
        (groups_of(learning_rate=math.nan), "learning_rate must be > 0 and finite, got nan"),
        (groups_of(momentum=1.0, optimizer="sgd"), r"momentum must be in \[0, 1\), got 1\.0"),
        (groups_of(weight_decay=-1.0), r"weight_decay must be >= 0 and finite, got -1\.0"),
        (
            lambda: parameter_groups(nn.ReLU(), learning_rate=0.1),
            "nothing to train: ReLU has no parameter",
        ),
        (lambda: hardness_rate(0.0, learning_rate=0.1), "temperature must be > 0"),
        (lambda: Short(warm_up=-0.1), r"warm_up must be in \[0, 1\), got"),
        (lambda: Short(warm_up=1.0), "warm_up must be in"),
        (lambda: Short(warm_up=math.nan), "warm_up must be in"),
        (
            lambda: Split(torch.zeros(3, 1), torch.full((3, 2), -100)),
            "a split without targets: all 6 are -100",
        ),
        (
            lambda: Split(torch.zeros(3, 2), torch.ones(3).long()).accuracy(torch.zeros(2)),
            "classes of shape",
        ),
    ],
)
def test_what_is_out_of_bounds_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_adam_step_moves_lambda_by_c_times_the_learning_rate() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), LambdaGELU(), nn.Linear(8, 3))
    before = module[1].hardness.item()
    split = Split(torch.randn(16, 4), torch.randint(0, 3, (16,)))
    fit(module, split, Budget(epochs=1, batch_size=16, learning_rate=1e-4), seed=0)  # type: ignore[arg-type]
    # d lambda / d s = sigmoid(s / t) / t = 5 at s = 0, and Adam's first step is its rate: 5 * 9 *
    # 0.1 * 1e-4.
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
            module.register_forward_pre_hook(
                lambda _, args: orders[-1].append(args[0].sum().item())
            )
            orders.append([])
            return module

    data = workload.data()
    setup = Setup(
        Recorder(epochs=1, batch_size=64, learning_rate=1e-12), data.train, data.calibration, 3
    )  # type: ignore[arg-type]
    for name in (
        "gelu",
        "relu",
        "prelu",
        "silu",
        "lambda-gelu",
        "annealed",
        "swish-annealed",
        "hard-switch",
    ):
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
    assert all(
        found.module.hardness.item() == pytest.approx(160, rel=1e-4)
        for found in census(annealed.unswapped)
    )
    with torch.no_grad():
        before, after = annealed.unswapped(test.inputs), annealed.module(test.inputs)
    assert (before.argmax(1) == after.argmax(1)).float().mean() >= 0.995


def padded(split: Split, every: int) -> Split:
    """The split with the targets of one in `every` samples ignored."""
    targets = split.targets.clone()
    targets[::every] = -100
    return Split(split.inputs, targets)


def test_accuracy_is_of_the_targets_that_count() -> None:
    split = Split(torch.zeros(3, 2), torch.tensor([[0, 1], [1, -100], [-100, -100]]))
    assert split.accuracy(torch.tensor([[0, 1], [0, 1], [1, 1]])) == pytest.approx(2 / 3)
    assert split.labelled.tolist() == [True, True, False]


def test_the_validation_rows_are_of_the_samples_with_a_target(network: MakeNetwork) -> None:
    trained, data = network("digits-mlp", "gelu"), DigitsMLP().data()
    some = padded(data.validation, 3)
    kept = Split(some.inputs[some.labelled], some.targets[some.labelled])
    found, wanted = (
        {each.name: each.value for each in _validation(trained, replace(data, validation=part))}
        for part in (some, kept)
    )
    assert found["validation_accuracy"] == wanted["validation_accuracy"] > 0.8
    assert found["validation_nll"] == pytest.approx(wanted["validation_nll"], abs=1e-6)


def test_samples_without_a_target_teach_nothing() -> None:
    budget, whole = DigitsMLP(epochs=1, batch_size=16), DigitsMLP().data().train
    # All ignored but for 40 samples: most batches would have no loss at all.
    targets = torch.full_like(whole.targets, -100)
    targets[:40] = whole.targets[:40]
    modules = []
    for part in (Split(whole.inputs, targets), Split(whole.inputs[:40], whole.targets[:40])):
        torch.manual_seed(0)
        modules.append(nn.Linear(64, 10))
        assert fit(modules[-1], part, budget, seed=0) > 0
    assert torch.equal(modules[0].weight, modules[1].weight)
    assert modules[0].weight.isfinite().all()


def test_a_teacher_is_not_imitated_where_the_target_is_ignored() -> None:
    torch.manual_seed(0)
    logits, teacher = torch.randn(2, 3, 5), nn.Linear(4, 5)
    inputs, targets = torch.randn(2, 3, 4), torch.tensor([[1, 2, -100], [-100, 0, 4]])
    found = distilled(Classification(), teacher)(inputs, logits, targets).item()
    counted = targets != -100
    student, wanted = (
        functional.log_softmax(each[counted] / 2, -1) for each in (logits, teacher(inputs))
    )
    divergence = 4 * (wanted.exp() * (wanted - student)).sum(-1).mean()
    assert found == pytest.approx(
        ((Classification().loss(logits, targets) + divergence) / 2).item(), abs=1e-6
    )


def test_properties_are_of_samples_with_a_target(bench: MakeBench, tmp_path: Path) -> None:
    data = bench("digits-mlp").data
    there = make_bench(
        DigitsMLP(),
        replace(data, test=padded(data.test, 2)),
        seed=0,
        folder=tmp_path,
        time_limit=1.0,
    )
    found = there.properties(0.1, 3)
    assert [each.sample for each in found] == [1, 3, 5]
    assert [each.label for each in found] == data.test.targets[[1, 3, 5]].tolist()
