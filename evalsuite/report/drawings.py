"""Figures, and pictures of single lines, which a section shows beside its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG text, or the reason why the data give none."""

    name: str
    title: str
    caption: str
    alt: str = ""
    svg: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class Picture:
    """Holds what a section shows of one job beside its numbers.

    Args:
        metrics: in whose lines.
        setting: what the setting of these lines has, as text: {"eps": "0.03125"}.
        text: a sentence, which goes on from the names of the variant and the seed.
        images: (caption, text for those who do not see it, pixels) of each; pixels are uint8,
            (height, width) of grey or (height, width, 3) of colours.
    """

    metrics: tuple[str, ...]
    setting: Mapping[str, str]
    text: str
    images: tuple[tuple[str, str, np.ndarray], ...]
