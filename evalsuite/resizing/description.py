"""A module's tensors do not say all of it: ties, the classes of layers, and the numbers beside the
weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from torch import nn
from torch.nn.parameter import is_lazy

_LIMIT = 2**63
_PUBLIC = r"^[A-Za-z][A-Za-z0-9_]*$"
Attribute = Annotated[str, StringConstraints(pattern=_PUBLIC)]
Integer = Annotated[int, Field(ge=-_LIMIT, lt=_LIMIT)]
Extent = Annotated[int, Field(ge=0, lt=_LIMIT)]


@dataclass(frozen=True, slots=True)
class Site:
    """A place for a tensor: a parameter or persistent buffer of a layer; `tensor` is None where
    it is registered so.
    """

    path: str
    layer: nn.Module
    attribute: str
    tensor: torch.Tensor | None

    @property
    def name(self) -> str:
        """The key of the tensor in a state dict."""
        return f"{self.path}.{self.attribute}" if self.path else self.attribute


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TensorRecord(_Record):
    """The form of a tensor that a safetensors file must hold under a name."""

    dtype: str
    shape: list[Extent]


class LayerRecord(_Record):
    """One submodule.

    Args:
        kind: the name of its class; None where it is not compared.
        sizes: its public integers and tuples of integers, as `heads` or `normalized_shape`.
        constants: its public floats and strings, as `eps` and `padding_mode`: compared, never set.
        absent: parameters and buffers that are registered as None.
    """

    kind: str | None = None
    sizes: dict[Attribute, Integer | list[Integer]] = {}
    constants: dict[Attribute, float | str] = {}
    absent: list[str] = []


class Description(_Record):
    """A saved module, but for its tensors.

    Args:
        format: of this record.
        sha256: of the safetensors file, hexadecimal.
        tensors: name -> what the file holds.
        ties: name -> the name under which the same tensor was saved.
        layers: dotted path -> the submodule, "" for the module itself.
    """

    format: Literal[1] = 1
    sha256: str
    tensors: dict[str, TensorRecord]
    ties: dict[str, str]
    layers: dict[str, LayerRecord]

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it, with a checksum over the rest."""
        plain = self.model_dump(exclude_defaults=True) | {"format": self.format}
        return {**plain, "checksum": checksum(plain)}

    @classmethod
    def from_json(cls, value: object) -> Description:
        """Read the text of `to_json`. Raises ValueError: it is something else, of another version,
        or was changed since.
        """
        # 1. A description, of a format that this version reads.
        if not isinstance(value, dict) or "format" not in value:
            raise ValueError(
                "is no description of a saved module: it names no format; save the module again"
            )
        if value["format"] != 1 or isinstance(value["format"], bool):
            raise ValueError(
                f"has format {str(value['format'])[:40]!a}, this version reads 1: save the module"
                " again, or update"
            )
        # 2. Its fields, and its checksum over them.
        plain = {key: value for key, value in value.items() if key != "checksum"}
        try:
            description = cls.model_validate(plain)
        except (ValidationError, RecursionError) as error:
            raise ValueError(f"is damaged: {_first(error)}; save the module again") from error
        if value.get("checksum") != checksum(plain):
            raise ValueError(
                "was changed since it was written: its checksum differs; save the module again"
            )
        # 3. What no checksum tells: ties to tensors that it does not list.
        unknown = sorted(set(description.ties.values()) - set(description.tensors))
        if unknown:
            raise ValueError(
                f"is damaged: ties name {unknown[0]!a}, which is no tensor of it; save the module"
                " again"
            )
        return description


def describe(module: nn.Module, sha256: str, *, owners_only: bool = False) -> Description:
    """The description of `module` whose tensors are saved in the file with that digest.

    Args:
        module: what is described.
        sha256: of the file.
        owners_only: name only the classes of submodules that own tensors.

    Raises:
        ValueError: a submodule has a state that is no tensor, or tensors without a shape yet.
    """
    # 1. The tensors, each under one name; names that share it are ties.
    tensors, ties = {}, {}
    for name, sites in tensor_groups(module).items():
        tensor = first_tensor(sites)
        tensors[name] = TensorRecord(dtype=dtype_name(tensor), shape=list(tensor.shape))
        ties.update({site.name: name for site in sites if site.name != name})
    # 2. Of each layer what its tensors do not say: its class, the integers beside the weights,
    # and which tensors it lacks.
    layers = {}
    for path, layer in module.named_modules(remove_duplicate=False):
        sites_of_layer = own_sites(path, layer)
        layers[path] = LayerRecord(
            kind=type(layer).__name__ if sites_of_layer or not owners_only else None,
            sizes={
                key: list(size) if isinstance(size, tuple) else size
                for key, size in sizes(layer).items()
            },
            constants=constants(layer),
            absent=sorted(site.attribute for site in sites_of_layer if site.tensor is None),
        )
    return Description(sha256=sha256, tensors=tensors, ties=ties, layers=layers)


def own_sites(path: str, layer: nn.Module) -> list[Site]:
    """The layer's own parameters and persistent buffers. Raises ValueError: as `describe`."""
    if type(layer).get_extra_state is not nn.Module.get_extra_state:
        raise ValueError(
            f"{path or 'the module'} ({type(layer).__name__}) has an extra state, which is no"
            " tensor"
        )
    persistent = {
        key: buffer
        for key, buffer in layer._buffers.items()
        if key not in layer._non_persistent_buffers_set
    }
    sites = [
        Site(path, layer, key, tensor) for key, tensor in (layer._parameters | persistent).items()
    ]
    for site in sites:
        if site.tensor is not None and is_lazy(site.tensor):
            raise ValueError(f"{site.name} has no shape yet: call the lazy module once before")
    return sites


def all_sites(module: nn.Module) -> Iterator[Site]:
    """The sites of every submodule; of a shared one at each of its paths."""
    for path, layer in module.named_modules(remove_duplicate=False):
        yield from own_sites(path, layer)


def tensor_groups(module: nn.Module) -> dict[str, list[Site]]:
    """Every tensor once, under the first of its names, with all the places where it stands: more
    than one if tied.
    """
    groups: dict[str, list[Site]] = {}
    first: dict[object, str] = {}
    for site in all_sites(module):
        if site.tensor is not None:
            tensor = site.tensor
            # Equal for tensors that are the same numbers in memory, though they be different
            # objects.
            memory: object = tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
            if tensor.numel() == 0 or tensor.data_ptr() == 0:
                memory = id(tensor)
            name = first.setdefault(memory, site.name)
            groups.setdefault(name, []).append(site)
    return groups


def first_tensor(sites: list[Site]) -> torch.Tensor:
    """The tensor of a group of `tensor_groups`."""
    return next(site.tensor for site in sites if site.tensor is not None)


def check_finite(site: Site, tensor: torch.Tensor) -> None:
    """Raise ValueError for a tensor of any shape that is NaN anywhere or, if it is a parameter,
    infinite.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return
    # The 8-bit floats have no isnan of their own.
    values = tensor.detach().float() if tensor.itemsize == 1 else tensor.detach()
    # A buffer may be a mask of minus infinity.
    parameter = site.attribute in site.layer._parameters
    if bool(values.isnan().any()) or (parameter and bool(values.isinf().any())):
        raise ValueError(
            f"{site.name} has a value that is NaN or infinite: such a module is neither saved nor"
            " loaded"
        )


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of a tensor's dtype without "torch.", as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def sizes(layer: nn.Module) -> dict[str, int | tuple[int, ...]]:
    """The public integers, and tuples of integers, among the attributes of the layer itself."""
    return {
        key: tuple(value) if isinstance(value, tuple) else value
        for key, value in vars(layer).items()
        if re.fullmatch(_PUBLIC, key)
        and (
            _is_integer(value)
            or (isinstance(value, tuple) and all(_is_integer(part) for part in value))
        )
    }


def _is_integer(value: object) -> bool:
    return type(value) is int and -_LIMIT <= value < _LIMIT


def constants(layer: nn.Module) -> dict[str, float | str]:
    """The public floats and strings among the layer's attributes that its outputs in evaluation
    mode may depend on.
    """
    if "drop" in type(layer).__name__.lower():
        return {}
    return {
        key: value
        for key, value in vars(layer).items()
        if re.fullmatch(_PUBLIC, key)
        and (type(value) is str or (type(value) is float and not math.isnan(value)))
        # What only training uses, and what a model is called, may differ.
        and "drop" not in key
        and key not in ("momentum", "name", "name_or_path")
    }


def checksum(plain: dict[str, Any]) -> str:
    """The SHA-256, hexadecimal, of what JSON holds, however it is laid out."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def printable(text: str) -> str:
    """`text` from a file with all but plain characters escaped: lone surrogates cannot be
    printed or written.
    """
    return ascii(text)[1:-1]


def _first(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return type(error).__name__
    first = error.errors()[0]
    return f"{'.'.join(printable(str(part)[:80]) for part in first['loc'])}: {first['msg']}"
