"""`save_module` and `load_module`: a safetensors file and a small JSON, checked when written and
when read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import nn

from evalsuite.resizing.description import (
    Description,
    check_finite,
    describe,
    dtype_name,
    first_tensor,
    printable,
    tensor_groups,
)
from evalsuite.resizing.fitting import fitted
from lambda_gelu.activations.census import duplicate

TENSORS, DESCRIPTION = "module.safetensors", "module.json"
_DEEPEST = 64  # levels; a description has five
_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{\]}]')
LARGEST_JSON = 2**26  # bytes: many times what the layers of the largest models need
Example = torch.Tensor | tuple[Any, ...] | Mapping[str, Any]


def save_module(
    module: nn.Module,
    folder: Path | str,
    *,
    fresh: nn.Module | None = None,
    example: Example | None = None,
) -> None:
    """Write `module`, pruned or not, as `module.safetensors` and `module.json`, and read them back
    to be sure.

    Not saved: what only the code that builds the module says (as activations, strides), buffers
    that are not persistent, which parameters train, and the mode. Both files appear under their
    names when both are complete.

    Args:
        module: what is saved; it is not changed.
        folder: where, created; a module that was saved there before is replaced.
        fresh: an unpruned module as loading will be given; where it is given, the files are read
            back into it, which shows that they can be. Without it, into a copy of `module`.
        example: inputs on which the module read back must compute the same, exactly, in evaluation
            mode: a tensor, a tuple of arguments, or a mapping of keyword arguments.

    Raises:
        ValueError: a parameter is not finite, a state is no tensor, or the module read back
            differs.
    """
    # 1. Write both files where nobody looks for them.
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = tensor_bytes(module)
    description = describe(module, hashlib.sha256(data).hexdigest())
    scratch = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        _write(scratch / TENSORS, data)
        _write(
            scratch / DESCRIPTION,
            json.dumps(description.to_json(), indent=1, sort_keys=True).encode(),
        )
        # 2. Read them back as loading would, and compare.
        _check_equal(
            module, _loaded(module if fresh is None else fresh, scratch, named=folder), example
        )
        # 3. Give them their names; the description, which holds the tensors' digest, last.
        for name in (TENSORS, DESCRIPTION):
            (scratch / name).replace(folder / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def load_module(module: nn.Module, folder: Path | str) -> nn.Module:
    """The module that `save_module` wrote, in evaluation mode: a copy of `module`, resized to the
    saved tensors.

    Nothing is unpickled, no code comes from the files, and torch-pruning is not needed. From the
    files come tensors, and integers for attributes that `module` has as integers (as `heads`,
    `groups`, `out_features`).

    Args:
        module: a fresh, unpruned module of the same architecture, from your own code; it is not
            changed.
        folder: what `save_module` was given.

    Raises:
        ValueError: a file is missing, damaged or of another kind, or does not fit `module`; the
            text names it.
    """
    return _loaded(module, Path(folder), named=Path(folder))


def _loaded(module: nn.Module, folder: Path, *, named: Path) -> nn.Module:
    description = _read_description(folder / DESCRIPTION)
    tensors = read_tensors(folder / TENSORS, description)
    try:
        return fitted(module, tensors, description)
    except ValueError as error:
        raise ValueError(
            f"{named}: does not fit the given {type(module).__name__}: {error}"
        ) from error


def tensor_bytes(module: nn.Module) -> bytes:
    """The module's tensors as a safetensors file; tied ones once. Raises ValueError: a parameter is
    infinite, or anything is NaN; or a tensor is of a kind that cannot be saved.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, sites in tensor_groups(module).items():
        tensor = first_tensor(sites)
        check_finite(sites[0], tensor)
        tensors[name] = tensor.detach().cpu().contiguous().clone()
    try:
        return save(tensors)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"a tensor of {type(module).__name__} cannot be saved: {error}") from error


def read_tensors(path: Path, description: Description) -> dict[str, torch.Tensor]:
    """The tensors of the safetensors file at `path`, which must be the one that was described.
    Raises ValueError: it is missing, was changed, is no such file, holds other tensors, or numbers
    that are not finite.
    """
    # 1. The very bytes that were described.
    data = _read(path)
    if hashlib.sha256(data).hexdigest() != description.sha256:
        # Every safetensors file has its header's brace there; pickles and the archives of
        # torch.save have none.
        kind = (
            "was changed or cut off since it was saved"
            if data[8:9] == b"{"
            else "is no safetensors file"
        )
        raise ValueError(
            f"{path}: {kind}: its SHA-256 is not the recorded one; save the module again"
        )
    # 2. Their tensors, without running code.
    try:
        tensors = load(data)
    except MemoryError:  # the machine's limit, not the file's
        raise
    except Exception as error:  # whatever the library raises for bytes that somebody made up
        raise ValueError(
            f"{path}: is no safetensors file ({type(error).__name__}); save the module again"
        ) from error
    # 3. The names, types and shapes that were described, no more and no fewer.
    for name in sorted(tensors.keys() ^ description.tensors.keys()):
        where = "is not described" if name in tensors else "is missing in it"
        raise ValueError(f"{path}: the tensor {name!a} {where}; save the module again")
    for name, tensor in tensors.items():
        expected = description.tensors[name]
        if (dtype_name(tensor), list(tensor.shape)) != (expected.dtype, expected.shape):
            raise ValueError(
                f"{path}: the tensor {name!a} is {dtype_name(tensor)} {list(tensor.shape)}, not"
                f" {printable(expected.dtype)} {expected.shape} as described; save the module again"
            )
    return tensors


def parsed_json(data: bytes) -> Any:
    """Parse JSON as `json.loads` does, of files that are not nested deeply.

    Deep nesting would overflow the C stack of a process whose recursion limit some library has
    raised. Raises ValueError: it is no JSON, or is nested too deeply.
    """
    depth = 0
    for token in _BRACKET.finditer(data):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(token.group(), 0)
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} levels deep")
    return json.loads(data)


def _read_description(path: Path) -> Description:
    data = _read(path, LARGEST_JSON)
    try:
        document = parsed_json(data)
    except ValueError as error:
        raise ValueError(
            f"{path}: is no JSON, or cut off ({type(error).__name__}); save the module again"
        ) from error
    try:
        return Description.from_json(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read(path: Path, limit: int | None = None) -> bytes:
    try:
        if limit is not None and path.stat().st_size > limit:
            raise ValueError(
                f"{path}: has {path.stat().st_size} bytes, more than {limit}: it is no such file"
            )
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(
            f"{path}: is missing; a saved module is {TENSORS} and {DESCRIPTION} in one folder"
        ) from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _check_equal(module: nn.Module, restored: nn.Module, example: Example | None) -> None:
    # 1. Every tensor, bit by bit.
    before, after = tensor_groups(module), tensor_groups(restored)
    for name in sorted(before.keys() | after.keys()):
        if (
            name not in before
            or name not in after
            or not _equal(first_tensor(before[name]), first_tensor(after[name]))
        ):
            raise ValueError(f"{name} read back differs from the one in memory; is the disk sound?")
    if example is None:
        return
    # 2. The outputs: they show what is neither a tensor nor a number of a layer.
    expected, restored_outputs = (
        _outputs(module_of_two, example) for module_of_two in (duplicate(module).eval(), restored)
    )
    if not expected:
        raise ValueError(
            f"{type(module).__name__} gave no tensor for the example: nothing can be compared"
        )
    if len(expected) != len(restored_outputs) or not all(map(_equal, expected, restored_outputs)):
        raise ValueError(
            f"{type(module).__name__} read back computes something else than the one in memory:"
            " something that is neither a tensor nor a number or text attribute of a layer differs"
        )


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.allclose(first.cpu(), second.cpu(), rtol=0, atol=0, equal_nan=True)


@torch.no_grad()
def _outputs(module: nn.Module, example: Example) -> list[torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if isinstance(example, Mapping):
            return _tensors(module(**example))
        return _tensors(module(*example) if isinstance(example, tuple) else module(example))


def _tensors(output: object) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    parts = (
        output.values()
        if isinstance(output, Mapping)
        else output
        if isinstance(output, (tuple, list))
        else ()
    )
    return [tensor for part in parts for tensor in _tensors(part)]
