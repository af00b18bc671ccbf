"""One node of an ONNX file: what its reader may ask, and how it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np
import torch

from evalsuite.contract import Unsupported
from evalsuite.verification.graph import Affine, Operation
from evalsuite.verification.linear import Linear, Select

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that depends on the input: a value of the graph, and its shape in the file."""

    value: int
    shape: tuple[int, ...]


class Reading(ABC):
    """What operators may ask of the reader."""

    @abstractmethod
    def append(self, operation: Operation, name: str, shape: tuple[int, ...]) -> Tensor:
        """Append a node to the network; return what it computes, with its shape."""

    @abstractmethod
    def operation_of(self, tensor: Tensor) -> Operation | None:
        """What computes `tensor`; None for the input."""


@dataclass(frozen=True, slots=True)
class Call:
    """One node: where it is, its inputs (tensors, constants, or None where left out), its attributes."""

    reading: Reading
    where: str
    name: str
    inputs: Sequence[Tensor | Array | None]
    attributes: dict[str, Any]

    def refuse(self, why: str) -> NoReturn:
        """Raise Unsupported, naming the node."""
        raise Unsupported(f"{self.where}: {why}")

    def tensor(self, at: int = 0) -> Tensor:
        """Input `at`, which must depend on the network's input."""
        found = self.inputs[at] if at < len(self.inputs) else None
        if not isinstance(found, Tensor):
            self.refuse(f"its input {at} must depend on the network's input")
        return found

    def constant(self, at: int) -> Array | None:
        """Input `at`, which must be a constant; None where it is left out."""
        found = self.inputs[at] if at < len(self.inputs) else None
        if isinstance(found, Tensor):
            self.refuse(f"its input {at} must be a constant")
        return found

    def needed(self, at: int) -> Array:
        """Input `at`, a constant that must be there."""
        found = self.constant(at)
        if found is None:
            self.refuse(f"its input {at} is missing")
        return found

    def expect(self, **values: Any) -> None:
        """Refuse attributes that are there and have another value than given."""
        for name, value in values.items():
            if name in self.attributes and self.attributes[name] != value:
                self.refuse(f"{name} = {self.attributes[name]!r} is not read, only {value!r}")

    def affine(self, source: Tensor, map_: Linear, shape: tuple[int, ...], bias: Array | None = None) -> Tensor:
        """A new affine node of one tensor; `bias` of `shape`."""
        flat = torch.zeros(prod(shape), dtype=torch.float64) if bias is None else double(bias).flatten()
        return self.reading.append(Affine(((source.value, map_),), flat), self.name, shape)


def double(array: Array) -> torch.Tensor:
    """A float64 tensor with the values of `array`."""
    return torch.from_numpy(np.array(array, dtype=np.float64))


def indices(shape: tuple[int, ...]) -> Array:
    """The flat index of each entry of a tensor of this shape."""
    return np.arange(prod(shape), dtype=np.int64).reshape(shape)


def selected(source: Tensor, index: Array) -> Linear:
    """The map to the entries `index` of a tensor, 0 for -1."""
    return Select(torch.from_numpy(np.array(index.flatten())), prod(source.shape))
