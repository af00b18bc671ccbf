"""From the operations of an integer-only network to fast kernels: what is fused, how tensors are stored, which type."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipelines.quantize.integer.kernels import SINGLE_LIMIT, Checked, Dense, Flattening, Floor, Kernel, Lookup, Slot
from pipelines.quantize.integer.network import (
    INPUT,
    Add,
    Convolution,
    Flatten,
    Grid,
    IntegerNetwork,
    Integers,
    Linear,
    MaxPool,
    Operation,
    Polynomial,
    Rectify,
    Requantize,
    Rounding,
    SumPool,
    Table,
)
from pipelines.quantize.integer.oracle import along, every, polynomial
from pipelines.quantize.integer.ranges import Ranges, Sum, rescaling_bits
from pipelines.quantize.integer.rounding import DOUBLE_BITS, Ends, Rescaling, Smooth, WeightedSum, float_factors
from pipelines.quantize.integer.sliding import Correlation, Depthwise, Padded, Pool


@dataclass(slots=True, eq=False)
class Prepared:
    """Kernels in the order in which they run, what each reads, and how every tensor is stored."""

    kernels: list[tuple[Kernel, tuple[str, ...]]]
    slots: dict[str, Slot]


def fuse(operations: tuple[Operation, ...]) -> list[Operation]:
    """A ReLU beside a requantization becomes the lower end of its clip: rounding keeps the order and 0."""
    readers = Counter(name for each in operations for name in each.inputs)
    fused: dict[str, Any] = {}
    for each in operations:
        before = fused.get(each.inputs[0]) if each.inputs and readers[each.inputs[0]] == 1 else None
        if isinstance(each, Requantize) and isinstance(before, Rectify) and before.zero_point == each.zero_point:
            fused[each.name] = replace(each, inputs=fused.pop(before.name).inputs, output=_rectified(each.output))
        elif isinstance(each, Rectify) and isinstance(before, Requantize) and (
            each.zero_point == before.output.zero_point
        ):  # fmt: skip
            fused[each.name] = replace(fused.pop(before.name), name=each.name, output=_rectified(before.output))
        else:
            fused[each.name] = each
    return list(fused.values())


def _levels(grid: Grid) -> Integers:
    """The rounded products, above the least, that a clip to `grid` tells apart."""
    return np.arange(grid.low, grid.high) - grid.zero_point + 1


def _rectified(grid: Grid) -> Grid:
    return replace(grid, low=grid.zero_point)


class Preparation:
    """Makes the kernels of `network`, whose `ranges` are proven."""

    def __init__(self, network: IntegerNetwork, ranges: Ranges) -> None:
        self.ranges, self.rounding = ranges, network.rounding
        self.operations = fuse(network.operations)
        self.readers: dict[str, list[Operation]] = {}
        for each in self.operations:
            for name in each.inputs:
                self.readers.setdefault(name, []).append(each)
        spatial = any(isinstance(each, Convolution | SumPool | MaxPool) for each in self.readers.get(INPUT, []))
        self.slots = {INPUT: self._slot(INPUT, spatial, self._offset(INPUT, network.input))}

    def prepare(self) -> Prepared:
        """See `Prepared`."""
        kernels: list[tuple[Kernel, tuple[str, ...]]] = []
        for each in self.operations:
            kernel, slot = self._kernel(each)
            self.slots[each.name] = slot
            kernels.append((kernel, each.inputs))
        return Prepared(kernels, self.slots)

    def _slot(self, name: str, last: bool, offset: int) -> Slot:
        shape = self.ranges.spans[name].lower.shape
        last = last and len(shape) > 1
        return Slot((*shape[1:], shape[0]) if last else shape, last, offset)

    def _offset(self, name: str, grid: Grid) -> int:
        """Readers multiply integer - zero point, tables index integer - low: what all readers want is stored."""
        readers = self.readers.get(name, [])
        tables = bool(readers) and all(isinstance(each, Table) for each in readers)
        return grid.low if tables else grid.zero_point

    def _kind(self, found: Sum) -> Any:
        return np.float32 if max(-found.least, found.greatest) < SINGLE_LIMIT else np.float64

    def _kernel(self, operation: Operation) -> tuple[Kernel, Slot]:
        source = self.slots[operation.inputs[0]]
        match operation:
            case Linear():
                made = self._linear(operation, source)
            case Convolution():
                made = self._convolution(operation, source)
            case SumPool() | MaxPool():
                made = self._pool(operation, source)
            case Flatten():
                made = self._flatten(operation, source)
            case Rectify():
                made = Floor(operation.name, source, operation.zero_point - source.offset), replace(source)
            case Table():
                made = self._table(operation, source)
            case Requantize():
                made = self._requantize(operation, source)
            case Add():
                made = self._add(operation)
            case Polynomial():
                made = self._polynomial(operation, source)
            case _:
                made = self._other(operation, source)
        return made

    def _linear(self, operation: Linear, source: Slot) -> tuple[Kernel, Slot]:
        kind = self._kind(self.ranges.sums[operation.name])
        weight = operation.weight.astype(np.int64)
        bias = operation.bias + (source.offset - operation.input.zero_point) * weight.sum(1)
        if source.order is not None:
            weight = weight[:, source.order]
        dense = Dense(operation.name, source, np.ascontiguousarray(weight.T.astype(kind)), bias.astype(kind))
        return dense, self._slot(operation.name, False, 0)

    def _convolution(self, operation: Convolution, source: Slot) -> tuple[Kernel, Slot]:
        slot = self._slot(operation.name, True, 0)
        kind = self._kind(self.ranges.sums[operation.name])
        padded = Padded(operation.name, source, operation.input.zero_point, operation.padding)
        made, share, *kernel = operation.weight.shape
        window = tuple(kernel), operation.stride, operation.dilation
        weight = np.moveaxis(operation.weight.astype(kind), 1, -1).reshape(made, -1)
        bias = operation.bias.astype(kind)
        if share == 1 and made == operation.groups > 1:
            return Depthwise(operation.name, padded, np.ascontiguousarray(weight.T), bias, *window), slot
        rows = np.concatenate([weight, bias[:, None]], axis=1).reshape(operation.groups, made // operation.groups, -1)
        return Correlation(operation.name, padded, np.ascontiguousarray(rows.transpose(0, 2, 1)), *window), slot

    def _pool(self, operation: SumPool | MaxPool, source: Slot) -> tuple[Kernel, Slot]:
        if isinstance(operation, SumPool):
            kind = self._kind(self.ranges.sums[operation.name])
            padded = Padded(operation.name, source, operation.input.zero_point, operation.padding)
            once = (1,) * len(operation.kernel)
            pool = Pool(operation.name, padded, np.add, kind, operation.kernel, operation.stride, once)
            return pool, self._slot(operation.name, True, 0)
        low, high = self.ranges.spans[operation.name].ends
        if max(abs(low - source.offset), abs(high - source.offset)) >= SINGLE_LIMIT:
            return self._other(operation, source)
        padded = Padded(operation.name, source, source.offset, operation.padding, -np.inf)
        window = operation.kernel, operation.stride, operation.dilation
        return Pool(operation.name, padded, np.maximum, np.float32, *window), self._slot(
            operation.name, True, source.offset
        )

    def _flatten(self, operation: Flatten, source: Slot) -> tuple[Kernel, Slot]:
        """Linear layers take the features in the order in which they are stored, and permute their weights."""
        readers = self.readers.get(operation.name, [])
        keep = source.last and bool(readers) and all(isinstance(each, Linear) for each in readers)
        slot = self._slot(operation.name, False, source.offset)
        if keep:
            places = np.arange(int(np.prod(source.shape))).reshape(source.shape[-1], *source.shape[:-1])
            slot = replace(slot, order=np.moveaxis(places, 0, -1).ravel())
        return Flattening(operation.name, source, keep), slot

    def _table(self, operation: Table, source: Slot) -> tuple[Kernel, Slot]:
        slot = replace(source, offset=self._offset(operation.name, operation.output))
        table = operation.table.astype(np.float32) - np.float32(slot.offset)
        return Lookup(operation.name, table, source.offset - operation.input.low), slot

    def _requantize(self, operation: Requantize, source: Slot) -> tuple[Kernel, Slot]:
        span, zero, factor = self.ranges.spans[operation.inputs[0]], operation.zero_point, operation.factor
        low, high = span.lower - zero, span.upper - zero
        axis = operation.axis % (low.ndim + 1) - 1
        others = tuple(i for i in range(low.ndim) if i != axis) if len(factor.multiplier) > 1 else None
        bounds = np.atleast_1d(low.min(others)), np.atleast_1d(high.max(others))
        output = operation.output
        proven = float_factors(factor, bounds, _levels(output), self.rounding, output.zero_point)
        if proven is None:
            return self._other(operation, source)
        found, before = proven
        if len(found) > 1:
            full = np.broadcast_to(along(found, axis, low.ndim), low.shape)
            found = np.ascontiguousarray(np.moveaxis(full, 0, -1) if source.last else full).ravel()
        slot, ends = self._result(operation, source, before)
        return Rescaling(operation.name, found, zero - source.offset, ends), slot

    def _result(self, operation: Requantize | Add | Polynomial, source: Slot, before: int) -> tuple[Slot, Ends]:
        """How a rescaled tensor of the source's shape is stored, and the end of its computation."""
        output, slot = operation.output, replace(source, offset=self._offset(operation.name, operation.output))
        return slot, Ends(output.zero_point - slot.offset, output.low - slot.offset, output.high - slot.offset, before)

    def _add(self, operation: Add) -> tuple[Kernel, Slot]:
        sources = [self.slots[each] for each in operation.inputs]
        bits = rescaling_bits(operation, [self.ranges.spans[each] for each in operation.inputs])
        odd = operation.output.zero_point & 1
        if odd:  # 1 is added before rounding
            bits = max(bits, operation.shift + 1) + 1
        alike = len({(each.last, each.shape) for each in sources}) == 1
        if self.rounding is not Rounding.HALF_EVEN or bits > DOUBLE_BITS or not alike:
            return self._other(operation, sources[0])
        terms = zip(sources, operation.zero_points, operation.multipliers, strict=True)
        constant = math.ldexp(sum((each.offset - zero) * m for each, zero, m in terms), -operation.shift)
        factors = tuple(math.ldexp(m, -operation.shift) for m in operation.multipliers)
        slot, ends = self._result(operation, sources[0], odd)
        return WeightedSum(operation.name, factors, constant, ends), slot

    def _polynomial(self, operation: Polynomial, source: Slot) -> tuple[Kernel, Slot]:
        products = polynomial(operation, every(*self.ranges.spans[operation.inputs[0]].ends))
        exact = max(operation.constant, operation.limit**2, int(np.abs(products).max())) < 2**DOUBLE_BITS
        bounds = np.atleast_1d(products.min()), np.atleast_1d(products.max())
        levels, zero = _levels(operation.output), operation.output.zero_point
        proven = float_factors(operation.factor, bounds, levels, self.rounding, zero) if exact else None
        if proven is None:
            return self._other(operation, source)
        found, before = proven
        slot, ends = self._result(operation, source, before)
        centre = source.offset - operation.input.zero_point
        return Smooth(operation.name, operation, centre, float(found[0]), ends), slot

    def _other(self, operation: Operation, source: Slot) -> tuple[Kernel, Slot]:
        grid = getattr(operation, "output", None)
        slot = self._slot(operation.name, source.last, 0 if grid is None else self._offset(operation.name, grid))
        sources = tuple(self.slots[each] for each in operation.inputs)
        return Checked(operation.name, operation, sources, self.rounding, slot), slot
