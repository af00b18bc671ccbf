"""The swap: ReLU in place of every activation."""

from __future__ import annotations

from torch import nn

from evalsuite.activations import RELU, census, replace


def swap_to_relu(module: nn.Module) -> nn.Module:
    """A copy of `module` with ReLU in place of each known activation.

    Raises:
        ValueError: there is none, or the census of the copy still finds another activation.
    """
    swapped = replace(module, lambda _: nn.ReLU())
    left = [found.path for found in census(swapped) if found.traits.name != RELU.name]
    if left:
        raise ValueError(f"not swapped: {', '.join(left)}")
    return swapped.eval()
