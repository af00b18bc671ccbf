"""Where a user's data are, and how to read them: what stands behind `data:` and `--data`; and
their fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from evalsuite.plugins import did_you_mean
from evalsuite.references import is_reference
from evalsuite.sources import stamp
from opgraph.errors import OwnError
from opgraph.limits import check_plain

AUGMENTATIONS = ("flip", "crop-flip")
ORDERS = ("text", "natural")
ORIENTATIONS = ("upright", "stored")
_LISTS = ("target", "text", "features", "categories", "labels")
_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "tuple_type": "a list",
}
USUAL_LENGTH = 128  # tokens of a sample
_LARGEST = 4096  # pixels of a side, as float32 200 MB an image
_ROOM = 0.9  # what calibration, validation and test may take together


@dataclass(frozen=True)
class Source:
    """Data of a user's: an .npz file, a folder of images, a table, text, or a function that makes
    them.

    Args:
        path: .npz, .csv, .tsv, .parquet, .jsonl or .txt; a folder of images, of folders `images`
            and `masks`, of such files named train, validation and test, or of Hugging Face's
            `save_to_disk`; or `my.py:make_data`.
        target: the column (or columns) of the targets. By default one called label, labels, target,
            tags, ...
        text: the column of text, or two of a pair. By default one called text or sentence, where no
            features are named.
        features: the columns that are inputs, of a table of numbers and categories. By default all
            but the target.
        categories: those of them whose values are names, even where they look like numbers.
        image: the column of encoded images. By default one that holds such.
        size: of images, (height, width), or one number for both: each is resized. By default they
            must have one size.
        channels: of images, 1 or 3. By default 3 where one of them has colours.
        orientation: of images whose EXIF says that they are seen otherwise than they are stored:
            "upright", as viewers show them, or "stored", as torchvision's ImageFolder and timm give
            them.
        mean: of each channel, subtracted from pixels in [0, 1].
        std: of each channel, by which pixels are divided.
        values: of masks, the grey value of each class, in the order of their numbers, as 0, 255. By
            default the values are the classes' numbers.
        ignored: of masks, the grey value of places that count nowhere, as 255.
        augment: of training batches: "flip" (half of the images), "crop-flip" (shifted by up to an
            eighth, too), or `my.py:augment`, a function of a batch of inputs and a torch.Generator.
        tokenizer: a folder of Hugging Face's, a tokenizer.json, or "bytes". By default the model's.
        length: tokens of one sample: a window of a language model, or where other texts are cut and
            padded to. By default 128, or as many as the configuration of the model has positions.
        calibration: the share of the training part to calibrate with, at most 512 samples.
        validation: the share of the training part to validate by, where no such part is given.
        test: the share of the training part to test on, where no such part is given.
        limit: at most so many samples of the training part, and so many of each other; 0 is all.
        labels: the names of the classes, in the order of their numbers. By default those that the
            model's configuration or the data list, else those found, sorted.
        order: how names of classes are sorted that nobody lists: "text", as torchvision's
            ImageFolder does, or "natural", by the numbers in them, as timm does. By default text,
            and natural for folders and `timm:`.
    """

    path: str
    target: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    image: str = ""
    size: tuple[int, ...] = ()
    channels: int = 0
    orientation: str = "upright"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    values: tuple[int, ...] = ()
    ignored: int = -1
    augment: str = ""
    tokenizer: str = ""
    length: int = 0
    calibration: float = 0.1
    validation: float = 0.1
    test: float = 0.2
    limit: int = 0
    labels: tuple[str, ...] = ()
    order: str = ""

    def __post_init__(self) -> None:
        # 1. Shares of the training part, which must leave something to train on.
        shares = {name: getattr(self, name) for name in ("calibration", "validation", "test")}
        wrong = next((name for name, share in shares.items() if not 0 < share < 1), "")
        if wrong:
            raise OwnError(
                f"data.{wrong} is a share of the training part, in (0, 1), got {shares[wrong]}"
            )
        if sum(shares.values()) > _ROOM:
            raise OwnError(
                f"data: calibration, validation and test take {sum(shares.values()):.4g} of all: at"
                " most .9"
            )
        # 2. Whole numbers and choices.
        for name, lowest in (("length", 2), ("limit", 0)):
            if getattr(self, name) and getattr(self, name) < lowest:
                raise OwnError(f"data.{name} must be at least {lowest}, got {getattr(self, name)}")
        if len(set(self.labels)) < len(self.labels):
            raise OwnError(f"data.labels: a name is given twice, got {list(self.labels)}")
        if self.order not in ("", *ORDERS):
            raise OwnError(f"data.order: unknown {self.order!r}; write one of {', '.join(ORDERS)}")
        if self.orientation not in ORIENTATIONS:
            raise OwnError(
                f"data.orientation: unknown {self.orientation!r}; write one of"
                f" {', '.join(ORIENTATIONS)}"
            )
        # 3. How images are read.
        if self.size and (
            len(self.size) != 2 or not 1 <= min(self.size) <= max(self.size) <= _LARGEST
        ):
            raise OwnError(
                f"data.size is a height and a width from 1 to {_LARGEST}, got {list(self.size)}"
            )
        if self.channels not in (0, 1, 3):
            raise OwnError(f"data.channels must be 1 or 3, got {self.channels}")
        sound = all(map(math.isfinite, (*self.mean, *self.std))) and all(
            deviation > 0 for deviation in self.std
        )
        if len(self.mean) != len(self.std) or not sound:
            raise OwnError(
                f"data.mean and data.std (> 0) belong together, got {list(self.mean)} and"
                f" {list(self.std)}"
            )
        if any(not 0 <= number <= 1 for number in self.mean) or any(
            number > 1 for number in self.std
        ):
            raise OwnError(
                f"data.mean and data.std are of pixels in [0, 1], got {list(self.mean)} and"
                f" {list(self.std)}; divide those of pixels up to 255 by 255"
            )
        _check_grey(self.values, self.ignored)
        if self.augment and self.augment not in AUGMENTATIONS and not is_reference(self.augment):
            known = ", ".join(AUGMENTATIONS)
            raise OwnError(
                f"data.augment: unknown {self.augment!r}; write one of {known}, or my.py:augment"
            )

    @property
    def is_function(self) -> bool:
        """Whether a user's function makes the data."""
        return is_reference(self.path)

    @property
    def place(self) -> Path:
        """The file or folder. Raises OwnError: there is none, or it is a pickle."""
        place = Path(self.path).expanduser()
        if place.suffix in (".pkl", ".pickle", ".pt", ".pth", ".joblib"):
            cure = "save arrays with numpy.savez, or tables as parquet"
            raise OwnError(
                f"{self.path}: a pickle runs any code that is in it, so it is not read; {cure}"
            )
        check_plain(place)
        if not place.exists():
            known = place.parent.iterdir() if place.parent.is_dir() else ()
            beside = [
                str(neighbour) for neighbour in known if not neighbour.name.startswith((".", "__"))
            ]
            hint = did_you_mean(str(place), beside) if 0 < len(beside) <= 20 else ""
            raise OwnError(f"{self.path}: there is no such file or folder{hint}")
        return place


def _check_grey(values: tuple[int, ...], ignored: int) -> None:
    """Refuse grey values that no mask can have, or that would mean two things."""
    grey = [*values, *([ignored] if ignored != -1 else [])]
    if len({*grey}) < len(grey) or not all(0 <= value <= 255 for value in grey):
        raise OwnError(
            f"data.values and data.ignored are different grey values from 0 to 255, got"
            f" {list(values)} and {ignored}"
        )


def source_of(option: Any) -> Source:
    """A text, a mapping with `path` and options, or a `Source`, as a `Source`. Raises OwnError: an
    option is unknown or of another type; the text has one problem a clause.
    """
    from pydantic import TypeAdapter, ValidationError

    # 1. A text is a path.
    if isinstance(option, Source):
        return option
    if isinstance(option, (str, Path)):
        option = {"path": str(option)}
    if (
        not isinstance(option, Mapping)
        or not isinstance(option.get("path"), str)
        or not option["path"]
    ):
        raise OwnError(
            f"data: write a path, my.py:make_data, or a mapping with `path`, got {option!r}"
        )
    # 2. Options by their names, and in the short forms that are allowed: one name for a list, a
    # number for a pair.
    options = {**option}
    known = [field.name for field in fields(Source)]
    for key in options:
        if key not in known:
            raise OwnError(f"data.{key}: unknown option{did_you_mean(str(key), known)}")
    for name in _LISTS:
        if isinstance(options.get(name), str):
            options[name] = [options[name]]
    if type(options.get("size")) is int:
        options["size"] = [options["size"]] * 2
    for name in ("mean", "std"):
        if isinstance(options.get(name), (int, float)):
            options[name] = [options[name]]
    # 3. Types and values, by way of JSON: a recipe gives nothing else, and so does no other
    # caller.
    try:
        text = json.dumps(options)
        return TypeAdapter(Source).validate_json(text, strict=True)
    except ValidationError as error:
        raise OwnError("; ".join(_said(problem) for problem in error.errors())) from error
    except TypeError as error:
        raise OwnError(f"data: options are text, numbers and lists of them: {error}") from error


def _said(error: Any) -> str:
    words = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":  # one of Source's own
        return words
    kind = _KINDS.get(error["type"], words.removeprefix("Input should be "))
    return (
        f"data.{'.'.join(str(part) for part in error['loc'])}: must be {kind}, got"
        f" {error['input']!r}"
    )


_CHUNK = 1 << 20


def digest(file: Path) -> bytes:
    """The SHA-256 of a file's bytes, streamed; read again only where its size or time of change
    is another.
    """
    return _digest(file, stamp(file))


@lru_cache(maxsize=1 << 18)
def _digest(file: Path, _stamp: tuple[int, int]) -> bytes:
    whole = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            whole.update(chunk)
    return whole.digest()


def files_in(folder: Path) -> list[Path]:
    """Every file below, hidden ones left out, in an order that does not depend on the file
    system.
    """
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(
        path
        for path in paths
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
