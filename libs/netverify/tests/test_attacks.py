"""APGD and Square: their points are counterexamples, and on linear networks none is missed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from netverify import Property
from netverify.attacks import ATTACKS, attack, checkpoints, dlr_note
from netverify.properties import NORMS, Norm

UNIT = (0.0, 1.0)


def balls(
    samples: torch.Tensor, labels: torch.Tensor, eps: float, norm: Norm, domain=UNIT
) -> list[Property]:
    return [
        Property.robustness(x, sample=i, label=int(y), eps=eps, domain=domain, norm=norm)
        for i, (x, y) in enumerate(zip(samples, labels, strict=True))
    ]


def convolutional(classes: int = 6) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(6, 6, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(54, classes),
    ).eval()


def dense(classes: int = 4) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, classes)).eval()


@torch.no_grad()
def samples_of(module: nn.Module, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples near the rim of the data's range too, of which one has a wrong label."""
    draw = torch.Generator().manual_seed(3)
    samples = (1.4 * torch.rand(20, *shape, generator=draw) - 0.2).clamp(*UNIT)
    labels = module(samples).argmax(1)
    labels[0] = (labels[0] + 1) % module(samples).shape[1]
    return samples, labels


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("make", "shape"), [(convolutional, (2, 7, 7)), (dense, (12,))])
def test_points_are_in_their_balls_and_change_the_class(make, shape, norm: Norm) -> None:
    module = make()
    samples, labels = samples_of(module, *shape)
    eps = {"linf": 0.1, "l2": 0.5}[norm]
    properties = balls(samples, labels, eps, norm)
    for name in ATTACKS:
        points = attack(module, properties, samples, name, seed=0)
        assert points[0] is not None
        assert torch.equal(points[0], samples[0])
        assert 1 < sum(point is not None for point in points) < len(points)
        for i, point in enumerate(points):
            if point is None:
                continue
            offset = (point - samples[i]).double()
            length = offset.abs().max() if norm == "linf" else offset.norm()
            assert length <= eps * (1 + 1e-6)
            assert UNIT[0] <= point.min()
            assert point.max() <= UNIT[1]
            assert properties[i].contains(point)
            assert module(point[None]).argmax() != labels[i]
        again = attack(module, properties, samples, name, seed=0)
        assert all(
            (one is None) == (other is None) and (one is None or torch.equal(one, other))
            for one, other in zip(points, again, strict=True)
        )


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_on_linear_networks_the_ratio_misses_nothing(classes: int, norm: Norm) -> None:
    """A linear network's margins over a ball are exact by the dual norm."""
    torch.manual_seed(4)
    layer = nn.Linear(9, classes)
    samples = torch.rand(60, 9)
    with torch.no_grad():
        logits = layer(samples)
    labels = logits.argmax(1)
    dual = {"linf": 1, "l2": 2}[norm]
    weight = layer.weight.detach()
    reach = (weight[labels][:, None] - weight[None]).norm(p=dual, dim=2)
    radii = (logits.gather(1, labels[:, None]) - logits) / reach
    radii[torch.arange(60), labels] = torch.inf
    radii = radii.amin(1)
    middle = radii.sort().values[29:31]
    assert middle[1] - middle[0] > 1e-5, "no sample is at the rim"
    eps = float(middle.mean())
    broken = (radii < eps).tolist()
    far = (-10.0, 10.0)
    properties = balls(samples, labels, eps, norm, far)
    points = attack(layer, properties, samples, "apgd-dlr", seed=0, targets=classes)
    assert [point is not None for point in points] == broken
    for name in ("apgd-ce", "square"):
        some = attack(layer, properties, samples, name, seed=0)
        assert all(sure or point is None for sure, point in zip(broken, some, strict=True))
        assert sum(point is not None for point in some) >= 0.5 * sum(broken)


def test_the_ratio_does_not_see_the_logits_scale() -> None:
    module = dense()
    samples, labels = samples_of(module, 12)
    properties = balls(samples, labels, 0.1, "linf")

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return module(x) * 1024  # a power of two, which rounds nothing

    one, other = (
        attack(each, properties, samples, "apgd-dlr", seed=0) for each in (module, Scaled())
    )
    assert [p is None for p in one] == [p is None for p in other]


def test_square_breaks_what_has_no_gradient() -> None:
    module = dense()

    class Stepped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return module((x * 64).round() / 64)

    samples, _ = samples_of(module, 12)
    labels = Stepped()(samples).argmax(1)
    properties = balls(samples, labels, 0.1, "linf")
    broken = {
        name: sum(
            point is not None for point in attack(Stepped(), properties, samples, name, seed=0)
        )
        for name in ATTACKS
    }
    assert broken["square"] > broken["apgd-ce"]
    assert broken["square"] > broken["apgd-dlr"]


def test_more_steps_and_targets_break_no_less() -> None:
    module = convolutional()
    samples, labels = samples_of(module, 2, 7, 7)

    def broken(steps: int, targets: int) -> int:
        return sum(
            point is not None
            for eps in (0.03, 0.05, 0.07, 0.09)
            for point in attack(
                module,
                balls(samples, labels, eps, "linf"),
                samples,
                "apgd-dlr",
                seed=0,
                steps=steps,
                targets=targets,
            )
        )

    assert broken(1, 1) < broken(60, 5)


def test_checkpoints_are_the_papers() -> None:
    assert checkpoints(100) == [0, 22, 41, 57, 70, 80, 87, 93, 99, 100]
    assert checkpoints(1) == [0, 1]


def test_what_is_not_attacked_is_refused() -> None:
    module = dense()
    samples, labels = samples_of(module, 12)
    properties = balls(samples, labels, 0.1, "linf")
    with pytest.raises(ValueError, match="attack must be one of"):
        attack(module, properties, samples, "pgd", seed=0)
    interval = Property.interval(
        samples[0], sample=0, target=torch.zeros(4), tolerance=1.0, eps=0.1, domain=UNIT
    )
    with pytest.raises(ValueError, match="interval"):
        attack(module, [interval], samples[:1], "square", seed=0)
    assert attack(module, [], samples[:0], "square", seed=0) == []
    assert [bool(dlr_note(classes)) for classes in (2, 3, 4)] == [True, True, False]
