"""One call of an exported program or one node of a file: what its reader may ask, and how it
answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch

from opgraph.errors import Unsupported
from opgraph.graph import Builder, Node
from opgraph.moving import Concat, Expand, Gather, Positions, Reshape, Slice, Transpose
from opgraph.operations import Cast, Linear, MatMul, Operation, Product, Sum
from opgraph.sizes import Shape, shape

_END = 10**8  # what exporters write for the end of an axis is at least this, and no batch is


class Value(int):
    """A value of the graph, by its number."""


@dataclass(frozen=True, slots=True)
class Times:
    """A number that is `times` the batch, where a program computes with sizes."""

    times: int


@dataclass(frozen=True, slots=True)
class Call:
    """Where it is, for errors; the shape of its result and its kind, where those are known."""

    builder: Builder
    where: str
    shape: Shape = ()
    dtype: torch.dtype = torch.float32

    def refuse(self, why: str) -> NoReturn:
        """Raise Unsupported; its text is the place of this call, then `why`."""
        raise Unsupported(f"{self.where}: {why}")

    def add(self, operation: Operation, *sources: Any) -> Value:
        """A new value; sources are values, or numbers that are constants."""
        return Value(self.builder.add(operation, *(self.value(source) for source in sources)))

    def value(self, source: Any) -> Value:
        """A value as it is; a number or a tensor as a constant."""
        if isinstance(source, Value):
            return source
        if isinstance(source, float):
            source = torch.tensor(source, dtype=torch.float64)
        if isinstance(source, bool | int):
            source = torch.tensor(source)
        if not isinstance(source, torch.Tensor):
            self.refuse(
                f"takes {source!r}, which is neither a tensor nor a number that is known beforehand"
            )
        return Value(self.builder.constant(source))

    def node(self, value: Value) -> Node:
        """The node that computes a value: its operation, its operands, and the shape and dtype
        of the result.
        """
        return self.builder.nodes[value]

    def known(self, source: Any, what: str) -> torch.Tensor:
        """The value of a constant. Refused where it depends on the input."""
        tensor = self.builder.known(self.value(source))
        if tensor is None:
            self.refuse(f"its {what} depends on the input; only constant ones are read")
        return tensor

    def optional(self, source: Any, what: str) -> torch.Tensor | None:
        """The value of a constant, or None where the argument is not given."""
        return None if source is None else self.known(source, what)

    def axis(self, source: Value, axis: int) -> int:
        """An axis of `source` counted from 0, where the given one may count from the end: -1 is
        the last.
        """
        return axis % max(len(self.node(source).shape), 1)

    def axes(self, source: Value, axes: Any) -> tuple[int, ...]:
        """Axes, counted from 0, in order; none, or an empty list, are all."""
        dims = (
            [axes] if isinstance(axes, int) else list(axes or range(len(self.node(source).shape)))
        )
        return tuple(sorted(self.axis(source, dim) for dim in dims))

    def as_kind(self, source: Any, dtype: torch.dtype) -> Value:
        """Cast to a kind, where it is not of that already."""
        value = self.value(source)
        return value if self.node(value).dtype == dtype else self.add(Cast(dtype), value)

    def alike(self, *sources: Any) -> list[Value]:
        """Cast values to one kind: real where any is real, else integers where any is one."""
        values = [self.value(source) for source in sources]
        kinds = {self.node(value).dtype for value in values}
        wanted = next(kind for kind in (torch.float32, torch.int64, torch.bool) if kind in kinds)
        return [self.as_kind(value, wanted) for value in values]

    def reshaped(self, source: Value, shape: Shape) -> Value:
        """In another shape; nothing is done where it is the same, or where the reshape before is
        passed over.
        """
        node = self.node(source)
        if node.shape == shape:
            return source
        if isinstance(node.operation, Reshape):
            return self.reshaped(Value(node.sources[0]), shape)
        return self.add(Reshape(shape), source)

    def expanded(self, source: Any, shape: Shape) -> Value:
        """The value repeated to the shape."""
        value = self.value(source)
        if self.node(value).shape == shape:
            return value
        return self.add(Expand(shape), value, *self.batch(shape))

    def batch(self, shape: Shape) -> tuple[Value, ...]:
        """An input that tells the batch, where the shape names it."""
        return (Value(0),) if any(extent < 0 for extent in shape) else ()

    def transposed(self, source: Value, first: int, second: int) -> Value:
        """The value with two axes exchanged."""
        order = list(range(len(self.node(source).shape)))
        first, second = self.axis(source, first), self.axis(source, second)
        order[first], order[second] = order[second], order[first]
        return self.permuted(source, tuple(order))

    def permuted(self, source: Value, order: tuple[int, ...]) -> Value:
        """Axis i of the result is axis order[i]."""
        return source if order == tuple(range(len(order))) else self.add(Transpose(order), source)

    def sliced(
        self,
        source: Value,
        axis: int,
        start: int | Times | None,
        stop: int | Times | None,
        step: int = 1,
    ) -> Value:
        """As Python slices; an end beyond the axis, or a multiple of the batch that is its size,
        is the end.
        """
        axis = self.axis(source, axis)
        size = self.node(source).shape[axis]
        # The size of an axis along the batch is a multiple of the batch, as is an end that a
        # program computes from it: only the whole axis can be meant.
        if isinstance(stop, Times) and stop.times == -size:
            stop = None
        if isinstance(start, Times) or isinstance(stop, Times) or step < 1:
            self.refuse(
                f"takes {start}:{stop}:{step} of axis {axis}; only fixed ends and positive steps"
                " are read"
            )
        start, stop = start or 0, None if stop is not None and stop >= _END else stop
        if size >= 0:
            start, stop, step = slice(start, stop, step).indices(size)
        if start == 0 and step == 1 and stop in (None, size):
            return source
        return self.add(Slice(axis, start, stop, step), source)

    def picked(self, source: Value, axis: int, index: int) -> Value:
        """One entry of an axis, which goes."""
        axis = self.axis(source, axis)
        size = self.node(source).shape[axis]
        if size < 0:
            self.refuse(f"takes entry {index} of an axis along the batch")
        part = self.sliced(source, axis, index % size, index % size + 1)
        shape = self.node(part).shape
        return self.reshaped(part, shape[:axis] + shape[axis + 1 :])

    def joined(self, sources: Any, axis: int) -> Value:
        """One behind the other. Empty vectors, as torch allows them, are left out."""
        values = [value for value in self.alike(*sources) if self.node(value).shape != (0,)]
        return (
            values[0] if len(values) == 1 else self.add(Concat(self.axis(values[0], axis)), *values)
        )

    def product(self, left: Any, right: Any) -> Value:
        """The matrix product: a linear map where the right one is a constant matrix."""
        left, right = self.alike(left, right)
        weight = self.builder.known(right)
        if weight is not None and weight.ndim == 2 and self.builder.known(left) is None:
            return self.add(Linear(weight.T), left)
        return self.add(MatMul(), left, right)

    def summed(self, first: Any, second: Any, sign: int = 1) -> Value:
        """The value first + sign * second, elementwise; where their dtypes differ, both are cast
        as `alike` says.
        """
        return self.add(Sum((1, sign)), *self.alike(first, second))

    def gathered(self, source: Any, axis: int, index: Any) -> Value:
        """Entries of one axis; the index's axes take its place."""
        value = self.value(source)
        return self.add(Gather((self.axis(value, axis),)), value, self.as_kind(index, torch.int64))


Array = np.ndarray[Any, Any]


@contextmanager
def guarded(where: str) -> Iterator[None]:
    """Errors name the place; what a malformed file makes onnx, numpy or torch raise becomes
    Unsupported.
    """
    try:
        yield
    except Unsupported as error:
        raise Unsupported(
            str(error) if str(error).startswith(where) else f"{where}: {error}"
        ) from error
    except Exception as error:
        raise Unsupported(
            f"{where}: malformed, or not read: {type(error).__name__}: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class Known:
    """Holds what does not depend on the input: the array for the one and for the other of
    `sizes.BATCHES`.
    """

    first: Array
    second: Array

    @property
    def fixed(self) -> bool:
        """Whether it does not depend on the batch either."""
        return self.first.shape == self.second.shape and bool(
            np.array_equal(self.first, self.second)
        )


@dataclass(frozen=True, slots=True)
class OnnxCall(Call):
    """A node of an ONNX file: a call with `attributes` by name, the number of its `outputs` and
    the file's `opset`.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 20

    def value(self, source: Any) -> Value:
        """See `Call`; what is known becomes a constant, or is repeated along the batch."""
        if not isinstance(source, Known):
            return Call.value(self, source)
        if source.fixed:
            return Call.value(self, torch.from_numpy(np.array(source.first)))
        return self._along_batch(source)

    def _along_batch(self, source: Known) -> Value:
        """A constant that is repeated, or grows by steps, along the batch."""
        # 1. Find the axis along the batch, and by what the entries grow along it, if they are
        # integers.
        sizes = shape(source.first.shape, source.second.shape)
        axis, *more = [place for place, extent in enumerate(sizes) if extent < 0]
        start = source.first.take([0], axis)
        step = (
            source.first.take([1], axis) - start
            if source.first.dtype.kind in "iu"
            else np.zeros_like(start)
        )
        # 2. Both batches must be explained by that start and step.
        for extents in (source.first, source.second):
            along = np.arange(extents.shape[axis]).reshape(
                [-1 if place == axis else 1 for place in range(extents.ndim)]
            )
            grown = start + along * step if step.any() else np.broadcast_to(start, extents.shape)
            if more or not np.array_equal(grown, extents):
                self.refuse("takes a constant that depends on the batch's size")
        # 3. Write it for any batch: the start repeated, plus the position times the step.
        first = self.expanded(torch.from_numpy(np.array(start)), sizes)
        if not step.any():
            return first
        count = self.add(Positions(-sizes[axis]), *self.batch(sizes))
        line = self.reshaped(
            count, tuple(extent if place == axis else 1 for place, extent in enumerate(sizes))
        )
        return self.summed(first, self.add(Product(), line, torch.from_numpy(np.array(step))))

    def sizes(self, source: Any) -> Shape:
        """A shape that is known beforehand, for any batch."""
        if not isinstance(source, Known):
            self.refuse("takes a shape that depends on the input's values")
        return shape(source.first.ravel().tolist(), source.second.ravel().tolist())

    def numbers(self, source: Any, default: list[int] | None = None) -> list[int]:
        """Whole numbers that depend neither on the input nor on the batch."""
        if source is None and default is not None:
            return default
        if not isinstance(source, Known) or not source.fixed:
            self.refuse(
                "takes numbers that depend on the input or on the batch, where only fixed ones are"
                " read"
            )
        return [int(number) for number in source.first.ravel()]

    def axes_of(self, source: Any, operand: Value) -> list[int] | None:
        """Axes by attribute or by input, as the opset has it."""
        axes = self.attributes.get("axes")
        if axes is None:
            axes = None if source is None else self.numbers(source)
        return None if axes is None else [self.axis(operand, int(axis)) for axis in axes]

    def expect(self, **values: Any) -> None:
        """Refuse attributes that are there and have another value than given."""
        for name, value in values.items():
            if name in self.attributes and self.attributes[name] != value:
                self.refuse(f"{name} = {self.attributes[name]!r} is not read, only {value!r}")
