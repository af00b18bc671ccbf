"""Provide what is measured: networks of the suite's workloads or of a few lines, boxes around
samples, and ONNX sessions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import onnxruntime
import torch
from torch import nn

from evalsuite import Data, Network, Property, Workload, export_onnx, open_onnx
from evalsuite.plugins import load
from evalsuite.run.making import make_network
from evalsuite.variants import standing

Figure = tuple[str, float]  # what it is, and the number


def fresh(workload: Workload, activation: str) -> nn.Module:
    """The workload's network, with the weights that seed 0 draws."""
    torch.manual_seed(0)
    return workload.build(load("activations", activation).target.make).eval()


def trained(name: str, variant: str, **options: object) -> tuple[Network, Data]:
    """The network of a workload with these options, trained with seed 0, and the workload's
    data.
    """
    workload: Workload = load("workloads", name).target(**options)
    data = workload.data()
    return make_network(workload, data, standing(variant), 0, name=name)[0], data


def fitted(
    module: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    rate: float,
    epochs: int,
    batch: int,
) -> nn.Module:
    """Train a classifier by Adam, and leave it in eval mode."""
    optimizer = torch.optim.Adam(module.parameters(), rate)
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs)).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs[chosen]), targets[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return module.eval()


def balls(data: Data, eps: float, samples: Iterable[int]) -> list[Property]:
    """Robustness of these test samples, against the classes that they are of."""
    test = data.test
    return [
        Property.robustness(
            test.inputs[i], sample=i, label=int(test.targets[i]), eps=eps, domain=data.domain
        )
        for i in samples
    ]


def box(properties: list[Property]) -> tuple[torch.Tensor, torch.Tensor]:
    """Their lower and their upper ends, each (properties, *input_shape)."""
    lower, upper = (
        torch.stack([getattr(prop, end) for prop in properties]) for end in ("lower", "upper")
    )
    return lower, upper


def session(module: nn.Module, shape: tuple[int, ...]) -> onnxruntime.InferenceSession:
    """The module in ONNX Runtime."""
    with tempfile.TemporaryDirectory() as folder:
        export_onnx(module, shape, Path(folder) / "model.onnx")
        return open_onnx((Path(folder) / "model.onnx").read_bytes())
