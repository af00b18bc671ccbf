"""The network that an ONNX file says, exactly: what a proof is of."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from evalsuite import Unsupported
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import Affine, ExactNetwork

_SHAPING = ("Flatten", "Reshape", "Identity")


def read_chain(content: bytes) -> ExactNetwork:
    """The exact maps of a chain of Gemm, or MatMul and Add, with a Relu between each two.

    Raises:
        Unsupported: the file has other operators, or they are no such chain.
    """
    graph = onnx.load_model_from_string(content).graph
    values = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    maps: list[Affine] = []
    pending: Affine | None = None
    current = next(each.name for each in graph.input if each.name not in values)
    for node in graph.node:
        given = list(node.input)
        if current not in given:
            raise Unsupported(f"a proof needs a chain of layers; node '{node.name}' ({node.op_type}) is beside it")
        current = node.output[0]
        if node.op_type == "Relu" and pending is not None:
            maps.append(pending)
            pending = None
        elif node.op_type in ("Gemm", "MatMul") and pending is None:
            pending = _affine(node, values)
        elif node.op_type == "Add" and pending is not None and _is_bare(pending):
            (bias,) = (values[each] for each in given if each in values)
            pending = Affine(pending.weight, _exact(bias.ravel()))
        elif node.op_type not in _SHAPING or maps or pending is not None:
            raise Unsupported(f"a proof needs Gemm and Relu in turn; node '{node.name}' is {node.op_type}")
    if pending is None:
        raise Unsupported("a proof needs a network that ends with an affine layer")
    return ExactNetwork((*maps, pending))


def _is_bare(affine: Affine) -> bool:
    """Whether nothing was added to the products yet."""
    return not affine.bias.units.any()


def equal(first: ExactNetwork, second: ExactNetwork) -> bool:
    """Whether both have the same layers with the same numbers."""
    if len(first.maps) != len(second.maps):
        return False
    pairs = [
        pair
        for one, other in zip(first.maps, second.maps, strict=True)
        for pair in ((one.weight, other.weight), (one.bias, other.bias))
    ]
    return all(a.shape == b.shape and not (a - b).units.any() for a, b in pairs)


def _affine(node: onnx.NodeProto, values: dict[str, NDArray[Any]]) -> Affine:
    options = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if (
        node.input[1] not in values
        or options.get("transA", 0)
        or {options.get(n, 1.0) for n in ("alpha", "beta")} != {1.0}
    ):
        raise Unsupported(f"a proof needs plain Gemm; node '{node.name}' scales, transposes or multiplies two inputs")
    weight = values[node.input[1]]
    # Gemm's B and MatMul's second factor are (inputs, outputs), unless transposed.
    weight = weight if options.get("transB", 0) else weight.T
    if len(node.input) < 3:
        return Affine(_exact(weight), Dyadic.zeros(weight.shape[0]))
    bias = np.broadcast_to(values[node.input[2]].ravel(), (weight.shape[0],))
    return Affine(_exact(weight), _exact(bias))


def _exact(values: NDArray[Any]) -> Dyadic:
    if values.dtype != np.float32:
        raise Unsupported(f"a proof needs float32 weights, and these are {values.dtype}")
    try:
        return Dyadic.of(values)
    except ValueError as error:
        raise Unsupported(f"a proof needs finite weights: {error}") from error
