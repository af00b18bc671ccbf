"""Rows: one tidy measurement each, with a declared schema; and reading runs as pandas frames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Metric, Setting

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class Status(str, Enum):
    """What became of a measurement. Every status but `ok` comes with a reason."""

    OK = "ok"
    UNSUPPORTED = "unsupported"  # the stage cannot measure this network
    UNAVAILABLE = "unavailable"  # the stage ran, this one metric has no value
    FAILED = "failed"  # the stage raised, or returned something that is no measurement
    CRASHED = "crashed"  # its process died
    TIMEOUT = "timeout"  # it ran past its time limit and was killed
    SKIPPED = "skipped"  # what it needs did not succeed


JOB_FAILURES = (Status.UNSUPPORTED, Status.FAILED, Status.CRASHED, Status.TIMEOUT, Status.SKIPPED)


class DamagedResults(Exception):
    """A results file that cannot be read; the text names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, or one reason for the lack of one.

    A job that gave no outcome at all has one row with an empty `metric`; it stands for all metrics of its step.
    `setting` is canonical text: "eps=0.03125, method=crown".
    """

    workload: str
    variant: str
    seed: int
    step: str
    stage: str
    metric: str
    setting: str
    sample: int | None
    value: float | None
    unit: str
    direction: str
    timing: bool
    status: str
    verdict: str
    reason: str
    key: str


def schema() -> pa.Schema:
    """The Parquet schema of `results.parquet`: declared, so that files of different runs unite."""
    import pyarrow as pa

    types = {
        "str": pa.string(), "int": pa.int64(), "bool": pa.bool_(), "int | None": pa.int64(),
        "float | None": pa.float64(),
    }  # fmt: skip
    return pa.schema([pa.field(each.name, types[str(each.type)]) for each in fields(Row)])


def setting_text(setting: Mapping[str, Setting]) -> str:
    """Canonical text of a metric's setting: keys in order, numbers in their shortest exact form."""
    return ", ".join(f"{key}={setting[key]}" for key in sorted(setting))


def parse_setting(text: str) -> dict[str, str]:
    """The inverse of `setting_text`, values as text."""
    return dict(part.split("=", 1) for part in text.split(", ")) if text else {}


def row_of(metric: Metric, job: Mapping[str, Any]) -> Row:
    """The row of one metric; NaN and infinities are no measurement and become a failed row.

    Args:
        job: workload, variant, seed, step, stage and key.
    """
    value, status, reason = metric.value, Status.OK, metric.reason
    if value is not None and not math.isfinite(value):
        status, reason = Status.FAILED, f"{metric.name} is {value}: not a measurement"
        value = None
    elif value is None and metric.verdict is None:
        status = Status.UNAVAILABLE
    return Row(
        **job,
        metric=metric.name,
        setting=setting_text(metric.setting),
        sample=metric.sample,
        value=None if value is None else float(value),
        unit=metric.unit,
        direction=metric.direction.value,
        timing=metric.timing,
        status=status.value,
        verdict=metric.verdict.value if metric.verdict else "",
        reason=reason,
    )


def failure_row(job: Mapping[str, Any], status: Status, reason: str) -> Row:
    """The one row of a job that gave no outcome."""
    return Row(
        **job, metric="", setting="", sample=None, value=None, unit="", direction="neutral", timing=False,
        status=status.value, verdict="", reason=reason,
    )  # fmt: skip


def write_parquet(rows: Iterable[Row], path: Path) -> None:
    """Write rows with the declared schema, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=schema())
    temporary = path.with_suffix(".partial")
    pq.write_table(table, temporary)
    temporary.replace(path)


def read_results(*folders: Path) -> pd.DataFrame:
    """The rows of one or more runs as one frame, with a `run` column of folder names in front.

    Raises:
        DamagedResults: a folder has no results, or its file is truncated or has other columns.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not folders:
        raise ValueError("read_results of no folder")
    frames = []
    for folder in folders:
        path = folder / "results.parquet"
        if not path.is_file():
            raise DamagedResults(f"{path}: no results here; `evalsuite run RECIPE.yaml --out {folder}` makes them")
        try:
            table = pq.read_table(path).select(schema().names).cast(schema())
        except (pa.ArrowInvalid, KeyError, OSError) as error:
            text = str(error).splitlines()[0]
            raise DamagedResults(
                f"{path}: cannot be read ({text}); run the recipe again: the journal beside it is whole"
            ) from error
        frame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
        frame.insert(0, "run", folder.resolve().name)
        frames.append(frame)
    united: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return united
