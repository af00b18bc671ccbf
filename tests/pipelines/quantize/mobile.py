"""A small MobileNetV3 (arXiv 1905.02244) for the tests: every kind of its blocks, written by
hand.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

SHAPE = (3, 16, 16)
# Kernel, expanded and made channels, whether there is a squeeze and excitation, the activation, the
# stride.
_BLOCKS: tuple[tuple[int, int, int, bool, Callable[[], nn.Module], int], ...] = (
    (3, 8, 8, True, nn.ReLU, 2),
    (3, 24, 16, False, nn.ReLU, 1),
    (5, 40, 16, True, nn.Hardswish, 1),
)


class SqueezeExcitation(nn.Module):
    """Weighs each channel by what all pixels give."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeeze, excite = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), squeeze, nn.ReLU(), excite, nn.Hardsigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights: torch.Tensor = self.weigh(x)
        return x * weights


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection; with a residual where the shape stays."""

    def __init__(
        self, given: int, block: tuple[int, int, int, bool, Callable[[], nn.Module], int]
    ) -> None:
        super().__init__()
        kernel, wide, made, excited, activation, stride = block
        layers = [*normed(given, wide), activation()] if wide != given else []
        layers += [*normed(wide, wide, kernel, stride, wide), activation()]
        layers += [SqueezeExcitation(wide)] if excited else []
        self.layers = nn.Sequential(*layers, *normed(wide, made))
        self.residual = stride == 1 and given == made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x)
        return x + made if self.residual else made


def normed(
    given: int, made: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution and its norm."""
    return [
        nn.Conv2d(given, made, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(made),
    ]


def mobile() -> nn.Module:
    """The network in eval mode, its norms set as by a training, for ten classes."""
    layers, given = [*normed(3, 8, 3, 2), nn.Hardswish()], 8
    for block in _BLOCKS:
        layers.append(InvertedResidual(given, block))
        given = block[2]
    head = [
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.Hardswish(),
        nn.Linear(64, 10),
    ]
    module = nn.Sequential(*layers, *normed(given, 64), nn.Hardswish(), *head)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
    with torch.no_grad():
        module.train()(torch.rand(32, *SHAPE))
    return module.eval()
