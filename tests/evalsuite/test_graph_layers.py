"""A class whose forward calls layers one behind the other is the nn.Sequential of them, for all that read layers."""

from __future__ import annotations

import copy

import pytest
import torch
from graph_networks import HandWritten
from torch import nn
from torch.nn import functional

from evalsuite import certify_swap, in_layers, preactivation_bounds
from evalsuite.activations import LambdaGELU
from evalsuite.contract import Unsupported


class _Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.norm.running_mean, self.norm.running_var = torch.randn(4), torch.rand(4) + 0.5
        self.act, self.drop, self.block = LambdaGELU(), nn.Dropout(0.3), HandWritten(functional.gelu, 64)
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.avg_pool2d(self.act(self.norm(self.conv(x))), 2)
        return self.last(self.act(self.block(self.drop(x))))  # type: ignore[no-any-return]


def _as_sequential(module: _Convolutional) -> nn.Sequential:
    block = [nn.Flatten(), module.block.fc1, nn.GELU(), module.block.fc2]
    first = [module.conv, module.norm, module.act, nn.AvgPool2d(2)]
    return nn.Sequential(*first, *block, module.act, module.last).eval()


def test_modules_stay_themselves_and_functions_become_modules() -> None:
    module = _Convolutional().train()
    made = in_layers(module, (1, 8, 8))
    assert made.training
    assert made.get_submodule("conv") is module.conv
    assert made.get_submodule("block.fc2") is module.block.fc2
    assert [type(each) for each in made.modules() if isinstance(each, LambdaGELU | nn.GELU)] == [LambdaGELU, nn.GELU]
    inputs = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(copy.deepcopy(made).eval()(inputs), copy.deepcopy(module).eval()(inputs))


def test_what_is_in_layers_already_stays_as_it_is() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))
    assert in_layers(module, (4,)) is module


def test_certificates_are_those_of_the_sequential() -> None:
    torch.manual_seed(0)
    module = _Convolutional().eval()
    lower = torch.rand(2, 1, 8, 8)
    ours, theirs = (certify_swap(each, lower, lower + 0.01) for each in (module, _as_sequential(module)))
    assert torch.equal(ours.difference_upper, theirs.difference_upper)
    assert torch.equal(ours.margin_after, theirs.margin_after)
    bounds = [preactivation_bounds(each, lower, lower + 0.01) for each in (module, _as_sequential(module))]
    assert all(torch.equal(one.lower, other.lower) for one, other in zip(*bounds, strict=True))


class _Other(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.second = kind, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "residual":
            return x + self.second(torch.relu(self.first(x)))
        if self.kind == "rounded formula":
            y = self.first(x)
            return self.second(0.5 * y * (1 + torch.erf(y * 0.70710677)))
        if self.kind == "across samples":
            return self.second(self.first(x).T.contiguous().view(-1, 4))
        return self.second(torch.softmax(self.first(x), -1))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("residual", "takes other values than the one before it"), ("softmax", r"the network \(softmax\)"),
        ("rounded formula", "nor exactly a known activation"),
        ("across samples", r"the network \(|multiple of the batch"),
    ],
)  # fmt: skip
def test_what_is_no_row_of_layers_is_refused_by_name(kind: str, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        in_layers(_Other(kind), (4,))


def test_a_layer_applied_twice_in_a_row_is_applied_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))  # type: ignore[no-any-return]

    made = in_layers(Twice(), (4,))
    assert len(made._modules) == 2


def test_hooks_are_refused() -> None:
    module = HandWritten()
    module.fc1.register_forward_hook(lambda _, __, output: 2 * output)
    with pytest.raises(Unsupported, match="fc1 has forward hooks"):
        in_layers(module, (6,))
