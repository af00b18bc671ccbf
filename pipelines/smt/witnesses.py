"""Witnesses of a VNN-LIB property: points that ONNX Runtime runs, and whether it runs what was read of the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from evalsuite import open_onnx, run_onnx
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.search.chain import in_float32
from pipelines.smt.search.curved_network import CurvedNetwork

_COMPARED = 7
Witness = tuple[list[float], list[float]]


class Witnesses:
    """Runs points in ONNX Runtime on the CPU; remembers the last one that satisfies the specification exactly."""

    def __init__(self, content: bytes, specification: Any) -> None:
        self._session = open_onnx(content)
        self._shape = [each if isinstance(each, int) else 1 for each in self._session.get_inputs()[0].shape]
        self._specification = specification
        self.witness: Witness | None = None

    def differing(self, network: ExactNetwork | CurvedNetwork) -> str | None:
        """How ONNX Runtime computes something else than what was read; None where some points show no difference."""
        lower, upper = (end.numpy() for end in self._specification.cases[0].box.outer())
        shares = np.concatenate([np.zeros((1, len(lower))), np.random.default_rng(0).random((_COMPARED, len(lower)))])
        points = (lower + shares * (upper - lower)).astype(np.float32)
        read, errors = in_float32(network, points.astype(np.float64))
        for point, expected, error in zip(points, read, errors, strict=True):
            given = torch.from_numpy(point).reshape(self._shape)
            computed = run_onnx(self._session, given).double().numpy().ravel()
            # What overflows in float32 is not compared: no witness is accepted without ONNX Runtime.
            with np.errstate(invalid="ignore"):
                apart = np.abs(computed - expected) if computed.shape == expected.shape else np.inf
            if (apart > error).any():
                return f"ONNX Runtime computes {computed[:4]} at {point[:4]}, and its layers give {expected[:4]}"
        return None

    def satisfies(self, point: torch.Tensor) -> bool:
        """Whether the flat float32 `point` lies in a box and its float32 outputs satisfy the constraints."""
        inputs = [float(each) for each in point]
        outputs = [float(each) for each in run_onnx(self._session, point.reshape(self._shape)).flatten()]
        if not self._specification.satisfied(inputs, outputs):
            return False
        self.witness = inputs, outputs
        return True
