"""Arrays in zip archives: heads that promise what is not there, and names that lead elsewhere."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from hostile_inputs import sound
from hostile_inputs.cases import Case, Payload, init, writing


def heads() -> Iterator[Case]:
    shapes: tuple[Any, ...] = (
        (1 << 40, 4),
        (1 << 62,),
        (-1, 4),
        (0, 4),
        (60,),
        (),
        (60, 0),
        (60, 4, 1 << 30),
        ("a",),
    )
    kinds: tuple[Any, ...] = (
        "<f4",
        ">f8",
        "<i8",
        "|O",
        "<U4",
        "|S3",
        "<M8[s]",
        "<c8",
        "<f2",
        "|V5",
        [("a", "<f4")],
    )
    for shape in shapes:
        for kind in kinds:
            header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
            head = header.encode().ljust(117) + b"\n"
            array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(960)
            content = _zip({"x.npy": array, "y.npy": sound.zipped("y.npy")})
            yield Case(f"head {shape} {kind}", init("d.npz"), writing(d__npz=content))
    stream = io.BytesIO()
    np.savez(stream, x=np.array([Payload()], dtype=object), y=np.arange(1))
    yield Case("pickled array", init("d.npz"), writing(d__npz=stream.getvalue()))
    for name in ("x.npy", "../x.npy", "/x.npy", "", "x" * 5000 + ".npy"):
        yield Case(
            f"archive {name[:9]}", init("d.npz"), writing(d__npz=_zip({name: b"abc", "y.npy": b""}))
        )


def _zip(entries: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name or "empty", content)
    return stream.getvalue()
