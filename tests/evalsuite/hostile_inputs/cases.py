"""A case, the commands that cases call, and the ways to damage what is sound."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAYLOAD = "code-has-run"


Write = Callable[[Path], None]


Content = bytes | str | Callable[[], bytes]


@dataclass(frozen=True)
class Case:
    """A command line in a folder that `write` fills. `alone`: it needs a process that is
    watched.
    """

    name: str
    words: tuple[str, ...]
    write: Write
    alone: bool = False


class Payload:
    """Unpickled, it writes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {PAYLOAD}",)


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


WEIGHTS = ("init", "net.py:net", "--quick", "--stages", "accuracy", "--data", "d.npz", "--weights")


def init(file: str, *more: str) -> tuple[str, ...]:
    return (*_INIT, file, *more)


def verify(network: str, prop: str = "p.vnnlib", *more: str) -> tuple[str, ...]:
    return ("verify", "--onnx", network, "--vnnlib", prop, "--timeout", "3", *more)


def writing(**files: Content) -> Write:
    """Write these files, or what a function gives; in names `__` stands for a dot, `_of_` for a
    slash.
    """

    def write(folder: Path) -> None:
        (folder / "net.py").write_text(NET)
        for name, content in files.items():
            path = folder / name.replace("_of_", "/").replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            content = content() if callable(content) else content
            path.write_bytes(
                content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
            )

    return write


def mutations(content: bytes, count: int, seed: int) -> Iterator[bytes]:
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
            changed[place : place + 8] = draw.choice(
                (b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, draw.randbytes(8))
            )
        elif kind == 3:
            changed[place:place] = changed[place:other]
        elif kind == 4:
            changed = changed[other:] + changed[place:other] + changed[:place]
        else:
            changed += draw.randbytes(100)
        yield bytes(changed)


def paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values lie in a tree of JSON."""
    yield path
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        yield from paths(value, (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = tree.copy()
    copied[path[0]] = replaced(tree[path[0]], path[1:], value)
    return copied
