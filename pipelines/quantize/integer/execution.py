"""Running an integer-only network in numpy: `Executor`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.quantize.integer.fast import Run, as_defined, fast, kind_of
from pipelines.quantize.integer.islands import quantize
from pipelines.quantize.integer.network import INPUT, IntegerNetwork, Integers
from pipelines.quantize.integer.oracle import apply
from pipelines.quantize.integer.ranges import Ranges, prove_ranges

_BLOCK_ELEMENTS = 2**17  # of the widest tensor of the samples that run at a time


class Executor:
    """Runs `network`; `checked` runs every operation on int64 with its overflow checks, else those of `fast` run.

    Both give the same integers, whatever the number of threads and however the inputs are split into batches. Safe to
    call from several threads at once.

    Raises:
        OverflowError: the accumulators are not proven to fit into 32 bits.
    """

    def __init__(self, network: IntegerNetwork, *, checked: bool = False) -> None:
        self.network = network
        self.checked = checked
        self.ranges: Ranges = prove_ranges(network)
        self._block = max(1, _BLOCK_ELEMENTS // max(span.lower.size for span in self.ranges.spans.values()))
        self._runs: list[Run] = [] if checked else [
            fast(each, self.ranges, network.rounding) or as_defined(each, network.rounding)
            for each in network.operations
        ]  # fmt: skip
        self._last_reader = {name: each.name for each in network.operations for name in each.inputs}

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
        if self.checked:
            return self.trace(integers)[self.network.operations[-1].name]
        starts = range(0, len(integers), self._block)
        return np.concatenate([self._run_fast(integers[start : start + self._block]) for start in starts])

    def _run_fast(self, integers: Integers) -> Integers:
        tensors = {INPUT: integers.astype(kind_of(self.network.input.low, self.network.input.high))}
        for operation, run in zip(self.network.operations, self._runs, strict=True):
            tensors[operation.name] = run(*(tensors[name] for name in operation.inputs))
            for name in {each for each in operation.inputs if self._last_reader[each] == operation.name}:
                del tensors[name]  # its memory, still in the processor's cache, is for what comes next
        return tensors[self.network.operations[-1].name].astype(np.int64)

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
