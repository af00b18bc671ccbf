"""Giving a fresh module the tensors of a saved one: its layers take their shapes, and the
numbers that repeat them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from evalsuite.resizing.description import (
    Description,
    LayerRecord,
    Site,
    all_sites,
    check_finite,
    dtype_name,
    printable,
    sizes,
    tensor_groups,
)
from lambda_gelu.activations import Hardenable
from lambda_gelu.activations.census import duplicate

_LARGEST = 2**31 - 1  # a size that no layer reaches


def fitted(
    module: nn.Module, tensors: dict[str, torch.Tensor], description: Description
) -> nn.Module:
    """A copy of `module`, in evaluation mode, with those tensors, whose shapes may differ from the
    module's, on its devices. All else is as in `module`. Raises ValueError: the description is of
    another architecture; the text names what differs, and the cure.
    """
    # 1. Check that the architecture is the saved one's: layers, names and ties, before a copy is
    # changed.
    module = duplicate(module).eval()
    _check_layers(module, description.layers)
    names = set(description.tensors) | set(description.ties)
    _check_names(module, description, names)
    _check_ties(module, description, names)
    # 2. Remove what the saved module lacks, as a bias that pruning took away, and check that each
    # tensor may go where it is named.
    for site in list(all_sites(module)):
        if site.name not in names:
            setattr(site.layer, site.attribute, None)
            continue
        saved = description.ties.get(site.name, site.name)
        _check_tensor(site, tensors[saved])
    # 3. Place the tensors, and let the numbers beside them follow their shapes.
    _place(module, tensors, description)
    for path, layer in module.named_modules():
        _set_sizes(path, layer, description.layers[path])
        _repeat_shapes(path, layer)
    return module


def _check_layers(module: nn.Module, saved: dict[str, LayerRecord]) -> None:
    # 1. The same layers, of the same classes.
    here = dict(module.named_modules(remove_duplicate=False))
    for path in sorted(saved.keys() ^ here.keys()):
        where = "only in the saved module" if path in saved else "missing in the saved module"
        raise ValueError(
            f"the layer {printable(path)} is {where}: build the module as the saved one was built"
        )
    for path, layer in here.items():
        kind, other = type(layer).__name__, saved[path].kind
        if other is not None and kind != other:
            hint = ""
            if {kind, other} == {"Conv1D", "Linear"}:
                hint = (
                    ", whose weight is the transposed one: convert Conv1D to nn.Linear before"
                    " saving and loading alike"
                )
            raise ValueError(
                f"{path or 'the module'} is a {kind} here and was a {printable(other)}{hint}; "
                "build and convert the module as the saved one"
            )
        # 2. What pruning never changes must be as it was.
        _check_constants(path, layer, saved[path])


def _check_constants(path: str, layer: nn.Module, saved: LayerRecord) -> None:
    attributes = vars(layer)
    for name, was in saved.constants.items():
        # A layer of another class may compute the same without it.
        if saved.kind is None and name not in attributes:
            continue
        now = attributes.get(name)
        if not isinstance(now, (int, float, str)) or now != was:
            state = ascii(now) if isinstance(now, (int, float, str)) else "no number or text"
            raise ValueError(
                f"{_dotted(path, name)} is {state} here and was {was!a}: build the module with the"
                " saved value"
            )


def _check_names(module: nn.Module, description: Description, names: set[str]) -> None:
    here = {site.name: site for site in all_sites(module)}
    for name in sorted(names - here.keys()):
        raise ValueError(
            f"the saved tensor {printable(name)} has no place in the module: build it as the saved"
            " one was built"
        )
    for name in sorted(here.keys() - names):
        site = here[name]
        if site.tensor is not None and site.attribute not in description.layers[site.path].absent:
            raise ValueError(
                f"the tensor {name} of the module was not saved: build it as the saved one was"
                " built"
            )


def _check_ties(module: nn.Module, description: Description, names: set[str]) -> None:
    """The saved tensors must be tied as the module's are; those that the module does not have
    yet, in any way.
    """
    # Which names share a tensor here, and which did in the saved module.
    here = {
        site.name: first
        for first, group in tensor_groups(module).items()
        for site in group
        if site.name in names
    }
    saved = {name: description.ties.get(name, name) for name in here}
    for (name, now), (_, was) in zip(
        _together(here).items(), _together(saved).items(), strict=True
    ):
        if now != was:
            other = min(now ^ was)
            states = ("tied", "apart") if other in now else ("apart", "tied")
            raise ValueError(
                f"{name} and {other} are {states[0]} here and were {states[1]}: tie the weights as"
                " before"
            )


def _together(label: dict[str, str]) -> dict[str, frozenset[str]]:
    """For each name those with the same label, itself among them."""
    members: dict[str, set[str]] = {}
    for name, group in label.items():
        members.setdefault(group, set()).add(name)
    return {name: frozenset(members[group]) for name, group in label.items()}


def _check_tensor(site: Site, saved: torch.Tensor) -> None:
    check_finite(site, saved)
    if site.tensor is None:
        return
    if saved.dtype != site.tensor.dtype:
        raise ValueError(
            f"{site.name} is {dtype_name(site.tensor)} here and was {dtype_name(saved)}: convert"
            " the module before"
        )
    # One lambda for all becomes one per channel, or the reverse, by shape alone.
    free = isinstance(site.layer, Hardenable) and max(site.tensor.ndim, saved.ndim) == 1
    if saved.ndim != site.tensor.ndim and not free:
        raise ValueError(
            f"{site.name} has shape {tuple(site.tensor.shape)} here and had {tuple(saved.shape)}:"
            " resizing keeps the number of dimensions; build the module as the saved one was built"
        )


def _place(module: nn.Module, tensors: dict[str, torch.Tensor], description: Description) -> None:
    """Put each tensor in all its places; parameters stay parameters, trainable as before."""
    placed: dict[str, torch.Tensor] = {}
    for site in list(all_sites(module)):
        saved = description.ties.get(site.name, site.name)
        if saved not in tensors:
            continue
        if saved not in placed:
            placed[saved] = _as_at(site, tensors[saved])
        setattr(site.layer, site.attribute, placed[saved])


def _as_at(site: Site, saved: torch.Tensor) -> torch.Tensor:
    like = site.tensor if site.tensor is not None else next(site.layer.parameters(), saved)
    # A copy, so that it lies in memory as every tensor of torch's does: kernels may round by
    # alignment.
    saved = saved.to(like.device, copy=True)
    if site.attribute not in site.layer._parameters:
        return saved
    return nn.Parameter(
        saved,
        requires_grad=like.requires_grad and (saved.is_floating_point() or saved.is_complex()),
    )


def _set_sizes(path: str, layer: nn.Module, saved: LayerRecord) -> None:
    """The saved integers where they differ: only those that the layer has, as integers, of
    itself.
    """
    here = sizes(layer)
    # 1. Only integers that the layer has already, of the same type: a file must not add
    # attributes.
    for name, value in saved.sizes.items():
        new = tuple(value) if isinstance(value, list) else value
        own = vars(layer).get(name)
        if isinstance(own, float) and own == new:
            continue
        if name not in here or type(here[name]) is not type(new):
            raise ValueError(
                f"{_dotted(path, name)} was {new}, but is no such number here: build as the"
                " saved one"
            )
        if new == here[name]:
            continue
        # 2. Of tuples only LayerNorm's shape is a size; of integers those that may be one.
        if isinstance(new, tuple):
            if name != "normalized_shape":
                raise ValueError(
                    f"{_dotted(path, name)} is {here[name]} here and was {new}: build with the"
                    " saved value"
                )
        elif not 0 <= new <= _LARGEST:
            raise ValueError(
                f"{_dotted(path, name)} is {here[name]} here and {new} in the file: that is no"
                f" size, which is 0 to {_LARGEST}; save the module again, or build it with that"
                " value"
            )
        vars(layer)[name] = new


def _repeat_shapes(path: str, layer: nn.Module) -> None:
    """Let the layers of torch repeat the shapes of their tensors, whatever was saved."""
    # The weight of weight_norm and the like is computed.
    attributes = vars(layer)
    if "weight" in attributes:
        return  # computed before each call, so it has its new shape only then
    if isinstance(layer, (nn.Linear, _ConvNd, nn.Embedding)) and layer.weight is None:
        raise ValueError(
            f"{_dotted(path, 'weight')} was not saved: a {type(layer).__name__} needs it"
        )
    if isinstance(layer, nn.Linear):
        attributes["out_features"], attributes["in_features"] = layer.weight.shape
        _check_shapes(path, layer, (layer.out_features,), "bias")
    elif isinstance(layer, _ConvNd):
        first, second = layer.weight.shape[:2]
        transposed = isinstance(layer, _ConvTransposeNd)
        _check_divides(path, "groups", layer.groups, first)
        # A transposed convolution has its inputs first, and the outputs of one group second.
        narrow, wide = (
            ("in_channels", "out_channels") if transposed else ("out_channels", "in_channels")
        )
        attributes[narrow], attributes[wide] = first, second * layer.groups
        _check_shapes(path, layer, (layer.out_channels,), "bias")
    elif isinstance(layer, _NormBase):
        tensor = layer.weight if layer.weight is not None else layer.running_mean
        attributes["num_features"] = layer.num_features if tensor is None else tensor.numel()
        _check_shapes(
            path, layer, (layer.num_features,), "weight", "bias", "running_mean", "running_var"
        )
    elif isinstance(layer, (nn.LayerNorm, nn.RMSNorm)):
        if layer.weight is not None:
            attributes["normalized_shape"] = tuple(layer.weight.shape)
        _check_shapes(path, layer, layer.normalized_shape, "bias")
    elif isinstance(layer, nn.GroupNorm):
        if layer.weight is not None:
            attributes["num_channels"] = layer.weight.numel()
            _check_divides(path, "num_groups", layer.num_groups, layer.num_channels)
        _check_shapes(path, layer, (layer.num_channels,), "bias")
    elif isinstance(layer, nn.Embedding):
        attributes["num_embeddings"], attributes["embedding_dim"] = layer.weight.shape


def _check_shapes(path: str, layer: nn.Module, width: tuple[int, ...], *names: str) -> None:
    """Raise ValueError where a named tensor that the layer has is not of the shape `width`, that of
    its outputs.
    """
    for name in names:
        tensor = getattr(layer, name, None)
        if tensor is not None and tensor.shape != width:
            raise ValueError(
                f"{_dotted(path, name)} has shape {tuple(tensor.shape)} for outputs of width"
                f" {width}: it was cut wrongly; save the module again"
            )


def _check_divides(path: str, name: str, groups: int, channels: int) -> None:
    if groups < 1 or channels % groups:
        raise ValueError(
            f"{_dotted(path, name)} = {groups} does not divide the {channels} channels: it was cut"
            " wrongly"
        )


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
