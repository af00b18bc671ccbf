"""Bounds against points: whether any of ten million points of a box has an output beyond its
bounds, in float64.

python -m benchmarks.soundness [--points 10000000] [--only vit,bert]

Of the networks of `docs/networks.md`, and of ReLU and GELU networks on digits, trained here, whose
points come on top: by the bounds of the graph, by those of the stage where float32's rounding has a
bound, by zonotopes where there is attention, and by auto_LiRPA: alpha-CROWN of the module where it
takes that, else by our operators of the graph. Of tokens, what
follows their embedding is bounded. Two fifths of the points are corners, two fifths uniform, and a
fifth end a descent of some margin, logit or its negative. The boxes' radii are such that CROWN's
widths are of the logits' own spread at most an eighth, and at most twice it.

Bounds are of the network that the engine read: of the exported file, where a BatchNorm is folded
into float32 weights, or of the module. Each is held against its own in float64; two engines are
compared up to what these differ by.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten

import torch
from torch import nn

from benchmarks.graph_lirpa import GraphEngine
from benchmarks.subjects import box, trained
from docs.making.networks import NETWORKS
from docs.making.networks import subject as of_table
from evalsuite import Bench, Network, Property, Unsupported
from evalsuite.verification.subjects import Subject, graph_of_network, subjects, zonotopes_of
from netverify.graph import Graph
from netverify.propagation import Propagation as OfGraph
from netverify.zonotopes.zonotope import Zonotope
from opgraph.embedded import Embedded
from opgraph.onnx_file import graph_of_model
from pipelines.bounds.margins import rows_of
from pipelines.bounds.propagation import Propagation

_TRAINED = [
    f"{name} {variant}" for name in ("digits-mlp", "digits-cnn") for variant in ("relu", "gelu")
]
_SAMPLES, _WIDTHS, _FINEST = 3, (0.125, 2.0), 24
_DESCENTS, _VALUES, _MOST = 4, 2**19, 2**14
_KINDS = ("corners", "corners", "uniform", "uniform", "descents")
# What the sums of a float64 forward pass may be off by, of outputs of about 1 to 100.
_ROUNDING = 1e-9
_FILE, _MODULE = "file", "module"
_Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Ends:
    """One method's bounds of the rows, each end (boxes, rows), and whether they are of the file
    or of the module.
    """

    method: str
    lower: torch.Tensor
    upper: torch.Tensor
    function: str


@dataclass(slots=True)
class Tally:
    """Counts of points and boxes that were tried and of violations among them; of each method the
    number of its bounds, and of the boxes that they certify.
    """

    points: int = 0
    boxes: int = 0
    radii: list[float] = field(default_factory=list)
    methods: dict[str, list[int]] = field(default_factory=dict)
    violations: int = 0
    contradictions: int = 0
    apart: float = 0.0
    spanned: list[float] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """All of it in words."""
        methods = (
            f"{name} {count} ({certified} boxes certified)"
            for name, (count, certified) in self.methods.items()
        )
        refused = "".join(f"; {who} refused: {reason}" for who, reason in self.refusals.items())
        radii = ", ".join(f"2^{math.log2(radius):g}" for radius in self.radii)
        return (
            f"{self.violations} violations, {self.contradictions} contradictions; {self.points}"
            f" points of {self.boxes} boxes{radii and ' of radii ' + radii}; bounds:"
            f" {', '.join(methods)}; points span {statistics.fmean(self.spanned):.2f} of the"
            f" narrowest; file and module differ by {self.apart:.1g}{refused}"
        )

    def add(self, other: Tally) -> None:
        """Add the counts of another tally; its radii and refusals are left out."""
        self.points, self.boxes = self.points + other.points, self.boxes + other.boxes
        self.violations += other.violations
        self.contradictions += other.contradictions
        self.apart = max(self.apart, other.apart)
        self.spanned += other.spanned
        for name, counts in other.methods.items():
            known = self.methods.get(name, [0, 0])
            self.methods[name] = [one + more for one, more in zip(known, counts, strict=True)]


def network_of(name: str, folder: Path) -> tuple[Network, Bench]:
    """A network of the table, or one that is trained here, with its data."""
    if name in NETWORKS:
        return of_table(name, folder)
    network, data = trained(*name.split())
    return network, Bench(data, 0, folder, 60.0, lambda *_, **__: None)


def _radii(asked: Subject, graph: Graph) -> Iterator[float]:
    """The greatest powers of four, each another, at which the mean width is at most so much of
    the logits' spread.
    """
    wanted = sorted(_WIDTHS)
    rows = torch.eye(graph.outputs, dtype=torch.float64)
    for exponent in range(0, _FINEST, 2):
        lower, upper = (each.flatten(1) for each in box(asked.properties(2.0**-exponent)))
        try:
            engine = OfGraph(graph, lower, upper)
        except Unsupported:  # too wide for it
            continue
        found = engine.lower_bounds(torch.cat([rows, -rows])).value
        logits = graph((lower + upper) / 2)
        width = -found.mean() * 2 / (logits.amax(1) - logits.amin(1)).mean()
        if width <= wanted[-1]:
            wanted.pop()
            yield 2.0**-exponent
        if not wanted:
            return


def _engine(network: Network, tally: Tally) -> Propagation | None:
    try:
        engine = Propagation(network)
    except Unsupported as error:
        tally.refusals["float32"] = _line(error)
        return None
    if engine.second.refusal:
        tally.refusals["auto_LiRPA"] = engine.second.refusal
    return engine


def _is_refused(engine: Propagation | None) -> bool:
    return engine is None or bool(engine.second.refusal)


def _line(error: Unsupported) -> str:
    return shorten(str(error), 240, placeholder=" ...")


def _of_graph(graph: Graph, properties: list[Property], rows: torch.Tensor) -> Iterator[Ends]:
    """Bounds of both kinds by the graph; the rows are of each property's own label, (properties,
    rows, outputs).
    """
    lower, upper = (each.flatten(1) for each in box(properties))
    for method, backward in (("graph-ibp", False), ("graph-crown", True)):
        try:
            engine = OfGraph(graph, lower, upper, backward=backward)
        except Unsupported:  # as of a softmax's powers, which intervals alone may find too wide
            if backward:
                raise
            continue
        found = torch.stack(
            [engine.lower_bounds(torch.cat([row, -row])).value[i] for i, row in enumerate(rows)]
        )
        low, high = found.chunk(2, 1)
        yield Ends(method, low, -high, _FILE)


def _by_lirpa(
    engine: GraphEngine | None, properties: list[Property], rows: torch.Tensor
) -> Iterator[Ends]:
    """Bounds by auto_LiRPA of the graph, where it does not take the module."""
    for method, lower, upper in engine.bounds(properties, rows) if engine is not None else ():
        yield Ends(f"{method} of the graph", lower, upper, _FILE)


def _by_zonotopes(
    bound: Callable[..., Zonotope] | None,
    properties: list[Property],
    rows: torch.Tensor,
    tally: Tally,
) -> Iterator[Ends]:
    """Bounds of a network with attention, box by box."""
    if bound is None:
        return
    try:
        found = [bound(prop.lower[None].double(), prop.upper[None].double()) for prop in properties]
    except Unsupported as error:
        tally.refusals["zonotopes"] = _line(error)
        return
    lower, upper = (
        torch.stack(
            [sign * each.lower_bounds(sign * row) for each, row in zip(found, rows, strict=True)]
        )
        for sign in (1, -1)
    )
    yield Ends("graph-zonotope", lower, upper, _MODULE)


def _of_module(engine: Propagation, properties: list[Property], tally: Tally) -> Iterator[Ends]:
    """Bounds of the stage, alpha-CROWN's by auto_LiRPA; a method that is refused is told."""
    for method in ("ibp", "crown", "alpha-crown"):
        try:
            found = engine.bounds(properties, method)
        except Unsupported as error:
            tally.refusals[method] = _line(error)
            continue
        lower = torch.cat([found.margins, found.lower], 1)
        unknown = torch.full_like(found.margins, torch.inf)
        yield Ends(method, lower, torch.cat([unknown, found.upper], 1), _MODULE)


def _drawn(
    module: nn.Module,
    asked: Property,
    rows: torch.Tensor,
    kind: str,
    count: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Points of the box: corners, uniform ones, or where descents of rows end, which are
    searched in float32.
    """
    share = torch.rand(count, *asked.lower.shape, generator=generator, dtype=torch.float64)
    points = asked.lower + (share.round() if kind == "corners" else share) * (
        asked.upper - asked.lower
    )
    if kind == "descents":
        chosen = torch.cat([rows, -rows])[
            torch.randint(2 * len(rows), (count,), generator=generator)
        ].float()
        lower, upper, points = asked.lower.float(), asked.upper.float(), points.float()
        for step in range(_DESCENTS):
            points = points.requires_grad_()
            (slope,) = torch.autograd.grad((module(points) * chosen).sum(), points)
            points = (points.detach() - (upper - lower) / 2**step * slope.sign()).clamp(
                lower, upper
            )
        points = points.double()
    return points.clamp(asked.lower, asked.upper)


class _Trial:
    """One network of real inputs: its bounds at several radii, and points.

    Args:
        asked: the network, and what is asked of it.
        points: of each radius, at the least.
        tally: takes what was found.
    """

    def __init__(self, asked: Subject, points: int, tally: Tally) -> None:
        self._asked, self._points, self._tally = asked, points, tally
        module = asked.network.module
        self._engine = _engine(asked.network, tally)
        model, self._graph = graph_of_network(asked.network)
        double = copy.deepcopy(module).double().eval().requires_grad_(False)
        # The plain reference that the graph's own reader is compared with shares no code with the
        # bounds.
        file = double if isinstance(module, Embedded) else Embedded(graph_of_model(model))
        self._functions = {_FILE: file, _MODULE: double}
        self._zonotopes = zonotopes_of(asked.network)
        self._second = GraphEngine(self._graph) if _is_refused(self._engine) else None
        if self._engine is None and self._zonotopes is None:
            del self._functions[_MODULE]  # nothing is said of it
        self._single = copy.deepcopy(module).float().eval().requires_grad_(False)
        self._count = min(_MOST, max(1, _VALUES // max(node.size for node in self._graph.nodes)))
        self._generator = torch.Generator().manual_seed(0)

    def radii(self) -> list[float]:
        """The radii to try, found from the bounds of the subject's first samples."""
        return list(_radii(self._asked, self._graph))

    def __call__(self, radii: list[float]) -> None:
        """Try these radii."""
        for eps in radii:
            properties = self._asked.properties(eps)
            rows = rows_of(properties, self._graph.outputs)
            found = list(_of_graph(self._graph, properties, rows))
            if self._engine is not None:
                found += _of_module(self._engine, properties, self._tally)
            found += _by_lirpa(self._second, properties, rows)
            found += _by_zonotopes(self._zonotopes, properties, rows, self._tally)
            for place, each in enumerate(properties):
                self._judge(
                    found,
                    place,
                    *self._reached(each, rows[place], -(-self._points // len(properties))),
                )
            self._tally.boxes += len(properties)

    @torch.no_grad()
    def _reached(
        self, asked: Property, rows: torch.Tensor, points: int
    ) -> tuple[dict[str, _Pair], float]:
        """The least and the greatest value of each row for each function, and the most that
        outputs differ by.
        """
        nothing = torch.full((len(rows),), torch.inf, dtype=torch.float64)
        ends = dict.fromkeys(self._functions, (nothing, -nothing))
        apart = 0.0
        for number in range(max(len(_KINDS), -(-points // self._count))):
            with torch.enable_grad():
                drawn = _drawn(
                    self._single,
                    asked,
                    rows,
                    _KINDS[number % len(_KINDS)],
                    self._count,
                    self._generator,
                )
            logits = {
                name: function(drawn).flatten(1) for name, function in self._functions.items()
            }
            apart = max(
                apart, *(float((logits[_FILE] - logit).abs().max()) for logit in logits.values())
            )
            for name, found in logits.items():
                values, (least, most) = found @ rows.T, ends[name]
                ends[name] = (
                    torch.minimum(least, values.amin(0)),
                    torch.maximum(most, values.amax(0)),
                )
            self._tally.points += self._count
        return ends, apart

    def _judge(
        self, found: list[Ends], place: int, reached: dict[str, _Pair], apart: float
    ) -> None:
        """Count what one box's bounds exclude of what was reached, and of each other."""
        tally, margins = self._tally, self._graph.outputs - 1
        for each in found:
            least, most = reached[each.function]
            lower, upper = each.lower[place], each.upper[place]
            wrong = (
                (lower > least + _ROUNDING)
                | (upper < most - _ROUNDING)
                | lower.isnan()
                | upper.isnan()
            )
            tally.violations += int(wrong.sum())
            certified = bool((lower[:margins] > 0).all())
            # Proven, and refuted by a point.
            tally.contradictions += certified and bool((least[:margins] <= 0).any())
            counts = tally.methods.setdefault(each.method, [0, 0])
            counts[0] += lower.isfinite().sum().item() + upper.isfinite().sum().item()
            counts[1] += certified
        highest = torch.stack([ends.lower[place] for ends in found]).amax(0)
        lowest = torch.stack([ends.upper[place] for ends in found]).amin(0)
        tally.contradictions += int((highest > lowest + 2 * apart + _ROUNDING).sum())
        tally.apart = max(tally.apart, apart)
        least, most = reached[_FILE]
        tally.spanned += ((most - least) / (lowest - highest)).tolist()


def tried(name: str, points: int) -> Tally:
    """Compare a network's bounds with its values at no fewer than `points` points."""
    tally = Tally()
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        asked = subjects(*network_of(name, Path(folder)), _SAMPLES)
        for subject in asked:
            trial = _Trial(subject, -(-points // (len(asked) * len(_WIDTHS))), tally)
            tally.radii = tally.radii or trial.radii()
            trial(tally.radii)
    return tally


def main() -> None:
    """Print a line for each network, and their sum."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--points", type=int, default=10_000_000, help="of the networks of the table, together"
    )
    parser.add_argument("--only", default="", help="names of networks, separated by commas")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = given.only.split(",") if given.only else [*NETWORKS, *_TRAINED]
    sums = {"networks of the table": Tally(), "trained networks": Tally()}
    for name in names:
        began = time.monotonic()
        tally = tried(name, -(-given.points // len(NETWORKS)))
        print(
            f"{NETWORKS.get(name, name)}: {tally.line()}; {time.monotonic() - began:.0f} s",
            flush=True,
        )
        sums["networks of the table" if name in NETWORKS else "trained networks"].add(tally)
    for name, tally in sums.items():
        if tally.points:
            print(f"all {name}: {tally.line()}")


if __name__ == "__main__":
    main()
