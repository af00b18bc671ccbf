"""Files with norms, softmax, products and means: read, compared, and bounded soundly."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from graph_networks import made
from torch import nn
from torch.nn import functional

from evalsuite import Unsupported, export_onnx
from evalsuite.verification.graph import CONVEX, Convex, Graph, Node, Product
from evalsuite.verification.linear import Adjoint, Convolution, Same, Select
from evalsuite.verification.onnx_reader import graph_of, load_onnx, read_onnx
from evalsuite.verification.propagation import Propagation
from evalsuite.verification.scalar_lines import bilinear, convex

_EVERY = ("vit", "convnext", "mobilenet", "efficientnet", "mixer", "resnet", "unet", "hand-written")
_POINTS = 20_000


class Small(nn.Module):
    """A norm, attention, a gate and an interpolation in few values."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(4, 12), nn.Linear(12, 3)
        # A file holds eps as float32.
        self.norm, self.up = nn.LayerNorm(4, eps=2.0**-16), nn.ConvTranspose1d(3, 3, 2, stride=2, bias=False)
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


_KINDS = ("norm", "root", "attention", "gates", "divided")


def exported(module: nn.Module, shape: tuple[int, ...], folder: Path) -> Graph:
    path = folder / "model.onnx"
    export_onnx(module.eval(), shape, path, example=torch.rand(2, *shape))
    return read_onnx(path)


def bounds(graph: Graph, lower: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    eye = torch.eye(graph.outputs, dtype=torch.float64)
    propagation = Propagation(graph, lower, upper)
    return propagation.lower_bounds(eye).value, -propagation.lower_bounds(-eye).value


def sampled(lower: torch.Tensor, upper: torch.Tensor, count: int) -> torch.Tensor:
    """Corners and random points of one box, (count, inputs)."""
    share = torch.rand(count, lower.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    share[: count // 2] = share[: count // 2].round()
    return lower + share * (upper - lower)


@torch.no_grad()
def check(graph: Graph, module: nn.Module, shape: tuple[int, ...], radius: float, count: int) -> float:
    """How many times the range of the points the bounds' width is; the points lie within, of the module itself."""
    center = torch.rand(1, graph.inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    lower, upper = center - radius, center + radius
    low, high = bounds(graph, lower, upper)
    values = [module(each.reshape(-1, *shape)) for each in torch.split(sampled(lower, upper, count), 1000)]
    found = torch.cat(values)
    assert bool(((low <= found) & (found <= high)).all())
    return float((high - low).mean() / (found.amax(0) - found.amin(0)).mean())


@pytest.mark.parametrize("kind", _KINDS)
def test_what_no_chain_holds_is_read_and_bounded(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Small(kind).eval()
    graph = exported(module, (4,), tmp_path)
    exact = module.double()
    points = torch.randn(50, 4, dtype=torch.float64)
    torch.testing.assert_close(graph(points), exact(points), rtol=1e-10, atol=1e-12)
    widths = [check(graph, exact, (4,), radius, _POINTS) for radius in (1e-4, 0.01, 0.3)]
    assert widths[0] < 1.3


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
    torch.testing.assert_close(graph(points.flatten(1)), exact(points).flatten(1), rtol=1e-6, atol=1e-7)
    check(graph, exact, shape, 1e-3, 2000)


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
            line = (sign * lines.slopes[0] - lines.spreads[0]) * x + sign * lines.constant - lines.loss
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
            of_x, of_y = (sign * slope - spread for slope, spread in zip(lines.slopes, lines.spreads, strict=True))
            assert bool((of_x * x + of_y * y + sign * lines.constant - lines.loss <= sign * x * y).all())


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


@pytest.mark.parametrize(("stride", "dilation", "groups"), [(1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 1, 4)])
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


def test_numbers_that_were_rounded_are_refused(tmp_path: Path) -> None:
    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(0.5 * x * (1 + torch.erf(x * 0.70710677)), -1)

    path = tmp_path / "model.onnx"
    export_onnx(Rounded(), (3,), path, example=torch.rand(2, 3))
    with pytest.raises(Unsupported, match=r"^m\.onnx: node .*rounded"):
        graph_of(load_onnx(path), "m.onnx")
