"""Hold what was read of an ONNX file against ONNX Runtime one tensor after the other.

Each operation is given the tensors that ONNX Runtime itself computed before it: so a difference is
that of one node, at the scale of its own numbers, however large others in the network are, and
rounding does not pile up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import torch

from opgraph import operations as op
from opgraph.call import Array, guarded
from opgraph.errors import Unsupported
from opgraph.graph import Graph, Node
from opgraph.onnx_network import open_onnx
from opgraph.sizes import at

Tensor = torch.Tensor
# What float32 may lose of a number, or of the terms of a sum; and how many times what a rounding of
# the operands by some units of the last place changes.
_SHARE, _UNITS, _TIMES, _FLOOR = 2e-5, 4, 8.0, 1e-6
_CONTRACTIONS = (op.Linear, op.Convolution, op.MatMul, op.Resample, op.AveragePool)
# Of all entries together: what rounds one of them rounds the others.
_TOGETHER = (op.Softmax, op.LayerNorm, op.RMSNorm, op.BatchNorm, op.CumulativeSum)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value in float64, in float32, and twice of operands that are moved by some units of
    float32's last place.

    `size` is what it is rounded relative to, entry by entry.
    """

    exact: Tensor
    single: Tensor
    moved: tuple[Tensor, Tensor]
    size: Tensor


class NodeByNode:
    """Compares the values of a graph that was read of a file with those of ONNX Runtime.

    Args:
        graph: as the file was read, before any pattern is recognised; of one input.
        model: with all its weights.
        where: the file, for errors.

    Raises:
        Unsupported: ONNX Runtime does not run the file.
    """

    def __init__(self, graph: Graph, model: onnx.ModelProto, where: str) -> None:
        self._graph, self._where = graph, where
        self._names = [node.tensor for node in graph.nodes if node.tensor]
        # All tensors of the file become outputs, so that one run gives them all.
        whole = onnx.ModelProto()
        whole.CopyFrom(model)
        present = {output.name for output in model.graph.output}
        whole.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in self._names if name not in present
        )
        try:
            self._session = open_onnx(whole.SerializeToString())
        except Exception as error:  # ONNX Runtime's errors share no base class
            raise Unsupported(f"{where}: ONNX Runtime does not run it: {error}") from None

    @torch.no_grad()
    def check(self, point: Tensor) -> None:
        """Raise Unsupported where a value at the point, the file's input as float32, is not ONNX
        Runtime's.
        """
        shaped = point.reshape(at(self._graph.nodes[0].shape, 1))
        # the output is an input, and ONNX Runtime takes no names for all of them
        if not self._names:
            return
        try:
            arrays = self._session.run(self._names, {self._graph.inputs[0]: shaped.numpy()})
        except Exception as error:
            raise Unsupported(f"{self._where}: ONNX Runtime does not run it: {error}") from None
        theirs = dict(zip(self._names, arrays, strict=True))
        # Each node is computed of what ONNX Runtime gave for the nodes before: differences do not
        # add up, and the node that is at fault is named. What nobody takes any more is dropped.
        last = {
            source: index for index, node in enumerate(self._graph.nodes) for source in node.sources
        }
        values: dict[int, _Value] = {}
        for index, node in enumerate(self._graph.nodes):
            with guarded(f"{self._where}: node {node.name!r}"):
                values[index] = self._value(node, values, shaped)
                if node.tensor in theirs:
                    operands = [values[source] for source in node.sources]
                    values[index] = self._compared(
                        node, operands, values[index], np.asarray(theirs[node.tensor])
                    )
            for source in node.sources:
                if last[source] == index:
                    values.pop(source, None)

    def _value(self, node: Node, values: dict[int, _Value], point: Tensor) -> _Value:
        if isinstance(node.operation, op.Input):
            return _shaken(point, node.dtype)
        if isinstance(node.operation, op.Constant):
            value, single = node.operation.value, node.operation.in_float32
            value = value.double() if value.is_floating_point() else value
            return _Value(
                value, single, (value, value), value.abs() if value.is_floating_point() else value
            )
        # Three ways to compute it: exactly (float64), in float32, and in float64 with operands
        # moved by a few of their last places. How far apart they are tells how far another order of
        # rounding may be.
        operands = [values[source] for source in node.sources]
        double = op.converted(node.operation, torch.float64)
        exact = double(*(operand.exact for operand in operands))
        single = op.converted(node.operation, torch.float32)(
            *(operand.single for operand in operands)
        )
        moved = [double(*(operand.moved[side] for operand in operands)) for side in (0, 1)]
        return _Value(exact, single, (moved[0], moved[1]), _size(double, operands, exact))

    def _compared(self, node: Node, operands: list[_Value], ours: _Value, array: Array) -> _Value:
        theirs = torch.from_numpy(np.array(array))
        if theirs.shape != ours.exact.shape:
            said = f"of shape {tuple(theirs.shape)}, and what was read {tuple(ours.exact.shape)}"
            raise Unsupported(f"ONNX Runtime gives {node.tensor!r} {said}")
        if isinstance(node.operation, op.Cast):
            _refuse_beyond(operands[0].exact, theirs)
        exact, other = ours.exact.double(), theirs.double()
        apart = (exact - other).abs()
        allowed = _allowed(ours, together=isinstance(node.operation, _TOGETHER))
        same = (apart <= allowed) | (exact == other) | (exact.isnan() & other.isnan())
        # What overflows in float32 is not compared; a Clip without ends makes the greatest number
        # of an infinite one.
        same |= ~ours.single.double().isfinite() & ~(other.abs() < torch.finfo(torch.float32).max)
        if not bool(same.all()):
            worst = float(apart[~same].nan_to_num(torch.inf, posinf=torch.inf).max())
            raise Unsupported(
                f"ONNX Runtime computes another {node.tensor!r} than what was read of it, by"
                f" {worst:.3g}"
            )
        return _shaken(theirs, node.dtype)


def _allowed(value: _Value, *, together: bool) -> Tensor:
    """How far ONNX Runtime's entries may be from the exact ones; `together` is whether all entries
    round alike.

    What overflows, or is no number, tells nothing of how the entries beside it are rounded.
    """
    exact = value.exact.double()
    sides = [side.double() for side in (value.single, *value.moved)]
    alike = [(side == exact) | (side.isnan() & exact.isnan()) for side in sides]
    spread = torch.stack(
        [
            (side - exact).abs().nan_to_num(torch.inf, posinf=torch.inf).masked_fill(same, 0.0)
            for side, same in zip(sides, alike, strict=True)
        ]
    ).amax(0)
    size = value.size.double().nan_to_num(0.0, posinf=0.0)
    allowed = _TIMES * spread + _SHARE * size
    if not allowed.numel():
        return allowed
    # Functions near 0 are computed of numbers near 1, as exp(x) - 1 is.
    allowed = allowed + _FLOOR * size.amax().clamp(max=1.0)
    return torch.maximum(allowed, allowed.nan_to_num(posinf=0.0).amax()) if together else allowed


def _refuse_beyond(real: Tensor, whole: Tensor) -> None:
    """Raise Unsupported where a cast takes a number that is none of the integers of its type:
    ONNX leaves it open.
    """
    if not real.is_floating_point() or whole.is_floating_point() or whole.dtype == torch.bool:
        return
    kind = torch.iinfo(whole.dtype)
    beyond = ~((real.trunc() >= kind.min) & (real.trunc() < kind.max + 1.0))
    if bool(beyond.any()):
        name = str(whole.dtype).removeprefix("torch.")
        raise Unsupported(
            f"casts {float(real[beyond][0]):g} to {name}, which has no such number: clip it before"
        )


def _shaken(values: Tensor, dtype: torch.dtype) -> _Value:
    """Make a `_Value` of an input, or of what ONNX Runtime computed: a real number may as well be
    a few units of its last place to either side.
    """
    if dtype != torch.float32:
        whole = values.to(dtype)
        return _Value(whole, whole, (whole, whole), whole)
    exact = values.double()
    # The same random signs for every tensor of a size, so that a comparison can be repeated.
    signs = (
        torch.rand(exact.shape, generator=torch.Generator().manual_seed(exact.numel()))
        .round()
        .mul(2)
        .sub(1)
    )
    step = (signs * _UNITS * torch.finfo(torch.float32).eps * exact).nan_to_num(
        0.0, posinf=0.0, neginf=0.0
    )
    return _Value(exact, values.float(), (exact + step, exact - step), exact.abs())


def _size(operation: op.Operation, operands: list[_Value], exact: Tensor) -> Tensor:
    """Return what a value is rounded relative to: its terms where it is a sum, else itself or what
    it is computed of.
    """
    # 1. Integers and products: relative to the result itself.
    magnitude = (
        exact.abs() if exact.is_floating_point() else torch.zeros(exact.shape, dtype=torch.float64)
    )
    if not exact.is_floating_point() or isinstance(operation, op.Product | op.Quotient | op.Power):
        return magnitude
    if operation.moves or isinstance(operation, op.Where):
        # Indices and conditions say where, and are no sizes.
        return operation(
            *(
                operand.size if operand.exact.is_floating_point() else operand.exact
                for operand in operands
            )
        ).abs()
    # 2. Sums: relative to the sum of the magnitudes of their terms.
    sizes = [operand.size.double() for operand in operands]
    if isinstance(operation, op.Sum):
        return replace(operation, signs=(1,) * len(sizes))(*sizes)
    if isinstance(operation, _CONTRACTIONS) or (
        isinstance(operation, op.Reduction) and operation.name in ("sum", "mean")
    ):
        weights: dict[str, Any] = {
            name: value.abs()
            for name, value in vars(operation).items()
            if isinstance(value, Tensor)
        }
        magnitudes: op.Operation = replace(operation, **weights)
        return magnitudes(*sizes)
    # 3. Other functions: relative to the greatest of the result and the operands; of what mixes
    # entries otherwise, to the greatest entry.
    if operation.elementwise:
        for size in sizes:
            magnitude = torch.maximum(magnitude, size.expand(magnitude.shape))
        return magnitude
    return magnitude.amax().expand(magnitude.shape) if magnitude.numel() else magnitude
