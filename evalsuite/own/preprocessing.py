"""How images are prepared for a trained model, as its own files say, and whether they are given
so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from evalsuite.contract import Data
from evalsuite.data.source import Source
from evalsuite.own.asked_model import Model

_FILES = ("preprocessor_config.json", "processor_config.json")
_APART = 1e-3
Scales = tuple[tuple[float, ...], tuple[float, ...]]


def misprepared(model: Model, module: nn.Module, source: Source, data: Data) -> list[str]:
    """A sentence where a model wants images by another mean and deviation than they are given by.

    Of a folder of images, or a column of them, that is `data.mean` and `data.std`; of what a
    function or an archive gives, whose scale nobody knows, images that are never negative are taken
    for such that are not normalised at all.
    """
    wanted, where = _wanted(model, module)
    batch = data.train.first(1)
    if wanted is None or not hasattr(batch, "ndim") or batch.ndim != 4:
        return []
    is_ready = source.is_function or source.path.endswith((".npz", ".npy"))
    if is_ready and (data.domain[0] < 0 or _same(wanted, ((0.0,), (1.0,)))):
        return []
    if not is_ready and _same(wanted, (source.mean or (0.0,), source.std or (1.0,))):
        return []
    mean, std = (f"[{', '.join(f'{number:.4g}' for number in numbers)}]" for numbers in wanted)
    now = "they are in no such scale" if is_ready or not source.mean else "they are given by others"
    cure = f"write `data.mean: {mean}` and `data.std: {std}`"
    cure = "normalise them where they are made" if is_ready else cure
    return [f"{where} wants images normalised by mean {mean} and std {std}, but {now}: {cure}"]


def _same(one: Scales, other: Scales) -> bool:
    """Whether both are alike in each channel."""
    for ours, theirs in zip(one, other, strict=True):
        count = max(len(ours), len(theirs))
        pairs = zip(_spread(ours, count), _spread(theirs, count), strict=False)
        if not all(math.isclose(a, b, abs_tol=_APART) for a, b in pairs):
            return False
    return True


def _spread(numbers: tuple[float, ...], count: int) -> tuple[float, ...]:
    return numbers * count if len(numbers) == 1 else numbers


def _wanted(model: Model, module: nn.Module) -> tuple[Scales | None, str]:
    """Mean and deviation of each channel, and what says them."""
    if model.path.startswith("hf:"):
        folder = Path(model.path.removeprefix("hf:")).expanduser()
        for file in (folder / name for name in _FILES):
            if (wanted := _of_hugging_face(file)) is not None:
                return wanted, str(file)
        return None, ""
    described = getattr(getattr(module, "network", module), "pretrained_cfg", None)
    if model.path.startswith("timm:") and isinstance(described, Mapping):
        return _scales(described.get("mean"), described.get("std")), "timm's configuration"
    return None, ""


def _of_hugging_face(file: Path) -> Scales | None:
    try:
        configuration = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    configuration = (
        configuration.get("image_processor", configuration)
        if isinstance(configuration, dict)
        else {}
    )
    if not isinstance(configuration, dict) or not configuration.get("do_normalize", True):
        return None
    return _scales(configuration.get("image_mean"), configuration.get("image_std"))


def _scales(mean: Any, std: Any) -> Scales | None:
    lists = [scale if isinstance(scale, (list, tuple)) else [scale] for scale in (mean, std)]
    if not all(isinstance(number, (int, float)) for numbers in lists for number in numbers):
        return None
    return tuple(map(float, lists[0])), tuple(map(float, lists[1]))
