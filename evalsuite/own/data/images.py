"""Images in files or in a column of bytes, decoded by Pillow when they are asked for."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from evalsuite.own.data.source import Source
from evalsuite.references import OwnError
from evalsuite.samples import Samples

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_KEPT = 256 * 2**20  # bytes of decoded pixels that are kept
_ENDS = {"PNG": b"IEND\xaeB`\x82", "JPEG": b"\xff\xd9"}
_TAIL = 64  # a few bytes may follow the end
_GREY = ("1", "L")
_DEEP = ("I", "F")


class Encoded(Protocol):
    """Images as the bytes of their files."""

    def __len__(self) -> int:
        """How many images there are to index."""
        ...

    def __getitem__(self, index: int) -> bytes:
        """The encoded bytes of one image."""
        ...


class Files:
    """The image files `names` of one folder: indexing reads the bytes of one."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, list(names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> bytes:
        return (self._folder / self._names[index]).read_bytes()


class Column:
    """A column of a table: bytes, or Hugging Face's {bytes, path}."""

    def __init__(self, values: Any, folder: Path) -> None:
        self._values, self._folder = values, folder

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> bytes:
        value = self._values[index]
        value = value.as_py() if hasattr(value, "as_py") else value
        if isinstance(value, dict):
            inside = value.get("bytes")
            value = (
                inside if inside is not None or not value.get("path") else (self._folder / value["path"]).read_bytes()
            )
        return bytes(value) if value is not None else b""


class Pictures(Samples):
    """Images (samples, channels, height, width), float32 in [0, 1] or normalised.

    With `keep` what is decoded is kept, as bytes. Grey and coloured images are turned into one another; where a size is
    given, each is stretched to it (bilinear).
    """

    def __init__(
        self,
        encoded: Encoded,
        where: Callable[[int], str],
        size: tuple[int, int],
        channels: int,
        *,
        source: Source,
        digests: list[bytes],
        keep: bool,
    ) -> None:
        self._encoded, self._where, self._digests = encoded, where, digests
        self._shape = (channels, *size)
        self._mean, self._std = (_by_channel(each, channels) for each in (source.mean or (0.0,), source.std or (1.0,)))
        self._plain = not source.mean
        # numpy's zeros take memory as they are written, torch's at once
        self._kept = torch.from_numpy(np.zeros((len(encoded) if keep else 0, *self._shape), np.uint8))
        self._known = torch.zeros(len(self._kept), dtype=torch.bool)

    def __len__(self) -> int:
        return len(self._encoded)

    def identities(self) -> list[bytes] | None:
        return self._digests

    def read(self, indices: Sequence[int]) -> torch.Tensor:
        """See `Samples`.

        Raises:
            OwnError: a file is no image, or a damaged one.
        """
        found = torch.empty((len(indices), *self._shape), dtype=torch.uint8)
        for place, index in enumerate(indices):
            found[place] = self._pixels(index)
        pixels = found.float() / 255
        return pixels if self._plain else (pixels - self._mean) / self._std

    def _pixels(self, index: int) -> torch.Tensor:
        if len(self._kept) and bool(self._known[index]):
            return self._kept[index]
        channels, height, width = self._shape
        try:
            with Image.open(io.BytesIO(self._encoded[index])) as opened:
                image = opened.convert("RGB" if channels == 3 else "L")
                if image.size != (width, height):
                    image = image.resize((width, height), Image.Resampling.BILINEAR)
                array = np.array(image).reshape(height, width, channels)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise _unreadable(self._where(index), error) from error
        found = torch.from_numpy(array).permute(2, 0, 1)
        if len(self._kept):
            self._kept[index], self._known[index] = found, True
        return found


def _by_channel(values: Sequence[float], channels: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).expand(channels)[:, None, None]


def domain_of(source: Source) -> tuple[float, float]:
    """The range of an image's numbers: [0, 1], or that normalised, over all channels."""
    pairs = list(zip(source.mean or (0.0,), source.std or (1.0,), strict=True))
    return min((0 - mean) / std for mean, std in pairs), max((1 - mean) / std for mean, std in pairs)


def pictures(
    parts: Mapping[str, tuple[Encoded, Callable[[int], str]]], source: Source, said: str
) -> dict[str, Pictures]:
    """The images of each part; each file's head and end are looked at.

    Raises:
        OwnError: one is no image, is cut short, or has another size than the first where none is given.
    """
    seen = {name: _survey(*each, size=source.size) for name, each in parts.items()}
    first = next(iter(seen.values()))
    for name, each in seen.items():
        if each.size != first.size:
            raise _other_size(parts[name][1](0), each.size, first.size)
    channels = source.channels or (3 if any(each.coloured for each in seen.values()) else 1)
    if source.mean and len(source.mean) not in (1, channels):
        raise OwnError(f"data.mean has {len(source.mean)} numbers, but images of {said} have {channels} channels")
    keep = sum(len(each.digests) for each in seen.values()) * channels * first.size[0] * first.size[1] <= _KEPT
    return {
        name: Pictures(encoded, where, first.size, channels, source=source, digests=seen[name].digests, keep=keep)
        for name, (encoded, where) in parts.items()
    }


class _Seen:
    """What the heads of the images tell."""

    def __init__(self) -> None:
        self.size, self.coloured = (0, 0), False
        self.digests: list[bytes] = []


def _survey(encoded: Encoded, where: Callable[[int], str], *, size: tuple[int, ...]) -> _Seen:
    found = _Seen()
    for index in range(len(encoded)):
        try:
            content = encoded[index]
            with Image.open(io.BytesIO(content)) as image:
                form, mode, shape = image.format or "", image.mode, (image.size[1], image.size[0])
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise _unreadable(where(index), error) from error
        if _ENDS.get(form, b"") not in content[-_TAIL:]:
            raise OwnError(f"{where(index)}: the image is cut short; replace it, or leave it out")
        if mode.startswith(_DEEP):
            raise OwnError(f"{where(index)}: has more than 8 bits a channel (mode {mode}); convert it to 8 bits")
        if index == 0:
            found.size = (size[0], size[1]) if size else shape
        elif not size and shape != found.size:
            raise _other_size(where(index), shape, found.size)
        found.coloured |= mode not in _GREY
        found.digests.append(hashlib.sha256(content).digest()[:16])
    return found


def _other_size(where: str, shape: tuple[int, int], first: tuple[int, int]) -> OwnError:
    said = f"the image is {shape[0]} x {shape[1]}, others are {first[0]} x {first[1]} (height x width)"
    return OwnError(f"{where}: {said}; say `size: [{first[0]}, {first[1]}]` to have each resized")


def _unreadable(where: str, error: BaseException) -> OwnError:
    said = " ".join(str(error).split())
    reason = "not in a form that Pillow knows" if "cannot identify" in said else said
    return OwnError(f"{where}: cannot be read as an image ({reason}); replace it, or leave it out")
