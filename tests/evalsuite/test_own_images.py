"""Images: the decoder says whether a file is whole, and each is turned upright unless the user
says otherwise.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from evalsuite.contract import Data
from evalsuite.data.reading import read_data
from evalsuite.data.source import source_of
from evalsuite.tasks import Classification
from opgraph.errors import OwnError

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(given: Any) -> Data:
    return read_data(source_of(given), Classification())


def encoded(form: str, size: tuple[int, int] = (12, 12), **options: Any) -> bytes:
    content = io.BytesIO()
    image = Image.fromarray(RANDOM.integers(0, 256, (*size, 3), dtype=np.uint8))
    image.save(content, form, **options)
    return content.getvalue()


SUFFIX = {
    "JPEG": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "GIF": "gif",
    "BMP": "bmp",
    "TIFF": "tif",
    "PPM": "ppm",
}


def folder(form: str, tail: bytes = b"", **options: Any) -> None:
    for label in "ab":
        Path("i", label).mkdir(parents=True)
        for i in range(8):
            Path("i", label, f"{i}.{SUFFIX[form]}").write_bytes(encoded(form, **options) + tail)


TAILS = {
    "nothing": b"",
    "padding": bytes(60),
    "more padding": bytes(100),
    "a page of it": bytes(5000),
    "a video": b"MotionPhoto_Data\0\0\0\x18ftypmp42" + bytes(2000),
    "a log": b"\nresized by tool 3\n" * 20,
    "a line": b"\r\n",
    "another end": bytes(100) + b"\xff\xd9" + bytes(100),
}


@pytest.mark.parametrize("form", SUFFIX)
@pytest.mark.parametrize("tail", TAILS)
def test_whole_images_with_bytes_behind_their_end_are_read(form: str, tail: str) -> None:
    folder(form, TAILS[tail])
    assert read("i").input_shape == (3, 12, 12)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("tail", [b"", bytes(3)])
def test_images_that_are_cut_short_are_refused(form: str, kept: float, tail: bytes) -> None:
    folder(form, size=(40, 40))
    whole = encoded(form, (40, 40))
    cut = Path(f"i/b/5.{SUFFIX[form]}")
    cut.write_bytes(whole[: int(len(whole) * kept)] + (tail if form == "JPEG" else b""))
    with pytest.raises(
        OwnError,
        match=rf"^{re.escape(str(cut))}: (the image is cut short|cannot be read as an image)",
    ):
        read("i")


@pytest.mark.parametrize(
    ("form", "lost"), [("JPEG", 1), ("JPEG", 2), ("PNG", 12), ("PNG", 16), ("PNG", 60)]
)
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_images_that_lack_their_end_are_refused(
    form: str, lost: int, options: dict[str, Any]
) -> None:
    folder(form, **(options if form == "JPEG" else {}))
    cut = Path(f"i/a/2.{SUFFIX[form]}")
    cut.write_bytes(cut.read_bytes()[:-lost])
    with pytest.raises(
        OwnError,
        match=rf"^{re.escape(str(cut))}: (the image is cut short|cannot be read as an image)",
    ):
        read("i")


# brighter above than below, and on the left than on the right
UPRIGHT = np.zeros((10, 16), np.uint8)
UPRIGHT[:5], UPRIGHT[:, :8] = 120, UPRIGHT[:, :8] + 80
UPRIGHT[:5, :8] = 200
# Of each EXIF orientation how the upright picture is stored.
STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda image: image,
    2: np.fliplr,
    3: lambda image: np.rot90(image, 2),
    4: np.flipud,
    5: lambda image: image.T,
    6: np.rot90,
    7: lambda image: np.rot90(image, 2).T,
    8: lambda image: np.rot90(image, -1),
}


def photos(form: str, orientation: int) -> None:
    """Half of the images are stored by that orientation, the other half upright."""
    for label in "ab":
        Path("i", label).mkdir(parents=True)
        for i in range(8):
            number = orientation if i % 2 else 1
            pixels = np.stack([np.ascontiguousarray(STORED[number](UPRIGHT))] * 3, axis=-1)
            pixels[0, 0] = i + 10 * (label == "b")
            exif = Image.Exif()
            exif[0x0112] = number
            quality = (
                {"lossless": True} if form == "WEBP" else {"quality": 95} if form == "JPEG" else {}
            )
            Image.fromarray(pixels).save(
                f"i/{label}/{i}.{SUFFIX[form]}", form, exif=exif, **quality
            )


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", STORED)
def test_photos_are_turned_upright_and_it_is_said(form: str, orientation: int) -> None:
    photos(form, orientation)
    data = read("i")
    assert data.input_shape == (3, 10, 16)
    wanted = torch.tensor(UPRIGHT / 255).float()
    for split in (data.train, data.calibration, data.validation, data.test):
        images: Any = split.inputs
        assert ((images[:][:, 0] - wanted).abs()[:, 2:-2, 2:-2] < 0.15).all()
    said = dict(data.notes).get("images", "")
    assert said.startswith("8 of 16 are turned upright, as their EXIF orientation says") == (
        orientation > 1 and form != "TIFF"
    )


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_photos_are_given_as_stored_where_the_user_says_so(form: str) -> None:
    photos(form, 3)
    data = read({"path": "i", "orientation": "stored"})
    images: Any = data.train.inputs
    turned = (images[:][:, 0, 2:4, 2:4].mean((1, 2)) < 0.4).sum()
    assert 0 < int(turned) < len(data.train)
    assert dict(data.notes)["images"].startswith("8 of 16 are given as stored")
    photos_of = {"path": "i", "orientation": "sideways"}
    with pytest.raises(
        OwnError, match=r"data\.orientation: unknown 'sideways'; write one of upright, stored"
    ):
        read(photos_of)


def test_sideways_photos_have_another_size_as_stored() -> None:
    photos("JPEG", 6)
    with pytest.raises(OwnError, match="the image is 16 x 10, others are 10 x 16"):
        read({"path": "i", "orientation": "stored"})
    assert read({"path": "i", "orientation": "stored", "size": [8, 8]}).input_shape == (3, 8, 8)


def deep_png(kind: int, channels: int) -> bytes:
    """A PNG of 16 bits a channel, all of whose values are below 256."""
    rows = [bytes([0]) + RANDOM.integers(0, 256, (8, channels)).astype(">u2").tobytes()] * 8
    head = struct.pack(">IIBBBBB", 8, 8, 16, kind, 0, 0, 0)
    pieces = ((b"IHDR", head), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in pieces
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def deep_image(kind: str) -> bytes:
    if kind == "PPM":
        values = RANDOM.integers(0, 256, (8, 8, 3)).astype(">u2")
        return b"P6 8 8 65535\n" + values.tobytes()
    if kind == "PGM":
        return b"P5 8 8 65535\n" + RANDOM.integers(0, 256, (8, 8)).astype(">u2").tobytes()
    return deep_png(
        *{"grey": (0, 1), "RGB": (2, 3), "grey and alpha": (4, 2), "RGBA": (6, 4)}[kind]
    )


@pytest.mark.parametrize("kind", ["grey", "RGB", "grey and alpha", "RGBA", "PPM", "PGM"])
def test_images_of_16_bits_a_channel_are_refused_as_pillow_cuts_them_off(kind: str) -> None:
    for label in "ab":
        Path("i", label).mkdir(parents=True)
        for i in range(8):
            suffix = {"PPM": "ppm", "PGM": "pgm"}.get(kind, "png")
            Path("i", label, f"{i}.{suffix}").write_bytes(deep_image(kind))
    with pytest.raises(OwnError, match=r"i/a/0\.\w+: has more than 8 bits a channel"):
        read("i")


def test_a_scale_of_fewer_values_than_a_byte_is_that_of_the_file() -> None:
    for label, value in (("a", 15), ("b", 0)):
        Path("i", label).mkdir(parents=True)
        for i in range(8):
            pixels = bytes([value] * 3 * 63 + [i] * 3)
            Path("i", label, f"{i}.ppm").write_bytes(b"P6 8 8 15\n" + pixels)
    images: Any = read("i").train.inputs
    assert {float(image[0, 0, 0]) for image in images[:]} == {0.0, 1.0}


SEEN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "an animated GIF": ("GIF", "frames", {"save_all": True}),
    "an animated PNG": ("PNG", "frames", {"save_all": True}),
    "an animated WebP": ("WEBP", "frames", {"save_all": True}),
    "pages of a TIFF": ("TIFF", "frames", {"save_all": True}),
    "an alpha channel": ("PNG", "alpha", {}),
    "an alpha channel of a TIFF": ("TIFF", "alpha", {}),
    "an alpha channel of a WebP": ("WEBP", "alpha", {}),
}


@pytest.mark.parametrize("form", SEEN)
def test_frames_and_transparency_that_are_left_out_are_told(form: str) -> None:
    kind, what, options = SEEN[form]
    channels = 4 if what == "alpha" else 3
    for label in "ab":
        Path("i", label).mkdir(parents=True)
        for i in range(8):
            frames = [
                Image.fromarray(RANDOM.integers(0, 256, (8, 8, channels), dtype=np.uint8))
                for _ in range(3)
            ]
            more = {"append_images": frames[1:]} if options and i % 2 else {}
            path = Path("i", label, f"{i}.{SUFFIX[kind]}")
            if what == "alpha" and i % 2:
                frames[0] = frames[0].convert("RGB")
            frames[0].save(path, kind, **(options if more else {}), **more)
    notes = dict(read("i").notes)
    assert notes[what].startswith("8 of 16 have ")
    assert len({"images", "frames", "alpha"} & notes.keys()) == 1
