"""An ONNX file, or its module, stands for a network where it is deployed."""

from __future__ import annotations

import copy
import filecmp
import math
from pathlib import Path

from torch import nn

from evalsuite.contract import Network
from opgraph.onnx_model import parsed
from opgraph.onnx_network import OnnxNetwork


def is_file(network: Network) -> bool:
    """Whether the network was brought as an ONNX file, and no step has made another network of it
    since.
    """
    module, file = network.module, network.deployed
    return isinstance(module, OnnxNetwork) and (
        file is None or filecmp.cmp(file, module.path, shallow=False)
    )


def running(network: Network) -> nn.Module:
    """A module that gives the network's outputs: its ONNX file in ONNX Runtime, where one stands
    for it, else a copy of its module.
    """
    if network.deployed is None or is_file(network):
        return copy.deepcopy(network.module).eval()
    return OnnxNetwork(network.deployed, output_of(network))


def output_of(network: Network) -> str | None:
    """The name of the output that the network gives, where it is an ONNX file; None for a torch
    module.
    """
    return network.module.output if isinstance(network.module, OnnxNetwork) else None


def parameters_of(network: Network) -> int:
    """How many numbers the network has learnt: its parameters, or what its file stores."""
    path = network.deployed or getattr(network.module, "path", None)
    if path is None:
        return sum(parameter.numel() for parameter in network.module.parameters())
    model = parsed(Path(path))
    return sum(math.prod(each.dims) for each in model.graph.initializer)
