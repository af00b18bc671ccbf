"""The options of the training loop: warm-up, the layout of images, and mixed precision."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from evalsuite.activations import LambdaGELU
from evalsuite.activations.integrated import XIELU
from evalsuite.contract import Split
from evalsuite.reluize.profile import learnt_parameters
from evalsuite.reluize.training import fit
from evalsuite.workloads.layers import convolution
from evalsuite.workloads.options import Budget

SPLIT = Split(
    torch.rand(96, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(96) % 3
)  # 12 steps an epoch in batches of 8


@dataclass(frozen=True)
class Short(Budget):
    """Two epochs of twelve steps."""

    epochs: int = 2
    batch_size: int = 8
    learning_rate: float = 0.1
    optimizer: str = "sgd"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = *convolution(3, 8, lambda _: nn.GELU()), *convolution(8, 8, lambda _: nn.GELU(), stride=2)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


def rates(budget: Budget, **options: float) -> list[float]:
    found: list[float] = []
    fit(network(), SPLIT, budget, seed=0, after_step=found.append, **options)  # type: ignore[arg-type]
    return found


def test_the_learning_rate_falls_as_a_cosine_and_rises_before_where_warm_up_is_asked_for() -> None:
    assert rates(Short()) == pytest.approx([0.05 * (1 + math.cos(math.pi * done / 24)) for done in range(24)])
    warm = rates(Short(warm_up=0.25))
    assert warm[:6] == pytest.approx([0.1 * (done + 1) / 7 for done in range(6)])
    assert warm[6:] == pytest.approx([0.05 * (1 + math.cos(math.pi * done / 18)) for done in range(18)])
    assert max(rates(Short(warm_up=0.25), share=0.5, rate=0.1)) == pytest.approx(0.01)  # as a short fine-tuning


@pytest.mark.parametrize("warm_up", [-0.1, 1.0, math.nan])
def test_a_warm_up_that_is_no_share_is_refused(warm_up: float) -> None:
    with pytest.raises(ValueError, match=r"warm_up must be in \[0, 1\), got"):
        Short(warm_up=warm_up)


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
    for (name, ours), theirs in zip(other.state_dict().items(), plain.state_dict().values(), strict=True):
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


def test_what_activations_learnt_is_told_by_layer_and_a_raw_parameter_as_what_it_stands_for() -> None:
    first, second = XIELU(), nn.PReLU(3)
    with torch.no_grad():
        first.raw_p.fill_(1.0)
        first.raw_n.fill_(-2.0)
        second.weight.copy_(torch.tensor([0.1, 0.2, 0.6]))
    module = nn.Sequential(nn.Linear(2, 3), first, nn.Linear(3, 3), second, LambdaGELU(), nn.ReLU(), nn.GELU())
    told = {(each.setting["layer"], each.setting["parameter"]): each.value for each in learnt_parameters(module)}
    softplus = {value: math.log1p(math.exp(value)) for value in (1.0, -2.0)}
    assert told == {
        ("1", "p"): pytest.approx(softplus[1.0]),
        ("1", "n"): pytest.approx(0.5 + softplus[-2.0]),
        ("3", "weight"): pytest.approx(0.3),
    }
