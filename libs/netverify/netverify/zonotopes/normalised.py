"""Zonotopes of what is normalised: LayerNorm, RMSNorm and softmax.

A norm is a product of its operand and an inverse root, both zonotopes; a linear layer behind it is
applied before that product, where entries cancel (`Normalised`). A softmax is exp(x -
log-sum-exp(x)), with the log-sum-exp by its tangent at the center and a remainder by Taylor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod, sqrt

import torch

from netverify.rounding import EPS, TINY, units
from netverify.zonotopes.quadratic import beyond, chosen, convex_of, dot, nearer, times
from netverify.zonotopes.zonotope import Symbols, Zonotope, ends, linear, scaled, with_symbols
from opgraph.errors import Unsupported
from opgraph.operations import LayerNorm, Linear, Reduction, RMSNorm, Softmax
from opgraph.patterns import ALL_MASKED
from opgraph.scores import vanishing


@dataclass(frozen=True)
class Normalised(Zonotope):
    """A norm's output, and what it is made of.

    Args:
        y: what is scaled.
        scale: of each row.
        weight: of the entries of a row, None for 1.
        bias: of the entries of a row, None for 0.
        mean: over other axes than those of rows, of which the output is the mean; None for none.
    """

    y: Zonotope
    scale: Zonotope
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    mean: Reduction | None = None

    def mapped(self, operation: Linear, first: int) -> Zonotope:
        """A linear layer of it: of each row before it is scaled, where its entries cancel."""
        plain, size = (
            replace(operation, bias=None),
            replace(operation, weight=operation.weight.abs(), bias=None),
        )
        y, terms = (
            self.y if self.weight is None else scaled(self.y, self.weight),
            operation.weight.shape[-1] + 1,
        )
        mapped = times(linear(y, plain, terms, size), self.scale, first)
        # What is added: the norm's own bias, mapped, and the layer's.
        row = (
            None
            if self.bias is None
            else self.bias.expand(*self.bias.shape[:-1], operation.weight.shape[-1])
        )
        for bias, known in ((row, True), (operation.bias, False)):
            if bias is None:
                continue
            added, rounded = (plain(bias), size(bias.abs())) if known else (bias, bias.abs())
            radius = mapped.radius + units(terms) * (rounded + mapped.center.abs()) + TINY
            mapped = Zonotope(mapped.center + added, mapped.generators, radius)
        return mapped if self.mean is None else linear(mapped, self.mean, mapped.center.numel())


def norm(symbols: Symbols, operation: LayerNorm | RMSNorm, x: Zonotope) -> Normalised:
    """y / sqrt(mean of y^2 + eps), of which no entry is beyond the root of their number; without
    weight and bias.

    Raises:
        Unsupported: eps is not above 0.
    """
    if not operation.eps > 0:
        raise Unsupported(f"a norm with eps = {operation.eps:g}, which may divide by 0")
    axes, count = operation.axes, prod(x.center.shape[axis] for axis in operation.axes)

    def mean(y: torch.Tensor) -> torch.Tensor:
        return y.mean(axes, keepdim=True)

    # 1. Less the mean, for a LayerNorm.
    y = x
    if isinstance(operation, LayerNorm):
        y = linear(x, lambda z: z - mean(z), count + 2, lambda z: z + mean(z))
    # 2. The variance: the sum of squares as a product of the zonotope with itself, so that it is
    # not below 0, over the count, plus eps.
    square = symbols.promoted(_square_sum(y, axes, symbols.first))
    variance = linear(
        square, lambda z: z / count, 1, bias=torch.tensor(operation.eps, dtype=torch.float64)
    )
    # 3. The least the variance can be: each entry at the end of its interval that is nearest to 0.
    # The inverse root is steep there, and needs a good bound of its operand.
    nearest = (y.center.abs() - y.spread).clamp(min=0) * (1 - units(count))
    least = (mean(nearest.square()) * (1 - units(count)) + operation.eps) * (1 - 4 * EPS)
    scale = symbols.promoted(convex_of(variance, "rsqrt", symbols.first, least))
    # 4. The product; no entry of a normalised row is beyond the root of their number.
    product, most = times(y, scale, symbols.first), sqrt(count) * (1 + units(1))
    wide = product.spread > most  # what spreads further is known by that alone
    center, generators = (
        product.center.masked_fill(wide, 0.0),
        product.generators.masked_fill(wide, 0.0),
    )
    return Normalised(
        center, generators, product.radius.masked_fill(wide, most), y, scale, None, None
    )


def _square_sum(x: Zonotope, axes: tuple[int, ...], first: int) -> Zonotope:
    """The sum of the squares over axes, which keep one entry."""
    behind = tuple(axis - x.center.ndim for axis in axes)
    shape = [1 if axis in axes else size for axis, size in enumerate(x.center.shape)]

    # The axes become one, of rows of a matrix: the sum of squares is a row times its transpose.
    def row(z: torch.Tensor) -> torch.Tensor:
        return z.movedim(behind, tuple(range(-len(axes), 0))).flatten(-len(axes)).unsqueeze(-2)

    rows = Zonotope(row(x.center), row(x.generators), row(x.radius))
    zonotope = dot(
        rows, Zonotope(rows.center.mT, rows.generators.mT, rows.radius.mT), first, square=True
    )
    return Zonotope(
        zonotope.center.reshape(shape),
        zonotope.generators.reshape(-1, *shape),
        zonotope.radius.reshape(shape),
    )


_NORMAL = 1e-290
"""Shares below are rounded, as they are near the least numbers that there are."""
_FAR = 50.0
"""Beyond this, exponentials of spreads are not taken."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """Holds what goes into a softmax, about the center.

    Args:
        masked: which scores cannot count.
        shares: of the center, along `axis`; 0 where `masked`.
        logs: their logarithms; 0 where masked.
        apart: how far the scores are from the center, less the mean of that by the shares.
    """

    axis: int
    masked: torch.Tensor
    shares: torch.Tensor
    logs: torch.Tensor
    apart: Zonotope

    def mean(self, z: torch.Tensor) -> torch.Tensor:
        return (self.shares * z).sum(self.axis, keepdim=True)

    def remainder(self, order: int) -> torch.Tensor:
        """More than the integral of (1 - t)^(order - 1) / (order - 1)! times the mean square of
        `apart` at the point t of the way, t in [0, 1]. There a share is at most exp(t spread) times
        the center's, and 1.
        """
        # 1. In closed form: exp less the first terms of its series, over what powers of the spread
        # are left; far away, where exp is too great, only the cap counts.
        x, whole = self.apart.spread, 2.0 if order == 2 else 6.0
        low = x.clamp(max=_FAR)
        series = 1 + low if order == 2 else 1 + low + low * low / 2
        exact = (low.exp() - series + 8 * EPS * (low.exp() + series)) / low.clamp(min=TINY) ** (
            order - 2
        )
        exact = (self.shares * exact).masked_fill(x > _FAR, torch.inf)
        # 2. A share is at most 1: with the greatest share on the way all along, the integral is x^2
        # / 2 or x^2 / 6 of it.
        capped = (self.logs + x).clamp(max=0.0).exp() * x * x / whole
        remainder = (
            torch.minimum(exact, capped).masked_fill(self.masked, 0.0).sum(self.axis, keepdim=True)
        )
        # 3. The shares sum to 1, so that the mean square is at most the greatest square.
        most = x.amax(self.axis, keepdim=True)
        return torch.minimum(remainder, most * most / whole) * (1 + units(x.shape[self.axis] + 8))


def softmax(symbols: Symbols, operation: Softmax, x: Zonotope) -> Zonotope:
    """exp(x - log-sum-exp(x)): the log-sum-exp's tangent at the center, and what is left of it
    above that.

    Raises:
        Unsupported: a logarithm of the softmax; a row of which nothing is left by its mask.
    """
    if operation.log:
        raise Unsupported("no zonotope of the logarithm of a softmax")
    # 1. Leave out what is masked: its share is 0.
    masked = _vanishing(x, operation.axis)
    if not operation.safe and bool(masked.all(operation.axis).any()):
        raise Unsupported(ALL_MASKED)
    # 2. The logarithms of the shares, and their exponential, which is at most 1.
    scores = _scores(symbols, x, operation.axis, masked)
    zonotope = convex_of(_logarithms(symbols, x, scores), "exp", symbols.first, most=0.0)
    # Lines that say less than that a share lies in [0, 1] are left out.
    wide = zonotope.radius > 0.5
    center = zonotope.center.masked_fill(wide, 0.5).masked_fill(masked, 0.0)
    radius = zonotope.radius.masked_fill(wide, 0.5).masked_fill(masked, 0.0)
    zonotope = symbols.promoted(
        Zonotope(center, zonotope.generators.masked_fill(wide | masked, 0.0), radius)
    )
    # What they sum to beyond 1 is taken off again, where that helps: of shares it is nothing. In a
    # whole row it helps what the shares are multiplied with, of which then the differences to their
    # mean count alone.
    shares, axis = scores.shares, operation.axis
    summing = linear(
        zonotope,
        lambda z: z - shares * z.sum(axis, keepdim=True),
        x.center.shape[axis] + 2,
        lambda z: z + shares * z.sum(axis, keepdim=True),
        shares,
    )
    apart, alone = (
        beyond(zonotope, symbols.first).sum(axis, keepdim=True) for zonotope in (summing, zonotope)
    )
    together = (apart < 2 * alone) & ~wide.any(axis, keepdim=True)
    return chosen(together, summing, nearer(summing, zonotope, symbols.first))


def _vanishing(x: Zonotope, axis: int) -> torch.Tensor:
    """Which scores are -inf, or so low that what their shares are is less than what rounding is
    given here.
    """
    hidden = x.center == -torch.inf
    both = ends(replace(x, center=x.center.masked_fill(hidden, 0.0)))
    lower, upper = (end.reshape(x.center.shape).masked_fill(hidden, -torch.inf) for end in both)
    return vanishing(lower, upper, axis)


def _scores(symbols: Symbols, x: Zonotope, axis: int, masked: torch.Tensor) -> _Scores:
    # 1. Shares at the center. The logarithm of a share near the least numbers would be rounded:
    # there it is the score less log-sum-exp.
    shares = x.center.softmax(axis).masked_fill(masked, 0.0)
    logs = torch.where(
        shares > _NORMAL, shares.log(), x.center - x.center.logsumexp(axis, keepdim=True)
    )
    logs = logs.masked_fill(masked, 0.0)
    # Deviations from the center alone: there the logarithms of the shares are known.
    away = Zonotope(
        torch.zeros_like(logs),
        x.generators.masked_fill(masked, 0.0),
        x.radius.masked_fill(masked, 0.0),
    )
    scores = _Scores(axis, masked, shares, logs, away)
    # 2. Subtract the mean of the deviations: that is the tangent of log-sum-exp at the center, by
    # which what all scores have in common cancels.
    mean = scores.mean
    apart = linear(away, lambda z: z - mean(z), x.center.shape[axis] + 2, lambda z: z + mean(z))
    apart = symbols.promoted(
        Zonotope(
            apart.center,
            *(tensor.masked_fill(masked, 0.0) for tensor in (apart.generators, apart.radius)),
        )
    )
    return replace(scores, apart=apart)


def _logarithms(symbols: Symbols, x: Zonotope, scores: _Scores) -> Zonotope:
    """x - log-sum-exp(x), which is `logs` + `apart` less the logarithm of the mean of exp(apart).

    The latter has, along the way from the center, the variance of `apart` as its second derivative,
    by the shares at that point; these are at most the center's times the exponential of `apart`, as
    the mean of that is at least 1. The weights of the second and of the third derivative are those
    of Taylor's remainders. The third is a third central moment. Where all lie within [-b, b] and
    their mean is not below 0, this is at most b times the mean square, and at least -5/4 of that.
    """
    # 1. What rounding can lose.
    apart, logs, count, axis = scores.apart, scores.logs, x.center.shape[scores.axis], scores.axis
    rounded = units(count + 8) * (
        x.center.masked_fill(scores.masked, 0.0).abs().amax(axis, keepdim=True) + logs.abs() + 1
    )
    # 2. Without symbols: half a variance between 0 and its greatest value.
    second = scores.remainder(2)
    plain = Zonotope(-second / 2, apart.generators.new_zeros(0, *second.shape), second / 2)
    if symbols.first:
        # 3. With symbols kept: half the variance at the center as a zonotope, and the third
        # derivative's remainder; entry by entry the nearer one.
        square = times(apart, apart, symbols.first)
        half = linear(
            square, lambda z: -scores.mean(z) / 2, count + 1, lambda z: scores.mean(z) / 2
        )
        third = 1.25 * scores.remainder(3) * apart.spread.amax(axis, keepdim=True)
        plain = nearer(replace(half, radius=half.radius + third), plain, symbols.first)
    # 4. Sum both: the deviations, and what is left of log-sum-exp, which all entries of a row
    # share.
    wide = apart.generators.new_zeros(
        max(len(apart.generators), len(plain.generators)), *logs.shape
    )
    wide += with_symbols(plain.generators, len(wide))
    wide[: len(apart.generators)] += apart.generators
    rounded = rounded + units(8) * (plain.size + apart.spread)
    around = Zonotope(
        logs + plain.center, wide.masked_fill(scores.masked, 0.0), apart.radius + rounded
    )
    return symbols.shared(around, plain.radius + TINY)
