"""What an exported QCDQ graph needs so that ONNX Runtime computes what Brevitas does, without needless work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from evalsuite import Inputs, feed, mapped, open_onnx

_BATCHES = (2, 3, 5)
_SHAPES = ("Shape", "Size")
Array = NDArray[Any]


def fixed_shapes(model: onnx.ModelProto, example: Inputs) -> None:
    """Compute once what follows from shapes and constants alone, in place; only the batch is free.

    Where a Reshape to a shape that holds the batch remains, the batch becomes -1. torch's older exporter computes such
    shapes, and the scale of attention products, at each run.
    """
    frontier = _shape_results(model)
    if not frontier:
        return
    runs = [_evaluate(model, frontier, example, batch) for batch in _BATCHES]
    for name, *values in zip(frontier, *runs, strict=True):
        if all(value.shape == values[0].shape and np.array_equal(value, values[0]) for value in values):
            _replace(model, name, values[0])
        elif (shape := _free_batch(values)) is not None:
            _replace(model, name, shape, only=("Reshape", 1))
    _drop_unread(model)


def _shape_results(model: onnx.ModelProto) -> list[str]:
    """Tensors that follow from shapes and constants alone and are read by nodes that do not."""
    static = {each.name for each in model.graph.initializer}
    shaped: set[str] = set()
    for node in model.graph.node:
        inputs = {name for name in node.input if name}
        if node.op_type in (*_SHAPES, "Constant") or (inputs and inputs <= static):
            static.update(node.output)
            if node.op_type in _SHAPES or inputs & shaped:
                shaped.update(node.output)
    read = {name for node in model.graph.node if not static.issuperset(node.output) for name in node.input}
    return sorted(shaped & read)


def _free_batch(values: list[Array]) -> Array | None:
    """The one shape behind shapes found at each of `_BATCHES`; None if it is not one with the batch in one place."""
    if any(value.ndim != 1 or value.dtype != np.int64 or value.shape != values[0].shape for value in values):
        return None
    varying = np.flatnonzero((values[0] != values[1]) | (values[0] != values[2]))
    if len(varying) != 1 or (values[0] < 0).any():
        return None
    at = int(varying[0])
    per_sample = {int(value[at]) % batch for value, batch in zip(values, _BATCHES, strict=True)}
    multiples = {int(value[at]) // batch for value, batch in zip(values, _BATCHES, strict=True)}
    if per_sample != {0} or len(multiples) != 1:
        return None
    shape = values[0].copy()
    shape[at] = -1
    return shape


def _evaluate(model: onnx.ModelProto, names: Iterable[str], example: Inputs, batch: int) -> list[Array]:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    del copied.graph.output[:]
    copied.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = open_onnx(copied.SerializeToString())
    rows = mapped(example, lambda each: each[torch.arange(batch) % len(each)])
    return list(session.run(None, feed(session, rows)))


def _replace(model: onnx.ModelProto, name: str, value: Array, only: tuple[str, int] | None = None) -> None:
    """Let the nodes that read `name`, or those of one type that read it in one place, read a constant instead."""
    constant = f"{name}_fixed"
    model.graph.initializer.append(numpy_helper.from_array(value, constant))
    for node in model.graph.node:
        for position, each in enumerate(node.input):
            if each == name and (only is None or only == (node.op_type, position)):
                node.input[position] = constant


def _drop_unread(model: onnx.ModelProto) -> None:
    """Remove nodes and constants that lead to no output."""
    needed = {each.name for each in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(node.input)
            kept.append(node)
    constants = [each for each in model.graph.initializer if each.name in needed]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(reversed(kept))
    model.graph.initializer.extend(constants)
