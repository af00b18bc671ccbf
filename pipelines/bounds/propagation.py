"""Bounds of a network's margins over the regions of properties: guards, batches and outward
slack.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from evalsuite import Network, Property, Unsupported
from opgraph.modules import in_modules
from pipelines.bounds import METHODS
from pipelines.bounds.adapter import Engine, Pairs, plain_windows
from pipelines.bounds.curved import layer_names, refuse_values
from pipelines.bounds.margins import Margins, of_margins, proven, rows_of
from pipelines.bounds.regions import Regions
from pipelines.bounds.rounding import Rounding
from pipelines.bounds.stepping import stepped

__all__ = ["Distrusted", "Margins", "Propagation", "proven"]

_MEMORY = 2**27
_LARGEST_BATCH = 100
# What auto_LiRPA raises for networks that it accepted but can't treat, by experience.
_FAILURES = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
# Random points of each region at which bounds are checked, half of them corners of its box.
_CHECKED = 32
# Of these each so-manieth is evaluated in float32 too.
_FEWER = 4
# A bound of rounding errors, in logits, beyond which boxes are not worth their time.
_BLURRED = 1e3
_ALONE = "the margins' lines alone are optimized"


class Distrusted(Unsupported):
    """Raised where bounds turn out to exclude a value, or can't be computed: matrices may do
    what patches do not.
    """


class Propagation:
    """Bounds of one network, whose module is copied.

    What is bounded is the real function of the float32 weights; `Margins.allowance` covers its
    evaluation in float32.

    Args:
        network: is copied.
        iterations: of alpha-CROWN.
        patches: whether convolutions may propagate as patches, where that is safe.
        memory: bytes that a batch may take, roughly; one property at a time may take more.
        all_lines: whether alpha-CROWN optimizes the lines that the bounds of the activations'
            inputs are made of too, where the margins' lines alone prove too little.

    Attributes:
        batch: how many properties are bounded at once.
        optimizes: whether alpha-CROWN works on this network.
        patches: whether convolutions propagate as patches.
        limited: why alpha-CROWN optimizes the margins' lines alone, where `all_lines` asks for
            more; else "".
        layers: for each entry of `Margins.inputs` the activation's dotted path in the network, or
            "activation 3" for the third activation where it is not found.

    Raises:
        Unsupported: an operator without trustworthy bounds, or a conversion that computes something
            else.
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        network: Network,
        *,
        iterations: int = 20,
        patches: bool = True,
        memory: int = _MEMORY,
        all_lines: bool = True,
    ) -> None:
        if memory < 1:
            raise ValueError(f"memory must be >= 1 byte, got {memory}")
        if iterations < 1:
            raise ValueError(f"iterations must be >= 1, got {iterations}")
        refuse_values(network.module)
        # 1. Copies to compare with: as the network runs, and in float64.
        self._network, self._iterations = network, iterations
        self._single = copy.deepcopy(network.module).eval()
        self._reference = copy.deepcopy(self._single).double()
        # 2. Trace it into layers, and put rules of our own where auto_LiRPA has no sound ones.
        traced = in_modules(network.module, network.example(2), exact=True)
        self._module = stepped(traced)
        self._rounding = Rounding(traced)
        self._refuse_blurred()
        # 3. Convert it, by patches where the windows allow that, else by matrices.
        modes = (
            (True, False)
            if patches and plain_windows(self._module, network.input_shape)
            else (False,)
        )
        self._engine, self.optimizes, self.patches = self._converted(modes)
        generator = torch.Generator().manual_seed(0)
        # 4. Match the converted activations with the traced ones, by their values at random points.
        points = torch.rand((2, *network.input_shape), generator=generator, dtype=torch.float64)
        seen, divided = self._engine.inner_at(points)
        # The conversion merges evaluations that are equal; then the bounds of activations serve for
        # nothing.
        self._ordered, self._normed = self._rounding.in_order(points, seen, divided)
        self.layers = layer_names(traced, points, seen)
        # 5. How many inputs at a time fit into memory, for all lines at once fewer.
        self.batch = self._engine.batch(memory, _LARGEST_BATCH)
        together = self._engine.batch_of_all_lines(memory, self.batch, network.classes - 1)
        self._together = together if all_lines and self.optimizes else 0
        self._unshared: Engine | None = None
        hidden = all_lines and self.optimizes and len(seen) > 1
        self.limited = (
            f"{_ALONE}: those of all lines do not fit into memory"
            if hidden and not together
            else ""
        )

    @torch.no_grad()
    def _refuse_blurred(self) -> None:
        """Raise Unsupported where the rounding of a single input can't be bounded well enough to
        prove anything.
        """
        points = torch.stack(
            [torch.full(self._network.input_shape, each).double() for each in (0.25, 0.75)]
        )
        try:
            logits = self._reference(points)
        except RuntimeError as error:
            raise Unsupported(
                f"the network fails in float64, in which bounds are checked: {_line(error)}"
            ) from error
        # Boxes without any width: all that is left is rounding.
        errors = self._rounding.errors(points, points)[0]
        least = (errors / (1 + logits.abs().amax(1, keepdim=True))).amin().item()
        if _BLURRED < least < torch.inf:
            raise Unsupported(
                f"no useful bounds of float32 rounding: for a single input {least:.1g} times the"
                " greatest logit"
            )

    def _engine_for(self, patches: bool) -> Engine:
        return Engine(self._module, self._network.input_shape, self._iterations, patches=patches)

    def _converted(self, modes: tuple[bool, ...]) -> tuple[Engine, bool, bool]:
        """An engine that works on two small boxes, whether its alpha-CROWN does, and whether it
        uses patches.
        """
        low = torch.stack(
            [
                torch.full(self._network.input_shape, each, dtype=torch.float64)
                for each in (0.1, 0.6)
            ]
        )
        small = Regions(low, low + 0.1, None, torch.full((2,), torch.inf).double())
        rows = torch.eye(self._network.classes, dtype=torch.float64).expand(2, -1, -1)
        failure: Exception | None = None
        # A mode serves if it computes the network's values, and IBP and CROWN run.
        for patches in modes:
            try:
                engine = self._engine_for(patches)
                self._compare(engine, low)
                intervals = engine.bound(small, rows, "ibp")[2]
                inputs = engine.bound(small, rows, "crown", intervals)[2]
            except _FAILURES as error:
                failure = error
                continue
            # alpha-CROWN is tried apart: where it fails, the other methods still serve.
            if not engine.optimizes:
                return engine, False, patches
            try:
                engine.optimize(
                    small, rows, inputs, lambda lower: lower.amin(1, keepdim=True) > torch.inf
                )
            except _FAILURES:
                # The failed optimizer leaves its state behind.
                return self._engine_for(patches), False, patches
            return engine, True, patches
        raise Unsupported(f"auto_LiRPA does not manage this network: {failure}") from failure

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
            Distrusted: a bound excludes a value of the network, or could not be computed.
            Unsupported: auto_LiRPA does not manage this network by this method.
        """
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if not properties:
            raise ValueError("bounds of no properties")
        until = torch.inf if seconds is None else time.monotonic() + seconds
        parts = []
        for at in range(0, len(properties), self.batch):
            some = properties[at : at + self.batch]
            if method != "alpha-crown":
                parts.append(self._propagated(some, method))
            else:
                crown = start[at : at + self.batch] if start else self._propagated(some, "crown")
                parts.append(self._optimized(some, crown, until))
        return Margins.joined(parts)

    def _propagated(self, properties: list[Property], method: str) -> Margins:
        regions, rows = Regions.of(properties), rows_of(properties, self._network.classes)
        lower, upper, inputs = self._by(method, regions, rows)
        norms = self._engine.norms if self._normed else None
        # 1. Widen the bounds by what float64 itself may have lost.
        single, double = self._rounding.errors(
            regions.lower, regions.upper, inputs if self._ordered else None, norms
        )
        slack = torch.einsum("bkc,bc->bk", rows.abs(), double)
        lower, upper = _or_nothing(lower - slack, -torch.inf), _or_nothing(upper + slack, torch.inf)
        # 2. Look for values of the network that these bounds, or those of float32's rounding,
        # exclude.
        self._check(regions, rows, lower, upper)
        self._check_rounding(regions, single)
        # The rows are the margins first, and then the logits.
        split = self._network.classes - 1
        return Margins(
            lower[:, :split],
            lower[:, split:],
            upper[:, split:],
            of_margins(single, properties),
            inputs,
        )

    def _by(
        self, method: str, regions: Regions, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Pairs]:
        """The engine's bounds; CROWN's within those of intervals, layer by layer."""
        if method in ("forward", "crown-ibp"):
            try:
                return self._engine.bound(regions, rows, method)
            except _FAILURES as error:
                self._engine = self._engine_for(self.patches)
                raise Unsupported(
                    f"auto_LiRPA does not manage this network by {method}: {_line(error)}"
                ) from error
        with _managed():
            found = self._engine.bound(regions, rows, "ibp")
            if method == "ibp":
                return found
            crown = self._engine.bound(regions, rows, "crown", found[2])
        # fmax and fmin: a bound that is not a number says nothing.
        return torch.fmax(crown[0], found[0]), torch.fmin(crown[1], found[1]), crown[2]

    def _optimized(self, properties: list[Property], crown: Margins, until: float) -> Margins:
        if not self.optimizes:
            raise Unsupported("auto_LiRPA's alpha-CROWN fails on this network")
        if time.monotonic() >= until or not crown.margins.numel():
            return crown
        regions = Regions.of(properties)
        rows = rows_of(properties, self._network.classes)[:, : self._network.classes - 1]

        def done(margins: torch.Tensor) -> torch.Tensor:
            return _enough(margins, crown) | (time.monotonic() >= until)

        # 1. Optimize the lines of the margins' own bounds.
        with _managed():
            tensor = self._engine.optimize(regions, rows, crown.inputs, done)
        # 2. For what is still open optimize all lines, as many inputs at once as memory allows.
        for some in torch.split(torch.nonzero(~done(tensor)[:, 0])[:, 0], max(1, self._together)):
            if not self._together or not len(some) or time.monotonic() >= until:
                break
            tensor[some] = torch.fmax(
                tensor[some], self._by_all_lines(properties, rows, crown, tensor, some, until)
            )
        # 3. Take off what float64 may have lost, and compare with the network at some points: a
        # bound that excludes one of its values is not believed.
        double = self._rounding.errors(
            regions.lower, regions.upper, crown.inputs if self._ordered else None
        )[1]
        tensor = _or_nothing(tensor - torch.einsum("bkc,bc->bk", rows.abs(), double), -torch.inf)
        self._check(regions, rows, tensor, torch.full_like(tensor, torch.inf))
        return replace(crown, margins=torch.maximum(crown.margins, tensor))

    def _by_all_lines(
        self,
        properties: list[Property],
        rows: torch.Tensor,
        crown: Margins,
        found: torch.Tensor,
        some: torch.Tensor,
        until: float,
    ) -> torch.Tensor:
        """Lower bounds of `some` of the rows; `found` again where auto_LiRPA does not manage
        them.
        """
        chosen, known = crown[some], found[some]

        def done(margins: torch.Tensor) -> torch.Tensor:
            return _enough(torch.fmax(margins, known), chosen) | (time.monotonic() >= until)

        regions = Regions.of([properties[index] for index in some.tolist()])
        try:
            if self._unshared is None:
                # By patches all places of a channel would share their lines.
                self._unshared = self._engine_for(patches=False) if self.patches else self._engine
                self._compare(self._unshared, regions.lower)
            return self._unshared.optimize(regions, rows[some], chosen.inputs, done, all_lines=True)
        except _FAILURES as error:
            # The failed optimizer leaves its state behind.
            self._engine, self._unshared, self._together = self._engine_for(self.patches), None, 0
            self.limited = f"{_ALONE}: auto_LiRPA does not manage all lines: {_line(error)}"
            return known

    @torch.no_grad()
    def _compare(self, engine: Engine, inputs: torch.Tensor) -> None:
        logits: torch.Tensor = self._reference(inputs)
        if not torch.allclose(engine.forward(inputs), logits, rtol=1e-9, atol=1e-9):
            raise Unsupported("auto_LiRPA's conversion of the network computes another function")

    @torch.no_grad()
    def _check(
        self, regions: Regions, rows: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor
    ) -> None:
        """Nothing is believed of a conversion that computes something else, or of bounds that
        exclude a value.
        """
        points = regions.points(_shares(regions.lower))
        self._compare(self._engine, points[0])
        logits = self._reference(points.flatten(0, 1)).reshape(*points.shape[:2], -1)
        values = torch.einsum("bkc,pbc->pbk", rows, logits)
        if not bool(((lower <= values) & (values <= upper)).all()):
            raise Distrusted("auto_LiRPA's bounds exclude a value of the network")

    @torch.no_grad()
    def _check_rounding(self, regions: Regions, single: torch.Tensor) -> None:
        """Raise Unsupported where float32's logits at points of the regions are off by more than
        `single`.
        """
        points = regions.points(_shares(regions.lower)[::_FEWER]).float()
        inside = ((points >= regions.lower) & (points <= regions.upper)).flatten(2).all(2)
        given = points[inside]
        if not len(given):
            return
        off = (self._single(given) - self._reference(given.double())).abs()
        bound = single.expand(*inside.shape, -1)[inside]
        if not bool(((off <= bound) | bound.isinf()).all()):
            raise Unsupported(
                "float32's rounding is beyond its bound, a defect of evalsuite: report the network"
            )

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


def _enough(margins: torch.Tensor, bounds: Margins) -> torch.Tensor:
    """(properties, 1) bool: which are proven by far."""
    return (margins > 2 * bounds.allowance).all(1, keepdim=True)


@contextmanager
def _managed() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise Distrusted(f"auto_LiRPA does not manage this network: {_line(error)}") from error


def _line(error: Exception) -> str:
    return f"{type(error).__name__} {(str(error).splitlines() or [''])[0]}"


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
