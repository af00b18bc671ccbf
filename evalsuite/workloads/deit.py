"""A vision transformer of DeiT-tiny's sizes (arXiv 2012.12877) on CIFAR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data
from evalsuite.workloads.cifar import SHAPE, cifar_data, cifar_fingerprint
from evalsuite.workloads.options import Budget, check_heads

if TYPE_CHECKING:
    from torch import nn

_CLASSES = (10, 100)


@dataclass(frozen=True)
class DeiTTiny(Budget):
    """CIFAR-100 in patches of 4 x 4, DeiT-tiny: 12 pre-norm blocks of width 192, 3 heads. A GPU's
    work.

    Without a class token, a teacher and dropout: the mean over the patches is classified.

    Args:
        folder: where the author's binary version lies, or train*.parquet and test*.parquet with
            encoded images. Empty: cifar-100-binary or cifar100 in the data folder (of CIFAR-10: see
            `cifar10-resnet8`).
        classes: 100, or 10 for CIFAR-10.
        patch: pixels along each side of a patch.
        width: of a token; the feed-forward parts have four times as many units.
        heads: of each attention.
        blocks: their number.
    """

    version: ClassVar[str] = "2"
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    device: str = "auto"
    precision: str = "bfloat16"
    warm_up: float = 0.05
    folder: str = ""
    classes: int = 100
    patch: int = 4
    width: int = 192
    heads: int = 3
    blocks: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes not in _CLASSES:
            raise ValueError(
                f"classes must be 10 or 100, of CIFAR-10 or CIFAR-100, got {self.classes}"
            )
        if self.patch < 1 or SHAPE[1] % self.patch:
            raise ValueError(f"patch must divide the {SHAPE[1]} pixels of a side, got {self.patch}")
        if self.blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {self.blocks}")
        check_heads(self.width, self.heads)

    def fingerprint(self) -> str:
        return cifar_fingerprint(self.folder, self.classes)

    def data(self) -> Data:
        return cifar_data(self.folder, self.classes)

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        from evalsuite.workloads.transformer import VisionTransformer, feed_forwards

        layers = feed_forwards(self.blocks, self.width, 4 * self.width, activation)
        return VisionTransformer(
            SHAPE[1], self.patch, self.width, self.heads, layers, self.classes, channels=SHAPE[0]
        )
