"""Augmentation of training batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from evalsuite.own.data.source import AUGMENTATIONS
from evalsuite.references import OwnError, blame, resolve
from evalsuite.samples import Inputs, leaves


def augmentation(name: str) -> Callable[[Inputs, torch.Generator], Inputs]:
    """A function of a batch and a generator: "flip", "crop-flip", or a user's."""
    if name in AUGMENTATIONS:
        return flip if name == "flip" else crop_flip
    resolve(name, what="the augmentation")
    return Augment(name)


class Augment:
    """A user's function, found by its reference, so that it can be pickled; its errors name the user's line."""

    def __init__(self, reference: str) -> None:
        self._reference = reference

    def __call__(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        """The batch, changed.

        Raises:
            OwnError: the function raises, or gives another shape.
        """
        function = resolve(self._reference, what="the augmentation")
        try:
            found: Inputs = function(inputs, generator)
            shapes = [tuple(each.shape) for each in leaves(found)]
        except Exception as error:  # a user's function may raise anything
            raise blame(error, "the augmentation", self._reference) from error
        wanted = [tuple(each.shape) for each in leaves(inputs)]
        if shapes != wanted:
            raise OwnError(f"{self._reference}: gives inputs of shape {shapes} for {wanted}; keep the shape")
        return found


def flip(inputs: Inputs, generator: torch.Generator) -> Inputs:
    """Half of the images (samples, channels, height, width), left to right."""
    images = _images(inputs)
    chosen = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(-1), images)


def crop_flip(inputs: Inputs, generator: torch.Generator) -> Inputs:
    """The same, each shifted by up to an eighth of its height and width; what comes in from outside is 0."""
    images = _images(flip(inputs, generator))
    count, _, height, width = images.shape
    most = max(1, height // 8), max(1, width // 8)
    padded = functional.pad(images, (most[1], most[1], most[0], most[0]))
    down = torch.randint(2 * most[0] + 1, (count, 1), generator=generator) + torch.arange(height)
    across = torch.randint(2 * most[1] + 1, (count, 1), generator=generator) + torch.arange(width)
    return padded[torch.arange(count)[:, None, None], :, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)


def _images(inputs: Inputs) -> torch.Tensor:
    if not isinstance(inputs, torch.Tensor) or inputs.ndim != 4:
        raise OwnError("data.augment: flip and crop-flip are of images (samples, channels, height, width)")
    return inputs
