"""What linear bounds of a network take, by its multiplications; and refusals by that estimate."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from netverify.carried import carrying_seconds, multiplications
from netverify.certificate import SwapBounds
from opgraph.errors import Unsupported
from opgraph.estimates import RATE
from opgraph.reading import read


def convolutional(activation: type[nn.Module]) -> nn.Module:
    """3 channels of 8 x 8 to 5 of 4 x 4, to 2."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, stride=2, padding=1), activation(), nn.Flatten(), nn.Linear(80, 2)
    ).eval()


def test_multiplications_of_layers_by_hand() -> None:
    graph = read(convolutional(nn.GELU), torch.rand(2, 3, 8, 8))
    # Each of 5 x 4 x 4 outputs sums 3 x 3 x 3 products; each of 2 sums 80.
    assert [each for each in multiplications(graph) if each] == [80 * 27, 2 * 80]


@pytest.mark.parametrize(("activation", "entries"), [(nn.GELU, 80), (nn.ReLU, 0)])
def test_rows_are_carried_through_what_is_before_them(
    activation: type[nn.Module], entries: int
) -> None:
    graph = read(convolutional(activation), torch.rand(2, 3, 8, 8))
    whole, first = 80 * 27 + 160, 80 * 27
    assert carrying_seconds(graph, 7, points=True) == pytest.approx(2 * 7 * whole / RATE)
    both = 2 * (7 * whole + 2 * entries * first) / RATE
    assert carrying_seconds(graph, 7, points=False) == pytest.approx(both)


def test_a_swap_certificate_that_takes_too_long_is_refused_before_it_is_begun() -> None:
    module, shape = convolutional(nn.GELU), (3, 8, 8)
    of_point, of_box = (
        2 * carrying_seconds(read(module, torch.rand(2, *shape)), 24, points=points)
        for points in (True, False)
    )
    assert of_point < of_box
    between = (of_point + of_box) / 2
    bounds = SwapBounds(module, shape, seconds=between)
    assert bounds.too_slow(between, points=True) == ""
    assert "linear bounds of a box through both networks" in bounds.too_slow(between, points=False)
    with pytest.raises(Unsupported, match=r"of a point .* by estimate.*smaller inputs"):
        SwapBounds(module, shape, seconds=of_point / 2)
    with pytest.raises(Unsupported, match="of a box"):
        SwapBounds(module, shape, seconds=between, points=False)
