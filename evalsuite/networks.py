"""Saving and loading networks without pickle: safetensors plus a small JSON; pruned shapes are rebuilt on loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from evalsuite.activations import census
from evalsuite.contract import Network
from evalsuite.plugins import load as load_plugin
from evalsuite.workloads import Workload


def save_network(network: Network, folder: Path, workload: Workload) -> None:
    """Write the network to `folder` (created), and read it back to be sure.

    Raises:
        ValueError: it cannot be rebuilt from the workload's architecture by resizing layers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    description: dict[str, Any] = {"name": network.name, "activation": _activation(network.module)}
    _save_module(network.module, folder / "module.safetensors")
    if network.unswapped is not None:
        description["unswapped_activation"] = _activation(network.unswapped)
        _save_module(network.unswapped, folder / "unswapped.safetensors")
    (folder / "network.json").write_text(json.dumps(description, indent=1, sort_keys=True))
    example = torch.rand(4, *network.input_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        restored = load_network(folder, workload, network.input_shape, network.classes)
        if not torch.equal(restored.module(example), network.module(example)):
            raise ValueError(f"{network.name}: the saved network computes something else than the one in memory")


def load_network(folder: Path, workload: Workload, input_shape: tuple[int, ...], classes: int) -> Network:
    """The network that `save_network` wrote.

    Raises:
        ValueError: the files do not fit the workload's architecture.
    """
    description = json.loads((folder / "network.json").read_text())
    module = _load_module(folder / "module.safetensors", workload, description["activation"])
    unswapped = None
    if "unswapped_activation" in description:
        unswapped = _load_module(folder / "unswapped.safetensors", workload, description["unswapped_activation"])
    return Network(description["name"], module, input_shape, classes, unswapped)


def _activation(module: nn.Module) -> str:
    names = {found.traits.name for found in census(module)}
    if len(names) != 1:
        raise ValueError(f"cannot save a network with activations {sorted(names) or 'none'}: one kind is needed")
    return names.pop()


def _save_module(module: nn.Module, path: Path) -> None:
    # Written by Python, so that a full disk is an OSError like any other.
    path.write_bytes(save({name: tensor.contiguous() for name, tensor in module.state_dict().items()}))


def _load_module(path: Path, workload: Workload, activation: str) -> nn.Module:
    module = workload.build(load_plugin("activations", activation).target.make)
    state = load_file(path)
    _resize(module, state)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path}: does not fit the architecture of {type(workload).__name__}: {error}") from error
    return module.eval()


def _resize(module: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Give each layer the shapes of the saved tensors, and the attributes that repeat them."""
    for path, layer in module.named_modules():
        prefix = f"{path}." if path else ""
        for name, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            saved = state.get(prefix + name)
            if saved is None or saved.shape == tensor.shape:
                continue
            fresh = torch.empty_like(saved)
            setattr(layer, name, nn.Parameter(fresh) if isinstance(tensor, nn.Parameter) else fresh)
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = layer.weight.shape
        elif isinstance(layer, (nn.Conv1d, nn.Conv2d)):
            layer.out_channels, layer.in_channels = layer.weight.shape[0], layer.weight.shape[1] * layer.groups
        elif isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.num_features = len(layer.running_mean) if layer.running_mean is not None else layer.num_features
