"""Images as bytes in memory, read as float32 in [0, 1] a batch at a time; flips and crops for
training.

Inputs stay in [0, 1], and no layer normalises them: the first layer of every network here can take
up any shift and scale by its own weights, all the more before a BatchNorm. So eps is in units of
the pixels, boxes are clipped to the domain that images have, an 8-bit quantizer of the inputs is
exact, and verifiers meet no layer that was never learnt.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from evalsuite.samples import Samples
from opgraph.inputs import Inputs

if TYPE_CHECKING:
    import numpy as np

_DIGEST = 16  # bytes: enough to tell images apart


class Pixels(Samples):
    """Images, uint8 (samples, channels, height, width), read as float32 in [0, 1]."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def read(self, indices: Sequence[int]) -> torch.Tensor:
        return self._values[torch.as_tensor(list(indices), dtype=torch.int64)].float().div_(255)

    def identities(self) -> list[bytes]:
        """Digests of the bytes: an eighth of the work that those of the numbers would be."""
        return [
            blake2b(each.tobytes(), digest_size=_DIGEST).digest() for each in self._values.numpy()
        ]


class Encoded(Pixels):
    """Encoded images, as JPEG or PNG, of one size: each is decoded when it is first asked for, and
    then kept.

    Args:
        images: the encoded bytes of each.
        shape: (channels, height, width) that each must have; the channels are RGB.
        source: the file they come from, for messages.
    """

    def __init__(self, images: Sequence[bytes], shape: tuple[int, int, int], source: str) -> None:
        super().__init__(torch.zeros(len(images), *shape, dtype=torch.uint8))
        self._images, self._source = images, source
        self._decoded = [False] * len(images)

    def read(self, indices: Sequence[int]) -> torch.Tensor:
        """See `Samples`. Raises ValueError: an image is damaged or of another size; the text
        names file and row.
        """
        for index in indices:
            if not self._decoded[index]:
                self._values[index] = torch.from_numpy(self._decode(index))
                self._decoded[index] = True
        return super().read(indices)

    def identities(self) -> list[bytes]:
        """Digests of the encoded bytes, so that nothing is decoded for them."""
        return [blake2b(image, digest_size=_DIGEST).digest() for image in self._images]

    def _decode(self, index: int) -> np.ndarray:
        import numpy as np
        from PIL import Image

        try:
            values = np.array(Image.open(io.BytesIO(self._images[index])).convert("RGB"))
        # SyntaxError is Pillow's for a broken PNG
        except (OSError, ValueError, SyntaxError) as error:
            said = " ".join(str(error).split())
            raise ValueError(
                f"{self._source}: the image in row {index} is damaged ({said}); get it again"
            ) from error
        wanted = (*self._values.shape[2:], self._values.shape[1])
        if values.shape != wanted:
            size = "{1} x {0}".format(*values.shape)
            raise ValueError(
                f"{self._source}: row {index} is {size} pixels, not {wanted[1]} x {wanted[0]}: not"
                " this data"
            )
        return values.transpose(2, 0, 1)


def flipped_and_cropped(inputs: Inputs, generator: torch.Generator, padding: int = 4) -> Inputs:
    """Each image (batch, channels, height, width) mirrored with probability 1/2, and shifted by up
    to `padding` pixels.

    What the shift brings in from outside is black (arXiv 1512.03385, section 4.2).
    """
    assert isinstance(inputs, torch.Tensor)
    count, channels, height, width = inputs.shape
    padded = functional.pad(inputs, [padding] * 4)
    down, right = torch.randint(2 * padding + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    across = torch.arange(width)
    rows = down + torch.arange(height)
    columns = right + torch.where(mirrored, width - 1 - across, across)
    each, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None]
    return padded[each, channel, rows[:, None, :, None], columns[:, None, None, :]]
