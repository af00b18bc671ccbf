"""Fashion-MNIST (arXiv 1708.07747): 60,000 + 10,000 images of clothes, 28 x 28, ten classes; MIT
licence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data
from evalsuite.workloads.idx import NAMES, content, fetch_idx, idx_files, parse_idx
from evalsuite.workloads.layers import mlp
from evalsuite.workloads.options import Budget
from evalsuite.workloads.workload import data_folder, labelled, partition

if TYPE_CHECKING:
    from torch import nn

PACKAGE_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of Debian's dataset-fashion-mnist
_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_DIGESTS = dict(  # of the decompressed bytes
    zip(
        NAMES,
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        strict=True,
    )
)
_CALIBRATION, _VALIDATION = 1000, 5000


def _digest(contents: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for each in contents:
        digest.update(each)
    return digest.hexdigest()


@dataclass(frozen=True)
class FashionMLP(Budget):
    """Fashion-MNIST, fully connected 784-256-128-10; the test part is the data set's own 10,000
    images.

    Args:
        folder: where {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] lie. Empty: in Debian's
            package, else in the folder fashion-mnist of the data folder.
        download: whether to fetch the files into the data folder where they are nowhere.
    """

    version: ClassVar[str] = "1"
    epochs: int = 8
    batch_size: int = 128
    learning_rate: float = 2e-3
    folder: str = ""
    download: bool = False

    def _files(self) -> list[Path]:
        if self.folder:
            return idx_files(Path(self.folder).expanduser())
        kept = data_folder() / "fashion-mnist"
        if self.download and not PACKAGE_FOLDER.is_dir():
            fetch_idx(_URL, kept, _DIGESTS)
        for folder in (PACKAGE_FOLDER, kept):
            if folder.is_dir():
                return idx_files(folder)
        raise FileNotFoundError(
            "Fashion-MNIST not found: apt install dataset-fashion-mnist, or set the option"
            f" `folder` to where its four files lie, or put them into {kept}, or set `download:"
            " true`"
        )

    def fingerprint(self) -> str:
        """The SHA-256 of the decompressed files: packages and mirrors compress them differently."""
        return _digest(content(file) for file in self._files())

    def data(self) -> Data:
        """The split images, as flat inputs (784,) of pixels in [0, 1]. Raises FileNotFoundError
        if they are nowhere.
        """
        files = self._files()
        contents = [content(file) for file in files]
        # Calibration and validation are cut from the training part, stratified by class; the test
        # part is the data set's own.
        images, labels, test_images, test_labels = map(parse_idx, contents, files)
        parts = [
            (images[part], labels[part]) for part in partition(labels, (_CALIBRATION, _VALIDATION))
        ]
        calibration, validation, train, test = (
            labelled(pixels.reshape(-1, 784).astype("float32") / 255, targets)
            for pixels, targets in (*parts, (test_images, test_labels))
        )
        return Data(
            train,
            calibration,
            validation,
            test,
            (0.0, 1.0),
            10,
            _digest(contents),
            picture=(1, 28, 28),
        )

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        return mlp([784, 256, 128, 10], activation)


@dataclass(frozen=True)
class FashionMLPSGD(FashionMLP):
    """fashion-mlp trained by SGD with momentum, as in the paper (arXiv 2603.21991)."""

    learning_rate: float = 0.05
    optimizer: str = "sgd"
    weight_decay: float = 5e-4
