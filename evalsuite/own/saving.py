"""A user's treated model in the user's own layout: a Hugging Face folder, or weights and what
was replaced in them.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from evalsuite.own.activations import OwnActivations, Place, outputs_of
from evalsuite.own.adapter import Adapted, own_network
from evalsuite.own.checkpoints import read_checkpoint
from evalsuite.own.models import load_weights
from evalsuite.own.prepared import prepared
from evalsuite.resizing.files import parsed_json, tensor_bytes
from lambda_gelu.activations.census import built_with
from lambda_gelu.activations.recognition import known
from opgraph.errors import OwnError
from opgraph.inputs import Inputs, leaves

WEIGHTS, REPLACED = "model.safetensors", "activations.json"
# What Hugging Face's configurations call the activation, and what they call the rows of traits.
_CONFIGURED = ("hidden_act", "activation_function", "hidden_activation", "activation")
_NAMED = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "silu": "silu"}
_CLOSENESS = 1e-6


@dataclass(frozen=True)
class Saved:
    """How it was saved.

    Args:
        form: "pretrained": a folder for `from_pretrained`; "own": weights in the user's layout, for
            `load_own`.
        reason: why no folder for `from_pretrained` could be written, where the model is Hugging
            Face's.
    """

    form: str
    reason: str = ""


class _Call(BaseModel):
    """How the adapter calls the user's model: see `Adapted`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    keys: list[int | str]
    names: list[str]
    output: str


class _Replaced(BaseModel):
    """The facts that `load_own` needs besides the weights.

    `biases` are those that a repair gave to layers without one; `places` are (path, channels,
    dimension); `example` is the key, shape and dtype of each part of a batch, where a run is needed
    to find the places; `batch` is that always, for layers that take their shapes from it.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    format: int = 1
    sha256: str
    replaced: str
    by: str
    places: list[tuple[str, int, int]]
    stay: list[str]
    biases: list[str]
    call: _Call | None
    example: list[tuple[int | str | None, list[int], str]] | None
    batch: list[tuple[int | str | None, list[int], str]] | None = None


def save_own(
    module: nn.Module,
    folder: Path,
    *,
    make: Callable[[], nn.Module],
    adapt: Callable[[nn.Module], nn.Module],
    own: OwnActivations,
    example: Inputs,
) -> Saved:
    """Write a treated network so that its user can load it without this project, or else by
    `load_own`.

    A Hugging Face model becomes a folder for `from_pretrained`, if its configuration names the
    activation that took all the places: what is read back must compute what `module` does.
    Otherwise the folder holds `model.safetensors` with the user's own names, and
    `activations.json`; no config.json, by which the unswapped model would be loaded.

    Args:
        module: the network, as `OwnActivations.replaced` or a variant's swap left it.
        folder: where; created.
        make: what makes the user's own module, with any weights.
        adapt: what makes a network of that; see `adapted`.
        own: the activations that were replaced.
        example: a batch on which what is read back is compared.

    Raises:
        OwnError: it has parameters without a place in the user's layout, or what is read back
            computes something else.
    """
    # 1. The activation that was put in, and the user's own module with these weights.
    names = {activation.traits.name for activation in built_with(module)}
    if len(names) != 1:
        raise OwnError(
            f"cannot be saved with activations {sorted(names) or 'none'}: one kind is needed"
        )
    (name,) = names
    (fresh, biases), reason = _own_layout(module, make), ""
    wanted = outputs_of(module, example)
    folder.mkdir(parents=True, exist_ok=True)
    # 2. A folder for from_pretrained, where the configuration can name the activation, and what
    # is read back computes the same.
    if hasattr(fresh, "save_pretrained") and hasattr(fresh, "config"):
        if biases:
            reason = f"its configuration knows no {biases[0]}, which a repair added"
        else:
            reason = _save_pretrained(
                fresh, name, folder, lambda network: _distance(adapt(network), example, wanted)
            )
        if not reason:
            (folder / REPLACED).unlink(missing_ok=True)
            return Saved("pretrained")
    # 3. Else weights, and a note of what was replaced where; a config.json would load the network
    # with its old activation.
    (folder / "config.json").unlink(missing_ok=True)
    data = tensor_bytes(fresh)
    described = _described(
        adapt(fresh), own, name, example, biases, hashlib.sha256(data).hexdigest()
    )
    (folder / WEIGHTS).write_bytes(data)
    (folder / REPLACED).write_text(described.model_dump_json(indent=1))
    # 4. Read back what was written: the user has it, and this process ends.
    if not _distance(_restored(make, folder), example, wanted) <= _CLOSENESS:
        raise OwnError(
            f"{folder}: the model that was read back computes something else than the one in memory"
        )
    return Saved("own", reason)


def load_own(make: Callable[[], nn.Module], folder: Path | str) -> nn.Module:
    """The user's model with the weights and activations that `save_own` wrote, in evaluation mode.

    Args:
        make: makes the user's module, as when it was saved.
        folder: what `save_own` was given.

    Raises:
        OwnError: a file is missing or was changed, or does not fit what `make` makes.
    """
    return own_network(_restored(make, Path(folder)))


def _own_layout(module: nn.Module, make: Callable[[], nn.Module]) -> tuple[nn.Module, list[str]]:
    """A fresh module of the user's with the weights of the network, and the biases that it had
    not.
    """
    fresh = make()
    state = {name.removeprefix("network."): tensor for name, tensor in module.state_dict().items()}
    wanted_names = fresh.state_dict()
    # the user's own names begin with "network.", and no adapter was needed
    if not wanted_names.keys() <= state.keys():
        state = dict(module.state_dict())
    # "lifted" is a constant that torch.export made a buffer of.
    lifted = ("lifted_tensor", "tensor_constant")
    extra = sorted(
        name
        for name in state.keys() - wanted_names.keys()
        if not any(prefix in name for prefix in lifted)
    )
    try:
        _add_biases(fresh, {name: state[name] for name in extra})
    except AttributeError as error:
        raise OwnError(
            f"the network has {', '.join(extra)}, for which the model's own layout has no place;"
            " save it by evalsuite.resizing.save_module"
        ) from error
    fresh.load_state_dict({name: state[name] for name in [*wanted_names, *extra]})
    return fresh.eval(), extra


def _add_biases(module: nn.Module, biases: Mapping[str, torch.Tensor]) -> None:
    """Give biases, in place, to layers that have none. Raises AttributeError where it is no such
    layer.
    """
    for name, bias in biases.items():
        path, _, attribute = name.rpartition(".")
        layer = module.get_submodule(path)
        if attribute != "bias" or layer._parameters.get("bias", bias) is not None:
            raise AttributeError(name)
        layer.bias = nn.Parameter(torch.zeros_like(bias))


def _save_pretrained(
    fresh: Any, name: str, folder: Path, distance: Callable[[nn.Module], float]
) -> str:
    """Write a folder for `from_pretrained`; why that is not the network where it is not, and
    nothing is left then.
    """
    from evalsuite.own.hugging_face import quiet

    # 1. Whether the configuration has a name for the activation.
    keys = [key for key in _CONFIGURED if isinstance(getattr(fresh.config, key, None), str)]
    if not keys or name not in _NAMED:
        return (
            f"its configuration has no name for {name}"
            if keys
            else "its configuration names no activation"
        )
    import transformers

    with quiet(transformers):
        # 2. Whether a model of that configuration computes the same: it may read the name for
        # some of its layers alone.
        config = copy.deepcopy(fresh.config)
        setattr(config, keys[0], _NAMED[name])
        model = type(fresh)(config).eval()
        model.load_state_dict(fresh.state_dict())
        if not distance(model) <= _CLOSENESS:
            return f"with {keys[0]}: {_NAMED[name]} in its configuration it computes something else"
        # 3. Whether what is read back does.
        model.save_pretrained(folder)
        again = (
            type(fresh).from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
        )
    return (
        ""
        if distance(again) <= _CLOSENESS
        else "what from_pretrained reads back computes something else"
    )


def _described(
    network: nn.Module,
    own: OwnActivations,
    name: str,
    example: Inputs,
    biases: list[str],
    sha256: str,
) -> _Replaced:
    call = None
    if isinstance(network, Adapted):
        call = _Call(keys=list(network._keys), names=list(network._names), output=network._output)
    keys: list[Any] = list(example) if isinstance(example, dict) else [None]
    keys = list(range(len(example))) if isinstance(example, tuple) else keys
    parts = [
        (key, list(leaf.shape), str(leaf.dtype).removeprefix("torch."))
        for key, leaf in zip(keys, leaves(example), strict=True)
    ]
    places = [(place.path, place.channels, place.dimension) for place in own.places]
    return _Replaced(
        sha256=sha256,
        replaced=own.name,
        by=name,
        places=places,
        stay=list(own.stay),
        biases=biases,
        call=call,
        example=None if own.example is None else parts,
        batch=parts,
    )


def _restored(make: Callable[[], nn.Module], folder: Path) -> nn.Module:
    """The network: the user's module, adapted as it was, with the activations that were put in."""
    # 1. The note, and the weights that it was written for.
    noted = _read(folder / REPLACED)
    weights = folder / WEIGHTS
    if not weights.is_file() or hashlib.sha256(weights.read_bytes()).hexdigest() != noted.sha256:
        raise OwnError(
            f"{weights}: is missing, or was changed since it was saved; save the model again"
        )
    # 2. The user's module with these weights, and biases that a repair added.
    call = noted.call

    def run(module: nn.Module) -> object:
        keys, names = (tuple(call.keys), tuple(call.names)) if call is not None else ((), ())
        with torch.no_grad():
            return Adapted(module.eval(), keys, names, "")(_example(noted.batch or []))

    module, _ = prepared(make(), "make()", run if noted.batch else None)
    if noted.biases:
        tensors = read_checkpoint(weights)[""]
        _add_biases(module, {name: tensors[name] for name in noted.biases})
    load_weights(module, str(weights))
    # 3. Called as it was, and with the activations in the same places.
    network = (
        module
        if call is None
        else Adapted(module, tuple(call.keys), tuple(call.names), call.output)
    )
    example = None if noted.example is None else (_example(noted.example),)
    own_activations = OwnActivations(
        noted.replaced, tuple(Place(*place) for place in noted.places), tuple(noted.stay), example
    )
    row = next((traits for traits in known() if traits.name == noted.by), None)
    if row is None:
        raise OwnError(
            f"{folder / REPLACED}: there is no activation {noted.by!r} here; install what"
            " registers it"
        )
    return own_activations.replaced(network.eval(), row.make).eval()


def _read(path: Path) -> _Replaced:
    try:
        noted = _Replaced.model_validate_json(json.dumps(parsed_json(path.read_bytes())))
    except OSError as error:
        raise OwnError(
            f"{path}: cannot be read ({error.strerror}); name a folder that save_own wrote"
        ) from error
    except (ValidationError, ValueError) as error:
        raise OwnError(
            f"{path}: is damaged, or of another version; save the model again"
        ) from error
    if noted.format != 1:
        raise OwnError(
            f"{path}: has format {noted.format}, this version reads 1; save the model again, or"
            " update"
        )
    return noted


def _example(parts: list[tuple[int | str | None, list[int], str]]) -> Inputs:
    """Ones: only the calls of a run are looked at, not its numbers."""
    tensors = {key: torch.ones(shape, dtype=getattr(torch, dtype)) for key, shape, dtype in parts}
    if None in tensors:
        return tensors[None]
    if all(isinstance(key, int) for key in tensors):
        return tuple(tensors.values())
    return {str(key): tensor for key, tensor in tensors.items()}


def _distance(network: nn.Module, example: Inputs, wanted: torch.Tensor) -> float:
    """The greatest difference of the outputs, relative to their size."""
    return float((outputs_of(network, example) - wanted).abs().max()) / max(
        float(wanted.abs().max()), 1e-12
    )
