"""Which tensors ONNX Runtime's integer kernels read, or must write: where quantizers stand in the
deployed file.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx, nn

from pipelines.quantize.kinds import FLOAT_COMPUTE, clips, is_pool, keeps_grid
from pipelines.quantize.tracing import Add, layer_of


class Readers:
    """Finds what the integer kernels need of the tensors of a traced network.

    A linear layer runs in integers if its input is quantized; what it makes may be real numbers. A
    convolution and a sum run so only if their output is quantized too; of sums only those count
    that an integer kernel reads. Everything else runs in float, and takes and gives real numbers.

    Args:
        traced: the float network.
        runs_in_integers: whether the layer of that name is quantized.
    """

    def __init__(self, traced: fx.GraphModule, runs_in_integers: Callable[[str], bool]) -> None:
        self._traced, self._runs_in_integers = traced, runs_in_integers
        self._answers: dict[tuple[str, fx.Node], bool] = {}

    def on_grid(self, node: fx.Node) -> bool:
        """Whether the tensor that `node` makes is quantized somewhere."""
        return self.written(node) or self.read(node)

    def read(self, node: fx.Node) -> bool:
        """Whether an integer kernel reads the tensor, through layers that keep the grid; sums are
        not counted.
        """
        return self._once("read", node, self._read)

    def written(self, node: fx.Node) -> bool:
        """Whether an integer kernel writes the tensor, so that no real numbers of it exist."""
        return self._once("written", node, self._written)

    def adds(self, node: fx.Node) -> bool:
        """Whether the node is a sum that runs in integers: of quantized tensors, and read by an
        integer kernel.
        """
        return self._once("adds", node, self._adds)

    def reads_integers(self, node: fx.Node) -> bool:
        """Whether the node computes on integers, or moves integers for what does."""
        layer = layer_of(self._traced, node)
        if keeps_grid(layer) or is_pool(layer):
            return self.read(node)
        return self.computes(node) or self.adds(node)

    def _once(self, question: str, node: fx.Node, answer: Callable[[fx.Node], bool]) -> bool:
        key = question, node
        if key not in self._answers:
            self._answers[key] = answer(node)
        return self._answers[key]

    def _read(self, node: fx.Node) -> bool:
        for user in node.users:
            layer = layer_of(self._traced, user)
            if self.computes(user):
                return True
            if keeps_grid(layer) and self.read(user):
                return True
            if is_pool(layer) and self.read(user) and self._origin_in_integers(node):
                return True
        return False

    def _written(self, node: fx.Node) -> bool:
        layer = layer_of(self._traced, node)
        if self._convolves(node) or self.adds(node):
            return self._clipped_by(node) is None
        if clips(layer):
            (source,) = node.all_input_nodes
            return self._clipped_by(source) is node and (
                self._convolves(source) or self.adds(source)
            )
        if keeps_grid(layer):
            return self.on_grid(node.all_input_nodes[0])
        return is_pool(layer) and self.read(node) and self.written(node.all_input_nodes[0])

    def _adds(self, node: fx.Node) -> bool:
        if not isinstance(layer_of(self._traced, node), Add) or not all(
            map(self.on_grid, node.all_input_nodes)
        ):
            return False
        return self.read(self._clipped_by(node) or node)

    def _origin_in_integers(self, node: fx.Node) -> bool:
        """Whether a convolution or a sum makes the tensor; layers that keep the grid or clip may
        lie between.
        """
        layer = layer_of(self._traced, node)
        if keeps_grid(layer) or clips(layer):
            return self._origin_in_integers(node.all_input_nodes[0])
        if isinstance(layer, Add):
            return all(map(self.on_grid, node.all_input_nodes))
        return self._convolves(node)

    def _clipped_by(self, node: fx.Node) -> fx.Node | None:
        """The ReLU that the tensor's grid does by clipping: the only reader of it."""
        (reader,) = node.users if len(node.users) == 1 else (None,)
        return reader if reader is not None and clips(layer_of(self._traced, reader)) else None

    def computes(self, node: fx.Node) -> bool:
        """Whether the node is a linear or convolutional layer that runs in integers."""
        layer = layer_of(self._traced, node)
        return isinstance(layer, FLOAT_COMPUTE) and self._runs_in_integers(str(node.target))

    def _convolves(self, node: fx.Node) -> bool:
        return self.computes(node) and not isinstance(layer_of(self._traced, node), nn.Linear)
