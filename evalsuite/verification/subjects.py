"""What a verifier asks of a network of real inputs, and of one of tokens: that in balls around what they embed to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from evalsuite.contract import Bench, Network, Property, Unsupported, property_at
from evalsuite.graph.continued import continued
from evalsuite.graph.embedded import Embedded, embedded
from evalsuite.graph.graph import Graph
from evalsuite.graph.operations import Operation
from evalsuite.graph.reading import read
from evalsuite.verification.graph import Graph as Bounded
from evalsuite.verification.of_network import graph_alone

_ANYWHERE = (-math.inf, math.inf)  # where an embedded token may lie
# A sample's place, the position that is asked for, and what it is embedded to.
_Member = tuple[int, int | None, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Subject:
    """A network of real inputs, and `properties` of a radius: what is asked of it around the samples it stands for.

    Example: docs/reference.md#verify-a-property
    """

    network: Network
    properties: Callable[[float], list[Property]]

    def graph(self) -> Bounded:
        """The network's graph, compared with it; of embedded tokens without an ONNX file, which takes seconds."""
        return graph_alone(self.network)


def subjects(network: Network, bench: Bench, count: int, *, positions: int = 0) -> list[Subject]:
    """The network with the first `count` test samples that have a target; of tokens, what follows their embedding.

    Of tokens, samples of the same masks and positions share a subject, whose module is an `Embedded` one. Where each
    position has a target, the logits of the last position that has one are meant.

    Args:
        network: what is verified.
        bench: its data.
        count: how many samples.
        positions: of tokens, how many positions are inputs: the last ones up to the one whose logits are meant, or up
            to the last that the outputs depend on. What comes before them is the sample's: see `continued`. 0 for all.

    Raises:
        Unsupported: the network takes several real inputs, it cannot be read as a graph, not exactly one table is given
            its tokens, or the table is another one than before the swap.

    Example: docs/reference.md#verify-a-property
    """
    if network.vocabulary is None:
        if network.several:
            raise Unsupported(f"takes one real input, or tokens; {network.name} has several inputs")
        return [Subject(network, lambda eps: bench.properties(eps, count))]
    example, test, vocabulary = network.example(2), bench.data.test, network.vocabulary
    whole = read(network.module, example)
    before = None if network.unswapped is None else read(network.unswapped, example)
    found = list[tuple[Graph, Graph | None, Network, list[_Member]]]()
    for place in test.labelled.nonzero().flatten()[:count].tolist():
        sample, position = test.inputs[torch.tensor([place])], _position(whole, bench, place)
        cut, vectors = embedded(whole, sample, vocabulary, position)
        former = None
        if before is not None:
            former, others = embedded(before, sample, vocabulary, position)
            if not torch.equal(others, vectors):  # of each sample: its tokens choose their own rows
                raise Unsupported("the embedding changed after the swap: there is no one ball for both networks")
        if positions:
            stop = _behind(cut, vectors) if position is None else position + 1
            start = max(0, stop - positions)
            former = None if former is None else continued(former, vectors, start, stop)
            cut, vectors = continued(cut, vectors, start, stop), vectors[:, start:stop]
        members = next((each[3] for each in found if _same(each[0], cut) and _same(each[1], former)), None)
        if members is None:
            unswapped = None if former is None else Embedded(former)
            shape = tuple(vectors.shape[1:])
            made = Network(network.name, Embedded(cut), shape, network.classes, unswapped, given=vectors)
            members = list[_Member]()
            found.append((cut, former, made, members))
        members.append((place, position, vectors[0]))
    return [Subject(made, partial(_properties, bench, members)) for _, _, made, members in found]


def _behind(cut: Graph, vectors: torch.Tensor) -> int:
    """The position behind the last one that the outputs depend on: what a mask hides moves nothing."""
    with torch.enable_grad():
        outputs = cut(given := vectors.detach().double().requires_grad_())
        weights = torch.rand(outputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        (gradient,) = torch.autograd.grad(outputs, given, weights)
    seen = gradient.abs().sum((0, 2)).nonzero().flatten().tolist()
    return int(max(seen, default=vectors.shape[1] - 1)) + 1


def _position(whole: Graph, bench: Bench, place: int) -> int | None:
    """Whose logits are meant, where each position has some."""
    test = bench.data.test
    if len(whole.nodes[whole.output].shape) != 3:
        return None
    if test.targets.ndim != 2 or test.task.asks != "margin":
        raise Unsupported("each position has outputs, and the targets are no class for each position")
    return int(test.counted[place].nonzero()[-1])


def _properties(bench: Bench, members: list[_Member], eps: float) -> list[Property]:
    return [
        property_at(center, bench.data.test, place, eps=eps, domain=_ANYWHERE, position=position)
        for place, position, center in members
    ]


def _same(one: Graph | None, other: Graph | None) -> bool:
    """Whether two graphs compute the same by the same operations, or there is none of either."""
    if one is None or other is None:
        return one is other
    return len(one.nodes) == len(other.nodes) and all(
        first.sources == second.sources and _equal(first.operation, second.operation)
        for first, second in zip(one.nodes, other.nodes, strict=True)
    )


def _equal(one: Operation, other: Operation) -> bool:
    def alike(a: object, b: object) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return torch.equal(a, b)
        return type(a) is type(b) and a == b

    return type(one) is type(other) and all(alike(value, vars(other)[name]) for name, value in vars(one).items())
