"""Attention and LayerNorm: bounded soundly by our own steps, refused by path where they are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bounds_sampled import Sampled, check_each
from bounds_sampled import boxes as boxes_around
from cases import slow
from torch import nn
from torch.nn import functional
from written import Written, bench_of

from evalsuite import Network, Property, Split, Unsupported
from opgraph.modules import in_modules
from pipelines.bounds import Bounds, graph_certification
from pipelines.bounds.graph_certification import certify_graph
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.rounding import Rounding
from pipelines.bounds.rounding_rules import least_variance, softmax
from pipelines.bounds.spread import Run, Spread

MakeNetwork = Callable[..., Network]
METHODS = ("ibp", "crown-ibp", "crown")  # our own steps go backward alone


class Mixed(nn.Module):
    """One block of attention over positions made of one input, with a norm, a residual sum and a
    mean where asked.
    """

    def __init__(
        self, positions: int, heads: int, size: int, *, causal: bool, norm: bool, act: nn.Module
    ) -> None:
        super().__init__()
        width = heads * size
        self.positions, self.heads, self.causal = positions, heads, causal
        self.first, self.mix, self.out = (
            nn.Linear(4, positions * width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.act, self.last = act, nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).unflatten(1, (self.positions, -1))
        parts = [
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.mix(self.norm(h)).chunk(3, dim=-1)
        ]
        mixed = functional.scaled_dot_product_attention(
            parts[0], parts[1], parts[2], is_causal=self.causal
        )
        y: torch.Tensor = self.last(
            self.act(h + self.out(mixed.transpose(1, 2).flatten(-2))).mean(1)
        )
        return y


def attending(seed: int) -> Network:
    """Geometries and gains by the seed."""
    torch.manual_seed(seed)
    act = (nn.GELU, nn.ReLU, nn.SiLU)[seed % 3]()
    module = Mixed(
        2 + seed % 4,
        1 + seed % 3,
        1 + seed % 2 + seed // 2 % 2,
        causal=seed % 5 == 0,
        norm=seed % 2 == 1,
        act=act,
    ).eval()
    for each in module.parameters():
        each.data *= (1.0, 2.0, 4.0)[seed // 3 % 3]
    return Network("attending", module, (4,), 3)


def assert_sound(subject: Network, eps: float, points: int) -> None:
    sampled = Sampled(subject, boxes_around(subject.input_shape, eps, 2), points, climbing=32)
    check_each(Propagation(subject), sampled, METHODS)


@pytest.mark.parametrize(
    ("seed", "eps", "points"),
    [
        *((seed, 0.05, 1000) for seed in (0, 1, 5)),
        *(slow(seed, eps, 4000) for seed in (2, 3, 4, 7) for eps in (0.02, 0.4)),
    ],
)
def test_attention_is_bounded_soundly(seed: int, eps: float, points: int) -> None:
    assert_sound(attending(seed), eps, points)


def test_crown_is_tighter_than_intervals_and_close_to_the_truth() -> None:
    subject = attending(1)
    region = Property.robustness(
        torch.full((4,), 0.5), sample=0, label=0, eps=0.01, domain=(0.0, 1.0)
    )
    propagation = Propagation(subject)
    crown, intervals = (propagation.bounds([region], method) for method in ("crown", "ibp"))
    assert ((crown.lower >= intervals.lower) & (crown.upper <= intervals.upper)).all()
    corners = torch.cartesian_prod(*[torch.tensor([0.49, 0.51], dtype=torch.float64)] * 4)
    with torch.no_grad():
        true = copy.deepcopy(subject.module).double()(corners)
    assert (crown.upper - crown.lower).max() < 3 * (true.amax(0) - true.amin(0)).max()


def test_shares_of_what_may_be_anything_lie_between_0_and_1() -> None:
    wide = torch.tensor([[torch.inf, 1.0], [torch.nan, 0.0], [1e200, 0.0]]).double()
    zero = torch.zeros_like(wide)
    run = Run(torch.zeros(len(wide), dtype=torch.bool))
    center, radius, _ = softmax(Spread.of(zero, wide, zero, run)).parts()
    assert (center - radius <= 1e-9).all()
    assert (center + radius >= 1 - 1e-9).all()


class Masked(nn.Module):
    """Attention with a mask of its own."""

    def __init__(self, **named: Any) -> None:
        super().__init__()
        self.first, self.last, self.named = nn.Linear(4, 6), nn.Linear(6, 3), named

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).reshape(-1, 1, 2, 3)
        y: torch.Tensor = self.last(
            functional.scaled_dot_product_attention(h, h, h, **self.named).flatten(1)
        )
        return y


def test_attention_with_a_mask_of_its_own_is_refused_by_path() -> None:
    module = nn.Sequential(Masked(attn_mask=torch.zeros(2, 2))).eval()
    with pytest.raises(Unsupported, match="0_scaled_dot_product_attention: no bound of the round"):
        Propagation(Network("masked", module, (4,), 3))


@pytest.mark.parametrize("scale", [2.0, -3.0])
def test_a_query_that_is_its_own_key_is_bounded_soundly(scale: float) -> None:
    torch.manual_seed(0)
    assert_sound(Network("same", nn.Sequential(Masked(scale=scale)).eval(), (4,), 3), 0.3, 2000)


def test_the_rounding_of_attention_covers_float32() -> None:
    torch.manual_seed(0)
    for gain in (1.0, 30.0):
        module = Mixed(5, 2, 3, causal=False, norm=False, act=nn.ReLU()).eval()
        module.mix.weight.data *= gain
        center = torch.randn(1, 4).double()
        with torch.no_grad():
            rounding = Rounding(in_modules(module, torch.rand(2, 4), exact=True))
            single = rounding.errors(center - 1e-3, center + 1e-3)[0]
            x = (center + 2e-3 * (torch.rand(2000, 4).double() - 0.5)).float()
            off = module(x).double() - copy.deepcopy(module).double()(x.double())
        assert (off.abs() <= single).all()
        assert single.max() < 1e5 * off.abs().max()


def test_the_stage_bounds_attention_by_zonotopes_and_by_lines_where_it_is_narrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = attending(1)
    inputs = torch.rand(2, 4)
    with torch.no_grad():
        part = Split(inputs, network.module(inputs).argmax(1))
    bench = bench_of(part, 3, tmp_path)
    options = Bounds(eps=(2**-12,), samples=2, methods=("crown",), restarts=1)

    def certified() -> dict[str, Any]:
        metrics, _ = certify_graph(network, bench, options)
        return {
            str(each.setting["method"]): each
            for each in metrics
            if each.name == "certified_accuracy" and each.sample is None
        }

    found = certified()
    assert {method: each.value for method, each in found.items()} == {
        "graph-zonotope": 1.0,
        "graph-crown": 1.0,
    }
    monkeypatch.setattr(graph_certification, "NARROW", 1)
    found = certified()
    assert found["graph-zonotope"].value == 1.0
    assert found["graph-crown"].value is None
    assert "see graph-zonotope" in found["graph-crown"].reason


def residual(width: int, act: nn.Module) -> nn.Module:
    """h + act(linear(norm(h))), as in a transformer's feed-forward part."""
    return Written(
        lambda net, x: net.last((h := net.first(x)) + net.act(net.up(net.norm(h)))),
        first=nn.Linear(4, width),
        norm=nn.LayerNorm(width),
        up=nn.Linear(width, width),
        act=act,
        last=nn.Linear(width, 3),
    )


def normed(seed: int) -> Network:
    """Several geometries: a norm behind a layer, of the input and twice, without parameters, in
    a residual branch.
    """
    torch.manual_seed(seed)
    width = 2 + seed % 7
    act = (nn.ReLU, nn.GELU, nn.SiLU)[seed % 3]()
    kinds: list[list[nn.Module]] = [
        [nn.Linear(4, width), nn.LayerNorm(width), act, nn.Linear(width, 3)],
        [nn.LayerNorm(4), nn.Linear(4, width), act, nn.LayerNorm(width), nn.Linear(width, 3)],
        [
            nn.Linear(4, width),
            nn.LayerNorm(width, elementwise_affine=False),
            nn.Linear(width, 4),
            act,
            nn.Linear(4, 3),
        ],
        [residual(width, act)],
    ]
    module = nn.Sequential(*kinds[seed % 4]).eval()
    for each in module.modules():
        if isinstance(each, nn.LayerNorm) and each.elementwise_affine:
            nn.init.normal_(each.weight)
            nn.init.normal_(each.bias)
    return Network("normed", module, (4,), 3)


def assert_norms_sound(subject: Network, eps: float, points: int) -> None:
    properties = boxes_around((4,), eps, domain=(-2.0, 2.0))
    check_each(Propagation(subject), Sampled(subject, properties, points), METHODS)


@pytest.mark.parametrize(
    ("seed", "eps"),
    [
        *((seed, 0.1) for seed in range(4)),
        *(slow(seed, eps) for seed in range(4, 12) for eps in (0.01, 1.0)),
    ],
)
def test_layer_norms_are_bounded_soundly(seed: int, eps: float) -> None:
    assert_norms_sound(normed(seed), eps, 1000)


def test_attention_written_by_hand_is_bounded_soundly() -> None:
    def attended(net: Any, x: torch.Tensor) -> torch.Tensor:
        query, key, value = net.mix(net.first(x).reshape(-1, 2, 3)).split(3, dim=-1)
        mixed = torch.softmax(query @ key.transpose(1, 2), -1) @ value
        return net.last(mixed.flatten(1))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    module = Written(attended, first=nn.Linear(4, 6), mix=nn.Linear(3, 9), last=nn.Linear(6, 3))
    assert_norms_sound(Network("attention", nn.Sequential(module).eval(), (4,), 3), 0.1, 1000)


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
    single = Rounding(in_modules(module, torch.rand(2, 8), exact=True)).errors(
        center - 1e-3, center + 1e-3
    )[0]
    points = (center + 2e-3 * (torch.rand(2000, 8).double() - 0.5)).float()
    with torch.no_grad():
        off = module(points).double() - copy.deepcopy(module).double()(points.double())
    assert (off.abs() <= single).all()
    assert single.max() < 1e3 * off.abs().max()
