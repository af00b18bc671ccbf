"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32, in 10 or 100
classes.

The files are the author's binary version, or parquet files with encoded images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data, Split
from evalsuite.workloads.layers import convolution
from evalsuite.workloads.options import Budget
from evalsuite.workloads.workload import data_folder, partition, sha256

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from torch import nn

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
    """The number of label bytes before the pixels of a binary record, the last of which is the
    class.
    """
    label_columns: tuple[str, ...]


LAYOUTS = {
    10: Layout(
        "CIFAR-10",
        10,
        ("cifar-10-batches-bin", "cifar10", "cifar10-jpeg"),
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        ("test_batch.bin",),
        1,
        ("label", "labels"),
    ),
    100: Layout(
        "CIFAR-100",
        100,
        ("cifar-100-binary", "cifar100"),
        ("train.bin",),
        ("test.bin",),
        2,
        ("fine_label", "label"),
    ),
}


def cifar_files(folder: str, layout: Layout) -> tuple[list[Path], list[Path]]:
    """The files of the training and of the test part, from `folder`, or from the data folder where
    that is empty. Raises FileNotFoundError: a part is missing; the text says what was looked for,
    and how to get it.
    """
    places = (
        [Path(folder).expanduser()] if folder else [data_folder() / name for name in layout.folders]
    )
    for place in places:
        inside = (
            [place, *sorted(path for path in place.iterdir() if path.is_dir())]
            if place.is_dir()
            else []
        )
        for each in inside:
            found = _files(each, layout.train, "train"), _files(each, layout.test, "test")
            if all(found):
                return found
    raise FileNotFoundError(_missing(places, layout, named=bool(folder)))


def _files(folder: Path, names: Sequence[str], part: str) -> list[Path]:
    binary = [folder / name for name in names]
    return (
        binary
        if all(file.is_file() for file in binary)
        else sorted(folder.glob(f"{part}*.parquet"))
    )


def _missing(places: Sequence[Path], layout: Layout, *, named: bool) -> str:
    cure = (
        f"set the option `folder` to where {layout.train[0]} ... {layout.test[-1]} of the author's"
        " binary version lie, or train*.parquet and test*.parquet with encoded images"
    )
    if any((place / name).is_file() for place in places for name in ("batches.meta", "meta")):
        return (
            f"{places[0]}: holds {layout.name}'s Python version, which is pickled and is not read;"
            f" {cure}"
        )
    if named:
        return f"{layout.name} not found in {places[0]}: {cure}"
    return f"{layout.name} not found: {cure}, or put them into {places[0]}"


def read_part(files: Sequence[Path], layout: Layout) -> tuple[Samples, np.ndarray]:
    """The images (samples, 3, 32, 32) of one part, and their classes (samples,), int64. Raises
    ValueError: a file is damaged, or not of this data set; the text names it.
    """
    return _parquet(files, layout) if files[0].suffix == ".parquet" else _binary(files, layout)


def _binary(files: Sequence[Path], layout: Layout) -> tuple[Samples, np.ndarray]:
    import numpy as np
    import torch

    from evalsuite.workloads.pixels import Pixels

    # Records of label bytes and pixels; of CIFAR-100's two labels the last is the fine one.
    record, parts = layout.label_bytes + _PIXELS, []
    for file in files:
        content = np.fromfile(file, np.uint8)
        if not len(content) or len(content) % record:
            what = (
                f"{len(content)} bytes are no whole number of {layout.name}'s records of {record}"
            )
            raise ValueError(f"{file}: truncated or of another data set: {what}; download it again")
        parts.append(content.reshape(-1, record))
        _check_classes(parts[-1][:, layout.label_bytes - 1], layout, file)
    whole = np.concatenate(parts)
    images = whole[:, layout.label_bytes :].reshape(-1, *SHAPE)
    return Pixels(torch.from_numpy(images.copy())), whole[:, layout.label_bytes - 1].astype(
        np.int64
    )


def _parquet(files: Sequence[Path], layout: Layout) -> tuple[Samples, np.ndarray]:
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    from evalsuite.workloads.pixels import Encoded

    images: list[object] = []
    targets = []
    # Columns by any of the names that are usual; images stay encoded until they are asked for.
    for file in files:
        try:
            table = parquet.read_table(file)
        except pa.ArrowInvalid as error:
            said = " ".join(str(error).split())
            raise ValueError(
                f"{file}: truncated, or no parquet file ({said:.80}); download it again"
            ) from error
        images += _column(table, _IMAGE_COLUMNS, file).to_pylist()
        targets.append(_column(table, layout.label_columns, file).to_numpy())
        _check_classes(targets[-1], layout, file)
    return Encoded(_bytes(images, files[0]), SHAPE, str(files[0])), np.concatenate(targets).astype(
        np.int64
    )


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


def _column(table: pa.Table, names: Sequence[str], file: Path) -> pa.ChunkedArray:
    for name in names:
        if name in table.column_names:
            return table[name]
    has = ", ".join(table.column_names)
    raise ValueError(
        f"{file}: no column {' or '.join(names)}, but {has}; name the columns so, or another file"
    )


def _check_classes(targets: np.ndarray, layout: Layout, file: Path) -> None:
    wrong = ((targets < 0) | (targets >= layout.classes)).nonzero()[0]
    if len(wrong):
        rule = f"{layout.name} has classes 0 to {layout.classes - 1}"
        raise ValueError(
            f"{file}: label {targets[wrong[0]]} in row {wrong[0]}, but {rule}: not this data set"
        )


# Calibration and validation, from the training part. Validation chooses between settings; 2,000
# images are enough for that, and whatever it does not hold is trained on.
_SIZES = (512, 2000)


def cifar_fingerprint(folder: str, classes: int) -> str:
    """The SHA-256 of each file, in order."""
    return "+".join(
        sha256(file) for files in cifar_files(folder, LAYOUTS[classes]) for file in files
    )


def cifar_data(folder: str, classes: int) -> Data:
    """Inputs of shape (3, 32, 32), kept as bytes; the test part is the data set's own.

    In training, images are mirrored and shifted by up to 4 pixels at random.

    Raises:
        FileNotFoundError: no such files.
        ValueError: damaged ones, or too few images; the text names file and cure.
    """
    import torch

    from evalsuite.samples import Chosen
    from evalsuite.workloads.pixels import flipped_and_cropped

    # 1. The given parts, of which the test part stays as it is.
    layout = LAYOUTS[classes]
    train_files, test_files = cifar_files(folder, layout)
    (images, targets), (test_images, test_targets) = (
        read_part(files, layout) for files in (train_files, test_files)
    )
    if len(targets) < sum(_SIZES) + classes:
        raise ValueError(
            f"{train_files[0].parent}: {len(targets)} images to train with, of which {_SIZES[0]}"
            f" are for calibration and {_SIZES[1]} for validation; take the whole of {layout.name}"
        )
    # 2. Calibration and validation are cut from the training part, stratified by class.
    calibration, validation, train = (
        Split(Chosen(images, part.tolist()), torch.from_numpy(targets[part]))
        for part in partition(targets, _SIZES)
    )
    taught = Split(train.inputs, train.targets, augment=flipped_and_cropped)
    test = Split(test_images, torch.from_numpy(test_targets))
    fingerprint = cifar_fingerprint(folder, classes)
    return Data(taught, calibration, validation, test, (0.0, 1.0), classes, fingerprint)


@dataclass(frozen=True)
class _ResNet(Budget):
    """The base of the residual networks."""

    version: ClassVar[str] = "2"
    classes: ClassVar[int] = 10
    batch_size: int = 128
    precision: str = "bfloat16"
    channels_last: bool = True
    folder: str = ""
    width: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")

    def fingerprint(self) -> str:
        return cifar_fingerprint(self.folder, self.classes)

    def data(self) -> Data:
        return cifar_data(self.folder, self.classes)


@dataclass(frozen=True)
class Cifar10ResNet8(_ResNet):
    """CIFAR-10, a residual network of 8 layers for a CPU: three strided blocks, 12 million
    multiplications.

    An epoch takes 29 to 49 s of one thread with bfloat16 in hardware, and 42 to 82 s in float32.

    Args:
        folder: where the author's binary version lies, or train*.parquet and test*.parquet with
            encoded images. Empty: cifar-10-batches-bin, cifar10 or cifar10-jpeg in the data folder.
        width: channels of the first layer; the blocks have 2, 4 and 8 times as many.
    """

    epochs: int = 36
    learning_rate: float = 0.1
    optimizer: str = "sgd"
    weight_decay: float = 5e-4
    warm_up: float = 0.15

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        return _residual_network(
            self.width, [(self.width * 2**n, 2) for n in (1, 2, 3)], self.classes, activation
        )


@dataclass(frozen=True)
class Cifar10ResNet18(_ResNet):
    """CIFAR-10, ResNet-18 for small images: a 3 x 3 stem, no pooling, 556 million multiplications.
    A GPU's work.

    Args:
        folder: where the author's binary version lies, or train*.parquet and test*.parquet with
            encoded images. Empty: cifar-10-batches-bin, cifar10 or cifar10-jpeg in the data folder;
            of CIFAR-100, cifar-100-binary or cifar100.
        width: channels of the first layer and stage; the next have 2, 4 and 8 times as many.
    """

    epochs: int = 60
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    device: str = "auto"
    warm_up: float = 0.05
    width: int = 64

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        stages = [
            (self.width * 2**n, stride) for n in range(4) for stride in (1 if n == 0 else 2, 1)
        ]
        return _residual_network(self.width, stages, self.classes, activation)


@dataclass(frozen=True)
class Cifar100ResNet18(Cifar10ResNet18):
    """CIFAR-100 in its 100 fine classes, the same ResNet-18."""

    classes: ClassVar[int] = 100


def _residual_network(
    stem: int, blocks: list[tuple[int, int]], classes: int, activation: Callable[[int], nn.Module]
) -> nn.Module:
    """A 3 x 3 convolution, residual blocks of (channels, stride), the mean over places, a linear
    layer.
    """
    from torch import nn

    from evalsuite.workloads.transformer import ResidualBlock

    layers, width = convolution(3, stem, activation), stem
    for channels, stride in blocks:
        layers.append(ResidualBlock(width, channels, activation, stride=stride))
        width = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
