"""Rows: one tidy measurement each, with a declared schema; and reading runs as pandas frames."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Direction, Metric, Reading, Setting, Verdict
from evalsuite.sums import digest_of
from opgraph.errors import OwnError
from opgraph.limits import check_size, reading

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class Status(str, Enum):
    """The ways in which a measurement ends. Every status but `ok` comes with a reason."""

    OK = "ok"
    UNSUPPORTED = "unsupported"  # the stage cannot measure this network
    UNAVAILABLE = "unavailable"  # the stage ran, this one metric has no value
    FAILED = "failed"  # the stage raised, or returned something that is no measurement
    CRASHED = "crashed"  # its process died
    TIMEOUT = "timeout"  # it ran past its time limit and was killed
    OOM = "oom"  # it needed more memory than it may take, or than there was
    SKIPPED = "skipped"  # what it needs did not succeed


JOB_FAILURES = (
    Status.UNSUPPORTED,
    Status.FAILED,
    Status.CRASHED,
    Status.TIMEOUT,
    Status.OOM,
    Status.SKIPPED,
)


class DamagedResults(Exception):
    """A results file that cannot be read; the text names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, or one reason for the lack of one.

    A job that gave no outcome at all has one row with an empty `metric`; it stands for all metrics
    of its step. `setting` is canonical text: "eps=0.03125, method=crown". The last five columns are
    of clock readings, see `Reading`.
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
    reading_low: float | None = None
    reading_high: float | None = None
    repetitions: int | None = None
    load: float | None = None
    graph: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a job's rows: more columns of each of them, so that a row stands alone.

    `options` are the step's; of the making of a network the variant's. `commit` is that of the
    evalsuite checkout that measured, with "-dirty" where its tracked files were changed, or
    "release 0.1.0"; `source` is the digest of the source that the job ran, and `host` the machine
    that ran it. They are empty where nothing ran, and where they were not recorded.
    """

    workload_use: str = ""
    variant_use: str = ""
    commit: str = ""
    source: str = ""
    host: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    variant_options: Mapping[str, Any] = field(default_factory=dict)
    workload_options: Mapping[str, Any] = field(default_factory=dict)


# Columns that older files lack: there they were not recorded.
_LATER = ("host", "reading_low", "reading_high", "repetitions", "load", "graph")
CHECKSUM = "checksum"  # among a record's entries
_ATTEMPTS, _PAUSE = 3, 0.2  # looks at a file that does not fit its record, and seconds between them
OPTIONS = ("options", "variant_options", "workload_options")


def schema() -> pa.Schema:
    """The Parquet schema of `results.parquet`, without options: declared, so that files of
    different runs unite.
    """
    import pyarrow as pa

    types = {
        "str": pa.string(),
        "int": pa.int64(),
        "bool": pa.bool_(),
        "int | None": pa.int64(),
        "float | None": pa.float64(),
    }
    declared = [each for each in (*fields(Row), *fields(Origin)) if each.name not in OPTIONS]
    return pa.schema([pa.field(each.name, types[str(each.type)]) for each in declared])


def _structs(options: Sequence[Mapping[str, Any]]) -> pa.Array:
    """A struct of each options, with a field for every name; null where there are none."""
    import pyarrow as pa

    plain = [json.loads(json.dumps(dict(option), default=str)) for option in options]
    names = list(dict.fromkeys(name for each in plain for name in each))
    if not names:  # Parquet has no struct without fields.
        return pa.nulls(len(plain))
    columns = [_option_column([each.get(name) for each in plain]) for name in names]
    return pa.StructArray.from_arrays(
        columns, names=names, mask=pa.array([not each for each in plain])
    )


def _option_column(values: Sequence[Any]) -> pa.Array:
    """One option's values as the narrowest type that holds them all: truth, int64, float64, else
    text.
    """
    import pyarrow as pa

    known = [value for value in values if value is not None]
    kinds = {type(each) for each in known}
    if kinds == {bool} or (kinds == {int} and all(-(2**63) <= each < 2**63 for each in known)):
        return pa.array(values)
    if kinds in ({float}, {int, float}):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    texts = [json.dumps(value) if isinstance(value, list | dict) else value for value in values]
    return pa.array([None if text is None else str(text) for text in texts], pa.string())


def setting_text(setting: Mapping[str, Setting]) -> str:
    """Canonical text of a metric's setting: keys in order, numbers in their shortest exact form."""
    return ", ".join(f"{key}={setting[key]}" for key in sorted(setting))


def parse_setting(text: str) -> dict[str, str]:
    """The setting that its text in the rows stands for, such as "eps=0.25, method=crown"; the
    values stay text.
    """
    return dict(part.split("=", 1) for part in text.split(", ")) if text else {}


def row_of(metric: Metric, job: Mapping[str, Any]) -> Row:
    """The row of one metric; NaN and infinities are no measurement and become a failed row.

    Args:
        job: workload, variant, seed, step, stage and key.
    """
    value, status, reason = metric.value, Status.OK, metric.reason
    # Three cases without a value: not finite, not measured with a reason, or a verdict in its
    # place.
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
        **(_reading_columns(metric.reading) if metric.reading else {}),
    )


def _reading_columns(reading: Reading) -> dict[str, Any]:
    """Keep the columns of a clock reading, without ends of its interval that are not finite."""
    ends = (end if math.isfinite(end) else None for end in (reading.low, reading.high))
    columns = dict(zip(("reading_low", "reading_high"), ends, strict=True))
    return {
        **columns,
        "repetitions": reading.repetitions,
        "load": reading.load,
        "graph": reading.graph,
    }


def failure_row(job: Mapping[str, Any], status: Status, reason: str) -> Row:
    """The one row of a job that gave no outcome."""
    return Row(
        **job,
        metric="",
        setting="",
        sample=None,
        value=None,
        unit="",
        direction="neutral",
        timing=False,
        status=status.value,
        verdict="",
        reason=reason,
    )


def write_parquet(jobs: Iterable[tuple[Origin, Sequence[Row]]], path: Path) -> None:
    """Write the rows of jobs, each with what made it, whole or not at all.

    The options are nullable structs with a field for every name that occurs in the file:
    `options.sparsity` in SQL.
    """
    import pyarrow as pa

    jobs = list(jobs)
    rows = [row for _, every in jobs for row in every]
    types = schema()
    columns = {
        name: pa.array([getattr(row, name) for row in rows], types.field(name).type)
        for name in _names(Row)
    }
    places = pa.array([place for place, (_, every) in enumerate(jobs) for _ in every], pa.int64())
    for name in _names(Origin):
        values = [getattr(origin, name) for origin, _ in jobs]
        columns[name] = (
            _structs(values) if name in OPTIONS else pa.array(values, pa.string())
        ).take(places)
    write_table(pa.table(columns), path)


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table of rows, whole or not at all; a file that holds the same stays, and with it
    its time of change.
    """
    import filecmp

    import pyarrow.parquet as pq

    temporary = path.with_suffix(".partial")
    pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
    if path.is_file() and filecmp.cmp(temporary, path, shallow=False):
        temporary.unlink()
    else:
        temporary.replace(path)


def _names(kind: type[Row | Origin]) -> list[str]:
    return [each.name for each in fields(kind)]


def read_results(*folders: Path | str) -> pd.DataFrame:
    """The rows of one or more runs as one frame, with a `run` column of folder names in front.

    The columns of options hold a dictionary each, without names that have no value:
    `frame["options"].str["sparsity"]`.

    Raises:
        DamagedResults: a folder has no results, or its file is truncated, has other columns, or is
            not the one that the run wrote.
    """
    import pandas as pd

    if not folders:
        raise ValueError("read_results of no folder")
    frames = []
    # Each run within a share of memory of its own, checked against the digest that it recorded.
    for folder in map(Path, folders):
        path = folder / "results.parquet"
        if not path.is_file():
            raise DamagedResults(
                f"{path}: no results here; `evalsuite run RECIPE.yaml --out {folder}` makes them"
            )
        try:
            with reading(path):
                _check_digest(path)
                frame = _frame(path)
        except OwnError as error:
            raise DamagedResults(str(error)) from error
        frame.insert(0, "run", folder.resolve().name)
        frames.append(frame)
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def sealed(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a record with a checksum of them all, by which a reader sees that none was
    changed since.
    """
    plain = {name: value for name, value in entries.items() if name != CHECKSUM}
    return {
        **plain,
        CHECKSUM: hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest(),
    }


def check_sealed(entries: Mapping[str, Any], path: Path) -> None:
    """Check a record against its own checksum; records of former versions have none.

    Raises:
        DamagedResults: an entry is not the one that was written.
    """
    if CHECKSUM in entries and sealed(entries)[CHECKSUM] != entries[CHECKSUM]:
        raise DamagedResults(
            f"{path}: is not what the run wrote: its entries do not have its checksum; restore it,"
            " or run the recipe again: the journal beside it is whole"
        )


def _check_digest(path: Path) -> None:
    """Hold the rows' file against the digest that its run recorded; without a record there is
    nothing to hold it to.

    A run that goes on writes both, one after the other: what does not fit is looked at once more.

    Raises:
        DamagedResults: the file is not the one that the run wrote, or the record is damaged.
    """
    record = path.with_name("run.json")
    # A run that goes on replaces rows and record one after the other, so that a mismatch may be
    # gone at the next look.
    for attempt in range(_ATTEMPTS):
        if not record.is_file():
            return
        try:
            entries = json.loads(record.read_bytes())
        except ValueError as error:
            raise DamagedResults(f"{record}: not JSON ({error}); run the recipe again") from error
        if not isinstance(entries, dict):
            raise DamagedResults(
                f"{record}: holds {type(entries).__name__}, not an object; run the recipe again"
            )
        check_sealed(entries, record)
        expected = entries.get("results")
        if not expected or (digest := digest_of(path)) == expected:
            return
        time.sleep(_PAUSE * (attempt + 1 < _ATTEMPTS))
    raise DamagedResults(
        f"{path}: is not the file that the run wrote: its SHA-256 begins with {digest[:12]}, and"
        f" run.json says {str(expected)[:12]}; run the recipe again: the journal beside it is whole"
    )


def as_table(frame: pd.DataFrame) -> pa.Table:
    """A frame of `read_results` as it stands in a file: options as structs with a field for
    every name.
    """
    import pyarrow as pa

    types = schema()
    columns = {}
    for name in (each for each in ("run", *_names(Row), *_names(Origin)) if each in frame):
        if name in OPTIONS:
            # A million rows are of a few hundred steps.
            distinct = {id(each): each for each in frame[name]}
            places = {key: place for place, key in enumerate(distinct)}
            taken = pa.array([places[id(each)] for each in frame[name]], pa.int64())
            columns[name] = _structs(list(distinct.values())).take(taken)
        else:
            kind = pa.string() if name == "run" else types.field(name).type
            columns[name] = pa.Array.from_pandas(frame[name], type=kind)
    return pa.table(columns)


def _frame(path: Path) -> pd.DataFrame:
    """The rows of one results.parquet, checked for their columns."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [each.name for each in schema() if each.type == pa.string()]
    # 1. The columns of text and numbers. Texts are read as dictionaries: a million rows have few
    # different ones.
    try:
        stored = pq.read_schema(path).names
        check_size(path, (head := pq.read_metadata(path)).num_rows * head.num_columns)
        # Options have a field for every name of every stage: of a million rows, whole columns would
        # take a gigabyte.
        plain_columns = [name for name in stored if name not in OPTIONS]
        table = pq.read_table(
            path, columns=plain_columns, read_dictionary=texts, page_checksum_verification=True
        )
        # Columns that came later are empty in older files.
        for name in set(_LATER) - set(table.column_names):
            kind = schema().field(name).type
            missing = (
                pa.array([""] * len(table), kind)
                if kind == pa.string()
                else pa.nulls(len(table), kind)
            )
            table = table.append_column(name, missing)
        # 2. Refuse what no run writes, before anything is computed of it.
        _check_rows(table, path)
        names = {*table.column_names, *stored}
        older = [name for name in _names(Origin) if name not in names]
        if older and set(_names(Row)) <= names:
            raise DamagedResults(
                f"{path}: written by an older evalsuite, without {', '.join(older)}; run the recipe"
                " again in this folder, which writes the file anew: what the journal and the cache"
                " still hold is not measured again"
            )
        # 3. Numbers in their declared types; texts and options as objects that equal rows share.
        plain = table.select([each.name for each in schema() if each.name not in texts])
        plain = plain.cast(pa.schema([schema().field(name) for name in plain.column_names]))
        columns: dict[str, Any] = {name: _alike(table[name]) for name in texts}
        file = pq.ParquetFile(path, page_checksum_verification=True)
        options = {
            name: _shared(iter_batch[name] for iter_batch in file.iter_batches(columns=[name]))
            for name in OPTIONS
        }
    except (pa.ArrowException, KeyError, OSError) as error:
        text = str(error).splitlines()[0]
        raise DamagedResults(
            f"{path}: cannot be read ({text}); run the recipe again: the journal beside it is whole"
        ) from error
    numbers = plain.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    columns |= {name: pd.Series(every, dtype=object) for name, every in options.items()}
    columns |= {name: numbers[name] for name in numbers}
    return pd.DataFrame({name: columns[name] for name in (*schema().names, *OPTIONS)})


def _check_rows(table: pa.Table, path: Path) -> None:
    """Raise DamagedResults where a row lacks what every row has, or has a word or a number that
    no run writes.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    words = {
        "status": {each.value for each in Status},
        "direction": {each.value for each in Direction},
        "verdict": {"", *(each.value for each in Verdict)},
    }
    # By Arrow, column by column: a loop over a million rows would take longer than the report.
    wrong = []
    for column in fields(Row):
        if column.name not in table.column_names:
            continue
        values = table[column.name]
        if "None" not in str(column.type) and values.null_count:
            wrong.append(f"{values.null_count} rows without a {column.name}")
        if pa.types.is_floating(values.type) and pc.any(pc.is_inf(values)).as_py():
            wrong.append(f"an infinite {column.name}")
        known = words.get(column.name)
        if known and (
            odd := {str(value) for value in pc.unique(values).to_pylist() if value is not None}
            - known
        ):
            wrong.append(f"the {column.name} {min(odd)[:40]!r}")
    if wrong:
        raise DamagedResults(
            f"{path}: has {', '.join(wrong)}, which no run writes; run the recipe again"
        )


def _alike(texts: pa.ChunkedArray) -> pd.Series[Any]:
    """Texts of which equal ones are one object: a million rows have a few hundred, and would be
    copied with a frame.
    """
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    kind = pa.dictionary(pa.int32(), pa.string())
    parts = [np.array([], dtype=object)]
    for chunk in texts.cast(kind).chunks:
        names = np.array([*chunk.dictionary.to_pylist(), None], dtype=object)
        parts.append(names[chunk.indices.fill_null(len(names) - 1).to_numpy()])
    return pd.Series(np.concatenate(parts), dtype=object)


def _shared(batches: Iterable[pa.Array]) -> list[dict[str, Any]]:
    """Each row's options without names that have no value; equal ones are one dictionary."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    known: dict[str, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for structs in batches:
        # 1. Give each row one number that tells its options: the codes of its fields as digits of
        # a mixed radix. Where the next digit would overflow, numbers in use are counted anew.
        codes, most = np.zeros(len(structs), np.int64), 1  # each code is less than `most`
        for column in structs.flatten() if pa.types.is_struct(structs.type) else []:
            found = pc.dictionary_encode(column, null_encoding="encode")
            values = max(1, len(found.dictionary))
            if most * values > 2**62:
                codes, most = np.unique(codes, return_inverse=True)[1], len(structs)
            codes, most = codes * values + found.indices.to_numpy(), most * values
        # 2. Make a dictionary of one row for each number, and let all rows of that number share
        # it.
        _, first, places = np.unique(codes, return_index=True, return_inverse=True)
        plain = structs.take(pa.array(first)).to_pylist()
        given = [
            {key: value for key, value in (each or {}).items() if value is not None}
            for each in plain
        ]
        # A million rows are of a few hundred steps.
        shared = [known.setdefault(repr(each), each) for each in given]
        rows += [shared[at] for at in places.tolist()]
    return rows
