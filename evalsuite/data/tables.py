"""Tables: CSV, parquet, JSON lines, and Hugging Face data sets saved on disk, by column."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalsuite.contract import IGNORED
from evalsuite.data.parts import part_named
from evalsuite.data.source import Source
from evalsuite.data.targets import Kind
from evalsuite.decimals import MISSING
from evalsuite.plugins import did_you_mean
from netverify.decimals import is_decimal
from opgraph.errors import OwnError
from opgraph.limits import check_size

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")
_SAVED = ("dataset_dict.json", "state.json")  # of Hugging Face's save_to_disk
_TARGETS = ("label", "labels", "target", "targets", "class", "y", "tags", "ner_tags")


@dataclass
class Table:
    """Columns of equal length, each a list or an array of pyarrow's; `lines` are those of the file,
    where it has such.

    `names` are the names of classes that the file itself lists, by column.
    """

    file: Path
    columns: dict[str, Any]
    lines: Sequence[int] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def where(self, index: int) -> str:
        """File and line of a row, for messages."""
        if index < 0:
            return str(self.file)
        return (
            f"{self.file}:{self.lines[index]}" if len(self.lines) else f"{self.file}, row {index}"
        )


def read_tables(source: Source) -> dict[str, Table]:
    """The table, as the training part, or those that a folder holds by name. Raises OwnError where
    there is none, or it cannot be read.
    """
    place = source.place
    # 1. One file is the training part.
    if place.is_file():
        return {"train": _checked(_read(place))}
    # 2. What save_to_disk writes: several splits, or one data set.
    if (place / _SAVED[0]).is_file():
        file = place / _SAVED[0]
        try:
            names = [str(name) for name in json.loads(file.read_text(encoding="utf-8"))["splits"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OwnError(
                f"{file}: is not what save_to_disk writes ({error}); save the data set anew"
            ) from error
        folders = {part_named(name): place / name for name in names if part_named(name)}
        if not folders:
            raise OwnError(
                f"{place}: its splits are {', '.join(names)}; name them train, validation, test"
            )
        return {name: _checked(_saved(folder)) for name, folder in folders.items()}
    if (place / _SAVED[1]).is_file():
        return {"train": _checked(_saved(place))}
    # 3. A folder of files that are named for the parts.
    files = [path for path in sorted(place.iterdir()) if path.suffix.lower() in SUFFIXES]
    parts: dict[str, Path] = {}
    for each in files:
        name = part_named(each.stem)
        if not name or name in parts:
            said = f"is a part that {parts[name].name} is, too" if name else "is no part"
            raise OwnError(
                f"{each}: by its name it {said}; call files train, validation and test, or name one"
                " file"
            )
        parts[name] = each
    return {name: _checked(_read(file)) for name, file in parts.items()}


def is_table(place: Path) -> bool:
    """Whether the path is a table, or a folder of such."""
    if place.is_file():
        return place.suffix.lower() in SUFFIXES
    return any((place / name).is_file() for name in _SAVED) or any(
        path.suffix.lower() in SUFFIXES for path in place.iterdir()
    )


def column(table: Table, name: str) -> list[Any]:
    """A column's values. Raises OwnError where there is no such column."""
    if name not in table.columns:
        raise OwnError(
            f"{table.file}: there is no column {name!r}{did_you_mean(name, table.columns)}"
        )
    values = table.columns[name]
    return values if isinstance(values, list) else list(values.to_pylist())


def is_text(table: Table, name: str) -> bool:
    """Whether the values of a column are texts, encoded by a dictionary or not."""
    kind = getattr(table.columns.get(name), "type", None)
    kind = getattr(kind, "value_type", kind)
    return "string" in str(kind)


def holds_text(table: Table, name: str) -> bool:
    """Whether a column is of texts: in a file without types, of more than spellings of numbers."""
    values = table.columns.get(name)
    if isinstance(values, list):
        return any(isinstance(value, str) and not is_decimal(value.strip()) for value in values)
    return is_text(table, name)


def usual_target(names: Sequence[str], said: str, cure: str) -> str:
    """The column of a usual name for targets; "" where there is none. Raises OwnError where there
    are several: the others would be inputs that tell the target.
    """
    usual = [target for target in _TARGETS if target in names]
    if len(usual) > 1:
        raise OwnError(
            f"{said} has the columns {' and '.join(map(repr, usual))}, any of which may be the"
            f" target; name it as {cure}, and leave out what tells it"
        )
    return usual[0] if usual else ""


def target_columns(table: Table, source: Source) -> tuple[str, ...]:
    """The columns of the targets: those that the source names, else one of a usual name."""
    usual = next((target for target in _TARGETS if target in table.columns), "")
    return source.target or ((usual,) if usual else ())


def class_names(table: Table, source: Source, kind: Kind) -> tuple[str, ...]:
    """The names of the targets' classes, where the table lists them; of several columns of
    labels the columns' own.
    """
    if kind == "labels" and len(source.target) > 1:
        return source.target
    return next(
        (
            table.names[target_column]
            for target_column in target_columns(table, source)
            if target_column in table.names
        ),
        (),
    )


def targets_in(table: Table, source: Source, kind: Kind = "classes") -> list[Any] | None:
    """The targets of each row, a list where there are several columns; None where there are none
    and need not be. Raises OwnError where there is no such column.
    """
    names = source.target if kind == "vectors" else target_columns(table, source)
    if not names:
        if kind == "vectors":
            return None
        few = [*list(table.columns)[:20], *(["..."] if len(table.columns) > 20 else [])]
        raise OwnError(
            f"{table.file}: no target column; name one with `data.target` (there are"
            f" {', '.join(few)})"
        )
    columns = [column(table, name) for name in names]
    if kind == "labels" and len(names) > 1:
        columns = [
            _zeros_and_ones(table, name, cells) for name, cells in zip(names, columns, strict=True)
        ]
    return columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns, strict=True)]


_ABSENT, _PRESENT = ("false", "f"), ("true", "t")  # as pandas, R and SQL write truth values


def _zeros_and_ones(table: Table, name: str, values: list[Any]) -> list[int]:
    """A column that tells for each row whether a label is there, as 0, 1 and what counts nowhere.
    Raises OwnError for other values, which would be names of labels.
    """
    numbers = []
    for index, value in enumerate(values):
        text = str(value).strip().lower()
        number = float(text) if is_decimal(text) else None
        if text in (*_ABSENT, *_PRESENT):
            numbers.append(int(text in _PRESENT))
        elif number in (0, 1, IGNORED):
            numbers.append(int(number or 0))
        else:
            where, missing = table.where(index), text in MISSING
            held = "is empty" if missing else f"holds {value!r}"
            cure = "a column of a label holds 0 and 1, or true and false"
            raise OwnError(f"{where}: column {name!r} {held}; {cure}")
    return numbers


def read_csv(file: Path) -> Table:
    """A table of texts, its first line the columns' names; separated by commas, semicolons or tabs.
    Raises OwnError where it is not UTF-8, or a line has another number of fields.
    """
    # 1. The separator is whichever the head has most of; every line has as many fields as the
    # head.
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            head = opened.readline()
            opened.seek(0)
            reader = csv.reader(opened, delimiter=max(",;\t", key=head.count), strict=True)
            names = [name.strip() for name in next(reader, [])]
            rows, lines = [], []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(names):
                    said = f"{len(row)} fields, but the head has {len(names)}"
                    raise OwnError(
                        f"{file}:{reader.line_num}: {said}; quote what contains a separator"
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except UnicodeDecodeError as error:
        raise not_text(file, error) from error
    except csv.Error as error:
        raise OwnError(
            f"{file}:{reader.line_num}: {error}; quote what contains a separator"
        ) from error
    # 2. The head: names, of which each is there once. A line of numbers is no head, but a sample.
    if names and all(map(is_decimal, names)):
        raise OwnError(
            f"{file}:1: has no head, its first line is of numbers; put the columns' names there"
        )
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise OwnError(f"{file}:1: two columns are called {twice!r}; give each a name of its own")
    columns = [list(cells) for cells in zip(*rows, strict=True)] or [[] for _ in names]
    return Table(file, dict(zip(names, columns, strict=True)), lines)


def not_text(file: Path, error: UnicodeDecodeError) -> OwnError:
    """The error of a file that is not UTF-8, with the line."""
    where = str(file)
    with file.open("rb") as opened:
        for line, content in enumerate(opened, 1):
            try:
                content.decode("utf-8")
            except UnicodeDecodeError as found:
                where, error = f"{file}:{line}", found
                break
    return OwnError(
        f"{where}: is not UTF-8 text (byte 0x{error.object[error.start]:02x}); save it as UTF-8"
    )


def _read(file: Path) -> Table:
    kind = file.suffix.lower()
    if kind in (".csv", ".tsv"):
        return read_csv(file)
    return _parquet(file) if kind == ".parquet" else _json_lines(file)


def _json_lines(file: Path) -> Table:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    try:
        with file.open(encoding="utf-8-sig") as opened:
            for number, line in enumerate(opened, 1):
                if line.strip():
                    rows.append(_json(line, f"{file}:{number}"))
                    lines.append(number)
    except UnicodeDecodeError as error:
        raise not_text(file, error) from error
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Table(file, {name: [row.get(name) for row in rows] for name in names}, lines)


class _TwiceError(Exception):
    """Raised where a name stands twice in one object; Python would take the last."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _TwiceError(
            next(name for name, count in Counter(k for k, _ in pairs).items() if count > 1)
        )
    return members


def _json(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line, object_pairs_hook=_once)
    except _TwiceError as error:
        raise OwnError(
            f"{where}: two values are called {error.args[0]!r}; give each a name"
        ) from error
    except (ValueError, RecursionError) as error:
        raise OwnError(f"{where}: is not JSON ({error}); write one object a line") from error
    if not isinstance(value, dict):
        raise OwnError(
            f'{where}: is a {type(value).__name__}, no object; write {{"text": ..., "label": ...}}'
        )
    return value


def _parquet(file: Path) -> Table:
    import pyarrow
    from pyarrow import parquet

    try:
        check_size(file, *_promised(parquet.read_metadata(file)))
        table = parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        said = " ".join(str(error).split())[:200]
        raise OwnError(f"{file}: cannot be read as parquet ({said}); write it anew") from error
    return _of_arrow(file, table, _features(table.schema.metadata))


def _promised(metadata: Any) -> tuple[int, str]:
    """The bytes that a parquet file unpacks to by its own words, a byte a value at least; and
    what it is.
    """
    groups = (metadata.row_group(place) for place in range(metadata.num_row_groups))
    values = metadata.num_rows * metadata.num_columns
    return (
        max(values, sum(group.total_byte_size for group in groups)),
        f"a table of {values:,} values",
    )


def _features(metadata: Mapping[bytes, bytes] | None) -> Any:
    """The features that Hugging Face's library describes in a file's metadata; none of what has
    another form.
    """
    try:
        return json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}


def _saved(folder: Path) -> Table:
    """A data set of Hugging Face's `save_to_disk`: arrow files, in the order that state.json
    gives.
    """
    import pyarrow

    # 1. The files and their order, as the data set's own description gives them.
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        described = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
        files = [folder / entry["filename"] for entry in state["_data_files"]]
        if state.get("_indices_data_files"):
            raise OwnError(
                f"{folder}: holds a selection of rows; save it anew after .flatten_indices()"
            )
        # 2. Mapped into memory, so that no copy of the files is made.
        tables = [
            pyarrow.ipc.open_stream(pyarrow.memory_map(str(file))).read_all() for file in files
        ]
    except OwnError:
        raise
    except (
        pyarrow.ArrowException,
        OSError,
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
    ) as error:
        cure = "save it anew with save_to_disk"
        raise OwnError(
            f"{folder}: cannot be read as a saved data set ({type(error).__name__}: {error});"
            f" {cure}"
        ) from error
    if not tables:
        raise OwnError(f"{folder}: the data set is empty; give it samples")
    whole = pyarrow.concat_tables(tables)
    return _of_arrow(
        folder, whole, described.get("features") if isinstance(described, dict) else {}
    )


def _of_arrow(file: Path, table: Any, features: Any) -> Table:
    features = features if isinstance(features, Mapping) else {}
    twice = next((name for name, count in Counter(table.column_names).items() if count > 1), None)
    if twice is not None:
        raise OwnError(f"{file}: two columns are called {twice!r}; give each a name of its own")
    names = {
        name: tuple(names_of_classes)
        for name, feature in features.items()
        if (names_of_classes := _class_names(feature))
    }
    columns = {name: table.column(name) for name in table.column_names}
    return Table(file, columns, names={**_categories(table), **names})


def _categories(table: Any) -> dict[str, tuple[str, ...]]:
    """The names of categories that a file lists on purpose, in their order: of ordered ones, and
    of pandas'.

    Whatever else is encoded by a dictionary has it in the order in which names appear.
    """
    # 1. What pandas wrote as categorical.
    try:
        described = json.loads((table.schema.metadata or {})[b"pandas"])["columns"]
        pandas = {column["name"] for column in described if column["pandas_type"] == "categorical"}
    except (KeyError, TypeError, ValueError, RecursionError):
        pandas = set()
    listed = {}
    for name in table.column_names:
        column, kind = table.column(name), table.schema.field(name).type
        # 2. Of it, and of ordered dictionaries, those that all chunks share.
        if (
            not hasattr(kind, "ordered")
            or not (kind.ordered or name in pandas)
            or not column.num_chunks
        ):
            continue
        dictionaries = {tuple(chunk.dictionary.to_pylist()) for chunk in column.chunks}
        texts = [value for values in dictionaries for value in values]
        if len(dictionaries) == 1 and texts and all(isinstance(value, str) for value in texts):
            listed[name] = tuple(texts)
    return listed


def _class_names(feature: Any) -> list[str]:
    """The class names of a Hugging Face feature, a ClassLabel or a sequence of such; empty for
    others.
    """
    if isinstance(feature, list) and feature:
        feature = feature[0]
    if not isinstance(feature, dict):
        return []
    inner = feature.get("feature")
    if feature.get("_type") != "ClassLabel":
        return _class_names(inner)
    names = feature.get("names")
    return [str(name) for name in names] if isinstance(names, list) else []


def _checked(table: Table) -> Table:
    if not table.columns or not len(table):
        raise OwnError(f"{table.file}: is empty; give it samples")
    return table
