"""The files of CIFAR-10 and CIFAR-100: the author's binary version, and parquet files with encoded images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.workloads.folders import data_folder

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from evalsuite.samples import Samples

SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_IMAGE_COLUMNS = ("image", "img")


@dataclass(frozen=True, slots=True)
class Layout:
    """How one of the two data sets is stored: what its folders, files and columns are called."""

    name: str
    classes: int
    folders: tuple[str, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int
    """Of a binary record, the last of which is the class."""
    label_columns: tuple[str, ...]


LAYOUTS = {
    10: Layout(
        "CIFAR-10", 10, ("cifar-10-batches-bin", "cifar10", "cifar10-jpeg"),
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)), ("test_batch.bin",), 1, ("label", "labels"),
    ),
    100: Layout(
        "CIFAR-100", 100, ("cifar-100-binary", "cifar100"), ("train.bin",), ("test.bin",), 2, ("fine_label", "label"),
    ),
}  # fmt: skip


def cifar_files(folder: str, layout: Layout) -> tuple[list[Path], list[Path]]:
    """The files of the training and of the test part, from `folder`, or from the data folder where that is empty.

    Raises:
        FileNotFoundError: a part is missing; the text says what was looked for, and how to get it.
    """
    places = [Path(folder).expanduser()] if folder else [data_folder() / name for name in layout.folders]
    for place in places:
        inside = [place, *sorted(each for each in place.iterdir() if each.is_dir())] if place.is_dir() else []
        for each in inside:
            found = _files(each, layout.train, "train"), _files(each, layout.test, "test")
            if all(found):
                return found
    raise FileNotFoundError(_missing(places, layout, named=bool(folder)))


def _files(folder: Path, names: Sequence[str], part: str) -> list[Path]:
    binary = [folder / name for name in names]
    return binary if all(file.is_file() for file in binary) else sorted(folder.glob(f"{part}*.parquet"))


def _missing(places: Sequence[Path], layout: Layout, *, named: bool) -> str:
    cure = (
        f"set the option `folder` to where {layout.train[0]} ... {layout.test[-1]} of the author's binary version lie, "
        "or train*.parquet and test*.parquet with encoded images"
    )
    if any((place / name).is_file() for place in places for name in ("batches.meta", "meta")):
        return f"{places[0]}: holds {layout.name}'s Python version, which is pickled and is not read; {cure}"
    if named:
        return f"{layout.name} not found in {places[0]}: {cure}"
    return f"{layout.name} not found: {cure}, or put them into {places[0]}"


def read_part(files: Sequence[Path], layout: Layout) -> tuple[Samples, np.ndarray]:
    """The images (samples, 3, 32, 32) of one part, and their classes (samples,), int64.

    Raises:
        ValueError: a file is damaged, or not of this data set; the text names it.
    """
    return _parquet(files, layout) if files[0].suffix == ".parquet" else _binary(files, layout)


def _binary(files: Sequence[Path], layout: Layout) -> tuple[Samples, np.ndarray]:
    import numpy as np
    import torch

    from evalsuite.workloads.pixels import Pixels

    record, parts = layout.label_bytes + _PIXELS, []
    for file in files:
        content = np.fromfile(file, np.uint8)
        if not len(content) or len(content) % record:
            what = f"{len(content)} bytes are no whole number of {layout.name}'s records of {record}"
            raise ValueError(f"{file}: truncated or of another data set: {what}; download it again")
        parts.append(content.reshape(-1, record))
        _check_classes(parts[-1][:, layout.label_bytes - 1], layout, file)
    whole = np.concatenate(parts)
    images = whole[:, layout.label_bytes :].reshape(-1, *SHAPE)
    return Pixels(torch.from_numpy(images.copy())), whole[:, layout.label_bytes - 1].astype(np.int64)


def _parquet(files: Sequence[Path], layout: Layout) -> tuple[Samples, np.ndarray]:
    import numpy as np

    from evalsuite.workloads.pixels import Encoded

    images: list[object] = []
    targets = []
    for file in files:
        table = _table(file)
        images += _column(table, _IMAGE_COLUMNS, file).to_pylist()
        targets.append(_column(table, layout.label_columns, file).to_numpy())
        _check_classes(targets[-1], layout, file)
    return Encoded(_bytes(images, files[0]), SHAPE, str(files[0])), np.concatenate(targets).astype(np.int64)


def _bytes(images: Sequence[object], file: Path) -> list[bytes]:
    """The encoded images, out of the Hugging Face hub's {bytes, path} where they are so."""
    found = []
    for row, image in enumerate(images):
        content = image.get("bytes") if isinstance(image, dict) else image
        if not isinstance(content, bytes):
            said = f"{file}: row {row} holds no encoded image but {content!r:.40}"
            raise ValueError(f"{said}; name files whose images are the bytes of JPEG or PNG files")
        found.append(content)
    return found


def _table(file: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.read_table(file)
    except pa.ArrowInvalid as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{file}: truncated, or no parquet file ({said:.80}); download it again") from error


def _column(table: pa.Table, names: Sequence[str], file: Path) -> pa.ChunkedArray:
    for name in names:
        if name in table.column_names:
            return table[name]
    has = ", ".join(table.column_names)
    raise ValueError(f"{file}: no column {' or '.join(names)}, but {has}; name the columns so, or another file")


def _check_classes(targets: np.ndarray, layout: Layout, file: Path) -> None:
    wrong = ((targets < 0) | (targets >= layout.classes)).nonzero()[0]
    if len(wrong):
        rule = f"{layout.name} has classes 0 to {layout.classes - 1}"
        raise ValueError(f"{file}: label {targets[wrong[0]]} in row {wrong[0]}, but {rule}: not this data set")
