"""Replay: a counterexample counts where ONNX Runtime itself, in float32, shows it; see `Witnesses` and `Replay`."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from evalsuite.contract import Network, Property
from evalsuite.deployment import export_onnx, run_onnx
from evalsuite.onnx_network import open_onnx
from evalsuite.verification.falsifier import violated
from evalsuite.verification.specification import Specification


@dataclass(frozen=True, slots=True)
class Witness:
    """Inputs, float32 or of an integer network, and the outputs that ONNX Runtime gives for them, flat.

    Example: docs/reference.md#verify-a-property
    """

    inputs: tuple[float, ...]
    outputs: tuple[float, ...]

    def text(self) -> str:
        """As VNN-COMP writes it, ((X_0 v) ... (Y_0 v)), in decimals that are exactly these numbers."""
        named = [("X", self.inputs), ("Y", self.outputs)]
        pairs = [f"({kind}_{i} {Decimal(value)})" for kind, values in named for i, value in enumerate(values)]
        return "(" + "\n ".join(pairs) + ")"


class Witnesses:
    """Replays points in ONNX Runtime on the CPU, one at a time: of a network, or of several, whose outputs follow.

    Args:
        specification: what a witness must satisfy.
        files: the contents of each network's file.

    Example: docs/reference.md#verify-a-property
    """

    def __init__(self, specification: Specification, *files: bytes) -> None:
        self._sessions = [open_onnx(each) for each in files]
        self._specification = specification

    def outputs(self, point: torch.Tensor) -> list[float]:
        """What the networks give at a point (inputs,) of float32, or of a network's own integers."""
        found: list[float] = []
        for session in self._sessions:
            (given,) = session.get_inputs()
            shape = [each if isinstance(each, int) else 1 for each in given.shape]
            (made,) = session.run(None, {given.name: point.reshape(shape).numpy()})
            found += np.asarray(made).flatten().tolist()
        return found

    def witness(self, point: torch.Tensor) -> Witness | None:
        """The witness at a point (inputs,); None where the file's exact numbers do not confirm it."""
        witness = Witness(tuple(point.tolist()), tuple(self.outputs(point)))
        confirmed = self._specification.satisfied(list(witness.inputs), list(witness.outputs))
        return witness if confirmed else None


class Replay:
    """Runs a network's counterexamples in torch and in ONNX Runtime, both in float32, one input at a time.

    Example: docs/reference.md#verify-a-property
    """

    def __init__(self, network: Network) -> None:
        self._module = network.module
        with TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            export_onnx(network.module, network.input_shape, path)
            self._session = open_onnx(path.read_bytes())

    @torch.no_grad()
    def confirms(self, property_: Property, point: torch.Tensor) -> bool:
        """Whether the float32 `point` belongs to the property, and both runtimes violate it there; NaN does."""
        made = (self._module(point[None]), run_onnx(self._session, point[None]))
        return property_.contains(point) and all(bool(violated(each, [property_])) for each in made)
