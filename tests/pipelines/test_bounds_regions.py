"""Balls inside boxes: the least values of linear functions, and bounds over them; against closed
forms and sampling.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bounds_sampled import Sampled
from scipy.optimize import minimize
from torch import nn

from evalsuite import Network, Property, Unsupported
from pipelines.bounds.options import METHODS
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.regions import Regions


def balls(
    shape: tuple[int, ...], eps: float, count: int, classes: int = 3, seed: int = 0
) -> list[Property]:
    """Around points of [0, 1], some of them at its edges, so that the box cuts the ball."""
    generator = torch.Generator().manual_seed(seed)
    centers = (1.6 * torch.rand(count, *shape, generator=generator) - 0.3).clamp(0, 1)
    return [
        Property.robustness(
            each, sample=i, label=i % classes, eps=eps, domain=(0.0, 1.0), norm="l2"
        )
        for i, each in enumerate(centers)
    ]


def inside(property_: Property, points: int) -> torch.Tensor:
    """(points, *shape) float64 in ball and box: on the rim, and within."""
    assert property_.center is not None
    generator = torch.Generator().manual_seed(2)
    step = torch.randn(points, *property_.lower.shape, generator=generator, dtype=torch.float64)
    length = torch.ones(points, dtype=torch.float64)
    length[::3] = torch.rand(len(length[::3]), generator=generator, dtype=torch.float64)
    length = length * property_.eps * (1 - 1e-12)
    step = step * (length / step.flatten(1).norm(dim=1)).reshape(-1, *[1] * property_.lower.ndim)
    # Moving a point into the box brings it nearer to a center that lies in the box.
    return (property_.center + step).clamp(property_.lower, property_.upper)


@pytest.mark.parametrize("eps", [0.05, 0.9, 5.0])
def test_the_least_value_is_that_of_a_solver(eps: float) -> None:
    properties = balls((6,), eps, 5)
    rows = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows[:, 0, 1:] = 0
    found = Regions.of(properties).least(rows)
    for i, each in enumerate(properties):
        assert each.center is not None
        center = each.center.numpy()
        for k in range(4):
            row = rows[i, k].numpy()
            solved = minimize(
                lambda x, row=row: float(row @ x),
                center,
                jac=lambda _, row=row: row,
                bounds=list(zip(each.lower.numpy(), each.upper.numpy(), strict=True)),
                constraints={
                    "type": "ineq",
                    "fun": lambda x, center=center: eps**2 - np.sum((x - center) ** 2),
                },
                options={"ftol": 1e-14, "maxiter": 500},
                method="SLSQP",
            ).fun
            assert found[i, k].item() == pytest.approx(solved, abs=2e-6)
            values = inside(each, 400) @ rows[i, k]
            assert (found[i, k] <= values + 1e-12).all()


def test_never_above_a_value_for_many_inputs_and_scales() -> None:
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        properties = balls(
            (200,), float(10 ** (4 * torch.rand(1, generator=generator) - 3)), 2, seed=seed
        )
        rows = torch.randn(1, 5, 200, generator=generator, dtype=torch.float64).pow(5)
        found = Regions.of(properties).least(rows)
        for i, each in enumerate(properties):
            values = inside(each, 300) @ rows[0].T
            for k in range(5):  # the steepest point inside: what random points do not reach
                assert each.center is not None
                step = each.eps * (1 - 1e-12) * rows[0, k] / rows[0, k].norm()
                best = (each.center - step).clamp(each.lower, each.upper)
                assert found[i, k] <= best @ rows[0, k] + 1e-12 * rows[0, k].abs().sum()
            assert (found[i] <= values.amin(0) + 1e-12 * rows[0].abs().sum(1)).all()


def test_boxes_and_balls_in_one_batch() -> None:
    ball = balls((4,), 0.5, 1)[0]
    box = Property(1, 0, 0.5, ball.lower, ball.upper)
    rows = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = Regions.of([ball, box]).least(rows)
    assert torch.allclose(
        together[1], torch.where(rows[0] > 0, box.lower, box.upper).mul(rows[0]).sum(1)
    )
    assert torch.equal(together[:1], Regions.of([ball]).least(rows))


def test_points_lie_in_ball_and_box() -> None:
    properties = balls((2, 5), 0.4, 4)
    share = torch.rand(
        50, 1, 2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).round()
    points = Regions.of(properties).points(share)
    for i, each in enumerate(properties):
        assert all(each.contains(point) for point in points[:, i])
        assert each.center is not None
        assert (points[:, i] - each.center).flatten(1).norm(dim=1).max() > 0.39


def test_a_ball_outside_of_its_box_is_refused() -> None:
    lower = torch.zeros(2).double()
    with pytest.raises(ValueError, match="sample 7: the ball lies outside of the box"):
        Regions.of([Property(7, 0, 0.5, lower, lower + 1, lower - 0.4)])


@pytest.mark.parametrize("method", METHODS)
def test_linear_networks_have_a_closed_form(method: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 3)
    subject = Network("linear", nn.Sequential(layer).eval(), (5,), 3)
    middle = torch.full((5,), 0.5)
    property_ = Property.robustness(
        middle, sample=0, label=1, eps=0.25, domain=(0.0, 1.0), norm="l2"
    )
    propagation = Propagation(subject)
    if method == "alpha-crown" and propagation.second.unoptimized:
        with pytest.raises(Unsupported, match="alpha-CROWN"):
            propagation.bounds([property_], method)
        return
    found = propagation.bounds([property_], method)
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    center, reach = weight @ middle.double() + bias, 0.25 * weight.norm(dim=1)
    assert torch.allclose(found.lower[0], center - reach, atol=1e-9, rtol=0)
    assert torch.allclose(found.upper[0], center + reach, atol=1e-9, rtol=0)
    rows = weight[1] - weight[[0, 2]]
    margins = center[1] - center[[0, 2]] - 0.25 * rows.norm(dim=1)
    assert torch.allclose(found.margins[0], margins, atol=1e-9, rtol=0)


def two_layers(kind: str, act: nn.Module) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(1)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(6, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 3)), (6,)
    layers = [
        nn.Conv2d(1, 3, 3, 1, 1),
        act,
        nn.Conv2d(3, 3, 3, 2, 1),
        act,
        nn.Flatten(),
        nn.Linear(27, 3),
    ]
    return nn.Sequential(*layers), (1, 5, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "act"), [("mlp", nn.GELU), ("cnn", nn.ReLU), ("cnn", nn.GELU)])
def test_balls_are_bounded_soundly_and_within_their_boxes(kind: str, act: type[nn.Module]) -> None:
    module, shape = two_layers(kind, act())
    subject = Network(kind, module.eval(), shape, 3)
    propagation = Propagation(subject, iterations=4)
    for eps in (0.1, 1.0):
        properties = balls(shape, eps, 3)
        boxes = [
            Property(each.sample, each.label, eps, each.lower, each.upper) for each in properties
        ]
        sampled, found = (
            Sampled(subject, properties, [inside(each, 600) for each in properties]),
            {},
        )
        for method in METHODS:
            found[method] = propagation.bounds(properties, method)
            boxed = propagation.bounds(boxes, method)
            sampled.check(found[method], propagation.layers)
            width, whole = ((one.upper - one.lower).mean() for one in (found[method], boxed))
            assert width < 0.9 * whole
        # The first layer's bounds are those of ball and box together: never wider than the ball's
        # alone.
        if kind == "mlp":
            weight = module[0].weight.detach().double()
            low, high = found["ibp"].inputs[0]
            assert (high - low <= 2 * eps * weight.norm(dim=1) + 1e-8).all()
        assert (found["crown"].margins >= found["ibp"].margins).all()
        assert (found["alpha-crown"].margins >= found["crown"].margins).all()


def test_a_center_far_outside_of_the_box_and_rows_whose_squares_underflow() -> None:
    ends = torch.tensor([[-0.25], [0.5], [-(2.0**30)], [2.0**30 + 0.25]], dtype=torch.float64)
    far = Regions(ends[0:1], ends[1:2], ends[2:3], ends[3])
    row = torch.tensor([[[0.1], [-0.1], [1e-170], [-1e-170]]], dtype=torch.float64)
    least = far.least(row)[0]
    # The ball's end is at 0.25; its coordinate is exact.
    for bound, weight in zip(least.tolist(), row.flatten().tolist(), strict=True):
        assert bound <= min(weight * -0.25, weight * 0.25)
