"""QuantizeLinear and DequantizeLinear: whole numbers, kept as the real numbers that they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from evalsuite.graph.call import Value
from evalsuite.graph.onnx_call import Known, OnnxCall
from evalsuite.graph.operations import Clamp, Function, Product, Quotient

_UINT8 = Known(*2 * (np.zeros((), dtype=np.uint8),))
_OF_UINT8 = 2


def _along(c: OnnxCall, given: torch.Tensor, dimensions: int) -> torch.Tensor:
    """One number, or one for each place of the axis, to be broadcast."""
    if given.numel() == 1:
        return given.reshape(())
    axis = int(c.attributes.get("axis", 1)) % max(dimensions, 1)
    return given.reshape([-1 if place == axis else 1 for place in range(dimensions)])


def _zero(c: OnnxCall, given: Any) -> Known:
    c.expect(block_size=0)
    if not isinstance(given, Known) or not given.fixed or given.first.dtype.kind not in "iu":
        c.refuse("its zero point is no constant integer")
    return given


def _quantize(c: OnnxCall, x: Any, scale: Any, zero: Any = None) -> Value:
    if zero is None:
        c.expect(output_dtype=_OF_UINT8)
    held, source = _zero(c, _UINT8 if zero is None else zero).first, c.value(x)
    dimensions, kind = len(c.node(source).shape), np.iinfo(held.dtype)
    steps = c.add(Quotient(), source, _along(c, c.known(scale, "scale"), dimensions))
    made, shift = c.add(Function("round"), steps), torch.from_numpy(held.astype(np.float32))
    made = c.summed(made, _along(c, shift, dimensions)) if bool(shift.any()) else made
    return c.add(Clamp(float(kind.min), float(kind.max)), made)


def _dequantize(c: OnnxCall, x: Any, scale: Any, zero: Any = None) -> Value:
    """Of constants the float32 numbers that the file computes with."""
    shift = torch.zeros(()) if zero is None else torch.from_numpy(_zero(c, zero).first.astype(np.float32))
    factor = c.known(scale, "scale")
    if isinstance(x, Known):
        held = torch.from_numpy(_zero(c, x).first.astype(np.float64))
        shift, factor = (_along(c, each, held.ndim).double() for each in (shift, factor))
        return c.value(((held - shift) * factor).float())
    source = c.value(x)
    shift, factor = (_along(c, each, len(c.node(source).shape)) for each in (shift, factor))
    moved = c.summed(source, shift, -1) if bool(shift.any()) else source
    return c.add(Product(), moved, factor)


QUANTIZED = {"DequantizeLinear": _dequantize, "QuantizeLinear": _quantize}
