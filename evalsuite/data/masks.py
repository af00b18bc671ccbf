"""Images with a mask for each: folders `images` and `masks`, in which the two of a pair have one
name.

They lie side by side, in a folder for each part, or with the parts' folders below each.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from evalsuite.contract import IGNORED
from evalsuite.data.images import (
    ORIENTATION,
    Encoded,
    folders_in,
    has_images,
    is_image,
    names_in,
    plain_bytes,
    raw_of,
    unreadable,
)
from evalsuite.data.parts import Raw, part_named
from evalsuite.data.source import Source
from opgraph.errors import OwnError

_LOSSY = ("JPEG", "WEBP")
_MODES = {
    "P": "is a palette image (mode P), whose numbers need not be classes",
    "I;16": "has more than 8 bits (mode I;16)",
}
_GREY = "save each class as one grey value, in an 8-bit PNG of one channel"


def read_masks(source: Source) -> Raw:
    """The images below the folder, with the class of each place from the masks of their names.

    Raises OwnError: an image has no mask or a mask no image, their sizes differ, or a mask is none:
    it has colours, a palette or a lossy format, or grey values that are no classes.
    """
    # 1. The pairs of each part.
    folder = source.place
    pairs = {part: _pairs(*both) for part, both in _folders_of_parts(folder, source).items()}
    # 2. The images, as of any folder of images.
    parts = {}
    for part, files in pairs.items():
        images = [image for image, _ in files]
        parts[part] = Encoded(
            len(files), partial(_bytes_of, images), partial(_named, folder, images), None
        )
    raw = raw_of(parts, source)
    # 3. The masks, all in memory, and which classes their grey values are.
    grey = {
        part: np.stack([_grey(image, mask, source) for image, mask in files])
        for part, files in pairs.items()
    }
    counts = np.sum([np.bincount(mask.ravel(), minlength=256) for mask in grey.values()], 0)
    values = _values(counts, source)
    classes = np.full(256, IGNORED, np.int64)
    classes[list(values)] = np.arange(len(values))
    for part, masks in grey.items():
        wrong = ~np.isin(masks, [*values, source.ignored]).reshape(len(masks), -1).all(1)
        if wrong.any():
            place = int(wrong.argmax())
            unlisted = sorted({*np.unique(masks[place]).tolist()} - {*values, source.ignored})
            raise OwnError(
                f"{pairs[part][place][1]}: the grey value {unlisted[0]} is not among data.values,"
                f" {list(values)}"
            )
        raw.parts[part].targets = torch.from_numpy(classes[masks])
    raw.notes = (*raw.notes, ("masks", _described(counts, values, source.ignored)))
    return raw


def _folders_of_parts(folder: Path, source: Source) -> Mapping[str, tuple[Path, Path]]:
    """The folders of images and of masks of each part."""
    below = {name.lower(): folder / name for name in folders_in(folder)}
    named = _parts_in(folder)
    # 1. Both folders here, perhaps with those of the parts inside.
    if {"images", "masks"} <= below.keys():
        images, masks = below["images"], below["masks"]
        beside = [name for name in named.values() if "masks" in folders_in(folder / name)]
        if beside:
            raise OwnError(
                f"{folder / beside[0]}: lies beside `images` and `masks`, and would be left out;"
                " put all images into folders of parts, or none"
            )
        named, of_masks = _parts_in(images), _parts_in(masks)
        if not named and not of_masks:
            return {"train": (images, masks)}
        _check_parts_alone(images, named)
        _check_parts_alone(masks, of_masks)
        return {
            part: (
                images / named.get(part, of_masks.get(part, "")),
                masks / of_masks.get(part, named.get(part, "")),
            )
            for part in {**named, **of_masks}
        }
    # 2. A folder for each part, with both inside.
    pairs = {}
    for part, each in named.items():
        inside = {name.lower(): folder / each / name for name in folders_in(folder / each)}
        if {"images", "masks"} <= inside.keys():
            pairs[part] = (inside["images"], inside["masks"])
    if not pairs or len(pairs) < len(named):
        lacking = next((part_name for part, part_name in named.items() if part not in pairs), "")
        where = folder / lacking if lacking else source.path
        raise OwnError(
            f"{where}: task segmentation takes a folder `images` and a folder `masks`, whose files"
            " have equal names; or give arrays x and y as .npz"
        )
    _check_parts_alone(folder, named)
    return pairs


def _parts_in(folder: Path) -> dict[str, str]:
    """Each part that a folder in here is named after, with that folder. Raises OwnError: two
    are of one part, as val and validation.
    """
    named: dict[str, str] = {}
    for name in folders_in(folder):
        part = part_named(name)
        if part and part in named:
            raise OwnError(f"{folder / name}: is of the same part as {folder / named[part]}")
        if part:
            named[part] = name
    return named


def _check_parts_alone(folder: Path, named: Mapping[str, str]) -> None:
    """Refuse images beside the parts' folders, which would be left out."""
    others = [name for name in folders_in(folder) if name not in named.values()]
    aside = [name for name in others if has_images(folder / name)]
    aside += filter(is_image, names_in(folder))
    if aside:
        raise OwnError(
            f"{folder / aside[0]}: images beside the folders of parts ({', '.join(named.values())})"
            " would be left out; put them into a part's folder"
        )


def _pairs(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Each image with its mask, by their names without endings."""
    for here, there in ((images, masks), (masks, images)):
        if not there.is_dir():
            raise OwnError(f"{there}: there is no such folder, beside {here}")
    files = [_by_stem(images), _by_stem(masks)]
    for own, others, here, what in (
        (files[0], files[1], masks, "mask"),
        (files[1], files[0], images, "image"),
    ):
        absent = [stem for stem in own if stem not in others]
        if absent:
            more = f", and {len(absent) - 1} more have none" if absent[1:] else ""
            raise OwnError(
                f"{own[absent[0]]}: there is no {what} {here / absent[0]}.png{more}; call a mask as"
                " its image"
            )
    if not files[0]:
        raise OwnError(f"{images}: no image in it")
    return [(files[0][stem], files[1][stem]) for stem in files[0]]


def _by_stem(folder: Path) -> dict[str, Path]:
    by_stem: dict[str, Path] = {}
    if below := folders_in(folder):
        raise OwnError(f"{folder / below[0]}: a folder among images; put its files into {folder}")
    for name in filter(is_image, names_in(folder)):
        path = folder / name
        if path.stem in by_stem:
            raise OwnError(f"{path}: has the name of {by_stem[path.stem]}; rename one of them")
        by_stem[path.stem] = path
    return by_stem


def _bytes_of(files: Sequence[Path], index: int) -> bytes:
    return plain_bytes(files[index])


def _named(folder: Path, files: Sequence[Path], index: int) -> str:
    return str(folder if index < 0 else files[index])


def _grey(image: Path, mask: Path, source: Source) -> np.ndarray:
    """The grey values of a mask, (height, width), uint8, of the size that its image has."""
    try:
        with Image.open(io.BytesIO(plain_bytes(image))) as picture:
            size, turned = picture.size, picture.getexif().get(ORIENTATION, 1) != 1
        with Image.open(io.BytesIO(plain_bytes(mask))) as opened:
            _check_mask(mask, opened)
            if opened.size != size:
                shapes = [f"{height} x {width}" for width, height in (opened.size, size)]
                raise OwnError(
                    f"{mask}: the mask is {shapes[0]}, its image {shapes[1]} (height x width);"
                    " give both one size"
                )
            # Between two classes lies none: the nearest place is taken.
            height, width = source.size or size[::-1]
            resized = opened.resize((width, height), Image.Resampling.NEAREST)
            grey = np.asarray(resized, dtype=np.uint8)
    except OwnError:
        raise
    except Exception as error:  # decoders raise errors of many kinds
        raise unreadable(str(mask), error) from error
    if turned and source.orientation == "upright":
        raise OwnError(
            f"{image}: its EXIF data turn the image, and its mask would stay; save it upright, or"
            " write `data.orientation: stored`"
        )
    return grey


def _check_mask(mask: Path, opened: Image.Image) -> None:
    """Refuse what is no picture of grey values, each of which is a class."""
    if opened.format in _LOSSY:
        raise OwnError(f"{mask}: {opened.format} changes values between classes; {_GREY}")
    if opened.mode not in ("1", "L"):
        said = _MODES.get(opened.mode, f"has colours or more than 8 bits (mode {opened.mode})")
        raise OwnError(f"{mask}: the mask {said}; {_GREY}")


def _values(counts: np.ndarray, source: Source) -> tuple[int, ...]:
    """The grey value of each class: those that are given, or 0, 1, 2 and so on."""
    if source.values:
        return source.values
    values = [value for value in np.flatnonzero(counts).tolist() if value != source.ignored]
    if not values:
        raise OwnError(f"{source.path}: every place of the masks is ignored: nothing to learn from")
    if values != [*range(len(values))]:
        listed = ", ".join(map(str, values[:8])) + (", ..." if values[8:] else "")
        cures = [f"write `data.values: [{listed}]` for {len(values)} classes"]
        if values[-1] == 255 and values[:-1] == [*range(len(values) - 1)]:
            cures.append("`data.ignored: 255` where these places count nowhere")
        raise OwnError(
            f"{source.path}: the masks have the grey values {listed}, and classes are numbered from"
            f" 0 on: {', or '.join(cures)}"
        )
    return tuple(values)


def _described(counts: np.ndarray, values: Sequence[int], ignored: int) -> str:
    """Which grey value is which class, and how many places have it."""
    whole = counts.sum()
    lines = [
        f"grey {value} is class {number} ({counts[value] / whole:.1%} of places)"
        for number, value in enumerate(values)
    ]
    if ignored >= 0:
        lines.append(f"grey {ignored} counts nowhere ({counts[ignored] / whole:.1%})")
    return ", ".join(lines)
