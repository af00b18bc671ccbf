"""Where floats and integers meet: quantizing real values to a grid, and float islands between integer operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pipelines.quantize.integer.network import Grid, Integers, Island
from pipelines.quantize.threads import one_thread


def quantize(values: npt.NDArray[Any], grid: Grid, what: str, kind: npt.DTypeLike = np.int64) -> Integers:
    """The integers of real values, of their shape: clip(round half even(values / scale + zero_point), low, high), in
    the float32 steps of Brevitas.

    Raises:
        ValueError: some of the values are not finite; `what` names them.
    """
    real = np.asarray(values, dtype=np.float32)
    # A quotient or a sum beyond float32 is infinite: the clip takes the one rightly, the other asks for a closer look.
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(real.sum()) and not (finite := np.isfinite(real)).all():
            bad = real.size - int(finite.sum())
            raise ValueError(f"{what}: {bad} of {real.size} values are NaN or infinite; integers have no such values")
        steps = real / np.float32(grid.scale)
        steps += np.float32(grid.zero_point)
    np.rint(steps, steps)
    return np.clip(steps, np.float32(grid.low), np.float32(grid.high), out=steps).astype(kind)


def run_island(operation: Island, inputs: Sequence[Integers]) -> Integers:
    """The integers, int64, that the island makes.

    Inputs go through the module one at a time on one thread, laid out alike whatever made them: a matrix product of
    another batch, thread count or layout may round otherwise.
    """
    real = given_to(operation, inputs)
    with one_thread(), torch.no_grad():
        made = [operation.module(*(each[i : i + 1] for each in real)) for i in range(len(real[0]))]
    return quantize(torch.cat(made).numpy(), operation.output, f"the results of float island {operation.name}")


def given_to(operation: Island, inputs: Sequence[Integers]) -> list[torch.Tensor]:
    """What the island's module is given for these integers."""
    return [
        torch.from_numpy(np.asarray(x, dtype=np.int64) if place in operation.tokens else _real(x, grid))
        for place, (x, grid) in enumerate(zip(inputs, operation.grids, strict=True))
    ]


def _real(integers: Integers, grid: Grid) -> npt.NDArray[np.float32]:
    centred = np.ascontiguousarray(integers - grid.zero_point, dtype=np.float32)
    return np.asarray(centred * np.float32(grid.scale))
