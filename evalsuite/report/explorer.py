"""The explorer of a page shows every measurement, by columns, packed into text that the browser
unpacks.

And pictures of lines: what sections find among the files of jobs, as images that the page holds.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Direction
from evalsuite.report.statistics import t_quantile
from evalsuite.report.tables import difference_text, is_clock, notes_text

if TYPE_CHECKING:
    import numpy as np

    from evalsuite.report.drawings import Picture
    from evalsuite.report.run import Run
    from evalsuite.report.tables import TextLine

MOST_CHARACTERS = 300_000
"""The most characters that all images of a page may take, about as many bytes of it: one of 8 x 8
grey pixels has 200, of 32 x 32 colours 4,000.
"""


def shown_pictures(content: Run) -> list[dict[str, Any]]:
    """The pictures of the first seed that has one, for each variant, step and setting; none of a
    run without its folder.

    The first of each job come first. Where a page is full, a picture tells its text and where its
    numbers are.
    """
    pictures: dict[Any, tuple[int, str, Picture]] = {}
    if content.folder is None:
        return []
    # 1. Collect the pictures of the first seed that has them; rank is the place within a job.
    jobs = content.frame[["stage", "workload", "variant", "seed", "step"]].drop_duplicates()
    for section in content.sections.values():
        jobs_of_section = jobs[jobs["stage"].isin(section.stages)]
        for _, workload, variant, seed, step in jobs_of_section.itertuples(index=False, name=None):
            folder = content.folder / "artefacts" / workload / variant / str(seed) / step
            for rank, picture in enumerate(section.pictures(folder)):
                place = workload, variant, step, picture.metrics, *picture.setting.items()
                pictures.setdefault(
                    place, (rank, f"{variant}, seed {seed}: {picture.text}", picture)
                )
    # 2. Give the page's room out by rank, so that every job shows its first picture first.
    shown, left = [], MOST_CHARACTERS
    for (workload, variant, step, *_), (_, text, picture) in sorted(
        pictures.items(), key=lambda item: item[1][0]
    ):
        images = [(caption, alt, _address(pixels)) for caption, alt, pixels in picture.images]
        size = sum(len(address) for *_, address in images)
        fits = size <= left
        left -= size * fits
        shown.append(
            {
                "workload": workload,
                "variant": variant,
                "step": step,
                "metrics": picture.metrics,
                "settings": [f"{key}={value}" for key, value in picture.setting.items()],
                "text": text
                if fits
                else f"{text} This page has no room for it: its numbers are among the artefacts.",
                "images": images if fits else [],
            }
        )
    return shown


def _address(pixels: np.ndarray) -> str:
    """A PNG image as the address of its own data, which no page has to ask for."""
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}"


_LONGEST = 240  # characters of a reason
_LINE = ("workload", "step", "stage", "metric", "label", "setting", "unit", "direction")
VERDICTS = (
    "better",
    "worse",
    "resolved, no direction",
    "not resolved",
    "exactly equal",
    "not compared",
    "no value",
)


def explorer_data(content: Run) -> dict[str, Any]:
    """Lines and cells by columns; a cell has its values by seed, so that the page computes what
    it draws from these.
    """
    lines = content.lines
    # Values by seed are sent, not means: the page computes means and intervals by itself, and needs
    # t quantiles for these.
    shown = content.variants[1:] or content.variants
    seeds = {
        str(workload): sorted(map(int, every))
        for workload, every in content.frame.groupby("workload")["seed"].unique().items()
    }
    cells = [
        _cell(content, line, number_of_line, variant, seeds[line.workload])
        for number_of_line, line in enumerate(lines)
        for variant in content.variants
    ]
    most = max(len(seed) for seed in seeds.values())
    return {
        "baseline": content.baseline,
        "variants": shown,
        "verdicts": VERDICTS,
        "seeds": seeds,
        "quantiles": [0.0, *(t_quantile(0.975, degrees) for degrees in range(1, most))],
        "lines": {name: [getattr(line, name) for line in lines] for name in _LINE}
        | {
            "shown": [
                [line.scale.divisor, line.scale.difference_unit, line.unit_label] for line in lines
            ]
        },
        "cells": {name: [cell[name] for cell in cells] for name in cells[0]} if cells else {},
        "steps": {
            name: {"help": str(step.get("help") or ""), "after": content.record.after[name]}
            for step in content.record.steps
            if (name := str(step["name"]))
        },
        "terms": content.terms,
        "pictures": shown_pictures(content),
    }


def _cell(content: Run, line: TextLine, at: int, variant: str, seeds: list[int]) -> dict[str, Any]:
    raw = line.raw[variant]
    values = content.measured.values(line.workload, variant, line.step, line.metric, line.setting)
    return {
        "line": at,
        "variant": variant,
        "values": [_number(values[seed]) if seed in values else None for seed in seeds],
        "mean": line.cells[variant].text if raw["n"] else "",
        "difference": difference_text(raw, line.scale),
        "verdict": VERDICTS.index(_verdict(raw)),
        "fixed": bool(raw["constant"]),
        "resolved": bool(raw["resolved"]),
        "lack": notes_text(raw),
        "reason": _short("; ".join(part for part in (raw["reason"], raw["remark"]) if part)),
    }


def _number(value: float) -> float | int:
    """Shorten a fraction to seven digits, which are enough to draw and to average, `comparison.csv`
    has all; a whole number, as of parameters, is kept whole.
    """
    number = value if value.is_integer() else float(f"{value:.7g}")
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _short(reason: str) -> str:
    """The beginning of a reason, as much as is read; the files beside the page have it whole."""
    return reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 1].rstrip()}…"


def _verdict(cell: Mapping[str, Any]) -> str:
    if not cell["n"]:
        return "no value"
    if (
        cell["n_pairs"] < 2
        or math.isnan(cell["diff_low"])
        or is_clock(cell["unit"], cell["timing"])
    ):
        return "not compared"
    if cell["constant"] and cell["diff"] == 0:
        return "exactly equal"
    if cell["better"] or not cell["resolved"]:
        return str(cell["better"] or "not resolved")
    return (
        "resolved, no direction" if cell["direction"] == Direction.NEUTRAL.value else "not resolved"
    )


def packed(data: Mapping[str, Any]) -> str:
    """JSON, gzip and base64, the same each time."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
