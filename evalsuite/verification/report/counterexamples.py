"""Counterexamples as pictures: the images that verifiers kept, with the difference that they
make.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.counterexamples import FILE
from evalsuite.report.drawings import Picture
from evalsuite.results import DamagedResults


def counterexample_pictures(folder: Path, metrics: Sequence[str]) -> list[Picture]:
    """A picture of each radius of the file in `folder`: its first counterexample to a sample that
    was classified right.

    Args:
        folder: of a job's artefacts; without the file, and of inputs that are no images, there are
            none.
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
    for entry in entries:
        # Older files have no clean input, intervals no label; what was wrong from the start needs
        # no picture.
        if entry.get("picture") and entry.get("clean_class") == entry.get("label", -1):
            first.setdefault(entry["eps"], entry)
    return [_picture(entry, metrics) for entry in first.values()]


def _picture(entry: Mapping[str, Any], metrics: Sequence[str]) -> Picture:
    import numpy as np

    # (height, width, channel), or (height, width) of one.
    clean, counterexample = (
        np.moveaxis(np.array(entry[name], dtype=np.float64).reshape(entry["picture"]), 0, -1)
        for name in ("clean", "input")
    )
    if clean.shape[-1] == 1:
        clean, counterexample = clean[..., 0], counterexample[..., 0]
    # One scale for both pictures, so that what differs between them is the perturbation alone.
    low = min(clean.min(), counterexample.min())
    span = (max(clean.max(), counterexample.max()) - low) or 1.0
    difference = (counterexample - clean) / span
    # A power of two that brings the largest difference to between a quarter and half of the scale,
    # but for rounding.
    times = 2.0 ** math.floor(math.log2(0.5 / (float(np.abs(difference).max()) or 0.5)) + 0.01)
    sample, size = entry["sample"], f"{clean.shape[1]} × {clean.shape[0]} pixels"
    shares = ((clean - low) / span, (counterexample - low) / span, 0.5 + times * difference)
    # What lies outside is cut off.
    pixels = [np.rint(255 * share.clip(0, 1)).astype(np.uint8) for share in shares]
    before, after = (f"class\N{NO-BREAK SPACE}{entry[name]}" for name in ("clean_class", "class"))
    return Picture(
        metrics=tuple(metrics),
        setting={"eps": str(entry["eps"])},
        text=(
            f"test sample {sample} is of class {entry['label']}, and an input within ε ="
            f" {entry['eps']:g} of it is given {after}. Both have one scale, from the least value"
            " in them to the greatest."
        ),
        images=(
            (
                f"clean: {before}",
                f"Test sample {sample} as it is, {size}, given {before}.",
                pixels[0],
            ),
            (
                f"adversarial: {after}",
                f"The input found near test sample {sample}, given {after}.",
                pixels[1],
            ),
            (
                f"difference ×\N{NO-BREAK SPACE}{times:g}, grey is none",
                f"The second less the first, times {times:g}, around grey.",
                pixels[2],
            ),
        ),
    )
