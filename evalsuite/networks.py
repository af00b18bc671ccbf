"""Saving and loading networks without pickle: safetensors plus a small JSON; pruned shapes are
rebuilt on loading.

Unlike `save_module`, it knows how to build the fresh module: by the workload, with the activations
that it notes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from evalsuite.contract import Data, Network
from evalsuite.plugins import PluginError
from evalsuite.plugins import load as load_plugin
from evalsuite.resizing.description import Description, checksum, describe, printable
from evalsuite.resizing.files import LARGEST_JSON, parsed_json, read_tensors, tensor_bytes
from evalsuite.resizing.fitting import fitted
from evalsuite.workloads import Workload
from lambda_gelu.activations.census import built_with, settle_transformers
from lambda_gelu.activations.hardenable import Hardenable
from opgraph.onnx_network import OnnxNetwork, copy_onnx

# ONNX files in a network's folder, each <name>.onnx: two fields of Network, and what was one from
# the start.
FILES = ("deployed", "integer", "original")
_ROLES = ("module", "unswapped")


class _Noted(BaseModel):
    """A module of the network in its JSON: see `_activation`, and `Description` for `saved`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    activation: str
    others: dict[str, str] = {}
    temperature: float | None = Field(None, gt=0, allow_inf_nan=False)
    saved: dict[str, Any]


def network_of(
    name: str,
    module: nn.Module,
    data: Data,
    unswapped: nn.Module | None = None,
    **files: Path | None,
) -> Network:
    """The network of a workload's module; `files` are the ONNX files that stand for it."""
    return Network(
        name,
        module,
        data.input_shape,
        data.classes,
        unswapped,
        data.vocabulary,
        given=data.example,
        **files,
    )


def save_network(network: Network, folder: Path, workload: Workload) -> None:
    """Write the network to `folder` (created), in place of one saved there before, and read it back
    to be sure. Raises ValueError: it cannot be rebuilt from the workload's architecture by resizing
    layers.
    """
    # 1. Write the tensors and what they do not say.
    folder.mkdir(parents=True, exist_ok=True)
    description = _written(network, folder)
    # 2. Read back and compare outputs: an architecture that resizing cannot rebuild shows itself
    # now, not in the job that loads it.
    example = network.example(4)
    with torch.no_grad():
        for role, module in zip(_ROLES, (network.module, network.unswapped), strict=True):
            if isinstance(module, OnnxNetwork):
                continue
            restored = _load(folder, workload, role, description)
            if (restored is None) != (module is None) or (
                restored is not None
                and module is not None
                and not torch.equal(restored(example), module(example))
            ):
                if module is not None and not torch.equal(module(example), module(example)):
                    raise ValueError(
                        f"{network.name}: the {role} is random in evaluation mode, or changes its"
                        " own state"
                    )
                raise ValueError(
                    f"{network.name}: the saved {role} computes something else than the one in"
                    " memory"
                )


def check_savable(workload: Workload, data: Data, make: Callable[[int], nn.Module]) -> None:
    """Save and load the untrained network with the activations of `make`: none is trained that
    cannot be kept. Raises ValueError: see `save_network`.
    """
    module = workload.build(make).eval()
    settle_transformers(module)
    untrained = network_of("untrained", module, data)
    with TemporaryDirectory() as folder:
        try:
            save_network(untrained, Path(folder), workload)
        except (ValueError, RuntimeError) as error:
            name = type(workload).__name__
            raise ValueError(
                f"what {name}.build makes cannot be saved, so it is not trained: {error}"
            ) from error


def load_network(folder: Path, workload: Workload, data: Data) -> Network:
    """The network that `save_network` wrote. Raises ValueError: a file is missing, damaged or of
    another network, or they do not fit the workload's architecture; the text names it.
    """
    description = _read_description(folder / "network.json")
    module, unswapped = (_load(folder, workload, role, description) for role in _ROLES)
    files = {name: _file(folder / f"{name}.onnx", description.get(name)) for name in FILES}
    original = files.pop("original")
    if module is None and original is not None:
        module = OnnxNetwork(original, description["output"])
    if module is None:
        raise ValueError(f"{folder}: network.json names no activation")
    return network_of(description["name"], module, data, unswapped, **files)


def _written(network: Network, folder: Path) -> dict[str, Any]:
    """Write the network; what network.json says of it, but for its checksum."""
    description: dict[str, Any] = {"name": network.name}
    # 1. The modules; what an earlier network left in the folder is removed.
    for role, module in zip(_ROLES, (network.module, network.unswapped), strict=True):
        path = folder / f"{role}.safetensors"
        if module is None or isinstance(module, OnnxNetwork):
            path.unlink(missing_ok=True)
        else:
            data = tensor_bytes(module)
            # Written by Python, so that a full disk is an OSError like any other.
            path.write_bytes(data)
            # The activations' classes are not compared: any that compute the same row are loaded as
            # that row's own.
            saved = describe(module, hashlib.sha256(data).hexdigest(), owners_only=True)
            description[role] = {**_activation(module), "saved": saved.to_json()}
    # 2. The ONNX files: those that stages made, and the user's own where the network is a file.
    given = network.module if isinstance(network.module, OnnxNetwork) else None
    if given is not None:
        description["output"] = given.output
    original = None if given is None else given.path
    for name, source in zip(FILES, (network.deployed, network.integer, original), strict=True):
        path = folder / f"{name}.onnx"
        if source is None:
            path.unlink(missing_ok=True)
            continue
        if given is not None:
            copy_onnx(source, path)  # a user's file may keep its weights in others
        else:
            path.write_bytes(source.read_bytes())
        description[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    # 3. The description with its own checksum, last: it holds the digests of what was written.
    noted = {**description, "checksum": checksum(description)}
    (folder / "network.json").write_text(json.dumps(noted, indent=1, sort_keys=True))
    return description


def _read_description(path: Path) -> dict[str, Any]:
    """The content of network.json without its checksum. Raises ValueError where it is unreadable
    or was changed.
    """
    # 1. Read it, if it is small enough to be one.
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ValueError(
                f"{path}: has {path.stat().st_size} bytes, more than {LARGEST_JSON}: it is no such"
                " file"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({type(error).__name__}); train the network again"
        ) from error
    # 2. Hold it against its checksum, which is over all the rest.
    try:
        found = parsed_json(data)
        plain = (
            {key: each for key, each in found.items() if key != "checksum"}
            if isinstance(found, dict)
            else {}
        )
        expected = checksum(plain)
    except ValueError as error:
        raise ValueError(
            f"{path}: cannot be read ({type(error).__name__}); train the network again"
        ) from error
    if not isinstance(plain.get("name"), str):
        raise ValueError(f"{path}: is damaged: it gives no network's name; train the network again")
    if found.get("checksum") != expected:
        raise ValueError(
            f"{path}: was changed since it was written, or an older version wrote it: its checksum"
            " differs; train the network again"
        )
    return plain


def _file(path: Path, recorded: object) -> Path | None:
    if recorded is None:
        _check_absent(path)
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({type(error).__name__}), but the network was saved with it:"
            " save it again"
        ) from error
    if hashlib.sha256(data).hexdigest() != recorded:
        raise ValueError(
            f"{path}: was changed since it was saved: its SHA-256 is not the recorded one; save it"
            " again"
        )
    return path


def _check_absent(path: Path) -> None:
    if path.exists():
        raise ValueError(
            f"{path}: belongs to another network: network.json does not record it; save the network"
            " again"
        )


def _activation(module: nn.Module) -> dict[str, Any]:
    """Return what of the activations the weights do not say: their name, where another stands, and
    the temperature of s.

    Others are what became of some when lambda was folded: they learn nothing, so their name says
    all of them.
    """
    # 1. One activation names the architecture: that which learns, since others may be what it was
    # folded into.
    found = built_with(module)
    learning = {each.traits.name for each in found if each.traits.parameters}
    names = learning or {each.traits.name for each in found}
    if len(names) != 1:
        raise ValueError(
            f"cannot save a network with activations {sorted(names) or 'none'}: one kind is needed,"
            " of those that learn"
        )
    (name,) = names
    # 2. Where others stand, and the one temperature of all raw hardnesses.
    others = {each.path: each.traits.name for each in found if each.traits.name != name}
    temperatures = {
        each.module.temperature for each in found if isinstance(each.module, Hardenable)
    }
    if len(temperatures) > 1:
        raise ValueError(
            f"cannot save a network with temperatures {sorted(temperatures)}: one is needed"
        )
    return {
        "activation": name,
        **({"others": others} if others else {}),
        **({"temperature": temperatures.pop()} if temperatures else {}),
    }


def _load(
    folder: Path, workload: Workload, role: str, description: dict[str, Any]
) -> nn.Module | None:
    """The module in that role, None where the network has none."""
    # 1. A file without a description is no part of this network.
    path = folder / f"{role}.safetensors"
    if role not in description:
        _check_absent(path)
        return None
    # 2. Build the fresh module that the description asks for.
    try:
        noted = _Noted.model_validate(description[role])
        saved = Description.from_json(noted.saved)
        fresh = _fresh(workload, noted)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(printable(str(part)) for part in (role, *first["loc"]))
        raise ValueError(
            f"{folder / 'network.json'}: {where}: {first['msg']}; train the network again"
        ) from error
    except (ValueError, PluginError) as error:
        raise ValueError(f"{folder / 'network.json'}: {role} {error}") from error
    # 3. Give it the tensors, whose shapes may be smaller by pruning.
    tensors = read_tensors(path, saved)
    try:
        return fitted(fresh, tensors, saved)
    except ValueError as error:
        raise ValueError(
            f"{path}: does not fit the architecture of {type(workload).__name__}: {error}"
        ) from error


def _fresh(workload: Workload, noted: _Noted) -> nn.Module:
    # The architecture with its one activation, then those that stand elsewhere.
    module = workload.build(load_plugin("activations", noted.activation).target.make)
    for place, name in noted.others.items():
        try:
            module.set_submodule(
                place, load_plugin("activations", name).target.make(1), strict=True
            )
        except AttributeError as error:
            raise ValueError(
                f"names an activation at {printable(place)}, where the architecture has no layer"
            ) from error
    for layer in module.modules():
        if isinstance(layer, Hardenable):
            if noted.temperature is None:
                raise ValueError("gives no temperature for its lambda")
            layer.temperature = noted.temperature
    settle_transformers(module)
    return module
