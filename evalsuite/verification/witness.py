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
    """Replays points in ONNX Runtime on the CPU, one at a time: of a network, or of several, whose outputs follow.

    Args:
        specification: what a witness must satisfy.
        networks: the model of each, and its graph.
    """

    def __init__(self, specification: Specification, *networks: tuple[onnx.ModelProto, Graph]) -> None:
        self._networks = [(open_onnx(model.SerializeToString()), graph) for model, graph in networks]
        self._specification = specification

    def outputs(self, point: torch.Tensor) -> list[float]:
        """What the networks give at a float32 point (inputs,)."""
        found: list[float] = []
        for session, graph in self._networks:
            (made,) = session.run(None, {graph.input_name: point.reshape(graph.input_shape).numpy()})
            found += map(float, np.asarray(made).flatten())
        return found

    def witness(self, point: torch.Tensor) -> Witness | None:
        """The witness at a float32 point (inputs,); None where the file's exact numbers do not confirm it."""
        witness = Witness(tuple(map(float, point.numpy())), tuple(self.outputs(point)))
        confirmed = self._specification.satisfied(list(witness.inputs), list(witness.outputs))
        return witness if confirmed else None
