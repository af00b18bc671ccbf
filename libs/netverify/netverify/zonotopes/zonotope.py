"""Sets of values as zonotopes, and what arithmetic makes of them, rounded outward.

A zonotope is a center, generators that are multiplied by symbols in [-1, 1], and a radius of each
entry by itself (affine arithmetic; DeepZ, NeurIPS 2018). So two values that depend on one symbol
keep their relation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from netverify.rounding import EPS, TINY, units
from netverify.scalar_lines import Middle

Map = Callable[[torch.Tensor], torch.Tensor]

_SYMBOLS = 2**14
"""New symbols are made up to so many of a graph; what comes after stays in radii, which forget
relations.
"""
_ENTRIES = 2**27  # of the generators of one value, a GiB
_CHUNK = 256
_NEGLIGIBLE = 1e-9  # of the greatest spread: such a radius is no symbol


@dataclass(frozen=True)
class Zonotope:
    """center + the sum of symbols times generators + what lies within radius, symbols each in [-1,
    1].

    Args:
        center: (1, *shape) float64; -inf where an entry is masked.
        generators: (symbols, 1, *shape); the first are those of the box, the same for every value
            and graph.
        radius: (1, *shape), >= 0.
    """

    center: torch.Tensor
    generators: torch.Tensor
    radius: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the values, with the batch of one."""
        return self.center.shape

    @cached_property
    def spread(self) -> torch.Tensor:
        """(1, *shape), how far a value can lie from the center."""
        return (spread_of(self.generators) + self.radius) * (1 + 2 * EPS)

    @property
    def size(self) -> torch.Tensor:
        """(1, *shape), the greatest magnitude of the center, and how far the values lie from it,
        added.
        """
        return self.center.abs() + self.spread

    def lower_bounds(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows,), below rows (rows, entries) times the flat value."""
        center, radius = self.center.flatten(), self.radius.flatten()
        moved = self.generators.flatten(1) @ rows.T
        lost = units(rows.shape[1] + len(moved)) * (rows.abs() @ self.size.flatten()) + TINY
        return rows @ center - moved.abs().sum(0) - rows.abs() @ radius - lost

    def minus(self, other: Zonotope, shared: int) -> Zonotope:
        """self - other, whose first `shared` symbols are the same, those of the box, and all
        others are not.
        """
        both = with_symbols(self.generators[:shared], shared) - with_symbols(
            other.generators[:shared], shared
        )
        generators = torch.cat([both, self.generators[shared:], -other.generators[shared:]])
        rounded = 2 * EPS * (self.size + other.size)
        return Zonotope(
            self.center - other.center, generators, self.radius + other.radius + rounded + TINY
        )


def spread_of(generators: torch.Tensor) -> torch.Tensor:
    """How far they reach together, rounded up."""
    spread = generators.new_zeros(generators.shape[1:])
    # a copy of all of them would take most of the time
    for some in torch.split(generators, _CHUNK):
        spread += some.abs().sum(0)
    return spread * (1 + units(len(generators)))


class Symbols:
    """The numbers of symbols, of all values of one graph.

    Args:
        first: of the box; their products may follow.
        products: how many of these there are.
    """

    def __init__(self, first: int, products: int) -> None:
        self.first = first if products else 0
        """How many symbols at the beginning have their products behind them."""
        self._count = first + products
        self._limit = self._count + _SYMBOLS

    def promoted(self, x: Zonotope) -> Zonotope:
        """The zonotope of the same set with its radii as new symbols, the greatest ones where not
        all have room.
        """
        flat = x.radius.flatten()
        room = min(self._limit, _ENTRIES // x.center.numel()) - self._count
        # 1. Which radii are worth a symbol, and have room for one.
        noted = torch.nonzero(flat > _NEGLIGIBLE * float(x.spread.max()))[:, 0]
        if room <= 0 or not len(noted):
            return x
        if len(noted) > room:
            noted = noted[flat[noted].topk(room).indices]
        # 2. A generator for each: its radius in its own entry, 0 elsewhere; the radii that moved
        # are 0 then.
        generators = x.generators.new_zeros(self._count + len(noted), *x.center.shape)
        generators[: len(x.generators)] = x.generators
        generators.view(len(generators), -1)[torch.arange(self._count, len(generators)), noted] = (
            flat[noted]
        )
        self._count += len(noted)
        return replace(
            x, generators=generators, radius=flat.index_fill(0, noted, 0.0).reshape(x.radius.shape)
        )

    def shared(self, x: Zonotope, radius: torch.Tensor) -> Zonotope:
        """x plus one number for several entries: a new symbol for each entry of `radius`, which
        is broadcast to x.
        """
        count = radius.numel()
        if self._count + count > self._limit:
            return replace(x, radius=x.radius + radius)
        symbols = (
            torch.diag(radius.flatten()).reshape(-1, *radius.shape).expand(-1, *x.center.shape)
        )
        generators = torch.cat([with_symbols(x.generators, self._count), symbols])
        self._count += count
        return Zonotope(x.center, generators, x.radius)


def with_symbols(generators: torch.Tensor, count: int) -> torch.Tensor:
    """The generators with zeros for symbols that came later."""
    if len(generators) == count:
        return generators
    return torch.cat(
        [generators, generators.new_zeros(count - len(generators), *generators.shape[1:])]
    )


def as_wide(x: Zonotope, shape: torch.Size) -> Zonotope:
    """x broadcast to a shape; of what is repeated, the radii forget that it is the same."""
    wide = (len(x.generators), *[1] * (len(shape) - x.center.ndim), *x.center.shape)
    generators = x.generators.reshape(wide).expand(-1, *shape)
    return Zonotope(x.center.expand(shape), generators, x.radius.expand(shape))


def each_generator(
    operation: Callable[..., torch.Tensor], *generators: torch.Tensor
) -> torch.Tensor:
    """The operation of each generator, (symbols, 1, *shape), as of a batch of one."""
    if not len(generators[0]):
        return generators[0].new_zeros(
            0,
            *operation(
                *(generator.new_zeros(generator.shape[1:]) for generator in generators)
            ).shape,
        )
    return torch.vmap(operation, chunk_size=256)(*generators)


def linear(
    x: Zonotope,
    map_: Map,
    terms: int,
    absolute: Map | None = None,
    bias: torch.Tensor | None = None,
) -> Zonotope:
    """A linear map of x, plus a bias. Each output is a sum of at most so many `terms`.

    `absolute` is the map with the magnitudes of its coefficients; without it no coefficient is
    below 0.
    """
    absolute = absolute or map_
    center = map_(x.center)
    size = absolute(x.size)
    if bias is not None:
        center, size = center + bias, size + bias.abs()
    radius = absolute(x.radius) * (1 + units(terms)) + units(terms) * size + TINY
    return Zonotope(center, each_generator(map_, x.generators), radius)


def scaled(x: Zonotope, factor: torch.Tensor, terms: int = 2) -> Zonotope:
    """x times constants, which are off by at most `terms` units in the last place."""
    return linear(x, lambda y: y * factor, terms, lambda y: y * factor.abs())


def between(x: Zonotope, lines: Middle, low: torch.Tensor, high: torch.Tensor) -> Zonotope:
    """Return what lies between two lines over [low, high], each (1, entries): two lines of one
    slope around them.
    """
    (steep,), (spread,), shape = lines.slopes, lines.spreads, x.center.shape
    widest = torch.maximum(spread * low, spread * high)
    size = steep.abs() * x.size.flatten() + lines.constant.abs() + lines.loss + widest.abs()
    slope, constant, apart = (
        part.reshape(shape)
        for part in (steep, lines.constant, lines.loss + widest + units(8) * size + TINY)
    )
    return Zonotope(
        slope * x.center + constant, slope * x.generators, slope.abs() * x.radius + apart
    )


def ends(x: Zonotope) -> tuple[torch.Tensor, torch.Tensor]:
    """The lower and the upper ends of all entries, each (1, entries), rounded outward."""
    spread = x.spread * (1 + 4 * EPS) + 2 * EPS * x.center.abs() + TINY
    return (x.center - spread).reshape(1, -1), (x.center + spread).reshape(1, -1)
