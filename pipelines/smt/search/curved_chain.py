"""The network that an ONNX file with curved activations says, exactly: affine layers, and functions between them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx

from evalsuite import GELU, GELU_TANH, RELU, SIGMOID, SILU, TANH, Activation, Unsupported
from pipelines.smt.search.chain import Reading, follow, refuse
from pipelines.smt.search.curved_network import Curve, CurvedNetwork

_ROWS: dict[str, Activation] = {
    "Gelu": GELU, "Gelu-tanh": GELU_TANH, "Relu": RELU, "Sigmoid": SIGMOID, "Silu": SILU, "Tanh": TANH,
}  # fmt: skip
_UNARY = ("Gelu", "Relu", "Sigmoid", "Tanh")


@dataclass(frozen=True, slots=True)
class _Formula:
    """row(within z) / divisor of a layer's sum z; the row "" is the identity."""

    row: str
    within: float = 1.0
    divisor: float = 1.0


_SUM = _Formula("")


@dataclass
class _CurvedReading(Reading):
    """`formed` are the tensors since the last affine layer, by name."""

    curves: list[Curve] = field(default_factory=list)
    formed: dict[str, _Formula] = field(default_factory=dict)

    def take(self, node: onnx.NodeProto) -> None:
        """See `Reading`."""
        if node.domain not in ("", "ai.onnx") or node.op_type not in (*_UNARY, "Mul", "Div"):
            self.finish()
            super().take(node)
            return
        if self.pending is None:
            refuse(node, "an activation needs an affine layer before it")
        self.formed = self.formed or {self.current: _SUM}
        self.current = node.output[0]
        self.formed[self.current] = self._made(node)

    def finish(self) -> None:
        """Take what was formed for the layer's activation."""
        if not self.formed:
            return
        made = self.formed[self.current]
        if made.row == "" or made.within != made.divisor or self.pending is None:
            raise Unsupported(f"exact reading needs an activation f(h z) / h before '{self.current}', found {made}")
        self.maps.append(self.pending)
        self.curves.append(Curve(_ROWS[made.row], made.within))
        self.pending, self.formed = None, {}

    def _made(self, node: onnx.NodeProto) -> _Formula:
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        given = [self.formed[name] for name in node.input if name in self.formed]
        factors = [self.values[name] for name in node.input if name in self.values]
        if len(given) + len(factors) != len(node.input) or attributes.keys() - {"approximate"}:
            refuse(node, "is beside the chain of layers")
        if node.op_type in _UNARY and given[0].row == "" and given[0].divisor == 1:
            suffix = "-tanh" if attributes.get("approximate", b"none") == b"tanh" else ""
            return _Formula(node.op_type + suffix, given[0].within)
        if node.op_type == "Mul" and len(given) == 2 and _SUM in given:
            (other,) = [each for each in given if each is not _SUM] or [_SUM]
            if other.row == "Sigmoid" and other.divisor == 1:
                return _Formula("Silu", other.within, other.within)
        if len(given) == len(factors) == 1 and factors[0].size == 1 and factors[0].dtype == np.float32:
            factor, (row, within) = float(factors[0].item()), (given[0].row, given[0].within)
            if node.op_type == "Div" and node.input[0] in self.formed and given[0].divisor == 1 and factor > 0:
                return _Formula(row, within, factor)
            if node.op_type == "Mul" and given[0] == _SUM and factor > 0:
                return _Formula("", factor)
        raise Unsupported(f"node '{node.name or node.output[0]}' ({node.op_type}): is no part of a known activation")


def read_curved_chain(content: bytes) -> CurvedNetwork:
    """The exact maps of a chain of affine layers, with activations that have sound lines between them.

    GELU, SiLU, sigmoid, tanh and Relu, as f(z) or f(h z) / h with a number h > 0.

    Raises:
        Unsupported: the file has other operators, or they are no such chain from its one input to its one output.
    """
    reading, output = follow(content, _CurvedReading)
    assert isinstance(reading, _CurvedReading)
    reading.finish()
    return CurvedNetwork(reading.network(output).maps, tuple(reading.curves))
