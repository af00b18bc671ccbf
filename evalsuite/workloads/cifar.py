"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32, in 10 or 100 classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data, Split
from evalsuite.workloads.cifar_files import LAYOUTS, cifar_files, read_part
from evalsuite.workloads.layers import convolution
from evalsuite.workloads.options import Budget
from evalsuite.workloads.workload import partition, sha256

if TYPE_CHECKING:
    from torch import nn

# Calibration and validation, from the training part. Validation chooses between settings; 2,000 images are enough for
# that, and whatever it does not hold is trained on.
_SIZES = (512, 2000)


def cifar_fingerprint(folder: str, classes: int) -> str:
    """The SHA-256 of each file, in order."""
    return "+".join(sha256(file) for files in cifar_files(folder, LAYOUTS[classes]) for file in files)


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

    layout = LAYOUTS[classes]
    train_files, test_files = cifar_files(folder, layout)
    (images, targets), (test_images, test_targets) = (read_part(files, layout) for files in (train_files, test_files))
    if len(targets) < sum(_SIZES) + classes:
        raise ValueError(
            f"{train_files[0].parent}: {len(targets)} images to train with, of which {_SIZES[0]} are for calibration "
            f"and {_SIZES[1]} for validation; take the whole of {layout.name}"
        )
    calibration, validation, train = (
        Split(Chosen(images, part.tolist()), torch.from_numpy(targets[part])) for part in partition(targets, _SIZES)
    )
    taught = Split(train.inputs, train.targets, augment=flipped_and_cropped)
    test = Split(test_images, torch.from_numpy(test_targets))
    fingerprint = cifar_fingerprint(folder, classes)
    return Data(taught, calibration, validation, test, (0.0, 1.0), classes, fingerprint)


@dataclass(frozen=True)
class _ResNet(Budget):
    """What the residual networks share."""

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
    """CIFAR-10, a residual network of 8 layers for a CPU: three strided blocks, 12 million multiplications.

    An epoch takes 29 to 49 s of one thread with bfloat16 in hardware, and 42 to 82 s in float32.

    Args:
        folder: where the author's binary version lies, or train*.parquet and test*.parquet with encoded images.
            Empty: cifar-10-batches-bin, cifar10 or cifar10-jpeg in the data folder.
        width: channels of the first layer; the blocks have 2, 4 and 8 times as many.
    """

    epochs: int = 36
    learning_rate: float = 0.1
    optimizer: str = "sgd"
    weight_decay: float = 5e-4
    warm_up: float = 0.15

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        return _residual_network(self.width, [(self.width * 2**n, 2) for n in (1, 2, 3)], self.classes, activation)


@dataclass(frozen=True)
class Cifar10ResNet18(_ResNet):
    """CIFAR-10, ResNet-18 for small images: a 3 x 3 stem, no pooling, 556 million multiplications. A GPU's work.

    Args:
        folder: where the author's binary version lies, or train*.parquet and test*.parquet with encoded images.
            Empty: cifar-10-batches-bin, cifar10 or cifar10-jpeg in the data folder; of CIFAR-100, cifar-100-binary or
            cifar100.
        width: channels of the first layer and stage; the next have 2, 4 and 8 times as many.
    """

    epochs: int = 60
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    device: str = "auto"
    warm_up: float = 0.05
    width: int = 64

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        stages = [(self.width * 2**n, stride) for n in range(4) for stride in (1 if n == 0 else 2, 1)]
        return _residual_network(self.width, stages, self.classes, activation)


@dataclass(frozen=True)
class Cifar100ResNet18(Cifar10ResNet18):
    """CIFAR-100 in its 100 fine classes, the same ResNet-18."""

    classes: ClassVar[int] = 100


def _residual_network(
    stem: int, blocks: list[tuple[int, int]], classes: int, activation: Callable[[int], nn.Module]
) -> nn.Module:
    """A 3 x 3 convolution, residual blocks of (channels, stride), the mean over places, a linear layer."""
    from torch import nn

    from evalsuite.workloads.residual import ResidualBlock

    layers, width = convolution(3, stem, activation), stem
    for channels, stride in blocks:
        layers.append(ResidualBlock(width, channels, activation, stride=stride))
        width = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
