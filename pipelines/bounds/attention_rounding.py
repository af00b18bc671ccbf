"""The rounding of scaled dot-product attention and of what comes with it: products, and means over positions.

Products: xy of values that are off by e and f is off by no more than |x| |f| + |e| |y| + |e| |f|, besides the sum's own
units. Scores are scaled before or after the sum, by rounded factors: 8 units more.

Softmax, p_k = exp(x_k) / sum_j exp(x_j), of inputs off by e_j with |e_j| <= E_j:
- p_k(x + e) / p_k(x) = exp(e_k) / sum_j p_j exp(e_j) lies within exp(+-(E_k + max E)). Along the way the slopes are
  p_k (1 - p_k) <= 1/4 towards x_k and -p_k p_j towards the others, in sum no more than 1/4 too. So p_k moves by no more
  than the least of p_k (exp(E_k + max E) - 1), (E_k + max E) / 4 and 1.
- Of its own: x_j - max x, and its rescaling block by block, is off by u times the widest difference D, so each exp by a
  factor exp(+-2 u D) at the most; exp itself by 20 units, as in the kernels that fuse attention, above and below; the
  sum by n, twice where it goes by blocks, and the division by one. All is within exp(4 u D) and 2 n + 128 units. The
  greatest exp is 1, so what underflows counts as it is.

Where attention is fused, the division comes after the product with the values: the factors are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from evalsuite import Unsupported
from pipelines.bounds.softmax import softmax_range
from pipelines.bounds.spread import TINY, UNIT, Spread, as_spread, averaged, between, exact, is_number, teach, units

_SCALING, _EXP = 8, 128


def products(x: Spread, y: Spread, more: int = 0) -> Spread:
    """x @ y of activations (batch, ..., rows, n) and (batch, ..., n, columns); `more` units for each product."""
    (center, radius, error), (other, spare, moved) = x.parts(), y.parts()
    count = center.shape[-1]
    size, reach = center.abs() + radius, x.magnitude() @ y.magnitude()
    x.run.reached(reach)
    wide = center.abs() @ spare + radius @ (other.abs() + spare)
    # The magnitudes of y include its errors, so this is |x| f + e |y| + e f.
    off = size @ moved + error @ y.magnitude()
    small = (x.magnitude().sum(-1, keepdim=True) + y.magnitude().sum(-2, keepdim=True) + count + 2) * TINY
    return Spread.of(center @ other, wide, off + units(count + 2 + more) * reach + small, x.run)


def attention(
    query: Spread, key: Spread, value: Spread, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Spread:  # fmt: skip
    """The rule of torch's scaled_dot_product_attention. Raises Unsupported for masks of one's own and dropout."""
    if attn_mask is not None or dropout_p or enable_gqa:
        raise Unsupported("no bound of the rounding of attention with a mask of its own, dropout or grouped queries")
    times = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    scores = products(query, key.each(lambda part: part.transpose(-1, -2)), _SCALING)
    scores.run.reached(max(1.0, times) * scores.magnitude())
    center, radius, error = scores.parts()
    scaled = Spread.of(times * center, abs(times) * radius, abs(times) * error + TINY, scores.run)
    seen = torch.ones(center.shape[-2:], dtype=torch.bool).tril() if is_causal else None
    return products(softmax(scaled, seen), value)


def softmax(x: Spread, seen: torch.Tensor | None = None) -> Spread:
    """Softmax over the last dimension, of the entries that are `seen`."""
    center, radius, error = x.parts()
    count = center.shape[-1]
    least, most = softmax_range(center - radius, center + radius, seen)
    low, high = center - radius - error, center + radius + error
    if seen is not None:
        low, high = low.masked_fill(~seen, torch.inf), high.masked_fill(~seen, -torch.inf)
        error = error.masked_fill(~seen, 0.0)
    apart = (high.amax(-1, keepdim=True) - low.amin(-1, keepdim=True)) * 1.01
    both = 1.01 * (error + error.amax(-1, keepdim=True))
    moved = torch.minimum(most * torch.expm1(both), both / 4).clamp(max=1.0)
    reach = (most + moved).clamp(max=1.0)
    own = reach * (torch.expm1(4 * UNIT * apart) + units(2 * count + _EXP)) + 4 * (count + 2) * TINY
    off = moved + own.clamp(max=1.0)
    return between(least, most, off if seen is None else off.masked_fill(~seen, 0.0), x.run)


def _mean(x: Spread, dim: int | tuple[int, ...] | None = None, keepdim: bool = False, **_: Any) -> Spread:
    dims = (dim,) if isinstance(dim, int) else dim
    if not dims or any(each % x.ndim == 0 for each in dims):
        raise Unsupported("no bound of the rounding of a mean over all inputs")
    return averaged(x, lambda part: part.mean(dims, keepdim), math.prod(x.shape[each] for each in dims))


def _times(first: Any, second: Any) -> Spread:
    """The product entry by entry, of a value and a constant or of two values."""
    x, y = as_spread(first, second), as_spread(second, first)
    (center, radius, error), (other, spare, moved) = x.parts(), y.parts()
    reach = x.magnitude() * y.magnitude()
    x.run.reached(reach)
    size = center.abs() + radius
    wide = center.abs() * spare + radius * (other.abs() + spare)
    off = size * moved + error * y.magnitude() + UNIT * reach + TINY
    return Spread.of(center * other, wide, off, x.run)


def _quotient(x: Spread, divisor: Any) -> Spread:
    if isinstance(divisor, Spread) or not isinstance(x, Spread):
        raise Unsupported("no bound of the rounding of a quotient by an activation")
    rounded = 2 if is_number(divisor) else 0
    if not rounded:
        exact(divisor)
    size = divisor.detach().abs()
    center, radius, error = x.parts()
    reach = x.magnitude() / size
    x.run.reached(reach)
    return Spread.of(center / divisor, radius / size, error / size + (3 + rounded) * UNIT * reach + TINY, x.run)


def _pad(x: Spread, pad: Any, mode: str = "constant", value: float | None = None) -> Spread:
    if mode != "constant" or value:
        raise Unsupported("no bound of the rounding of padding by other values than 0")
    return x.each(lambda part: functional.pad(part, pad))


_TAUGHT: dict[Any, Callable[..., Any]] = {
    functional.scaled_dot_product_attention: attention,
    torch.mean: _mean,
    torch.Tensor.mul: _times,
    torch.Tensor.div: _quotient,
    functional.pad: _pad,
}
teach(_TAUGHT)
