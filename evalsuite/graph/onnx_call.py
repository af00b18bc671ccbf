"""One node of an ONNX file: its inputs, of which some are known beforehand, and its attributes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from evalsuite.contract import Unsupported
from evalsuite.graph.call import Call, Value
from evalsuite.graph.moving import Positions
from evalsuite.graph.operations import Product
from evalsuite.graph.sizes import Shape, shape

Array = np.ndarray[Any, Any]


@contextmanager
def guarded(where: str) -> Iterator[None]:
    """Errors name the place; what a malformed file makes onnx, numpy or torch raise becomes Unsupported."""
    try:
        yield
    except Unsupported as error:
        raise Unsupported(str(error) if str(error).startswith(where) else f"{where}: {error}") from error
    except Exception as error:
        raise Unsupported(f"{where}: malformed, or not read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Known:
    """What does not depend on the input: the array for the one and for the other of `sizes.BATCHES`."""

    first: Array
    second: Array

    @property
    def fixed(self) -> bool:
        """Whether it does not depend on the batch either."""
        return self.first.shape == self.second.shape and bool(np.array_equal(self.first, self.second))


@dataclass(frozen=True, slots=True)
class OnnxCall(Call):
    """A node of an ONNX file: a call with `attributes` by name, the number of its `outputs` and the file's `opset`."""

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
        sizes = shape(source.first.shape, source.second.shape)
        (axis, *more) = [place for place, each in enumerate(sizes) if each < 0]
        start = source.first.take([0], axis)
        step = source.first.take([1], axis) - start if source.first.dtype.kind in "iu" else np.zeros_like(start)
        for each in (source.first, source.second):
            along = np.arange(each.shape[axis]).reshape([-1 if place == axis else 1 for place in range(each.ndim)])
            grown = start + along * step if step.any() else np.broadcast_to(start, each.shape)
            if more or not np.array_equal(grown, each):
                self.refuse("takes a constant that depends on the batch's size")
        first = self.expanded(torch.from_numpy(np.array(start)), sizes)
        if not step.any():
            return first
        count = self.add(Positions(-sizes[axis]), *self.batch(sizes))
        line = self.reshaped(count, tuple(each if place == axis else 1 for place, each in enumerate(sizes)))
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
            self.refuse("takes numbers that depend on the input or on the batch, where only fixed ones are read")
        return [int(each) for each in source.first.ravel()]

    def axes_of(self, source: Any, x: Value) -> list[int] | None:
        """Axes by attribute or by input, as the opset has it."""
        given = self.attributes.get("axes")
        if given is None:
            given = None if source is None else self.numbers(source)
        return None if given is None else [self.axis(x, int(each)) for each in given]

    def expect(self, **values: Any) -> None:
        """Refuse attributes that are there and have another value than given."""
        for name, value in values.items():
            if name in self.attributes and self.attributes[name] != value:
                self.refuse(f"{name} = {self.attributes[name]!r} is not read, only {value!r}")
