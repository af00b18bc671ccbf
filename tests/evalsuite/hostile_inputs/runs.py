"""Results and records that no run writes, and statements."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from hostile_inputs import sound
from hostile_inputs.cases import ODD, Case, mutations, writing

READERS: dict[str, tuple[str, ...]] = {
    "query": ("query", "SELECT count(*), max(value) FROM rows", "run"),
    "compare": ("compare", "run", "run", "--out", "out"),
    "merge": ("merge", "out", "run", "run"),
    "index": ("index", "run"),
    "report": ("report", "run"),
}


def runs() -> Iterator[Case]:
    """Results whose columns hold what no run writes."""
    results, record = sound.run()
    table = pq.read_table(io.BytesIO(results))
    readers = list(READERS)

    def case(name: str, content: bytes, command: str) -> Case:
        files = {"run_of_results__parquet": content, "run_of_run__json": json.dumps(record)}
        return Case(f"{command}: {name}", READERS[command], writing(**files))

    for place, name in enumerate(table.column_names):
        for number, odd in enumerate(_odd_columns(table[name])):
            changed = table.set_column(place, name, odd)
            yield case(f"{name} {number}", sound.as_parquet(changed), readers[(place + number) % 4])
        yield case(
            f"without {name}", sound.as_parquet(table.drop_columns([name])), readers[place % 4]
        )
    for number, damaged in enumerate(mutations(results, 36, 10)):
        yield case(f"damaged {number}", damaged, readers[number % 4])
    for name, content in (
        ("no rows", sound.as_parquet(table.slice(0, 0))),
        ("empty", b""),
        ("twice", sound.as_parquet(pa.concat_tables([table, table]))),
    ):
        for command in readers:
            yield case(name, content, command)


STATEMENTS = (
    "",
    "SELECT",
    "COPY rows TO 'leak.csv'",
    "ATTACH 'leak.db'",
    "SELECT 1; SELECT 2",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM 'run/results.parquet'",
    "SELECT " + "[" * 200 + "]" * 200,
    "SELECT '\x1b[2J' FROM rows",
    "SELECT getenv('HOME')",
    "SELECT error('a')",
    "SELECT 1 // 0, 'inf'::DOUBLE, NULL, 10::HUGEINT ** 38",
)


def statements() -> Iterator[Case]:
    results, _ = sound.run()
    for number, statement in enumerate(STATEMENTS):
        yield Case(
            f"statement {number}",
            ("query", statement, "run"),
            writing(run_of_results__parquet=results),
        )


def _odd_columns(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    count = len(column)
    yield pa.nulls(count, column.type)
    yield pa.nulls(count)
    yield pa.array([[1]] * count)
    if pa.types.is_floating(column.type):
        yield pa.array([float("inf")] * count)
        yield pa.array([float("nan")] * count)
    elif pa.types.is_integer(column.type):
        yield pa.array([-(2**63)] * count)
    elif pa.types.is_string(column.type):
        yield pa.array(["\x1b]0;a\x07" + "a" * 5000] * count)
        yield pa.array([""] * count)
        yield pa.array(["../../out"] * count)
        yield pa.array([1] * count)


def records() -> Iterator[Case]:
    """Records with other words than a run writes, and journals."""
    results, record = sound.run()
    readers = list(READERS)
    place = 0
    for key in (
        *record,
        "recipe_text",
        "steps",
        "data",
        "machine",
        "versions",
        "finished",
        "checksum",
        "results",
    ):
        for number, value in enumerate(ODD):
            place += 1
            text = json.dumps({**record, key: value})
            files = {
                "run_of_results__parquet": results,
                "run_of_run__json": text,
                "run_of_journal__jsonl": text,
            }
            yield Case(f"record {key} {number}", READERS[readers[place % 4]], writing(**files))
    for number, text in enumerate(("", "[" * 100_000, "null", "[]", "{", "9" * 10_000, "\x00")):
        for command in readers:
            files = {"run_of_results__parquet": results, "run_of_run__json": text}
            yield Case(f"{command} record {number}", READERS[command], writing(**files))
