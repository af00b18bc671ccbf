"""Tables, texts, images and saved data sets: damaged, and with odd values."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from hostile_inputs import sound
from hostile_inputs.cases import ODD, Case, init, mutations, writing


def damaged() -> Iterator[Case]:
    whole = {
        "npz": sound.npz(),
        "csv": sound.csv(),
        "tsv": sound.csv("\t"),
        "jsonl": sound.jsonl(),
        "parquet": sound.parquet(),
        "txt": sound.csv(),
    }
    for seed, (kind, content) in enumerate(whole.items()):
        for number, damaged in enumerate(mutations(content, 24, seed)):
            yield Case(
                f"damaged {kind} {number}", init(f"d.{kind}"), writing(**{f"d__{kind}": damaged})
            )
    for form in ("png", "jpeg", "gif", "bmp", "webp", "tiff"):
        for number, damaged in enumerate(mutations(sound.image(form), 6, 7)):
            files = {
                f"d_of_{label}_of_{place}__{form}": sound.image(form)
                for label in "abc"
                for place in range(5)
            }
            files[f"d_of_a_of_0__{form}"] = damaged
            yield Case(f"damaged image {form} {number}", init("d"), writing(**files))


def values() -> Iterator[Case]:
    """Odd values of targets and inputs, in one row and in all."""
    for number, value in enumerate(ODD):
        for name in ("label", "c1"):
            for whole in (False, True):
                rows = [
                    {**row, name: value} if whole or place == 7 else row
                    for place, row in enumerate(sound.rows())
                ]
                text = "\n".join(map(json.dumps, rows))
                case = f"{name} {'each' if whole else 'one'} {number}"
                yield Case(f"jsonl {case}", init("d.jsonl"), writing(d__jsonl=text))
                try:
                    content = sound.as_parquet(pa.Table.from_pylist(rows))
                except (pa.ArrowException, OverflowError, UnicodeError, TypeError):
                    continue
                yield Case(f"parquet {case}", init("d.parquet"), writing(d__parquet=content))
    for number, value in enumerate(ODD):
        for shape in (
            value,
            {"info": value},
            {"info": {"features": value}},
            {"info": {"features": {"label": value}}},
        ):
            content = sound.parquet(json.dumps(shape).encode())
            yield Case(
                f"features {number} {str(shape)[:30]}",
                init("d.parquet"),
                writing(d__parquet=content),
            )
    deep = "[" * 100_000
    yield Case(
        "features deep",
        init("d.parquet"),
        writing(d__parquet=sound.parquet(b'{"a":' + deep.encode())),
    )
    yield Case("jsonl deep", init("d.jsonl"), writing(d__jsonl=deep))
    yield Case(
        "jsonl deep in a row",
        init("d.jsonl"),
        writing(d__jsonl=f'{{"c1": {deep}{"]" * 100_000}, "label": 1}}'),
    )
    yield Case(
        "jsonl digits", init("d.jsonl"), writing(d__jsonl=f'{{"c1": {"9" * 100_000}, "label": 1}}')
    )


def saved() -> Iterator[Case]:
    """Data sets as `save_to_disk` leaves them, with other words in their JSON files."""
    stream = io.BytesIO()
    table = pa.Table.from_pylist(sound.rows())
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    arrow = stream.getvalue()
    state: dict[str, Any] = {"_data_files": [{"filename": "a.arrow"}]}
    info: dict[str, Any] = {
        "features": {"label": {"_type": "ClassLabel", "names": ["a", "b", "c"]}}
    }

    def case(name: str, state: Any, info: Any, arrow: bytes = arrow) -> Case:
        files = {"d_of_state__json": json.dumps(state), "d_of_dataset_info__json": json.dumps(info)}
        return Case(name, init("d"), writing(**files, d_of_a__arrow=arrow))

    for number, value in enumerate(ODD):
        yield case(f"state {number}", value, info)
        yield case(f"files {number}", {"_data_files": value}, info)
        yield case(f"file {number}", {"_data_files": [value]}, info)
        yield case(f"file name {number}", {"_data_files": [{"filename": value}]}, info)
        yield case(f"info {number}", state, value)
        yield case(f"info features {number}", state, {"features": value})
        yield case(
            f"names {number}",
            state,
            {"features": {"label": {"_type": "ClassLabel", "names": value}}},
        )
        splits = json.dumps({"splits": value})
        yield Case(f"splits {number}", init("d"), writing(d_of_dataset_dict__json=splits))
    for number, damaged in enumerate(mutations(arrow, 18, 11)):
        yield case(f"arrow {number}", state, info, damaged)
