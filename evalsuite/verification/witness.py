"""Witnesses: points that ONNX Runtime itself, in float32, shows to satisfy a specification without any tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import onnx
import torch

from evalsuite.onnx_network import open_onnx
from evalsuite.verification.graph import Graph
from evalsuite.verification.specification import Specification


@dataclass(frozen=True, slots=True)
class Witness:
    """float32 inputs, and the float32 outputs that ONNX Runtime gives for them, flat."""

    inputs: tuple[float, ...]
    outputs: tuple[float, ...]

    def text(self) -> str:
        """As VNN-COMP writes it, ((X_0 v) ... (Y_0 v)), in decimals that are exactly these numbers."""
        named = [("X", self.inputs), ("Y", self.outputs)]
        pairs = [f"({kind}_{i} {Decimal(value)})" for kind, values in named for i, value in enumerate(values)]
        return "(" + "\n ".join(pairs) + ")"


class Judge:
    """Replays points of a network in ONNX Runtime on the CPU, one at a time."""

    def __init__(self, model: onnx.ModelProto, graph: Graph, specification: Specification) -> None:
        self._session = open_onnx(model.SerializeToString())
        self._shape, self._name = graph.input_shape, graph.input_name
        self._specification = specification

    def witness(self, point: torch.Tensor) -> Witness | None:
        """The witness at a float32 point (inputs,); None where the file's exact numbers do not confirm it."""
        given = point.reshape(self._shape).numpy()
        (found,) = self._session.run(None, {self._name: given})
        witness = Witness(tuple(map(float, given.flatten())), tuple(map(float, np.asarray(found).flatten())))
        confirmed = self._specification.satisfied(list(witness.inputs), list(witness.outputs))
        return witness if confirmed else None
