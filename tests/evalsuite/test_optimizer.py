"""The raw hardness' own learning rate: what c, t and the optimizer make of it, on real gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import MakeBench, MakeNetwork
from torch import nn
from torch.nn import functional

from evalsuite import LambdaGELU, Split
from evalsuite.activations.expanded import XSiLU
from evalsuite.activations.hardenable import Hardenable
from evalsuite.activations.integrated import XIELU, XIPReLU
from evalsuite.reluize.training import hardness_rate, parameter_groups

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


def hardnesses(module: nn.Module) -> dict[str, torch.Tensor]:
    found = {path: each for path, each in module.named_modules() if isinstance(each, Hardenable)}
    return {path: each.hardness.detach().clone() for path, each in found.items()}


def with_gradients(module: nn.Module, split: Split) -> nn.Module:
    """A float64 copy of `module` with the gradients of its loss on the first 64 samples."""
    copied = copy.deepcopy(module).double()
    copied.zero_grad()
    functional.cross_entropy(copied(split.inputs[:64].double()), split.targets[:64]).backward()
    return copied


def per_channel(module: nn.Module, split: Split) -> nn.Module:
    changed = copy.deepcopy(module)
    for parent in list(changed.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LambdaGELU):
                setattr(parent, name, LambdaGELU(channels=parent[int(name) - 1].out_features, hardness=1.9))
    return changed


@pytest.fixture
def learnt(network: MakeNetwork) -> nn.Module:
    return network("digits-mlp", "lambda-gelu", epochs=3).module


def first_order(module: nn.Module, learning_rate: float) -> dict[str, torch.Tensor]:
    """-eta_s sigmoid(s / t)^2 / t^2 dL/dlambda, where dL/ds = sigmoid(s / t) / t dL/dlambda (arXiv 2603.21991)."""
    steps = {}
    for path, layer in module.named_modules():
        if isinstance(layer, LambdaGELU):
            t, rate = layer.temperature, hardness_rate(layer.temperature, learning_rate=learning_rate, optimizer="sgd")
            assert layer.s.grad is not None
            steps[path] = -rate * torch.sigmoid(layer.s.detach() / t) / t * layer.s.grad
    return steps


@pytest.mark.parametrize("channels", [False, True], ids=["layer", "channel"])
def test_the_predicted_step_of_lambda_is_the_actual_one_to_second_order(
    learnt: nn.Module, bench: MakeBench, channels: bool
) -> None:
    split = bench("digits-mlp").data.train
    start = with_gradients(per_channel(learnt, split) if channels else learnt, split)
    before, errors = hardnesses(start), []
    for learning_rate in (0.4, 0.2, 0.1):
        moved = with_gradients(start, split)
        predicted = first_order(moved, learning_rate)
        torch.optim.SGD(parameter_groups(moved, learning_rate=learning_rate, optimizer="sgd")).step()
        after = hardnesses(moved)
        assert set(predicted) == set(before)
        errors.append(max(float((after[path] - before[path] - predicted[path]).abs().max()) for path in before))
        assert max(float(step.abs().max()) for step in predicted.values()) > 20 * errors[-1]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("temperature", [0.03, 0.1, 1.0])
def test_sgd_moves_lambda_as_if_it_were_trained_directly_whatever_the_temperature(temperature: float) -> None:
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
    groups = parameter_groups(module, learning_rate=1e-7, optimizer="sgd", momentum=0.9, weight_decay=0.0)
    optimizer = torch.optim.SGD(groups)
    for _ in range(200):
        before = module.layer.hardness.item(), module.weight.item()
        optimizer.zero_grad()
        (module.layer.hardness + module.weight).backward()
        optimizer.step()
    steps = module.layer.hardness.item() - before[0], module.weight.item() - before[1]
    assert steps[1] == pytest.approx(-1e-7 / (1 - 0.9), rel=1e-3)
    assert steps[0] / steps[1] == pytest.approx(9.0 / 4, rel=1e-2)


def test_no_decay_on_s_and_decay_on_the_rest() -> None:
    module = nn.Sequential(nn.Linear(2, 2), LambdaGELU(hardness=5.0))
    groups = parameter_groups(module, learning_rate=0.1, weight_decay=0.3)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [
        (0.1, 0.3), (pytest.approx(9 * 0.1 * 0.1), 0.0),
    ]  # fmt: skip
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    weight, hardness = module[0].weight.detach().clone(), module[1].hardness.item()
    torch.optim.AdamW(groups).step()
    torch.testing.assert_close(module[0].weight.detach(), weight * (1 - 0.1 * 0.3))
    assert module[1].hardness.item() == hardness


@pytest.mark.parametrize("layer", [nn.PReLU(), XIELU(), XIPReLU(), XSiLU()])
def test_no_decay_on_what_an_activation_learns(layer: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(2, 2), layer)
    groups = parameter_groups(module, learning_rate=0.1, weight_decay=0.3)
    learnt = {id(each) for each in layer.parameters()}
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(0.1, 0.3), (0.1, 0.0)]
    assert {id(each) for each in groups[1]["params"]} == learnt


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "sdg"}, "unknown optimizer 'sdg'; did you mean 'sgd'"),
        ({"step": 0.0}, r"step must be > 0 and finite, got 0\.0"),
        ({"step": math.inf}, "step must be > 0 and finite, got inf"),
        ({"learning_rate": -0.1}, r"learning_rate must be > 0 and finite, got -0\.1"),
        ({"learning_rate": math.nan}, "learning_rate must be > 0 and finite, got nan"),
        ({"momentum": 1.0, "optimizer": "sgd"}, r"momentum must be in \[0, 1\), got 1\.0"),
        ({"weight_decay": -1.0}, r"weight_decay must be >= 0 and finite, got -1\.0"),
    ],
)
def test_options_out_of_bounds(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parameter_groups(nn.Linear(2, 2), **{"learning_rate": 0.1, **options})


def test_nothing_to_train_and_no_temperature() -> None:
    with pytest.raises(ValueError, match="nothing to train: ReLU has no parameter"):
        parameter_groups(nn.ReLU(), learning_rate=0.1)
    with pytest.raises(ValueError, match="temperature must be > 0"):
        hardness_rate(0.0, learning_rate=0.1)
