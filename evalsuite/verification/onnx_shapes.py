"""The ONNX operators that move entries and compute nothing."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from evalsuite.verification.graph import Affine
from evalsuite.verification.linear import Linear
from evalsuite.verification.onnx_call import Array, Call, Tensor, double, indices, selected


def _same(call: Call) -> Tensor:
    return call.tensor()


def _dropout(call: Call) -> Tensor:
    training = call.constant(2)
    if training is not None and bool(training.any()):
        call.refuse("training_mode is set")
    return call.tensor()


def _reshaped(call: Call, shape: tuple[int, ...]) -> Tensor:
    if prod(shape) != prod(call.tensor().shape):
        call.refuse(f"cannot take shape {shape} from {call.tensor().shape}")
    return Tensor(call.tensor().value, shape)


def _flatten(call: Call) -> Tensor:
    shape, axis = call.tensor().shape, int(call.attributes.get("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return _reshaped(call, (prod(shape[:axis]), prod(shape[axis:])))


def _reshape(call: Call) -> Tensor:
    source = call.tensor().shape
    asked = call.attributes.get("shape")
    target = [int(each) for each in (call.needed(1) if asked is None else asked)]
    if 0 in target:
        call.expect(allowzero=0)
    target = [source[place] if each == 0 else each for place, each in enumerate(target)]
    if target.count(-1) > 1:
        call.refuse(f"shape {target} leaves more than one dimension open")
    known = prod(each for each in target if each != -1)
    return _reshaped(call, tuple(prod(source) // max(known, 1) if each == -1 else each for each in target))


def _axes(call: Call) -> list[int]:
    asked = call.attributes.get("axes")
    found = call.constant(1) if asked is None else np.array(asked)
    return [] if found is None else [int(each) for each in found.flatten()]


def _squeeze(call: Call) -> Tensor:
    shape = call.tensor().shape
    axes = [each % len(shape) for each in _axes(call)] or [i for i, size in enumerate(shape) if size == 1]
    return _reshaped(call, tuple(size for i, size in enumerate(shape) if i not in axes))


def _unsqueeze(call: Call) -> Tensor:
    return _reshaped(call, tuple(np.expand_dims(np.empty(call.tensor().shape), tuple(_axes(call))).shape))


def _transpose(call: Call) -> Tensor:
    source = call.tensor()
    order = call.attributes.get("perm", list(reversed(range(len(source.shape)))))
    index = indices(source.shape).transpose(order)
    if bool((index.flatten() == np.arange(index.size)).all()):
        return _reshaped(call, index.shape)
    return call.affine(source, selected(source, index), index.shape)


def _concat(call: Call) -> Tensor:
    arrays: list[Array] = []
    given = [each for each in call.inputs if each is not None]
    axis = int(call.attributes["axis"])
    parts: list[tuple[int, Linear]] = []
    for place, each in enumerate(given):
        if isinstance(each, Tensor):
            fill = [np.full(other.shape, -1, dtype=np.int64) for other in given]
            fill[place] = indices(each.shape)
            parts.append((each.value, selected(each, np.concatenate(fill, axis))))
        constant = np.zeros(each.shape) if isinstance(each, Tensor) else each.astype(np.float64)
        arrays.append(constant)
    bias = np.concatenate(arrays, axis)
    return call.reading.append(Affine(tuple(parts), double(bias).flatten()), call.name, bias.shape)


SHAPED: dict[str, Callable[[Call], Tensor]] = {
    "Concat": _concat,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Identity": _same,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
