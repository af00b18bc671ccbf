"""The rounding of LayerNorm, of scaled dot-product attention and of what comes with them: products,
means.

LayerNorm is (x - mean) / sqrt(variance + eps) weight + bias over the last dimensions. With s the
least standard deviation in the box, the normalised values move by no more than |e| / s for errors e
of x: the Jacobian is 1 / s times a projection. In float32 the mean of n values is off by n + 2
units of the greatest magnitude, and the variance, by Welford's updates or in two passes, relatively
by n + 8 units of its condition number sqrt(1 + mean^2 / variance) (T. Chan, G. Golub, R. LeVeque,
The American Statistician 37(3), 1983).

Products: xy of values that are off by e and f is off by no more than |x| |f| + |e| |y| + |e| |f|,
besides the sum's own units. Scores are scaled before or after the sum, by rounded factors: 8 units
more.

Softmax, p_k = exp(x_k) / sum_j exp(x_j), of inputs off by e_j with |e_j| <= E_j:
- p_k(x + e) / p_k(x) = exp(e_k) / sum_j p_j exp(e_j) lies within exp(+-(E_k + max E)). Along the
  way the slopes are p_k (1 - p_k) <= 1/4 towards x_k and -p_k p_j towards the others, in sum no
  more than 1/4 too. So p_k moves by no more than the least of p_k (exp(E_k + max E) - 1), (E_k +
  max E) / 4 and 1.
- Of its own: x_j - max x, and its rescaling block by block, is off by u times the widest difference
  D, so each exp by a factor exp(+-2 u D) at the most; exp itself by 20 units, as in the kernels
  that fuse attention, above and below; the sum by n, twice where it goes by blocks, and the
  division by one. All is within exp(4 u D) and 2 n + 128 units. The greatest exp is 1, so what
  underflows counts as it is.

Where attention is fused, the division comes after the product with the values: the factors are the
same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite import Unsupported
from netverify.graph import Shares
from netverify.shares import shares_interval
from pipelines.bounds.spread import (
    TINY,
    UNIT,
    Spread,
    as_spread,
    averaged,
    between,
    exact,
    is_number,
    units,
)

_BISECTIONS = 60
_SLACK = 1e-9
_UNITS = 8
_ANYWHERE = 1e30


def layer_norm(
    x: Spread,
    shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Spread:
    """The rule of torch's layer_norm. Raises Unsupported where the normalised values have no
    bounds: eps is 0.
    """
    if not eps > 0:
        raise Unsupported(f"no bound of the rounding of layer_norm with eps {eps}")
    # 1. The least deviation in the region, which all errors are divided by: from intervals, or from
    # what is known of it beside them.
    center, radius, error = x.parts()
    dims, count = tuple(range(-len(shape), 0)), math.prod(shape)
    low, high = center - radius - error, center + radius + error
    deviation = (least_variance(low, high, dims) + eps).sqrt()
    known = x.run.normalised()
    if known is not None:
        # The root is a norm of what is divided, so errors move it by no more than their own.
        moves = 1.01 * error.square().mean(dims, keepdim=True).sqrt()
        roots = _roots(*known, dims, eps)
        deviation = torch.fmax(deviation, roots[0] * (1 - _SLACK) - moves)
    magnitude = torch.maximum(low.abs(), high.abs()).amax(dims, keepdim=True)
    # 2. How far the operand's own errors move a normalised value.
    moved = error.square().sum(dims, keepdim=True).sqrt() / deviation
    # No normalised value is beyond sqrt(n - 1), nor beyond the widest difference over the least
    # deviation.
    spread = (high.amax(dims, keepdim=True) - low.amin(dims, keepdim=True)) / deviation
    greatest = spread.clamp(max=float(count) ** 0.5)
    if known is not None:
        farthest = torch.maximum(known[0].abs(), known[1].abs()) + 2.01 * error.amax(
            dims, keepdim=True
        )
        greatest = torch.fmin(
            greatest, farthest.amax(dims, keepdim=True) * (1 + _SLACK) / deviation
        )
    # 3. What float32 adds in mean, variance and quotient: relative to the values' size, which may
    # be far greater than the deviation.
    condition = (1 + (magnitude / deviation).square()).sqrt()
    rounding = (count + _UNITS) * UNIT * (2 * magnitude / deviation + condition * greatest) + TINY
    factor = torch.ones(()).double() if weight is None else exact(weight)
    scale, shift = factor.abs(), torch.zeros(()).double() if bias is None else exact(bias)
    # 4. Mark what may overflow on the way, then sum up the errors behind weight and bias.
    x.run.reached(magnitude.square())
    x.run.reached(scale * (greatest + rounding) + shift.abs() + 0 * center)
    off = (
        scale * (moved + rounding) + 4 * UNIT * (scale * greatest + shift.abs()) + TINY + 0 * center
    )
    # The real values' own range, which float32's errors do not blur.
    first, last = center - radius, center + radius
    least = (least_variance(first, last, dims) + eps).sqrt()
    most = torch.fmax(least, (_greatest_variance(first, last, dims) + eps).sqrt())
    down, above = _quotients(
        first - last.mean(dims, keepdim=True), last - first.mean(dims, keepdim=True), least, most
    )
    ends = torch.maximum(down, -greatest), torch.minimum(above, greatest)
    if known is not None:
        inner = _quotients(*known, *_roots(*known, dims, eps))
        down, above = (torch.fmin(torch.fmax(end, ends[0]), ends[1]) for end in inner)
        ends = down - _SLACK * (1 + down.abs()), above + _SLACK * (1 + above.abs())
    lower, upper = (factor * end + shift for end in ends)
    return between(torch.minimum(lower, upper), torch.maximum(lower, upper), off, x.run)


def _roots(low: Tensor, high: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """The range of the root of the mean square, plus eps, of values in [low, high]."""
    least = torch.maximum(low, -high).clamp(min=0).square()
    most = torch.maximum(low.abs(), high.abs()).square()
    return (least.mean(dims, keepdim=True) + eps).sqrt(), (
        most.mean(dims, keepdim=True) + eps
    ).sqrt()


def _quotients(low: Tensor, high: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """The range of values in [low, high] divided by what lies in [least, most]."""
    return low / torch.where(low < 0, least, most), high / torch.where(high > 0, least, most)


def _greatest_variance(low: Tensor, high: Tensor, dims: tuple[int, ...]) -> Tensor:
    """An upper bound of the variance (over n) of values in [low, high]: their mean square
    distance to any number.
    """
    middle = ((low + high) / 2).mean(dims, keepdim=True)
    farthest: Tensor = torch.maximum((low - middle).abs(), (high - middle).abs())
    return farthest.square().mean(dims, keepdim=True) * (1 + 1e-12)


def least_variance(low: Tensor, high: Tensor, dims: tuple[int, ...]) -> Tensor:
    """A lower bound of the variance (over n) of values in [low, high]: min over m of their mean
    square distance to m.

    The distance of a point to an interval is convex, so m is found by bisection, and the tangent
    where it ends bounds what is left.
    """
    left, right = low.amin(dims, keepdim=True), high.amax(dims, keepdim=True)
    for _ in range(_BISECTIONS):
        middle = (left + right) / 2
        rises = _slope(middle, low, high).mean(dims, keepdim=True) > 0
        left, right = torch.where(rises, left, middle), torch.where(rises, middle, right)
    middle = (left + right) / 2
    slope = _slope(middle, low, high)
    reached = (slope / 2).square().mean(dims, keepdim=True)
    tensor: Tensor = reached - slope.mean(dims, keepdim=True).abs() * (right - left)
    return (tensor * (1 - 1e-12)).clamp(min=0)


def _slope(middle: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return 2 * ((middle - high).clamp(min=0) - (low - middle).clamp(min=0))


_SCALING, _EXP = 8, 128


def _product(
    left: Spread, right: Spread, of: Callable[[Tensor, Tensor], Tensor], rounding: float, lost: Any
) -> Spread:
    """The bilinear `of` of two values; its own rounding is `rounding` of the magnitudes, and `lost`
    by underflow.
    """
    (center, radius, error), (other, spare, moved) = left.parts(), right.parts()
    reach = of(left.magnitude(), right.magnitude())
    left.run.reached(reach)
    wide = of(center.abs(), spare) + of(radius, other.abs() + spare)
    # The magnitudes of y include its errors, so this is |x| f + e |y| + e f.
    off = of(center.abs() + radius, moved) + of(error, right.magnitude())
    return Spread.of(of(center, other), wide, off + rounding * reach + lost, left.run)


def products(left: Spread, right: Spread, more: int = 0) -> Spread:
    """left @ right of activations (batch, ..., rows, n) and (batch, ..., n, columns); `more` units
    for each product.
    """
    count = left.shape[-1]
    small = (
        left.magnitude().sum(-1, keepdim=True) + right.magnitude().sum(-2, keepdim=True) + count + 2
    ) * TINY
    return _product(left, right, torch.matmul, units(count + 2 + more), small)


def attention(
    query: Spread,
    key: Spread,
    value: Spread,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Spread:
    """The rule of torch's scaled_dot_product_attention. Raises Unsupported for masks of one's
    own and dropout.
    """
    if attn_mask is not None or dropout_p or enable_gqa:
        raise Unsupported(
            "no bound of the rounding of attention with a mask of its own, dropout or grouped"
            " queries"
        )
    times = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    scores = products(query, key.each(lambda part: part.transpose(-1, -2)), _SCALING)
    scores.run.reached(max(1.0, abs(times)) * scores.magnitude())
    center, radius, error = scores.parts()
    scaled = Spread.of(times * center, abs(times) * radius, abs(times) * error + TINY, scores.run)
    seen = torch.ones(center.shape[-2:], dtype=torch.bool).tril() if is_causal else None
    return products(softmax(scaled, seen), value)


def softmax(spread: Spread, seen: Tensor | None = None) -> Spread:
    """Softmax over the last dimension, of the entries that are `seen`."""
    center, radius, error = spread.parts()
    count = center.shape[-1]
    kept = torch.ones(center.shape[1:], dtype=torch.bool)
    kept = kept if seen is None else kept & seen
    # Of what may be anything shares lie between 0 and 1: beyond such numbers their bounds do too.
    ends = (
        end.nan_to_num(nan=unknown).clamp(-_ANYWHERE, _ANYWHERE).flatten(1)
        for end, unknown in ((center - radius, -_ANYWHERE), (center + radius, _ANYWHERE))
    )
    least, most = (
        end.view_as(center) for end in shares_interval(Shares(kept, kept.ndim - 1), *ends)
    )
    low, high = center - radius - error, center + radius + error
    if seen is not None:
        low, high = low.masked_fill(~seen, torch.inf), high.masked_fill(~seen, -torch.inf)
        error = error.masked_fill(~seen, 0.0)
    apart = (high.amax(-1, keepdim=True) - low.amin(-1, keepdim=True)) * 1.01
    # No difference of two inputs is off by more than `both`. That multiplies a weight by exp(both)
    # at the most, and moves it by both / 4 at the most, as p (1 - p) <= 1/4.
    both = 1.01 * (error + error.amax(-1, keepdim=True))
    moved = torch.minimum(most * torch.expm1(both), both / 4).clamp(max=1.0)
    reach = (most + moved).clamp(max=1.0)
    # float32's own: the exponents' rounding grows with how far the inputs are apart.
    rounding = (
        reach * (torch.expm1(4 * UNIT * apart) + units(2 * count + _EXP)) + 4 * (count + 2) * TINY
    )
    off = moved + rounding.clamp(max=1.0)
    return between(least, most, off if seen is None else off.masked_fill(~seen, 0.0), spread.run)


def _mean(
    spread: Spread, dim: int | tuple[int, ...] | None = None, keepdim: bool = False, **_: Any
) -> Spread:
    dims = (dim,) if isinstance(dim, int) else dim
    if not dims or any(dimension % spread.ndim == 0 for dimension in dims):
        raise Unsupported("no bound of the rounding of a mean over all inputs")
    return averaged(
        spread,
        lambda part: part.mean(dims, keepdim),
        math.prod(spread.shape[dimension] for dimension in dims),
    )


def _times(first: Any, second: Any) -> Spread:
    """The product entry by entry, of a value and a constant or of two values."""
    return _product(as_spread(first, second), as_spread(second, first), torch.mul, UNIT, TINY)


def _quotient(spread: Spread, divisor: Any) -> Spread:
    if isinstance(divisor, Spread) or not isinstance(spread, Spread):
        raise Unsupported("no bound of the rounding of a quotient by an activation")
    rounded = 2 if is_number(divisor) else 0
    if not rounded:
        exact(divisor)
    size = divisor.detach().abs()
    center, radius, error = spread.parts()
    reach = spread.magnitude() / size
    spread.run.reached(reach)
    return Spread.of(
        center / divisor,
        radius / size,
        error / size + (3 + rounded) * UNIT * reach + TINY,
        spread.run,
    )


def _pad(spread: Spread, pad: Any, mode: str = "constant", value: float | None = None) -> Spread:
    if mode != "constant" or value:
        raise Unsupported("no bound of the rounding of padding by other values than 0")
    return spread.each(lambda part: functional.pad(part, pad))


RULES: dict[Any, Callable[..., Any]] = {
    functional.layer_norm: layer_norm,
    functional.scaled_dot_product_attention: attention,
    torch.mean: _mean,
    torch.Tensor.mul: _times,
    torch.Tensor.div: _quotient,
    functional.pad: _pad,
}
