"""Running an integer-only network by its definition: `Executor`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intnet.grids import INPUT, Integers, quantize
from intnet.network import IntegerNetwork, Ranges, prove_ranges

_BLOCK_ELEMENTS = 2**20  # integers of the widest tensor of a block of samples: 8 MiB


class Executor:
    """Runs `network` operation by operation in int64, with the overflow checks of each definition.

    Results do not depend on how inputs are split into batches. ONNX Runtime gives the same integers
    of the file that `write_integer_onnx` writes, several times as fast.

    Args:
        network: what is run; float islands among its operations are run too.

    Raises:
        OverflowError: the accumulators are not proven to fit into 32 bits.
    """

    def __init__(self, network: IntegerNetwork) -> None:
        self.network = network
        self.ranges: Ranges = prove_ranges(network)
        widest = max(span.lower.size for span in self.ranges.spans.values())
        self._block = max(1, _BLOCK_ELEMENTS // max(1, widest))

    def run_reals(self, inputs: npt.NDArray[np.floating[Any]]) -> Integers:
        """The integer logits, int64 (batch, ...), of real inputs, floats (batch, *input_shape); of
        tokens, their integers.

        Raises:
            ValueError: the inputs are integers, and the network takes reals; or one is not finite,
                or the shape is wrong.
        """
        if not self.network.tokens and inputs.dtype.kind != "f":
            raise ValueError(
                f"run_reals() takes real numbers, got {inputs.dtype}: run_integers() takes integers"
                " of the input's grid"
            )
        return self.run_integers(self.quantize(inputs))

    def run_integers(self, integers: Integers) -> Integers:
        """The integer logits, int64 (batch, ...), of integers on the input's grid (batch,
        *input_shape).

        Raises:
            ValueError: the inputs are reals, an integer lies outside the input's grid, or the shape
                is wrong.
        """
        last = self.network.operations[-1].name
        blocks = [
            self.trace(integers[start : start + self._block])[last]
            for start in range(0, max(1, len(integers)), self._block)
        ]
        return np.concatenate(blocks)

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

    def trace(self, integers: Integers) -> dict[str, Integers]:
        """Every tensor by name, int64, `INPUT` included, of all samples at once. Errors as for
        `run_integers`.
        """
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
            raise ValueError(
                f"run_integers() takes integers, got {integers.dtype}: run_reals() takes real"
                " numbers"
            )
        info = np.iinfo(integers.dtype)
        if info.min >= grid.low and info.max <= grid.high:
            return
        low, high = int(integers.min()), int(integers.max())
        if low < grid.low or high > grid.high:
            raise ValueError(
                f"inputs reach from {low} to {high}, outside the input's grid [{grid.low},"
                f" {grid.high}]"
            )
