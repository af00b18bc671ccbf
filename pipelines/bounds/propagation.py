"""Bounds of a network's margins over the regions of properties, by this project's engine over the
network's graph; and what float32 can take from them.

auto_LiRPA (see `adapter`) gives forward bounds and alpha-CROWN of networks that it reads, and a
second opinion on CROWN.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from evalsuite import Network, Property, Unsupported
from netverify.carried import carrying_seconds
from netverify.graph import Affine, Graph
from netverify.of_graph import refuse_attention
from netverify.onnx_reader import graph_of_typed
from netverify.propagation import Propagation as OfGraph
from netverify.rounding import EPS
from netverify.zonotopes.forward import attends
from opgraph import operations as typed
from opgraph import sizes
from opgraph.aten import LEFT_OUT
from opgraph.estimates import too_slow
from opgraph.graph import Graph as TypedGraph
from opgraph.graph import Node
from opgraph.modules import written
from opgraph.reading import read
from pipelines.bounds.curved import activations, calls, layer_names, refuse_values
from pipelines.bounds.limits import NARROW, WIDE
from pipelines.bounds.margins import Margins, Pairs, of_margins, rows_of
from pipelines.bounds.options import METHODS
from pipelines.bounds.regions import Regions
from pipelines.bounds.rounding import Rounding
from pipelines.bounds.second import Second

_MEMORY = 2**27
_LARGEST_BATCH = 100
# How often the coefficients of all rows over the widest value are held at once.
_COPIES = 8
# How many rows of one value are carried back at a time, at the least, for each input of a batch.
_ROWS, _BLOCK = 32, 2**21
# Random points of each region at which bounds are checked, half of them corners of its box.
_CHECKED = 32
# Of these each so-manieth is evaluated in float32 too.
_FEWER = 4
# A bound of rounding errors, in logits, beyond which boxes are not worth their time.
_BLURRED = 1e3
_GREATEST = 1e300
_CARRIED = ("crown-ibp", "crown", "alpha-crown")
_BACKWARD = {"ibp": False, "crown-ibp": False, "crown": True}
# How near tensors are that are one tensor, by their size; torch's softplus leaves out as much.
_NEAR = 1e-8
# Tensors are one, by their size, up to float64's rounding.
_TIED = 1e-12
# How far from 0 the farthest points are at which tensors are compared, about: images may be bytes.
_FAR = 128
_DEFECT = ", a defect of evalsuite: report the network"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the graph has a tensor of the network: `factor` times it is the value, flat.

    Args:
        value: its number.
        factor: positive, broadcastable to the tensor; of an activation its hardness.
        shape: of one sample's tensor.
    """

    value: int
    factor: torch.Tensor | float
    shape: tuple[int, ...]

    def interval(self, bounded: OfGraph) -> tuple[torch.Tensor, torch.Tensor]:
        """Bounds of the tensor, each (batch, *shape)."""
        low, high = (end.reshape(-1, *self.shape) for end in bounded.intervals[self.value])
        if isinstance(self.factor, float):
            return low, high
        low, high = low / self.factor, high / self.factor
        return low - 4 * EPS * low.abs(), high + 4 * EPS * high.abs()


class Propagation:
    """Bounds of one network, whose module is copied.

    What is bounded is the real function of the float32 weights; `Margins.allowance` covers its
    evaluation in float32.

    Args:
        network: is copied.
        iterations: of alpha-CROWN.
        memory: bytes that a batch may take, roughly; one property at a time may take more.
        all_lines: whether alpha-CROWN optimizes the lines that the bounds of the activations'
            inputs are made of too, where the margins' lines alone prove too little.
        check: called often while bounds are computed; what it raises ends that.

    Attributes:
        batch: how many properties are bounded at once.
        second: auto_LiRPA on this network, or why it is not used.
        layers: for each entry of `Margins.inputs` the activation's dotted path in the network, or
            a name for each call with another input.

    Raises:
        Unsupported: an operation without sound bounds, or without a bound of float32's rounding.
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        network: Network,
        *,
        iterations: int = 20,
        memory: int = _MEMORY,
        all_lines: bool = True,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        if memory < 1:
            raise ValueError(f"memory must be >= 1 byte, got {memory}")
        if iterations < 1:
            raise ValueError(f"iterations must be >= 1, got {iterations}")
        refuse_values(network.module)
        # 1. Copies to compare with: as the network runs, and in float64.
        self._network, self._deadline = network, check
        self._single = copy.deepcopy(network.module).eval()
        self._reference = copy.deepcopy(self._single).double()
        # 2. Read it once: its layers, through which rounding is followed, and its graph, which is
        # bounded.
        example = network.example(2)
        whole = read(network.module, example)
        attended = attends(whole)
        if attended and max(math.prod(sizes.at(node.shape, 1)) for node in whole.nodes) > NARROW:
            # What does not fit is refused for all engines, before a file is written for the next.
            refuse_attention(whole)
            raise Unsupported(WIDE)
        self._typed = whole
        traced = written(whole, example, exact=True)
        self._rounding = Rounding(traced)
        self._refuse_blurred()
        self._graph = graph_of_typed(_without_thresholds(whole), "input", computed=True)
        self._compare()
        # 3. Find the activations' inputs, and what norms divide, among the graph's values.
        # Far from 0 too, where clipped values differ from those that are not.
        points = self._points()
        points = torch.cat([points, _FAR * points[:4:2]])
        called, divided = calls(traced, points)
        values = self._graph.values(points.flatten(1))
        hardness = [shape.factor for shape in activations(traced).values()]
        places = [_place(self._graph, values, tensor, hardness) for _, tensor in called]
        self._places = [place for place in places if place is not None]
        if len(self._places) < len(places):
            number = places.index(None) + 1
            raise Unsupported(f"the input of activation {number} is no value of the graph")
        norms = [_place(self._graph, values, tensor, []) for tensor in divided]
        self._norms = None if None in norms else [place for place in norms if place is not None]
        # An activation that is called again with the same input has one row.
        named = layer_names(called)
        self._rows, self.layers = list(named), tuple(named.values())
        # 4. How many inputs at a time fit into memory.
        widest = max(self._graph.inputs, *(node.size for node in self._graph.nodes), 1)
        self._narrow = widest <= NARROW
        if attended and not self._narrow:
            raise Unsupported(WIDE)
        rows = 3 * network.classes
        self.batch = max(
            1,
            min(
                _LARGEST_BATCH,
                memory // (_COPIES * 8 * rows * widest),
                _BLOCK // (2 * _ROWS * widest),
            ),
        )
        self.second = Second(
            network,
            traced,
            points,
            [called[call][1] for call in self._rows],
            iterations=iterations,
            memory=memory,
            all_lines=all_lines,
        )

    def too_slow(self, method: str, seconds: float) -> str:
        """Why a method is not begun, or "": by estimate a box takes more than `seconds`."""
        if method not in _CARRIED:
            return ""
        # Margins and logits, of the logits both ends: all of them are carried back twice.
        rows = 2 * 2 * self._network.classes
        taken = carrying_seconds(self._typed, rows, points=method == "crown-ibp")
        return too_slow(taken, seconds, f"{method} of one box")

    @torch.no_grad()
    def _refuse_blurred(self) -> None:
        """Raise Unsupported where the rounding of a single input can't be bounded well enough to
        prove anything.
        """
        points = torch.stack(
            [torch.full(self._network.input_shape, level).double() for level in (0.25, 0.75)]
        )
        try:
            logits = self._reference(points)
        except RuntimeError as error:
            line = (str(error).splitlines() or [""])[0]
            raise Unsupported(
                "the network fails in float64, in which bounds are checked:"
                f" {type(error).__name__} {line}"
            ) from error
        # Boxes without any width: all that is left is rounding.
        errors = self._rounding.errors(points, points)[0]
        least = (errors / (1 + logits.abs().amax(1, keepdim=True))).amin().item()
        if _BLURRED < least < torch.inf:
            raise Unsupported(
                f"no useful bounds of float32 rounding: for a single input {least:.1g} times the"
                " greatest logit"
            )

    def _points(self) -> torch.Tensor:
        """Some points, near 0 and far from it, the same each time."""
        generator = torch.Generator().manual_seed(0)
        shape = (2, *self._network.input_shape)
        near = torch.rand(shape, generator=generator, dtype=torch.float64)
        around = torch.randn(shape, generator=generator, dtype=torch.float64)
        return torch.cat([near, around, 8 * around.flip(0)])

    @torch.no_grad()
    def _compare(self) -> None:
        """Raise Unsupported where the graph computes something else than the network."""
        points = self._points()
        ours, theirs = self._graph(points.flatten(1)), self._reference(points).flatten(1)
        scale = 1 + theirs.abs().amax()
        alike = ours.shape == theirs.shape and bool(((ours - theirs).abs() <= _NEAR * scale).all())
        if not (alike and self._rounding.holds(points, theirs)):
            raise Unsupported("the graph that was read computes another function" + _DEFECT)

    def bounds(
        self,
        properties: list[Property],
        method: str,
        start: Margins | None = None,
        seconds: float | None = None,
    ) -> Margins:
        """Bounds by one of METHODS, `batch` properties at a time. Those of CROWN lie within those
        of IBP.

        Args:
            properties: their boxes, or their balls within them.
            method: alpha-CROWN improves the margins of CROWN alone.
            start: what "crown" gave for these properties, where that is known already, for
                "alpha-crown".
            seconds: of alpha-CROWN's optimizer, for all of the properties; the best bounds so far
                are what it gives.

        Raises:
            ValueError: another method, no properties, or a ball outside of its box.
            Unsupported: the network is none that the method works on; or a bound excludes a value
                of the network, which would be a defect.
        """
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if not properties:
            raise ValueError("bounds of no properties")
        until = torch.inf if seconds is None else time.monotonic() + seconds
        parts = []
        size = self.batch
        if method in ("forward", "alpha-crown"):
            size = min(size, self.second.batch)
        for offset in range(0, len(properties), size):
            some = properties[offset : offset + size]
            if method != "alpha-crown":
                parts.append(self._propagated(some, method))
            else:
                crown = start[offset : offset + size] if start else self._propagated(some, "crown")
                parts.append(self._optimized(some, crown, until))
        return Margins.joined(parts)

    def _propagated(self, properties: list[Property], method: str) -> Margins:
        regions, rows = Regions.of(properties), rows_of(properties, self._network.classes)
        # 1. The rows are the margins first, and then the logits, both of which have lower bounds;
        # of the logits there are upper bounds too.
        split = self._network.classes - 1
        if method == "forward":
            low, high, inputs = self.second.forward(regions, rows)
            low, high = self._widened(regions, rows, low, high, inputs)
            single = self._rounding.errors(regions.lower, regions.upper)[0]
        else:
            bounded = self._bounded(regions, backward=_BACKWARD[method])
            asked = torch.cat([rows, -rows], 1)
            bounds_of_rows = bounded.interval_bounds(asked)
            if method != "ibp":
                # fmax: a bound that is not a number says nothing.
                bounds_of_rows = torch.fmax(bounds_of_rows, bounded.lower_bounds(asked).value)
            low, high = bounds_of_rows[:, : rows.shape[1]], -bounds_of_rows[:, rows.shape[1] :]
            inner = [place.interval(bounded) for place in self._places]
            norms = (
                None if self._norms is None else [place.interval(bounded) for place in self._norms]
            )
            single = self._rounding.errors(regions.lower, regions.upper, inner, norms)[0]
            inputs = [inner[call] for call in self._rows]
        # 2. Look for values of the network that these bounds, or those of float32's rounding,
        # exclude.
        self._check(regions, rows, low, high, single)
        self._check_rounding(regions, single)
        return Margins(
            low[:, :split],
            low[:, split:],
            high[:, split:],
            of_margins(single, properties),
            inputs,
        )

    def _bounded(self, regions: Regions, *, backward: bool) -> OfGraph:
        """The graph's bounds over the regions."""
        return OfGraph(
            self._graph,
            regions.lower.flatten(1),
            regions.upper.flatten(1),
            backward=backward,
            within=None if regions.center is None else regions.least_of,
            everywhere=self._narrow,
            check=self._deadline,
        )

    def _optimized(self, properties: list[Property], crown: Margins, until: float) -> Margins:
        if time.monotonic() >= until or not crown.margins.numel():
            return crown
        regions = Regions.of(properties)
        rows = rows_of(properties, self._network.classes)[:, : self._network.classes - 1]

        def done(margins: torch.Tensor, which: torch.Tensor | slice = slice(None)) -> torch.Tensor:
            return _enough(margins, crown[which]) | (time.monotonic() >= until)

        # 1. Optimize the lines of the margins' own bounds, and for what is still open all lines.
        optimized = self.second.optimized(regions, rows, crown, done)
        # 2. Take off what float64 may have lost, and compare with the network at some points.
        optimized = self._widened(regions, rows, optimized, optimized, crown.inputs)[0]
        nothing = torch.full_like(optimized, torch.inf)
        self._check(regions, rows, optimized, nothing, torch.zeros_like(crown.lower))
        return replace(crown, margins=torch.maximum(crown.margins, optimized))

    def _widened(
        self,
        regions: Regions,
        rows: torch.Tensor,
        lower: torch.Tensor,
        upper: torch.Tensor,
        inputs: Pairs,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """auto_LiRPA's bounds, by what float64 may have lost of them."""
        inner = inputs if len(inputs) == len(self._places) else None
        double = self._rounding.errors(regions.lower, regions.upper, inner)[1]
        slack = torch.einsum("bkc,bc->bk", rows.abs(), double)
        return _or_nothing(lower - slack, -torch.inf), _or_nothing(upper + slack, torch.inf)

    def compare(self, properties: list[Property], crown: Margins) -> tuple[float | None, str]:
        """The mean width of CROWN's bounds of the logits over that of auto_LiRPA's; None with the
        reason where it does not take the network.

        Raises:
            Unsupported: the two exclude each other, so one of them is not sound.
        """
        some = properties[: min(len(crown), self.second.batch)] if not self.second.refusal else []
        if not some:
            return None, self.second.refusal or "nothing was bounded in time"
        regions = Regions.of(some)
        rows = torch.eye(self._network.classes, dtype=torch.float64).expand(len(some), -1, -1)
        try:
            lower, upper = self.second.crown(regions, rows)
        except Unsupported as error:
            return None, str(error)
        lower, upper = self._widened(regions, rows, lower, upper, crown[: len(some)].inputs)
        low, high = crown.lower[: len(some)], crown.upper[: len(some)]
        apart = crown.allowance.amax(1)[: len(some), None] if crown.allowance.numel() else 0.0
        if bool(((lower > high + apart) | (upper < low - apart)).any()):
            raise Unsupported("auto_LiRPA's bounds and the graph's exclude each other" + _DEFECT)
        theirs = (upper - lower).mean().item()
        if not 0 < theirs < torch.inf:
            return None, "auto_LiRPA's bounds have no width that ours could be divided by"
        return (high - low).mean().item() / theirs, ""

    @torch.no_grad()
    def _check(
        self,
        regions: Regions,
        rows: torch.Tensor,
        lower: torch.Tensor,
        upper: torch.Tensor,
        single: torch.Tensor,
    ) -> None:
        """Nothing is believed of bounds that exclude a value, by more than what float32 is off:
        torch's softplus leaves out less than that.
        """
        points = regions.points(_shares(regions.lower))
        logits = self._reference(points.flatten(0, 1)).reshape(*points.shape[:2], -1)
        values = torch.einsum("bkc,pbc->pbk", rows, logits)
        # Where float32 may overflow, its errors are infinite, and rows may be 0.
        slack = torch.einsum("bkc,bc->bk", rows.abs(), single.clamp(max=_GREATEST))
        if not bool(((lower - slack <= values) & (values <= upper + slack)).all()):
            raise Unsupported("bounds exclude a value of the network" + _DEFECT)

    @torch.no_grad()
    def _check_rounding(self, regions: Regions, single: torch.Tensor) -> None:
        """Raise Unsupported where float32's logits at points of the regions are off by more than
        `single`.
        """
        points = regions.points(_shares(regions.lower)[::_FEWER]).float()
        inside = ((points >= regions.lower) & (points <= regions.upper)).flatten(2).all(2)
        inner = points[inside]
        if not len(inner):
            return
        off = (self._single(inner) - self._reference(inner.double())).abs()
        bound = single.expand(*inside.shape, -1)[inside]
        if not bool(((off <= bound) | bound.isinf()).all()):
            raise Unsupported("float32's rounding is beyond its bound" + _DEFECT)

    @torch.no_grad()
    def contradicted(self, property_: Property, point: torch.Tensor, margins: torch.Tensor) -> bool:
        """Whether the float64 margins at `point` of the property lie below the bounds `margins`
        (classes - 1,).
        """
        logits = self._reference(point.double()[None])[0]
        return not bool(
            (
                rows_of([property_], self._network.classes)[0, : len(margins)] @ logits >= margins
            ).all()
        )


def _without_thresholds(graph: TypedGraph) -> TypedGraph:
    """The graph with softplus itself for torch's, which is the identity beyond 20: `Shape.gap`
    counts what that leaves out among the errors of rounding.
    """
    changed = dict[int, Node]()
    for value, node in enumerate(graph.nodes):
        curve = node.operation
        if isinstance(curve, typed.Pointwise) and curve.deviation == LEFT_OUT:
            changed[value] = replace(node, operation=replace(curve, deviation=0.0))
    return graph.with_changed(changed)


@torch.no_grad()
def _place(
    graph: Graph,
    values: list[torch.Tensor],
    tensor: torch.Tensor,
    hardness: list[torch.Tensor | float],
) -> _Place | None:
    """The value that is a tensor of the network (points, *shape), or its product with a hardness;
    None where there is none. The nearest one: of small tensors many are near. Among those that
    rounding alone sets apart, values that curved nodes take come first: their bounds are the
    tightest.
    """
    curved = [
        source
        for node in graph.nodes
        if not isinstance(node.operation, Affine)
        for source in node.sources
    ]
    place, least = None, torch.inf
    for value in dict.fromkeys([*curved, *range(len(values))]):
        if values[value].shape[1] != tensor[0].numel():
            continue
        for factor in (1.0, *hardness):
            wanted = factor * tensor
            if wanted.shape != tensor.shape:
                continue
            sizes = wanted.flatten(1).abs().amax(1)
            apart = (values[value] - wanted.flatten(1)).abs().amax(1)
            if not bool((apart <= _NEAR * (1 + sizes.amax())).all()):
                continue
            # A tie is what rounding may be, by the size of the tensor at each point.
            off = (apart / sizes.clamp(min=1 / _GREATEST)).amax().clamp(max=_GREATEST).item()
            if off + _TIED < least:
                place, least = _Place(value, factor, tuple(tensor.shape[1:])), off
    return place


def _enough(margins: torch.Tensor, bounds: Margins) -> torch.Tensor:
    """(properties, 1) bool: which are proven by far."""
    return (margins > 2 * bounds.allowance).all(1, keepdim=True)


def _shares(like: torch.Tensor) -> torch.Tensor:
    """(points, 1, *input_shape): the middle, both ends, and random parts of a box's widths, the
    same each time.
    """
    generator = torch.Generator().manual_seed(0)
    share = torch.rand((_CHECKED + 3, 1, *like.shape[1:]), generator=generator, dtype=torch.float64)
    share[3::2] = share[3::2].round()
    share[0], share[1], share[2] = 0.5, 0.0, 1.0
    return share


def _or_nothing(bound: torch.Tensor, nothing: float) -> torch.Tensor:
    """A bound that is not a number says nothing."""
    return torch.where(bound.isnan(), nothing, bound)
