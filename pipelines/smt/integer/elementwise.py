"""What a neuron computes between two layers of an integer network: elementwise ONNX operators on machine integers.

Each operator works in the type that the file states, modulo 2^bits, as the ONNX standard and ONNX Runtime have it.
Whatever a file builds of them (a requantization in any rounding mode, a table, a polynomial) is a function of one
integer, and is taken as that: nothing here knows what a requantization is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from evalsuite import Unsupported

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One node: an operator of the values `inputs`, by name, that makes `output`."""

    operator: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]
    node: str


@dataclass(frozen=True, slots=True)
class Program:
    """Operations in order, of the one integer `source`; `result` is what comes out. `constants` are their numbers."""

    source: str
    source_type: npt.DTypeLike
    operations: tuple[Operation, ...]
    constants: Mapping[str, Array]
    result: str

    def __call__(self, values: Array) -> npt.NDArray[np.int64]:
        """The results, int64 (points, neurons), of integers (points, neurons) that the source's type holds."""
        known: dict[str, Array] = {self.source: values.astype(self.source_type)}
        for each in self.operations:
            given = [known[name] if name in known else self.constants[name] for name in each.inputs]
            known[each.output] = apply(each, given)
        return np.asarray(np.broadcast_to(known[self.result], values.shape).astype(np.int64))


def apply(operation: Operation, given: list[Array]) -> Array:
    """The result of one operator.

    Raises:
        Unsupported: the operator or its types are not known here; the text names the node.
    """
    if len({each.dtype for each in given}) > 1 and operation.operator != "Gather":
        raise Unsupported(f"node {operation.node!r} ({operation.operator}) mixes {[str(x.dtype) for x in given]}")
    function = _OPERATORS.get(operation.operator)
    if function is None:
        raise Unsupported(f"node {operation.node!r}: no exact meaning of {operation.operator} on single integers")
    with np.errstate(over="ignore"):
        return function(operation, given)


def _cast(operation: Operation, given: list[Array]) -> Array:
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(operation.attributes["to"]))
    if kind.kind not in "iu":
        raise Unsupported(f"node {operation.node!r} casts to {kind}: an integer network holds integers only")
    return given[0].astype(kind)


def _shift(operation: Operation, given: list[Array]) -> Array:
    x, places = given
    if x.dtype.kind != "u" or (places >= x.dtype.itemsize * 8).any():
        raise Unsupported(f"node {operation.node!r} shifts {x.dtype} by up to {places.max()} places")
    shift = np.right_shift if operation.attributes["direction"] == b"RIGHT" else np.left_shift
    return np.asarray(shift(x, places))


def _clip(operation: Operation, given: list[Array]) -> Array:
    if len(given) != 3 or (given[1] > given[2]).any():
        raise Unsupported(f"node {operation.node!r}: a Clip has a lower and an upper limit")
    return np.asarray(np.minimum(np.maximum(given[0], given[1]), given[2]))


def _gather(operation: Operation, given: list[Array]) -> Array:
    table, index = given
    if operation.attributes.get("axis", 0) != 0 or table.ndim != 1:
        raise Unsupported(f"node {operation.node!r}: a table has one dimension, not {table.ndim}")
    if index.size and (int(index.min()) < 0 or int(index.max()) >= len(table)):
        raise Unsupported(f"node {operation.node!r} reads beyond its table of {len(table)} entries")
    return np.asarray(table[index])


def _fold(function: Callable[[Array, Array], Array]) -> Callable[[Operation, list[Array]], Array]:
    def run(_operation: Operation, given: list[Array]) -> Array:
        total = given[0]
        for each in given[1:]:
            total = function(total, each)
        return np.asarray(total)

    return run


_OPERATORS: dict[str, Callable[[Operation, list[Array]], Array]] = {
    "Add": _fold(np.add),
    "Sub": _fold(np.subtract),
    "Mul": _fold(np.multiply),
    "Max": _fold(np.maximum),
    "Min": _fold(np.minimum),
    "BitwiseAnd": _fold(np.bitwise_and),
    "BitShift": _shift,
    "Clip": _clip,
    "Gather": _gather,
    "Cast": _cast,
    "Identity": lambda _operation, given: given[0],
}
NAMES = frozenset(_OPERATORS)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of an ONNX node, name -> value as Python or numpy knows it."""
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}
