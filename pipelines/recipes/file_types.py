"""Provide what pretrained.yaml names: a pretrained classifier of file types, and files for it.

The network is Magika's (standard_v3_3) as the package magika ships it (Apache-2.0), with GELU
itself in the two places of its approximation by tanh, which changes no class of a test file. The
files are those of this Python: its standard library and the packages beside it. A file's label is
what its extension says, where just one type has it, so that the labels are as good as extensions
are. Packages are trained on or tested on as a whole, since files of one resemble each other.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sysconfig
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx.utils import extract_model
from torch import nn

from evalsuite import Data, Split
from opgraph.from_onnx import from_onnx

MODEL = "models/standard_v3_3"
OF_A_LABEL = 60  # files at most
# up to which of a hundred packages
PARTS = {"train": 100, "test": 50, "validation": 10, "calibration": 5}


def network() -> nn.Module:
    """(samples, 2048) of bytes, 256 for none, to the logits of 214 types."""
    return copy.deepcopy(_network())


def examples() -> Data:
    """Both ends of each file, (samples, 2048), and its type."""
    by_part: dict[str, list[tuple[np.ndarray[Any, Any], int]]] = {part: [] for part in PARTS}
    kept: dict[int, int] = {}
    seen = set()
    for file, package in _files():
        label = _labels().get(file.suffix.lower())
        if (
            label is None
            or kept.get(label, 0) >= OF_A_LABEL
            or file.stat().st_size < _settings()["min_file_size_for_dl"]
        ):
            continue
        ends = _ends(file.read_bytes())
        if ends.tobytes() not in seen:
            seen.add(ends.tobytes())
            kept[label] = kept.get(label, 0) + 1
            by_part[_part(package)].append((ends, label))
    digest = hashlib.sha256()
    splits = {}
    for part, samples in by_part.items():
        inputs, targets = (
            np.stack([ends for ends, _ in samples]),
            np.array([label for _, label in samples]),
        )
        digest.update(inputs.tobytes() + targets.tobytes())
        splits[part] = Split(torch.from_numpy(inputs), torch.from_numpy(targets))
    types, none = len(_settings()["target_labels_space"]), _settings()["padding_token"]
    train, calibration, validation, test = (
        splits[part] for part in ("train", "calibration", "validation", "test")
    )
    domain = (0.0, float(none))
    return Data(
        train, calibration, validation, test, domain, types, digest.hexdigest(), vocabulary=none + 1
    )


@cache
def _network() -> nn.Module:
    source = _package() / MODEL / "model.onnx"
    # Behind the last layer the file has a softmax, which the loss brings along.
    logits = next(
        node.output[0]
        for node in onnx.load(str(source)).graph.node
        if node.output[0].endswith("Dense_1/AddV2:0")
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "logits.onnx"
        extract_model(str(source), str(file), ["bytes"], [logits])
        module = from_onnx(file, torch.arange(2 * 2048, dtype=torch.int32).reshape(2, 2048) % 257)
    for layer in module.modules():
        if isinstance(layer, nn.GELU):
            layer.approximate = "none"
    return module


def _package() -> Path:
    """Where it lies; nothing of it is imported.

    Raises:
        FileNotFoundError: it is not installed.
    """
    spec = find_spec("magika")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "the package magika is missing: pip install --no-deps magika==1.0.3"
        )
    return Path(spec.origin).parent


@cache
def _settings() -> Any:
    return json.loads((_package() / MODEL / "config.min.json").read_text(encoding="utf-8"))


@cache
def _labels() -> dict[str, int]:
    """The number of the type of each extension that belongs to one type alone."""
    known = json.loads(
        (_package() / "config/content_types_kb.min.json").read_text(encoding="utf-8")
    )
    names = _settings()["target_labels_space"]
    labels: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        for extension in known.get(name, {}).get("extensions", []):
            labels.setdefault(f".{extension}", []).append(number)
    del labels[".txt"]  # which any text may be called
    return {extension: numbers[0] for extension, numbers in labels.items() if len(numbers) == 1}


def _files() -> Iterator[tuple[Path, str]]:
    """Each file with its package, in an order that has nothing to do with either."""
    library, beside = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    files = []
    for root in (library, beside):
        for file in root.rglob("*"):
            place = file.relative_to(root)
            inside = root == library and place.parts[0] in ("site-packages", "dist-packages")
            if (
                file.is_file()
                and not file.is_symlink()
                and not inside
                and "__pycache__" not in place.parts
            ):
                files.append(
                    (file, f"{root.name}/{place.parts[0]}", f"{root.name}/{place.as_posix()}")
                )
    return (
        (file, package) for file, package, _ in sorted(files, key=lambda file: _digest(file[2]))
    )


def _part(package: str) -> str:
    number = int(_digest(package)[:8], 16) % 100
    return min((part for part, end in PARTS.items() if number < end), key=PARTS.__getitem__)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _ends(content: bytes) -> np.ndarray[Any, Any]:
    """The first and the last 1,024 bytes without spaces around the file, filled up inside."""
    block, size, none = (_settings()[name] for name in ("block_size", "beg_size", "padding_token"))
    first, last = content[:block].lstrip()[:size], content[-block:].rstrip()[-size:]
    ends = np.full(2 * size, none, dtype=np.int64)
    ends[: len(first)] = np.frombuffer(first, dtype=np.uint8)
    ends[2 * size - len(last) :] = np.frombuffer(last, dtype=np.uint8)
    return ends
