"""Pictures of lines, for the explorer: what sections find among the files of jobs, as images that the page holds.

Among them counterexamples: the images that verifiers kept, with the difference that they make.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.counterexamples import FILE
from evalsuite.results import DamagedResults

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

    # (height, width, channel), or (height, width) of one.
    clean, found = (
        np.moveaxis(np.array(entry[name], dtype=np.float64).reshape(entry["picture"]), 0, -1)
        for name in ("clean", "input")
    )
    if clean.shape[-1] == 1:
        clean, found = clean[..., 0], found[..., 0]
    low = min(clean.min(), found.min())
    span = (max(clean.max(), found.max()) - low) or 1.0
    difference = (found - clean) / span
    # A power of two that brings the largest difference to between a quarter and half of the scale, but for rounding.
    times = 2.0 ** math.floor(math.log2(0.5 / (float(np.abs(difference).max()) or 0.5)) + 0.01)
    sample, size = entry["sample"], f"{clean.shape[1]} × {clean.shape[0]} pixels"
    shares = ((clean - low) / span, (found - low) / span, 0.5 + times * difference)
    pixels = [np.rint(255 * each.clip(0, 1)).astype(np.uint8) for each in shares]  # What lies outside is cut off.
    before, after = (f"class\N{NO-BREAK SPACE}{entry[name]}" for name in ("clean_class", "class"))
    return Picture(
        metrics=tuple(metrics),
        setting={"eps": str(entry["eps"])},
        text=f"test sample {sample} is of class {entry['label']}, and an input within ε = {entry['eps']:g} of it is "
        f"given {after}. Both have one scale, from the least value in them to the greatest.",
        images=(
            (f"clean: {before}", f"Test sample {sample} as it is, {size}, given {before}.", pixels[0]),
            (f"adversarial: {after}", f"The input found near test sample {sample}, given {after}.", pixels[1]),
            (f"difference ×\N{NO-BREAK SPACE}{times:g}, grey is none",
             f"The second less the first, times {times:g}, around grey.", pixels[2]),
        ),
    )  # fmt: skip
