"""Hostile inputs for every command: files that are damaged, that promise too much, or that nobody would write.

A case is a command line and what writes its files. The same cases are made each time. Every file that could run code
names `PAYLOAD`, which no case may leave behind.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from onnx import TensorProto, helper
from report_workshop import sample_rows, write_run
from ruamel.yaml import YAML
from torch import nn

PAYLOAD = "code-has-run"
Write = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """A command line in a folder that `write` fills. `alone`: it needs a process that is watched."""

    name: str
    words: tuple[str, ...]
    write: Write
    alone: bool = False


def every_case() -> list[Case]:
    """All cases, in the order of their families."""
    families = (
        _damaged,
        _values,
        _heads,
        _saved,
        _no_files,
        _settings,
        _weights,
        _models,
        _networks,
        _properties,
        _proofs,
        _runs,
        _records,
        _documents,
        _bombs,
    )
    return [case for family in families for case in family()]


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0.5,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\x1b[2J\x07",
    "\ud800",
    "a" * 5000,
    [],
    [1, 2],
    [[]],
    [None],
    {},
    {"a": 1},
    {"a": {"b": []}},
    "../../etc/passwd",
    "1e999999999",
)
NET = """import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
"""
_INIT = ("init", "net.py:net", "--quick", "--stages", "accuracy", "--data")
_WEIGHTS = ("init", "net.py:net", "--quick", "--stages", "accuracy", "--data", "d.npz", "--weights")


def _init(file: str, *more: str) -> tuple[str, ...]:
    return (*_INIT, file, *more)


# --- what is sound, before it is damaged ---


@cache
def _rows() -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [{**{f"c{i}": round(draw.random(), 4) for i in range(4)}, "label": place % 3} for place in range(60)]


@cache
def _npz() -> bytes:
    stream = io.BytesIO()
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("f4")
    np.savez(stream, x=x, y=np.arange(60) % 3)
    return stream.getvalue()


@cache
def _csv(separator: str = ",") -> bytes:
    head = separator.join(_rows()[0])
    return "\n".join([head, *(separator.join(map(str, row.values())) for row in _rows())]).encode()


@cache
def _jsonl() -> bytes:
    return "\n".join(map(json.dumps, _rows())).encode()


@cache
def _parquet(metadata: bytes = b"") -> bytes:
    table = pa.Table.from_pylist(_rows())
    if metadata:
        table = table.replace_schema_metadata({b"huggingface": metadata})
    return _as_parquet(table)


def _as_parquet(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


@cache
def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))


@cache
def _state(kind: str) -> bytes:
    from safetensors.torch import save

    state = _network().state_dict()
    if kind == "safetensors":
        return save(state)
    stream = io.BytesIO()
    torch.save(state, stream, _use_new_zipfile_serialization=kind == "pt")
    return stream.getvalue()


def _model(nodes: Sequence[onnx.NodeProto], constants: Sequence[onnx.TensorProto] = (), **more: Any) -> onnx.ModelProto:
    given, made = more.get("given", [1, 4]), more.get("made", [1, 3])
    ends = [
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, made)],
    ]
    graph = helper.make_graph(list(nodes), "hostile", *ends, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)


@cache
def _onnx() -> bytes:
    numbers = np.random.default_rng(0).normal(size=(8, 4)).astype("f4"), np.ones((3, 8), "f4")
    constants = [onnx.numpy_helper.from_array(each, name) for each, name in zip(numbers, "ab", strict=True)]
    nodes = [
        helper.make_node("Gemm", ["x", "a"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "b"], ["y"], transB=1),
    ]
    return bytes(_model(nodes, constants).SerializeToString())


_DECLARED = "".join(f"(declare-const X_{i} Real)\n" for i in range(4)) + "".join(
    f"(declare-const Y_{i} Real)\n" for i in range(3)
)
_BOX = "".join(f"(assert (>= X_{i} -0.1))\n(assert (<= X_{i} 0.1))\n" for i in range(4))
_PROPERTY = f"{_DECLARED}{_BOX}(assert (<= Y_0 Y_1))\n"


@cache
def _proof() -> bytes:
    """A proof of the network, as `verify --proof` writes it; it says that an output stays below a million."""
    from evalsuite.verification.cascade import verify

    with _temporary() as folder:
        (folder / "n.onnx").write_bytes(_onnx())
        (folder / "p.vnnlib").write_text(f"{_DECLARED}{_BOX}(assert (>= Y_0 (+ Y_1 1000.0)))\n")
        verification = verify(folder / "n.onnx", folder / "p.vnnlib", engine="exact", timeout=60)
        verification.write(folder / "proof.json")
        return (folder / "proof.json").read_bytes()


def _temporary() -> Any:
    from contextlib import contextmanager
    from tempfile import TemporaryDirectory

    @contextmanager
    def folder() -> Iterator[Path]:
        with TemporaryDirectory() as name:
            yield Path(name)

    return folder()


@cache
def _run() -> tuple[bytes, dict[str, Any]]:
    """The results of a small run, and its record."""
    with _temporary() as folder:
        write_run(folder, [row for row in sample_rows() if row.step in ("train", "accuracy")])
        record = {"name": "demo", "baseline": "gelu", "workloads": ["digits-mlp", "digits-cnn"], "seeds": [0, 1, 2]}
        known = folder / "run.json"
        return (folder / "results.parquet").read_bytes(), json.loads(known.read_text()) if known.exists() else record


# --- ways to damage ---


def _mutations(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Cut short, with other bits or bytes, with a part twice, out of order, or with more behind."""
    draw = random.Random(seed)
    for number in range(count):
        changed = bytearray(content)
        place, other = sorted((draw.randrange(len(content)), draw.randrange(len(content))))
        kind = number % 6
        if kind == 0:
            changed = changed[:place]
        elif kind == 1:
            for _ in range(1 + number // 6):
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        elif kind == 2:
            changed[place : place + 8] = draw.choice((b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, draw.randbytes(8)))
        elif kind == 3:
            changed[place:place] = changed[place:other]
        elif kind == 4:
            changed = changed[other:] + changed[place:other] + changed[:place]
        else:
            changed += draw.randbytes(100)
        yield bytes(changed)


Content = bytes | str | Callable[[], bytes]


def _bytes(**files: Content) -> Write:
    """Write these files, or what a function gives; in names `__` stands for a dot, `_of_` for a slash."""

    def write(folder: Path) -> None:
        (folder / "net.py").write_text(NET)
        for name, content in files.items():
            path = folder / name.replace("_of_", "/").replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            content = content() if callable(content) else content
            path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))

    return write


class Payload:
    """Unpickled, it writes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {PAYLOAD}",)


# --- families ---


def _damaged() -> Iterator[Case]:
    sound = {
        "npz": _npz(),
        "csv": _csv(),
        "tsv": _csv("\t"),
        "jsonl": _jsonl(),
        "parquet": _parquet(),
        "txt": _csv(),
    }
    for seed, (kind, content) in enumerate(sound.items()):
        for number, damaged in enumerate(_mutations(content, 24, seed)):
            yield Case(f"damaged {kind} {number}", _init(f"d.{kind}"), _bytes(**{f"d__{kind}": damaged}))
    for form in ("png", "jpeg", "gif", "bmp", "webp", "tiff"):
        for number, damaged in enumerate(_mutations(_image(form), 6, 7)):
            files = {f"d_of_{label}_of_{place}__{form}": _image(form) for label in "abc" for place in range(5)}
            files[f"d_of_a_of_0__{form}"] = damaged
            yield Case(f"damaged image {form} {number}", _init("d"), _bytes(**files))


@cache
def _image(form: str, size: int = 8) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3)).astype("u1")
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def _values() -> Iterator[Case]:
    """Odd values of targets and inputs, in one row and in all."""
    for number, value in enumerate(ODD):
        for name in ("label", "c1"):
            for whole in (False, True):
                rows = [{**row, name: value} if whole or place == 7 else row for place, row in enumerate(_rows())]
                text = "\n".join(map(json.dumps, rows))
                case = f"{name} {'each' if whole else 'one'} {number}"
                yield Case(f"jsonl {case}", _init("d.jsonl"), _bytes(d__jsonl=text))
                try:
                    content = _as_parquet(pa.Table.from_pylist(rows))
                except (pa.ArrowException, OverflowError, UnicodeError, TypeError):
                    continue
                yield Case(f"parquet {case}", _init("d.parquet"), _bytes(d__parquet=content))
    for number, value in enumerate(ODD):
        for shape in (value, {"info": value}, {"info": {"features": value}}, {"info": {"features": {"label": value}}}):
            content = _parquet(json.dumps(shape).encode())
            yield Case(f"features {number} {str(shape)[:30]}", _init("d.parquet"), _bytes(d__parquet=content))
    deep = "[" * 100_000
    yield Case("features deep", _init("d.parquet"), _bytes(d__parquet=_parquet(b'{"a":' + deep.encode())))
    yield Case("jsonl deep", _init("d.jsonl"), _bytes(d__jsonl=deep))
    yield Case("jsonl deep in a row", _init("d.jsonl"), _bytes(d__jsonl=f'{{"c1": {deep}{"]" * 100_000}, "label": 1}}'))
    yield Case("jsonl digits", _init("d.jsonl"), _bytes(d__jsonl=f'{{"c1": {"9" * 100_000}, "label": 1}}'))


def _heads() -> Iterator[Case]:
    shapes: tuple[Any, ...] = ((1 << 40, 4), (1 << 62,), (-1, 4), (0, 4), (60,), (), (60, 0), (60, 4, 1 << 30), ("a",))
    kinds: tuple[Any, ...] = ("<f4", ">f8", "<i8", "|O", "<U4", "|S3", "<M8[s]", "<c8", "<f2", "|V5", [("a", "<f4")])
    for shape in shapes:
        for kind in kinds:
            head = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode().ljust(117) + b"\n"
            array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(960)
            content = _zip({"x.npy": array, "y.npy": _zipped("y.npy")})
            yield Case(f"head {shape} {kind}", _init("d.npz"), _bytes(d__npz=content))
    stream = io.BytesIO()
    np.savez(stream, x=np.array([Payload()], dtype=object), y=np.arange(1))
    yield Case("pickled array", _init("d.npz"), _bytes(d__npz=stream.getvalue()))
    for name in ("x.npy", "../x.npy", "/x.npy", "", "x" * 5000 + ".npy"):
        yield Case(f"archive {name[:9]}", _init("d.npz"), _bytes(d__npz=_zip({name: b"abc", "y.npy": b""})))


def _zipped(name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(_npz())) as archive:
        return archive.read(name)


def _zip(entries: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name or "empty", content)
    return stream.getvalue()


def _saved() -> Iterator[Case]:
    """Data sets as `save_to_disk` leaves them, with other words in their JSON files."""
    stream = io.BytesIO()
    table = pa.Table.from_pylist(_rows())
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    arrow = stream.getvalue()
    state: dict[str, Any] = {"_data_files": [{"filename": "a.arrow"}]}
    info: dict[str, Any] = {"features": {"label": {"_type": "ClassLabel", "names": ["a", "b", "c"]}}}

    def case(name: str, state: Any, info: Any, arrow: bytes = arrow) -> Case:
        files = {"d_of_state__json": json.dumps(state), "d_of_dataset_info__json": json.dumps(info)}
        return Case(name, _init("d"), _bytes(**files, d_of_a__arrow=arrow))

    for number, value in enumerate(ODD):
        yield case(f"state {number}", value, info)
        yield case(f"files {number}", {"_data_files": value}, info)
        yield case(f"file {number}", {"_data_files": [value]}, info)
        yield case(f"file name {number}", {"_data_files": [{"filename": value}]}, info)
        yield case(f"info {number}", state, value)
        yield case(f"info features {number}", state, {"features": value})
        yield case(f"names {number}", state, {"features": {"label": {"_type": "ClassLabel", "names": value}}})
        splits = json.dumps({"splits": value})
        yield Case(f"splits {number}", _init("d"), _bytes(d_of_dataset_dict__json=splits))
    for number, damaged in enumerate(_mutations(arrow, 18, 11)):
        yield case(f"arrow {number}", state, info, damaged)


def _no_files() -> Iterator[Case]:
    """What is no file, in every place where one is named."""
    places: dict[str, tuple[tuple[str, ...], str]] = {
        "npz": (_init("d.npz"), "d.npz"),
        "csv": (_init("d.csv"), "d.csv"),
        "parquet": (_init("d.parquet"), "d.parquet"),
        "text": (_init("d.txt"), "d.txt"),
        "image": (_init("d"), "d/a/0.png"),
        "state": (_init("d"), "d/state.json"),
        "weights": ((*_WEIGHTS, "w.pt"), "w.pt"),
        "tensors": ((*_WEIGHTS, "w.safetensors"), "w.safetensors"),
        "model": (("init", "n.onnx", "--data", "d.npz"), "n.onnx"),
        "config": (_hugging("hf"), "hf/config.json"),
        "module": (("init", "my.py:net", "--data", "d.npz"), "my.py"),
        "network": (_verify("n.onnx"), "n.onnx"),
        "packed": (_verify("n.onnx.gz"), "n.onnx.gz"),
        "property": (_verify("n.onnx", "q.vnnlib"), "q.vnnlib"),
        "instances": (("verify", "--instances", "i.csv"), "i.csv"),
        "proof": (("check-proof", "q.json", "--onnx", "n.onnx"), "q.json"),
        "recipe": (("plan", "r.yaml"), "r.yaml"),
        "results": (("report", "run"), "run/results.parquet"),
        "record": (("query", "SELECT 1 FROM rows", "run"), "run/run.json"),
        "gates": (("compare", "run", "run", "--gate", "g.yaml", "--out", "out"), "g.yaml"),
    }
    kinds: dict[str, Callable[[Path], None]] = {
        "pipe": os.mkfifo,
        "zeros": lambda path: path.symlink_to("/dev/zero"),
        "folder": lambda path: path.mkdir(),
        "loop": lambda path: path.symlink_to(path.name),
        "nothing": lambda path: path.symlink_to("nowhere"),
        "null": lambda path: path.symlink_to("/dev/null"),
        "socket": _bind,
    }
    for place, (words, name) in places.items():
        for kind, make in kinds.items():
            yield Case(f"{kind} as {place}", words, _instead(name, make))
    for target in ("/dev/zero", "../..", "p"):
        table = pa.table(
            {
                "image": [{"bytes": None, "path": target}] * 20,
                "label": [place % 2 for place in range(20)],
            }
        )

        def write(folder: Path, table: pa.Table = table) -> None:
            _bytes(d__parquet=_as_parquet(table))(folder)
            os.mkfifo(folder / "p")

        yield Case(f"path {target} in a parquet", _init("d.parquet"), write)


def _bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
    finally:
        os.chdir(here)


def _instead(name: str, make: Callable[[Path], None]) -> Write:
    results, record = _run()

    def write(folder: Path) -> None:
        _bytes(
            d__npz=_npz(),
            n__onnx=_onnx(),
            p__vnnlib=_PROPERTY,
            run_of_results__parquet=results,
            run_of_run__json=json.dumps(record),
        )(folder)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)

    return write


def _settings() -> Iterator[Case]:
    names = (
        "model",
        "data",
        "task",
        "inputs",
        "output",
        "activation",
        "loss",
        "metrics",
        "start",
        "epochs",
        "depends",
        "data.target",
        "data.features",
        "data.size",
        "data.labels",
        "data.limit",
        "data.test",
        "data.a.b",
        "nothing",
        "learning_rate",
        "batch_size",
        "data.tokenizer",
        "model.weights",
        "model.args",
    )
    values = (
        "[1,2]",
        "{a: 1}",
        "null",
        "-1",
        "1e999",
        "",
        "!!python/object/apply:os.system ['touch " + PAYLOAD + "']",
        "&a [*a]",
        "'\x1b'",
        "net.py:net",
    )
    for name in names:
        for number, value in enumerate(values):
            yield Case(f"--set {name} {number}", _init("d.npz", "--set", f"{name}={value}"), _bytes(d__npz=_npz()))
    for odd in ("", "=", "=1", "data", "data.=1", ".=1", "data..=1"):
        yield Case(f"--set {odd}", _init("d.npz", "--set", odd), _bytes(d__npz=_npz()))


def _weights() -> Iterator[Case]:
    for seed, (kind, form) in enumerate((("pt", "pt"), ("pth", "old"), ("safetensors", "safetensors"))):
        for number, damaged in enumerate(_mutations(_state(form), 18, seed)):
            files = {"d__npz": _npz(), f"w__{kind}": damaged}
            yield Case(f"weights {form} {number}", (*_WEIGHTS, f"w.{kind}"), _bytes(**files))
    state = _network().state_dict()
    odd: list[Any] = [
        *ODD[:8],
        *ODD[11:],
        Payload(),
        {1: torch.zeros(2)},
        {1: state},
        {"state_dict": {1: torch.zeros(2)}},
        {**state, 3: torch.zeros(1)},
        {**state, "0.weight": Payload()},
        {"a": state, "b": {2: state}},
        {name: tensor.half() for name, tensor in state.items()},
        dict.fromkeys(state, 1.0),
        {name: tensor * float("nan") for name, tensor in state.items()},
        {name: tensor.to_sparse() for name, tensor in state.items()},
        {(1, 2): torch.zeros(2)},
        {None: state},
    ]
    for number, value in enumerate(odd):
        stream = io.BytesIO()
        torch.save(value, stream)
        yield Case(f"state {number}", (*_WEIGHTS, "w.pt"), _bytes(d__npz=_npz(), w__pt=stream.getvalue()))
    for number, head in enumerate(
        (
            b"{}",
            b"[]",
            b"{",
            b'{"a":1}',
            b'{"0.weight":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}}',
            b"[" * 100_000,
        )
    ):
        content = struct.pack("<Q", len(head)) + head + bytes(4)
        yield Case(
            f"head of tensors {number}", (*_WEIGHTS, "w.safetensors"), _bytes(d__npz=_npz(), w__safetensors=content)
        )


CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 50,
    "max_position_embeddings": 16,
    "architectures": ["BertForSequenceClassification"],
    "id2label": {"0": "a", "1": "b", "2": "c"},
}


def _hugging(folder: str) -> tuple[str, ...]:
    return ("init", f"hf:{folder}", "--quick", "--stages", "accuracy", "--start", "scratch", "--data", "t.jsonl")


def _models() -> Iterator[Case]:
    """Folders of Hugging Face, with other words in their files and with code of their own."""
    texts = "\n".join(json.dumps({"text": f"word {place}", "label": "abc"[place % 3]}) for place in range(30))
    code = f"import os\nos.system('touch {PAYLOAD}')\n"

    def case(name: str, config: Any, **files: str) -> Case:
        written = {"hf_of_config__json": config if isinstance(config, str) else json.dumps(config), **files}
        return Case(name, _hugging("hf"), _bytes(t__jsonl=texts, **written))

    keys = ("model_type", "hidden_size", "num_attention_heads", "architectures", "id2label", "hidden_act", "vocab_size")
    small = [value for value in ODD if not (isinstance(value, int) and value > 1000)]
    for key in keys:
        for number, value in enumerate(small):
            yield case(f"config {key} {number}", {**CONFIG, key: value})
    for number, value in enumerate((*small, "not json")):
        yield case(f"config {number}", value)
        yield case(f"tokenizer settings {number}", CONFIG, hf_of_tokenizer_config__json=json.dumps(value))
        yield case(f"tokenizer {number}", CONFIG, hf_of_tokenizer__json=json.dumps(value))
    yield case("config deep", "[" * 100_000)
    automatic = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"}
    yield case("code of a model", {**CONFIG, "auto_map": automatic, "model_type": "own"}, hf_of_own__py=code)
    tokenizer = json.dumps({"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}})
    yield case("code of a tokenizer", CONFIG, hf_of_own__py=code, hf_of_tokenizer_config__json=tokenizer)


def _verify(network: str, prop: str = "p.vnnlib", *more: str) -> tuple[str, ...]:
    return ("verify", "--onnx", network, "--vnnlib", prop, "--timeout", "3", *more)


def _networks() -> Iterator[Case]:
    for number, damaged in enumerate(_mutations(_onnx(), 48, 3)):
        yield Case(f"network {number}", _verify("n.onnx"), _bytes(n__onnx=damaged, p__vnnlib=_PROPERTY))
    for number, damaged in enumerate(_mutations(gzip.compress(_onnx()), 12, 4)):
        yield Case(f"packed network {number}", _verify("n.onnx.gz"), _bytes(n__onnx__gz=damaged, p__vnnlib=_PROPERTY))
    for name, model in _odd_models():
        files = {"n__onnx": model.SerializeToString(), "p__vnnlib": _PROPERTY, "d__npz": _npz()}
        for engine in ("auto", "exact"):
            yield Case(f"{name}, {engine}", _verify("n.onnx", "p.vnnlib", "--engine", engine), _bytes(**files))
        yield Case(f"{name}, init", ("init", "n.onnx", "--quick", "--data", "d.npz"), _bytes(**files))
    for number, damaged in enumerate(_mutations(_onnx(), 24, 5)):
        words = ("init", "n.onnx", "--quick", "--data", "d.npz")
        yield Case(f"model {number}", words, _bytes(n__onnx=damaged, d__npz=_npz()))


def _odd_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    def held(array: Any, name: str = "c") -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(np.asarray(array), name)

    node, slices = helper.make_node, ["x", "s", "e"]
    yield "cycle", _model([node("Add", ["x", "b"], ["a"]), node("Add", ["a", "x"], ["b"]), node("Relu", ["b"], ["y"])])
    yield "missing input", _model([node("Relu", ["nothing"], ["y"])])
    yield "output twice", _model([node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["y"])])
    yield "unknown operator", _model([node("Nothing", ["x"], ["y"])])
    yield "foreign operator", _model([node("Run", ["x"], ["y"], domain="own")])
    yield "no inputs of a node", _model([node("Relu", [], ["y"])])
    yield "wrong attribute", _model([node("Relu", ["x"], ["y"], axis="a")])
    yield "negative sizes", _model([node("Reshape", ["x", "c"], ["y"])], [held(np.array([-5, -1], "i8"))])
    yield "zero size", _model([node("Reshape", ["x", "c"], ["y"])], [held(np.array([0, 0, 0], "i8"))])
    yield "no axis", _model([node("Concat", ["x", "x"], ["y"], axis=99)])
    yield (
        "slice",
        _model([node("Slice", slices, ["y"])], [held(np.array([2**62]), "s"), held(np.array([-(2**62)]), "e")]),
    )
    yield "not finite", _model([node("Mul", ["x", "c"], ["y"])], [held(np.full(4, np.nan, "f4"))])
    yield "kernel 0", _model([node("Conv", ["x", "c"], ["y"])], [held(np.zeros((1, 1, 0, 0), "f4"))])
    yield "outside", _model([node("Mul", ["x", "c"], ["y"])], [_external("/etc/passwd")])
    yield "outside by dots", _model([node("Mul", ["x", "c"], ["y"])], [_external("../../../../etc/passwd")])
    wrong = held(np.zeros(4, "f4"))
    wrong.dims[0] = 1 << 40
    yield "promised constant", _model([node("Mul", ["x", "c"], ["y"])], [wrong])
    wrong = held(np.zeros(4, "f4"))
    wrong.data_type = 99
    yield "unknown type", _model([node("Mul", ["x", "c"], ["y"])], [wrong])
    inner = helper.make_graph([node("Relu", ["x"], ["z"])], "inner", [], [helper.make_tensor_value_info("z", 1, None)])
    for depth in range(20):
        outer = node("If", ["c"], ["z"], then_branch=inner, else_branch=inner if depth < 3 else None)
        inner = helper.make_graph([outer], f"g{depth}", [], [helper.make_tensor_value_info("z", 1, None)])
    yield "deep", _model([node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)], [held(np.array(True))])
    yield "sizes of names", _model([node("Relu", ["x"], ["y"])], given=["a", "b"], made=["c", "d"])
    yield "many sizes", _model([node("Relu", ["x"], ["y"])], given=[1] * 500)
    yield "sizes below 0", _model([node("Relu", ["x"], ["y"])], given=[-1, -4])
    yield "huge input", _model([node("Relu", ["x"], ["y"])], given=[1 << 40, 4])


def _external(place: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", place
    return tensor


def _properties() -> Iterator[Case]:
    for number, damaged in enumerate(_mutations(_PROPERTY.encode(), 48, 6)):
        yield Case(f"property {number}", _verify("n.onnx"), _bytes(n__onnx=_onnx(), p__vnnlib=damaged))
    deep = 20_000
    texts = (
        "(" * deep,
        f"{_DECLARED}(assert {'(and ' * deep}{')' * deep})",
        f"{_DECLARED}{_BOX}(assert (<= Y_0 1e999999999))",
        f"{_DECLARED}{_BOX}(assert (<= Y_0 {'9' * 100_000}))",
        f"{_DECLARED}{_BOX}(assert (or {'(and (<= Y_0 Y_1))' * 3000}))",
        f"{_DECLARED}{_BOX}" + "(assert (or (and (<= Y_0 0)) (and (<= Y_1 0))))" * 60,
        "(declare-const X_99999999999 Real)",
        "(declare-const X_0 Real)" * 3,
        f"{_DECLARED}{_BOX}(assert (<= (* Y_0 Y_1) 0))",
        f"{_DECLARED}(assert (<= X_0 nan))",
        "\x00" * 100,
        f"{_DECLARED}{_BOX}(assert (<= Y_0 1/0))",
        "(vnnlib-version <2.0>)(declare-network N)",
        "; " + "a" * 10**6,
    )
    for number, text in enumerate(texts):
        for engine in ("auto", "exact"):
            words = _verify("n.onnx", "p.vnnlib", "--engine", engine)
            yield Case(f"odd property {number}, {engine}", words, _bytes(n__onnx=_onnx(), p__vnnlib=text))
    lines = ("", "onnx,vnnlib", "a,b,c", "n.onnx,p.vnnlib,nan", "n.onnx,p.vnnlib,1e400", "n.onnx", '"', "\x00,\x00,1")
    for number, line in enumerate(lines):
        files = {"n__onnx": _onnx(), "p__vnnlib": _PROPERTY, "i__csv": line}
        yield Case(f"instances {number}", ("verify", "--instances", "i.csv"), _bytes(**files))


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values lie in a tree of JSON."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from _paths(value, (*path, key))


def _replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = tree.copy()
    copied[path[0]] = _replaced(tree[path[0]], path[1:], value)
    return copied


def _proofs() -> Iterator[Case]:
    words, draw = ("check-proof", "q.json", "--onnx", "n.onnx", "--vnnlib", "p.vnnlib"), random.Random(8)

    def case(name: str, content: bytes | str) -> Case:
        return Case(name, words, _bytes(n__onnx=_onnx(), p__vnnlib=_PROPERTY, q__json=content))

    tree = json.loads(_proof())
    paths = list(_paths(tree))
    for number in range(80):
        path, value = draw.choice(paths), draw.choice(ODD)
        yield case(f"proof {number} {path}"[:60], json.dumps(_replaced(tree, path, value)))
    for number, damaged in enumerate(_mutations(_proof(), 24, 9)):
        yield case(f"damaged proof {number}", damaged)
    for number, text in enumerate(("", "[", "[" * 100_000, "9" * 100_000, "null", '{"format": "evalsuite-proof/1"}')):
        yield case(f"no proof {number}", text)


_READERS: dict[str, tuple[str, ...]] = {
    "query": ("query", "SELECT count(*), max(value) FROM rows", "run"),
    "compare": ("compare", "run", "run", "--out", "out"),
    "merge": ("merge", "out", "run", "run"),
    "index": ("index", "run"),
    "report": ("report", "run"),
}


def _runs() -> Iterator[Case]:
    """Results whose columns hold what no run writes."""
    results, record = _run()
    table = pq.read_table(io.BytesIO(results))
    readers = list(_READERS)

    def case(name: str, content: bytes, command: str) -> Case:
        files = {"run_of_results__parquet": content, "run_of_run__json": json.dumps(record)}
        return Case(f"{command}: {name}", _READERS[command], _bytes(**files))

    for place, name in enumerate(table.column_names):
        for number, odd in enumerate(_odd_columns(table[name])):
            changed = table.set_column(place, name, odd)
            yield case(f"{name} {number}", _as_parquet(changed), readers[(place + number) % 4])
        yield case(f"without {name}", _as_parquet(table.drop_columns([name])), readers[place % 4])
    for number, damaged in enumerate(_mutations(results, 36, 10)):
        yield case(f"damaged {number}", damaged, readers[number % 4])
    for name, content in (
        ("no rows", _as_parquet(table.slice(0, 0))),
        ("empty", b""),
        ("twice", _as_parquet(pa.concat_tables([table, table]))),
    ):
        for command in readers:
            yield case(name, content, command)
    for number, statement in enumerate(
        (
            "",
            "SELECT",
            "COPY rows TO 'leak.csv'",
            "ATTACH 'leak.db'",
            "SELECT 1; SELECT 2",
            "SELECT * FROM read_text('/etc/passwd')",
            "SELECT repeat('a', 3000000000) FROM rows",
            "SELECT * FROM 'run/results.parquet'",
        )
    ):
        files = {"run_of_results__parquet": results}
        yield Case(f"statement {number}", ("query", statement, "run"), _bytes(**files))


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


def _records() -> Iterator[Case]:
    """Records with other words than a run writes, and journals."""
    results, record = _run()
    readers = list(_READERS)
    place = 0
    for key in (*record, "recipe_text", "steps", "data", "machine", "versions", "finished", "checksum", "results"):
        for number, value in enumerate(ODD):
            place += 1
            text = json.dumps({**record, key: value})
            files = {"run_of_results__parquet": results, "run_of_run__json": text, "run_of_journal__jsonl": text}
            yield Case(f"record {key} {number}", _READERS[readers[place % 4]], _bytes(**files))
    for number, text in enumerate(("", "[" * 100_000, "null", "[]", "{", "9" * 10_000, "\x00")):
        for command in readers:
            files = {"run_of_results__parquet": results, "run_of_run__json": text}
            yield Case(f"{command} record {number}", _READERS[command], _bytes(**files))


def _documents() -> Iterator[Case]:
    """Recipes and gates."""
    recipe = {
        "name": "a",
        "workloads": [{"use": "digits-mlp"}],
        "variants": ["gelu"],
        "seeds": [0],
        "steps": ["accuracy"],
    }
    draw, paths = random.Random(12), list(_paths(recipe))
    for number in range(60):
        text = _yaml(_replaced(recipe, draw.choice(paths), draw.choice(ODD)))
        yield Case(f"recipe {number}", ("plan", "r.yaml", "--cache", "cache"), _bytes(r__yaml=text))
    odd = (
        "[" * 20_000,
        "a: " * 3000,
        "&a [*a]",
        "!!python/object/apply:os.system ['touch " + PAYLOAD + "']",
        "\x00",
        "",
        "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b]\n" * 2,
    )
    results, record = _run()
    for number, text in enumerate((*odd, *(f"gates: [{{metric: {json.dumps(value)}, margin: 1}}]" for value in ODD))):
        yield Case(f"odd recipe {number}", ("plan", "r.yaml", "--cache", "cache"), _bytes(r__yaml=text))
        files = {"g__yaml": text, "run_of_results__parquet": results, "run_of_run__json": json.dumps(record)}
        yield Case(f"gates {number}", ("compare", "run", "run", "--gate", "g.yaml", "--out", "out"), _bytes(**files))


def _yaml(tree: Any) -> str:
    stream = io.StringIO()
    YAML(typ="safe").dump(tree, stream)
    return stream.getvalue()


# --- what takes more than it may ---


def _bombs() -> Iterator[Case]:
    node, files = helper.make_node, {"n__onnx": _onnx(), "p__vnnlib": _PROPERTY, "d__npz": _npz()}

    def alone(name: str, words: Iterable[str], **more: Content) -> Case:
        return Case(f"bomb: {name}", tuple(words), _bytes(**{**files, **more}), alone=True)

    yield alone("packed network", _verify("n.onnx.gz"), n__onnx__gz=_packed)
    yield alone("packed property", _verify("n.onnx", "p.vnnlib.gz"), p__vnnlib__gz=_packed)
    yield alone("array", _init("b.npz"), b__npz=lambda: _archive(3 << 29))
    yield alone("array whose size is a lie", _init("b.npz"), b__npz=lambda: _archive(3 << 29, 960))
    yield alone("weights", (*_WEIGHTS, "w.pt"), w__pt=lambda: _archive(3 << 29))
    yield alone("table", _init("b.parquet"), b__parquet=_long_table)
    record = json.dumps(_run()[1])
    yield alone("results", _READERS["query"], run_of_results__parquet=_long_results, run_of_run__json=record)
    for side in (20_000, 60_000):
        image = partial(_flat_image, side)
        pictures = {f"d_of_{label}_of_{place}__png": image for label in "ab" for place in range(2)}
        yield alone(f"image {side}", _init("d"), **pictures)
    sizes = onnx.numpy_helper.from_array(np.array([1 << 28, 4]), "c")
    nodes = [node("Expand", ["x", "c"], ["h"]), node("ReduceSum", ["h"], ["y"])]
    total = node("ReduceSum", ["h"], ["s"], keepdims=0)
    filled = [node("ConstantOfShape", ["c"], ["h"]), total, node("Add", ["x", "s"], ["y"])]
    for name, model in (("expanded", _model(nodes, [sizes])), ("filled", _model(filled, [sizes]))):
        content = model.SerializeToString()
        yield alone(f"{name} network", _verify("n.onnx"), n__onnx=content)
        for command in ("init", "check"):
            words = (command, "n.onnx", "--stages", "accuracy", "--data", "d.npz")
            yield alone(f"{name} model, {command}", words, n__onnx=content)
    yield alone("columns", _init("b.csv"), b__csv=_wide)
    yield alone("columns of one name", _init("b.csv"), b__csv="c," * 10**6 + "label\n")
    yield alone("lines", _init("b.csv"), b__csv=lambda: b"a,label\n" + b"\n" * 10**7)
    yield alone("text", _init("b.txt", "--task", "language-model"), b__txt=lambda: b"a" * 10**7)


def _wide() -> bytes:
    """A table of 100,000 columns."""
    head = ",".join(f"c{i}" for i in range(100_000)) + ",label\n"
    lines = (",".join(str((place * i) % 7) for i in range(100_000)) + f",{place % 3}\n" for place in range(12))
    return (head + "".join(lines)).encode()


def _long_table() -> bytes:
    column = pa.array(np.zeros(1 << 27)).dictionary_encode()
    return _as_parquet(pa.table({f"c{i}": column for i in range(4)} | {"label": column}))


def _long_results() -> bytes:
    row = pq.read_table(io.BytesIO(_run()[0])).slice(0, 1)
    many = pa.concat_tables([row] * (1 << 12)).combine_chunks()
    return _as_parquet(pa.concat_tables([many] * 5000))


@cache
def _packed() -> bytes:
    """Three GiB of zeros, in members of 16 MiB."""
    return gzip.compress(bytes(1 << 24), 9) * (3 << 6)


@cache
def _archive(size: int, stated: int = 0) -> bytes:
    """An array of so many bytes of zeros in a zip archive, whose directory may say that it has `stated`."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size // 16}, 4), }}".encode().ljust(117) + b"\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
            for _ in range(size >> 24):
                file.write(bytes(1 << 24))
        archive.writestr("y.npy", _zipped("y.npy"))
        if stated:
            archive.infolist()[0].file_size = stated
    return stream.getvalue()


@cache
def _flat_image(side: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    packer = zlib.compressobj(1)
    line = bytes(1 + side // 8)
    pixels = b"".join([*(packer.compress(line) for _ in range(side)), packer.flush()])
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
