"""Replaying counterexamples: a `violated` counts only if torch and ONNX Runtime both show it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from evalsuite.contract import Network, Property
from evalsuite.deployment import export_onnx, run_onnx
from evalsuite.onnx_network import open_onnx
from evalsuite.verification.falsifier import violated


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
