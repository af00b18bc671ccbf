"""The network that an ONNX file says, exactly: what a proof is of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from evalsuite import Unsupported
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import Affine, ExactNetwork
from pipelines.smt.search.curved_network import CurvedNetwork
from pipelines.smt.search.program import Floats

# Operators, and the values that their attributes may have.
_OPERATORS: dict[str, dict[str, tuple[float, ...]]] = {
    "Gemm": {"alpha": (1.0,), "beta": (1.0,), "transA": (0,), "transB": (0, 1)},
    "MatMul": {},
    "Add": {},
    "Relu": {},
    "Flatten": {"axis": (1,)},
    "Reshape": {"allowzero": (0, 1)},
    "Identity": {},
}
_OLDEST = 7  # before it, Gemm and Add had broadcasting rules of their own
# One rounding of float32, with room for those in its libraries' orders of summation.
_ROUNDING, _TINY, _GREATEST = 2.0**-22, 2.0**-100, 2.0**126
# Of the curved activations: the greatest slope, and some roundings of numbers as large as the input.
_STEEPEST, _CURVE_ROUNDING = 1.2, 2.0**-19


def read_chain(content: bytes) -> ExactNetwork:
    """The exact maps of a chain of Gemm, or MatMul and Add, with a Relu between each two.

    Raises:
        Unsupported: the file has other operators, or they are no such chain from its one input to its one output.
    """
    reading, output = follow(content, Reading)
    return reading.network(output)


def follow(content: bytes, kind: type[Reading]) -> tuple[Reading, str]:
    """What a reading of that kind made of a file's nodes, and the output's name. Raises as `read_chain`."""
    model = onnx.load_model_from_string(content)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise Unsupported(f"not a valid ONNX file: {' '.join(str(error).split())[:200]}") from error
    _check_file(model)
    graph = model.graph
    values = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    inputs = [each for each in graph.input if each.name not in values]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise Unsupported(f"{len(inputs)} inputs and {len(graph.output)} outputs; exact reading needs one of each")
    given = inputs[0].type.tensor_type
    batch, *sizes = [each.dim_value for each in given.shape.dim] or [0]
    if given.elem_type != onnx.TensorProto.FLOAT or batch not in (0, 1) or not sizes or min(sizes) < 1:
        shape = [each.dim_param or each.dim_value for each in given.shape.dim]
        raise Unsupported(f"input '{inputs[0].name}' has shape {shape}; exact reading needs float32 (1, fixed sizes)")
    reading = kind(values, inputs[0].name, math.prod(sizes), len(sizes) == 1)
    for node in graph.node:
        reading.take(node)
    return reading, graph.output[0].name


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


def in_float32(network: ExactNetwork | CurvedNetwork, points: Floats) -> tuple[Floats, Floats]:
    """The outputs at float32 `points` (points, inputs), and by how much those of an evaluation in float32 may differ.

    The error is a running bound of first order (Higham, Accuracy and Stability, section 3.3), infinite or NaN where
    float32 may overflow.
    """
    curves = network.curves if isinstance(network, CurvedNetwork) else [None] * len(network.maps)
    state, error = points, np.zeros_like(points)
    with np.errstate(all="ignore"):
        for curve, each in zip((None, *curves), network.maps, strict=False):
            weight, bias = each.weight.floats().T, each.bias.floats()
            if curve is not None:
                error = _STEEPEST * error + _CURVE_ROUNDING * np.maximum(np.abs(state), 1.0)
                state = curve.value(state)
            elif each is not network.maps[0]:
                state = np.maximum(state, 0.0)
            size = np.abs(state) @ np.abs(weight) + np.abs(bias)
            size[size > _GREATEST] = np.inf
            error = error @ np.abs(weight) + (len(weight) + 2) * (_ROUNDING * size + _TINY)
            state = state @ weight + bias
    return state, error


def _check_file(model: onnx.ModelProto) -> None:
    if model.functions:
        raise Unsupported(f"the file defines functions of its own, as '{model.functions[0].name}'")
    version = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)
    if version < _OLDEST:
        raise Unsupported(f"operators of version {version}; exact reading needs {_OLDEST} or later")
    for tensor in model.graph.initializer:
        if tensor.data_location or tensor.external_data:
            raise Unsupported(
                f"constant '{tensor.name}' lies outside the file; export with external_data=False, or write one "
                "file by onnx.save(onnx.load(FILE), ONE_FILE)"
            )


@dataclass(slots=True)
class Reading:
    """What was read of the chain, up to the tensor `current` of `width` numbers, which is a vector if `flat`."""

    values: dict[str, NDArray[Any]]
    current: str
    width: int
    flat: bool
    maps: list[Affine] = field(default_factory=list)
    pending: Affine | None = None
    bare: bool = False  # a MatMul, to which a bias may be added

    def network(self, output: str) -> ExactNetwork:
        """The layers that were read, where they end in that output."""
        if self.pending is None:
            raise Unsupported("exact reading needs a network that ends with an affine layer")
        if output != self.current:
            raise Unsupported(f"the output '{output}' is not the chain's last tensor '{self.current}'")
        return ExactNetwork((*self.maps, self.pending))

    def take(self, node: onnx.NodeProto) -> None:
        """Take the next node of the chain, or refuse it by its name."""
        self._check(node)
        if node.op_type in ("Gemm", "MatMul"):
            self._affine(node)
        elif node.op_type == "Add":
            if self.pending is None or not self.bare:
                refuse(node, "adds to something else than a MatMul")
            self.pending, self.bare = Affine(self.pending.weight, self._bias(node, 1)), False
        elif node.op_type == "Relu":
            if self.pending is None:
                refuse(node, "exact reading needs Gemm and Relu in turn")
            self.maps.append(self.pending)
            self.pending = None
        elif node.op_type != "Identity":
            self._shaping(node)
        self.current = node.output[0]

    def _check(self, node: onnx.NodeProto) -> None:
        known = None if node.domain not in ("", "ai.onnx") else _OPERATORS.get(node.op_type)
        if known is None:
            named = f"{node.domain}.{node.op_type}".lstrip(".")
            raise Unsupported(
                f"exact reading needs Gemm and Relu in turn; node '{node.name}' is {named} (evalsuite verify "
                "reads more operators; the stage smt of a recipe decides networks with GELU too)"
            )
        if not node.input or node.input[0] != self.current:
            raise Unsupported(
                f"exact reading needs a chain of layers; node '{node.name}' ({node.op_type}) is beside it"
            )
        for name in node.input[1:]:
            if name not in self.values:
                refuse(node, f"its input '{name}' is no constant of the file")
        names = [each.name for each in node.attribute]
        for each in node.attribute:
            value = onnx.helper.get_attribute_value(each)
            if value not in known.get(each.name, ()) or names.count(each.name) > 1:
                refuse(node, f"{each.name} = {value} is not read")

    def _affine(self, node: onnx.NodeProto) -> None:
        if self.pending is not None:
            refuse(node, "exact reading needs Gemm and Relu in turn")
        weight = self.values[node.input[1]]
        # Gemm's B and MatMul's second factor are (inputs, outputs), unless transposed.
        turned = any(each.name == "transB" and each.i == 1 for each in node.attribute)
        if not self.flat or weight.ndim != 2 or weight.shape[1 if turned else 0] != self.width:
            refuse(node, f"must take a vector of {self.width} numbers, and its weights are {weight.shape}")
        exact = _exact(weight if turned else weight.T)
        self.width, self.bare = exact.shape[0], node.op_type == "MatMul"
        bias = self._bias(node, 2) if len(node.input) > 2 else Dyadic.zeros(self.width)
        self.pending = Affine(exact, bias)

    def _bias(self, node: onnx.NodeProto, place: int) -> Dyadic:
        bias = self.values[node.input[place]]
        if bias.shape not in ((self.width,), (1, self.width)):
            refuse(node, f"a bias of shape {bias.shape} for {self.width} outputs; exact reading needs one of each")
        return _exact(bias.ravel())

    def _shaping(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Reshape":
            target = self.values[node.input[1]].tolist()
            if target not in [[0, -1], [0, self.width], [1, -1], [1, self.width], [-1, self.width]]:
                refuse(node, f"reshapes to {target}; exact reading needs (batch, {self.width})")
        self.flat = True


def refuse(node: onnx.NodeProto, why: str) -> NoReturn:
    """Raise Unsupported; its text is the node's name and operator, then `why`."""
    raise Unsupported(f"node '{node.name or node.output[0]}' ({node.op_type}): {why}")


def _exact(values: NDArray[Any]) -> Dyadic:
    if values.dtype != np.float32:
        raise Unsupported(f"exact reading needs float32 weights, and these are {values.dtype}")
    try:
        return Dyadic.of(values)
    except ValueError as error:
        raise Unsupported(f"exact reading needs finite weights: {error}") from error
