"""A network as it is executed in float32: the graph of real arithmetic in which each value may be
off by its rounding.

Bounds of that graph hold for the real function, for every input rounded to float32, and for every
execution that this model covers; so one proof is of all of them. A sum of n products in any order,
with fused multiplications or without, is off by at most n u / (1 - n u) times the sum of the
magnitudes, u = 2^-24 (N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section
3.1). Assumed of runtimes on a processor, as of ONNX Runtime's: products are summed as they stand
(no Winograd or Fourier transforms, no bfloat16 or TF32), scales of a BatchNorm may be multiplied
into weights before, and an activation is off by at most 32 units of |f(x)| + |x| (1 + its steepest
slope); a test measures ONNX Runtime's. Subnormal numbers may count as 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

import torch

from lambda_gelu.activations import RELU, Activation
from netverify.graph import (
    Affine,
    Convex,
    Difference,
    Graph,
    Maximum,
    Node,
    Operation,
    Pointwise,
    Product,
    Rounded,
    Shares,
)
from netverify.linear import Convolution, Dense, Linear, Same, Scale, Select
from opgraph import operations as typed
from opgraph.errors import Unsupported

UNIT = 2.0**-24
LEAST = 2.0**-126
"""The least normal number of float32."""
# units of each sum: biases, factors that are multiplied into weights before, a rescaling
_SPARE = 16
_CURVE = 32  # units of an activation
_UNBOUNDED = "no bound of float32's rounding of node {!r} ({})"


@dataclass(frozen=True, slots=True)
class Silent(Linear):
    """Zero times a map: of its operand only the magnitude counts, for rounding."""

    of: Linear

    @property
    def terms(self) -> int:
        return self.of.terms

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(self.of(x))

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(self.of.pull(rows))

    def absolute(self) -> Linear:
        return self.of.absolute()


def executed(graph: Graph, *parts: Graph) -> Graph:
    """The graph with rounding. Its input is any real point, which is rounded to float32 first.

    Args:
        graph: of real arithmetic.
        parts: the networks that it is made of, where they are several.

    Raises:
        Unsupported: an operation whose rounding has no bound here, by its node's name; the reason
            is for readers.
    """
    for part in parts or (graph,):
        for read in () if part.typed is None else part.typed.nodes:
            # Runtimes have formulas of their own for these, which a graph of simpler nodes does not
            # show.
            if isinstance(read.operation, typed.LayerNorm | typed.RMSNorm | typed.Softmax):
                raise Unsupported(_UNBOUNDED.format(read.name, type(read.operation).__name__))
    writer = _Writer(graph)
    for node in graph.nodes:
        writer.take(node)
    return replace(graph, nodes=tuple(writer.nodes), output=writer.place[graph.output])


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.place = [0]
        self._computed = [0]  # before rounding
        self._inputs = graph.inputs
        differences = [node for node in graph.nodes if isinstance(node.operation, Difference)]
        apart = {node.sources[0] for node in differences}
        # What two networks differ by is none of their values, and nothing rounds it.
        self._virtual = apart | {
            source for value in apart for source in graph.nodes[value - 1].sources[1:]
        }

    def take(self, node: Node) -> None:
        """Add a node, and where its operation is not affine and not exact, what it may be off
        by.
        """
        operation, sources = node.operation, tuple(self.place[source] for source in node.sources)
        # 1. What two networks differ by is computed by no runtime: it stays as it is.
        if len(self.place) in self._virtual:
            self._keep(self._add(replace(node, sources=sources)))
            return
        # 2. The operand. A difference is of values before the rounding that is added to them; an
        # affine node rounds what it sums; any other node that takes the input takes it as rounded
        # to float32.
        if isinstance(operation, Difference):
            sources = (sources[0], *(self._computed[source] for source in node.sources[1:]))
        elif isinstance(operation, Affine):
            operation = _affine(operation, of_input=0 in sources)
        elif 0 in sources:
            rounded = self._rounded("input", (0,), self._inputs, 1.0)
            sources = tuple(source or rounded for source in sources)
        result = computed = self._add(replace(node, operation=operation, sources=sources))
        # 3. What the result may be off by, as an affine node behind it: choices and ReLU are exact.
        match operation:
            case Affine() | Difference() | Maximum() | Rounded():
                pass
            case Pointwise() if operation.traits.name == RELU.name:
                pass
            case Pointwise():
                # 32 units of |f(x)| + |x| (1 + the steepest slope), as the module assumes. The
                # operand's own value is multiplied by 0, and only its magnitude counts.
                factor = torch.full(
                    (node.size,), 1 + _steepest(operation.traits), dtype=torch.float64
                )
                result = self._rounded(
                    node.name, (result, *sources), node.size, _CURVE, Silent(Scale(factor))
                )
            case Product():
                result = self._rounded(node.name, (result,), node.size, 2.0)
            case Convex(name="square"):
                result = self._rounded(node.name, (result,), node.size, 2.0)
            case _:
                raise Unsupported(_UNBOUNDED.format(node.name, _name(operation)))
        self._keep(result, computed)

    def _keep(self, value: int, computed: int | None = None) -> None:
        self.place.append(value)
        self._computed.append(value if computed is None else computed)

    def _rounded(
        self, name: str, sources: tuple[int, ...], size: int, units: float, *more: Linear
    ) -> int:
        bias = torch.zeros(size, dtype=torch.float64)
        operation = Affine(
            (Same(), *more), bias, rounding=units * UNIT * (1 + 1e-6), slack=(1 + units) * LEAST
        )
        return self._add(Node(name, operation, sources, size))

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes)


def _affine(operation: Affine, *, of_input: bool) -> Affine:
    """Rounding of each output: of so many products, of what is added to them, and of the input,
    to float32.
    """
    products = [_products(map_) for map_ in operation.maps]
    if len(products) == 1 and not products[0] and not bool(operation.bias.any()):
        # Entries that are moved, or negated.
        return replace(operation, rounding=2 * UNIT, slack=LEAST) if of_input else operation
    # n u / (1 - n u), Higham's bound of a sum in any order.
    units = (sum(products) + len(products) + _SPARE) * UNIT
    if units >= 0.5:
        raise Unsupported(f"no bound of float32's rounding of sums of {sum(products)} products")
    return replace(operation, rounding=units / (1 - units), slack=(sum(products) + _SPARE) * LEAST)


def _products(map_: Linear) -> int:
    """The most products that an output is a sum of; 0 where entries are only moved."""
    match map_:
        case Same() | Select():
            return 0
        case Scale():
            return 1 + map_.terms
        case Dense():
            return map_.weight.shape[1]
        case Convolution():
            return map_.weight[0].numel()
    return map_.terms


def _steepest(traits: Activation) -> float:
    """The greatest slope's magnitude: between inflections and kinks a slope is monotone."""
    # Kinks are approached from both sides, as the slope at one is that of either.
    beside = [
        torch.tensor(kink + side, dtype=torch.float64)
        for kink in traits.kinks
        for side in (-1e-9, 1e-9)
    ]
    turning = [torch.tensor(inflection, dtype=torch.float64) for inflection in traits.inflections]
    slopes = [abs(float(traits.slope(point))) for point in (*beside, *turning)]
    steepest = max([*slopes, *(abs(limit) for limit in traits.limits)], default=1.0)
    if not isfinite(steepest):
        raise Unsupported(
            f"no bound of float32's rounding of {traits.name}, which has no steepest slope"
        )
    return steepest * (1 + 1e-6)


def _name(operation: Operation) -> str:
    if isinstance(operation, Shares):
        return "Softmax"
    return {"exp-of-softmax": "Softmax", "rsqrt": "a norm"}.get(
        getattr(operation, "name", ""), "a quotient or power"
    )
