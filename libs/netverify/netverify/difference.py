"""Two networks of the same inputs as one graph: bounds of both are carried back to inputs that they
share.

`side_by_side` has a node of what each two activations differ by, where the networks have as many,
one behind the other: bounds follow the difference from layer to layer (arXiv 2001.03662,
2009.09943). Of layers of other sizes, as where channels were pruned, those units are compared which
behave most alike at random inputs; bounds hold whichever they are.

`with_difference` has, of two networks of the same nodes, a node of what each two of their values
differ by, made of what those before differ by: of an affine map, A a - B b = A (a - b) + (A - B) b,
and what both add cancels. Where the networks do not differ yet there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf, prod

import torch

from lambda_gelu.activations import Activation
from netverify import graph as flat
from netverify.graph import Graph, Node
from netverify.linear import Adjoint, Convolution, Dense, Linear, Same, Scale, Select
from netverify.relaxations.twins import are_twins
from netverify.scalar_lines import are_related

# At which units are matched, and how many of the one network by how many of the other at most.
_POINTS, _MOST_MATCHED = 64, 2**22
# The values of two activations, and which entries of each are compared.
Twins = dict[tuple[int, int], tuple[Linear, Linear]]


def _check(first: Graph, second: Graph) -> None:
    if (first.inputs, first.outputs) != (second.inputs, second.outputs):
        raise ValueError(
            f"{first.inputs} inputs and {first.outputs} outputs beside {second.inputs} and"
            f" {second.outputs}"
        )


def with_difference(first: Graph, second: Graph) -> Graph:
    """The graph with outputs (first - second, first, second), each as many as both have.

    Raises:
        ValueError: they have other numbers of inputs or outputs.
    """
    _check(first, second)
    eye = torch.eye(first.outputs, dtype=torch.float64)
    none = torch.zeros_like(eye)
    # 1. Networks of other nodes: each as it is, and nodes of what their activations differ by; the
    # outputs' difference is subtracted at the end.
    if not _are_alike(first, second):
        return _joined(
            first,
            second,
            _twins(first, second),
            torch.cat([eye, eye, none]),
            torch.cat([-eye, none, eye]),
        )
    # 2. Networks of the same nodes: every value's difference is known, and so is the output's.
    pair = _Pair(first, second)
    output, other, apart = pair.places[first.output]
    parts = [(output, torch.cat([none, eye, none])), (other, torch.cat([none, none, eye]))]
    if apart is not None:
        parts.append((apart, torch.cat([eye, none, none])))
    return _ended(first, pair.nodes, parts)


def _ended(graph: Graph, nodes: list[Node], parts: Iterable[tuple[int, torch.Tensor]]) -> Graph:
    sources, weights = zip(*parts, strict=True)
    size = len(weights[0])
    operation = flat.Affine(tuple(map(Dense, weights)), torch.zeros(size, dtype=torch.float64))
    nodes = [*nodes, Node("difference", operation, sources, size)]
    return replace(graph, nodes=tuple(nodes), output=len(nodes), output_shape=(1, size))


def _are_alike(first: Graph, second: Graph) -> bool:
    """Whether they have the same nodes, but for their numbers."""
    return (first.output, len(first.nodes)) == (second.output, len(second.nodes)) and all(
        (type(one.operation), one.sources, one.size)
        == (type(other.operation), other.sources, other.size)
        for one, other in zip(first.nodes, second.nodes, strict=True)
    )


class _Pair:
    """The nodes of two networks that are alike, with those of what they differ by; `places` of each
    value: its two and their difference, None where it is 0.
    """

    def __init__(self, first: Graph, second: Graph) -> None:
        self.nodes = list[Node]()
        self.places: list[tuple[int, int, int | None]] = [(0, 0, None)]
        for nodes in zip(first.nodes, second.nodes, strict=True):
            apart = [self.places[source][2] for source in nodes[0].sources]
            one = nodes[0].renumbered(lambda old: self.places[old][0])
            other = nodes[1].renumbered(lambda old: self.places[old][1])
            self.nodes += [one, other]
            values = len(self.nodes) - 1, len(self.nodes)
            self.places.append((*values, self._apart(one, other, values, apart)))

    def _apart(
        self, one: Node, other: Node, values: tuple[int, int], apart: list[int | None]
    ) -> int | None:
        # 1. Affine: A a - B b = A (a - b) + (A - B) b, with maps A - B that are known exactly.
        first, second = one.operation, other.operation
        changes = [_change(*maps) for maps in zip(_maps(first), _maps(second), strict=True)]
        if (
            isinstance(first, flat.Affine)
            and isinstance(second, flat.Affine)
            and None not in changes
        ):
            parts = [
                (before, map_)
                for map_, before in zip(first.maps, apart, strict=True)
                if before is not None
            ]
            for source, change in zip(other.sources, changes, strict=True):
                parts += [(source, part) for part in change or ()]
            bias = first.bias - second.bias
            return self._append(one, *parts, bias=bias) if parts or bool(bias.any()) else None
        if isinstance(first, flat.Product) and not any(changes) and None not in changes:
            # x y - x' y' = (x - x') y + x' (y - y')
            pairs = (apart[0], one.sources[1]), (other.sources[0], apart[1])
            differences = [
                self._add(one, replace(first, most=inf), x, y)
                for x, y in pairs
                if x is not None and y is not None
            ]
            return (
                self._append(one, *((value, Same()) for value in differences))
                if differences
                else None
            )
        # 2. Equal functions of equal operands do not differ.
        if apart == [None] and _are_equal(first, second):
            return None
        # 3. Unrelated functions: their difference as it stands. Of related ones planes are known.
        if not are_related(first, second):
            return self._append(one, (values[0], Same()), (values[1], Same(-1)))
        source = apart[0] or self._append(one)
        return self._add(one, flat.Difference(Same(), Same()), source, *values)

    def _append(
        self, node: Node, *parts: tuple[int, Linear], bias: torch.Tensor | None = None
    ) -> int:
        bias = torch.zeros(node.size, dtype=torch.float64) if bias is None else bias
        return self._add(
            node,
            flat.Affine(tuple(map_ for _, map_ in parts), bias),
            *(source for source, _ in parts),
        )

    def _add(self, node: Node, operation: flat.Operation, *sources: int) -> int:
        self.nodes.append(replace(node, operation=operation, sources=sources))
        return len(self.nodes)


def _maps(operation: flat.Operation) -> tuple[Linear, ...]:
    if isinstance(operation, flat.Affine):
        return operation.maps
    return (operation.left, operation.right) if isinstance(operation, flat.Product) else ()


def _change(first: Linear, second: Linear) -> list[Linear] | None:
    """Return what first - second maps by: nothing where they are equal, and None where it is not
    known exactly.
    """
    if isinstance(first, Dense | Convolution) and isinstance(second, Dense | Convolution):
        if _geometry(first) != _geometry(second):
            return None
        change = first.weight - second.weight
        return [replace(first, weight=change)] if bool(change.any()) else []
    if isinstance(first, Adjoint) and isinstance(second, Adjoint):
        # The transpose of a difference is the difference of the transposes.
        inner = _change(first.of, second.of)
        return None if inner is None else [Adjoint(part) for part in inner]
    if isinstance(first, Select) and isinstance(second, Select):
        return (
            [] if first.inputs == second.inputs and torch.equal(first.index, second.index) else None
        )
    if isinstance(first, Scale) and isinstance(second, Scale):
        changes = [(first.factor, *first.of), (second.factor, *second.of)]
        return (
            [] if len(changes[0]) == len(changes[1]) and all(map(torch.equal, *changes)) else None
        )
    return [] if isinstance(first, Same) and first == second else None


def _geometry(map_: Dense | Convolution) -> object:
    """All that a map is but its numbers."""
    rest = map_.blocks if isinstance(map_, Dense) else (map_.shape, map_.out_shape, map_.window)
    return map_.weight.shape, rest


def _are_equal(first: flat.Operation, second: flat.Operation) -> bool:
    """Whether two operations of one value compute the same of the same."""
    if isinstance(first, flat.Maximum) and isinstance(second, flat.Maximum):
        return torch.equal(first.windows, second.windows)
    return isinstance(first, flat.Pointwise | flat.Convex | flat.Rounded) and first == second


def side_by_side(first: Graph, second: Graph) -> Graph:
    """The graph with outputs (first, second). Raises ValueError as `with_difference` does."""
    _check(first, second)
    eye = torch.eye(first.outputs, dtype=torch.float64)
    none = torch.zeros_like(eye)
    return _joined(
        first, second, _twins(first, second), torch.cat([eye, none]), torch.cat([none, eye])
    )


def _joined(first: Graph, second: Graph, twins: Twins, *weights: torch.Tensor) -> Graph:
    nodes = list[Node]()
    places: tuple[dict[int, int], dict[int, int]] = {0: 0}, {0: 0}
    # Both networks up to each pair of twins, then the nodes of what the twins differ by.
    starts = [(0, 0), *twins, (len(first.nodes), len(second.nodes))]
    for before, behind in pairwise(starts):
        for graph, place, start, end in zip((first, second), places, before, behind, strict=True):
            for value in range(start + 1, end + 1):
                nodes.append(graph.nodes[value - 1].renumbered(place.__getitem__))
                place[value] = len(nodes)
        if behind in twins and behind != before:
            nodes += _difference(nodes, places[0][behind[0]], places[1][behind[1]], twins[behind])
    outputs = places[0][first.output], places[1][second.output]
    return _ended(first, nodes, zip(outputs, weights, strict=True))


def _twins(first: Graph, second: Graph) -> Twins:
    """The corresponding activations in order, with the units that are compared; none where their
    numbers differ.
    """
    ours, theirs = (list(_activations(graph)) for graph in (first, second))
    if len(ours) != len(theirs):
        return {}
    # Units are matched by how they behave at random inputs.
    points = torch.randn(
        _POINTS, first.inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    values = first.values(points), second.values(points)
    twins = {}
    for (one, operand, traits), (other, twin, as_twin) in zip(ours, theirs, strict=True):
        alike = _alike(values[0][operand], values[1][twin])
        if alike is not None and are_twins(traits, as_twin):
            twins[one, other] = alike
    return twins


def _alike(first: torch.Tensor, second: torch.Tensor) -> tuple[Linear, Linear] | None:
    """Choose the units of two operands that are compared, by their values (points, units) at some
    points; None if they are too many.
    """
    sizes = first.shape[1], second.shape[1]
    if sizes[0] == sizes[1]:
        return Same(), Same()
    if prod(sizes) > _MOST_MATCHED:
        return None
    from scipy.optimize import linear_sum_assignment

    # The pairs whose distances at the points sum to the least.
    places = linear_sum_assignment(torch.cdist(first.T, second.T).numpy())
    left, right = (
        Select(torch.from_numpy(chosen), size) for chosen, size in zip(places, sizes, strict=True)
    )
    return left, right


def _activations(graph: Graph) -> Iterator[tuple[int, int, Activation]]:
    for value, node in enumerate(graph.nodes, start=1):
        if isinstance(node.operation, flat.Pointwise) and are_twins(
            node.operation.traits, node.operation.traits
        ):
            yield value, node.sources[0], node.operation.traits


def _difference(
    nodes: list[Node], first: int, second: int, maps: tuple[Linear, Linear]
) -> list[Node]:
    """Make the nodes of what two values, the last of which is the last node, and their operands
    differ by.
    """
    (one,), (other,) = nodes[first - 1].sources, nodes[second - 1].sources
    name, size = nodes[-1].name, len(maps[0](torch.zeros(nodes[first - 1].size)))
    none, chosen = torch.zeros(size, dtype=torch.float64), len(nodes) + 1
    operations: list[tuple[flat.Operation, tuple[int, ...]]] = [
        (flat.Affine((maps[1],), none), (other,)),
        (flat.Affine((maps[0], Same(-1)), none), (one, chosen)),
        (flat.Difference(*maps), (chosen + 1, first, second)),
    ]
    return [Node(name, operation, sources, size) for operation, sources in operations]
