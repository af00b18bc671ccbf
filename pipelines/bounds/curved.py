"""A network's activations: what they compute, what they are called, and one operator of
auto_LiRPA for all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import fx, nn

from evalsuite import Unsupported
from lambda_gelu import RELU, Activation, census, clip
from netverify.relaxations import SOFTPLUS, interval, relax
from pipelines.bounds.surroundings import Own, at_home, ordered

# How near a line must be to the function at both ends to be taken for a chord, and how far these
# must be apart.
_NEAR = 1e-6
_TORCH_SOFTPLUS = 20.0
_CLOSE = 1e-9

with at_home():
    from auto_LiRPA.bound_ops import BoundOptimizableActivation


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """f(x) = g(hardness x) / hardness, up to an error.

    Args:
        traits: the row of g.
        hardness: float64, broadcastable to x; None for 1, which costs nothing.
        threshold: where g is the identity instead, beyond it; torch's softplus has one.
    """

    traits: Activation
    hardness: torch.Tensor | None = None
    threshold: float = torch.inf

    @property
    def factor(self) -> torch.Tensor | float:
        """What x is multiplied by."""
        return 1.0 if self.hardness is None else self.hardness

    def value(self, x: torch.Tensor) -> torch.Tensor:
        """What the module computes of x, elementwise: f(x), or x itself beyond the threshold;
        float64.
        """
        curved = self.traits.value(self.factor * x) / self.factor
        return (
            curved
            if self.threshold == torch.inf
            else torch.where(self.factor * x > self.threshold, x, curved)
        )

    @property
    def gap(self) -> float:
        """How far f and the module are apart at the most: they differ beyond the threshold, most
        just behind it.
        """
        if self.threshold == torch.inf:
            return 0.0
        edge = torch.tensor(self.threshold, dtype=torch.float64)
        # 2**-48 times the threshold covers the rounding of the difference.
        apart = ((self.traits.value(edge) - edge).abs() + 2.0**-48 * edge) / self.factor
        return float(apart.max())

    def own(self) -> Own:
        """A module that computes it, and that auto_LiRPA bounds by our relaxation."""
        return Own(self.value, partial(BoundCurved, self))


class BoundCurved(BoundOptimizableActivation):  # type: ignore[misc]
    """Our relaxation as an operator of auto_LiRPA.

    alpha is where the tangents touch, z = hardness x, or the lines' slopes where f is two lines
    through 0: (2 for lower and upper line, rows of C, batch, *shape). Both releases take the batch
    at dimension 2.
    """

    # A line's parts, each a tensor, or two of them while optimizing.
    lw: Any
    lb: Any
    uw: Any
    ub: Any

    def __init__(
        self, shape: Shape, attr: Any, inputs: Any, output_index: int, options: Any
    ) -> None:
        super().__init__(attr, inputs, output_index, options)
        self._shape, self._gap = shape, shape.gap
        self._made_of: tuple[torch.Tensor, torch.Tensor] | None = None
        self.alpha_batch_dim = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._shape.value(x)

    def interval_propagate(self, *bounds: Any) -> tuple[torch.Tensor, torch.Tensor]:
        lower, upper = ordered(bounds[0][0], bounds[0][1])
        least, most = interval(self._shape.traits, lower, upper, hardness=self._shape.factor)
        return least - self._gap, most + self._gap

    def bound_relax(self, x: Any, init: bool = False, dim_opt: Any = None) -> None:
        if self.opt_stage in ("opt", "reuse"):
            # While optimizing, auto_LiRPA indexes the lines by the side that it bounds; one set
            # serves both.
            points = self.alpha[self._start]
            # Chords do not depend on the points, and have their shape no more.
            lines = self._lines(x.lower, x.upper, tuple(points))
            if x.lower.requires_grad:
                lines = tuple(self._following(lines, x.lower, x.upper))
            parts = [line.expand(points.shape[1:]) for line in lines]
            self.lw, self.lb, self.uw, self.ub = ((part, part) for part in parts)
            self._made_of = None
        elif (
            self._made_of is None
            or self._made_of[0] is not x.lower
            or self._made_of[1] is not x.upper
        ):
            # Each layer behind asks again, with the same bounds.
            self.lw, self.lb, self.uw, self.ub = self._lines(x.lower, x.upper, None)
            self._made_of = x.lower, x.upper

    def _lines(
        self, low: torch.Tensor, high: torch.Tensor, points: Any
    ) -> tuple[torch.Tensor, ...]:
        lower, upper = ordered(low, high)
        lines = relax(self._shape.traits, lower, upper, hardness=self._shape.factor, points=points)
        below, above = lines.lower_intercept - self._gap, lines.upper_intercept + self._gap
        return lines.lower_slope, below, lines.upper_slope, above

    def _following(
        self, lines: tuple[torch.Tensor, ...], low: torch.Tensor, high: torch.Tensor
    ) -> list[torch.Tensor]:
        """Give the lines a gradient with respect to the interval's ends where they are chords;
        their values stay the same, as what is added is 0.

        Lines that touch elsewhere follow their points alone: the optimizer needs no more.
        """
        with torch.no_grad():
            factor, width = self._shape.factor, (high - low).clamp(min=_NEAR)
            values = [self._shape.value(end) for end in (low, high)]
            steep = [self._shape.traits.slope(factor * end) for end in (low, high)]
            near = _NEAR * (1 + values[0].abs() + values[1].abs())
        moves = low - low.detach(), high - high.detach()
        found = []
        for slope, intercept in (lines[:2], lines[2:]):
            with torch.no_grad():
                # A line is a chord where it meets the function at both ends.
                chord = high - low > _NEAR
                for end, value in zip((low, high), values, strict=True):
                    chord = chord & ((slope * end + intercept - value).abs() < near)
                # Derivatives of a chord's slope by the lower and by the upper end.
                turns = [
                    torch.where(chord, each / width, 0.0).nan_to_num(0.0, 0.0, 0.0)
                    for each in (slope - steep[0], steep[1] - slope)
                ]
                # A chord passes through the lower end: its intercept is f(low) - slope low.
                rises = [-turns[0] * (width + low), -turns[1] * low]
            found += [
                part + by[0] * moves[0] + by[1] * moves[1]
                for part, by in ((slope, turns), (intercept, rises))
            ]
        return found

    def init_linear_relaxation(self, x: Any, dim_opt: Any = None) -> None:
        pass  # `bound_relax` makes the lines in one go

    def init_opt_parameters(self, start_nodes: Any) -> None:
        lower, upper = self.inputs[0].lower, self.inputs[0].upper
        # of what is piecewise linear, lines are told by slopes, not by points
        if self._shape.traits.shape:
            points = (self._shape.factor * (lower + upper) / 2).expand(2, *lower.shape)
        else:
            found = self._lines(lower, upper, None)
            points = torch.stack([found[0], found[2]])
        self.alpha.clear()
        for name, size, *_ in start_nodes:
            rows = size if isinstance(size, int) else prod(size)
            self.alpha[name] = (
                points[:, None].repeat(1, rows, *[1] * lower.ndim).detach().requires_grad_()
            )

    def dump_optimized_params(self) -> Any:
        return self.alpha

    def restore_optimized_params(self, alpha: Any) -> None:
        self.alpha = alpha


def activations(traced: fx.GraphModule) -> dict[str, Shape]:
    """What each activation of a network that `in_modules` gives computes, by the name of its
    module, in order.
    """
    called = [str(node.target) for node in traced.graph.nodes if node.op == "call_module"]
    shapes = {name: _shape_of(traced.get_submodule(name)) for name in called}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _shape_of(layer: nn.Module) -> Shape | None:
    """What the layer computes, if it is an activation."""
    operation: Any = getattr(layer, "operation", None)
    traits, hardness = getattr(operation, "traits", None), getattr(operation, "hardness", None)
    if traits is None:
        traits = next((found.traits.of(layer) for found in census(layer, gates=True)), None)
        if traits is None and isinstance(layer, nn.Hardtanh):
            traits = clip(float(layer.min_val), float(layer.max_val))
    if traits is None:
        return None
    threshold = _TORCH_SOFTPLUS if traits.name == SOFTPLUS.name else torch.inf
    return Shape(traits, None if hardness is None else hardness.double(), threshold)


def with_stand_ins(traced: fx.GraphModule, make: Callable[[Shape], nn.Module]) -> None:
    """Put `make(shape)` in the place of each activation but ReLU."""
    for name, shape in activations(traced).items():
        if shape.traits.name != RELU.name:
            traced.set_submodule(name, make(shape))


def path_of(node: fx.Node) -> str:
    """Return the name by which an error tells what computes the value: a module call's path, else
    the node's name.
    """
    return str(node.target) if node.op == "call_module" else node.name


def refuse_values(module: nn.Module) -> None:
    """Raise Unsupported where a weight is NaN or infinite, or a norm's are those of the batch."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not bool(tensor.isfinite().all()):
            raise Unsupported(f"{name} has values that are not finite")
    for name, each in module.named_modules():
        if isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d)) and each.running_mean is None:
            raise Unsupported(
                f"{name} ({type(each).__name__}) without running statistics normalises by its batch"
            )


Call = tuple[str, torch.Tensor]
"""The dotted path of a module, and what it was given."""


@torch.no_grad()
def calls(traced: fx.GraphModule, points: torch.Tensor) -> tuple[list[Call], list[torch.Tensor]]:
    """What the activations are given at `points` in float64, call by call; and what LayerNorms
    divide, x - mean.
    """
    watched = copy.deepcopy(traced).double()
    found, divided = list[Call](), list[torch.Tensor]()
    paths = {str(node.target): node.meta.get("path", node.target) for node in traced.graph.nodes}
    for name in activations(watched):
        watched.get_submodule(name).register_forward_pre_hook(
            lambda _, given, path=paths[name]: found.append((path, given[0]))
        )
    for layer in watched.modules():
        if isinstance(layer, nn.LayerNorm):
            dims = tuple(range(-len(layer.normalized_shape), 0))
            layer.register_forward_pre_hook(
                lambda _, given, dims=dims: divided.append(
                    given[0] - given[0].mean(dims, keepdim=True)
                )
            )
    watched(points)
    return found, divided


def layer_names(found: list[Call]) -> dict[int, str]:
    """The path of each call's module, by the place of the call.

    A module that is called more than once has a name for each call, but for calls with one input.
    """
    names, before = dict[int, str](), dict[str, list[torch.Tensor]]()
    for place, (path, value) in enumerate(found):
        earlier = before.setdefault(path, [])
        if any(same(given, value, _CLOSE) for given in earlier):
            continue
        earlier.append(value)
        names[place] = path if len(earlier) == 1 else f"{path} call {len(earlier)}"
    return names


def same(given: torch.Tensor, value: torch.Tensor, near: float) -> bool:
    """Whether two tensors have one shape and nearly one value."""
    return given.shape == value.shape and torch.allclose(given, value, rtol=near, atol=near)
