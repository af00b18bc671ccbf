"""LayerNorm and attention: refused by name where their bounds are not sound, bounded where they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bounds_sampled import Sampled, boxes, check_each
from torch import nn
from written import Written

from evalsuite import Network, Unsupported, in_modules
from pipelines.bounds.layer_norm import least_variance
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.rounding import Rounding

MakeNetwork = Callable[..., Network]
# Our own steps go backward alone.
METHODS = ("ibp", "crown-ibp", "crown")


def residual(width: int, act: nn.Module) -> nn.Module:
    """h + act(linear(norm(h))), as in a transformer's feed-forward part."""
    return Written(
        lambda net, x: net.last((h := net.first(x)) + net.act(net.up(net.norm(h)))),
        first=nn.Linear(4, width), norm=nn.LayerNorm(width), up=nn.Linear(width, width), act=act,
        last=nn.Linear(width, 3),
    )  # fmt: skip


def normed(seed: int) -> Network:
    """Several geometries: a norm behind a layer, of the input and twice, without parameters, in a residual branch."""
    torch.manual_seed(seed)
    width = 2 + seed % 7
    act = (nn.ReLU, nn.GELU, nn.SiLU)[seed % 3]()
    kinds: list[list[nn.Module]] = [
        [nn.Linear(4, width), nn.LayerNorm(width), act, nn.Linear(width, 3)],
        [nn.LayerNorm(4), nn.Linear(4, width), act, nn.LayerNorm(width), nn.Linear(width, 3)],
        [nn.Linear(4, width), nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 4), act, nn.Linear(4, 3)],
        [residual(width, act)],
    ]
    module = nn.Sequential(*kinds[seed % 4]).eval()
    for each in module.modules():
        if isinstance(each, nn.LayerNorm) and each.elementwise_affine:
            nn.init.normal_(each.weight)
            nn.init.normal_(each.bias)
    return Network("normed", module, (4,), 3)


def assert_sound(subject: Network, eps: float, points: int) -> None:
    check_each(Propagation(subject), Sampled(subject, boxes((4,), eps, domain=(-2.0, 2.0)), points), METHODS)


@pytest.mark.parametrize("seed", range(4))
def test_layer_norms_are_bounded_soundly(seed: int) -> None:
    assert_sound(normed(seed), 0.1, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_layer_norms_are_bounded_soundly_in_many_points(seed: int) -> None:
    for eps in (0.01, 0.1, 0.5, 1.0):
        assert_sound(normed(seed), eps, 3000)


def test_attention_written_by_hand_is_bounded_soundly() -> None:
    def attended(net: Any, x: torch.Tensor) -> torch.Tensor:
        query, key, value = net.mix(net.first(x).reshape(-1, 2, 3)).split(3, dim=-1)
        mixed = torch.softmax(query @ key.transpose(1, 2), -1) @ value
        return net.last(mixed.flatten(1))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    module = Written(attended, first=nn.Linear(4, 6), mix=nn.Linear(3, 9), last=nn.Linear(6, 3))
    assert_sound(Network("attention", nn.Sequential(module).eval(), (4,), 3), 0.1, 1000)


def test_a_vision_transformer_is_refused_for_its_rounding(network: MakeNetwork) -> None:
    with pytest.raises(Unsupported, match="no useful bounds of float32 rounding"):
        Propagation(network("digits-vit", "gelu", epochs=1))


def test_the_least_variance_is_that_of_the_worst_point() -> None:
    low = torch.tensor([[0.0, 2.0, 5.0], [-1.0, 0.0, 0.5], [3.0, 3.0, 3.0]]).double()
    high = torch.tensor([[1.0, 3.0, 9.0], [1.0, 2.0, 3.0], [3.0, 3.0, 4.0]]).double()
    found = least_variance(low, high, (-1,))[:, 0]
    # (1, 2.5, 5) moves to (1, 3, 5): mean 3, variance 8 / 3; the others can all be equal.
    assert found.tolist() == pytest.approx([8 / 3, 0.0, 0.0], abs=1e-9)
    share = torch.rand(5000, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert ((low + share * (high - low)).var(-1, correction=0) >= found).all()


def test_the_rounding_of_a_layer_norm_covers_large_means() -> None:
    # Around 1000 the differences of 0.1 have lost four digits in float32.
    module = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2)).eval()
    torch.manual_seed(0)
    center = 1000 + 0.1 * torch.randn(1, 8).double()
    single = Rounding(in_modules(module, torch.rand(2, 8), exact=True)).errors(center - 1e-3, center + 1e-3)[0]
    points = (center + 2e-3 * (torch.rand(2000, 8).double() - 0.5)).float()
    with torch.no_grad():
        off = module(points).double() - copy.deepcopy(module).double()(points.double())
    assert (off.abs() <= single).all()
    assert single.max() < 1e3 * off.abs().max()
