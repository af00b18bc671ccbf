"""A class whose forward calls layers one behind the other is the nn.Sequential of them, for all
that read layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph_networks import HandWritten
from torch import nn
from torch.nn import functional
from written import Written

from evalsuite import certify_swap
from evalsuite.contract import Unsupported
from lambda_gelu.activations import LambdaGELU
from netverify import preactivation_bounds
from opgraph.layers import in_layers


class _Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.norm.running_mean, self.norm.running_var = torch.randn(4), torch.rand(4) + 0.5
        self.act, self.drop, self.block = (
            LambdaGELU(),
            nn.Dropout(0.3),
            HandWritten(functional.gelu, 64),
        )
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
    assert [type(each) for each in made.modules() if isinstance(each, LambdaGELU | nn.GELU)] == [
        LambdaGELU,
        nn.GELU,
    ]
    inputs = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(
        copy.deepcopy(made).eval()(inputs), copy.deepcopy(module).eval()(inputs)
    )


def test_what_is_in_layers_already_stays_as_it_is() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))
    assert in_layers(module, (4,)) is module


def test_certificates_are_those_of_the_sequential() -> None:
    torch.manual_seed(0)
    module = _Convolutional().eval()
    lower = torch.rand(2, 1, 8, 8)
    ours, theirs = (
        certify_swap(each, lower, lower + 0.01) for each in (module, _as_sequential(module))
    )
    assert torch.equal(ours.difference_upper, theirs.difference_upper)
    assert torch.equal(ours.margin_after, theirs.margin_after)
    bounds = [
        preactivation_bounds(each, lower, lower + 0.01) for each in (module, _as_sequential(module))
    ]
    assert all(torch.equal(one.lower, other.lower) for one, other in zip(*bounds, strict=True))


def _rounded_formula(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.one(x)
    return net.two(0.5 * y * (1 + torch.erf(y * 0.70710677)))


def _hooked() -> nn.Module:
    module = HandWritten(inputs=4)
    module.fc1.register_forward_hook(lambda _, __, output: 2 * output)
    return module


def _of_two(call: Callable[[Any, Any], Any]) -> nn.Module:
    return Written(call, **_linears("one", "two"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: _of_two(lambda net, x: x + net.two(torch.relu(net.one(x)))),
            "other values than the one before it",
        ),
        (
            lambda: _of_two(lambda net, x: net.two(torch.softmax(net.one(x), -1))),
            r"the network \(softmax\)",
        ),
        (lambda: _of_two(_rounded_formula), "nor exactly a known activation"),
        (
            lambda: _of_two(lambda net, x: net.two(net.one(x).T.contiguous().view(-1, 4))),
            "the network |of the batch",
        ),
        (_hooked, "fc1 has forward hooks"),
        (
            lambda: _of_two(lambda net, x: torch.relu(net.one(x))).double(),
            r"one\.weight is torch\.float64",
        ),
    ],
    ids=["two values", "softmax", "rounded", "transposed", "hook", "float64"],
)
def test_what_is_no_row_of_layers_is_refused_by_name(
    make: Callable[[], nn.Module], said: str
) -> None:
    with pytest.raises(Unsupported, match=said):
        in_layers(make(), (4,))


def test_a_layer_applied_twice_in_a_row_is_applied_twice() -> None:
    made = in_layers(Written(lambda net, x: net.layer(net.layer(x)), layer=nn.Linear(4, 4)), (4,))
    assert len(made._modules) == 2


def _biased_norm(m: Any, x: torch.Tensor) -> torch.Tensor:
    mean, variance, bias = torch.zeros(4), torch.ones(4), torch.arange(4.0)
    return functional.batch_norm(m.one(x), mean, variance, None, bias)


def _scaled_twice(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.two(functional.relu(m.one(x)) * 1.0000000000000004)


def _written_mish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tanh(functional.softplus(x, threshold=20))


def _linears(*names: str) -> dict[str, nn.Module]:
    return {name: nn.Linear(4, 4) for name in names}


_Call = Callable[[Any, torch.Tensor], torch.Tensor]
_CASES: dict[str, tuple[_Call, dict[str, nn.Module]]] = {
    "a slope and a factor 1": (lambda m, x: 1.0 * functional.leaky_relu(m.one(x), 0.3), {}),
    "an alpha and a factor 1": (lambda m, x: functional.elu(m.one(x), 2.0) * 1.0, {}),
    "an alpha and a divisor 1": (lambda m, x: functional.elu(m.one(x), 2.0) / 1, {}),
    "names with two underscores": (
        lambda m, x: m.fc2(m.act__1(m.fc3(m.act__1(m.one(x))))),
        {**_linears("fc2", "fc3"), "act__1": nn.ReLU()},
    ),
    "a name that another layer gets": (
        lambda m, x: m.relu(m.two(m.relu__1(m.fc(m.relu(m.one(x)))))),
        {**_linears("two", "fc"), "relu": nn.ReLU(), "relu__1": nn.Tanh()},
    ),
    "names of a list's methods": (
        lambda m, x: m.pop(m.append(m.extend(m.insert(x)))),
        _linears("pop", "append", "extend", "insert"),
    ),
    "a pool twice": (
        lambda m, x: m.pool(m.pool(m.one(x)[:, None])).flatten(1),
        {"pool": nn.AvgPool1d(3, 1, 1)},
    ),
    "a pool twice, unflattened": (
        lambda m, x: m.pool(m.pool(m.unflatten(x))),
        {"pool": nn.AvgPool1d(3, 1, 1), "unflatten": nn.Unflatten(1, (1, 4))},
    ),
    "a formula that begins before its layer": (
        lambda m, x: m.act(m.one(x) / 6 + 0.5),
        {"act": nn.Hardtanh(0.0, 1.0)},
    ),
    "a softplus with a low threshold": (
        lambda m, x: m.one(x) * torch.tanh(functional.softplus(m.one(x), threshold=5)),
        {},
    ),
    "a formula with a softplus": (lambda m, x: _written_mish(m.one(x)), {}),
    "nearly a relu6": (lambda m, x: m.one(x).clamp(0.0, 6.000004), {}),
    "a norm with a bias alone": (_biased_norm, {}),
    "outputs that are small": (
        lambda m, x: m.two(functional.relu(m.one(x))),
        {"two": nn.Linear(4, 2)},
    ),
    "a bias for all": (lambda m, x: functional.linear(x, m.one.weight, m.one.bias[:1]), {}),
    "a weight that is a vector": (lambda m, x: functional.linear(x, m.one.weight[0]), {}),
    "the greatest of numbers": (lambda m, x: torch.maximum(x - x, torch.zeros(4)), {}),
    "a relu of zero": (lambda m, x: functional.relu(m.one(x) * 0.0), {}),
    "a relu of nothing": (lambda m, x: functional.relu(x - x), {}),
    "divided by zero": (lambda m, x: m.one(x) / 0.0, {}),
    "a cast": (lambda m, x: m.one(functional.relu(x.float())), {}),
    "the greater": (lambda m, x: torch.max(m.one(x), torch.zeros(4)), {}),
    "a size that is computed": (lambda m, x: functional.relu(m.one(x)) * (1 + x.shape[0] // 8), {}),
    "nearly a relu": (_scaled_twice, _linears("two")),
    "a scaled elu": (lambda m, x: torch.ops.aten.elu(m.one(x), 1.0, 2.0, 1.0), {}),
}


_READ = (
    "names with two underscores",
    "a name that another layer gets",
    "names of a list's methods",
    "a pool twice, unflattened",
    "a bias for all",
)
_REFUSED = (
    "nearly a relu",
    "a scaled elu",
    "a size that is computed",
    "a formula with a softplus",
    "nearly a relu6",
    "a formula that begins before its layer",
)


@torch.no_grad()
@pytest.mark.parametrize("kind", _CASES)
def test_layers_compute_what_the_network_computes_or_are_refused(kind: str) -> None:
    torch.manual_seed(0)
    call, layers = _CASES[kind]
    module = Written(call, one=nn.Linear(4, 4), **layers).eval()
    try:
        made = in_layers(module, (4,))
    except Unsupported:
        assert kind not in _READ
        return
    assert kind not in _REFUSED
    made, exact = copy.deepcopy(made).double(), copy.deepcopy(module).double()
    for scale in (1, 10, 100):
        inputs = torch.randn(16, 4, dtype=torch.float64) * scale
        torch.testing.assert_close(made(inputs), exact(inputs), rtol=1e-12, atol=1e-14)
