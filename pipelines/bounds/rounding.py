"""How far rounding can move a network's logits: a forward bound, layer by layer, over the boxes of
properties.

Assumed of float32 libraries: products are summed as they stand (no Winograd or Fourier transforms,
no bfloat16), erf is right to 2**-19, and exp, expm1, log1p, tanh and the sigmoid to a few units in
the last place.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from typing import Any

import torch
from torch import fx, nn

from evalsuite import Unsupported
from lambda_gelu import Activation
from netverify.relaxations import interval
from pipelines.bounds import rounding_rules, spread
from pipelines.bounds.curved import Shape, path_of, with_stand_ins
from pipelines.bounds.margins import Pairs
from pipelines.bounds.spread import TINY, UNIT, Run, Spread, between

# For each of: scaling, exp, erf or tanh, sums, products and a division, and the errors of hardness
# and parameters.
_UNITS = 32
# What formulas reach on the way, as x relu6(x + 3) before the division by 6, or x (1 + erf x)
# before that by 2.
_REACHED = 8
# Where intervals of activations end; float32 has overflowed long before.
_FARTHEST = 1e80
# float64 bounds go forward and backward through the same sums of magnitudes, with a few more
# operations each.
_FLOAT64 = 16 * 2.0**-53 / UNIT

spread.RULES.update(rounding_rules.RULES)


class _Curved(nn.Module):
    """An activation of a Spread, by its row: f(x) = g(hardness x) / hardness.

    A library's float32 value is off by at most _UNITS units of |f(x)| + |x| (1 + the greatest
    slope): the formulas of all rows are a dozen operations on numbers no greater than that. Errors
    of the input pass through the greatest slope on the interval.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._shape = shape

    def forward(self, x: Spread) -> Spread:
        center, radius, error = x.parts()
        hardness, traits = self._shape.factor, self._shape.traits
        lower, upper = x.run.narrowed(center - radius, center + radius)
        # Real values lie in [lower, upper]; float32's may lie beyond it by the error.
        first, last = hardness * (lower - 1.01 * error), hardness * (upper + 1.01 * error)
        farthest = torch.maximum(first.abs(), last.abs())
        lost = ~(farthest < _FARTHEST)
        first, last = (end.masked_fill(lost, 0) for end in (first, last))
        least, most = interval(traits, first / hardness, last / hardness, hardness=hardness)
        steepest = _steepest(traits, first, last)
        magnitude = torch.maximum(lower.abs(), upper.abs()) + error
        reach = torch.maximum(least.abs(), most.abs())
        x.run.reached(_REACHED * hardness * magnitude)
        x.run.reached(_REACHED * reach)
        # float32's own rounding, and the error of the input, which the steepest slope stretches.
        off = UNIT * (reach + magnitude * (1 + steepest + _outside(traits))) + TINY
        moved = (steepest * error + _UNITS * off + self._shape.gap).masked_fill(lost, torch.inf)
        return between(least, most, moved, x.run)


def _steepest(traits: Activation, lower: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
    """The greatest |g'| on [lower, upper]: between inflections and kinks g' is monotone, so it is
    beside one of them.

    Points are moved into the interval: there they do no harm.
    """
    beside = [
        near
        for kink in traits.kinks
        for near in (math.nextafter(kink, -math.inf), math.nextafter(kink, math.inf))
    ]
    inside = [
        torch.minimum(torch.maximum(torch.tensor(point, dtype=torch.float64), lower), upper)
        for point in (*traits.inflections, *beside)
    ]
    slopes = [traits.slope(point).abs() for point in (lower, upper, *inside)]
    return torch.stack(slopes).amax(0) * (1 + 1e-9) + 1e-9


def _outside(traits: Activation) -> float:
    """The greatest finite slope towards infinity: formulas add terms that the function's slope
    does not show.
    """
    return max([abs(limit) for limit in traits.limits if math.isfinite(limit)], default=1.0)


class _Told(fx.Interpreter):
    """Runs a network, and tells the path of what is refused."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False  # which would be added to the text of a refusal

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except Unsupported as error:
            raise Unsupported(f"{path_of(n)}: {error}") from error


class Rounding:
    """Bounds of the rounding errors of one network, as `in_modules` gives it."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self._module = copy.deepcopy(traced).double()
        with_stand_ins(self._module, _Curved)
        # Bounds sum over a layer's outputs where the network sums over its inputs.
        shapes = [parameter.shape for parameter in self._module.parameters() if parameter.ndim > 1]
        self._widest = max([1.0, *[shape[0] / shape[1] for shape in shapes]])

    @torch.no_grad()
    def holds(self, points: torch.Tensor, logits: torch.Tensor) -> bool:
        """Whether the layers give the float64 logits (points, classes) at the points, up to what
        float32 may be off.
        """
        run = Run(torch.zeros(len(points), dtype=torch.bool))
        outputs = _Told(self._module).run(between(points, points, torch.zeros_like(points), run))
        if not isinstance(outputs, Spread):
            return False
        center, radius, error = outputs.parts()
        return center.shape == logits.shape and bool(
            ((center - logits).abs() <= radius + error).all()
        )

    @torch.no_grad()
    def errors(
        self,
        lower: torch.Tensor,
        upper: torch.Tensor,
        inputs: Pairs | None = None,
        norms: Pairs | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """How far the logits can be off, in float32 (infinite where it may overflow) and in float64
        bounds of them.

        Each (batch, classes), for the boxes' ends (batch, *input_shape); `inputs` are bounds of
        each activation's input, call by call, and `norms` of what
        LayerNorms divide: they make the errors smaller.

        Raises:
            Unsupported: a function without rule, named.
        """
        known, radii = (
            None if inputs is None else deque(inputs),
            None if norms is None else deque(norms),
        )
        run = Run(torch.zeros(len(lower), dtype=torch.bool), known, radii)
        run.reached(torch.maximum(lower.abs(), upper.abs()))
        logits = _Told(self._module).run(between(lower, upper, torch.zeros_like(lower), run))
        if not isinstance(logits, Spread):
            raise Unsupported("the network's output does not come from its input")
        error = logits.error.nan_to_num(torch.inf, torch.inf)
        single = error.masked_fill(run.overflow[:, None], torch.inf)
        # Bounds of what is exact in float32, as the input itself, are rounded too.
        return single, (error + UNIT * logits.magnitude()) * _FLOAT64 * self._widest
