"""Weights that a user brings: safetensors, or a state dict that torch.load takes with `weights_only`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evalsuite.plugins import did_you_mean
from evalsuite.references import OwnError
from evalsuite.resizing.description import all_sites, check_finite, tensor_groups

SUFFIXES = (".safetensors", ".pt", ".pth")
_WRAPPERS = ("state_dict", "model_state_dict", "model")
# What DataParallel, Lightning, torch.compile and an adapter put before every name.
_PREFIXES = ("module.", "model.", "_orig_mod.", "network.", "module.model.", "model._orig_mod.")
_SHOWN = 3
_AS_TENSORS = "save tensors alone, by torch.save(model.state_dict(), ...) or safetensors.torch.save_model"


def load_weights(module: nn.Module, file: str) -> None:
    """Give `module` the weights in `file`, in place: all of its own, and no others.

    Raises:
        OwnError: there is no such file, it is no safetensors file or a pickle of more than tensors, its tensors are not
            the module's, or some are NaN or infinite; the text names the first of them.
    """
    path = Path(file).expanduser()
    place(module, read_weights(path), str(file))


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file by name.

    Raises:
        OwnError: see `load_weights`.
    """
    if path.suffix not in SUFFIXES:
        raise OwnError(f"weights: {path} is none of {', '.join(SUFFIXES)}; {_AS_TENSORS}")
    if not path.is_file():
        beside = [str(each) for each in path.parent.glob("*") if each.suffix in SUFFIXES and each.is_file()]
        raise OwnError(f"weights: there is no file {path}{did_you_mean(str(path), beside) if beside else ''}")
    return _safetensors(path) if path.suffix == ".safetensors" else _state_dict(path)


def place(module: nn.Module, tensors: Mapping[str, torch.Tensor], file: str) -> None:
    """Put the tensors into `module`, as `load_weights` does; `file` is named in messages. Raises OwnError where a
    tensor is missing, too many, or of another shape.
    """
    tensors = without_prefix(tensors, module.state_dict())
    here = {name: each for name, each in module.state_dict().items() if isinstance(each, torch.Tensor)}
    tied = {site.name: {each.name for each in sites} for sites in tensor_groups(module).values() for site in sites}
    missing = [name for name in here if not tied.get(name, {name}) & tensors.keys()]
    unexpected = [name for name in tensors if name not in here]
    shapes = [
        f"{name} is {list(each.shape)}, not {list(here[name].shape)}"
        for name, each in tensors.items()
        if name in here and each.shape != here[name].shape
    ]
    hint = did_you_mean(unexpected[0], missing) if unexpected and missing else ""
    said = [
        *([f"lacks {_first(missing)}"] if missing else []),
        *([f"has {_first(unexpected)} too many{hint}"] if unexpected else []),
        *([f"other shapes: {_first(shapes)}"] if shapes else []),
    ]
    if said:
        raise OwnError(
            f"weights: {file} does not fit {type(module).__name__}: {'; '.join(said)}; give the weights of this"
            " architecture, or the architecture of these weights by `args`"
        )
    module.load_state_dict(dict(tensors), strict=False)
    check_weights(module, file)


def check_weights(module: nn.Module, file: str) -> None:
    """Raise OwnError where a tensor of the module is NaN, or a parameter infinite."""
    for site in all_sites(module):
        if site.tensor is not None:
            try:
                check_finite(site, site.tensor)
            except ValueError as error:
                raise OwnError(
                    f"weights: {file}: {site.name} has a value that is NaN or infinite; take an earlier checkpoint"
                ) from error


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise OwnError(f"weights: {path} is no safetensors file ({_line(error)}); {_AS_TENSORS}") from error
    return found


def _state_dict(path: Path) -> dict[str, torch.Tensor]:
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises errors of many kinds for what is no checkpoint
        more = re.search(r"GLOBAL ([\w.]+)", str(error))
        said = f"needs {more[1]}, and running code from a file is refused" if more else "cannot be read as tensors"
        raise OwnError(f"weights: {path} is a pickle that {said}; {_AS_TENSORS}") from error
    for key in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found:
        raise OwnError(f"weights: {path} holds a {type(found).__name__}, no state dict; {_AS_TENSORS}")
    if others := [str(key) for key, each in found.items() if not isinstance(each, torch.Tensor)]:
        raise OwnError(f"weights: {path} holds {_first(others)} beside tensors; {_AS_TENSORS}")
    return dict(found)


def without_prefix(tensors: Mapping[str, torch.Tensor], here: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors, of any shapes, by the module's names, without a prefix that all of theirs have and it has not."""
    for prefix in _PREFIXES:
        bare = {name.removeprefix(prefix): each for name, each in tensors.items()}
        if all(name.startswith(prefix) for name in tensors) and bare.keys() <= here.keys():
            return bare
    return dict(tensors)


def _first(names: list[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
