"""Whether a file that was read agrees with ONNX Runtime: node by node, and as a whole where
rounding lets it be told.

A step, as of a cast to integers or of a comparison, makes a whole number of a rounding before it,
and another one on another processor. So outputs may differ where ONNX Runtime took another side of
a step than float64 does, where there is no real number, or by no more than those of float64 runs in
which each value is off by some units of float32's last place (Monte Carlo arithmetic: D. Parker,
1997). Each node by itself is compared on the numbers that ONNX Runtime gave it, which leaves
nothing out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from opgraph import operations as op
from opgraph.graph import Graph

POINTS = 3
RUNS, UNITS, TIMES = 16, 4, 4.0
STEPS = {"Ceil", "Floor", "Mod", "QuantizeLinear", "Round", "Sign"}
"""Operators of real results that have steps; of integers and truth values every result is behind
one.
"""
QUIET = onnxruntime.SessionOptions()
QUIET.log_severity_level, QUIET.intra_op_num_threads = 4, 1
Array = np.ndarray[Any, Any]


def points_of(model: onnx.ModelProto, seed: int) -> Array:
    """Inputs, half of them halves and whole numbers, where functions have their steps."""
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    random = np.random.default_rng(seed)
    values = random.standard_normal((POINTS, *shape))
    return (
        2 * np.where(random.random(values.shape) < 0.4, np.round(2 * values) / 2, values)
    ).astype(np.float32)


def run(model: onnx.ModelProto, point: Array) -> dict[str, Array]:
    """The outputs that ONNX Runtime gives, by name."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), QUIET, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in model.graph.output]
    return dict(zip(names, map(np.asarray, session.run(names, {"x": point})), strict=True))


def same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and np.allclose(
        one, other, rtol=1e-4, atol=1e-5, equal_nan=True
    )


class Difference:
    """Of outputs at a point that are not the same: whether real arithmetic and float32 may differ
    so.

    Args:
        model: the file.
        graph: what was read of it.
        point: the input, float32.
        theirs: the output of ONNX Runtime.
    """

    def __init__(self, model: onnx.ModelProto, graph: Graph, point: Array, theirs: Array) -> None:
        self._model, self._graph, self._point, self._theirs = (
            model,
            graph,
            torch.from_numpy(point),
            theirs,
        )
        self._values = dict(graph.values(self._point))

    @property
    def is_of_rounding(self) -> bool:
        return self._is_of_no_number() or self._is_beyond_a_step() or self._is_within_the_spread()

    def _is_of_no_number(self) -> bool:
        """Whether a value overflows, is a quotient by 0, or a root of a negative number."""
        single = dict(self._graph.values(self._point, torch.float32))
        return not all(
            bool(value.isfinite().all())
            for values in (self._values, single)
            for value in values.values()
        )

    def _is_beyond_a_step(self) -> bool:
        """Whether a value behind a step is another one."""
        behind = {
            name for node in self._model.graph.node if node.op_type in STEPS for name in node.output
        }
        tensors = {
            node.tensor: index for index, node in enumerate(self._graph.nodes) if node.tensor
        }
        whole = onnx.ModelProto()
        whole.CopyFrom(self._model)
        del whole.graph.output[:]
        whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
        return any(
            not same(self._values[tensors[name]].double().numpy(), theirs.astype(np.float64))
            for name, theirs in run(whole, self._point.numpy()).items()
            if name in behind or theirs.dtype.kind in "iub"
        )

    def _is_within_the_spread(self) -> bool:
        ours = self._values[self._graph.output].numpy()
        # Where a run has no number, as the logarithm of what is rounded below 0, rounding reaches
        # any.
        spread = np.nan_to_num(
            np.abs([self._shaken(seed) - ours for seed in range(RUNS)]), nan=np.inf
        ).max(0)
        apart = np.abs(self._theirs - ours)
        return bool(
            ((apart <= TIMES * spread) | np.isclose(self._theirs, ours, rtol=1e-4, atol=1e-5)).all()
        )

    def _shaken(self, seed: int) -> Array:
        """The output in float64, where each value is off by up to so many units of float32's
        last place.
        """
        random = torch.Generator().manual_seed(seed)
        values: list[torch.Tensor] = []
        for node in self._graph.nodes:
            operands = [values[source] for source in node.sources]
            match node.operation:
                case op.Input():
                    value = self._point.double()
                case op.Constant(value=constant):
                    value = constant.double() if constant.is_floating_point() else constant
                case operation:
                    value = op.converted(operation, torch.float64)(*operands)
            if value.is_floating_point():
                # An activation may be computed of terms that cancel, as GELU of a negative number
                # is: x (1 + erf(x)).
                size = value.abs() + (
                    operands[0].abs() if isinstance(node.operation, op.Pointwise) else 0.0
                )
                noise = 2 * torch.rand(value.shape, generator=random, dtype=torch.float64) - 1
                value = value + UNITS * torch.finfo(torch.float32).eps * noise * size
            values.append(value)
        return values[self._graph.output].numpy()
