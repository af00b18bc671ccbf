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
from pipelines.quantize.integer.islands import given_to, run_island
from pipelines.quantize.integer.layers import OnGrid
from pipelines.quantize.integer.network import (
    Add,
    Dyadic,
    Grid,
    Island,
    MaxPool,
    Operation,
    Requantize,
    Rounding,
    SumPool,
)
from pipelines.quantize.integer.oracle import apply
from pipelines.quantize.integer.ranges import Span, prove_operations
from pipelines.quantize.integer.transformer import (
    NORM_BITS,
    OCTAVE,
    QUOTIENT_BITS,
    Affine,
    Arrange,
    Divide,
    Embedding,
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
_FAR = 8  # steps of the output's grid: what rounding inside a part comes to is one or two
_NEVER = 1e3  # below all that a score can be: what is so much less never counts in a softmax
_VANISHED = 30 * math.log(2)  # below the greatest score: no weight of 16 bits shows it
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
    """Not yet computed: source x factor + offset, arrays that broadcast to one sample.

    An offset of minus infinity is a mask: only a softmax can follow.
    """

    source: OnGrid | _Raw
    factor: Real
    offset: Real


@dataclass(frozen=True, slots=True)
class _Added:
    """Not yet computed: the terms, each times its sign, added up."""

    terms: tuple[_Held, ...]
    signs: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Moved:
    """Integers that are moved, not yet in one block.

    `numbers` are of two samples, in the layout that the moves make: from 1 on, where each number comes from among the
    sources of the first sample and then of the second; 0 where `constants`, of the same shape, stand instead.
    """

    sources: tuple[OnGrid | _Raw, ...]
    numbers: torch.Tensor
    constants: torch.Tensor
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class _Shares:
    """Not yet computed: the softmax of source x factor over the last dimension, where `keep` lets it count."""

    source: OnGrid | _Raw
    factor: float
    keep: npt.NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What does not depend on the input."""

    value: torch.Tensor


_Held = OnGrid | _Raw | _Scaled | _Added | _Moved | _Shares | _Fixed


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
    integers = [
        torch.randint(grid.low, grid.high + 1, (_BATCH, *shape), generator=generator).numpy()
        for grid, shape in zip(island.grids, shapes, strict=True)
    ]
    read = graph.read(_Together(island.module), tuple(given_to(island, integers)))
    made = _Writer(read, island).part()
    spans = {
        name: Span.of_grid(grid, shape) for name, grid, shape in zip(island.inputs, island.grids, shapes, strict=True)
    }
    try:
        prove_operations(made.operations, spans, Rounding.HALF_EVEN)
    except OverflowError as error:
        raise Unsupported(str(error)) from error
    tensors = dict(zip(island.inputs, integers, strict=True))
    for each in made.operations:
        tensors[each.name] = apply(each, [tensors[name] for name in each.inputs], Rounding.HALF_EVEN)
    off = np.abs(tensors[island.name] - run_island(island, integers)).max(initial=0)
    if off > _FAR:
        raise Unsupported(f"{island.name}: on integers it lies {off} steps from what it is in float, more than {_FAR}")
    return made


class _Writer:
    """Follows the graph; a value becomes operations when another asks for its integers."""

    def __init__(self, read: graph.Graph, island: Island) -> None:
        self._graph, self._island = read, island
        self._operations: list[Operation] = []
        self._inserted: list[str] = []
        self._held: dict[int, _Held] = {}
        self._tokens = {island.inputs[each] for each in island.tokens}
        self._normed: set[str] = set()
        self._made: dict[tuple[int, Grid | None], tuple[_Held, OnGrid | _Raw | _Scaled]] = {}

    def part(self) -> Part:
        for index, node in enumerate(self._graph.nodes):
            try:
                self._held[index] = self._value(node)
                if index == self._graph.output:
                    self._end(self._settled(self._held[index]))
            except ValueError as error:
                where = f"{node.name or self._island.name} ({type(node.operation).__name__})"
                raise Unsupported(f"{where}: {error}") from error
        kept = _needed(self._operations)
        names = {each.name for each in kept}
        return Part(tuple(kept), tuple(name for name in self._inserted if name in names))

    def _value(self, node: graph.Node) -> _Held:  # noqa: PLR0911, PLR0912
        operation, given = node.operation, [self._held[each] for each in node.sources]
        if isinstance(operation, ops.Input):
            return OnGrid(self._island.inputs[operation.place], self._island.grids[operation.place])
        if isinstance(operation, ops.Constant):
            return _Fixed(operation.value)
        if all(isinstance(each, _Fixed) for each in given):
            return _Fixed(operation(*(each.value for each in given if isinstance(each, _Fixed))))
        if isinstance(operation, moving.Positions | moving.Expand) and all(
            isinstance(each, _Fixed) for each in given[:-1]
        ):
            # The last operand only tells the batch; what is the same for each sample is that of one.
            return _Fixed(operation(*(each.value for each in given[:-1] if isinstance(each, _Fixed)), torch.zeros(1)))
        if isinstance(operation, moving.Gather) and isinstance(given[0], _Fixed):
            return self._embedded(operation, given)
        if operation.moves:
            return self._moved(node, given)
        given = [self._settled(each) for each in given]
        match operation:
            case ops.Sum():
                return self._summed(node, operation.signs, given)
            case ops.Product():
                return self._multiplied(node, given)
            case ops.Power() if operation.exponent == 2:
                return self._multiplied(node, [given[0], given[0]])
            case ops.Quotient() if isinstance(given[1], _Fixed):
                with np.errstate(divide="ignore"):
                    return self._scaled(given[0], 1 / _of_sample(given[1].value, node), np.zeros(()))
            case ops.Where() if isinstance(given[0], _Fixed):
                return self._chosen(node, _of_sample(given[0].value, node) > 0, given[1:])
            case ops.MatMul():
                return self._matrix_product(node, given)
            case ops.Softmax() if operation.axis == len(node.shape) - 1 and not operation.log:
                return self._softmax(given[0])
            case ops.LayerNorm() | ops.RMSNorm() if operation.axes == (len(node.shape) - 1,):
                return self._normalized(node, operation, given[0])
        return self._pooled(node, given[0])

    def _pooled(self, node: graph.Node, held: _Held) -> _Held:
        operation = node.operation
        match operation:
            case ops.Reduction() if operation.name in ("mean", "sum") and 0 not in operation.axes:
                return self._reduced(node, operation, held)
            case ops.MaxPool() if not operation.ceil and len(operation.kernel) == len(node.shape) - 2:
                return self._greatest(operation, held)
            case ops.AveragePool() if (
                not operation.ceil
                and (operation.counts or not any(operation.padding))
                and len(operation.kernel) == len(node.shape) - 2
            ):
                return self._averaged(operation, held)
        raise ValueError("has no integer form")

    def _add(self, make: Any, *inputs: str, **more: Any) -> str:
        """Append an operation under a free name."""
        name = f"{self._island.name}.{len(self._operations)}"
        if self._normed.intersection(inputs):
            self._normed.add(name)
        self._operations.append(make(name, tuple(inputs), **more))
        return name

    def _embedded(self, operation: Any, given: list[_Held]) -> _Held:
        """Rows of a constant table by tokens; on a grid of 16 bits over the whole of it."""
        table, tokens = given
        if operation.axes != (0,) or not isinstance(tokens, OnGrid) or tokens.name not in self._tokens:
            raise ValueError("looks up what are no tokens, or along another axis than the first")
        assert isinstance(table, _Fixed)
        rows = table.value.double().numpy()
        if rows.ndim != 2 or tokens.grid.high >= len(rows):
            raise ValueError(f"has a table of {rows.shape} for tokens up to {tokens.grid.high}")
        grid = Grid.over(float(rows.min()), float(rows.max()), _FINE)
        integers = np.rint(rows / grid.scale).astype(np.int64) + grid.zero_point
        name = self._add(Embedding, tokens.name, table=np.clip(integers, grid.low, grid.high), output=grid)
        self._inserted.append(name)
        return OnGrid(name, grid)

    def _chosen(self, node: graph.Node, keep: npt.NDArray[np.bool_], given: list[_Held]) -> _Held:
        """Values where a constant mask is true, a constant elsewhere, or the other way round."""
        (held, other), keep = (given, keep) if isinstance(given[1], _Fixed) else (given[::-1], ~keep)
        if not isinstance(other, _Fixed):
            raise ValueError("chooses between two things that both depend on the input")
        constant = _of_sample(other.value, node)
        if constant.max() <= self._reach(held)[0] - _NEVER:
            return self._scaled(held, np.ones(()), np.where(keep, 0.0, -np.inf))
        return self._scaled(held, keep.astype(np.float64), np.where(keep, 0.0, constant))

    def _moved(self, node: graph.Node, given: list[_Held]) -> _Moved:
        """By moving numbers that say where they come from."""
        indices = [index for index in node.sources if not isinstance(self._held[index], _Fixed)]
        start = self._held[indices[0]]
        if len(indices) > 1 or not isinstance(start, _Moved):
            start = self._numbered(indices)
            sizes = [math.prod(self._shape(index)) for index in indices]
            parts = iter(torch.split(start.numbers, sizes, dim=1))
            moved = [next(parts).reshape(2, *self._shape(index)) for index in indices]
            places = iter([(each, torch.zeros_like(each)) for each in moved])
        else:
            places = iter([(start.numbers, start.constants)])
        numbers, constants = [], []
        for index, each in zip(node.sources, given, strict=True):
            pair = self._of_two(index, each) if isinstance(each, _Fixed) else next(places)
            numbers.append(pair[0])
            constants.append(pair[1])
        operation = node.operation
        plain = replace(operation, value=0.0) if isinstance(operation, moving.Pad) else operation
        try:
            return replace(start, numbers=plain(*numbers), constants=operation(*constants))
        except (RuntimeError, IndexError) as error:
            raise ValueError(f"moves numbers in a way that is not followed: {error}") from error

    def _of_two(self, index: int, held: _Fixed) -> tuple[torch.Tensor, torch.Tensor]:
        """A constant among the numbers of two samples, which has none, and among their constants; indices in both."""
        value = held.value
        if self._graph.nodes[index].shape[:1] == (-1,):
            value = value.expand(2, *value.shape[1:])
        return (torch.zeros_like(value).double(), value.double()) if value.is_floating_point() else (value, value)

    def _numbered(self, indices: list[int]) -> _Moved:
        """Nothing moved yet: the integers of these values on one grid, one sample behind the other."""
        sources = self._alike([self._settled(self._held[index]) for index in indices])
        total = sum(math.prod(self._shape(index)) for index in indices)
        numbers = torch.arange(1, 2 * total + 1, dtype=torch.float64).reshape(2, total)
        return _Moved(tuple(sources), numbers, torch.zeros_like(numbers), total)

    def _settled(self, held: _Held) -> _Held:
        """As it is, or, where it was only moved, in one block."""
        if not isinstance(held, _Moved):
            return held
        if (id(held), None) not in self._made:
            self._made[id(held), None] = held, self._arranged(held)
        return self._made[id(held), None][1]

    def _arranged(self, held: _Moved) -> OnGrid | _Raw | _Scaled:
        numbers, constants, source = held.numbers.long(), held.constants, held.sources[0]
        if len(numbers) != 2 or numbers.ndim < 2:
            raise ValueError("needs integers of which the first dimension does not count the samples")
        empty, (first, second) = numbers == 0, numbers
        if not bool(((second == first + held.total) | (empty[0] & empty[1])).all()) or int(first.max()) > held.total:
            raise ValueError(
                "moves numbers across samples, or needs them where the first dimension does not count those"
            )
        if not torch.equal(constants[0], constants[1]):
            raise ValueError("has constants that differ between the samples of a batch")
        indices = torch.where(empty[0], held.total, first - 1).numpy()
        fill = source.grid.zero_point if isinstance(source, OnGrid) else 0
        name = self._add(Arrange, *(each.name for each in held.sources), indices=indices, fill=fill)
        made = replace(source, name=name)
        if isinstance(made, _Raw):
            made = replace(made, lower=min(made.lower, 0.0), upper=max(made.upper, 0.0))
        return _Scaled(made, np.ones(()), constants[0].numpy()) if bool(constants.any()) else made

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
        """On a grid of 8 bits; a normalised value reaches too far beyond what it usually is."""
        made = self._grid(held, _COARSE)
        if made.name in self._normed:
            raise ValueError(
                "multiplies matrices of normalised numbers, which the fake-quantized network has on no grid"
            )
        return made

    def _softmax(self, held: _Held) -> _Held:
        if not isinstance(held, _Scaled) or held.factor.ndim or held.factor <= 0:
            source = held if isinstance(held, OnGrid | _Raw) else self._fine(held)
            return _Shares(source, 1.0, None)
        factor, offset = float(held.factor), held.offset
        lower, upper = (factor * end for end in self._reach(held.source))
        # A softmax does not see what is added to a whole row.
        top = offset.max(-1, keepdims=True) if offset.ndim else offset
        keep = offset + upper >= top + lower - _VANISHED
        if not np.isfinite(top).all():
            raise ValueError("masks a whole row")
        rest = np.where(keep, offset - top, 0.0)
        counted = None if keep.all() else keep
        if not rest.any():
            return _Shares(held.source, factor, counted)
        return _Shares(self._fine(_Scaled(held.source, held.factor, rest)), 1.0, counted)

    def _weights(self, held: _Shares, bits: int) -> OnGrid:
        """The shares before their division, `bits` wide, in no scale of their own."""
        scale = held.source.grid.scale if isinstance(held.source, OnGrid) else held.source.scale
        octaves = Dyadic.nearest(held.factor * scale * math.log2(math.e) * OCTAVE)
        grid = Grid(1.0, 0, 0, 2**bits - 1)
        name = self._add(
            Exponential, held.source.name, factor=octaves, table=powers(grid.high), output=grid, keep=held.keep
        )
        self._inserted.append(name)
        return OnGrid(name, grid)

    def _normalized(self, node: graph.Node, operation: Any, held: _Held) -> _Held:
        size, centred = self._shape(node.sources[0])[-1], isinstance(operation, ops.LayerNorm)
        if centred and isinstance(held, _Scaled) and not np.isinf(held.offset).any():
            offset = held.offset  # of which a norm does not see the mean
            held = replace(held, offset=offset - offset.mean(-1, keepdims=True) if offset.ndim else np.zeros(()))
        for bits in range(_FINE, _COARSE - 1, -1):
            source = self._grid(held, bits)
            try:
                made = Normalize.of(node.name, "", source.grid, size, centred=centred, epsilon=operation.eps)
                break
            except ValueError:
                if bits == _COARSE:
                    raise
        name = self._add(lambda name, inputs: replace(made, name=name, inputs=inputs), source.name)
        self._inserted.append(name)
        self._normed.add(name)
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
        if not isinstance(held, OnGrid) or held.grid.high - held.grid.low >= 2**_COARSE:
            raise ValueError("averages windows of numbers that the fake-quantized network has on no grid of 8 bits")
        source, padding = held, tuple((each, each) for each in operation.padding)
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
            case _Scaled() if not np.isfinite(held.offset).all():
                raise ValueError("needs numbers where there is a mask")
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
        raise ValueError("needs numbers where there is a mask or a constant")

    def _grid(self, held: _Held, bits: int) -> OnGrid:
        """On a grid of at most so many bits."""
        if isinstance(held, OnGrid) and held.grid.high - held.grid.low < 2**bits:
            return held
        return self._onto(held, Grid.over(*self._reach(held), bits))

    def _fine(self, held: _Held) -> OnGrid:
        return self._grid(held, _FINE)

    def _onto(self, held: _Held, grid: Grid) -> OnGrid:
        """Computed on an inserted grid, once for all that read it."""
        if (id(held), grid) not in self._made:
            name = self._computed(held, grid)
            self._inserted.append(name)
            self._made[id(held), grid] = held, OnGrid(name, grid)
        made = self._made[id(held), grid][1]
        assert isinstance(made, OnGrid)
        return made

    def _end(self, held: _Held) -> None:
        """Computed on the island's output, under its name."""
        self._computed(held, self._island.output)
        self._operations.append(replace(self._operations.pop(), name=self._island.name))

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
        if not (np.isfinite(factor).all() and np.isfinite(offset).all()):
            raise ValueError("scales or shifts by what is not finite")
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
