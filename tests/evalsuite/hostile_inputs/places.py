"""What is no file, in every place where one is named."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from hostile_inputs import sound
from hostile_inputs.cases import WEIGHTS, Case, Write, init, verify, writing
from hostile_inputs.models import hugging


def no_files() -> Iterator[Case]:
    """What is no file, in every place where one is named."""
    places: dict[str, tuple[tuple[str, ...], str]] = {
        "npz": (init("d.npz"), "d.npz"),
        "csv": (init("d.csv"), "d.csv"),
        "parquet": (init("d.parquet"), "d.parquet"),
        "text": (init("d.txt"), "d.txt"),
        "image": (init("d"), "d/a/0.png"),
        "state": (init("d"), "d/state.json"),
        "weights": ((*WEIGHTS, "w.pt"), "w.pt"),
        "tensors": ((*WEIGHTS, "w.safetensors"), "w.safetensors"),
        "model": (("init", "n.onnx", "--data", "d.npz"), "n.onnx"),
        "config": (hugging("hf"), "hf/config.json"),
        "module": (("init", "my.py:net", "--data", "d.npz"), "my.py"),
        "network": (verify("n.onnx"), "n.onnx"),
        "packed": (verify("n.onnx.gz"), "n.onnx.gz"),
        "property": (verify("n.onnx", "q.vnnlib"), "q.vnnlib"),
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
            writing(d__parquet=sound.as_parquet(table))(folder)
            os.mkfifo(folder / "p")

        yield Case(f"path {target} in a parquet", init("d.parquet"), write)


def _bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
    finally:
        os.chdir(here)


def _instead(name: str, make: Callable[[Path], None]) -> Write:
    results, record = sound.run()

    def write(folder: Path) -> None:
        writing(
            d__npz=sound.npz(),
            n__onnx=sound.onnx_file(),
            p__vnnlib=sound.PROPERTY,
            run_of_results__parquet=results,
            run_of_run__json=json.dumps(record),
        )(folder)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)

    return write
