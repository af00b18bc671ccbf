"""The scores of single test samples in a file beside a job's rows: written by the run, read by its
report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Metric
from evalsuite.results import setting_text
from opgraph.limits import reading

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCORES_FILE = "sample-scores.npz"
ARTEFACT = "sample_scores"
_INDEX, _VALUES, _BLOCKS = "index", "values", "blocks"
_CLOSE = 1e-6  # of the value, or of 1: the scores' mean is meant to be it


@dataclass(frozen=True, eq=False)
class KeptScores:
    """The scores of the test samples of one network in one metric, as a file has them.

    Args:
        values: (samples,), float64.
        blocks: of each sample its block, (samples,); None where samples stand for themselves.
    """

    values: NDArray[np.float64]
    blocks: NDArray[np.int64] | None


def write_scores(metrics: Iterable[Metric], folder: Path) -> Path | None:
    """Write the scores of all metrics that have them; None where none has.

    Scores whose mean is not the metric's value are of another metric, and left out.
    """
    import numpy as np

    index: list[dict[str, object]] = []
    arrays: dict[str, Any] = {}
    for metric in metrics:
        kept = _kept(metric)
        if kept is None:
            continue
        place = len(index)
        index.append({"metric": metric.name, "setting": setting_text(metric.setting)})
        # Right and wrong answers take a byte each, other scores four.
        whole = np.isin(kept.values, (0.0, 1.0)).all()
        arrays[f"{_VALUES}{place}"] = kept.values.astype(np.uint8 if whole else np.float32)
        if kept.blocks is not None:
            arrays[f"{_BLOCKS}{place}"] = kept.blocks.astype(np.int32)
    if not index:
        return None
    path = folder / SCORES_FILE
    folder.mkdir(parents=True, exist_ok=True)
    arrays[_INDEX] = np.array(json.dumps(index))
    np.savez_compressed(path, **arrays)
    return path


def _kept(metric: Metric) -> KeptScores | None:
    """The scores of a metric; None where there are none, or where they are not its value's."""
    import numpy as np

    if metric.scores is None or metric.value is None or metric.sample is not None:
        return None
    try:
        values = metric.scores.values().numpy().astype(np.float64)
    except (ArithmeticError, ValueError):  # a metric may have no value without some sample
        return None
    near = abs(float(values.mean()) - metric.value) <= _CLOSE * max(1.0, abs(metric.value))
    if not np.isfinite(values).all() or not near:
        return None
    blocks = metric.scores.blocks
    return KeptScores(values, None if blocks is None else blocks.numpy())


def read_scores(folder: Path) -> Mapping[tuple[str, str], KeptScores]:
    """(metric, setting) -> scores of a job, from the folder of its artefacts; empty where there is
    no file.

    Raises:
        OwnError: the file is larger than memory, or cannot be read.
    """
    import numpy as np

    path = folder / SCORES_FILE
    if not path.is_file():
        return {}
    found = {}
    with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        for place, entry in enumerate(json.loads(str(arrays[_INDEX]))):
            blocks = arrays.get(f"{_BLOCKS}{place}")
            values = arrays[f"{_VALUES}{place}"].astype(np.float64)
            key = entry["metric"], entry["setting"]
            found[key] = KeptScores(values, None if blocks is None else blocks.astype(np.int64))
    return found
