"""The falsifier and the replay: overflow, empty boxes, and boxes that are none."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from written import affine

from evalsuite import Network, Property
from netverify import Replay, falsify, float32_box, margin


def box(lower: float, upper: float, label: int = 0) -> Property:
    return Property(
        0,
        label,
        0.0,
        torch.tensor([lower], dtype=torch.float64),
        torch.tensor([upper], dtype=torch.float64),
    )


def overflowing() -> nn.Module:
    # Real logits 1e40 x and 5e39 x; in float32 both are infinite, and no class is the greatest.
    return nn.Sequential(
        affine([[1e20]], [0.0]), nn.ReLU(), affine([[1e20], [5e19]], [0.0, 0.0])
    ).eval()


def test_a_margin_that_is_no_number_is_a_violation() -> None:
    module, property_ = overflowing(), box(0.5, 1.0)
    (found,) = falsify(module, [property_], seed=0)
    assert found is not None
    assert margin(module(found[None]), torch.tensor([0])).isnan().all()
    assert Replay(Network("overflow", module, (1,), 2)).confirms(property_, found)


def test_a_right_class_is_no_violation() -> None:
    module = affine([[1.0], [0.0]], [0.0, 0.0])
    assert falsify(module, [box(0.5, 1.0)], seed=0) == [None]
    assert not Replay(Network("right", module, (1,), 2)).confirms(
        box(0.5, 1.0), torch.tensor([0.75])
    )


def test_a_box_without_float32_points_has_no_counterexample() -> None:
    empty, full = box(0.1, 0.1, label=1), box(0.5, 0.5, label=1)  # 0.1 is no float32 number
    lower, upper = float32_box([empty])
    assert (lower > upper).all()
    module = affine([[1.0], [0.0]], [0.0, 0.0])  # class 0 wherever x > 0
    found = falsify(module, [empty, full], seed=0)
    assert found[0] is None
    assert found[1] is not None
    assert found[1].tolist() == [0.5]


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        ([0.2], [0.1], "reversed"),
        ([0.0], [float("nan")], "NaN or infinite"),
        ([float("-inf")], [0.0], "NaN or infinite"),
        ([0.0, 0.0], [1.0], "shape"),
    ],
)
def test_what_is_no_box_is_refused(lower: list[float], upper: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Property(0, 0, 0.0, torch.tensor(lower).double(), torch.tensor(upper).double())


def ball(center: torch.Tensor, eps: float, domain: tuple[float, float] = (-9.0, 9.0)) -> Property:
    return Property.robustness(center, sample=0, label=0, eps=eps, domain=domain, norm="l2")


@pytest.mark.parametrize("share", [0.9, 0.999, 1.001, 1.1])
def test_balls_are_searched_to_their_rim(share: float) -> None:
    # The margin is 2 w x, so the nearest input of the other class is at distance |w c| / |w|
    # exactly.
    w = torch.tensor([1.0, -2.0, 0.5, 3.0])
    module = nn.Linear(4, 2, bias=False)
    module.weight.data = torch.stack([w, -w])
    center = 0.1 * w
    property_ = ball(center, share * float((w @ center) / w.norm()))
    (found,) = falsify(module, [property_], seed=0)
    assert (found is not None) == (share > 1)
    assert found is None or property_.contains(found)


def test_a_ball_is_clipped_and_its_rim_is_left_out_where_rounding_leaves_it_open() -> None:
    property_ = ball(torch.tensor([0.9, 0.5]), 0.3, (0.0, 1.0))
    assert property_.contains(torch.tensor([1.0, 0.5]))
    assert not property_.contains(torch.tensor([1.1, 0.5]))  # outside the domain
    assert not property_.contains(torch.tensor([1.0, 0.79]))  # in the box, outside the ball
    assert ball(torch.tensor([0.25]), 0.0).contains(torch.tensor([0.25]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eps": -0.1}, "eps must be >= 0, got -0.1"),
        ({"eps": float("nan")}, "eps must be >= 0, got nan"),
        ({"norm": "l1"}, "norm must be one of linf, l2, got 'l1'"),
        ({"center": torch.tensor([float("nan")])}, "sample 3 has an input that is NaN or infinite"),
        ({"domain": (1.0, 0.0)}, "the domain is reversed: 1.0 > 0.0"),
        ({"domain": (2.0, 3.0)}, "the ball around sample 3 lies outside the domain (2.0, 3.0)"),
    ],
)
def test_bad_balls_are_refused(given: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"center": torch.tensor([0.5]), "eps": 0.1, "domain": (0.0, 1.0)}
    arguments |= given
    with pytest.raises(ValueError, match=re.escape(message)):
        Property.robustness(arguments.pop("center"), sample=3, label=0, **arguments)
