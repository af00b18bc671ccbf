"""Float parts of a quantized network in integers: norms, attention, products, sums with constants,
moves.

A part is what the fake-quantized network computes in float between two quantizers. Its graph is
read as any network's is; each of its values becomes integers of a grid or accumulators, and only
what no 8 bits can hold is put on a finer grid of 16, over all that the value can be, so that
nothing in it is clipped.
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

import opgraph
from intnet.grids import Grid, Integers, OnGrid, Rounding, quantize
from intnet.holding import (
    COARSE,
    FINE,
    Added,
    Fixed,
    Held,
    Holding,
    Moved,
    Raw,
    Real,
    Scaled,
    Shares,
    needed,
    product_of,
)
from intnet.islands import Island
from intnet.layers import Arrange, MaxPool, Repeat, SumPool
from intnet.network import prove_operations
from intnet.operation import Operation, Span
from intnet.transformer import (
    NORM_BITS,
    QUOTIENT_BITS,
    Divide,
    Embedding,
    MatrixProduct,
    Normalize,
    Product,
    SumOver,
)
from opgraph import moving
from opgraph import operations as ops
from opgraph.errors import Unsupported

_FACTOR = 15  # bits of a factor, so that two of them are accumulators of 32
_DRAWN = 32  # samples on which a part is compared with its float form
# of the output's range: rounding inside a part comes to 1 or 2 of 255
_GREATEST, _MEAN = 8 / 255, 0.5 / 255
_VANISHED = 30 * math.log(2)  # below the greatest score: no weight of 16 bits shows it


class _Together(nn.Module):
    """A module of several arguments as one of a tuple."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.module(*inputs)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Part:
    """Holds what a float island becomes.

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
    integers = [_drawn(grid, shape) for grid, shape in zip(island.grids, shapes, strict=True)]
    try:
        read = opgraph.read(_Together(island.module), tuple(island.given(integers)))
        part = _Writer(read, island, shapes).part()
        spans = {
            name: Span.of_grid(grid, shape)
            for name, grid, shape in zip(island.inputs, island.grids, shapes, strict=True)
        }
        prove_operations(part.operations, spans, Rounding.HALF_EVEN)
        _check_near(island, integers, read, shapes)
    # what torch raises of odd shapes too
    except (ValueError, RuntimeError, OverflowError, IndexError) as error:
        raise Unsupported(f"{island.name}: {error}") from error
    return part


def _drawn(grid: Grid, shape: tuple[int, ...]) -> Integers:
    """Samples of a grid: its ends, its zero, and numbers around that, spread widely in some and
    hardly in others.
    """
    generator = np.random.default_rng(0)
    size = (grid.high - grid.low) * generator.random((_DRAWN, *(1 for _ in shape))) ** 3
    drawn = grid.zero_point + size * generator.standard_normal((_DRAWN, *shape))
    drawn[:3] = np.array([grid.low, grid.high, grid.zero_point]).reshape(3, *(1 for _ in shape))
    drawn[3:6] = generator.integers(grid.low, grid.high + 1, (3, *shape))
    return np.clip(np.rint(drawn), grid.low, grid.high).astype(np.int64)


def _check_near(
    island: Island, integers: list[Integers], read: opgraph.Graph, shapes: Sequence[tuple[int, ...]]
) -> None:
    """Raise Unsupported where integers and floats differ by more than the part's own rounding comes
    to.

    Both are told on a grid of 16 bits over the output's, on which a step of few bits hides nothing.
    """
    output = island.output
    fine = replace(island, output=Grid.over(*output.ends, FINE))
    tensors = dict(zip(island.inputs, integers, strict=True))
    for operation in _Writer(read, fine, shapes).part().operations:
        tensors[operation.name] = operation.apply(
            [tensors[name] for name in operation.inputs], Rounding.HALF_EVEN
        )
    values, wanted = tensors[island.name], fine.apply(integers)
    if values.shape != wanted.shape:
        raise ValueError(
            f"on integers it gives {values.shape[1:]} of a sample, in float {wanted.shape[1:]}"
        )
    off = np.abs(values - wanted) / (fine.output.high - fine.output.low)
    if off.max(initial=0) > _GREATEST or off.mean() > _MEAN:
        raise Unsupported(
            f"{island.name}: on integers it lies {off.max():.1%} of its range from what it is in"
            f" float, and {off.mean():.2%} on average, of which {_GREATEST:.1%} and {_MEAN:.2%} are"
            " allowed"
        )


class _Writer(Holding):
    """Follows the graph; a value becomes operations when another asks for its integers."""

    def __init__(
        self, read: opgraph.Graph, island: Island, shapes: Sequence[tuple[int, ...]]
    ) -> None:
        super().__init__(island.name, dict(zip(island.inputs, shapes, strict=True)))
        self._graph, self._island = read, island
        self._held: dict[int, Held] = {}
        self._tokens = {island.inputs[token]: island.grids[token] for token in island.tokens}

    def part(self) -> Part:
        for index, node in enumerate(self._graph.nodes):
            try:
                self._held[index] = self.widened(self._value(node), node.shape[1:])
                if index == self._graph.output:
                    self._end(node, self._settled(self._held[index]))
            except ValueError as error:
                path = node.name.removeprefix("module").strip(".") or self._island.name
                where = f"{path} ({type(node.operation).__name__})"
                raise Unsupported(f"{where}: {error}") from error
        kept = needed(self.operations)
        names = {operation.name for operation in kept}
        return Part(tuple(kept), tuple(name for name in self.inserted if name in names))

    def _end(self, node: opgraph.Node, held: Held) -> None:
        """Compute the part's output. What is the same for all inputs is a constant of the grid."""
        output = self._island.output
        if not isinstance(held, Fixed):
            self.end(held, output)
            return
        real = np.broadcast_to(_of_sample(held.value, node), node.shape[1:])
        integers = quantize(real, output, "a constant")
        repeat = Repeat(self._island.name, self._island.inputs[:1], integers, output)
        self.operations.append(repeat)

    def _value(self, node: opgraph.Node) -> Held:  # noqa: PLR0911, PLR0912
        operation, operands = node.operation, [self._held[source] for source in node.sources]
        if isinstance(operation, ops.Input):
            return OnGrid(self._island.inputs[operation.place], self._island.grids[operation.place])
        # 1. Constants, and what is computed of constants alone, stay values.
        if isinstance(operation, ops.Constant):
            return Fixed(operation.value)
        if all(isinstance(operand, Fixed) for operand in operands):
            return Fixed(
                operation(*(operand.value for operand in operands if isinstance(operand, Fixed)))
            )
        if isinstance(operation, moving.Positions | moving.Expand) and all(
            isinstance(operand, Fixed) for operand in operands[:-1]
        ):
            # The last operand only tells the batch: constants of a batch are those of two samples.
            return Fixed(
                operation(
                    *(operand.value for operand in operands[:-1] if isinstance(operand, Fixed)),
                    torch.zeros(2),
                )
            )
        if isinstance(operation, moving.Gather) and isinstance(operands[0], Fixed):
            return self._embedded(operation, operands)
        # 2. What only moves numbers computes nothing: follow where each comes from.
        if operation.moves:
            return self._moved(node, operands)
        # 3. What computes takes numbers in one block: write the moves before it.
        operands = [self._settled(operand) for operand in operands]
        match operation:
            case ops.Sum():
                return self._summed(node, operation.signs, operands)
            case ops.Product():
                return self._multiplied(node, operands)
            case ops.Power() if operation.exponent == 2:
                return self._multiplied(node, [operands[0], operands[0]])
            case ops.Quotient() if isinstance(operands[1], Fixed):
                with np.errstate(divide="ignore"):
                    return self._scaled(
                        operands[0], 1 / _of_sample(operands[1].value, node), np.zeros(())
                    )
            case ops.Where() if isinstance(operands[0], Fixed):
                return self._chosen(node, _of_sample(operands[0].value, node) > 0, operands[1:])
            case ops.MatMul():
                return self._matrix_product(node, operands)
            case ops.Softmax() if operation.axis == len(node.shape) - 1 and not operation.log:
                return self._softmax(operands[0])
            case ops.LayerNorm() | ops.RMSNorm() if operation.axes == (len(node.shape) - 1,):
                return self._normalized(node, operation, operands[0])
        return self._pooled(node, operands[0])

    def _pooled(self, node: opgraph.Node, held: Held) -> Held:
        operation = node.operation
        match operation:
            case ops.Reduction() if operation.name in ("mean", "sum") and 0 not in operation.axes:
                return self._reduced(node, operation, held)
            case ops.MaxPool() if (
                not operation.ceil and len(operation.kernel) == len(node.shape) - 2
            ):
                return self._greatest(operation, held)
            case ops.AveragePool() if (
                not operation.ceil
                and (operation.counts or not any(operation.padding))
                and len(operation.kernel) == len(node.shape) - 2
            ):
                return self._averaged(operation, held)
        raise ValueError("has no integer form")

    def _embedded(self, operation: Any, operands: list[Held]) -> Held:
        """Rows of a constant table by tokens; on a grid of 16 bits over the whole of it."""
        table, tokens = operands
        tokens = self._settled(tokens)
        if (
            operation.axes != (0,)
            or not isinstance(tokens, OnGrid)
            or self._tokens.get(tokens.name) != tokens.grid
        ):
            raise ValueError("looks up what are no tokens, or along another axis than the first")
        assert isinstance(table, Fixed)
        rows = table.value.double().numpy()
        if rows.ndim != 2 or tokens.grid.high >= len(rows):
            raise ValueError(f"has a table of {rows.shape} for tokens up to {tokens.grid.high}")
        grid = Grid.over(float(rows.min()), float(rows.max()), FINE)
        integers = np.rint(rows / grid.scale).astype(np.int64) + grid.zero_point
        name = self.add(
            Embedding, tokens.name, table=np.clip(integers, grid.low, grid.high), output=grid
        )
        self.inserted.append(name)
        return OnGrid(name, grid)

    def _chosen(
        self, node: opgraph.Node, keep: npt.NDArray[np.bool_], operands: list[Held]
    ) -> Held:
        """Values where a constant mask is true, a constant elsewhere, or the other way round."""
        (held, other), keep = (
            (operands, keep) if isinstance(operands[1], Fixed) else (operands[::-1], ~keep)
        )
        if not isinstance(other, Fixed):
            raise ValueError("chooses between two things that both depend on the input")
        constant = _of_sample(other.value, node)
        return self._scaled(held, keep.astype(np.float64), np.where(keep, 0.0, constant))

    def _moved(self, node: opgraph.Node, operands: list[Held]) -> Moved:
        """Find where each output element comes from by applying the move to a tensor of element
        numbers.
        """
        sources = node.sources
        if isinstance(node.operation, moving.Expand):
            sources, operands = sources[:1], operands[:1]  # a second operand only tells the batch
        indices = [index for index in sources if not isinstance(self._held[index], Fixed)]
        start = self._held[indices[0]]
        if len(indices) > 1 or not isinstance(start, Moved):
            # Number the elements of all operands for two samples, operand after operand.
            start = self._numbered(indices)
            sizes = [math.prod(self._shape(index)) for index in indices]
            parts = iter(torch.split(start.numbers, sizes, dim=1))
            moved = [next(parts).reshape(2, *self._shape(index)) for index in indices]
            places = iter([(index, torch.zeros_like(index)) for index in moved])
        else:
            places = iter([(start.numbers, start.constants)])
        numbers, constants = [], []
        for index, operand in zip(sources, operands, strict=True):
            pair = self._of_two(index, operand) if isinstance(operand, Fixed) else next(places)
            numbers.append(pair[0])
            constants.append(pair[1])
        operation = node.operation
        if len(sources) < len(node.sources):
            numbers.append(torch.zeros(2))
            constants.append(torch.zeros(2))
        # Padding comes from no element: its number is 0, and its value is among the constants.
        plain = replace(operation, value=0.0) if isinstance(operation, moving.Pad) else operation
        try:
            return replace(start, numbers=plain(*numbers), constants=operation(*constants))
        except (RuntimeError, IndexError) as error:
            raise ValueError(f"moves numbers in a way that is not followed: {error}") from error

    def _of_two(self, index: int, held: Fixed) -> tuple[torch.Tensor, torch.Tensor]:
        """A constant among the numbers of two samples, which has none, and among their
        constants; indices in both.
        """
        value = held.value
        if self._graph.nodes[index].shape[:1] == (-1,):
            value = value.expand(2, *value.shape[1:])
        return (
            (torch.zeros_like(value).double(), value.double())
            if value.is_floating_point()
            else (value, value)
        )

    def _numbered(self, indices: list[int]) -> Moved:
        """Nothing moved yet: the integers of these values on one grid, one sample behind the
        other.
        """
        sources = self._alike([self._settled(self._held[index]) for index in indices])
        total = sum(math.prod(self._shape(index)) for index in indices)
        numbers = torch.arange(1, 2 * total + 1, dtype=torch.float64).reshape(2, total)
        return Moved(tuple(sources), numbers, torch.zeros_like(numbers), total)

    def _settled(self, held: Held) -> Held:
        """As it is, or, where it was only moved, in one block."""
        if not isinstance(held, Moved):
            return held
        if (id(held), None) not in self.made:
            self.made[id(held), None] = held, self._arranged(held)
        return self.made[id(held), None][1]

    def _arranged(self, held: Moved) -> OnGrid | Raw | Scaled:
        numbers, constants, source = held.numbers.long(), held.constants, held.sources[0]
        if len(numbers) != 2 or numbers.ndim < 2:
            raise ValueError(
                "needs integers of which the first dimension does not count the samples"
            )
        # 1. Numbers count from 1, of the second of two samples from total + 1, and 0 is padding. So
        # a move within samples shifts all numbers of the second by the total.
        empty, (first, second) = numbers == 0, numbers
        if (
            not bool(((second == first + held.total) | (empty[0] & empty[1])).all())
            or int(first.max()) > held.total
        ):
            raise ValueError(
                "moves numbers across samples, or needs them where the first dimension does not"
                " count those"
            )
        # 2. Constants must be the same for all samples.
        if not torch.equal(constants[0], constants[1]):
            raise ValueError("has constants that differ between the samples of a batch")
        # 3. One gather does the whole move; padding takes what stands for 0.
        indices = torch.where(empty[0], held.total, first - 1).numpy()
        fill = source.grid.zero_point if isinstance(source, OnGrid) else 0
        name = self.add(
            Arrange, *(source.name for source in held.sources), indices=indices, fill=fill
        )
        module = replace(source, name=name)
        if isinstance(module, OnGrid) and self._tokens.get(source.name) == module.grid:
            self._tokens[name] = module.grid
        # Padding adds 0 to what the numbers can be.
        if isinstance(module, Raw):
            module = replace(module, ends=(min(module.ends[0], 0.0), max(module.ends[1], 0.0)))
        return (
            Scaled(module, np.ones(()), constants[0].numpy()) if bool(constants.any()) else module
        )

    def _shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of a value for one sample, without the batch dimension."""
        return self._graph.nodes[index].shape[1:]

    def _alike(self, operands: list[Held]) -> list[OnGrid] | list[Raw]:
        """On one grid; a single one as it is, if it holds integers already."""
        if len(operands) == 1 and isinstance(operands[0], Raw):
            return [operands[0]]
        if len({held.grid for held in operands if isinstance(held, OnGrid)}) == 1 and all(
            isinstance(held, OnGrid) for held in operands
        ):
            return [held for held in operands if isinstance(held, OnGrid)]
        reaches = [self.reach(held) for held in operands]
        grid = Grid.over(
            min(reach[0] for reach in reaches), max(reach[1] for reach in reaches), FINE
        )
        return [self.onto(held, grid) for held in operands]

    def _summed(self, node: opgraph.Node, signs: tuple[int, ...], operands: list[Held]) -> Held:
        constant: Real = np.zeros(())
        terms, kept = [], []
        for sign, operand in zip(signs, operands, strict=True):
            if isinstance(operand, Fixed):
                constant = constant + sign * _of_sample(operand.value, node)
            else:
                terms.append(operand)
                kept.append(sign)
        if len(terms) == 1:
            return self._scaled(terms[0], np.full((), float(kept[0])), constant)
        added = Added(tuple(terms), tuple(kept))
        return self._scaled(added, np.ones(()), constant) if constant.any() else added

    def _scaled(self, held: Held, factor: Real, offset: Real) -> Held:
        if isinstance(held, Scaled):
            return Scaled(held.source, held.factor * factor, held.offset * factor + offset)
        source = held if isinstance(held, OnGrid | Raw) else self.fine(held)
        if isinstance(source, OnGrid) and factor.ndim == 0 and factor > 0 and not offset.any():
            return OnGrid(source.name, replace(source.grid, scale=source.scale * float(factor)))
        return Scaled(source, np.asarray(factor), np.asarray(offset))

    def _multiplied(self, node: opgraph.Node, operands: list[Held]) -> Held:
        factors = [held for held in operands if not isinstance(held, Fixed)]
        constants = [_of_sample(held.value, node) for held in operands if isinstance(held, Fixed)]
        product: Held = factors[0]
        if len(factors) > 1:
            first, second = (self.grid(factor, _FACTOR) for factor in factors[:2])
            name = self.add(Product, first.name, second.name, first=first.grid, second=second.grid)
            product = product_of(name, first.grid, second.grid, 1)
            if len(factors) > 2:
                raise ValueError("multiplies more than two tensors")
        for constant in constants:
            product = self._scaled(product, constant, np.zeros(()))
        return product

    def _matrix_product(self, node: opgraph.Node, operands: list[Held]) -> Held:
        first, second = operands
        terms = self._shape(node.sources[0])[-1]
        if self._shape(node.sources[0])[:-2] != self._shape(node.sources[1])[:-2]:
            raise ValueError("multiplies matrices of another number")
        right = self._eight_bits(second)
        left = self.weights(first, COARSE) if isinstance(first, Shares) else self._eight_bits(first)
        name = self.add(MatrixProduct, left.name, right.name, first=left.grid, second=right.grid)
        if not isinstance(first, Shares):
            return product_of(name, left.grid, right.grid, terms)
        # A weighted mean of the values: nothing lies beyond them, though intervals see no more than
        # the sum of weights.
        quotient = self.add(Divide, name, left.name, weights=left.grid)
        return Raw(
            quotient,
            right.scale / 2**QUOTIENT_BITS,
            right.grid.ends,
            terms * 2**QUOTIENT_BITS * right.greatest,
        )

    def _eight_bits(self, held: Held) -> OnGrid:
        """On a grid of 8 bits; a normalised value reaches too far beyond what it usually is."""
        narrowed = self.grid(held, COARSE)
        if narrowed.name in self.normed:
            raise ValueError(
                "multiplies matrices of normalised numbers, which the fake-quantized network has on"
                " no grid"
            )
        return narrowed

    def _softmax(self, held: Held) -> Held:
        """Where constants are added or chosen, as masks are: only what can show in a weight of
        16 bits counts.
        """
        if not isinstance(held, Scaled):
            return Shares(held if isinstance(held, OnGrid | Raw) else self.fine(held), 1.0, None)
        # 1. Leave out entries that no input brings near enough to the best one to show in a weight.
        shape = self.shape(held)
        ends = [
            np.broadcast_to(held.factor * end + held.offset, shape)
            for end in self.reach(held.source)
        ]
        lower, upper = np.minimum(*ends), np.maximum(*ends)
        best = lower.max(-1, keepdims=True)
        if not np.isfinite(best).all():
            raise ValueError("masks a whole row, or by what is no number")
        keep = upper >= best - _VANISHED
        factor, offset = (np.broadcast_to(part, shape) for part in (held.factor, held.offset))
        counted = None if keep.all() else keep
        # A softmax does not see what is added to a whole row.
        offset = np.where(
            keep, offset - np.where(keep, offset, -np.inf).max(-1, keepdims=True), 0.0
        )
        # 2. With one positive factor and no offset left, the scores are the source's integers,
        # scaled.
        alike = float(factor[keep][0])
        if (
            (factor[keep] == alike).all()
            and alike > 0
            and not offset.any()
            and self.shape(held.source) == shape
        ):
            return Shares(held.source, alike, counted)
        # 3. Else bring them onto a fine grid of their own.
        return Shares(
            self.fine(Scaled(held.source, np.where(keep, factor, 0.0), offset)), 1.0, counted
        )

    def _normalized(self, node: opgraph.Node, operation: Any, held: Held) -> Held:
        size, centred = self._shape(node.sources[0])[-1], isinstance(operation, ops.LayerNorm)
        if centred and isinstance(held, Scaled) and not np.isinf(held.offset).any():
            offset = held.offset  # of which a norm does not see the mean
            held = replace(
                held,
                offset=offset - offset.mean(-1, keepdims=True) if offset.ndim else np.zeros(()),
            )
        # The finest grid on which the norm's numbers still fit into 64 bits.
        for bits in range(FINE, COARSE - 1, -1):
            source = self.grid(held, bits)
            try:
                normalized = Normalize.of(
                    node.name, "", source.grid, size, centred=centred, epsilon=operation.eps
                )
                break
            except ValueError:
                if bits == COARSE:
                    raise
        name = self.add(
            lambda name, inputs: replace(normalized, name=name, inputs=inputs), source.name
        )
        self.inserted.append(name)
        self.normed.add(name)
        # No normalised value is beyond sqrt(n), as their squares add up to n at the most.
        reach = math.sqrt(size)
        raw = Raw(name, 2.0**-NORM_BITS, (-reach, reach), normalized.greatest)
        ends = (operation.weight, getattr(operation, "bias", None))
        if ends == (None, None):
            return raw
        weight, bias = (
            np.full((), float(default)) if end is None else _of_sample(end, node)
            for end, default in zip(ends, (1, 0), strict=True)
        )
        return Scaled(raw, weight, bias)

    def _reduced(self, node: opgraph.Node, operation: Any, held: Held) -> Held:
        source, shape = self.grid(held, FINE), self._shape(node.sources[0])
        dimensions = tuple(axis - 1 for axis in operation.axes)
        name = self.add(
            SumOver, source.name, input=source.grid, dimensions=dimensions, keep=operation.keeps
        )
        places = math.prod(shape[dimension] for dimension in dimensions)
        return _mean(name, source, places, 1 if operation.name == "sum" else places)

    def _greatest(self, operation: Any, held: Held) -> Held:
        source, padding = (
            self.grid(held, FINE),
            tuple((width, width) for width in operation.padding),
        )
        name = self.add(
            MaxPool,
            source.name,
            kernel=operation.kernel,
            stride=operation.stride,
            padding=padding,
            dilation=operation.dilation,
        )
        return replace(source, name=name)

    def _averaged(self, operation: Any, held: Held) -> Held:
        if not isinstance(held, OnGrid) or held.greatest >= 2**COARSE:
            raise ValueError(
                "averages windows of numbers that the fake-quantized network has on no grid of 8"
                " bits"
            )
        padding, places = (
            tuple((width, width) for width in operation.padding),
            math.prod(operation.kernel),
        )
        name = self.add(
            SumPool,
            held.name,
            input=held.grid,
            kernel=operation.kernel,
            stride=operation.stride,
            padding=padding,
        )
        return _mean(name, held, places, operation.divisor or places)


def _mean(name: str, source: OnGrid, places: int, share: int) -> Raw:
    """The sum of so many places over `share`."""
    lower, upper = source.grid.ends
    return Raw(
        name,
        source.scale / share,
        (lower * places / share, upper * places / share),
        places * source.greatest,
    )


def _of_sample(value: torch.Tensor, node: opgraph.Node) -> Real:
    """A constant as it broadcasts to one sample of the node's value.

    Raises:
        ValueError: it differs between the samples of a batch.
    """
    array = np.asarray(value.double().numpy())
    if array.size == 1:
        return array.reshape(())
    if array.ndim < len(node.shape):
        return array
    if array.shape[0] != 1 and not (array.shape[0] == 2 and np.array_equal(array[0], array[1])):
        raise ValueError(
            f"has a constant of {array.shape}, which differs between the samples of a batch"
        )
    return np.asarray(array[0])
