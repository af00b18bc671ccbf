"""A residual block: the convolutional networks whose tensors are added."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from evalsuite.workloads.layers import convolution


class ResidualBlock(nn.Module):
    """activation(x + two 3 x 3 convolutions of x), each with BatchNorm: arXiv 1512.03385, figure 2.

    Where the block changes the shape, a 1 x 1 convolution with BatchNorm projects x. Maps (batch, channels_in, height,
    width) to (batch, channels_out, height / stride, width / stride), rounded up.

    Args:
        channels_in: of the input.
        channels_out: of the output.
        activation: makes each of the two activations from its number of channels.
        stride: of the first convolution and of the projection.
    """

    def __init__(
        self, channels_in: int, channels_out: int, activation: Callable[[int], nn.Module], *, stride: int = 1
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *convolution(channels_in, channels_out, activation, stride=stride),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False), nn.BatchNorm2d(channels_out)
            )
        self.activation = activation(channels_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output for x, of the shape that the class states."""
        return self.activation(self.residual(x) + self.shortcut(x))  # type: ignore[no-any-return]
