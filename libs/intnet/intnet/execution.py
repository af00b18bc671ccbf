"""Running an integer-only network in numpy: `Executor`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from intnet.grids import INPUT, Grid, Integers, quantize
from intnet.kernels import Array, Kernel, Padded, Preparation, Room, Step
from intnet.network import IntegerNetwork, Ranges, prove_ranges
from intnet.operation import Operation
from intnet.pointwise import Rectify, Requantize

_BLOCK_ELEMENTS = 2**18
_MOST_PROGRAMS = 4


class Executor:
    """Runs `network`; `checked` runs every operation on int64 with its overflow checks, else the
    fast kernels run.

    Both give the same integers, whatever the number of threads and however the inputs are split
    into batches. Safe to call from several threads at once: each has work buffers of its own.

    Raises:
        OverflowError: the accumulators are not proven to fit into 32 bits.
    """

    def __init__(self, network: IntegerNetwork, *, checked: bool = False) -> None:
        self.network = network
        self.checked = checked
        self.ranges: Ranges = prove_ranges(network)
        self._fast = None if checked else _Fast(network, self.ranges)

    def __call__(self, inputs: npt.NDArray[Any]) -> Integers:
        """The integer logits, int64 (batch, ...), of real inputs, float32 (batch, *input_shape)."""
        return self.run(self.quantize(inputs))

    def quantize(self, inputs: npt.NDArray[Any]) -> Integers:
        """The input's integers, in the type that the ONNX file takes; tokens are integers already.

        Raises:
            ValueError: an input is not finite, a token is none of the network's, or the shape is
                not (batch, *input_shape).
        """
        self._check_shape(inputs)
        if self.network.tokens:
            self._check(inputs)
        return quantize(inputs, self.network.input, "the inputs", self.network.input.storage)

    def dequantize(self, logits: Integers) -> npt.NDArray[np.float64]:
        """The logits as real numbers, from integers on the output's grid."""
        output = self.network.output
        return np.asarray((np.asarray(logits, dtype=np.float64) - output.zero_point) * output.scale)

    def run(self, integers: Integers) -> Integers:
        """The integer logits, int64 (batch, ...), of the input's integers (batch, *input_shape).

        Raises:
            ValueError: an input lies outside the input's grid, or the shape is wrong.
        """
        self._check(integers)
        if self._fast is None:
            return self.trace(integers)[self.network.operations[-1].name]
        return self._fast.run(integers)

    def trace(self, integers: Integers) -> dict[str, Integers]:
        """Every tensor by name, int64, `INPUT` included, computed by the checked operations."""
        self._check(integers)
        tensors = {INPUT: integers.astype(np.int64)}
        for operation in self.network.operations:
            tensors[operation.name] = operation.apply(
                [tensors[name] for name in operation.inputs], self.network.rounding
            )
        return tensors

    def _check_shape(self, inputs: npt.NDArray[Any]) -> None:
        if inputs.ndim == 0 or inputs.shape[1:] != self.network.input_shape or not len(inputs):
            raise ValueError(
                f"inputs must be (batch, {self.network.input_shape}), at least one; got"
                f" {inputs.shape}"
            )

    def _check(self, integers: Integers) -> None:
        self._check_shape(integers)
        grid = self.network.input
        if integers.dtype.kind not in "iu":
            raise ValueError(f"run() takes integers, got {integers.dtype}: quantize() makes them")
        info = np.iinfo(integers.dtype)
        if info.min >= grid.low and info.max <= grid.high:
            return
        low, high = int(integers.min()), int(integers.max())
        if low < grid.low or high > grid.high:
            raise ValueError(
                f"inputs reach from {low} to {high}, outside the input's grid [{grid.low},"
                f" {grid.high}]"
            )


def _fused(operations: Sequence[Operation]) -> list[Operation]:
    """A ReLU beside a requantization becomes the lower end of its clip: rounding keeps the order
    and 0.
    """
    # What a second operation reads must stay as it is.
    readers = Counter(name for operation in operations for name in operation.inputs)
    fused: dict[str, Any] = {}

    def rectified(grid: Grid) -> Grid:
        return replace(grid, low=grid.zero_point)

    for operation in operations:
        before = (
            fused.get(operation.inputs[0])
            if operation.inputs and readers[operation.inputs[0]] == 1
            else None
        )
        if (
            isinstance(operation, Requantize)
            and isinstance(before, Rectify)
            and before.zero_point == operation.zero_point
        ):
            # The ReLU before cuts at the zero point of what is requantized: the same cut after it.
            fused[operation.name] = replace(
                operation, inputs=fused.pop(before.name).inputs, output=rectified(operation.output)
            )
        elif (
            isinstance(operation, Rectify)
            and isinstance(before, Requantize)
            and (operation.zero_point == before.output.zero_point)
        ):
            # The ReLU behind is the lower end of the clip that requantization ends with.
            fused[operation.name] = replace(
                fused.pop(before.name), name=operation.name, output=rectified(before.output)
            )
        else:
            fused[operation.name] = operation
    return list(fused.values())


class _Fast:
    """Prepared kernels, and per thread the programs of the batch sizes met last."""

    def __init__(self, network: IntegerNetwork, ranges: Ranges) -> None:
        operations = _fused(network.operations)
        of = Preparation(operations, ranges.spans, ranges.sums, network.rounding)
        of.slots[INPUT] = of.slot(
            INPUT, of.read_by(INPUT, "slides", any), of.offset(INPUT, network.input)
        )
        self.given = of.slots[INPUT]
        self.kernels: dict[str, tuple[Kernel, tuple[str, ...]]] = {}
        widest = max(1, int(np.prod(self.given.shape)))
        for operation in operations:
            kernel = operation.prepare(of, of.slots[operation.inputs[0]])
            of.slots[operation.name], self.kernels[operation.name] = (
                kernel.slot,
                (kernel, operation.inputs),
            )
            # The largest buffer of a sample that makes the tensor.
            shape = kernel.slot.shape
            widest = max(widest, int(np.prod(shape)), int(np.prod(shape[:-1])) * kernel.window)
        self.block = max(1, _BLOCK_ELEMENTS // widest)
        self._own = threading.local()

    def run(self, integers: Integers) -> Integers:
        """See `Executor.run`."""
        if len(integers) <= self.block:
            return self._program(len(integers)).run(integers)
        parts = [integers[i : i + self.block] for i in range(0, len(integers), self.block)]
        return np.concatenate([self._program(len(part)).run(part) for part in parts])

    def _program(self, batch: int) -> _Program:
        programs: dict[int, _Program] = self._own.__dict__.setdefault("programs", {})
        program = programs.pop(batch, None) or _Program(self, batch)
        programs[batch] = program  # the most recent is last
        if len(programs) > _MOST_PROGRAMS:
            del programs[next(iter(programs))]
        return program


class _Program:
    """The calls that run a batch of one size in buffers of its own."""

    def __init__(self, fast: _Fast, batch: int) -> None:
        self._given, room = fast.given, Room(batch)
        readers = _reserving(fast.kernels)
        # The buffers of what pads come first: operations before it write right into their inside.
        for padded in readers.values():
            room.padded[padded.name] = padded.buffer(batch)
        stored: dict[str, Array] = {}
        if INPUT in readers:
            stored[INPUT] = readers[INPUT].interior(room.padded[readers[INPUT].name])
        else:
            stored[INPUT] = np.empty((batch, *self._given.shape), np.float32)
        self._input = self._given.natural(stored[INPUT])
        self._steps: list[Step] = []
        for name, (kernel, inputs) in fast.kernels.items():
            reader = readers.get(name)
            room.destination = None if reader is None else reader.interior(room.padded[reader.name])
            stored[name], steps = kernel.bind([stored[each] for each in inputs], room)
            self._steps += steps
            self._output, self._result = kernel.slot, stored[name]

    def run(self, integers: Integers) -> Integers:
        """See `Executor.run`."""
        if self._given.offset:
            np.subtract(integers, np.float32(self._given.offset), out=self._input, casting="unsafe")
        else:
            np.copyto(self._input, integers, casting="unsafe")
        for step in self._steps:
            step()
        return self._output.integers(self._result)


def _reserving(kernels: Mapping[str, tuple[Kernel, tuple[str, ...]]]) -> dict[str, Padded]:
    """Return, for each tensor that is written into its reader's padded buffer, the edges of that
    reader.
    """
    found: dict[str, Padded] = {}
    for kernel, inputs in kernels.values():
        if kernel.padded is not None and kernel.padded.takes_results:
            found.setdefault(inputs[0], kernel.padded)
    return found
