"""Images: the decoder says whether a file is whole, and each is turned upright unless the user
says otherwise.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from evalsuite.contract import Data
from evalsuite.own.data import source_of
from evalsuite.own.data.reading import read_data
from evalsuite.references import OwnError
from evalsuite.tasks import Classification

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
