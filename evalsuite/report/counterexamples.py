"""Counterexamples as pictures: the images that verifiers kept, with the difference that they make."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.counterexamples import FILE
from evalsuite.report.pictures import Picture
from evalsuite.results import DamagedResults

if TYPE_CHECKING:
    import numpy as np


def counterexample_pictures(folder: Path, metrics: Sequence[str]) -> list[Picture]:
    """A picture of each radius of the file in `folder`: its first counterexample to a sample that was classified right.

    Args:
        folder: of a job's artefacts; without the file, and of inputs that are no images, there are none.
        metrics: those in whose lines the pictures belong.

    Raises:
        DamagedResults: the file is there and is no JSON.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedResults(f"{path}: not JSON ({error}); run the recipe again") from error
    first: dict[float, Mapping[str, Any]] = {}
    for each in entries:
        # Older files have no clean input, intervals no label; what was wrong from the start needs no picture.
        if each.get("picture") and each.get("clean_class") == each.get("label", -1):
            first.setdefault(each["eps"], each)
    return [_picture(each, metrics) for each in first.values()]


def _picture(entry: Mapping[str, Any], metrics: Sequence[str]) -> Picture:
    import numpy as np

    clean, found = (_pixels(entry[name], entry["picture"]) for name in ("clean", "input"))
    low = min(clean.min(), found.min())
    span = (max(clean.max(), found.max()) - low) or 1.0
    difference = (found - clean) / span
    # A power of two that brings the largest difference to between a quarter and half of the scale, but for rounding.
    times = 2.0 ** math.floor(math.log2(0.5 / (float(np.abs(difference).max()) or 0.5)) + 0.01)
    sample, size = entry["sample"], f"{clean.shape[1]} × {clean.shape[0]} pixels"
    before, after = (f"class\N{NO-BREAK SPACE}{entry[name]}" for name in ("clean_class", "class"))
    return Picture(
        metrics=tuple(metrics),
        setting={"eps": str(entry["eps"])},
        text=f"test sample {sample} is of class {entry['label']}, and an input within ε = {entry['eps']:g} of it is "
        f"given {after}. Both have one scale, from the least value in them to the greatest.",
        images=(
            (f"clean: {before}", f"Test sample {sample} as it is, {size}, given {before}.",
             _bytes((clean - low) / span)),
            (f"adversarial: {after}", f"The input found near test sample {sample}, given {after}.",
             _bytes((found - low) / span)),
            (f"difference ×\N{NO-BREAK SPACE}{times:g}, grey is none",
             f"The second less the first, times {times:g}, around grey.", _bytes(0.5 + times * difference)),
        ),
    )  # fmt: skip


def _pixels(values: Any, shape: Sequence[int]) -> np.ndarray:
    """(height, width, 3), or (height, width) of one channel, float64."""
    import numpy as np

    pixels = np.moveaxis(np.array(values, dtype=np.float64).reshape(shape), 0, -1)
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def _bytes(shares: np.ndarray) -> np.ndarray:
    """Of shares of the scale, uint8; what lies outside is cut off."""
    import numpy as np

    pixels: np.ndarray = np.rint(255 * shares.clip(0, 1)).astype(np.uint8)
    return pixels
