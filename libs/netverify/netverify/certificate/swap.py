"""The swap certificate: what replacing the activations by ReLU can change, at the most, over a box
of inputs.

Networks are read as graphs, with a hardness for each activation, and with ReLU in their places.
Both are bounded together, by what they differ by from layer to layer: the bounds of each for
itself, subtracted, would forget what they have in common.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import nn

from lambda_gelu.activations import RELU
from netverify.carried import carrying_seconds
from netverify.difference import with_difference
from netverify.graph import Graph
from netverify.of_graph import refuse_attention
from netverify.onnx_reader import graph_of_typed
from netverify.propagation import Propagation
from netverify.zonotopes.forward import attends, zonotopes_apart
from netverify.zonotopes.zonotope import Zonotope
from opgraph import sizes
from opgraph.embedded import Embedded
from opgraph.errors import Unsupported
from opgraph.estimates import too_slow
from opgraph.graph import Graph as TypedGraph
from opgraph.graph import Node
from opgraph.operations import Constant, Operation, Pointwise, Product
from opgraph.reading import read


def read_module(module: nn.Module, input_shape: tuple[int, ...]) -> TypedGraph:
    """The graph of a network of one real input, of what its float32 parameters mean in real
    arithmetic.

    Raises:
        Unsupported: parameters that are not finite, or no float32 numbers; a forward pass that is
            hooked or changed from outside; what `opgraph.read` refuses.
    """
    _refuse(module)
    if isinstance(module, Embedded):
        return module.graph
    # The graph is of float32 numbers: a network of others would be another function.
    single = copy.deepcopy(module).float()
    for (name, ours), theirs in zip(
        module.state_dict().items(), single.state_dict().values(), strict=True
    ):
        if not torch.equal(ours.double(), theirs.double()):
            raise Unsupported(
                f"{name} has values that are no float32 numbers: round them by .float() before"
            )
    example = torch.rand((2, *input_shape), generator=torch.Generator().manual_seed(0))
    return read(single, example)


def _refuse(module: nn.Module) -> None:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not bool(tensor.isfinite().all()):
            raise Unsupported(f"{name} has values that are not finite")
    for path, layer in module.named_modules():
        where = path or "the network"
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise Unsupported(
                f"{where} has forward hooks and may compute something else than its layer: remove"
                " them"
            )
        if "forward" in vars(layer):
            raise Unsupported(
                f"{where} has a forward of its own, and may compute something else than its layer"
            )


def activations(graph: TypedGraph) -> dict[int, Pointwise]:
    """The activations that are no gates, by their numbers."""
    numbered = ((index, node.operation) for index, node in enumerate(graph.nodes))
    return {
        index: operation
        for index, operation in numbered
        if isinstance(operation, Pointwise) and not operation.traits.gate
    }


def given_way(graph: TypedGraph) -> dict[int, Pointwise]:
    """The activations that a swap replaces by ReLU, and ReLUs themselves, by their numbers."""
    return {
        index: activation
        for index, activation in activations(graph).items()
        if activation.traits.swaps
    }


def with_activations(graph: TypedGraph, wanted: dict[int, Pointwise]) -> TypedGraph:
    """The graph with other activations in the place of the numbered values.

    Where lambda is no float32 number, g(lambda x) * (1 / lambda) is written out, which is bounded
    as it is written.
    """
    nodes, places = list[Node](), list[int]()

    def add(node: Node, operation: Operation, *sources: int) -> int:
        nodes.append(replace(node, operation=operation, sources=sources))
        return len(nodes) - 1

    for index, node in enumerate(graph.nodes):
        sources = [places[source] for source in node.sources]
        activation = wanted.get(index, node.operation)
        if (
            index not in wanted
            or not isinstance(activation, Pointwise)
            or activation.hardness is None
        ):
            places.append(add(node, activation, *sources))
            continue
        # 1. A lambda that float32 holds is part of the activation.
        single, scale = activation.hardness.float(), activation.hardness.double()
        if torch.equal(single.double(), scale):
            places.append(add(node, replace(activation, hardness=single), *sources))
            continue
        # 2. Any other is written out: times lambda, the activation, times 1 / lambda.
        for number, operation in enumerate(
            (Product(), replace(activation, hardness=None), Product())
        ):
            if number != 1:
                factor = scale if number == 0 else 1 / scale
                sources.append(add(replace(node, shape=tuple(factor.shape)), Constant(factor)))
            sources = [add(node, operation, *sources)]
        places += sources
    return TypedGraph(tuple(nodes), places[graph.output], graph.inputs)


# Rows of each output that are carried back: see `_certified`.
_ROWS = 12
_CURE = "take smaller inputs, fewer classes or a smaller network, or give the stage more time"
# Entries of the values of the boxes that are bounded at once.
_ENTRIES = 2**12
# Of networks with attention: lines are carried backward as well where no layer has more values.
_NARROW = 2**13
# Beyond these, lambda times a value, or its inverse, could overflow.
_SOFTEST, _HARDEST = 1e-100, 1e100


@dataclass(frozen=True, slots=True)
class SwapCertificate:
    """Proven bounds over boxes; d = smooth network's outputs - ReLU network's, both of real
    arithmetic.

    Args:
        difference_lower: (boxes, outputs) float64, below every d in the box.
        difference_upper: (boxes, outputs), above every d.
        labels: (boxes,) int64, the class that the margins are of.
        margin_before: (boxes, outputs - 1), below every margin of the smooth network: the label's
            logit minus the others', in ascending order.
        margin_after: (boxes, outputs - 1), the same of the ReLU network.
    """

    difference_lower: torch.Tensor
    difference_upper: torch.Tensor
    labels: torch.Tensor
    margin_before: torch.Tensor
    margin_after: torch.Tensor

    def met(self, other: SwapCertificate) -> SwapCertificate:
        """Return what both say of the same boxes and labels."""
        return SwapCertificate(
            torch.maximum(self.difference_lower, other.difference_lower),
            torch.minimum(self.difference_upper, other.difference_upper),
            self.labels,
            torch.maximum(self.margin_before, other.margin_before),
            torch.maximum(self.margin_after, other.margin_after),
        )

    @property
    def disruption(self) -> torch.Tensor:
        """(boxes,) the greatest |d| that is possible, of any output."""
        return torch.maximum(self.difference_lower.abs(), self.difference_upper.abs()).amax(1)

    @property
    def certified_before(self) -> torch.Tensor:
        """(boxes,) bool: the smooth network provably gives the label the greatest logit,
        everywhere in the box.
        """
        return (self.margin_before > 0).all(1)

    @property
    def kept(self) -> torch.Tensor:
        """(boxes,) bool: both networks provably do; the swap changes no prediction in the box."""
        return self.certified_before & (self.margin_after > 0).all(1)


def certify_swap(
    module: nn.Module,
    lower: torch.Tensor,
    upper: torch.Tensor,
    *,
    swapped: nn.Module | None = None,
    hardness: float | None = None,
    labels: torch.Tensor | None = None,
) -> SwapCertificate:
    """Return what the swap to ReLU can change of the outputs of `module` over boxes.

    The statement is about the real functions of the float32 parameters; float64 rounding here is
    accounted for.

    Args:
        module: of one real input, in any mode: eval mode is meant.
        lower: (boxes, *input_shape), float32 or float64.
        upper: of the same shape, >= lower.
        swapped: the network after the swap; by default the same weights with ReLU in each
            activation's place.
        hardness: a lambda for all activations in the place of their own.
        labels: (boxes,); by default the class that `module` predicts at each box's middle.

    Raises:
        Unsupported: an operation without sound bounds, named by its dotted path; values beyond
            1e100.
        ValueError: boxes that are no boxes; labels or a hardness out of range.
    """
    return SwapBounds(module, tuple(lower.shape[1:]), swapped=swapped).certify(
        lower, upper, hardness=hardness, labels=labels
    )


class SwapBounds:
    """Certificates of one network and its swap, for several sets of boxes or hardnesses: the
    network is read once.

    Both networks are bounded as one graph, in which what they differ by is followed from layer to
    layer: see `netverify.difference`. Those with attention are bounded by zonotopes of
    the same inputs: see `netverify.zonotopes.forward`.

    Arguments and errors are those of `certify_swap`. `check` is called often; what it raises ends a
    computation. For deadlines. Where `seconds` of one box are known to be too few, by estimate, it
    raises Unsupported before any is bounded: of a point, or, where no `points` are asked for, of a
    box.
    """

    def __init__(
        self,
        module: nn.Module,
        input_shape: tuple[int, ...],
        *,
        swapped: nn.Module | None = None,
        check: Callable[[], None] = lambda: None,
        seconds: float = inf,
        points: bool = True,
    ) -> None:
        self._shape, self._check = input_shape, check
        self._smooth = read_module(module, input_shape)
        curves = given_way(self._smooth).values()
        if not curves:
            raise Unsupported("no activation to swap: the network has none that gives way to ReLU")
        self.swaps = any(curve.traits.name != RELU.name for curve in curves)
        """Whether any activation is another than ReLU."""
        self._swapped = None if swapped is None else read_module(swapped, input_shape)
        self._attends = attends(self._smooth)
        # Both networks are written as one graph, which takes long where there is much attention.
        refuse_attention(self._smooth, networks=2)
        if reason := self.too_slow(seconds, points=points):
            raise Unsupported(f"{reason}: {_CURE}")
        self._pairs: dict[float | None, Graph] = {}
        # Build the graph once now, so that what cannot be bounded is refused here, and see how many
        # boxes fit.
        largest = max(node.size for node in self._pair(None).nodes)
        self._narrow = largest <= _NARROW
        self.batch = 1 if self._attends else max(1, _ENTRIES // largest)
        """How many boxes are bounded at once."""

    def too_slow(self, seconds: float, *, points: bool) -> str:
        """Why no box is bounded, or "": one takes more than `seconds`, by estimate of what lines of
        both networks multiply. Zonotopes, of networks with attention, have no estimate.
        """
        if self._attends or not self.swaps:
            return ""
        outputs = sizes.at(self._smooth.nodes[self._smooth.output].shape, 1)[-1]
        taken = 2 * carrying_seconds(self._smooth, _ROWS * outputs, points=points)
        what = "a point" if points else "a box"
        return too_slow(taken, seconds, f"linear bounds of {what} through both networks")

    def _sides(self, hardness: float | None) -> tuple[TypedGraph, TypedGraph]:
        """The smooth network of a hardness, and the swapped one."""
        before, swapped = given_way(self._smooth), self._swapped
        if hardness is not None:
            scale = None if hardness == 1 else torch.tensor(hardness, dtype=torch.float64)
            before = {
                index: replace(activation, hardness=scale) for index, activation in before.items()
            }
        # By default the same network with ReLU at the same places and in the same units, so that
        # both networks' operands can be compared entry by entry.
        after = {
            index: replace(activation, traits=RELU, deviation=0.0)
            for index, activation in before.items()
        }
        if swapped is not None:
            after = _in_units_of(before, given_way(swapped))
        return with_activations(self._smooth, before), with_activations(
            swapped or self._smooth, after
        )

    def _pair(self, hardness: float | None) -> Graph:
        """The graph whose outputs are the difference, those of the smooth network and those of
        the swapped one.
        """
        if hardness is not None and not 0 < hardness < float("inf"):
            raise ValueError(f"hardness must be finite and > 0, got {hardness}")
        if hardness is not None and not _SOFTEST <= hardness <= _HARDEST:
            raise ValueError(f"hardness must be in [{_SOFTEST:g}, {_HARDEST:g}], got {hardness}")
        if hardness not in self._pairs:
            first, second = (graph_of_typed(side, "input") for side in self._sides(hardness))
            try:
                self._pairs = {hardness: with_difference(first, second)}
            except ValueError as error:
                raise Unsupported(f"the swapped network is of other shapes: {error}") from error
        return self._pairs[hardness]

    @torch.no_grad()
    def certify(
        self,
        lower: torch.Tensor,
        upper: torch.Tensor,
        *,
        hardness: float | None = None,
        labels: torch.Tensor | None = None,
    ) -> SwapCertificate:
        """The certificate of each box, of the network with its own hardness or the given one."""
        lower, upper = _checked(lower, upper, self._shape)
        pair = self._pair(hardness)
        outputs = pair.outputs // 3
        # The outputs are the difference, then those of the smooth network, then those of the
        # swapped one.
        if labels is None:
            labels = pair((lower + upper) / 2)[:, outputs : 2 * outputs].argmax(1)
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(f"labels must be integers, got {labels.dtype}")
        labels = labels.long()
        if labels.shape != lower.shape[:1] or not bool(((labels >= 0) & (labels < outputs)).all()):
            raise ValueError(f"labels must be {len(lower)} classes in [0, {outputs}), got {labels}")
        parts = [
            self._bounded(
                hardness, *(part[start : start + self.batch] for part in (lower, upper, labels))
            )
            for start in range(0, len(lower), self.batch)
        ]
        names = SwapCertificate.__dataclass_fields__
        return SwapCertificate(
            **{name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        )

    def _bounded(
        self, hardness: float | None, lower: torch.Tensor, upper: torch.Tensor, labels: torch.Tensor
    ) -> SwapCertificate:
        if not self._attends:
            return _certified(self._pair(hardness), self._check, lower, upper, labels)
        # Attention: zonotopes keep what its factors have in common, and are met with lines where
        # the network is small enough for these to be affordable.
        ends, certificate = [end.reshape(1, *self._shape) for end in (lower, upper)], None
        with suppress(Unsupported):  # of an operation that lines may know
            zonotopes = zonotopes_apart(*self._sides(hardness), *ends, check=self._check)
            certificate = _by_zonotopes(*zonotopes, labels)
        if certificate is not None and not self._narrow:
            return certificate
        by_lines = _certified(self._pair(hardness), self._check, lower, upper, labels)
        return by_lines if certificate is None else certificate.met(by_lines)

    def difference(self, x: torch.Tensor, *, hardness: float | None = None) -> torch.Tensor:
        """d at inputs (batch, *input_shape), (batch, outputs): evaluated in float64, not
        bounded; differentiable.
        """
        outputs = self._pair(hardness)(x.double().flatten(1))
        # Made of differences: added to each, what both have in common would leave its rounding
        # errors.
        return outputs[:, : outputs.shape[1] // 3]

    def disruption(self, lower: torch.Tensor, upper: torch.Tensor) -> Callable[[float], float]:
        """lambda -> the greatest |d| possible in any of the boxes, of any output, if every
        activation has that lambda.

        A sound bound for each lambda by itself; it tends to 0 like 1 / lambda where the boxes are
        points.
        """
        return lambda hardness: float(
            self.certify(lower, upper, hardness=hardness).disruption.max()
        )


def _in_units_of(before: dict[int, Pointwise], after: dict[int, Pointwise]) -> dict[int, Pointwise]:
    """Each ReLU as relu(lambda x) / lambda, which it is, with the lambda of the activation that
    it replaced.
    """
    if len(before) != len(after):
        return after
    return {
        index: replace(swapped, hardness=activation.hardness)
        if swapped.traits.name == RELU.name
        else swapped
        for activation, (index, swapped) in zip(before.values(), after.items(), strict=True)
    }


def _checked(
    lower: torch.Tensor, upper: torch.Tensor, shape: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    if lower.shape != upper.shape or tuple(lower.shape[1:]) != shape or not len(lower):
        raise ValueError(
            f"boxes must be (boxes, {shape}), got {tuple(lower.shape)} and {tuple(upper.shape)}"
        )
    if not bool((lower.isfinite() & upper.isfinite() & (lower <= upper)).all()):
        raise ValueError("a box is reversed, or has an end that is NaN or infinite")
    return lower.double().flatten(1), upper.double().flatten(1)


def _margin_rows(labels: torch.Tensor, outputs: int) -> torch.Tensor:
    """(batch, outputs - 1, outputs): label minus other."""
    identity = torch.eye(outputs, dtype=torch.float64)
    others = torch.stack([identity[torch.arange(outputs) != label] for label in labels])
    return identity[labels][:, None] - others


def _by_zonotopes(
    before: Zonotope, after: Zonotope, apart: Zonotope, labels: torch.Tensor
) -> SwapCertificate:
    """Make the certificate of one box from zonotopes of both networks' outputs and of their
    difference.
    """
    eye = torch.eye(apart.center.numel(), dtype=torch.float64)
    margins = _margin_rows(labels, len(eye))[0]
    ends = apart.lower_bounds(eye), -apart.lower_bounds(-eye)
    known = before.lower_bounds(margins), after.lower_bounds(margins)
    return SwapCertificate(ends[0][None], ends[1][None], labels, known[0][None], known[1][None])


def _certified(
    pair: Graph,
    check: Callable[[], None],
    lower: torch.Tensor,
    upper: torch.Tensor,
    labels: torch.Tensor,
) -> SwapCertificate:
    # Of a box that is a point, intervals are only as wide as rounding makes them, and lines gain
    # nothing.
    bounds = Propagation(pair, lower, upper, backward=bool((lower < upper).any()), check=check)
    count = pair.outputs // 3
    # 1. Rows over (difference, before, after): the difference up and down, the margins of both
    # networks, and once more those after, as the margins before minus what the difference takes of
    # them.
    margins = _margin_rows(labels, count)
    eye = torch.eye(count, dtype=torch.float64).expand(len(lower), -1, -1)
    none, less = torch.zeros_like(eye), torch.zeros_like(margins)
    apart = torch.cat([torch.cat([eye, none, none], 2), torch.cat([-eye, none, none], 2)], 1)
    asked = [[margins, less], [less, margins], [margins, less]]
    rows = [
        torch.cat([-margins if side == 2 else less, *parts], 2) for side, parts in enumerate(asked)
    ]
    # 2. Bound all of them at once, and the difference also without following what activations
    # differ by: neither way is always the nearer one.
    least = bounds.lower_bounds(torch.cat([apart, *rows], 1)).value
    alone = bounds.lower_bounds(apart, related=False).value
    met = torch.maximum(least[:, : 2 * count], alone)
    before, after, moved = least[:, 2 * count :].chunk(3, 1)
    # 3. Meet what was found with the outputs' intervals, and both bounds of the margins after.
    known_low, known_high = (output[:, :count] for output in bounds.outputs)
    return SwapCertificate(
        torch.maximum(met[:, :count], known_low),
        torch.minimum(-met[:, count:], known_high),
        labels,
        before,
        torch.maximum(after, moved),
    )
