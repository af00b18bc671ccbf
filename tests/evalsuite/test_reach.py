"""Bounds of what reaches the activations: by hand, by sampling, and never worse than either
method alone.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from written import Written

from evalsuite import LambdaGELU, Unsupported
from netverify import preactivation_bounds


def test_by_hand() -> None:
    module = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2), nn.GELU(), nn.Linear(2, 1))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1.0, -2.0]]))
        module[0].bias.fill_(0.5)
        module[2].weight.copy_(torch.tensor([[3.0], [-1.0]]))
        module[2].bias.copy_(torch.tensor([0.0, 1.0]))
    first, second = preactivation_bounds(module, torch.zeros(1, 2), torch.ones(1, 2))
    assert (first.path, second.path) == ("1", "3")
    torch.testing.assert_close(first.lower, torch.tensor([[-1.5]], dtype=torch.float64))
    torch.testing.assert_close(first.upper, torch.tensor([[1.5]], dtype=torch.float64))
    torch.testing.assert_close(
        second.lower, torch.tensor([[0.0, -0.5]], dtype=torch.float64), atol=1e-9, rtol=0
    )
    torch.testing.assert_close(
        second.upper, torch.tensor([[4.5, 1.0]], dtype=torch.float64), atol=1e-9, rtol=0
    )


def test_a_cancellation_that_intervals_alone_do_not_see() -> None:
    # relu(x) - relu(x) + 0.1: intervals say [-0.9, 1.1].
    module = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1))
    with torch.no_grad():
        module[0].weight.fill_(1.0)
        module[0].bias.fill_(0.0)
        module[2].weight.copy_(torch.tensor([[1.0, -1.0]]))
        module[2].bias.fill_(0.1)
    second = preactivation_bounds(module, torch.zeros(1, 1), torch.ones(1, 1))[1]
    torch.testing.assert_close(
        second.lower, torch.tensor([[0.1]], dtype=torch.float64), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        second.upper, torch.tensor([[0.1]], dtype=torch.float64), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.SiLU, LambdaGELU])
def test_no_sample_leaves_the_bounds(activation: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        activation(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 5),
        activation(),
        nn.Linear(5, 2),
    )
    module(torch.rand(16, 1, 4, 4))
    module = module.double().eval()
    middle = torch.rand(3, 1, 4, 4, dtype=torch.float64)
    bounds = preactivation_bounds(module, middle - 0.3, middle + 0.3)
    assert [each.path for each in bounds] == ["2", "6"]
    for box in range(3):
        x = middle[box] + 0.3 * (2 * torch.rand(200, 1, 4, 4, dtype=torch.float64) - 1)
        x[:50] = middle[box] + 0.3 * (x[:50] - middle[box]).sign()
        for each in bounds:
            values = module[: int(each.path)](x).flatten(1)
            assert bool((values >= each.lower[box]).all())
            assert bool((values <= each.upper[box]).all())
            # A point has no width, and its bounds none but rounding's.
    points = preactivation_bounds(module, middle, middle)
    for each in points:
        assert float((each.upper - each.lower).max()) < 1e-10
        torch.testing.assert_close(each.upper, module[: int(each.path)](middle).flatten(1))


def test_of_a_network_that_is_no_chain() -> None:
    def residual(net: Any, x: torch.Tensor) -> torch.Tensor:
        h = net.first(x)
        return h + torch.softmax(net.act(net.norm(h)), -1)

    torch.manual_seed(0)
    module = Written(
        residual, first=nn.Linear(3, 4), norm=nn.LayerNorm(4), act=LambdaGELU(hardness=7.0)
    )
    middle = torch.rand(2, 3)
    (found,) = preactivation_bounds(module, middle - 0.1, middle + 0.1)
    assert found.path == "act"
    module = module.double()
    for box in range(2):
        x = middle[box] + 0.1 * (2 * torch.rand(2000, 3) - 1)
        values = module.norm(module.first(x.double())).detach()
        assert bool(((values >= found.lower[box]) & (values <= found.upper[box])).all())
        assert float((found.upper - found.lower)[box].max()) < 4 * float(
            (values.amax(0) - values.amin(0)).max()
        )


def test_what_it_cannot_bound_it_refuses() -> None:
    box = torch.zeros(1, 2), torch.ones(1, 2)
    with pytest.raises(Unsupported, match="no sound bounds of erf"):
        preactivation_bounds(Written(lambda net, x: net.act(torch.erf(x)), act=nn.ReLU()), *box)
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="reversed"):
        preactivation_bounds(module, box[1], box[0])
    with pytest.raises(ValueError, match="boxes must be"):
        preactivation_bounds(module, box[0], box[1][0])
