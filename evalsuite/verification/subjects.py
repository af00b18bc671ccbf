"""State what a verifier asks of a network: its property in balls around samples or, for a network
of tokens, around what the samples' tokens are embedded to.

So every `Subject` is a network of real inputs, with the properties of the samples that share it. A
network's graph is that of the ONNX file that it is, or of the file that it is exported to.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import torch

from evalsuite.contract import Bench, Network, Property, Unsupported, property_at
from evalsuite.deployed import is_file
from netverify.graph import Graph as Bounded
from netverify.onnx_reader import compare, graph_of, graph_of_typed
from netverify.zonotopes.forward import attends, zonotope_of
from netverify.zonotopes.zonotope import Zonotope
from opgraph.continued import continued
from opgraph.deployment import export_onnx
from opgraph.embedded import Embedded, embedded
from opgraph.graph import Graph
from opgraph.onnx_network import OnnxNetwork
from opgraph.operations import Operation
from opgraph.reading import read, read_onnx

# A module may round to float32 on the way, whatever its precision.
_POINTS, _CLOSE = 2, 1e-5


def graph_of_network(network: Network) -> tuple[onnx.ModelProto, Bounded]:
    """The model, and its graph in float64, which has been compared with ONNX Runtime, and with the
    module.

    Raises:
        Unsupported: the network cannot be exported, an operator has no reader, or the file's
            numbers of inputs or outputs are not the network's, or the module computes something
            else.
    """
    model = _model(network)
    if isinstance(network.module, Embedded):
        # As it is: the exporter writes norms out, and without a small eps.
        graph = graph_of_typed(network.module.graph, model.graph.input[0].name)
    else:
        graph = graph_of(model, "the network")
    compare(graph, model, "the network")
    wanted = math.prod(network.input_shape), network.classes
    if (graph.inputs, graph.outputs) != wanted:
        raise Unsupported(
            f"the graph has {graph.inputs} inputs and {graph.outputs} outputs a sample, the data"
            f" {wanted[0]} and {wanted[1]}"
        )
    _compare_module(graph, network)
    return model, graph


def graph_alone(network: Network) -> Bounded:
    """The graph without the model, which takes seconds to be exported: of what follows an embedding
    it is not needed.

    Raises:
        Unsupported: as for `graph_of_network`.
    """
    if not isinstance(network.module, Embedded):
        return graph_of_network(network)[1]
    graph = graph_of_typed(network.module.graph, network.module.graph.inputs[0])
    _compare_module(graph, network)
    return graph


def zonotopes_of(network: Network, known: Bounded | None = None) -> Callable[..., Zonotope] | None:
    """For a network with attention the function that bounds its outputs over one box by a zonotope;
    None of any other. `known` is its graph as `Subject.graph` gives it, where that was read: one
    without attention is not read again.

    The function takes the box's ends, each (1, *input_shape) float64, and `check`, as `zonotope_of`
    does. None also where the network cannot be read by torch.export.
    """
    module = network.module
    if known is not None and known.typed is not None and not attends(known.typed):
        return None
    try:
        if isinstance(module, Embedded):
            graph = module.graph
        elif isinstance(module, OnnxNetwork) and is_file(network):
            graph = read_onnx(module.path, output=module.output)
        else:
            graph = read(module, network.example(2))
    except Unsupported:
        return None
    return partial(zonotope_of, graph) if attends(graph) else None


@torch.no_grad()
def _compare_module(graph: Bounded, network: Network) -> None:
    """Raise Unsupported where the graph of an exported module computes something else than the
    module.
    """
    if is_file(network):
        return
    module = copy.deepcopy(network.module).double().eval()
    random = torch.randn(_POINTS, *network.input_shape, generator=torch.Generator().manual_seed(0))
    # Real and random inputs in one batch; each is compared by the size of its own outputs.
    points = torch.cat([network.example(_POINTS).double(), random.double()])
    widest = max((node.size for node in graph.nodes), default=1)
    some = points.split(max(1, _ENTRIES // widest))  # type: ignore[no-untyped-call]
    ours = torch.cat([graph(part.flatten(1)) for part in some])
    theirs = torch.cat([module(part).flatten(1) for part in some])
    apart, size = (ours - theirs).abs(), theirs.abs()
    if not bool((apart <= _CLOSE * (size + size.amax(1, keepdim=True))).all()):
        raise Unsupported(f"the graph differs from the module by {float(apart.max()):.3g}")


def _model(network: Network) -> onnx.ModelProto:
    if isinstance(network.module, OnnxNetwork) and is_file(network):
        return network.module.model()
    with TemporaryDirectory() as folder:
        try:
            path = Path(folder) / "network.onnx"
            return export_onnx(
                network.module, network.input_shape, path, example=network.example(2)
            )
        except (OSError, MemoryError):  # a full disk says nothing of the network
            raise
        except Exception as error:  # torch's and onnx's errors share no base class
            said = (str(error).splitlines() or [""])[0]
            raise Unsupported(
                f"cannot be exported to ONNX: {type(error).__name__}: {said}"
            ) from error


_ENTRIES = 2**24  # of the widest value, of all points that are compared at once
_ANYWHERE = (-math.inf, math.inf)  # where an embedded token may lie
# A sample's place, the position that is asked for, and what it is embedded to.
_Member = tuple[int, int | None, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Subject:
    """A network of real inputs, and `properties` of a radius: what is asked of it around the
    samples it stands for.
    """

    network: Network
    properties: Callable[[float], list[Property]]

    def graph(self) -> Bounded:
        """The network's graph, compared with it; of embedded tokens without an ONNX file, which
        takes seconds.
        """
        return graph_alone(self.network)


def subjects(network: Network, bench: Bench, count: int, *, positions: int = 0) -> list[Subject]:
    """The network with the first `count` test samples that have a target; of tokens, what follows
    their embedding.

    Of tokens, samples of the same masks and positions share a subject, whose module is an
    `Embedded` one. Where each position has a target, the logits of the last position that has one
    are meant.

    Args:
        network: what is verified.
        bench: its data.
        count: how many samples.
        positions: of tokens, how many positions are inputs: the last ones up to the one whose
            logits are meant, or up to the last that the outputs depend on. What comes before them
            is the sample's: see `continued`. 0 for all.

    Raises:
        Unsupported: the network takes several real inputs, it cannot be read as a graph, not
            exactly one table is given its tokens, or the table is another one than before the swap.
    """
    if network.vocabulary is None:
        if network.several:
            raise Unsupported(f"takes one real input, or tokens; {network.name} has several inputs")
        return [Subject(network, lambda eps: bench.properties(eps, count))]
    # 1. Read the whole network, and that before the swap, once.
    example, test, vocabulary = network.example(2), bench.data.test, network.vocabulary
    whole = read(network.module, example)
    before = None if network.unswapped is None else read(network.unswapped, example)
    groups = list[tuple[Graph, Graph | None, Network, list[_Member]]]()
    for place in test.labelled.nonzero().flatten()[:count].tolist():
        sample, position = test.inputs[torch.tensor([place])], _position(whole, bench, place)
        # 2. Cut the graph behind the embedding: vectors are the inputs then.
        cut, vectors = embedded(whole, sample, vocabulary, position)
        former = None
        if before is not None:
            former, others = embedded(before, sample, vocabulary, position)
            if not torch.equal(others, vectors):  # of each sample: its tokens choose their own rows
                raise Unsupported(
                    "the embedding changed after the swap: there is no one ball for both networks"
                )
        if positions:
            # 3. Take the last positions alone as inputs.
            stop = _behind(cut, vectors) if position is None else position + 1
            start = max(0, stop - positions)
            former = None if former is None else continued(former, vectors, start, stop)
            cut, vectors = continued(cut, vectors, start, stop), vectors[:, start:stop]
        # 4. Samples whose graphs are the same, masks and positions included, are verified as one
        # network.
        members = next(
            (group[3] for group in groups if _same(group[0], cut) and _same(group[1], former)), None
        )
        if members is None:
            unswapped = None if former is None else Embedded(former)
            shape = tuple(vectors.shape[1:])
            network_behind = Network(
                network.name, Embedded(cut), shape, network.classes, unswapped, given=vectors
            )
            members = list[_Member]()
            groups.append((cut, former, network_behind, members))
        members.append((place, position, vectors[0]))
    return [
        Subject(network_behind, partial(_properties, bench, members))
        for _, _, network_behind, members in groups
    ]


def _behind(cut: Graph, vectors: torch.Tensor) -> int:
    """The position behind the last one that the outputs depend on: what a mask hides moves
    nothing.
    """
    with torch.enable_grad():
        # The gradient of outputs with random weights is 0 exactly at positions that nothing depends
        # on.
        outputs = cut(vectors_with_gradient := vectors.detach().double().requires_grad_())
        weights = torch.rand(
            outputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        (gradient,) = torch.autograd.grad(outputs, vectors_with_gradient, weights)
    seen = gradient.abs().sum((0, 2)).nonzero().flatten().tolist()
    return int(max(seen, default=vectors.shape[1] - 1)) + 1


def _position(whole: Graph, bench: Bench, place: int) -> int | None:
    """Whose logits are meant, where each position has some."""
    test = bench.data.test
    if len(whole.nodes[whole.output].shape) != 3:
        return None
    if test.targets.ndim != 2 or test.task.asks != "margin":
        raise Unsupported(
            "each position has outputs, and the targets are no class for each position"
        )
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

    return type(one) is type(other) and all(
        alike(value, vars(other)[name]) for name, value in vars(one).items()
    )
