"""ONNX nodes under construction, and arithmetic on wide integers: multiplication by 2^-shift,
rounded, and clipping. Where 32 bits do, rescaling is written by `Words` instead.

A wide integer is a signed one of 64 bits, held as uint64 modulo 2^64. Sums and products are the
same either way, but ONNX shifts unsigned integers only, and on x86 ONNX Runtime 1.31 compares
signed ones wrongly: its Clip, Min, Max and Sign of int64 take 2^31 <= |x| < 2^32 for numbers of the
other sign (a fault of its Eigen, microsoft/onnxruntime#32475).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from intnet.grids import HIGH_BITS, Dyadic, Grid, Integers, Rounding, Shape
from intnet.onnx_words import FLOAT32_BITS, TooWide, Word, Words

_RAISE = 2**63
_NEWTON = 6  # 1, 1/4, 1/40, 3e-4, 5e-8, 1e-15: below 2^-31 after five


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph: its name there, what it is stored as, and the range of its
    integers.
    """

    name: str
    dtype: npt.DTypeLike
    low: int
    high: int


@dataclass
class Nodes:
    """The nodes and constants of a graph; both bear the name of the layer that they belong to.

    `shapes` are those of the network's tensors, `rounding` its own. `wide_layers` are those with
    nodes on 64-bit integers, `beyond_float32` those with a sum or a quotient that float32 may
    round.
    """

    layer: str = ""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    rounding: Rounding = Rounding.HALF_EVEN
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    wide_layers: set[str] = field(default_factory=set)
    beyond_float32: set[str] = field(default_factory=set)

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node named "layer/Operator_number" and return the name of what it makes, by
        default its own.
        """
        name = f"{self.layer}/{operator}_{len(self.nodes)}"
        result = output or name
        self.nodes.append(
            helper.make_node(operator, list(inputs), [result], name=name, **attributes)
        )
        return result

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike) -> str:
        """Append a constant and return its name.

        Raises:
            ValueError: the dtype does not hold the values.
        """
        exact = np.asarray(value)
        array = exact.astype(dtype)
        if not np.array_equal(array, exact):
            raise ValueError(f"{self.layer}: a constant does not fit into {np.dtype(dtype)}")
        name = f"{self.layer}/constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def cast(self, tensor: str, dtype: npt.DTypeLike) -> str:
        """A Cast. Between integers it keeps the low bits: the standard says so."""
        return self.add("Cast", tensor, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def sums_to(self, greatest: int) -> None:
        """Note that the layer's partial sums have absolute values up to `greatest`."""
        if greatest > 2**FLOAT32_BITS:
            self.beyond_float32.add(self.layer)

    def widened(self, tensor: str, zero_point: int) -> str:
        """tensor - zero_point as wide integers."""
        self.wide_layers.add(self.layer)
        wide = self.cast(self.cast(tensor, np.int64), np.uint64)
        return self.add("Sub", wide, self.wide(zero_point)) if zero_point else wide

    def wide(self, value: int | Integers) -> str:
        """A constant of wide integers; the value may be outside 64 bits, where it is taken
        modulo 2^64.
        """
        return self.constant(np.asarray(value).astype(object) % 2**64, np.uint64)

    def clipped(self, value: str, output: Grid) -> Tensor:
        """clip(wide value + zero point) of the grid, stored in its type."""
        dtype = output.storage
        raised = self.add("Add", value, self.wide(_RAISE + output.zero_point))
        limits = [self.wide(_RAISE + end) for end in (output.low, output.high)]
        lowered = self.add("Sub", self.add("Clip", raised, *limits), self.wide(_RAISE))
        return Tensor(self.narrowed(lowered, dtype), dtype, output.low, output.high)

    def narrowed(self, wide: str, dtype: npt.DTypeLike) -> str:
        """A wide integer as `dtype`, which holds it."""
        return self.cast(self.cast(wide, np.int64), dtype)

    def rescale(
        self, tensor: Tensor, zero_point: int, factor: Dyadic, places: Shape, output: Grid
    ) -> Tensor:
        """(tensor - zero_point) times the dyadic factors, brought into the shape `places`, on the
        grid: in 32 bits where nothing can leave them, else in 64.
        """

        def narrow(words: Words) -> Word:
            word = self._word(tensor, zero_point)
            return words.rescaled(word, factor, places, self.rounding, output.zero_point)

        narrowed = self._in_32_bits(narrow, output)
        return narrowed or self.times(self.widened(tensor.name, zero_point), factor, places, output)

    def weighted_sum(
        self,
        terms: Sequence[tuple[Tensor, int, int | Integers]],
        offset: int | Integers,
        shift: int,
        output: Grid,
    ) -> Tensor:
        """(sum of (x - zero_point) m + offset) 2^-shift of the terms (x, zero_point, m), on the
        grid, rounded once: in 32 bits where nothing can leave them, else in 64.
        """

        def narrow(words: Words) -> Word:
            pairs = [
                (self._word(tensor, zero), np.asarray(multiplier))
                for tensor, zero, multiplier in terms
            ]
            return words.weighted_sum(
                pairs, np.asarray(offset), shift, self.rounding, output.zero_point
            )

        if (narrowed := self._in_32_bits(narrow, output)) is not None:
            return narrowed
        total, *others = [
            self.add("Mul", self.widened(tensor.name, zero), self.wide(multiplier))
            for tensor, zero, multiplier in terms
        ]
        for other in others:
            total = self.add("Add", total, other)
        # Zeros that have places stay: the sum takes its shape from them.
        if np.ndim(offset) or offset:
            total = self.add("Add", total, self.wide(offset))
        return self.shifted(total, shift, output)

    def _word(self, tensor: Tensor, zero_point: int) -> Word:
        """tensor - zero_point as 32-bit integers."""
        low, high = tensor.low - zero_point, tensor.high - zero_point
        if low < np.iinfo(np.int32).min or high > np.iinfo(np.int32).max:
            raise TooWide(f"{tensor.name} - {zero_point} may reach from {low} to {high}")
        return Word(self.centred(tensor, zero_point), low, high)

    def _in_32_bits(self, write: Callable[[Words], Word], output: Grid) -> Tensor | None:
        """Return what `write` makes, on the grid; None, and nothing written, where it may leave 32
        bits.
        """
        words, nodes, constants = Words(self), len(self.nodes), len(self.constants)
        try:
            clipped = words.clipped(write(words), output.zero_point, output.low, output.high)
        except TooWide:
            del self.nodes[nodes:], self.constants[constants:]
            return None
        if not words.exact_in_float32:
            self.beyond_float32.add(self.layer)
        dtype = output.storage
        return Tensor(self.cast(clipped.name, dtype), dtype, output.low, output.high)

    def times(self, value: str, factor: Dyadic, places: Shape, output: Grid) -> Tensor:
        """The dyadic factors, brought into the shape `places`, times a wide value that 32 bits
        hold: |product| < 2^62.
        """
        product = self.add("Mul", value, self.wide(factor.multiplier.reshape(places)))
        scaled = self.rescaled(
            product, factor.shift.reshape(places), self.rounding, output.zero_point
        )
        return self.clipped(scaled, output)

    def shifted(self, total: str, shift: int, output: Grid) -> Tensor:
        """total x 2^-shift, rounded once, on the grid."""
        return self.clipped(
            self.rounded(total, np.array(shift), self.rounding, output.zero_point), output
        )

    def centred(self, tensor: Tensor, zero_point: int) -> str:
        """The int32 tensor less its zero point."""
        wide = self.cast(tensor.name, np.int32)
        return self.add("Sub", wide, self.constant(zero_point, np.int32)) if zero_point else wide

    def total(self, wide: str) -> str:
        """The sum along the last dimension, wide, which stays with size 1; ReduceSum takes
        signed integers only.
        """
        axes = self.constant([-1], np.int64)
        return self.cast(
            self.add("ReduceSum", self.cast(wide, np.int64), axes, keepdims=1), np.uint64
        )

    def unsigned(self, tensor: Tensor, zero_point: int) -> tuple[str, str]:
        """The tensor `tensor` as uint8, and its zero point as a constant: the names of both. Raises
        ValueError where the integers of `tensor` do not fit into 8 bits.
        """
        if tensor.dtype == np.uint8:
            return tensor.name, self.constant(zero_point, np.uint8)
        if tensor.high - tensor.low > np.iinfo(np.uint8).max:
            raise ValueError(
                f"{self.layer!r} takes 8-bit integers, but its input is in [{tensor.low},"
                f" {tensor.high}]"
            )
        moved = self.add(
            "Sub", self.cast(tensor.name, np.int32), self.constant(tensor.low, np.int32)
        )
        return self.cast(moved, np.uint8), self.constant(zero_point - tensor.low, np.uint8)

    def rescaled(self, value: str, shift: Integers, rounding: Rounding, zero_point: int = 0) -> str:
        """value x 2^-shift, wide, rounded as a product with a multiplier is: twice under
        `Rounding.GEMMLOWP`.
        """
        if rounding is not Rounding.GEMMLOWP:
            return self.rounded(value, shift, rounding, zero_point)
        first = np.minimum(shift, HIGH_BITS)
        value = self.rounded(value, first, Rounding.HALF_UP)
        return self.rounded(value, shift - first, rounding) if (shift > first).any() else value

    def rounded(self, value: str, shift: Integers, rounding: Rounding, zero_point: int = 0) -> str:
        """value x 2^-shift, wide, rounded once; half away from zero under `Rounding.GEMMLOWP`.

        A tie to even is one that makes the result + zero_point even. The result is without the zero
        point. 0 <= shift <= 62 of a shape that broadcasts to that of the value; |value| + 2^(shift
        - 1) < 2^63.
        """
        if rounding is not Rounding.GEMMLOWP:
            return self._shift(value, shift, zero_point if rounding is Rounding.HALF_EVEN else None)
        sign = self.sign(value)
        return self.add("Mul", self._shift(self.add("Mul", value, sign), shift, None), sign)

    def sign(self, value: str) -> str:
        """1 or, where the wide value is negative, -1, wide."""
        positive = self.add("BitShift", self._raised(value), self.wide(63), direction="RIGHT")
        return self.add("Sub", self.add("Add", positive, positive), self.wide(1))

    def floor(self, value: str, shift: Integers) -> str:
        """The greatest integer not above value x 2^-shift, wide."""
        return self._lowered(
            self.add("BitShift", self._raised(value), self.wide(shift), direction="RIGHT"), shift
        )

    def divided(self, value: str, divisor: str) -> str:
        """value / by, wide, rounded half away from zero; by > 0 and 2 |value| + by < 2^63."""
        sign = self.sign(value)
        twice = self.add("Mul", self.add("Mul", value, sign), self.wide(2))
        quotient = self.add(
            "Div", self.add("Add", twice, divisor), self.add("Mul", divisor, self.wide(2))
        )
        return self.add("Mul", quotient, sign)

    def square_root(self, value: str) -> str:
        """floor(sqrt(value)), wide, of 1 <= value < 2^62 with a last dimension of size 1.

        Newton's x <- (x + value div x) div 2 from the power of two 2^c with 2^(c - 1) <=
        sqrt(value) < 2^c: it never goes below the root's floor, and its relative error, at most 1,
        falls by e -> e^2 / 2, so that six steps end at the floor or at one more, which its square
        tells.
        """
        pairs = self.add("BitShift", value, self.wide(2 * np.arange(31)), direction="RIGHT")
        filled = self.cast(self.add("Cast", pairs, to=onnx.TensorProto.BOOL), np.int64)
        count = self.add("ReduceSum", filled, self.constant([-1], np.int64), keepdims=1)
        root = self.add("Gather", self.wide(2 ** np.arange(32)), count, axis=0)
        for _ in range(_NEWTON):
            summed = self.add("Add", root, self.add("Div", value, root))
            root = self.add("BitShift", summed, self.wide(1), direction="RIGHT")
        # below 0, so with its highest bit, where x is too great
        beyond = self.add("Sub", value, self.add("Mul", root, root))
        return self.add("Sub", root, self.add("BitShift", beyond, self.wide(63), direction="RIGHT"))

    def _raised(self, value: str) -> str:
        """value + 2^63: not negative, so that it can be shifted and compared.

        2^63 is a multiple of 2^(shift + 1), so neither the bits that are shifted out nor the parity
        of the quotient change.
        """
        return self.add("Add", value, self.wide(_RAISE))

    def _lowered(self, shifted: str, shift: Integers) -> str:
        return self.add("Sub", shifted, self.wide(_RAISE >> shift.astype(object)))

    def _shift(self, value: str, shift: Integers, zero_point: int | None) -> str:
        """Rounded half up by (u + half) >> shift on the raised value u, or half to even if there is
        a zero point.

        Half to even: u + half - 1, and 1 more where the quotient's floor + zero point is odd,
        carries exactly when it should.
        """
        raised, distance = self._raised(value), self.wide(shift)
        half = np.where(shift > 0, 2 ** np.maximum(shift - 1, 0), 0)
        if zero_point is not None:
            # Ties to even: add one less than half, and one more if the floor is odd.
            floor = self.add("BitShift", raised, distance, direction="RIGHT")
            floor = self.add("Add", floor, self.wide(1)) if zero_point % 2 else floor
            odd = self.add("BitwiseAnd", floor, self.wide((shift > 0).astype(np.int64)))
            raised = self.add("Add", raised, odd)
            half = np.maximum(half - 1, 0)
        summed = self.add("Add", raised, self.wide(half))
        return self._lowered(self.add("BitShift", summed, distance, direction="RIGHT"), shift)
