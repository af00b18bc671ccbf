"""Running an integer-only network in numpy: `Executor`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.quantize.integer.islands import quantize
from pipelines.quantize.integer.kernels import Array, Room, Slot, Step
from pipelines.quantize.integer.network import INPUT, IntegerNetwork, Integers
from pipelines.quantize.integer.oracle import apply
from pipelines.quantize.integer.preparing import Preparation, Prepared
from pipelines.quantize.integer.ranges import Ranges, prove_ranges
from pipelines.quantize.integer.sliding import Correlation, Depthwise, Pool

_BLOCK_ELEMENTS = 2**18
_MOST_PROGRAMS = 4


class Executor:
    """Runs `network`; `checked` runs every operation on int64 with its overflow checks, else the fast kernels run.

    Both give the same integers, whatever the number of threads and however the inputs are split into batches. Safe to
    call from several threads at once: each has work buffers of its own.

    Raises:
        OverflowError: the accumulators are not proven to fit into 32 bits.
    """

    def __init__(self, network: IntegerNetwork, *, checked: bool = False) -> None:
        self.network = network
        self.checked = checked
        self.ranges: Ranges = prove_ranges(network)
        self._fast: Fast | None = None if checked else Fast(network, self.ranges)

    def __call__(self, inputs: npt.NDArray[Any]) -> Integers:
        """The integer logits, int64 (batch, ...), of real inputs, float32 (batch, *input_shape)."""
        return self.run(self.quantize(inputs))

    def quantize(self, inputs: npt.NDArray[Any]) -> Integers:
        """The input's integers, in the type that the ONNX file takes; tokens are integers already.

        Raises:
            ValueError: an input is not finite, a token is none of the network's, or the shape is not
                (batch, *input_shape).
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
        for each in self.network.operations:
            tensors[each.name] = apply(each, [tensors[name] for name in each.inputs], self.network.rounding)
        return tensors

    def _check_shape(self, inputs: npt.NDArray[Any]) -> None:
        if inputs.ndim == 0 or inputs.shape[1:] != self.network.input_shape or not len(inputs):
            raise ValueError(f"inputs must be (batch, {self.network.input_shape}), at least one; got {inputs.shape}")

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
            raise ValueError(f"inputs reach from {low} to {high}, outside the input's grid [{grid.low}, {grid.high}]")


class Fast:
    """Prepared kernels, and per thread the programs of the batch sizes met last."""

    def __init__(self, network: IntegerNetwork, ranges: Ranges) -> None:
        self.prepared: Prepared = Preparation(network, ranges).prepare()
        self.last = self.prepared.kernels[-1][0].name
        widest = max(self._elements(name) for name in self.prepared.slots)
        self.block = max(1, _BLOCK_ELEMENTS // widest)
        self._own = threading.local()

    def _elements(self, name: str) -> int:
        """Elements per sample of the largest buffer that makes the tensor."""
        slot = self.prepared.slots[name]
        kernel = next((k for k, _ in self.prepared.kernels if k.name == name), None)
        window = kernel.weight.shape[1] if isinstance(kernel, Correlation) else 0
        places = int(np.prod(slot.shape[:-1]))
        return max(int(np.prod(slot.shape)), places * window, 1)

    def run(self, integers: Integers) -> Integers:
        """See `Executor.run`."""
        if len(integers) <= self.block:
            return self._program(len(integers)).run(integers)
        parts = [integers[i : i + self.block] for i in range(0, len(integers), self.block)]
        return np.concatenate([self._program(len(part)).run(part) for part in parts])

    def _program(self, batch: int) -> Program:
        programs: dict[int, Program] = self._own.__dict__.setdefault("programs", {})
        program = programs.pop(batch, None) or Program(self.prepared, batch, self.last)
        programs[batch] = program  # the most recent is last
        if len(programs) > _MOST_PROGRAMS:
            del programs[next(iter(programs))]
        return program


class Program:
    """The calls that run a batch of one size in buffers of its own."""

    def __init__(self, prepared: Prepared, batch: int, last: str) -> None:
        self.output: Slot = prepared.slots[last]
        self.given: Slot = prepared.slots[INPUT]
        readers = self._reserving(prepared)
        room = Room(batch)
        for writer in readers.values():
            room.padded[writer.name] = writer.padded.buffer(batch)
        stored: dict[str, Array] = {}
        if INPUT in readers:
            stored[INPUT] = readers[INPUT].padded.interior(room.padded[readers[INPUT].name])
        else:
            stored[INPUT] = np.empty((batch, *self.given.shape), np.float32)
        self.input = self.given.natural(stored[INPUT])
        self.steps: list[Step] = []
        for kernel, inputs in prepared.kernels:
            reader = readers.get(kernel.name)
            room.destination = None if reader is None else reader.padded.interior(room.padded[reader.name])
            stored[kernel.name], steps = kernel.bind([stored[name] for name in inputs], room)
            self.steps += steps
        self.result = stored[last]

    @staticmethod
    def _reserving(prepared: Prepared) -> dict[str, Correlation | Depthwise | Pool]:
        """By tensor, the reader into whose padded buffer it is written."""
        found: dict[str, Correlation | Depthwise | Pool] = {}
        for kernel, inputs in prepared.kernels:
            if isinstance(kernel, Correlation | Depthwise | Pool) and kernel.padded.takes_results:
                found.setdefault(inputs[0], kernel)
        return found

    def run(self, integers: Integers) -> Integers:
        """See `Executor.run`."""
        if self.given.offset:
            np.subtract(integers, np.float32(self.given.offset), out=self.input, casting="unsafe")
        else:
            np.copyto(self.input, integers, casting="unsafe")
        for step in self.steps:
            step()
        return self.output.integers(self.result)
