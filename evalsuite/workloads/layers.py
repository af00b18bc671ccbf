"""Building blocks that the architectures share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def mlp(widths: list[int], activation: Callable[[int], nn.Module]) -> nn.Sequential:
    """Linear layers of the given widths with an activation between each two."""
    from torch import nn

    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), activation(fan_out)]
    return nn.Sequential(*layers[:-1])


def convolution(
    channels_in: int, channels_out: int, activation: Callable[[int], nn.Module], *, stride: int = 1
) -> list[nn.Module]:
    """A 3 x 3 convolution, BatchNorm and an activation. The convolution has no bias, because
    BatchNorm has one.
    """
    from torch import nn

    return [
        nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        activation(channels_out),
    ]
