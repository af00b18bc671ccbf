"""The swap certificate: closed forms, high-precision references, and samples in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
from cases import slow
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from evalsuite.contract import Network, Unsupported
from lambda_gelu.activations import LambdaGELU, census, replace
from netverify.certificate import SwapBounds, SwapCertificate, certify_swap

MakeNetwork = Callable[..., Network]
RADII = (0.0, 0.01, 0.02, 1.0)
SUP = 0.16997120747990369
Box = tuple[torch.Tensor, torch.Tensor]


class Smooth(nn.Module):
    """x Phi(lambda x) in float64, by torch's own GELU."""

    def __init__(self, hardness: torch.Tensor) -> None:
        super().__init__()
        self.hardness = hardness

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = (
            self.hardness.reshape(-1, *[1] * (x.ndim - 2)) if self.hardness.ndim else self.hardness
        )
        return functional.gelu(factor * x) / factor


def pair(module: nn.Module, hardness: float | None = None) -> tuple[nn.Module, nn.Module]:
    """The smooth network and its ReLU twin, independent of the code under test, float64."""
    exact = copy.deepcopy(module).double().eval()
    smooth = replace(
        exact,
        lambda found: Smooth(
            found.traits.hardness(found.module).double()
            if hardness is None
            else torch.tensor(hardness).double()
        ),
    )
    return smooth.eval(), replace(exact, lambda _: nn.ReLU()).eval()


def difference(networks: tuple[nn.Module, nn.Module], x: torch.Tensor) -> torch.Tensor:
    return networks[0](x) - networks[1](x)


def sampled(
    networks: tuple[nn.Module, nn.Module], box: Box, rounds: int, seed: int = 0
) -> list[torch.Tensor]:
    """Points of the boxes: random ones, corners, and ascents of |difference| from them."""
    lower, upper = box
    generator = torch.Generator().manual_seed(seed)
    points = []
    for round_ in range(rounds):
        share = torch.rand(lower.shape, generator=generator, dtype=torch.float64)
        point = lower + (share.round() if round_ % 2 else share) * (upper - lower)
        points.append(point)
        if round_ % 8 == 2:
            for _ in range(5):
                point = point.detach().requires_grad_()
                loss = difference(networks, point).abs().amax(1).sum()
                (gradient,) = torch.autograd.grad(loss, point)
                point = (point + (upper - lower) / 6 * gradient.sign()).clamp(lower, upper).detach()
                points.append(point)
    return points


@torch.no_grad()
def violations(
    found: SwapCertificate, networks: tuple[nn.Module, nn.Module], points: list[torch.Tensor]
) -> int:
    """How many (point, output) pairs are outside of their bounds."""
    count = 0
    for point in points:
        before, after = (each(point) for each in networks)
        gap = before - after
        count += int(((gap < found.difference_lower) | (gap > found.difference_upper)).sum())
        for logits, bounds in ((before, found.margin_before), (after, found.margin_after)):
            own = logits.gather(1, found.labels[:, None])
            other = torch.arange(logits.shape[1]) != found.labels[:, None]
            others = logits[other].reshape(len(logits), -1)
            count += int((own - others < bounds).sum())
    return count


def boxes(centers: torch.Tensor, eps: float) -> Box:
    """The L-infinity balls in [0, 1]; the whole domain once where they are all alike."""
    some = centers[:1] if eps >= 1 else centers
    return (some.double() - eps).clamp(0, 1), (some.double() + eps).clamp(0, 1)


@pytest.fixture
def unswapped(network: MakeNetwork) -> nn.Sequential:
    module = network("digits-mlp", "annealed").unswapped
    assert isinstance(module, nn.Sequential)
    return module


def one_unit(hardness: float | None = None) -> nn.Sequential:
    module = nn.Sequential(
        nn.Linear(1, 1),
        nn.GELU() if hardness is None else LambdaGELU(hardness=hardness),
        nn.Linear(1, 2),
    )
    with torch.no_grad():
        module[0].weight.fill_(1.0)
        module[0].bias.fill_(0.0)
        module[2].weight.copy_(torch.tensor([[1.0], [-2.0]]))
        module[2].bias.copy_(torch.tensor([3.0, 4.0]))
    return module


@pytest.mark.parametrize("hardness", [None, 2.0, 160.0])
def test_one_unit_differs_by_the_gap_of_the_activation(hardness: float | None) -> None:
    module = one_unit(hardness)
    scale = 1.0 if hardness is None else float(module[1].double().hardness.detach())
    found = certify_swap(module, torch.tensor([[-5.0]]), torch.tensor([[5.0]]))
    assert found.difference_lower[0].tolist() == pytest.approx([-SUP / scale, 0.0], abs=1e-9)
    assert found.difference_upper[0].tolist() == pytest.approx([0.0, 2 * SUP / scale], abs=1e-9)
    assert float(found.disruption) >= 2 * SUP / scale


def test_on_one_side_of_zero_the_gap_is_that_of_the_ends() -> None:
    found = certify_swap(
        one_unit(), torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([[2.0]]).double()
    )
    # h(1) = Phi(1) - 1, h(2) = 2 (Phi(2) - 1), and h rises in between.
    assert float(found.difference_lower[0, 0]) == pytest.approx(-0.15865525393145707, rel=1e-9)
    assert float(found.difference_upper[0, 0]) == pytest.approx(-0.04550026389635842, rel=1e-9)


def exactly(module: nn.Sequential, x: torch.Tensor, hardness: float) -> list[mpmath.mpf]:
    """The differences of a fully connected network's outputs at x, to 40 digits."""
    with mpmath.workdps(40):
        before = after = [mpmath.mpf(each) for each in x.double().tolist()]
        for layer in module:
            if isinstance(layer, nn.Linear):
                rows = [[mpmath.mpf(w) for w in row] for row in layer.weight.double().tolist()]
                bias = [mpmath.mpf(b) for b in layer.bias.double().tolist()]
                before, after = (
                    [mpmath.fdot(row, values) + b for row, b in zip(rows, bias, strict=True)]
                    for values in (before, after)
                )
            else:
                before = [x * mpmath.ncdf(hardness * x) for x in before]
                after = [max(x, mpmath.mpf(0)) for x in after]
        return [b - a for b, a in zip(before, after, strict=True)]


@pytest.mark.parametrize("hardness", [1.0, 10.0, 160.0])
def test_at_a_point_the_bounds_enclose_the_exact_difference_and_nothing_else(
    unswapped: nn.Sequential, hardness: float
) -> None:
    x = torch.rand(3, 64, generator=torch.Generator().manual_seed(0))
    found = certify_swap(unswapped, x, x, hardness=hardness)
    assert float((found.difference_upper - found.difference_lower).max()) < 1e-9
    for row, point in enumerate(x):
        for output, exact in enumerate(exactly(unswapped, point, hardness)):
            assert mpmath.mpf(found.difference_lower[row, output].item()) <= exact
            assert exact <= mpmath.mpf(found.difference_upper[row, output].item())


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    # samples, points in each box, and lambdas; None: its own
    ("workload", "epochs", "many", "rounds", "hardnesses"),
    [
        ("digits-mlp", 10, 20, 8, (None, 1.0, 40.0, 1000.0)),
        slow("digits-mlp", 10, 100, 25, (None, 2.0, 40.0)),
        slow("digits-cnn", 2, 8, 50, (None, 2.0)),
        slow("mnist-cnn", 1, 4, 15, (None, 2.0)),
    ],
)
def test_no_sample_is_outside_of_its_bounds(
    network: MakeNetwork,
    bench,
    workload: str,
    epochs: int,
    many: int,
    rounds: int,
    hardnesses: tuple[float | None, ...],
) -> None:
    module = network(workload, "annealed", epochs=epochs).unswapped
    assert module is not None
    test = bench(workload, epochs=epochs).data.test
    known = SwapBounds(module, tuple(test.inputs.shape[1:]))
    for eps in RADII:
        box = boxes(test.inputs[:many], eps)
        wide = box[0].expand_as(test.inputs[:many]), box[1].expand_as(test.inputs[:many])
        for hardness in hardnesses:
            networks, found = (
                pair(module, hardness),
                spread_out(known.certify(*box, hardness=hardness), many),
            )
            assert (
                violations(found, networks, sampled(networks, wide, 1 if eps == 0 else rounds)) == 0
            )


def spread_out(found: SwapCertificate, count: int) -> SwapCertificate:
    """A certificate of one box as one of `count` equal boxes."""
    if len(found.labels) == count:
        return found
    names = SwapCertificate.__dataclass_fields__
    parts = {name: getattr(found, name) for name in names}
    return SwapCertificate(
        **{name: each.expand(count, *each.shape[1:]) for name, each in parts.items()}
    )


def test_at_hardness_160_the_swap_keeps_what_was_certified(unswapped: nn.Sequential, bench) -> None:
    box = boxes(bench("digits-mlp").data.test.inputs, 0.01)
    found = certify_swap(unswapped, *box, hardness=160.0)
    assert int(found.certified_before.sum()) >= 300
    assert float(found.kept.sum() / found.certified_before.sum()) >= 0.9


def test_where_it_says_kept_no_sample_changes_its_class(unswapped: nn.Sequential, bench) -> None:
    box = boxes(bench("digits-mlp").data.test.inputs[:100], 0.02)
    found, networks = certify_swap(unswapped, *box, hardness=2.0), pair(unswapped, 2.0)
    assert 0 < int(found.kept.sum()) < 100
    for point in sampled(networks, box, 4):
        for each in networks:
            assert bool((each(point).argmax(1) == found.labels)[found.kept].all())


@torch.no_grad()
def test_a_repaired_swap_is_certified_as_it_is(network: MakeNetwork, bench) -> None:
    made = network("digits-mlp", "annealed")
    assert made.unswapped is not None
    repaired = copy.deepcopy(made.module)
    generator = torch.Generator().manual_seed(0)
    for each in repaired.parameters():
        each += 0.01 * torch.randn(each.shape, generator=generator)
    networks = pair(made.unswapped)[0], copy.deepcopy(repaired).double()
    for eps in RADII:
        box = boxes(bench("digits-mlp").data.test.inputs[:20], eps)
        found = certify_swap(made.unswapped, *box, swapped=repaired)
        with torch.enable_grad():
            points = sampled(networks, box, 5)
        assert violations(found, networks, points) == 0
        if eps == 0:
            assert float((found.difference_upper - found.difference_lower).max()) < 1e-9
    same = certify_swap(made.unswapped, *box, swapped=made.module)
    assert torch.equal(same.disruption, certify_swap(made.unswapped, *box).disruption)


def odd_layers() -> nn.Sequential:
    """Every kind of layer that has a rule, a hardness per channel, and ReLU in one place
    already.
    """
    torch.manual_seed(0)
    per_channel = LambdaGELU(channels=4)
    per_channel.set_hardness(torch.tensor([1.5, 3.0, 10.0, 50.0]))
    module = nn.Sequential(
        nn.BatchNorm2d(2),
        nn.Conv2d(2, 4, 3, padding=1, groups=2),
        nn.BatchNorm2d(4),
        per_channel,
        nn.Sequential(
            nn.AvgPool2d(2), nn.Dropout(0.5), nn.Conv2d(4, 6, 2, dilation=2, stride=1), nn.ReLU()
        ),
        nn.AdaptiveAvgPool2d(2),
        nn.Unflatten(1, (6, 1)),
        nn.Flatten(),
        nn.Linear(24, 12, bias=False),
        nn.BatchNorm1d(12, affine=False),
        nn.SiLU(),
        nn.Identity(),
        nn.Linear(12, 3),
    )
    module.train()(torch.randn(64, 2, 8, 8))
    return module.eval()


def test_every_layer_with_a_rule_is_sound() -> None:
    module = odd_layers()
    exact = copy.deepcopy(module).double()
    networks = exact, replace(exact, lambda _: nn.ReLU()).eval()
    centers = torch.rand(5, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    for eps in RADII:
        box = boxes(centers, eps)
        assert violations(certify_swap(module, *box), networks, sampled(networks, box, 12)) == 0
    known = SwapBounds(module, (2, 8, 8)).difference(centers)
    torch.testing.assert_close(known, difference(networks, centers.double()))


def test_a_hardness_in_the_modules_is_one_given_by_hand(unswapped: nn.Sequential, bench) -> None:
    module = copy.deepcopy(unswapped)
    box = boxes(bench("digits-mlp").data.test.inputs[:5], 0.01)
    by_hand = certify_swap(module, *box, hardness=20.0)
    for found in census(module):
        assert isinstance(found.module, LambdaGELU)
        found.module.set_hardness(20.0)
    of_modules = certify_swap(module, *box)
    torch.testing.assert_close(of_modules.disruption, by_hand.disruption, rtol=1e-5, atol=0.0)
    bound = SwapBounds(module, (64,)).disruption(*box)
    assert bound(20.0) == pytest.approx(float(by_hand.disruption.max()))
    assert bound(320.0) < bound(80.0) < bound(20.0)


def test_a_network_of_relu_alone_is_its_own_twin(network: MakeNetwork, bench) -> None:
    box = boxes(bench("digits-mlp").data.test.inputs[:5], 0.02)
    found = certify_swap(network("digits-mlp", "annealed").module, *box)
    assert float(found.disruption.max()) < 1e-12


class Block(nn.Module):
    """Attention, norms, a max pool and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.flatten(1).reshape(-1, 3, 4)
        h = h + torch.softmax(h @ h.transpose(1, 2), -1) @ h
        return (h + self.narrow(functional.gelu(self.wide(self.norm(h))))).flatten(1)  # type: ignore[no-any-return]


def swapped_block(module: nn.Sequential) -> nn.Sequential:
    """By hand, independent of the code under test: `Block` with ReLU in the place of its GELU."""
    after = copy.deepcopy(module)
    for each in after:
        if isinstance(each, Block):
            each.forward = lambda x, own=each: (
                (h := (t := x.reshape(-1, 3, 4)) + torch.softmax(t @ t.transpose(1, 2), -1) @ t)
                + own.narrow(own.wide(own.norm(h)).relu())
            ).flatten(1)
    return replace(after, lambda _: nn.ReLU()).eval()


IMAGE = (nn.Conv2d(1, 2, 3), nn.GELU(), nn.MaxPool2d(2), nn.SiLU(), nn.Flatten(), nn.Linear(18, 3))
ATTENTION = (nn.Linear(4, 12), nn.GELU(), Block(), nn.Linear(12, 12), Block(), nn.Linear(12, 3))
OTHERS = {
    "max pooling": (IMAGE, (1, 8, 8)),
    "layer norm": ((nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 3)), (4,)),
    "elu": ((nn.Linear(4, 4), nn.ELU(), nn.Linear(4, 3)), (4,)),
    "attention": (ATTENTION, (4,)),
    "a negative divisor": (
        (nn.GELU(), nn.AvgPool2d(2, divisor_override=-4), nn.Flatten(), nn.SiLU()),
        (1, 4, 4),
    ),
}


@pytest.mark.parametrize("kind", [slow(each) if each == "attention" else each for each in OTHERS])
def test_what_is_no_chain_of_affine_layers_is_sound(kind: str) -> None:
    layers, shape = OTHERS[kind]
    module = copy.deepcopy(nn.Sequential(*layers))
    torch.manual_seed(0)
    for each in module.modules():
        if hasattr(each, "reset_parameters"):
            each.reset_parameters()
    exact = copy.deepcopy(module.eval()).double()
    networks = exact, swapped_block(exact)
    centers = torch.rand(3, *shape, generator=torch.Generator().manual_seed(1))
    known = SwapBounds(module, shape)
    for eps in (0.0, 0.01, 0.1):
        box = boxes(centers, eps)
        found = known.certify(*box)
        assert violations(found, networks, sampled(networks, box, 16)) == 0
        if eps == 0:
            assert float((found.difference_upper - found.difference_lower).max()) < 1e-9
    torch.testing.assert_close(known.difference(centers), difference(networks, centers.double()))


class Clipped(nn.Linear):
    """Linear only up to 100: no few points tell it from nn.Linear."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).clamp(max=100)


class AlmostGELU(nn.Module):
    """GELU to 1.5e-7, as the census takes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x) + 1.5e-7 * (x < -2)


class Erf(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(x)


def with_layer(at: int, layer: nn.Module) -> nn.Sequential:
    module = one_unit()
    module[at] = layer
    return module


def test_what_a_subclass_computes_is_bounded_as_it_is() -> None:
    module = with_layer(0, Clipped(1, 1))
    with torch.no_grad():
        module[0].weight.fill_(1.0)
    exact = copy.deepcopy(module).double()
    networks, box = (
        (exact, replace(exact, lambda _: nn.ReLU())),
        (torch.tensor([[50.0]]), torch.tensor([[200.0]])),
    )
    found = certify_swap(module, *box)
    points = torch.linspace(50, 200, 3001, dtype=torch.float64)[:, None, None]
    assert violations(found, networks, [*points]) == 0
    assert float(-found.margin_after) < 3 * 101 + 5  # of 100, not of 200


@torch.no_grad()
def scaled(weight: float, bias: float = 0.0) -> nn.Linear:
    layer = nn.Linear(1, 1)
    layer.weight.fill_(weight)
    layer.bias.fill_(bias)
    return layer


def test_maps_that_are_equal_only_where_they_are_rounded_are_told_apart() -> None:
    before, after = (
        nn.Sequential(scaled(1, 1), scaled(1, b), nn.ReLU(), scaled(1e38)) for b in (1e-30, 2e-30)
    )
    one = torch.ones(1, 1)
    found = certify_swap(before, one, one, swapped=after)
    # (2 + 1e-30) 1e38 - (2 + 2e-30) 1e38
    (one_bias, other_bias), factor = (
        [Fraction(each[1].bias.item()) for each in (before, after)],
        before[3].weight,
    )
    exact = (one_bias - other_bias) * Fraction(factor.item())
    assert (
        Fraction(found.difference_lower.item()) <= exact <= Fraction(found.difference_upper.item())
    )
    assert float(found.disruption) == pytest.approx(1e8, rel=1e-7)


def test_a_swapped_network_that_reaches_other_inputs() -> None:
    torch.manual_seed(0)
    networks = [
        nn.Sequential(
            nn.Conv2d(1, 1, kernel, stride=2), act, nn.Flatten(), nn.Linear(4, 2)
        ).double()
        for kernel, act in ((1, nn.GELU()), (2, nn.ReLU()))
    ]
    box = torch.zeros(1, 1, 4, 4).double(), torch.ones(1, 1, 4, 4).double()
    corners = torch.rand(4000, 1, 1, 4, 4).round().double()
    assert (
        violations(
            certify_swap(networks[0], *box, swapped=networks[1]),
            (networks[0], networks[1]),
            [*corners],
        )
        == 0
    )


def followed(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, nn.GELU(), scaled(1))


def with_hook() -> nn.Sequential:
    module = one_unit()
    module[0].register_forward_hook(lambda _module, _inputs, output: output.clamp(min=-1))
    return module


def with_a_forward_of_its_own() -> nn.Sequential:
    module = one_unit()
    module[0].forward = lambda x: x.clamp(min=-1)
    return module


def without_variance() -> nn.Sequential:
    norm = nn.BatchNorm1d(1, eps=0.0)
    nn.init.zeros_(norm.running_var)
    return nn.Sequential(norm, nn.GELU())


BEYOND = r"values beyond 1e\+100"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: with_layer(2, Erf()), "no sound bounds of erf"),
        (lambda: nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 4)), "no activation"),
        # These agree with a known layer where a few points of [0, 1] are compared, and differ
        # elsewhere.
        (lambda: with_layer(1, AlmostGELU()), "no sound bounds of less"),
        (with_hook, "0 has forward hooks"),
        (with_a_forward_of_its_own, "0 has a forward of its own"),
        (
            lambda: nn.Sequential(prune.identity(nn.Linear(1, 1), "weight"), nn.GELU()),
            "0 has forward hooks",
        ),
        (
            lambda: nn.Sequential(weight_norm(nn.Linear(1, 1)), nn.GELU()),
            "'0': its numbers are computed from others",
        ),
        # The product of the weights is 1; in float64 it is 0.
        (
            lambda: followed(*(scaled(1e-38) for _ in range(9)), *(scaled(1e38) for _ in range(9))),
            BEYOND,
        ),
        (lambda: followed(*(scaled(1e38) for _ in range(9))), rf"'2': {BEYOND}"),
        (lambda: followed(*(each for _ in range(9) for each in (scaled(1e38), nn.GELU()))), BEYOND),
        (lambda: followed(nn.Unflatten(1, (1, 1)), nn.Flatten(0)), "must take batches of any size"),
        (without_variance, "'0': a variance plus epsilon is not above 0"),
        (lambda: with_layer(2, scaled(torch.nan)), r"2\.weight has values that are not finite"),
    ],
    ids=[
        "erf",
        "linear",
        "almost",
        "hook",
        "forward",
        "pruned",
        "weight norm",
        "underflow",
        "overflow of a map",
        "overflow of values",
        "batch",
        "variance",
        "nan",
    ],
)
def test_what_it_can_not_certify_it_names(make: Callable[[], nn.Module], text: str) -> None:
    with pytest.raises(Unsupported, match=text):
        certify_swap(make(), torch.ones(1, 1), torch.ones(1, 1))


def test_a_convolution_is_never_a_matrix() -> None:
    # That of 150528 inputs would take 180 GB.
    large = torch.zeros(1, 3, 224, 224)
    module = nn.Sequential(nn.Conv2d(3, 1, 3, stride=64), nn.GELU(), nn.Flatten())
    found, exact = certify_swap(module, large, large), copy.deepcopy(module).double()
    assert violations(found, (exact, replace(exact, lambda _: nn.ReLU())), [large.double()]) == 0


def test_an_observed_difference_is_free_of_what_both_networks_add() -> None:
    module = one_unit()
    nn.init.constant_(module[2].bias, 2.0**30)
    x = 5 + 3 * torch.rand(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = SwapBounds(module, (1,))
    assert bool((known.difference(x).abs().amax(1) <= known.certify(x, x).disruption).all())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"lower": torch.full((2, 1), 2.0)}, "reversed"),
        ({"upper": torch.full((2, 1), torch.inf)}, "NaN or infinite"),
        ({"upper": torch.ones(1, 1)}, "boxes must be"),
        ({"labels": torch.tensor([0, 2])}, "labels must be 2 classes in"),
        ({"labels": torch.tensor([0.0, 1.0])}, "labels must be integers"),
        ({"labels": torch.tensor([False, True])}, "labels must be integers"),
        ({"hardness": -1.0}, "hardness must be finite and > 0, got -1"),
        ({"hardness": 1e308}, r"hardness must be in \[1e-100, 1e\+100\], got 1e\+308"),
    ],
)
def test_bad_arguments(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        certify_swap(one_unit(), **{"lower": torch.zeros(2, 1), "upper": torch.ones(2, 1), **given})
