"""Float parts of a quantized network in integers: norms, attention, products, sums with constants, moves.

A part is what the fake-quantized network computes in float between two quantizers. Its graph is read as any network's
is; each of its values becomes integers of a grid or accumulators, and only what no 8 bits can hold is put on a finer
grid of 16, over all that the value can be, so that nothing in it is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from evalsuite import Unsupported, graph
from pipelines.quantize.integer.layers import OnGrid
from pipelines.quantize.integer.network import (
    Add,
    Dyadic,
    Grid,
    Island,
    MaxPool,
    Operation,
    Requantize,
    SumPool,
)
from pipelines.quantize.integer.transformer import (
    NORM_BITS,
    OCTAVE,
    QUOTIENT_BITS,
    Affine,
    Arrange,
    Divide,
    Exponential,
    MatrixProduct,
    Normalize,
    Product,
    SumOver,
    powers,
)

Real = npt.NDArray[np.float64]
_FINE, _COARSE = 16, 8  # bits of what is summed, normalised and multiplied element by element; of products of matrices
_FACTOR = 15  # bits of a factor, so that two of them are accumulators of 32
_MULTIPLIER_BITS, _TOTAL_BITS = 30, 61
_BATCH = 3
moving, ops = graph.moving, graph.operations


@dataclass(frozen=True, slots=True)
class _Raw:
    """32-bit integers whose real value is scale x integer, within [lower, upper]; none is beyond `greatest`."""

    name: str
    scale: float
    lower: float
    upper: float
    greatest: float


@dataclass(frozen=True, slots=True, eq=False)
class _Scaled:
    """Not yet computed: source x factor + offset, arrays that broadcast to one sample."""

    source: OnGrid | _Raw
    factor: Real
    offset: Real


@dataclass(frozen=True, slots=True)
class _Added:
    """Not yet computed: the terms, each times its sign, added up."""

    terms: tuple[_Held, ...]
    signs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Shares:
    """Not yet computed: the softmax of source x factor over the last dimension."""

    source: OnGrid | _Raw
    factor: float


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What does not depend on the input."""

    value: torch.Tensor


_Held = OnGrid | _Raw | _Scaled | _Added | _Shares | _Fixed


class _Together(nn.Module):
    """A module of several arguments as one of a tuple."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.module(*inputs)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Part:
    """What a float island becomes.

    Args:
        operations: in their order; the last makes what the island makes.
        inserted: the tensors that the float part does not round.
    """

    operations: tuple[Operation, ...]
    inserted: tuple[str, ...]


@torch.no_grad()
def in_integers(island: Island, shapes: Sequence[tuple[int, ...]]) -> Part:
    """The island computed on integers.

    Args:
        island: stays as it is.
        shapes: of one sample of each of its inputs.

    Raises:
        Unsupported: something in it has no integer form, or is too wide; the text names it.
    """
    generator = torch.Generator().manual_seed(0)
    given = tuple(
        grid.scale * (torch.randint(grid.low, grid.high + 1, (_BATCH, *shape), generator=generator) - grid.zero_point)
        for grid, shape in zip(island.grids, shapes, strict=True)
    )
    read = graph.read(_Together(island.module), given)
    return _Writer(read, island).part()


class _Writer:
    """Follows the graph; a value becomes operations when another asks for its integers."""

    def __init__(self, read: graph.Graph, island: Island) -> None:
        self._graph, self._island = read, island
        self._operations: list[Operation] = []
        self._inserted: list[str] = []
        self._held: dict[int, _Held] = {}

    def part(self) -> Part:
        for index, node in enumerate(self._graph.nodes):
            try:
                self._held[index] = self._value(node)
            except ValueError as error:
                raise Unsupported(
                    f"{node.name or self._island.name} ({type(node.operation).__name__}): {error}"
                ) from error
        self._onto(self._held[self._graph.output], self._island.output, self._island.name)
        kept = _needed(self._operations)
        names = {each.name for each in kept}
        return Part(tuple(kept), tuple(name for name in self._inserted if name in names))

    def _value(self, node: graph.Node) -> _Held:  # noqa: PLR0911
        operation, given = node.operation, [self._held[each] for each in node.sources]
        if isinstance(operation, ops.Input):
            return OnGrid(self._island.inputs[operation.place], self._island.grids[operation.place])
        if isinstance(operation, ops.Constant):
            return _Fixed(operation.value)
        if all(isinstance(each, _Fixed) for each in given):
            return _Fixed(operation(*(each.value for each in given if isinstance(each, _Fixed))))
        if operation.moves:
            return self._moved(node, given)
        held = given[0]
        match operation:
            case ops.Sum():
                return self._summed(node, operation.signs, given)
            case ops.Product():
                return self._multiplied(node, given)
            case ops.Quotient() if isinstance(given[1], _Fixed):
                return self._scaled(held, 1 / _of_sample(given[1].value, node), np.zeros(()))
            case ops.MatMul():
                return self._matrix_product(node, given)
            case ops.Softmax() if operation.axis == len(node.shape) - 1 and not operation.log:
                return self._softmax(held)
            case ops.LayerNorm() | ops.RMSNorm() if operation.axes == (len(node.shape) - 1,):
                return self._normalized(node, operation, held)
        return self._pooled(node, held)

    def _pooled(self, node: graph.Node, held: _Held) -> _Held:
        match operation := node.operation:
            case ops.Reduction() if operation.name in ("mean", "sum") and 0 not in operation.axes:
                return self._reduced(node, operation, held)
            case ops.MaxPool() if not operation.ceil:
                return self._greatest(operation, held)
            case ops.AveragePool() if not operation.ceil and (operation.counts or not any(operation.padding)):
                return self._averaged(operation, held)
        raise ValueError("has no integer form")

    def _add(self, make: Any, *inputs: str, **more: Any) -> str:
        """Append an operation under a free name."""
        name = f"{self._island.name}.{len(self._operations)}"
        self._operations.append(make(name, tuple(inputs), **more))
        return name

    def _moved(self, node: graph.Node, given: list[_Held]) -> _Held:
        """By moving numbers that say where they come from; all that is moved together lies on one grid."""
        sources = self._alike([each for each in given if not isinstance(each, _Fixed)])
        sizes = [math.prod(self._shape(index)) for index in node.sources if not isinstance(self._held[index], _Fixed)]
        starts, operands = iter(np.cumsum([1, *sizes])), []
        total = sum(sizes)
        for index in node.sources:
            held, shape = self._held[index], self._shape(index)
            if isinstance(held, _Fixed):
                operands.append(held.value)
                continue
            numbers = torch.arange(math.prod(shape), dtype=torch.float64) + int(next(starts))
            operands.append(torch.stack([numbers, numbers + total]).reshape(2, *shape))
        placed = node.operation(*operands)
        first, second = placed.round().long()
        if len(placed) != 2 or not bool(((second == first + total) | ((first == 0) & (second == 0))).all()):
            raise ValueError("moves numbers across samples, or constants among them")
        indices = torch.where(first == 0, total, first - 1).numpy()
        fill = sources[0].grid.zero_point if isinstance(sources[0], OnGrid) else 0
        name = self._add(Arrange, *(each.name for each in sources), indices=indices, fill=fill)
        return replace(sources[0], name=name)

    def _shape(self, index: int) -> tuple[int, ...]:
        """Of one sample of a value."""
        return self._graph.nodes[index].shape[1:]

    def _alike(self, given: list[_Held]) -> list[OnGrid] | list[_Raw]:
        """On one grid; a single one as it is, if it holds integers already."""
        if len(given) == 1 and isinstance(given[0], _Raw):
            return [given[0]]
        if len({each.grid for each in given if isinstance(each, OnGrid)}) == 1 and all(
            isinstance(each, OnGrid) for each in given
        ):
            return [each for each in given if isinstance(each, OnGrid)]
        reaches = [self._reach(each) for each in given]
        grid = Grid.over(min(each[0] for each in reaches), max(each[1] for each in reaches), _FINE)
        return [self._onto(each, grid) for each in given]

    def _summed(self, node: graph.Node, signs: tuple[int, ...], given: list[_Held]) -> _Held:
        constant: Real = np.zeros(())
        terms, kept = [], []
        for sign, each in zip(signs, given, strict=True):
            if isinstance(each, _Fixed):
                constant = constant + sign * _of_sample(each.value, node)
            else:
                terms.append(each)
                kept.append(sign)
        if len(terms) == 1:
            return self._scaled(terms[0], np.full((), float(kept[0])), constant)
        made = _Added(tuple(terms), tuple(kept))
        return self._scaled(made, np.ones(()), constant) if constant.any() else made

    def _scaled(self, held: _Held, factor: Real, offset: Real) -> _Held:
        if isinstance(held, _Scaled):
            return _Scaled(held.source, held.factor * factor, held.offset * factor + offset)
        source = held if isinstance(held, OnGrid | _Raw) else self._fine(held)
        if isinstance(source, OnGrid) and factor.ndim == 0 and factor > 0 and not offset.any():
            return OnGrid(source.name, replace(source.grid, scale=source.grid.scale * float(factor)))
        return _Scaled(source, np.asarray(factor), np.asarray(offset))

    def _multiplied(self, node: graph.Node, given: list[_Held]) -> _Held:
        factors = [each for each in given if not isinstance(each, _Fixed)]
        constants = [_of_sample(each.value, node) for each in given if isinstance(each, _Fixed)]
        made: _Held = factors[0]
        if len(factors) > 1:
            first, second = (self._grid(each, _FACTOR) for each in factors[:2])
            name = self._add(Product, first.name, second.name, first=first.grid, second=second.grid)
            made = _product(name, first.grid, second.grid, 1)
            if len(factors) > 2:
                raise ValueError("multiplies more than two tensors")
        for each in constants:
            made = self._scaled(made, each, np.zeros(()))
        return made

    def _matrix_product(self, node: graph.Node, given: list[_Held]) -> _Held:
        first, second = given
        terms = self._shape(node.sources[0])[-1]
        if self._shape(node.sources[0])[:-2] != self._shape(node.sources[1])[:-2]:
            raise ValueError("multiplies matrices of another number")
        right = self._eight_bits(second)
        left = self._weights(first, _COARSE) if isinstance(first, _Shares) else self._eight_bits(first)
        name = self._add(MatrixProduct, left.name, right.name, first=left.grid, second=right.grid)
        if not isinstance(first, _Shares):
            return _product(name, left.grid, right.grid, terms)
        # A weighted mean of the values: nothing lies beyond them, though intervals see no more than the sum of weights.
        made = self._add(Divide, name, left.name, weights=left.grid)
        lower, upper = self._reach(right)
        wide = terms * 2**QUOTIENT_BITS * (right.grid.high - right.grid.low)
        return _Raw(made, right.grid.scale / 2**QUOTIENT_BITS, lower, upper, wide)

    def _eight_bits(self, held: _Held) -> OnGrid:
        made = self._grid(held, _FINE)
        if made.grid.high - made.grid.low >= 2**_COARSE:
            raise ValueError("multiplies matrices of numbers that the fake-quantized network has on no grid of 8 bits")
        return made

    def _softmax(self, held: _Held) -> _Held:
        factor = 1.0
        if isinstance(held, _Scaled) and not held.factor.ndim and not held.offset.any() and held.factor > 0:
            factor = float(held.factor)
            held = held.source
        return _Shares(held if isinstance(held, OnGrid | _Raw) else self._fine(held), factor)

    def _weights(self, held: _Shares, bits: int) -> OnGrid:
        """The shares before their division, `bits` wide, in no scale of their own."""
        scale = held.source.grid.scale if isinstance(held.source, OnGrid) else held.source.scale
        octaves = Dyadic.nearest(held.factor * scale * math.log2(math.e) * OCTAVE)
        grid = Grid(1.0, 0, 0, 2**bits - 1)
        name = self._add(Exponential, held.source.name, factor=octaves, table=powers(grid.high), output=grid)
        self._inserted.append(name)
        return OnGrid(name, grid)

    def _normalized(self, node: graph.Node, operation: Any, held: _Held) -> _Held:
        size, centred = self._shape(node.sources[0])[-1], isinstance(operation, ops.LayerNorm)
        for bits in (_FINE, 12, 10):
            source = self._grid(held, bits)
            try:
                made = Normalize.of("", "", source.grid, size, centred=centred, epsilon=operation.eps)
                break
            except ValueError:
                if bits == 10:
                    raise
        name = self._add(lambda name, inputs: replace(made, name=name, inputs=inputs), source.name)
        self._inserted.append(name)
        reach = math.sqrt(size)
        raw = _Raw(name, 2.0**-NORM_BITS, -reach, reach, made.greatest)
        ends = (operation.weight, getattr(operation, "bias", None))
        if ends == (None, None):
            return raw
        weight, bias = (
            np.full((), float(default)) if each is None else _of_sample(each, node)
            for each, default in zip(ends, (1, 0), strict=True)
        )
        return _Scaled(raw, weight, bias)

    def _reduced(self, node: graph.Node, operation: Any, held: _Held) -> _Held:
        source, shape = self._grid(held, _FINE), self._shape(node.sources[0])
        dimensions = tuple(each - 1 for each in operation.axes)
        name = self._add(SumOver, source.name, input=source.grid, dimensions=dimensions, keep=operation.keeps)
        return self._mean(name, source, math.prod(shape[each] for each in dimensions), operation.name == "sum")

    def _mean(self, name: str, source: OnGrid, places: int, total: bool = False) -> _Raw:
        lower, upper = self._reach(source)
        share = 1 if total else places
        wide = places * (source.grid.high - source.grid.low)
        return _Raw(name, source.grid.scale / share, lower * places / share, upper * places / share, wide)

    def _greatest(self, operation: Any, held: _Held) -> _Held:
        source, padding = self._grid(held, _FINE), tuple((each, each) for each in operation.padding)
        name = self._add(
            MaxPool, source.name, kernel=operation.kernel, stride=operation.stride, padding=padding,
            dilation=operation.dilation,
        )  # fmt: skip
        return replace(source, name=name)

    def _averaged(self, operation: Any, held: _Held) -> _Held:
        source, padding = self._grid(held, _COARSE), tuple((each, each) for each in operation.padding)
        name = self._add(
            SumPool, source.name, input=source.grid, kernel=operation.kernel, stride=operation.stride, padding=padding
        )
        places = operation.divisor or math.prod(operation.kernel)
        made = self._mean(name, source, math.prod(operation.kernel), total=True)
        return replace(made, scale=made.scale / places, lower=made.lower / places, upper=made.upper / places)

    def _reach(self, held: _Held) -> tuple[float, float]:
        """The least and the greatest real value."""
        match held:
            case OnGrid(_, grid):
                return grid.scale * (grid.low - grid.zero_point), grid.scale * (grid.high - grid.zero_point)
            case _Raw():
                return held.lower, held.upper
            case _Scaled():
                ends = [held.factor * end + held.offset for end in self._reach(held.source)]
                return float(np.minimum(*ends).min()), float(np.maximum(*ends).max())
            case _Added():
                pairs = [
                    self._reach(each) if sign > 0 else tuple(-end for end in reversed(self._reach(each)))
                    for each, sign in zip(held.terms, held.signs, strict=True)
                ]
                return sum(each[0] for each in pairs), sum(each[1] for each in pairs)
            case _Shares():
                return 0.0, 1.0
        raise TypeError(f"no reach of {type(held).__name__}")

    def _grid(self, held: _Held, bits: int) -> OnGrid:
        """On a grid of at most so many bits."""
        if isinstance(held, OnGrid) and held.grid.high - held.grid.low < 2**bits:
            return held
        return self._onto(held, Grid.over(*self._reach(held), bits))

    def _fine(self, held: _Held) -> OnGrid:
        return self._grid(held, _FINE)

    def _onto(self, held: _Held, grid: Grid, name: str = "") -> OnGrid:
        """Computed on `grid`, as the tensor `name`, which is no inserted one, or under a free name."""
        made = self._computed(held, grid)
        last = self._operations[-1]
        if name:
            self._operations[-1] = replace(last, name=name)
            return OnGrid(name, grid)
        self._inserted.append(made)
        return OnGrid(made, grid)

    def _computed(self, held: _Held, grid: Grid) -> str:
        match held:
            case OnGrid():
                factor = Dyadic.nearest(held.grid.scale / grid.scale)
                return self._rescaled(held.name, held.grid.zero_point, factor, grid)
            case _Raw():
                return self._rescaled(held.name, 0, Dyadic.nearest(held.scale / grid.scale), grid)
            case _Scaled():
                return self._affine(held, grid)
            case _Added():
                return self._added(held, grid)
            case _Shares():
                weights = self._weights(held, _FINE)
                divided = self._add(Divide, weights.name, weights.name, weights=weights.grid)
                return self._rescaled(divided, 0, Dyadic.nearest(1 / 2**QUOTIENT_BITS / grid.scale), grid)
        raise ValueError("gives the same for all inputs")

    def _rescaled(self, name: str, zero_point: int, factor: Dyadic, grid: Grid) -> str:
        return self._add(Requantize, name, zero_point=zero_point, factor=factor, axis=-1, output=grid)

    def _affine(self, held: _Scaled, grid: Grid) -> str:
        source = held.source
        scale, zero_point = (
            (source.grid.scale, source.grid.zero_point) if isinstance(source, OnGrid) else (source.scale, 0)
        )
        greatest = source.grid.high - source.grid.low if isinstance(source, OnGrid) else source.greatest
        factor, offset = held.factor * scale / grid.scale, held.offset / grid.scale
        most = max(float(np.abs(factor).max()), 2.0**-32)
        total = greatest * most + float(np.abs(offset).max())
        shift = min(_MULTIPLIER_BITS - math.frexp(most)[1], _TOTAL_BITS - math.frexp(total)[1], 62)
        if shift < 0:
            raise ValueError(f"scales by {most:.3g} steps of the grid behind it: beyond 64 bits")
        multiplier, shifted = (np.rint(np.ldexp(each, shift)).astype(np.int64) for each in (factor, offset))
        return self._add(
            Affine, source.name, zero_point=zero_point, multiplier=multiplier, offset=shifted, shift=shift, output=grid
        )

    def _added(self, held: _Added, grid: Grid) -> str:
        terms = [self._fine(each) for each in held.terms]
        return self._add(
            Add.of, *(each.name for each in terms), grids=[each.grid for each in terms], signs=held.signs, output=grid
        )


def _needed(operations: list[Operation]) -> list[Operation]:
    """Those that lead to the last."""
    wanted, kept = {operations[-1].name}, []
    for each in reversed(operations):
        if each.name in wanted:
            wanted.update(each.inputs)
            kept.append(each)
    return kept[::-1]


def _product(name: str, first: Grid, second: Grid, terms: int) -> _Raw:
    ends = [
        grid.scale * np.array([grid.low - grid.zero_point, grid.high - grid.zero_point]) for grid in (first, second)
    ]
    corners = terms * np.outer(*ends)
    greatest = terms * (first.high - first.low) * (second.high - second.low)
    return _Raw(name, first.scale * second.scale, float(corners.min()), float(corners.max()), greatest)


def _of_sample(value: torch.Tensor, node: graph.Node) -> Real:
    """A constant as it broadcasts to one sample of the node's value.

    Raises:
        ValueError: it differs between the samples of a batch.
    """
    array = np.asarray(value.double().numpy())
    if array.size == 1:
        return array.reshape(())
    if array.ndim < len(node.shape):
        return array
    if array.shape[0] != 1:
        raise ValueError(f"has a constant of {array.shape}, which differs between the samples of a batch")
    return np.asarray(array[0])
