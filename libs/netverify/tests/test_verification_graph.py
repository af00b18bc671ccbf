"""Files with norms, softmax, products and means: read, compared, and bounded soundly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from graph_networks import made
from networks_by_hand import Written
from torch import nn
from torch.nn import functional

from netverify.graph import CONVEX, Convex, Graph, Node, Product
from netverify.linear import Adjoint, Convolution, Same, Select
from netverify.onnx_reader import graph_of, graph_of_typed, read_onnx
from netverify.propagation import Propagation
from netverify.scalar_lines import bilinear, convex
from opgraph import read
from opgraph.deployment import export_onnx
from opgraph.errors import Unsupported
from opgraph.onnx_model import load_model

_EVERY = ("vit", "convnext", "mobilenet", "resnet", "unet")
_CHAINS = {
    "relu": nn.ReLU(),
    "leaky": nn.LeakyReLU(0.1),
    "gelu": nn.GELU(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
}


def chain(activation: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), activation, nn.Linear(16, 16), activation, nn.Linear(16, 3)
    )


def convolutional() -> nn.Module:
    first = (
        nn.Unflatten(1, (2, 6, 6)),
        nn.Conv2d(2, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    second = (
        nn.Conv2d(3, 4, 2),
        nn.LeakyReLU(0.1),
        nn.AvgPool2d(2, padding=1, stride=2, count_include_pad=False),
    )
    module = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(16, 3))
    module(torch.randn(8, 72))  # statistics of BatchNorm that are no zeros and ones
    return module


def residual() -> nn.Module:
    def call(net: Any, x: torch.Tensor) -> torch.Tensor:
        h = net.first(x)
        g = functional.gelu(h)
        return net.last(torch.sigmoid(torch.cat([torch.tanh(net.second(g)) + h - g, x], 1)))  # type: ignore[no-any-return]

    return Written(call, first=nn.Linear(6, 8), second=nn.Linear(8, 8), last=nn.Linear(14, 3))


class Small(nn.Module):
    """A norm, attention, a gate and an interpolation in few values."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(4, 12), nn.Linear(12, 3)
        # A file holds eps as float32.
        self.norm, self.up = (
            nn.LayerNorm(4, eps=2.0**-16),
            nn.ConvTranspose1d(3, 3, 2, stride=2, bias=False),
        )
        self.root = nn.RMSNorm(4, eps=2.0**-16)
        nn.init.normal_(self.norm.weight, 1.0, 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).reshape(-1, 3, 4)
        if self.kind == "norm":
            h = self.norm(h)
        if self.kind == "root":
            h = self.root(h)
        if self.kind == "attention":
            h = torch.softmax(h @ h.transpose(1, 2), -1) @ h
        if self.kind == "gates":
            h = h * torch.sigmoid(h.mean(1, keepdim=True)) + functional.hardswish(h)
        if self.kind == "up":
            h = functional.max_pool1d(self.up(h), 2)
        if self.kind == "divided":
            h = h / (1 + h.square().sum(2, keepdim=True))
        return cast("torch.Tensor", self.last(h.flatten(1)))


_KINDS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    **{
        kind: (partial(Small, kind), 4)
        for kind in ("norm", "root", "attention", "gates", "divided", "up")
    },
    **{kind: (partial(chain, activation), 6) for kind, activation in _CHAINS.items()},
    "convolutional": (convolutional, 72),
    "residual": (residual, 6),
}


def exported(module: nn.Module, shape: tuple[int, ...], folder: Path) -> Graph:
    path = folder / "model.onnx"
    export_onnx(module.eval(), shape, path, example=torch.rand(2, *shape))
    return read_onnx(path)


@torch.no_grad()
def check(
    graph: Graph,
    module: nn.Module,
    lower: torch.Tensor,
    upper: torch.Tensor,
    shape: tuple[int, ...],
) -> float:
    """How many times the range of the points the bounds' width is; the points lie within, of the
    module itself.
    """
    rows = torch.randn(5, graph.outputs, dtype=torch.float64)
    rows = torch.cat([torch.eye(graph.outputs, dtype=torch.float64), rows])
    bounds, plain = (
        Propagation(graph, lower, upper),
        Propagation(graph, lower, upper, backward=False),
    )
    low, high = bounds.lower_bounds(rows).value, -bounds.lower_bounds(-rows).value
    share = torch.rand(1000, graph.inputs, dtype=torch.float64)
    share[::2] = share[::2].round()  # corners too, where bounds are tight
    points = lower + share * (upper - lower)
    found = module(points.reshape(-1, *shape)).flatten(1)
    reached = found @ rows.T
    rounded = 1e-13 * (1 + reached.abs().max())
    assert bool(((low - rounded <= reached) & (reached <= high + rounded)).all())
    assert bool(
        ((plain.outputs[0] <= bounds.outputs[0]) & (bounds.outputs[1] <= plain.outputs[1])).all()
    )
    for (least, most), value in zip(bounds.intervals, graph.values(points), strict=True):
        # What evaluating the network itself rounds, the bounds need not cover.
        slack = 1e-13 * (1 + value.abs().max())
        assert bool(((least - slack <= value) & (value <= most + slack)).all())
    return float((high - low).mean() / (reached.amax(0) - reached.amin(0)).mean().clamp(min=1e-300))


@pytest.mark.parametrize("kind", _KINDS)
def test_small_networks_are_read_and_bounded(kind: str) -> None:
    torch.manual_seed(0)
    make, inputs = _KINDS[kind]
    module = make().eval()
    graph, exact = graph_of_typed(read(module, torch.rand(2, inputs)), "x"), module.double()
    points = torch.randn(50, inputs, dtype=torch.float64)
    torch.testing.assert_close(graph(points), exact(points), rtol=1e-10, atol=1e-12)
    center = torch.rand(1, inputs, dtype=torch.float64)
    widths = [
        check(graph, exact, center - radius, center + radius, (inputs,))
        for radius in (1e-4, 0.01, 0.3, 1.0)
    ]
    # where maxima are of equal numbers, they are wider
    assert widths[0] < (3 if kind == "convolutional" else 1.3)
    # At a point they are the value.
    low, high = Propagation(graph, center, center).outputs
    torch.testing.assert_close(low, exact(center), rtol=0, atol=1e-9)
    torch.testing.assert_close(high, exact(center), rtol=0, atol=1e-9)
    assert bool((low < high).all())


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_softmax_of_huge_scores_has_bounds(size: int) -> None:
    module = nn.Sequential(nn.Linear(size, size), nn.Softmax(-1)).eval()
    module[0].weight.copy_(torch.eye(size) * 400)
    graph = graph_of_typed(read(module, torch.rand(2, size)), "x")
    zeros = torch.zeros(1, size, dtype=torch.float64)
    check(graph, module.double(), zeros, zeros + 1, (size,))


@torch.no_grad()
def test_a_norm_is_bounded_on_boxes_of_any_size() -> None:
    module = nn.Sequential(
        nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 4), nn.LayerNorm(4)
    ).eval()
    graph, far = (
        graph_of_typed(read(module, torch.rand(2, 4)), "x"),
        torch.full((1, 4), 100.0, dtype=torch.float64),
    )
    check(graph, module.double(), -far, far, (4,))
    # No entry of a norm of four is beyond the root of four.
    assert bool((Propagation(graph, -far, far).outputs[0] >= -2.001).all())


@pytest.mark.slow
@pytest.mark.parametrize("name", _EVERY)
def test_each_kind_of_network_is_read_and_bounded(name: str, tmp_path: Path) -> None:
    module, inputs = made(name)
    assert isinstance(inputs, torch.Tensor)
    if name == "unet":
        module = nn.Sequential(module, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    shape = tuple(inputs.shape[1:])
    graph = exported(module, shape, tmp_path)
    exact = module.double()
    points = torch.randn(3, *shape, dtype=torch.float64)
    torch.testing.assert_close(
        graph(points.flatten(1)), exact(points).flatten(1), rtol=1e-6, atol=1e-7
    )
    center = torch.rand(1, graph.inputs, dtype=torch.float64)
    check(graph, exact, center - 1e-3, center + 1e-3, shape)


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("width", [0.0, 1e-6, 0.1, 3.0])
def test_lines_of_convex_functions_hold(name: str, width: float) -> None:
    positive = name in ("reciprocal", "rsqrt")
    low = torch.linspace(1e-6 if positive else -20.0, 20.0, 101, dtype=torch.float64)[None]
    high = low + width
    (least, most), lines = convex(Convex(name), low, high)
    for share in torch.linspace(0, 1, 41, dtype=torch.float64):
        x = torch.minimum(low + share * width, high)
        value = CONVEX[name](x)
        assert bool(((least <= value) & (value <= most)).all())
        for sign in (1, -1):
            line = (
                (sign * lines.slopes[0] - lines.spreads[0]) * x + sign * lines.constant - lines.loss
            )
            assert bool((line <= sign * value).all())


def test_planes_of_products_hold() -> None:
    torch.manual_seed(0)
    ends = [torch.randn(1, size, 2, dtype=torch.float64).sort(-1).values for size in (5, 3)]
    index = torch.tensor([0, 2, 1, 1, 0])
    operation = Product(Same(), Select(index, 3))
    (first, second) = ((each[..., 0], each[..., 1]) for each in ends)
    (least, most), lines = bilinear(operation, first, second)
    for _ in range(200):
        x = first[0] + torch.rand(1, 5).round() * (first[1] - first[0])
        y = (second[0] + torch.rand(1, 3) * (second[1] - second[0]))[:, index]
        assert bool(((least <= x * y) & (x * y <= most)).all())
        for sign in (1, -1):
            of_x, of_y = (
                sign * slope - spread
                for slope, spread in zip(lines.slopes, lines.spreads, strict=True)
            )
            assert bool(
                (of_x * x + of_y * y + sign * lines.constant - lines.loss <= sign * x * y).all()
            )


def test_a_transposed_map_is_the_transpose() -> None:
    window = {"stride": (2,), "padding": (1,), "dilation": (1,), "groups": 1}
    weight = torch.randn(3, 2, 3, dtype=torch.float64)
    map_ = Adjoint(Convolution(weight, (1, 2, 9), (1, 3, 5), window))
    x = torch.randn(4, 15, dtype=torch.float64)
    wanted = functional.conv_transpose1d(x.reshape(4, 3, 5), weight, stride=2, padding=1).flatten(1)
    torch.testing.assert_close(map_(x), wanted)
    matrix = map_(torch.eye(15, dtype=torch.float64)).T
    rows = torch.randn(1, 6, 18, dtype=torch.float64)
    torch.testing.assert_close(map_.pull(rows), rows @ matrix)
    torch.testing.assert_close(map_.absolute()(torch.eye(15).double()).T, matrix.abs())


@pytest.mark.parametrize(
    ("stride", "dilation", "groups"), [(1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 1, 4)]
)
def test_the_terms_of_a_convolution_are_as_many_as_its_sums_have_and_hardly_more(
    stride: int, dilation: int, groups: int
) -> None:
    layer = nn.Conv2d(4, 8, 3, stride, 1, dilation, groups).double()
    window = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
    shape = 1, 4, 7, 7
    out_shape = tuple(layer(torch.zeros(shape).double()).shape)
    map_ = Convolution(torch.ones_like(layer.weight), shape, out_shape, window)
    used = map_(torch.eye(4 * 49).double())
    # Of an output, and of a coefficient that is carried back.
    most = max(int(used.sum(0).max()), int(used.sum(1).max()))
    assert most < map_.terms <= groups * most * stride**2 + 1


def test_an_exponential_that_overflows_is_refused() -> None:
    graph = Graph((Node("power", Convex("exp"), (0,), 1),), 1, (1, 1), (1, 1), "x")
    with pytest.raises(Unsupported, match="values beyond"):
        Propagation(graph, torch.tensor([[0.0]]).double(), torch.tensor([[1000.0]]).double())


def test_a_divisor_that_may_be_zero_is_refused(tmp_path: Path) -> None:
    class Divided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / (x[:, :1] + 100)

    graph = exported(Divided(), (3,), tmp_path)
    wide = torch.full((1, 3), 200.0, dtype=torch.float64)
    with pytest.raises(Unsupported, match="reciprocal of a value that may be 0 or less"):
        Propagation(graph, -wide, wide)


def test_constants_that_were_rounded_are_read_as_they_are(tmp_path: Path) -> None:
    # Two constants of float32, for which no one hardness stands.
    slope, bend = torch.tensor([0.7978846, 0.044715]).tolist()

    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(0.5 * x * (1 + torch.tanh(slope * (x + bend * x**3))), -1)

    path = tmp_path / "model.onnx"
    export_onnx(Rounded(), (3,), path, example=torch.rand(2, 3))
    middle = torch.tensor([[-1.5, 0.25, 2.0]], dtype=torch.float64)
    check(graph_of(load_model(path), "m.onnx"), Rounded(), middle - 0.1, middle + 0.1, (3,))
