"""Random small ONNX files of several nodes: each takes what an earlier one gave, and some take
two such values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_operators import OPERATORS, OPSETS, Draw, Unfit, draw_attributes

LARGEST = 200  # entries of a value
TRIES = 12  # draws of a node before a file goes without it
Shape = tuple[int, ...]


class Chain:
    """A file under way: its nodes and constants, and the shape of each float32 value that a node
    may take.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng((7, seed))
        self.opset = int(self.random.choice(OPSETS))
        shape = tuple(int(size) for size in self.random.integers(1, 5, self.random.integers(1, 5)))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: dict[str, Shape] = {"x": shape}
        self.points = {"x": self.random.standard_normal(shape).astype(np.float32)}

    def grow(self) -> bool:
        """Add one node that takes the last value, or an earlier one; whether any of a few draws
        fits.
        """
        for _ in range(TRIES):
            kind = str(self.random.choice(sorted(OPERATORS)))
            names = list(self.shapes)
            operand = names[-1] if self.random.random() < 0.7 else str(self.random.choice(names))
            if self._add(kind, operand):
                return True
        return False

    def _add(self, kind: str, operand: str) -> bool:
        try:
            schema = defs.get_schema(kind, self.opset, "")
        except defs.SchemaError:
            return False
        shape = self.shapes[operand]
        draw = Draw(self.random, shape, self.opset, fixed=shape)
        try:
            OPERATORS[kind](draw)
        except Unfit:
            return False
        if draw.shape != shape or draw.outputs != 1:
            return False
        draw_attributes(draw, kind, schema)
        nodes, constants, made = self._nodes(kind, draw, operand)
        value = self._value(nodes, constants)
        if value is None or value.size > LARGEST or value.size == 0 or not np.isfinite(value).all():
            return False
        self.nodes += nodes
        self.constants += constants
        self.shapes[made], self.points[made] = value.shape, value
        return True

    def _nodes(
        self, kind: str, draw: Draw, operand: str
    ) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto], str]:
        """The node between casts, where it is of another type; an operand that stands twice may
        be another value.
        """
        place = len(self.nodes)
        constants: list[onnx.TensorProto] = []
        nodes: list[onnx.NodeProto] = []
        names = []
        alike = [name for name, shape in self.shapes.items() if shape == draw.shape]
        for given in draw.inputs:
            if not isinstance(given, str):
                names.append(f"c{len(self.constants) + len(constants)}")
                constants.append(numpy_helper.from_array(np.asarray(given), names[-1]))
            elif given != "x":
                names.append("")
            else:
                source = str(self.random.choice(alike)) if names else operand
                names.append(self._cast(nodes, source, draw.kind, f"i{place}_{len(names)}"))
        attributes = {name: value for name, value in draw.attributes.items() if value is not None}
        nodes.append(
            helper.make_node(kind, names, [f"o{place}"], name=f"n{place}_{kind}", **attributes)
        )
        nodes.append(helper.make_node("Cast", [f"o{place}"], [f"v{place}"], to=TensorProto.FLOAT))
        return nodes, constants, f"v{place}"

    @staticmethod
    def _cast(nodes: list[onnx.NodeProto], source: str, kind: int, name: str) -> str:
        if kind == TensorProto.FLOAT:
            return source
        nodes.append(helper.make_node("Cast", [source], [name], to=kind))
        return name

    def _value(self, nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> Any:
        """What ONNX's reference gives for the new nodes, None where it does not run them: it
        tells the shape alone.
        """
        taken = {name for node in nodes for name in node.input if name in self.points}
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name])
            for name in sorted(taken)
        ]
        last = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "new", inputs, [last], constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8
        )
        try:
            with np.errstate(all="ignore"):
                value = ReferenceEvaluator(model).run(
                    None, {name: self.points[name] for name in taken}
                )[0]
            return np.asarray(value, np.float32)
        except Exception:  # its errors share no base class
            return None


def chain_of(seed: int) -> onnx.ModelProto | None:
    """A random file of two to seven nodes from "x" to the last value; None where too few fit."""
    chain = Chain(seed)
    wanted = int(chain.random.integers(2, 8))
    while len(chain.shapes) <= wanted and chain.grow():
        pass
    if len(chain.shapes) < 3:
        return None
    last = [*chain.shapes][-1]
    chain.nodes[-1].output[0] = "y"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, chain.shapes[of])
        for name, of in (("x", "x"), ("y", last))
    ]
    graph = helper.make_graph(chain.nodes, f"chain {seed}", ends[:1], ends[1:], chain.constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", chain.opset)], ir_version=8
    )
