"""Replaying counterexamples: a `violated` counts only if torch and ONNX Runtime both show it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from evalsuite.contract import Network, Property
from evalsuite.deployment import export_onnx, open_onnx, run_onnx
from evalsuite.verification.falsifier import margin


class Replay:
    """Runs a network's counterexamples in torch and in ONNX Runtime, both in float32, one input at a time."""

    def __init__(self, network: Network) -> None:
        self._module = network.module
        with TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            export_onnx(network.module, network.input_shape, path)
            self._session = open_onnx(path.read_bytes())

    @torch.no_grad()
    def confirms(self, property_: Property, point: torch.Tensor) -> bool:
        """Whether the float32 `point` belongs to the property and both runtimes give another class, a tie or NaN."""
        label = torch.tensor([property_.label])
        in_torch = margin(self._module(point[None]), label).item()
        in_onnx = margin(run_onnx(self._session, point[None]), label).item()
        return property_.contains(point) and not in_torch > 0 and not in_onnx > 0
