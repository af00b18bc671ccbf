"""What is sound, before it is damaged."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from onnx import TensorProto, helper
from report_workshop import sample_rows, write_run
from torch import nn


@cache
def rows() -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [
        {**{f"c{i}": round(draw.random(), 4) for i in range(4)}, "label": place % 3}
        for place in range(60)
    ]


@cache
def npz() -> bytes:
    stream = io.BytesIO()
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("f4")
    np.savez(stream, x=x, y=np.arange(60) % 3)
    return stream.getvalue()


def zipped(name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(npz())) as archive:
        return archive.read(name)


@cache
def csv(separator: str = ",") -> bytes:
    head = separator.join(rows()[0])
    return "\n".join([head, *(separator.join(map(str, row.values())) for row in rows())]).encode()


@cache
def jsonl() -> bytes:
    return "\n".join(map(json.dumps, rows())).encode()


@cache
def parquet(metadata: bytes = b"") -> bytes:
    table = pa.Table.from_pylist(rows())
    if metadata:
        table = table.replace_schema_metadata({b"huggingface": metadata})
    return as_parquet(table)


def as_parquet(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


@cache
def image(form: str, size: int = 8) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3)).astype("u1")
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


@cache
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))


@cache
def state(kind: str) -> bytes:
    from safetensors.torch import save

    state = network().state_dict()
    if kind == "safetensors":
        return save(state)
    stream = io.BytesIO()
    torch.save(state, stream, _use_new_zipfile_serialization=kind == "pt")
    return stream.getvalue()


def onnx_model(
    nodes: Sequence[onnx.NodeProto], constants: Sequence[onnx.TensorProto] = (), **more: Any
) -> onnx.ModelProto:
    given, made = more.get("given", [1, 4]), more.get("made", [1, 3])
    ends = [
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, made)],
    ]
    graph = helper.make_graph(list(nodes), "hostile", *ends, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)


@cache
def onnx_file() -> bytes:
    numbers = np.random.default_rng(0).normal(size=(8, 4)).astype("f4"), np.ones((3, 8), "f4")
    constants = [
        onnx.numpy_helper.from_array(each, name) for each, name in zip(numbers, "ab", strict=True)
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "a"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "b"], ["y"], transB=1),
    ]
    return bytes(onnx_model(nodes, constants).SerializeToString())


_NAMES = [*(f"X_{i}" for i in range(4)), *(f"Y_{i}" for i in range(3))]
DECLARED = "".join(f"(declare-const {name} Real)\n" for name in _NAMES)
BOX = "".join(f"(assert (>= X_{i} -0.1))\n(assert (<= X_{i} 0.1))\n" for i in range(4))
PROPERTY = f"{DECLARED}{BOX}(assert (<= Y_0 Y_1))\n"


@cache
def proof() -> bytes:
    """A proof of the network, as `verify --proof` writes it; it says that an output stays below
    a million.
    """
    from netverify.cascade import verify

    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "n.onnx").write_bytes(onnx_file())
        (folder / "p.vnnlib").write_text(f"{DECLARED}{BOX}(assert (>= Y_0 (+ Y_1 1000.0)))\n")
        verification = verify(folder / "n.onnx", folder / "p.vnnlib", engine="exact", timeout=60)
        verification.write(folder / "proof.json")
        return (folder / "proof.json").read_bytes()


@cache
def run() -> tuple[bytes, dict[str, Any]]:
    """The results of a small run, and its record."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_run(folder, [row for row in sample_rows() if row.step in ("train", "accuracy")])
        record = {
            "name": "demo",
            "baseline": "gelu",
            "workloads": ["digits-mlp", "digits-cnn"],
            "seeds": [0, 1, 2],
        }
        known = folder / "run.json"
        return (folder / "results.parquet").read_bytes(), json.loads(
            known.read_text()
        ) if known.exists() else record
