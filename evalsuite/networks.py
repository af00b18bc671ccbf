"""Saving and loading networks without pickle: safetensors plus a small JSON; pruned shapes are rebuilt on loading.

Unlike `save_module`, it knows how to build the fresh module: by the workload, with the activations that it notes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from evalsuite.activations import census
from evalsuite.activations.hardenable import Hardenable
from evalsuite.contract import Data, Network
from evalsuite.plugins import PluginError
from evalsuite.plugins import load as load_plugin
from evalsuite.resizing import Description, describe, fitted, read_tensors, tensor_bytes
from evalsuite.workloads import Workload

DEPLOYED = "deployed.onnx"


class _Noted(BaseModel):
    """A module of the network in its JSON: see `_activation`, and `Description` for `saved`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    activation: str
    others: dict[str, str] = {}
    temperature: float | None = Field(None, gt=0, allow_inf_nan=False)
    saved: dict[str, Any]


def save_network(network: Network, folder: Path, workload: Workload) -> None:
    """Write the network to `folder` (created), and read it back to be sure.

    Raises:
        ValueError: it cannot be rebuilt from the workload's architecture by resizing layers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    description: dict[str, Any] = {"name": network.name}
    for role, module in (("module", network.module), ("unswapped", network.unswapped)):
        if module is not None:
            data = tensor_bytes(module)
            # Written by Python, so that a full disk is an OSError like any other.
            (folder / f"{role}.safetensors").write_bytes(data)
            # The activations' classes are not compared: any that compute the same row are loaded as that row's own.
            saved = describe(module, hashlib.sha256(data).hexdigest(), owners_only=True)
            description[role] = {**_activation(module), "saved": saved.to_json()}
    (folder / "network.json").write_text(json.dumps(description, indent=1, sort_keys=True))
    if network.deployed is not None:
        (folder / DEPLOYED).write_bytes(network.deployed.read_bytes())
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
        ValueError: a file is missing or damaged, or they do not fit the workload's architecture; the text names it.
    """
    path = folder / "network.json"
    try:
        description = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({type(error).__name__}); train the network again") from error
    if not isinstance(description, dict) or not isinstance(description.get("name"), str):
        raise ValueError(f"{path}: is damaged: it gives no network's name; train the network again")
    module, unswapped = (_load(folder, workload, role, description) for role in ("module", "unswapped"))
    if module is None:
        raise ValueError(f"{folder}: network.json names no activation")
    deployed = folder / DEPLOYED if (folder / DEPLOYED).is_file() else None
    return Network(description["name"], module, data.input_shape, data.classes, unswapped, data.vocabulary, deployed)


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


def _load(folder: Path, workload: Workload, role: str, description: dict[str, Any]) -> nn.Module | None:
    """The module in that role, None where the network has none."""
    if role not in description:
        return None
    path = folder / f"{role}.safetensors"
    try:
        noted = _Noted.model_validate(description[role])
        saved = Description.from_json(noted.saved)
        fresh = _fresh(workload, noted)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (role, *first["loc"]))
        raise ValueError(f"{folder / 'network.json'}: {where}: {first['msg']}; train the network again") from error
    except (ValueError, PluginError) as error:
        raise ValueError(f"{folder / 'network.json'}: {role} {error}") from error
    tensors = read_tensors(path, saved)
    try:
        return fitted(fresh, tensors, saved)
    except ValueError as error:
        raise ValueError(f"{path}: does not fit the architecture of {type(workload).__name__}: {error}") from error


def _fresh(workload: Workload, noted: _Noted) -> nn.Module:
    """The workload's untrained module with the noted activations."""
    module = workload.build(load_plugin("activations", noted.activation).target.make)
    for place, name in noted.others.items():
        try:
            module.set_submodule(place, load_plugin("activations", name).target.make(1), strict=True)
        except AttributeError as error:
            raise ValueError(f"names an activation at {place}, where the architecture has no layer") from error
    for layer in module.modules():
        if isinstance(layer, Hardenable):
            if noted.temperature is None:
                raise ValueError("gives no temperature for its lambda")
            layer.temperature = noted.temperature
    return module
