"""What linear bounds of a network's graph take, estimated before they are computed: seconds, by the
multiplications of its operations, and bytes, by its outputs.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod

from netverify.scalar_lines import is_piecewise_linear
from opgraph.estimates import RATE, refuse_beyond
from opgraph.graph import Graph, Node
from opgraph.operations import Convolution, Linear, MatMul, Pointwise
from opgraph.sizes import at

_DOUBLE = 2  # times as long as in float32
_ENDS = 2  # rows of each entry: its lower and its upper bound
_BYTES, _HELD = 8, 4  # of a coefficient, and how many times all rows over the outputs are held


def refuse_margins(outputs: int, *, rows: int, networks: int = 1) -> None:
    """Raise Unsupported where what is asked of one box takes more memory than there is, by
    estimate.

    Args:
        outputs: of one network.
        rows: how many are asked for of each output: the output itself, its margin, or a difference.
        networks: whose outputs, and their differences, a row has a number for each.
    """
    refuse_beyond(
        _HELD * _BYTES * rows * networks * outputs**2,
        f"bounds of the margins of {outputs} outputs, each a row of as many numbers,",
        "they grow with the square of the classes, or words; take fewer of them",
    )


def multiplications(graph: Graph) -> list[int]:
    """The multiplications of each value's own operation, for one sample."""
    return [_of(node, graph) for node in graph.nodes]


def _of(node: Node, graph: Graph) -> int:
    match node.operation:
        case Linear(weight=weight):
            return prod(at(node.shape, 1)) * weight.shape[1]
        case Convolution(weight=weight, transposed=transposed):
            taken = graph.nodes[node.sources[0]].shape if transposed else node.shape
            return prod(at(taken, 1)) * prod(weight.shape[1:])
        case MatMul():
            return prod(at(node.shape, 1)) * at(graph.nodes[node.sources[0]].shape, 1)[-1]
    return 0


def carrying_seconds(graph: Graph, rows: int, *, points: bool) -> float:
    """Seconds for which one thread carries rows over the outputs back to the input of one box, in
    float64; and, unless boxes are points, both bounds of each entry that a smooth activation takes.

    Carried back, a row takes the multiplications of the operations before it. What intervals,
    lines around activations and rounding take is not counted, nor are units of ReLU, of which only
    those are carried back that may be on or off: it takes longer.

    Args:
        graph: of one network.
        rows: over its outputs.
        points: whether boxes are single points, whose entries have no bounds but their value.
    """
    before = list(accumulate(multiplications(graph)))
    total = rows * before[graph.output]
    for node in graph.nodes:
        smooth = isinstance(node.operation, Pointwise) and not is_piecewise_linear(
            node.operation.traits
        )
        if smooth and not points:
            entries = prod(at(graph.nodes[node.sources[0]].shape, 1))
            total += _ENDS * entries * before[node.sources[0]]
    return _DOUBLE * total / RATE
