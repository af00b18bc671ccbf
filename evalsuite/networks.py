"""Saving and loading networks without pickle: safetensors plus a small JSON; pruned shapes are rebuilt on loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from evalsuite.activations import census
from evalsuite.activations.hardenable import Hardenable
from evalsuite.contract import Data, Network
from evalsuite.plugins import load as load_plugin
from evalsuite.workloads import Workload


def save_network(network: Network, folder: Path, workload: Workload) -> None:
    """Write the network to `folder` (created), and read it back to be sure.

    Raises:
        ValueError: it cannot be rebuilt from the workload's architecture by resizing layers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    description: dict[str, Any] = {"name": network.name}
    for role, module in (("module", network.module), ("unswapped", network.unswapped)):
        if module is not None:
            description[role] = _activation(module)
            _save_module(module, folder / f"{role}.safetensors")
    (folder / "network.json").write_text(json.dumps(description, indent=1, sort_keys=True))
    example = network.example(4)
    with torch.no_grad():
        for role, module in (("module", network.module), ("unswapped", network.unswapped)):
            restored = _load(folder, workload, role, description)
            if (restored is None) != (module is None) or (
                restored is not None and module is not None and not torch.equal(restored(example), module(example))
            ):
                raise ValueError(f"{network.name}: the saved {role} computes something else than the one in memory")


def load_network(folder: Path, workload: Workload, data: Data) -> Network:
    """The network that `save_network` wrote.

    Raises:
        ValueError: the files do not fit the workload's architecture.
    """
    description = json.loads((folder / "network.json").read_text())
    module, unswapped = (_load(folder, workload, role, description) for role in ("module", "unswapped"))
    if module is None:
        raise ValueError(f"{folder}: network.json names no activation")
    return Network(description["name"], module, data.input_shape, data.classes, unswapped, data.vocabulary)


def _activation(module: nn.Module) -> dict[str, Any]:
    """What of the activations the weights do not say: their name, where another stands, and the temperature of s.

    Others are what became of some when lambda was folded: they learn nothing, so their name says all of them.
    """
    found = census(module)
    learning = {each.traits.name for each in found if each.traits.parameters}
    names = learning or {each.traits.name for each in found}
    if len(names) != 1:
        raise ValueError(
            f"cannot save a network with activations {sorted(names) or 'none'}: one kind is needed, of those that learn"
        )
    (name,) = names
    others = {each.path: each.traits.name for each in found if each.traits.name != name}
    temperatures = {each.module.temperature for each in found if isinstance(each.module, Hardenable)}
    if len(temperatures) > 1:
        raise ValueError(f"cannot save a network with temperatures {sorted(temperatures)}: one is needed")
    return {
        "activation": name,
        **({"others": others} if others else {}),
        **({"temperature": temperatures.pop()} if temperatures else {}),
    }


def _save_module(module: nn.Module, path: Path) -> None:
    # Written by Python, so that a full disk is an OSError like any other.
    path.write_bytes(save({name: tensor.contiguous() for name, tensor in module.state_dict().items()}))


def _load(folder: Path, workload: Workload, role: str, description: dict[str, Any]) -> nn.Module | None:
    """The module in that role, None where the network has none."""
    if role not in description:
        return None
    path = folder / f"{role}.safetensors"
    module = workload.build(load_plugin("activations", description[role]["activation"]).target.make)
    for place, name in description[role].get("others", {}).items():
        module.set_submodule(place, load_plugin("activations", name).target.make(1))
    for layer in module.modules():
        if isinstance(layer, Hardenable):
            layer.temperature = description[role]["temperature"]
    state = load_file(path)
    _resize(module, state)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path}: does not fit the architecture of {type(workload).__name__}: {error}") from error
    return module.eval()


def _resize(module: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Give each layer the shapes of the saved tensors, and the attributes that repeat them; absent biases too."""
    for path, layer in module.named_modules():
        prefix = f"{path}." if path else ""
        for name, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            saved = state.get(prefix + name)
            if saved is None or saved.shape == tensor.shape:
                continue
            fresh = torch.empty_like(saved)
            setattr(layer, name, nn.Parameter(fresh) if isinstance(tensor, nn.Parameter) else fresh)
        for name in [name for name, parameter in layer._parameters.items() if parameter is None]:
            if prefix + name in state:  # a bias that the layer did not have when it was built: the re-fit adds it
                setattr(layer, name, nn.Parameter(torch.empty_like(state[prefix + name])))
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = layer.weight.shape
        elif isinstance(layer, (nn.Conv1d, nn.Conv2d)):
            layer.out_channels, layer.in_channels = layer.weight.shape[0], layer.weight.shape[1] * layer.groups
        elif isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.num_features = len(layer.running_mean) if layer.running_mean is not None else layer.num_features
