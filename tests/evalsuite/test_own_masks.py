"""Folders of images and masks as data of segmentation, and what is refused of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evalsuite.contract import IGNORED, Data
from evalsuite.data.reading import read_data
from evalsuite.data.source import Source
from evalsuite.tasks import Classification, Heads, Segmentation
from opgraph.errors import OwnError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drawn(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Grey pictures of 6 x 8, and the class of each of their places, from 0 to 2."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, 6, 8), np.uint8), draw.integers(0, 3, (count, 6, 8))


def written(
    images: np.ndarray,
    masks: np.ndarray,
    form: Callable[[str], tuple[str, str]] = lambda name: (f"d/images/{name}", f"d/masks/{name}"),
) -> None:
    """Write a PNG of each."""
    for number, (image, mask) in enumerate(zip(images, masks, strict=True)):
        for path, array in zip(form(f"{number:03}.png"), (image, mask), strict=True):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array.astype(np.uint8)).save(path)


def read(**options: object) -> Data:
    return read_data(Source("d", **options), Segmentation())  # type: ignore[arg-type]


def test_each_place_has_the_grey_value_of_its_mask_as_class() -> None:
    images, masks = drawn(20)
    written(images, masks)
    data, known = read(), {}
    for part in (data.train, data.calibration, data.validation, data.test):
        for image, mask in zip(part.inputs[:], part.targets, strict=True):
            known[(image * 255).round().byte().numpy().tobytes()] = mask.numpy()
    assert data.classes == 3
    assert len(known) == 20
    for image, mask in zip(images, masks, strict=True):
        assert (known[image.tobytes()] == mask).all()
    share = (masks == 1).mean()
    assert f"grey 1 is class 1 ({share:.1%} of places)" in dict(data.notes)["masks"]


@pytest.mark.parametrize("form", ["d/{kind}/{part}/{name}", "d/{part}/{kind}/{name}"])
def test_parts_are_folders_above_or_below(form: str) -> None:
    def of(part: str) -> Callable[[str], tuple[str, str]]:
        return lambda name: (
            form.format(kind="images", part=part, name=name),
            form.format(kind="masks", part=part, name=name),
        )

    for part, count, seed in (("train", 14, 0), ("val", 5, 1), ("test", 6, 2)):
        written(*drawn(count, seed), of(part))
    data = read()
    assert (len(data.validation), len(data.test)) == (5, 6)
    assert torch.equal(data.test.targets, torch.as_tensor(drawn(6, 2)[1]))


@pytest.mark.parametrize(
    ("below", "refused"),
    [
        (("images/train", "images/val", "images/validation"), "is of the same part as"),
        (("train/images", "val/images", "validation/images"), "is of the same part as"),
        (("images/train", "images"), "images beside the folders of parts"),
        (("images/train", "images/more"), "images beside the folders of parts"),
        (("train/images", "more/images"), "images beside the folders of parts"),
        (("images", "test/images"), "lies beside `images` and `masks`"),
    ],
)
def test_no_pair_is_left_out_of_the_parts(below: tuple[str, ...], refused: str) -> None:
    for seed, each in enumerate(below):
        images, masks = f"d/{each}", f"d/{each.replace('images', 'masks')}"
        written(
            *drawn(9, seed),
            lambda name, images=images, masks=masks: (f"{images}/{name}", f"{masks}/{name}"),
        )
    with pytest.raises(OwnError, match=refused):
        read()


def test_masks_of_a_part_without_images_are_refused() -> None:
    for part, images in (("train", "d/images/train"), ("test", "elsewhere")):
        written(
            *drawn(9),
            lambda name, part=part, images=images: (f"{images}/{name}", f"d/masks/{part}/{name}"),
        )
    with pytest.raises(OwnError, match=r"images.test: there is no such folder, beside d.masks"):
        read()


def test_grey_values_are_named_and_left_out() -> None:
    images, masks = drawn(16)
    written(images, np.array([255, 0, 7])[masks])
    with pytest.raises(OwnError, match=r"write `data.values: \[0, 7, 255\]` for 3 classes$"):
        read()
    data = read(values=(255, 0), ignored=7)
    found = torch.cat([part.targets for part in (data.train, data.calibration)])
    assert {*found.unique().tolist()} == {IGNORED, 0, 1}
    assert "grey 7 counts nowhere" in dict(data.notes)["masks"]
    with pytest.raises(OwnError, match=r"000.png: the grey value 7 is not among data.values"):
        read(values=(255, 0))
    written(images, np.array([0, 1, 255])[masks])
    with pytest.raises(OwnError, match=r"`data.ignored: 255` where these places count nowhere"):
        read()
    with pytest.raises(OwnError, match="are different grey values from 0 to 255"):
        read(values=(0, 0))


def test_masks_are_resized_without_new_classes() -> None:
    images, masks = drawn(16)
    written(images, masks)
    data = read(size=(12, 16))
    assert data.train.targets.shape[1:] == data.train.inputs[:1].shape[2:] == (12, 16)
    whole = torch.as_tensor(masks).repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert {each.numpy().tobytes() for each in data.test.targets} <= {
        each.numpy().tobytes() for each in whole
    }


def _pixels(file: str) -> np.ndarray:
    with Image.open(file) as opened:
        return np.array(opened)


def _damage(name: str) -> None:
    image, mask = (Image.fromarray(_pixels(f"d/{kind}/003.png")) for kind in ("images", "masks"))
    exif = Image.Exif()
    exif[0x0112] = 3
    deep = Image.fromarray(np.asarray(mask).astype(np.uint16))
    changes: dict[str, Callable[[], object]] = {
        "palette": lambda: mask.convert("P").save("d/masks/003.png"),
        "colour": lambda: mask.convert("RGB").save("d/masks/003.png"),
        "deep": lambda: deep.save("d/masks/003.png"),
        "lossy": lambda: (mask.save("d/masks/003.jpg"), Path("d/masks/003.png").unlink()),
        "size": lambda: mask.resize((6, 8)).save("d/masks/003.png"),
        "turned": lambda: image.save("d/images/003.png", exif=exif),
        "twice": lambda: image.save("d/images/003.bmp"),
        "folder": lambda: Path("d/masks/more").mkdir(),
        "images": lambda: Path("d/images/003.png").unlink(),
        "masks": lambda: Path("d/masks/003.png").unlink(),
    }
    changes[name]()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("palette", "d/masks/003.png: the mask is a palette image (mode P)"),
        ("colour", "d/masks/003.png: the mask has colours or more than 8 bits (mode RGB)"),
        ("deep", "d/masks/003.png: the mask has more than 8 bits (mode I;16)"),
        ("lossy", "d/masks/003.jpg: JPEG changes values between classes"),
        ("size", "d/masks/003.png: the mask is 8 x 6, its image 6 x 8 (height x width)"),
        ("turned", "d/images/003.png: its EXIF data turn the image, and its mask would stay"),
        ("twice", "has the name of d/images/003"),
        ("folder", "d/masks/more: a folder among images"),
        ("images", "d/masks/003.png: there is no image d/images/003.png; call a mask as its image"),
        ("masks", "d/images/003.png: there is no mask d/masks/003.png"),
    ],
)
def test_what_is_no_pair_is_refused_by_its_name(name: str, said: str) -> None:
    written(*drawn(12))
    _damage(name)
    with pytest.raises(OwnError) as error:
        read()
    assert said in str(error.value)


def test_images_and_masks_are_no_two_classes() -> None:
    written(*drawn(12))
    with pytest.raises(OwnError, match="for a class at each place choose task segmentation"):
        read_data(Source("d"), Classification())
    Path("d/masks").rename("d/others")
    with pytest.raises(OwnError, match="takes a folder `images` and a folder `masks`"):
        read()


@pytest.mark.parametrize("how", ["flip", "crop-flip"])
def test_pictures_are_not_moved_away_from_their_masks(how: str) -> None:
    written(*drawn(12))
    with pytest.raises(OwnError, match="would move pictures and not the classes of their places"):
        read(augment=how)
    images, masks = drawn(30)
    np.savez("two.npz", x=images[:, None] / 255.0, place=masks, kind=masks[:, 0, 0])
    task = Heads((("place", Segmentation()), ("kind", Classification())))
    with pytest.raises(OwnError, match="would move pictures"):
        read_data(Source("two.npz", target=("place", "kind"), augment=how), task)
