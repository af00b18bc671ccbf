"""What takes more than it may: a small file, or a statement, that stands for much."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from functools import cache, partial

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import helper

from hostile_inputs import sound
from hostile_inputs.cases import WEIGHTS, Case, Content, init, verify, writing
from hostile_inputs.runs import READERS

ENDLESS = (
    "SELECT repeat('a', 3000000000) FROM rows",
    "SELECT repeat('a', 300000000) AS a, count(*) FROM rows GROUP BY a",
    "SELECT * FROM rows a, rows b, rows c, rows d",
    "SELECT range(1000000000)",
    "SELECT list(range) FROM range(100000000)",
    "SELECT " + "(" * 20_000,
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT * FROM t",
)

_RECIPE = """
name: bomb
workloads:
  - {use: own, name: net, data: b.parquet, model: "net.py:net", start: scratch,
     epochs: 1, learning_rate: 0.01}
variants: [gelu]
seeds: [0]
steps: [accuracy]
"""


def bombs() -> Iterator[Case]:
    node, files = (
        helper.make_node,
        {"n__onnx": sound.onnx_file(), "p__vnnlib": sound.PROPERTY, "d__npz": sound.npz()},
    )

    def alone(name: str, words: Iterable[str], **more: Content) -> Case:
        return Case(f"bomb: {name}", tuple(words), writing(**{**files, **more}), alone=True)

    yield alone("packed network", verify("n.onnx.gz"), n__onnx__gz=_packed)
    yield alone("packed property", verify("n.onnx", "p.vnnlib.gz"), p__vnnlib__gz=_packed)
    yield alone("array", init("b.npz"), b__npz=lambda: _archive(3 << 29))
    yield alone("array whose size is a lie", init("b.npz"), b__npz=lambda: _archive(3 << 29, 960))
    yield alone("weights", (*WEIGHTS, "w.pt"), w__pt=lambda: _archive(3 << 29))
    yield alone("table", init("b.parquet"), b__parquet=_long_table)
    for command in ("run", "tune"):
        words = (command, "r.yaml", "--out", "out", "--cache", "cache")
        yield alone(f"table, {command}", words, b__parquet=_long_table, r__yaml=_RECIPE)
    record = json.dumps(sound.run()[1])
    yield alone(
        "results", READERS["query"], run_of_results__parquet=_long_results, run_of_run__json=record
    )
    for side in (20_000, 60_000):
        image = partial(_flat_image, side)
        pictures = {f"d_of_{label}_of_{place}__png": image for label in "ab" for place in range(2)}
        yield alone(f"image {side}", init("d"), **pictures)
    sizes = onnx.numpy_helper.from_array(np.array([1 << 28, 4]), "c")
    nodes = [node("Expand", ["x", "c"], ["h"]), node("ReduceSum", ["h"], ["y"])]
    total = node("ReduceSum", ["h"], ["s"], keepdims=0)
    filled = [node("ConstantOfShape", ["c"], ["h"]), total, node("Add", ["x", "s"], ["y"])]
    for name, model in (
        ("expanded", sound.onnx_model(nodes, [sizes])),
        ("filled", sound.onnx_model(filled, [sizes])),
    ):
        content = model.SerializeToString()
        yield alone(f"{name} network", verify("n.onnx"), n__onnx=content)
        for command in ("init", "check"):
            words = (command, "n.onnx", "--stages", "accuracy", "--data", "d.npz")
            yield alone(f"{name} model, {command}", words, n__onnx=content)
    yield alone("columns", init("b.csv"), b__csv=_wide)
    yield alone("columns of one name", init("b.csv"), b__csv="c," * 10**6 + "label\n")
    yield alone("lines", init("b.csv"), b__csv=lambda: b"a,label\n" + b"\n" * 10**7)
    results, _ = sound.run()
    for number, statement in enumerate(ENDLESS):
        words = ("query", statement, "run", "--format", ("text", "csv", "json")[number % 3])
        yield alone(f"statement {number}", words, run_of_results__parquet=results)
    yield alone("text", init("b.txt", "--task", "language-model"), b__txt=lambda: b"a" * 10**7)


def _wide() -> bytes:
    """A table of 100,000 columns."""
    head = ",".join(f"c{i}" for i in range(100_000)) + ",label\n"
    lines = (
        ",".join(str((place * i) % 7) for i in range(100_000)) + f",{place % 3}\n"
        for place in range(12)
    )
    return (head + "".join(lines)).encode()


@cache
def _long_table() -> bytes:
    column = pa.array(np.zeros(1 << 27)).dictionary_encode()
    return sound.as_parquet(pa.table({f"c{i}": column for i in range(4)} | {"label": column}))


def _long_results() -> bytes:
    row = pq.read_table(io.BytesIO(sound.run()[0])).slice(0, 1)
    many = pa.concat_tables([row] * (1 << 12)).combine_chunks()
    return sound.as_parquet(pa.concat_tables([many] * 5000))


@cache
def _packed() -> bytes:
    """Three GiB of zeros, in members of 16 MiB."""
    return gzip.compress(bytes(1 << 24), 9) * (3 << 6)


@cache
def _archive(size: int, stated: int = 0) -> bytes:
    """An array of so many bytes of zeros in a zip archive, whose directory may say that it has
    `stated`.
    """
    head = (
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size // 16}, 4), }}".encode().ljust(
            117
        )
        + b"\n"
    )
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
            for _ in range(size >> 24):
                file.write(bytes(1 << 24))
        archive.writestr("y.npy", sound.zipped("y.npy"))
        if stated:
            archive.infolist()[0].file_size = stated
    return stream.getvalue()


@cache
def _flat_image(side: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    packer = zlib.compressobj(1)
    line = bytes(1 + side // 8)
    pixels = b"".join([*(packer.compress(line) for _ in range(side)), packer.flush()])
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )
