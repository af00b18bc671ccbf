"""CIFAR's files as its author lays them out, with images drawn at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def write_binary(folder: Path, classes: int = 10, count: int = 100) -> None:
    """The author's layout: CIFAR-10's batches, or CIFAR-100's two files with a coarse label
    before the fine one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data_batch_{n}.bin" for n in range(1, 6)] if classes == 10 else ["train.bin"]
    test = "test_batch.bin" if classes == 10 else "test.bin"
    whole = [*np.array_split(np.arange(count), len(names)), np.arange(count, count + 20)]
    pixels = images(count + 20).reshape(-1, 3072)
    for name, rows in zip([*names, test], whole, strict=True):
        labels = [rows % classes] if classes == 10 else [rows % 20, rows % classes]
        records = np.column_stack([*(each.astype(np.uint8) for each in labels), pixels[rows]])
        (folder / name).write_bytes(records.tobytes())
