"""Bounds of a network's margins over the boxes of properties: guards, batches and outward slack."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import TypeVar

import torch
from torch import nn

from evalsuite import Network, Property, Unsupported
from pipelines.bounds import METHODS
from pipelines.bounds.adapter import Engine
from pipelines.bounds.preparing import plain_windows, prepared, refuse_values
from pipelines.bounds.rounding import Rounding

_BYTES = 2**27
# What auto_LiRPA raises for networks that it accepted but can't treat, by experience.
_FAILURES = (
    AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
Worked = TypeVar("Worked")
_ROWS = ("margins", "lower", "upper", "allowance")
# Random points of each box at which bounds are checked, half of them corners.
_CHECKED = 32


@dataclass(frozen=True, slots=True)
class Margins:
    """Bounds over boxes, float64, one row per property.

    Args:
        margins: (properties, classes - 1) lower bounds of logit[label] - logit[j], j ascending without the label.
        lower: (properties, classes) of the logits.
        upper: (properties, classes) of the logits.
        allowance: (properties, classes - 1) what a margin must exceed so that it is positive in float32 too; infinite
            where float32 may overflow.
        inputs: of each activation, lower and upper bounds (properties, *shape) of its input.
    """

    margins: torch.Tensor
    lower: torch.Tensor
    upper: torch.Tensor
    allowance: torch.Tensor
    inputs: list[tuple[torch.Tensor, torch.Tensor]]

    @property
    def unstable(self) -> torch.Tensor:
        """(properties,) int64: the activation inputs whose interval has 0 strictly inside."""
        none = torch.zeros(len(self), dtype=torch.int64)
        return sum((((low < 0) & (high > 0)).flatten(1).sum(1) for low, high in self.inputs), none)

    def __len__(self) -> int:
        return len(self.margins)

    def __getitem__(self, index: torch.Tensor | slice) -> Margins:
        """The bounds of some of the properties."""
        inputs = [(low[index], high[index]) for low, high in self.inputs]
        margins, lower, upper, allowance = (getattr(self, name)[index] for name in _ROWS)
        return Margins(margins, lower, upper, allowance, inputs)

    @staticmethod
    def joined(parts: list[Margins]) -> Margins:
        """The bounds of all the parts' properties."""
        layers = zip(*[each.inputs for each in parts], strict=True)
        inputs = [(torch.cat([low for low, _ in each]), torch.cat([high for _, high in each])) for each in layers]
        margins, lower, upper, allowance = (torch.cat([getattr(each, name) for each in parts]) for name in _ROWS)
        return Margins(margins, lower, upper, allowance, inputs)


class Distrusted(Unsupported):
    """Raised where bounds turn out to exclude a value, or can't be computed: matrices may do what patches do not."""


def _rows(properties: list[Property], classes: int) -> torch.Tensor:
    """(properties, 2 classes - 1, classes): what the logits are multiplied by for the margins, then themselves."""
    labels = torch.tensor([each.label for each in properties])
    identity = torch.eye(classes, dtype=torch.float64)
    others = torch.stack([torch.cat([identity[:label], identity[label + 1 :]]) for label in labels.tolist()])
    margins = identity[labels][:, None] - others
    return torch.cat([margins, identity.expand(len(labels), -1, -1)], 1)


class Propagation:
    """Bounds of one network, whose module is copied.

    What is bounded is the real function of the float32 weights; `Margins.allowance` covers its evaluation in float32.

    Args:
        network: is copied.
        iterations: of alpha-CROWN.
        patches: whether convolutions may propagate as patches, where that is safe.

    Raises:
        Unsupported: an operator without trustworthy bounds, or a conversion that computes something else.
    """

    def __init__(self, network: Network, *, iterations: int = 20, patches: bool = True) -> None:
        refuse_values(network.module)
        self._network = network
        self._reference = copy.deepcopy(network.module).double().eval()
        self._rounding = Rounding(network.module)
        module = prepared(network.module)
        modes = (True, False) if plain_windows(module, network.input_shape) and patches else (False,)
        self._engine, self.optimizes, self.patches = self._converted(module, iterations, modes)
        generator = torch.Generator().manual_seed(0)
        points = torch.rand((2, *network.input_shape), generator=generator, dtype=torch.float64)
        rows = torch.eye(network.classes, dtype=torch.float64).expand(2, -1, -1)
        # The conversion merges evaluations that are equal; then the bounds of activations serve for nothing.
        self._ordered = self._rounding.in_order(points, self._engine.bound(points, points, rows, "ibp")[2])
        largest = sorted(self._engine.sizes())[-2:]
        # The coefficients of one layer's outputs by another's, for both sides, and as much again in between.
        self.batch = max(1, min(64, int(_BYTES / (largest[0] * largest[-1] * 8 * 4))))

    def _converted(self, module: nn.Module, iterations: int, modes: tuple[bool, ...]) -> tuple[Engine, bool, bool]:
        """An engine that works on two small boxes, whether its alpha-CROWN does, and whether it uses patches."""
        low = torch.stack([torch.full(self._network.input_shape, each, dtype=torch.float64) for each in (0.1, 0.6)])
        rows = torch.eye(self._network.classes, dtype=torch.float64).expand(2, -1, -1)
        failure: Exception | None = None
        for patches in modes:
            try:
                engine = Engine(module, self._network.input_shape, iterations, patches=patches)
                self._compare(engine, low)
                for method in ("ibp", "crown"):
                    inputs = engine.bound(low, low + 0.1, rows, method)[2]
            except _FAILURES as error:
                failure = error
                continue
            try:
                engine.optimize(low, low + 0.1, rows, inputs, lambda lower: lower.amin(1, keepdim=True) > torch.inf)
            except _FAILURES:
                # The failed optimizer leaves its state behind.
                return Engine(module, self._network.input_shape, iterations, patches=patches), False, patches
            return engine, True, patches
        raise Unsupported(f"auto_LiRPA does not manage this network: {failure}") from failure

    def bounds(self, properties: list[Property], method: str, *, start: Margins | None = None) -> Margins:
        """Bounds by "ibp", "crown" or "alpha-crown", `batch` properties at a time.

        alpha-CROWN improves the margins of CROWN alone; `start` are CROWN's bounds where they are known already.
        """
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if not properties:
            raise ValueError("bounds of no properties")
        parts = []
        for at in range(0, len(properties), self.batch):
            some = slice(at, at + self.batch)
            if method != "alpha-crown":
                parts.append(self._propagated(properties[some], method))
            else:
                crown = start[some] if start else self._propagated(properties[some], "crown")
                parts.append(self._optimized(properties[some], crown))
        return Margins.joined(parts)

    def _propagated(self, properties: list[Property], method: str) -> Margins:
        low, high = _box(properties)
        rows = _rows(properties, self._network.classes)
        lower, upper, inputs = _managed(lambda: self._engine.bound(low, high, rows, method))
        single, double = self._rounding.errors(low, high, inputs if self._ordered else None)
        slack = torch.einsum("bkc,bc->bk", rows.abs(), double)
        lower, upper = _or_nothing(lower - slack, -torch.inf), _or_nothing(upper + slack, torch.inf)
        self._check(properties, rows, lower, upper)
        split = self._network.classes - 1
        allowance = _of_margins(single, properties)
        return Margins(lower[:, :split], lower[:, split:], upper[:, split:], allowance, inputs)

    def _optimized(self, properties: list[Property], crown: Margins) -> Margins:
        low, high = _box(properties)
        rows = _rows(properties, self._network.classes)[:, : self._network.classes - 1]

        def done(margins: torch.Tensor) -> torch.Tensor:
            return (margins > 2 * crown.allowance).all(1, keepdim=True)

        found = _managed(lambda: self._engine.optimize(low, high, rows, crown.inputs, done))
        double = self._rounding.errors(low, high, crown.inputs if self._ordered else None)[1]
        found = _or_nothing(found - torch.einsum("bkc,bc->bk", rows.abs(), double), -torch.inf)
        self._check(properties, rows, found, torch.full_like(found, torch.inf))
        return changed(crown, margins=torch.maximum(crown.margins, found))

    @torch.no_grad()
    def _compare(self, engine: Engine, inputs: torch.Tensor) -> None:
        logits: torch.Tensor = self._reference(inputs)
        if not torch.allclose(engine.forward(inputs), logits, rtol=1e-9, atol=1e-9):
            raise Unsupported("auto_LiRPA's conversion of the network computes another function")

    @torch.no_grad()
    def _check(self, properties: list[Property], rows: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor) -> None:
        """Nothing is believed of a conversion that computes something else, or of bounds that exclude a value."""
        low, high = _box(properties)
        self._compare(self._engine, low + (high - low) / 2)
        points = _points(low, high)
        logits = self._reference(points.flatten(0, 1)).reshape(*points.shape[:2], -1)
        values = torch.einsum("bkc,pbc->pbk", rows, logits)
        if not bool(((lower <= values) & (values <= upper)).all()):
            raise Distrusted("auto_LiRPA's bounds exclude a value of the network")

    @torch.no_grad()
    def contradicted(self, property_: Property, point: torch.Tensor, margins: torch.Tensor) -> bool:
        """Whether the float64 margins at `point` of the box lie below the bounds `margins` (classes - 1,)."""
        logits = self._reference(point.double()[None])[0]
        return not bool((_rows([property_], self._network.classes)[0, : len(margins)] @ logits >= margins).all())


def _managed(work: Callable[[], Worked]) -> Worked:
    try:
        return work()
    except _FAILURES as error:
        raise Distrusted(f"auto_LiRPA does not manage this network: {error}") from error


def _points(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """(points, properties, *input_shape): the center, both ends, and random points of each box, the same each time."""
    generator = torch.Generator().manual_seed(0)
    share = torch.rand((_CHECKED + 3, 1, *low.shape[1:]), generator=generator, dtype=torch.float64)
    share[3::2] = share[3::2].round()
    share[0], share[1], share[2] = 0.5, 0.0, 1.0
    return torch.minimum(low + share * (high - low), high)


def _box(properties: list[Property]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([each.lower for each in properties]), torch.stack([each.upper for each in properties])


def _or_nothing(bound: torch.Tensor, nothing: float) -> torch.Tensor:
    """A bound that is not a number says nothing."""
    return torch.where(bound.isnan(), nothing, bound)


def _of_margins(errors: torch.Tensor, properties: list[Property]) -> torch.Tensor:
    """Of each margin, the sum of its two logits' errors, (properties, classes - 1)."""
    others = torch.stack(
        [torch.cat([row[: each.label], row[each.label + 1 :]]) for row, each in zip(errors, properties, strict=True)]
    )
    own = torch.stack([row[each.label] for row, each in zip(errors, properties, strict=True)])
    return own[:, None] + others


def proven(bounds: Margins) -> torch.Tensor:
    """Which properties hold, (properties,) bool; NaN and infinite bounds prove nothing."""
    return (bounds.margins.isfinite() & (bounds.margins > bounds.allowance)).all(1)
