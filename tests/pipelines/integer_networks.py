"""Random integer networks as files, boxes of their inputs, and what ONNX Runtime computes there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite import open_onnx
from intnet.grids import INPUT, Dyadic, Grid, Rounding
from intnet.layers import Linear
from intnet.network import IntegerNetwork, write_integer_onnx
from intnet.operation import Operation
from intnet.pointwise import Requantize
from intnet.smooth import make_table
from lambda_gelu import GELU
from pipelines.smt.integer.network import IntegerNetwork as Read
from pipelines.smt.integer.network import Query


def written(
    path: Path,
    sizes: tuple[int, ...],
    seed: int,
    *,
    rounding: Rounding = Rounding.HALF_EVEN,
    table: bool = False,
    zero_point: int = 0,
) -> Path:
    """A random network: linear, requantized as ReLU is (or to a grid with a table of GELU
    behind), ..., logits.
    """
    rng = np.random.default_rng(seed)
    operations: list[Operation] = []
    given, last = Grid(1 / 255, zero_point, 0, 255), INPUT
    for depth, (inputs, outputs) in enumerate(pairwise(sizes)):
        weight = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
        bias = rng.integers(-9000, 9000, outputs).astype(np.int32)
        operations.append(Linear(f"linear{depth}", (last,), given, weight, bias, np.ones(outputs)))
        final = depth == len(sizes) - 2
        grid = Grid(0.02, 128, 0, 255) if final or table else Grid(0.02, 0, 0, 255)
        factor = Dyadic.nearest(rng.uniform(0.5, 2, outputs) * 200 / (inputs**0.5 * 60 * 128))
        operations.append(Requantize(f"grid{depth}", (f"linear{depth}",), 0, factor, -1, grid))
        given, last = grid, f"grid{depth}"
        if table and not final:
            out = Grid(0.02, 9, 0, 255)
            operations.append(make_table(f"table{depth}", (last,), GELU, 1.0, given, out))
            given, last = out, f"table{depth}"
    network = IntegerNetwork(
        Grid(1 / 255, zero_point, 0, 255), (sizes[0],), tuple(operations), given, rounding
    )
    write_integer_onnx(network, path)
    return path


def in_runtime(path: Path, points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    session = open_onnx(path)
    shape = session.get_inputs()[0].shape[1:]
    return np.asarray(
        session.run(None, {INPUT: points.astype(np.uint8).reshape(-1, *shape)})[0]
    ).astype(np.int64)


def violated(path: Path, query: Query) -> bool:
    """By running every input of the box in ONNX Runtime."""
    logits = in_runtime(path, query.all_points())
    return bool((logits[:, query.label] <= np.delete(logits, query.label, axis=1).max(1)).any())


def random_box(read: Read, rng: np.random.Generator, free: int, reach: int) -> Query:
    center = rng.integers(0, 256, read.inputs)
    lower, upper = center.copy(), center.copy()
    places = rng.choice(read.inputs, free, replace=False)
    lower[places] = np.maximum(center[places] - reach, 0)
    upper[places] = np.minimum(center[places] + reach, 255)
    return Query(lower, upper, int(read.logits(center[None])[0].argmax()))
