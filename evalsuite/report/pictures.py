"""Pictures of lines, for the explorer: what sections find among the files of jobs, as images that the page holds."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from evalsuite.report.run import Run

MOST_CHARACTERS = 300_000
"""Of all images of a page, about as many bytes of it: one of 8 x 8 grey pixels has 200, of 32 x 32 colours 4,000."""


@dataclass(frozen=True)
class Picture:
    """What a section shows of one job beside its numbers.

    Args:
        metrics: in whose lines.
        setting: what the setting of these lines has, as text: {"eps": "0.03125"}.
        text: a sentence, which goes on from the names of the variant and the seed.
        images: (caption, text for those who do not see it, pixels) of each; pixels are uint8, (height, width) of grey
            or (height, width, 3) of colours.

    Example: docs/reference.md#a-section-of-the-report
    """

    metrics: tuple[str, ...]
    setting: Mapping[str, str]
    text: str
    images: tuple[tuple[str, str, np.ndarray], ...]


def shown_pictures(content: Run) -> list[dict[str, Any]]:
    """Those of the first seed that has one, for each variant, step and setting; none of a run without its folder.

    The first of each job come first. Where a page is full, a picture tells its text and where its numbers are.
    """
    found: dict[Any, tuple[int, str, Picture]] = {}
    if content.folder is None:
        return []
    jobs = content.frame[["stage", "workload", "variant", "seed", "step"]].drop_duplicates()
    for section in content.sections.values():
        own = jobs[jobs["stage"].isin(section.stages)]
        for _, workload, variant, seed, step in own.itertuples(index=False, name=None):
            folder = content.folder / "artefacts" / workload / variant / str(seed) / step
            for rank, each in enumerate(section.pictures(folder)):
                place = workload, variant, step, each.metrics, *each.setting.items()
                found.setdefault(place, (rank, f"{variant}, seed {seed}: {each.text}", each))
    shown, left = [], MOST_CHARACTERS
    for (workload, variant, step, *_), (_, text, each) in sorted(found.items(), key=lambda item: item[1][0]):
        images = [(caption, alt, _address(pixels)) for caption, alt, pixels in each.images]
        size = sum(len(address) for *_, address in images)
        fits = size <= left
        left -= size * fits
        shown.append({
            "workload": workload, "variant": variant, "step": step, "metrics": each.metrics,
            "settings": [f"{key}={value}" for key, value in each.setting.items()],
            "text": text if fits else f"{text} This page has no room for it: its numbers are among the artefacts.",
            "images": images if fits else [],
        })  # fmt: skip
    return shown


def _address(pixels: np.ndarray) -> str:
    """A PNG image as the address of its own data, which no page has to ask for."""
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}"
