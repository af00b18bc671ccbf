"""Zonotopes hold what a network computes, with all rounding, and keep what values have in
common.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import slow
from graph_networks import RMSNorm, made
from networks_by_hand import Written
from torch import nn
from torch.nn import functional

from lambda_gelu.activations import GELU, RELU, LambdaGELU
from lambda_gelu.activations.leaky import _leaky
from netverify.certificate import SwapBounds, swap
from netverify.graph import CONVEX
from netverify.zonotopes.forward import zonotope_of
from netverify.zonotopes.normalised import _logarithms, _scores, norm, softmax
from netverify.zonotopes.quadratic import _bend, _gelu, _parabola, bent, dot, products, times
from netverify.zonotopes.zonotope import Symbols, Zonotope, spread_of
from opgraph import Graph, read
from opgraph.errors import Unsupported
from opgraph.operations import LayerNorm, Linear, Reduction, Softmax

_LATER = torch.ones(3, 3, dtype=torch.bool).triu(1)


def _halves(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> nn.Module:
    """A function, of the first half of a linear layer's outputs and the second."""
    layers = {"first": nn.Linear(6, 8), "last": nn.Linear(4, 3)}
    return Written(lambda net, x: net.last(function(*net.first(x).chunk(2, -1))), **layers)


class _Attention(nn.Module):
    def __init__(self, *, causal: bool = False, mask: float | None = None) -> None:
        super().__init__()
        self.into, self.out, self.causal = nn.Linear(4, 12), nn.Linear(4, 3), causal
        self.register_buffer(
            "mask", None if mask is None else torch.zeros(3, 3).masked_fill(_LATER, mask)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.into(x.reshape(-1, 3, 4)).chunk(3, -1)
        if self.mask is None:
            mixed = functional.scaled_dot_product_attention(
                query, key, value, is_causal=self.causal
            )
        else:
            mixed = (query @ key.transpose(-1, -2) + self.mask).softmax(-1) @ value
        return self.out(mixed).flatten(1)  # type: ignore[no-any-return]


class _Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Linear(16, 3),
        )
        self.norm.running_mean, self.norm.running_var = torch.randn(4), torch.rand(4) + 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.avg_pool2d(
            functional.hardtanh(self.norm(self.conv(x.reshape(-1, 1, 4, 4)))), 2
        )
        return self.last(functional.gelu(x).flatten(1))  # type: ignore[no-any-return]


_MODULES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "gelu": (lambda: _halves(lambda x, _: functional.gelu(x)), 6),
    "relu less gelu": (lambda: _halves(lambda x, y: functional.relu(x) - functional.gelu(y)), 6),
    "product": (lambda: _halves(lambda x, y: x * y), 6),
    "square": (lambda: _halves(lambda x, _: x * x), 6),
    "gate": (lambda: _halves(lambda x, y: functional.silu(x) * y), 6),
    "quotient": (lambda: _halves(lambda x, y: x / (0.1 * functional.hardtanh(y) + 2)), 6),
    "softmax": (lambda: _halves(lambda x, y: (3 * x).softmax(-1) * y), 6),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)), 6),
    "rms norm": (lambda: nn.Sequential(nn.Linear(6, 4), RMSNorm(4), nn.Linear(4, 3)), 6),
    "causal attention": (lambda: _Attention(causal=True), 12),
    "added mask": (lambda: _Attention(mask=-1e38), 12),
    "soft mask": (lambda: _Attention(mask=-2.0), 12),
    "convolutions": (_Convolutional, 16),
}


def _of(graph: Graph, center: torch.Tensor, eps: float) -> Zonotope:
    return zonotope_of(graph, center - eps, center + eps)


def _ends(found: Zonotope) -> tuple[torch.Tensor, torch.Tensor]:
    eye = torch.eye(found.center.numel(), dtype=torch.float64)
    return found.lower_bounds(eye), -found.lower_bounds(-eye)


def _points(center: torch.Tensor, eps: float, count: int) -> torch.Tensor:
    """Of the box: half of them corners."""
    moved = 2 * torch.rand(count, *center.shape[1:], dtype=torch.float64) - 1
    moved[::2] = moved[::2].sign()
    return center + eps * moved


def _held(
    module: nn.Module, center: torch.Tensor, *radii: float, points: int = 300
) -> Iterator[list[torch.Tensor]]:
    """Of each radius the ends, and the values at points of the ball, which lie between."""
    graph, exact = (
        read(module, center.float().repeat(2, *[1] * (center.ndim - 1))),
        copy.deepcopy(module).double(),
    )
    for eps in radii:
        low, high = _ends(_of(graph, center, eps))
        values = exact(_points(center, eps, points))
        assert bool(((low <= values) & (values <= high)).all())
        yield [low, high, values]


@torch.no_grad()
@pytest.mark.parametrize("name", _MODULES)
def test_no_point_lies_outside(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = _MODULES[name]
    for scale in (1.0, 30.0):
        module, radii = make().eval(), (0.0, 1e-3, 0.05, 1.0)
        for each in module.parameters():
            each *= scale if each.ndim > 1 else 1
        found = _held(module, torch.randn(1, inputs, dtype=torch.float64), *radii)
        for eps, (low, high, values) in zip(radii, found, strict=True):
            if eps == 0:
                assert bool((high - low <= 1e-9 * (1 + values.abs().amax(0))).all())
            elif eps == 1e-3 and scale == 1:  # near the center a network is nearly linear
                assert bool((high - low <= 3 * (values.amax(0) - values.amin(0)) + 1e-6).all())


@torch.no_grad()
@pytest.mark.parametrize("name", ["vit", slow("mixer"), "convnext"])
def test_no_point_lies_outside_of_whole_networks(name: str) -> None:
    module, inputs = made(name)
    assert isinstance(inputs, torch.Tensor)
    torch.manual_seed(0)
    assert len(list(_held(module, inputs[:1].double(), 1e-2, points=200))) == 1


@torch.no_grad()
def test_linear_networks_are_exact() -> None:
    """By the sum of the magnitudes of a row, and of two networks by that of their difference."""
    torch.manual_seed(0)
    first, second = (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)) for _ in range(2))
    example, center = torch.randn(2, 5), torch.randn(1, 5, dtype=torch.float64)
    found = [_of(read(each, example), center, 0.1) for each in (first, second)]
    matrices = [each[1].weight.double() @ each[0].weight.double() for each in (first, second)]
    torch.testing.assert_close(
        found[0].spread[0], 0.1 * matrices[0].abs().sum(1), rtol=1e-9, atol=0
    )
    apart = found[0].minus(found[1], 5)
    torch.testing.assert_close(
        apart.spread[0], 0.1 * (matrices[0] - matrices[1]).abs().sum(1), rtol=1e-9, atol=0
    )


@torch.no_grad()
def test_what_cancels_cancels() -> None:
    """Where each value had only an interval, the difference would be as wide as both together."""
    torch.manual_seed(0)
    center, inputs = torch.randn(1, 6, dtype=torch.float64), torch.randn(2, 6)
    low, high = _ends(_of(read(_halves(lambda x, _: (x + 1) - x), inputs), center, 1.0))
    assert float((high - low).max()) < 1e-9
    square = read(_halves(lambda x, _: x * x - x * x), inputs)
    both = read(_halves(lambda x, _: x * x), inputs)
    widths = [_of(each, center, 0.1).spread.max() for each in (square, both)]
    assert widths[0] < widths[1]


@torch.no_grad()
def test_second_derivatives_cancel() -> None:
    """(x + y)^2 - (x - y)^2 - 4 x y is 0, also as far as it is seen from outside a box."""
    torch.manual_seed(0)
    function = _halves(lambda x, y: (x + y) * (x + y) - (x - y) * (x - y) - 4.0 * (x * y))
    found = _of(read(function, torch.randn(2, 6)), torch.randn(1, 6, dtype=torch.float64), 1.0)
    assert float(found.spread.max()) < 1e-9


@torch.no_grad()
def test_the_rest_of_a_smooth_network_falls_with_the_cube_of_the_radius() -> None:
    torch.manual_seed(0)
    graph, center = read(_Attention(), torch.randn(2, 12)), torch.randn(1, 12, dtype=torch.float64)
    known = 12 + products(12)
    rests = [spread_of(_of(graph, center, eps).generators[known:]).max() for eps in (1e-2, 1e-3)]
    assert float(rests[1]) < 2e-3 * float(rests[0])


@torch.no_grad()
@pytest.mark.parametrize("name", ["exp", "reciprocal", "rsqrt", "gelu", "relu", "leaky"])
def test_parabolas_hold_what_they_are_of(name: str) -> None:
    """Over intervals of all widths, near the place where a function bends most and far from it;
    one is a point.
    """
    torch.manual_seed(0)
    functions = {
        "gelu": functional.gelu,
        "relu": functional.relu,
        "leaky": lambda x: functional.leaky_relu(x, 0.25),
    }
    half = (10.0 ** torch.linspace(-9, 1, 60, dtype=torch.float64)).repeat(12)
    half[0] = 0.0
    center = torch.randn(len(half), dtype=torch.float64) * 3
    if name in ("reciprocal", "rsqrt"):
        center = half * (1 + 10 ** (4 * torch.rand_like(half) - 3)) + 1e-3
    if name in ("relu", "leaky"):
        center = half * (2 * torch.rand_like(half) - 1)
    x = Zonotope(center[None], half[None, None], torch.zeros(1, len(half), dtype=torch.float64))
    if name in functions:
        traits = {"gelu": GELU, "relu": RELU, "leaky": _leaky(0.25)}[name]
        parabola, function = (_gelu(x) if name == "gelu" else _bend(traits, x)), functions[name]
    else:
        ends = center - half, center + half
        parabola, function = _parabola(name, center, *ends), CONVEX[name]
    away = half * torch.linspace(-1, 1, 101, dtype=torch.float64)[:, None]
    found = parabola.constant + (parabola.slope + parabola.bend * away) * away
    rounded = 1e-13 * (1 + function(center + away).abs())
    known = parabola.rest.isfinite()
    assert bool(
        (((function(center + away) - found).abs() <= parabola.rest + rounded) | ~known).all()
    )
    assert float(known.double().mean()) > 0.3


class _Drawn:
    """Zonotopes of some symbols of a box, their products and `more`, and draws of all symbols."""

    def __init__(self, draws: int, first: int, more: int, far: float, radius: float) -> None:
        self.first, self.made, self.more, self.far, self.radius = (
            first,
            products(first),
            more,
            far,
            radius,
        )
        self.symbols = Symbols(self.first, self.made)
        self.symbols._count += self.more
        box, more = (
            torch.rand(draws, each, dtype=torch.float64) * 2 - 1 for each in (self.first, self.more)
        )
        box[::2], more[::3] = box[::2].sign(), more[::3].sign()
        rows, columns = torch.triu_indices(self.first, self.first)
        pairs = torch.where(
            rows == columns, 2 * box[:, rows] ** 2 - 1, box[:, rows] * box[:, columns]
        )
        self.values = torch.cat([box, pairs, more], 1)

    def zonotope(self, *shape: int, size: float) -> Zonotope:
        count = self.values.shape[1]
        generators = size * torch.randn(count, 1, *shape, dtype=torch.float64)
        generators[self.first :] *= self.far
        radius = torch.full((1, *shape), self.radius * size, dtype=torch.float64)
        return Zonotope(torch.randn(1, *shape, dtype=torch.float64), generators, radius)

    def among(self, x: Zonotope) -> torch.Tensor:
        """Values of x, (draws, *shape), at random places within its radii and at their ends."""
        inside = torch.rand(len(self.values), *x.center.shape[1:], dtype=torch.float64) * 2 - 1
        inside[::2] = inside[::2].sign()
        return x.center + torch.tensordot(self.values, x.generators[:, 0], 1) + inside * x.radius

    def hold(self, x: Zonotope, values: torch.Tensor) -> bool:
        """Whether, with the symbols as they were drawn, only radii and later symbols are between
        x and the values.
        """
        known = self.values.shape[1]
        found = x.center + torch.tensordot(
            self.values[:, : len(x.generators)], x.generators[:known, 0], 1
        )
        return bool(
            ((found - values).abs() <= x.radius + spread_of(x.generators[known:]) + 1e-12).all()
        )


@torch.no_grad()
@pytest.mark.parametrize("size", [1e-3, 1.0])
@pytest.mark.parametrize(
    ("first", "more", "far", "radius"),
    [(1, 0, 0, 0.0), (2, 1, 1e-3, 0.0), (1, 1, 1, 0.0), (3, 1, 1, 0.3), (4, 5, 1, 0.1)],
)
def test_with_symbols_as_drawn_all_is_within_what_is_left(
    size: float, first: int, more: int, far: float, radius: float
) -> None:
    """Nearer than ends: at each draw, what an operation leaves to radii and new symbols is
    enough.
    """
    torch.manual_seed(0)
    drawn = _Drawn(500, first, more, far, radius)
    x, y = drawn.zonotope(2, 3, size=size), drawn.zonotope(3, 2, size=size)
    at, other = drawn.among(x), drawn.among(y)
    assert drawn.hold(times(x, x, first), at * at)
    turned = Zonotope(y.center.mT, y.generators.mT, y.radius.mT)
    assert drawn.hold(times(x, turned, first), at * other.mT)
    assert drawn.hold(dot(x, y, first), at @ other)
    row = drawn.zonotope(1, 3, size=size)
    column = Zonotope(row.center.mT, row.generators.mT, torch.zeros(1, 3, 1).double())
    values = drawn.among(replace(row, radius=row.radius * 0))
    assert drawn.hold(
        dot(replace(row, radius=column.radius.mT), column, first, square=True), values @ values.mT
    )
    for traits, function in ((GELU, functional.gelu), (RELU, functional.relu)):
        parabola = _gelu(x) if traits is GELU else _bend(traits, x)
        assert drawn.hold(bent(x, parabola, first), function(at))
    none = torch.zeros(1, 2, 3, dtype=torch.bool)
    logarithms = _logarithms(drawn.symbols, x, _scores(drawn.symbols, x, 2, none))
    assert drawn.hold(logarithms, at.log_softmax(2))
    assert drawn.hold(softmax(drawn.symbols, Softmax(2), x), at.softmax(2))
    made, normalised = (
        norm(drawn.symbols, LayerNorm((2,), 0.1), x),
        functional.layer_norm(at, (3,), eps=0.1),
    )
    assert drawn.hold(made, normalised)
    weight, bias, layer = (
        torch.randn(3).double(),
        torch.randn(3).double(),
        Linear(torch.randn(4, 3).double(), torch.randn(4).double()),
    )
    scaled = replace(made, weight=weight, bias=bias)
    assert drawn.hold(scaled.mapped(layer, first), layer(normalised * weight + bias))
    mean = Reduction("mean", (1,), False)
    assert drawn.hold(
        replace(scaled, mean=mean).mapped(layer, first), layer((normalised * weight + bias).mean(1))
    )


@torch.no_grad()
def test_a_low_value_is_no_mask() -> None:
    """Of two scores near -1e31 one has all of the share, and the other none: which, the box
    leaves open.
    """
    scores = nn.Linear(1, 2)
    scores.weight.copy_(torch.tensor([[1e31], [-1e31]]))
    scores.bias.fill_(-1e33)
    added = torch.tensor([1.0, 2.0])
    module = Written(
        lambda net, x: (net.scores(x) + net.added).softmax(-1), scores=scores, added=added
    )
    assert list(_held(module, torch.zeros(1, 1, dtype=torch.float64), 1.0))


@torch.no_grad()
def test_a_share_near_the_least_numbers_is_held() -> None:
    """Its logarithm is known from the scores, and not from the share, of which few digits are
    left.
    """
    scores, last = nn.Linear(1, 2), nn.Linear(2, 1, bias=False)
    for parameter, value in (
        (scores.weight, [[0.0], [742.0826]]),
        (scores.bias, [0.0, -744.04]),
        (last.weight, [[0.0, 1.0]]),
    ):
        parameter.copy_(torch.tensor(value))
    module = nn.Sequential(scores, nn.Softmax(-1), last)
    assert list(_held(module, torch.zeros(1, 1, dtype=torch.float64), 1.0))


@torch.no_grad()
def test_a_norm_whose_bias_is_one_number_goes_through_a_linear_layer() -> None:
    def norm(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = x - x.mean(-1, keepdim=True)
        y = y / torch.sqrt(y.square().mean(-1, keepdim=True) + 0.1)
        return net.last(y * net.weight + net.bias)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    weights = {"weight": nn.Parameter(torch.randn(4)), "bias": nn.Parameter(torch.randn(1))}
    module = Written(norm, **weights, last=nn.Linear(4, 5))
    assert list(_held(module, torch.randn(1, 4, dtype=torch.float64), 0.05))


@torch.no_grad()
def test_a_softmax_is_never_beyond_0_and_1() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Softmax(-1))
    module[0].weight.mul_(1000)
    ((low, high, _),) = _held(module, torch.randn(1, 4, dtype=torch.float64), 1.0)
    assert bool((low >= -1e-6).all())
    assert bool((high <= 1 + 1e-6).all())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, y: torch.sin(x) + y, "no zonotope of sin"),
        (lambda x, y: torch.maximum(x, y), "no zonotope of maximum"),
        (lambda x, _: x.log_softmax(-1), "the logarithm of a softmax"),
        (lambda x, y: x / y, "reciprocal of a value that may be 0 or less"),
    ],
)
def test_what_has_no_zonotope_and_what_is_no_box_are_refused(
    function: Callable[..., torch.Tensor], said: str
) -> None:
    graph, zero = read(_halves(function), torch.randn(2, 6)), torch.zeros(1, 6, dtype=torch.float64)
    with pytest.raises(Unsupported, match=said):
        _of(graph, zero, 0.5)
    with pytest.raises(ValueError, match="reversed"):
        zonotope_of(graph, zero + 1, zero)
    with pytest.raises(ValueError, match="NaN or infinite"):
        zonotope_of(graph, zero, zero + torch.inf)


@pytest.mark.slow
@torch.no_grad()
def test_swap_certificates_of_attention_are_nearer_than_by_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, inputs = made("vit")
    assert isinstance(inputs, torch.Tensor)
    center, eps = inputs[:1].double(), 2.0**-5
    bounds = SwapBounds(module, tuple(inputs.shape[1:]))
    ours = bounds.certify(center - eps, center + eps)
    moved = bounds.difference(_points(center, eps, 300))
    assert bool(((ours.difference_lower <= moved) & (moved <= ours.difference_upper)).all())
    monkeypatch.setattr(swap, "attends", lambda _: False)
    by_lines = SwapBounds(module, tuple(inputs.shape[1:])).certify(center - eps, center + eps)
    assert float(ours.disruption) <= 0.9 * float(by_lines.disruption)


@pytest.mark.slow
@torch.no_grad()
def test_a_lambda_that_is_swept_needs_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, inputs = made("vit")
    assert isinstance(inputs, torch.Tensor)
    monkeypatch.setattr(swap, "_NARROW", 0)
    monkeypatch.delattr(swap, "_certified")
    bounds, center, found = SwapBounds(module, tuple(inputs.shape[1:])), inputs[:1].double(), []
    for hardness in (1.0, 320.0):
        ours = bounds.certify(center - 2**-8, center + 2**-8, hardness=hardness)
        moved = bounds.difference(_points(center, 2**-8, 300), hardness=hardness)
        assert bool(((ours.difference_lower <= moved) & (moved <= ours.difference_upper)).all())
        point = bounds.certify(center, center, hardness=hardness)
        torch.testing.assert_close(
            point.difference_lower, bounds.difference(center, hardness=hardness)
        )
        found.append(float(point.disruption))
    assert found[0] > found[1]


def test_zonotopes_take_a_hardness_that_is_no_float32_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(_Attention(), LambdaGELU(hardness=2.7), nn.Linear(9, 3)).eval()
    hardness = copy.deepcopy(module[1]).double().hardness
    assert not torch.equal(hardness.float().double(), hardness)
    for name, value in (("_NARROW", 0), ("_certified", None)):  # no lines carried backward
        monkeypatch.setattr(swap, name, value)
    bounds, x = SwapBounds(module, (12,)), torch.rand(3, 12, dtype=torch.float64)
    at_points = bounds.certify(x, x).disruption
    assert at_points == pytest.approx(bounds.difference(x).abs().amax(1), rel=1e-6)
