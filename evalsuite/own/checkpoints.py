"""Checkpoints: the state dicts in a file, read without running code, and which of them is a
network's.

A state dict is recognised by its structure: under whatever prefix or key its names are those of the
network. torch's own `load_state_dict` says whether it fits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evalsuite.plugins import did_you_mean
from evalsuite.resizing.description import tensor_groups
from lambda_gelu.activations.census import duplicate
from opgraph.errors import OwnError
from opgraph.limits import check_archive, check_plain, reading

SUFFIXES = (".safetensors", ".pt", ".pth")
_OLDER = (".ckpt", ".bin", ".tar")  # Lightning's, Hugging Face's, and model.pth.tar
_SHOWN = 3
_DEEPEST = 4  # mappings within one another
_MOST_PREFIXES = 8
_LEAST_BYTES = 2  # of a real number that stands for itself: float8 has scales beside it
_AS_TENSORS = (
    "save tensors alone, by torch.save(model.state_dict(), ...) or safetensors.torch.save_model"
)
# What DataParallel, torch.compile, FSDP and others put between the names of a wrapped part.
_WRAPPERS = (
    "module",
    "_orig_mod",
    "_forward_module",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
)

Tensors = dict[str, torch.Tensor]


def read_checkpoint(file: Path) -> dict[str, Tensors]:
    """The state dicts in a file by their keys, "" of the file itself and "a.b" of one within
    another.

    Raises OwnError: there is no such file, or it is no safetensors file, a pickle of more than
    tensors, or holds none.
    """
    # 1. A file of a kind that can be read without running its code.
    if file.suffix not in (*SUFFIXES, *_OLDER):
        raise OwnError(f"weights: {file} is none of {', '.join(SUFFIXES)}; {_AS_TENSORS}")
    check_plain(file)
    if not file.is_file():
        beside = [
            str(path)
            for path in file.parent.glob("*")
            if path.suffix in SUFFIXES and path.is_file()
        ]
        raise OwnError(
            f"weights: there is no file {file}{did_you_mean(str(file), beside) if beside else ''}"
        )
    # 2. Its content, within a share of memory; a pickle may hold tensors and plain values alone.
    with reading(file):
        if file.suffix == ".safetensors":
            return {"": _safetensors(file)}
        check_archive(file)
        content = _unpickled(file)
    if not isinstance(content, Mapping) or not content:
        raise OwnError(
            f"weights: {file} holds a {type(content).__name__}, no state dict; {_AS_TENSORS}"
        )
    # 3. The state dicts in it: a training's checkpoint mostly has one beside optimizer and epoch.
    states = dict(_states(content))
    others = [str(key) for key, value in content.items() if not isinstance(value, torch.Tensor)]
    if others and states.keys() <= {""}:
        raise OwnError(f"weights: {file} holds {_first(others)} beside tensors; {_AS_TENSORS}")
    return states


def fitted(module: nn.Module, states: Mapping[str, Tensors], file: str, key: str = "") -> Tensors:
    """The tensors of the one state dict that fits, by the module's names; nothing is changed.

    Args:
        module: the network.
        states: what `read_checkpoint` gives.
        file: named in messages.
        key: the user's `weights_key`: of a state dict, or a prefix of its names; "" to find it.

    Raises:
        OwnError: none fits, or several that differ; real weights are stored as integers or complex
            numbers, or tied ones with different values, of which torch would keep the last.
    """
    # 1. Every reading, under whatever prefix, that the network's own load_state_dict takes; equal
    # ones count once.
    states = chosen(states, file, key)
    fitting: dict[str, Tensors] = {}
    for label, tensors in _readings(states, module.state_dict()):
        whole = _completed(module, tensors)
        if _fits(module, whole) and not any(_equal(whole, other) for other in fitting.values()):
            fitting[label] = whole
    # 2. One of them, or a choice that is the user's.
    if len(fitting) > 1:
        names = ", ".join(fitting)
        raise OwnError(
            f"weights: {file}: {names} fit, and they differ; choose one by `weights_key`"
        )
    if not fitting:
        raise _misfit(module, states, file)
    (tensors,) = fitting.values()
    _check_values(module, tensors, file)
    return tensors


def closest(states: Mapping[str, Tensors], names: Mapping[str, Any]) -> Tensors:
    """The tensors, of any shapes, of the state dict and under the prefix that share most names
    with a network's.
    """
    readings = [tensors for _, tensors in _readings(states, names)]
    return max(readings, key=lambda tensors: len(tensors.keys() & names.keys()), default={})


def closest_alone(states: Mapping[str, Tensors], network: nn.Module, file: str) -> Tensors:
    """The tensors that share most names with a network of a library, whose files may have names and
    tensors of their own.

    Raises:
        OwnError: several that differ share as many names; or weights are stored otherwise than as
            dense real numbers.
    """
    names = network.state_dict()
    readings = dict(_readings(states, names))
    shared = {
        label: {name: tensors_read[name] for name in tensors_read if name in names}
        for label, tensors_read in readings.items()
    }
    # A file may hold several state dicts, under several prefixes: take the best reading.
    most = max(map(len, shared.values()), default=0)
    best = [label for label, tensors in shared.items() if most and len(tensors) == most]
    if not best:
        return {}
    # Equally good readings may only be one and the same, since nothing tells which is meant.
    if any(not _equal(shared[best[0]], shared[label]) for label in best[1:]):
        raise OwnError(
            f"weights: {file}: {', '.join(best)} fit, and they differ; choose one by `weights_key`"
        )
    for name, tensor in shared[best[0]].items():
        check_stored(name, names[name], tensor, file)
    return readings[best[0]]


def _states(
    content: Mapping[Any, Any], key: str = "", depth: int = 0
) -> Iterator[tuple[str, Tensors]]:
    tensors = {
        str(name): value for name, value in content.items() if isinstance(value, torch.Tensor)
    }
    if tensors and all(isinstance(name, str) for name in content):
        yield key, tensors
    for name, value in content.items():
        if isinstance(value, Mapping) and depth < _DEEPEST:
            yield from _states(value, f"{key}.{name}" if key else str(name), depth + 1)


def chosen(states: Mapping[str, Tensors], file: str, key: str) -> Mapping[str, Tensors]:
    """The state dict of that key, or the tensors under that prefix; all where there is no key.
    Raises OwnError: there is no such.
    """
    if not key:
        return states
    if key in states:
        return {key: states[key]}
    # A prefix of names: in a checkpoint of several networks, the part of one.
    prefix = key.rstrip(".") + "."
    under = {
        state: {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        for state, tensors in states.items()
    }
    under = {state: tensors for state, tensors in under.items() if tensors}
    if not under:
        prefixes = {name.partition(".")[0] for tensors in states.values() for name in tensors}
        known = [state for state in states if state] + sorted(prefixes)
        raise OwnError(f"weights_key: {file} has no {key!r}{did_you_mean(key, known)}")
    return under


def _readings(
    states: Mapping[str, Tensors], names: Mapping[str, Any]
) -> Iterator[tuple[str, Tensors]]:
    """Each way to read the state dicts under which some names are the network's, with a label
    for messages.
    """
    for state, tensors in states.items():
        if names.keys() <= tensors.keys():  # what is too many then is so under any prefix
            yield _label(state, "", ""), tensors
            continue
        for inner, bare in _unwrapped(tensors, names):
            for prefix in _prefixes(bare, names):
                read = {
                    name.removeprefix(prefix): tensor
                    for name, tensor in bare.items()
                    if name.startswith(prefix)
                }
                yield _label(state, prefix, inner), read
            for prefix in _prefixes(names, bare):
                if prefix:
                    yield (
                        _label(state, f"(without {prefix})", inner),
                        {prefix + name: tensor for name, tensor in bare.items()},
                    )


def _label(state: str, prefix: str, inner: str) -> str:
    return ".".join(filter(None, (state, prefix.rstrip("."), inner))) or "the file itself"


def _unwrapped(tensors: Tensors, names: Mapping[str, Any]) -> Iterator[tuple[str, Tensors]]:
    """The tensors as they are, and without what wrappers put between their names, unless the
    network has that too.
    """
    yield "", tensors
    parts = {part for name in names for part in name.split(".")}
    wrappers = [wrapper for wrapper in _WRAPPERS if wrapper not in parts]
    bare = {
        ".".join(part for part in name.split(".") if part not in wrappers): tensor
        for name, tensor in tensors.items()
    }
    if len(bare) == len(tensors) and bare.keys() != tensors.keys():
        yield "without wrappers", bare


def _prefixes(longer: Mapping[str, Any], shorter: Mapping[str, Any]) -> list[str]:
    """List the prefixes by which the first names differ from the second, "" among them, the most
    frequent first.
    """
    votes: Counter[str] = Counter({"": 1})
    for name in longer:
        parts = name.split(".")
        for place in range(1, len(parts)):
            if ".".join(parts[place:]) in shorter:
                votes[".".join(parts[:place]) + "."] += 1
    most = max(votes.values())
    frequent = [
        prefix
        for prefix, count in votes.most_common(_MOST_PREFIXES)
        if prefix and 2 * count >= most
    ]
    return ["", *frequent]


def _completed(module: nn.Module, tensors: Tensors) -> Tensors:
    """With the tensors that are tied to those of the file, without buffers that the module has
    but does not save.
    """
    whole = dict(tensors)
    for sites in tensor_groups(module).values():
        known = next((tensors[site.name] for site in sites if site.name in tensors), None)
        if known is not None:
            whole.update({site.name: known for site in sites if site.name not in tensors})
    saved = module.state_dict().keys()
    whole = {name: tensor for name, tensor in whole.items() if name in saved or name in tensors}
    for name, buffer in module.named_buffers():
        if (
            name not in saved
            and name in whole
            and torch.equal(whole[name].to(buffer.dtype), buffer.cpu())
        ):
            del whole[name]
    return whole


def _fits(module: nn.Module, tensors: Tensors) -> bool:
    """Whether torch's strict load takes them."""
    if not tensors.keys() & module.state_dict().keys():
        return False
    try:
        duplicate(module).load_state_dict(tensors, strict=True)
    except RuntimeError:
        return False
    return True


def _check_values(module: nn.Module, tensors: Tensors, file: str) -> None:
    """Raise OwnError where torch's load would change values: of another kind of number, or of
    tied tensors.
    """
    for name, tensor in module.state_dict().items():
        stored = tensors.get(name)
        if stored is None or not isinstance(tensor, torch.Tensor):
            continue
        check_stored(name, tensor, stored, file)
    for sites in tensor_groups(module).values():
        first, *others = [site.name for site in sites if site.name in tensors] or [""]
        for name in others:
            if not torch.equal(tensors[first].double(), tensors[name].double()):
                raise OwnError(
                    f"weights: {file}: {first} and {name} differ, but are one tensor in the"
                    " network; give a network that does not tie them, or leave one out of the file"
                )


def check_stored(name: str, wanted: torch.Tensor, stored: torch.Tensor, file: str) -> None:
    """Raise OwnError where a network's tensor would not have the numbers that are meant by those
    of a file.

    Numbers of one byte or less belong to a quantized network: they have scales, which a plain load
    leaves out.
    """
    if kind := _without_values(stored):
        raise OwnError(f"weights: {file}: {name} is {kind}")
    narrow = stored.dtype.itemsize < _LEAST_BYTES and stored.dtype != wanted.dtype
    if wanted.is_floating_point() and (narrow or not stored.is_floating_point()):
        raise not_real(name, str(stored.dtype).removeprefix("torch."), file)


def not_real(name: str, kind: str, file: str) -> OwnError:
    """The error of weights that are stored as numbers of a kind that stands for others."""
    return OwnError(
        f"weights: {file}: {name} is stored as {kind}, where the network has real numbers; save"
        " the weights as floats, those of a quantized network with their scales multiplied in"
    )


def _without_values(tensor: torch.Tensor) -> str:
    """Name the kind of a tensor that has no numbers of its own at every place, and the cure; "" for
    a dense one.
    """
    if tensor.is_meta:
        return "a meta tensor, of a shape without numbers; save the weights after they were loaded"
    if tensor.is_quantized:
        return "quantized; save its .dequantize()"
    if tensor.is_nested or tensor.layout != torch.strided:
        return "sparse, or nested; save its .to_dense()"
    return ""


def _equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(
        _same(tensor, other[name]) for name, tensor in one.items()
    )


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    if one.dtype != other.dtype or _without_values(one) or _without_values(other):
        return False
    if one.dtype.itemsize == 1:  # torch compares no numbers of some of these types
        one, other = one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    return torch.equal(one, other)


def _misfit(module: nn.Module, states: Mapping[str, Tensors], file: str) -> OwnError:
    """Say what the state dict that is nearest lacks, has too many, or in another shape."""
    # 1. The state dict whose names are most like the network's, with whatever prefix.
    here = {
        name: value
        for name, value in module.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    tensors = _completed(module, closest(states, here))
    odd = next(((name, kind) for name in tensors if (kind := _without_values(tensors[name]))), None)
    if odd is not None:
        return OwnError(f"weights: {file}: {odd[0]} is {odd[1]}")
    # 2. What differs: names on either side, and shapes.
    missing = [name for name in here if name not in tensors]
    unexpected = [name for name in tensors if name not in here]
    shapes = [
        f"{name} is {list(tensor.shape)}, not {list(here[name].shape)}"
        for name, tensor in tensors.items()
        if name in here and tensor.shape != here[name].shape
    ]
    hint = did_you_mean(unexpected[0], missing) if unexpected and missing else ""
    said = [
        *([f"lacks {_first(missing)}"] if missing else []),
        *([f"has {_first(unexpected)} too many{hint}"] if unexpected else []),
        *([f"other shapes: {_first(shapes)}"] if shapes else []),
    ]
    if not said:
        said = ["torch's own load_state_dict refuses it"]
    return OwnError(
        f"weights: {file} does not fit {type(module).__name__}: {'; '.join(said)}; give the weights"
        " of this architecture, or the architecture of these weights by `args`"
    )


def _safetensors(file: Path) -> Tensors:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: Tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        said = " ".join(str(error).split())[:200]
        raise OwnError(f"weights: {file} is no safetensors file ({said}); {_AS_TENSORS}") from error
    return tensors


def _unpickled(file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises errors of many kinds for what is no checkpoint
        more = re.search(r"GLOBAL ([\w.]+)", str(error))
        said = (
            f"needs {more[1]}, and running code from a file is refused"
            if more
            else "cannot be read as tensors"
        )
        raise OwnError(f"weights: {file} is a pickle that {said}; {_AS_TENSORS}") from error


def _first(names: list[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
