"""A smooth chain and its ReLU twin, with the ways that rows of a bound take back through their matrices.

A convolution's output depends on few inputs; rows that depend on the same ones are bounded together, on the submatrices
that they reach.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from evalsuite.activations import RELU
from evalsuite.certificate.chain import Affine, Chain, read_chain
from evalsuite.contract import Unsupported
from evalsuite.relaxations.twins import check_place

Index = torch.Tensor | slice
ALL = slice(None)
# Below this share of a matrix, what its groups of rows reach is multiplied group by group.
_SPARSE = 0.3


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as tiles (rows, columns, weights); outside of them it is 0."""

    tiles: list[tuple[Index, Index, torch.Tensor]]
    width: int

    def pulled(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` times the matrix: (..., outputs) -> (..., inputs)."""
        if len(self.tiles) == 1:
            return rows @ self.tiles[0][2]
        made = rows.new_zeros((*rows.shape[:-1], self.width))
        for out, into, weight in self.tiles:
            made.index_add_(-1, torch.as_tensor(into), rows[..., out] @ weight)
        return made


@dataclass(frozen=True, slots=True)
class Step:
    """The part of a map that some rows reach: `out` of its outputs, by way of `into` of its inputs."""

    out: Index
    into: Index
    smooth: Matrix
    relu: Matrix
    moved: Matrix | None


@dataclass(frozen=True, slots=True)
class Route:
    """The steps from some units of a place back to the input; `steps[i]` goes through map i."""

    units: Index
    steps: list[Step]


@dataclass(frozen=True, slots=True)
class Twins:
    """A smooth chain and the maps of its ReLU twin; `moved` are the maps' differences, None where they are equal.

    `routes[i]` lead back from the outputs of map i, all of them together.
    """

    smooth: Chain
    relu: list[Affine]
    moved: list[Affine | None]
    routes: list[list[Route]]

    @property
    def largest(self) -> int:
        """The entries of the largest array of coefficients for one box."""
        return max(_entries(route) for routes in self.routes for route in routes)


def _entries(route: Route) -> int:
    rows = max(tile[2].shape[0] for tile in route.steps[-1].smooth.tiles[:1])
    return 2 * rows * max(each.smooth.width for each in route.steps)


def read_twins(module: nn.Module, input_shape: tuple[int, ...], swapped: nn.Module | None = None) -> Twins:
    """The twins of a network and `swapped`, by default the same weights with ReLU in each activation's place.

    Raises:
        Unsupported: a layer or an activation without a rule, by its dotted path, or twins of different shapes.
    """
    smooth = read_chain(module, input_shape)
    if not smooth.places:
        raise Unsupported("no activation module to swap; activations called as functions are not seen")
    for place in smooth.places:
        check_place(place)
    twin = smooth if swapped is None else read_chain(swapped, input_shape)
    if swapped is not None:
        for place in twin.places:
            if place.traits.name != RELU.name:
                raise Unsupported(f"{place.path} of the swapped network is {place.traits.name}, not relu")
        if [each.weight.shape for each in twin.maps] != [each.weight.shape for each in smooth.maps]:
            raise Unsupported("the swapped network has other shapes than the one before the swap")
        # One set of routes serves both networks, whose layers may reach different inputs.
        smooth = replace(smooth, patterns=[a | b for a, b in zip(smooth.patterns, twin.patterns, strict=True)])
    moved = [
        None if _equal(smooth, twin, at) else ours.minus(theirs)
        for at, (ours, theirs) in enumerate(zip(smooth.maps, twin.maps, strict=True))
    ]
    routes = [_routes(smooth, twin.maps, moved, at) for at in range(len(smooth.maps))]
    return Twins(smooth, twin.maps, moved, routes)


def _equal(first: Chain, second: Chain, at: int) -> bool:
    """Whether a map of two chains is the same; maps that differ may be equal where they are rounded."""
    if first is second:
        return True
    ours, theirs = first.maps[at], second.maps[at]
    alike = torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)
    return alike and _described(first.layers[at]) == _described(second.layers[at])


def _described(layers: list[nn.Module]) -> list[tuple[str, list[bytes]]]:
    return [(repr(each), [value.numpy().tobytes() for value in each.state_dict().values()]) for each in layers]


def _grouped(pattern: torch.Tensor) -> list[torch.Tensor]:
    """The rows of a pattern (outputs, inputs) bool, those alike together."""
    packed = np.packbits(pattern.numpy(), axis=1)
    groups: dict[bytes, list[int]] = {}
    for row, bits in enumerate(packed):
        groups.setdefault(bits.tobytes(), []).append(row)
    return [torch.tensor(each) for each in groups.values()]


def _routes(smooth: Chain, relu: list[Affine], moved: list[Affine | None], last: int) -> list[Route]:
    pattern = smooth.patterns[last]
    groups = _grouped(pattern)
    output = last == len(smooth.maps) - 1
    if output or len(groups) == 1 or len(groups) > len(pattern) / 4:
        return [Route(ALL, _steps(smooth, relu, moved, last, ALL))]
    return [Route(group, _steps(smooth, relu, moved, last, group)) for group in groups]


def _steps(smooth: Chain, relu: list[Affine], moved: list[Affine | None], last: int, units: Index) -> list[Step]:
    steps, out = [], units
    for at in range(last, -1, -1):
        reached = smooth.patterns[at][out].any(0)
        into: Index = ALL if bool(reached.all()) else torch.nonzero(reached)[:, 0]
        pattern, change = smooth.patterns[at], moved[at]
        steps.append(
            Step(
                out,
                into,
                _matrix(smooth.maps[at].weight, pattern, out, into),
                _matrix(relu[at].weight, pattern, out, into),
                None if change is None else _matrix(change.weight, pattern, out, into),
            )
        )
        out = into
    return steps[::-1]


def _matrix(weight: torch.Tensor, pattern: torch.Tensor, out: Index, into: Index) -> Matrix:
    part, reached = weight[out][:, into], pattern[out][:, into]
    groups = _grouped(reached) if reached.double().mean() < _SPARSE else []
    if not groups or len(groups) > len(part) / 4:
        return Matrix([(ALL, ALL, part)], part.shape[1])
    tiles: list[tuple[Index, Index, torch.Tensor]] = []
    for rows in groups:
        columns = torch.nonzero(reached[rows[0]])[:, 0]
        tiles.append((rows, columns, part[rows][:, columns].contiguous()))
    return Matrix(tiles, part.shape[1])
