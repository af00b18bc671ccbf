"""Images, decoded by Pillow when they are asked for: in a column of bytes, or in a folder.

A folder is CLASS/*.png, the same below train and test, or files that a .csv gives targets to.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from evalsuite.data.parts import Part, Raw, part_named
from evalsuite.data.source import Source
from evalsuite.data.tables import Table, class_names, column, read_csv, targets_in
from evalsuite.data.targets import Kind
from evalsuite.samples import Samples
from opgraph.errors import OwnError
from opgraph.limits import check_plain

SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm"),
)
# What lies beside images and is none: of file managers, and descriptions.
_BESIDE = ("thumbs.db", "desktop.ini")
_DESCRIPTIONS = (".txt", ".md", ".json", ".xml", ".csv", ".html", ".pdf")
_KEPT = 256 * 2**20  # bytes of decoded pixels that are kept
_ENDS = {"PNG": b"IEND\xaeB`\x82", "JPEG": b"\xff\xd9"}
_TAIL = 64
# without one of them there is no orientation to ask for
_MARKS = (b"Exif", b"EXIF", b"eXIf", b"exif", b"Orientation")
ORIENTATION, _TURNED, _SIDEWAYS = 0x0112, range(2, 9), range(5, 9)
_GREY = ("1", "L")
_DEEP = ("I", "F")
_BYTE = 255
_CLEAR = ("RGBA", "LA", "PA", "RGBa", "La")
_NAMED = 3  # files that a note names
_FILES = ("file", "file_name", "filename", "path", "image", "name", "id")


@dataclass
class Encoded:
    """The images of a part: how many, what reads the encoded bytes of one, what names it, and
    their targets.
    """

    count: int
    encoded: Callable[[int], bytes]
    where: Callable[[int], str]
    targets: Any


class Pictures(Samples):
    """Images (samples, channels, height, width), float32 in [0, 1] or normalised.

    With `keep` what is decoded is kept, as bytes. Grey and coloured images are turned into one
    another; where a size is given, each is stretched to it (bilinear).
    """

    def __init__(
        self,
        images: Encoded,
        shape: tuple[int, int, int],
        seen: _Seen,
        source: Source,
        *,
        keep: bool,
    ) -> None:
        self._encoded, self._where, self._digests, self._shape = (
            images.encoded,
            images.where,
            seen.digests,
            shape,
        )
        self._turned = frozenset(seen.turned) if source.orientation == "upright" else frozenset()
        self._mean, self._std = (
            torch.tensor(numbers, dtype=torch.float32).expand(shape[0])[:, None, None]
            for numbers in (source.mean or (0.0,), source.std or (1.0,))
        )
        self._plain = not source.mean
        # numpy's zeros take memory as they are written, torch's at once
        self._kept = torch.from_numpy(np.zeros((images.count if keep else 0, *shape), np.uint8))
        self._known = torch.zeros(len(self._kept), dtype=torch.bool)

    def __len__(self) -> int:
        return len(self._digests)

    def identities(self) -> list[bytes] | None:
        return self._digests

    def read(self, indices: Sequence[int]) -> torch.Tensor:
        """See `Samples`. Raises OwnError where a file is no image, or a damaged one."""
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
            with Image.open(io.BytesIO(self._encoded(index))) as opened:
                upright = ImageOps.exif_transpose(opened) if index in self._turned else opened
                image = upright.convert("RGB" if channels == 3 else "L")
                if image.size != (width, height):
                    image = image.resize((width, height), Image.Resampling.BILINEAR)
                array = np.array(image).reshape(height, width, channels)
        except Exception as error:  # decoders raise errors of many kinds
            raise unreadable(self._where(index), error) from error
        pixels = torch.from_numpy(array).permute(2, 0, 1)
        if len(self._kept):
            self._kept[index], self._known[index] = pixels, True
        return pixels


def raw_of(parts: Mapping[str, Encoded], source: Source, labels: tuple[str, ...] = ()) -> Raw:
    """The images of each part, after a look at each file's head and end. Raises OwnError where one
    is no image, is cut short, or has another size than the first where none is given.
    """
    # 1. Look at every file, and choose one size and one number of channels for all parts.
    seen = {name: _survey(sources, source) for name, sources in parts.items()}
    size = next(iter(seen.values())).size
    for name, survey in seen.items():
        if survey.size != size:
            raise _other_size(parts[name].where(0), survey.size, size)
    channels = source.channels or (3 if any(survey.coloured for survey in seen.values()) else 1)
    if source.mean and len(source.mean) not in (1, channels):
        said = f"images of {source.path} have {channels} channels"
        raise OwnError(f"data.mean has {len(source.mean)} numbers, but {said}")
    # 2. Decode lazily; what fits into memory is kept.
    keep = sum(part.count for part in parts.values()) * channels * size[0] * size[1] <= _KEPT
    parts_read = {}
    for name, sources in parts.items():
        pictures = Pictures(sources, (channels, *size), seen[name], source, keep=keep)
        parts_read[name] = Part(pictures, sources.targets, sources.where, seen[name].digests)
    # 3. The range of pixels behind the normalisation: eps and clipping are in its units.
    scales = list(zip(source.mean or (0.0,), source.std or (1.0,), strict=True))
    domain = (
        min((0 - mean) / std for mean, std in scales),
        max((1 - mean) / std for mean, std in scales),
    )
    return Raw(
        parts_read,
        domain,
        labels=labels,
        notes=_notes(list(seen.values()), source),
        said=source.path,
    )


def _notes(seen: Sequence[_Seen], source: Source) -> tuple[tuple[str, str], ...]:
    """Tell the user of images that are seen otherwise than they are given."""
    whole = sum(len(part.digests) for part in seen)
    turned, framed, clear = (
        sum(counts) for counts in zip(*(part.counts() for part in seen), strict=True)
    )
    if source.orientation == "stored":
        orientation = "are given as stored, not upright as their EXIF orientation says"
    else:
        orientation = (
            "are turned upright, as their EXIF orientation says; `data.orientation: stored` leaves"
            " them, as torchvision's ImageFolder does"
        )
    frames = "have several frames or pages, of which the first is given, as torchvision does"
    alpha = "have transparency, which is left out, as torchvision does"
    counts = (("images", turned, orientation), ("frames", framed, frames), ("alpha", clear, alpha))
    return tuple((what, f"{count:,} of {whole:,} {said}") for what, count, said in counts if count)


class _Seen:
    """The facts of a part's images that the checks and notes need.

    `turned` are those that are stored otherwise than they are seen; `framed` counts those with
    several frames, and `clear` those with transparency.
    """

    def __init__(self) -> None:
        self.size, self.coloured = (0, 0), False
        self.digests: list[bytes] = []
        self.turned: list[int] = []
        self.framed = self.clear = 0

    def counts(self) -> tuple[int, int, int]:
        """How many are turned, have several frames, and have transparency."""
        return len(self.turned), self.framed, self.clear


def _survey(images: Encoded, source: Source) -> _Seen:
    """A look at each image. Raises OwnError where one is none, is cut short, is too deep, or of
    another size.
    """
    seen = _Seen()
    # 1. What the header says of each image, and whether the file is whole.
    for index in range(images.count):
        try:
            content = images.encoded(index)
            with Image.open(io.BytesIO(content)) as image:
                form, mode, shape = image.format or "", image.mode, (image.size[1], image.size[0])
                deep = mode.startswith(_DEEP) or _is_deep(image)
                framed = bool(getattr(image, "is_animated", False))
                clear = mode in _CLEAR or "transparency" in image.info
                orientation = image.getexif().get(ORIENTATION, 1) if _may_be_turned(content) else 1
            _check_whole(content, form)
        except Exception as error:  # decoders raise errors of many kinds
            raise unreadable(images.where(index), error) from error
        # 2. All must become the same shape: depth, orientation and size; the first gives the size
        # where none is chosen.
        if deep:
            said = f"has more than 8 bits a channel (mode {mode}); convert it to 8 bits"
            raise OwnError(f"{images.where(index)}: {said}")
        if orientation in _TURNED:
            shape = _noted(seen, index, images.where, (form, orientation), shape, source)
        if index == 0:
            seen.size = (source.size[0], source.size[1]) if source.size else shape
        elif not source.size and shape != seen.size:
            raise _other_size(images.where(index), shape, seen.size)
        # 3. What is said of the whole: colour, animations, transparency, and digests by which
        # equal images are found.
        seen.coloured |= mode not in _GREY
        seen.framed += framed
        seen.clear += clear
        seen.digests.append(hashlib.sha256(content).digest()[:16])
    return seen


def _is_deep(image: Image.Image) -> bool:
    """Whether Pillow cuts its channels to 8 bits, by the form in which it is stored."""
    for _, _, _, stored in getattr(image, "tile", ()):
        form, *numbers = stored if isinstance(stored, tuple) else (stored,)
        most = max((number for number in numbers if isinstance(number, int)), default=0)
        if (isinstance(form, str) and ";16" in form) or (image.format == "PPM" and most > _BYTE):
            return True
    return False


def _may_be_turned(content: bytes) -> bool:
    """Whether to ask for the orientation, for which Pillow decodes a whole PNG."""
    return any(mark in content for mark in _MARKS)


def _noted(
    seen: _Seen,
    index: int,
    where: Callable[[int], str],
    stored: tuple[str, int],
    shape: tuple[int, int],
    source: Source,
) -> tuple[int, int]:
    """Note that an image is to be turned; its (height, width) as it is given then."""
    form, orientation = stored
    if form == "TIFF":  # Pillow itself turns these
        if source.orientation == "stored":
            raise OwnError(
                f"{where(index)}: a TIFF is always turned upright; save it as PNG to have it as"
                " stored"
            )
        return shape
    seen.turned.append(index)
    sideways = orientation in _SIDEWAYS and source.orientation == "upright"
    return (shape[1], shape[0]) if sideways else shape


def _check_whole(content: bytes, form: str) -> None:
    """Let the decoder say whether an image is whole, unless it ends as a whole one does. Raises
    what Pillow raises.
    """
    if form in _ENDS and _ENDS[form] in content[-_TAIL:]:
        return
    with Image.open(io.BytesIO(content)) as image:
        image.load()
    if form == "PNG":  # the pixels may be there and the end missing
        with Image.open(io.BytesIO(content)) as image:
            image.verify()


def _other_size(where: str, shape: tuple[int, int], first: tuple[int, int]) -> OwnError:
    said = (
        f"the image is {shape[0]} x {shape[1]}, others are {first[0]} x {first[1]} (height x width)"
    )
    return OwnError(f"{where}: {said}; say `size: [{first[0]}, {first[1]}]` to have each resized")


def unreadable(where: str, error: BaseException) -> OwnError:
    said = " ".join(str(error).split())
    if "truncated" in said.lower():
        return OwnError(f"{where}: the image is cut short; replace it, or leave it out")
    reason = "not in a form that Pillow knows" if "cannot identify" in said else said
    return OwnError(f"{where}: cannot be read as an image ({reason}); replace it, or leave it out")


def image_column(train: Table, source: Source) -> str:
    """The column of encoded images that the source names, else one that holds such; "" where
    there is none.
    """
    kinds = {name: str(getattr(column, "type", "")) for name, column in train.columns.items()}
    return source.image or next((name for name, kind in kinds.items() if _is_encoded(kind)), "")


def _is_encoded(kind: str) -> bool:
    return kind in ("binary", "large_binary") or (kind.startswith("struct<") and "bytes: " in kind)


def read_images(tables: Mapping[str, Table], source: Source, kind: Kind, name: str) -> Raw:
    """The images of a table's column: bytes, or Hugging Face's {bytes, path}. Errors as for a
    folder of images.
    """
    parts = {}
    for part, table in tables.items():
        if name not in table.columns or isinstance(table.columns[name], list):
            column(table, name)
            raise OwnError(
                f"{table.file}: the column {name!r} holds no images; give the bytes of their files"
            )
        encoded = partial(_in_column, table.columns[name], table.file.parent)
        parts[part] = Encoded(len(table), encoded, table.where, None)
    raw = raw_of(parts, source, class_names(tables["train"], source, kind))
    for part, table in tables.items():
        raw.parts[part].targets = targets_in(table, source, kind)
    return raw


def _in_column(values: Any, folder: Path, index: int) -> bytes:
    value = values[index]
    value = value.as_py() if hasattr(value, "as_py") else value
    if isinstance(value, dict):
        inside = value.get("bytes")
        value = (
            inside
            if inside is not None or not value.get("path")
            else plain_bytes(folder / value["path"])
        )
    return bytes(value) if value is not None else b""


def plain_bytes(path: Path) -> bytes:
    check_plain(path)
    return path.read_bytes()


_Found = tuple[list[str], list[Any]]  # files relative to the folder, and their targets


def has_images(folder: Path, depth: int = 2) -> bool:
    """Whether an image lies in the folder, or up to so many folders below."""
    if any(map(is_image, names_in(folder))):
        return True
    return depth > 0 and any(has_images(folder / inner, depth - 1) for inner in folders_in(folder))


def read_folder(source: Source, kind: Kind = "classes") -> Raw:
    """The images below the folder, with the names of their folders, or what a table says, as
    targets. Raises OwnError where there are none, a class has none, or the table does not fit them.
    """
    # 1. Folders of parts, or of classes; a mixture has no meaning.
    folder = source.place
    below = folders_in(folder)
    named = {part_named(name): name for name in below if part_named(name)}
    if named and len(named) < len(below):
        others = ", ".join(name for name in below if not part_named(name))
        raise OwnError(
            f"{source.path}: {others} beside {', '.join(named.values())}; keep the parts' folders"
            " alone"
        )
    # 2. The files of each part, and their targets.
    if {name.lower() for name in below} >= {"images", "masks"}:
        raise OwnError(
            f"{source.path}: images and masks are no classes; for a class at each place choose task"
            " segmentation"
        )
    parts = {}
    for name, inside in (named or {"train": ""}).items():
        files, targets = _part(folder, inside, source, kind)
        encoded, where = partial(_in_file, folder, files), partial(_where, folder, files)
        parts[name] = Encoded(len(files), encoded, where, targets or None)
    raw = raw_of(parts, source, source.target if kind == "labels" and source.target[1:] else ())
    # 3. Where folders name the classes, their order is that of text, as torchvision's ImageFolder
    # has it.
    raw.folders = not any(
        any((folder / inside).glob("*.csv")) for inside in named.values() or ("",)
    )
    # 4. What one might take for images of these classes, and is left out.
    aside = [place for inside in named.values() or ("",) for place in _aside(folder / inside)]
    if raw.folders and aside:
        shown = ", ".join(str(place) for place in aside[:_NAMED])
        more = f" and {len(aside) - _NAMED} more" if len(aside) > _NAMED else ""
        said = f"left out: {shown}{more}; images lie in the folder of their class, and end in"
        raw.notes = (*raw.notes, ("warning", f"{said} {', '.join(SUFFIXES)}"))
    return raw


def _aside(here: Path) -> list[Path]:
    """Images beside the classes' folders, folders of images within these, and files that may be
    images by another ending.
    """
    classes = [here / name for name in folders_in(here)]
    if not classes:
        return []
    loose = [here / name for name in names_in(here) if is_image(name)]
    nested = [
        folder / name
        for folder in classes
        for name in folders_in(folder)
        if has_images(folder / name)
    ]
    others = [
        folder / name
        for folder in classes
        for name in names_in(folder)
        if not is_image(name)
        and name.lower() not in _BESIDE
        and not name.lower().endswith(_DESCRIPTIONS)
    ]
    return [*loose, *nested, *others]


def _in_file(folder: Path, files: list[str], index: int) -> bytes:
    return plain_bytes(folder / files[index])


def _where(folder: Path, files: list[str], index: int) -> str:
    return str(folder if index < 0 else folder / files[index])


def _part(folder: Path, inside: str, source: Source, kind: Kind) -> _Found:
    # A folder is one of three forms: a table that names files, a folder for each class, or images
    # without targets.
    here = folder / inside
    tables = sorted(path.name for path in here.glob("*.csv"))
    loose = [name for name in names_in(here) if is_image(name)]
    classes = folders_in(here)
    if tables and (loose or classes):
        if len(tables) > 1:
            raise OwnError(
                f"{here}: has {len(tables)} tables, {', '.join(tables)}; keep one of them"
            )
        return _told_by(here / tables[0], folder, inside, source, kind)
    if classes:
        files: list[str] = []
        targets: list[Any] = []
        for each in classes:
            names = [name for name in names_in(here / each) if is_image(name)]
            if not names:
                raise OwnError(
                    f"{here / each}: no image in it; put some there, or remove the folder"
                )
            files += [str(Path(inside) / each / name) for name in names]
            targets += [each] * len(names)
        return files, targets
    if not loose:
        raise OwnError(f"{here}: no image in it; known are {', '.join(SUFFIXES)}")
    return [str(Path(inside) / name) for name in loose], []


def _told_by(table: Path, folder: Path, inside: str, source: Source, kind: Kind) -> _Found:
    # 1. The column of file names, and that each file is there.
    table_read = read_csv(table)
    name = next((file for file in _FILES if file in table_read.columns), "")
    if not name:
        raise OwnError(
            f"{table}: no column of file names; call it 'file' (there are"
            f" {', '.join(table_read.columns)})"
        )
    files = [str(Path(inside) / str(file)) for file in column(table_read, name)]
    missing = next((i for i, file in enumerate(files) if not (folder / file).is_file()), None)
    if missing is not None:
        raise OwnError(
            f"{table_read.where(missing)}: there is no file {folder / files[missing]}; give it with"
            " its ending"
        )
    # 2. The only other column is the target.
    others = [each for each in table_read.columns if each != name]
    if not source.target and len(others) == 1:
        source = replace(source, target=(others[0],))
    return files, list(targets_in(table_read, source, kind) or [])


def names_in(folder: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.is_file() and not entry.name.startswith(".")
    )


def folders_in(folder: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.is_dir() and not entry.name.startswith((".", "__"))
    )


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)
