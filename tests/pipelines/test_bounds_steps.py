"""Steps of our own: each rule's bounds against sampled points, and whole networks that
torch.export reads.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bounds_sampled import Sampled, boxes, check_each
from torch import nn
from torch.nn import functional
from written import Written

from evalsuite import Network, Unsupported
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.steps import (
    Affine,
    Greatest,
    Matrices,
    Normalised,
    Rule,
    Softmax,
    Times,
    Total,
)

_POINTS = 200
_WEIGHT = torch.linspace(-1, 1, 4).double()
RULES: dict[str, tuple[Rule, list[tuple[int, ...]]]] = {
    "affine": (Affine(lambda x: x * _WEIGHT + 1, lambda r: r * _WEIGHT.abs()), [(3, 4)]),
    "moved": (
        Affine(lambda x: x.permute(0, 2, 1)[:, 1:], lambda r: r.permute(0, 2, 1)[:, 1:]),
        [(3, 4)],
    ),
    "total": (Total((1, -1)), [(3, 4), (3, 4)]),
    "total, broadcast": (Total((1, 1)), [(3, 4), (3, 1)]),
    "times": (Times(), [(3, 4), (3, 4)]),
    "times, broadcast": (Times(), [(3, 4), (1, 4)]),
    "matrices": (Matrices(), [(2, 3, 4), (2, 4, 2)]),
    "matrices, transposed": (Matrices(transposed=True), [(2, 3, 4), (2, 2, 4)]),
    "softmax": (Softmax(0.7), [(2, 3, 4)]),
    "softmax, causal": (Softmax(2.0, causal=True), [(2, 4, 4)]),
    "normalised": (Normalised(1, 1e-3), [(3, 4)]),
    "normalised over two": (Normalised(2, 0.1), [(2, 3, 4)]),
    "of one": (Normalised(1, 1e-5), [(3, 1)]),
    "greatest": (Greatest((3, 3), (2, 2), (1, 1), (1, 1)), [(2, 5, 4)]),
    "greatest, apart": (Greatest((2, 2), (1, 2), (0, 1), (2, 1)), [(2, 5, 4)]),
}


def _boxes(
    shapes: list[tuple[int, ...]], wide: float, seed: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Three boxes: one of them narrow, and some sides of no width."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for shape in shapes:
        middle = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
        radius = wide * torch.rand(3, *shape, generator=generator, dtype=torch.float64) ** 2
        radius[0] *= 1e-3
        radius[:, ..., :1] = 0
        found.append((middle - radius, middle + radius))
    return found


def _points(ends: list[tuple[torch.Tensor, torch.Tensor]], seed: int) -> list[torch.Tensor]:
    """Inner points and corners, (points, boxes, *shape)."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for low, high in ends:
        share = torch.rand(_POINTS, *low.shape, generator=generator, dtype=torch.float64)
        share[::2] = share[::2].round()
        found.append(low + share * (high - low))
    return found


@pytest.mark.parametrize("wide", [1e-6, 0.3, 3.0])
@pytest.mark.parametrize("name", RULES)
def test_a_rules_bounds_hold_at_sampled_points(name: str, wide: float) -> None:
    rule, shapes = RULES[name]
    ends = _boxes(shapes, wide, 0)
    points = _points(ends, 1)
    values = torch.stack(
        [rule.value(*(each[place] for each in points)) for place in range(_POINTS)]
    )
    slack = 1e-12 * (1 + values.abs().max())
    low, high = rule.interval(*ends)
    assert ((low - slack <= values) & (values <= high + slack)).all()
    rows = torch.randn(
        5, *values.shape[1:], generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    wanted = torch.einsum("sb...,pb...->psb", rows, values)
    for sign in (1, -1):
        factors, added = rule.pulled(rows, sign, ends)
        parts = [
            torch.einsum("sb...,pb...->psb", one, other)
            for one, other in zip(factors, points, strict=True)
        ]
        line = sum(parts) + added
        assert (sign * (wanted - line) >= -slack * 10).all()


def test_affine_maps_are_exact_and_so_is_a_window_with_one_greatest() -> None:
    rule = RULES["moved"][0]
    rows = torch.randn(2, 3, 3, 3).double()
    x = torch.randn(3, 3, 4).double()
    (factors,), added = rule.pulled(rows, 1, [(x, x)])
    assert torch.allclose(
        (factors * x).flatten(2).sum(2) + added, (rows * rule.value(x)).flatten(2).sum(2)
    )
    low = torch.tensor([[[[0.0, 5.0], [1.0, 2.0]]]]).double()
    pool = Greatest((2, 2), (2, 2), (0, 0), (1, 1))
    for sign in (1, -1):
        (factors,), added = pool.pulled(torch.ones(1, 1, 1, 1, 1).double(), sign, [(low, low + 1)])
        assert factors.flatten().tolist() == [0, 1, 0, 0]
        assert added.item() == 0


def test_a_products_planes_by_hand() -> None:
    # x in [1, 3], y in [-1, 1]: 0 x + 2 y, off by at most 1 * 1.
    ends = [
        (torch.tensor([[1.0]]).double(), torch.tensor([[3.0]]).double()),
        (torch.tensor([[-1.0]]).double(), torch.tensor([[1.0]]).double()),
    ]
    for sign in (1, -1):
        (of_x, of_y), added = Times().pulled(torch.ones(1, 1, 1).double(), sign, ends)
        assert (of_x.item(), of_y.item(), added.item()) == (0, 2, -sign)


def wrapped(*layers: nn.Module) -> nn.Module:
    """The layers in a class of their own."""
    return Written(lambda net, x: net.layers(x), layers=nn.Sequential(*layers))


def gate() -> nn.Module:
    """A squeeze and excitation, with a hard sigmoid."""
    return Written(
        lambda net, x: (
            x
            * functional.hardsigmoid(
                net.up(functional.relu(net.down(x.mean((2, 3), keepdim=True))))
            )
        ),
        down=nn.Conv2d(4, 2, 1),
        up=nn.Conv2d(2, 4, 1),
    )


class ConvNext(nn.Module):
    """A depthwise convolution, a norm of channels, a GELU of a function, a scale and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.LayerNorm(4)
        self.wide, self.narrow = nn.Linear(4, 8), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.linspace(-0.5, 0.5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.narrow(functional.gelu(self.wide(y))) * self.scale).permute(0, 3, 1, 2)


class Mixer(nn.Module):
    """Positions are mixed, then channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tokens, self.channels = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(2).transpose(1, 2) / 2
        x = x + functional.gelu(self.tokens(self.norm(x).transpose(1, 2))).transpose(1, 2)
        return (x + self.channels(x)).mean(1)


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = ViTConfig(
        image_size=4, patch_size=2, num_channels=1, num_labels=3, layer_norm_eps=0.1, **sizes
    )
    return Written(lambda net, x: net.model(x).logits, model=ViTForImageClassification(config))


def _stem() -> nn.Module:
    return nn.Conv2d(1, 4, 2, stride=2)


SILU = Written(lambda _, x: x * torch.sigmoid(x))
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "hand-written": lambda: wrapped(nn.Flatten(), nn.Linear(16, 6), SILU, nn.Linear(6, 3)),
    "convnext": lambda: wrapped(
        _stem(), ConvNext(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ),
    "mixer": lambda: wrapped(_stem(), Mixer(), nn.Linear(4, 3)),
    "mobilenet": lambda: wrapped(
        _stem(),
        nn.BatchNorm2d(4),
        nn.Hardswish(),
        gate(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ),
    "resnet": lambda: wrapped(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Flatten(),
        nn.Linear(16, 3),
    ),
    "hugging face's vit": _vit,
    "negated, and normed without weights": lambda: Written(
        lambda net, x: -net.last(net.norm(functional.gelu(-net.first(x)))),
        first=nn.Sequential(nn.Flatten(), nn.Linear(16, 6)),
        norm=nn.BatchNorm1d(6, affine=False),
        last=nn.Linear(6, 3),
    ),
    "u-net": lambda: Written(
        lambda net, x: net.last(
            torch.cat([y := functional.silu(net.first(x)), net.up(net.deep(y).relu())], 1)
        ),
        first=nn.Conv2d(1, 2, 3, padding=1),
        deep=nn.Sequential(
            nn.Conv2d(2, 4, 2, 2), nn.GELU(), nn.Upsample(scale_factor=2), nn.MaxPool2d(2)
        ),
        up=nn.Sequential(
            nn.ConvTranspose2d(4, 2, 2, 1, groups=2), nn.Upsample(size=(4, 4), mode="bilinear")
        ),
        last=nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
    ),
    "windows": lambda: wrapped(
        nn.Conv2d(1, 2, 3, padding="same"),
        nn.GELU(),
        nn.AvgPool2d(3, 1),
        nn.Flatten(),
        nn.Linear(8, 6),
        Written(lambda _, x: x * x),
        nn.Linear(6, 3),
    ),
}


def subject(name: str) -> Network:
    """The network with norms as after a training."""
    torch.manual_seed(0)
    module = NETWORKS[name]().eval()
    for each in module.modules():
        if (
            isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm))
            and each.weight is not None
        ):
            nn.init.normal_(each.weight, 1.0, 0.3)
            nn.init.normal_(each.bias, 0.0, 0.3)
        if isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.normal_(each.running_mean, 0.0, 0.3)  # type: ignore[arg-type]
            nn.init.uniform_(each.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return Network(name, module, (1, 4, 4), 3)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("eps", [0.02, pytest.param(0.2, marks=pytest.mark.slow)])
def test_networks_that_torch_export_reads_are_bounded_soundly(name: str, eps: float) -> None:
    sampled = Sampled(network := subject(name), boxes((1, 4, 4), eps, 2), 1000, climbing=16)
    found = check_each(Propagation(network), sampled, ("ibp", "crown"))
    widths = {method: float((each.upper - each.lower).mean()) for method, each in found.items()}
    assert widths["crown"] <= widths["ibp"]
    true = float((sampled.logits[-1].amax(0) - sampled.logits[-1].amin(0)).mean())
    assert widths["crown"] < (4 if eps < 0.1 else 100) * true


def test_what_has_no_bounds_is_named_by_its_path() -> None:
    module = wrapped(
        nn.Flatten(), nn.Linear(16, 6), Written(lambda _, x: x.cos()), nn.Linear(6, 3)
    ).eval()
    with pytest.raises(Unsupported, match=r"^no sound bounds for layers\.2 \(cos\)"):
        Propagation(Network("cosine", module, (1, 4, 4), 3))
    module = wrapped(
        nn.Conv2d(1, 2, 3), nn.ConstantPad2d(1, 0.5), nn.Flatten(), nn.Linear(32, 3)
    ).eval()
    with pytest.raises(Unsupported, match=r"^layers\.1: no bound of the rounding of padding"):
        Propagation(Network("padded", module, (1, 4, 4), 3))
