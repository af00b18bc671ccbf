"""The falsifier and the replay: overflow, empty boxes, and boxes that are none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evalsuite import Network, Property, Replay, falsify, float32_box, margin


def affine(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    layer.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    return layer


def box(lower: float, upper: float, label: int = 0) -> Property:
    return Property(
        0, label, 0.0, torch.tensor([lower], dtype=torch.float64), torch.tensor([upper], dtype=torch.float64)
    )


def overflowing() -> nn.Module:
    # Real logits 1e40 x and 5e39 x; in float32 both are infinite, and no class is the greatest.
    return nn.Sequential(affine([[1e20]], [0.0]), nn.ReLU(), affine([[1e20], [5e19]], [0.0, 0.0])).eval()


def test_a_margin_that_is_no_number_is_a_violation() -> None:
    module, property_ = overflowing(), box(0.5, 1.0)
    (found,) = falsify(module, [property_], seed=0)
    assert found is not None
    assert margin(module(found[None]), torch.tensor([0])).isnan().all()
    assert Replay(Network("overflow", module, (1,), 2)).confirms(property_, found)


def test_a_right_class_is_no_violation() -> None:
    module = affine([[1.0], [0.0]], [0.0, 0.0])
    assert falsify(module, [box(0.5, 1.0)], seed=0) == [None]
    assert not Replay(Network("right", module, (1,), 2)).confirms(box(0.5, 1.0), torch.tensor([0.75]))


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
