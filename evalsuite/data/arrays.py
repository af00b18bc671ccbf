"""Arrays: an .npz file, or a mapping of them that a user's function returns."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from evalsuite.data.parts import Part, Raw, part_named
from evalsuite.data.source import Source
from evalsuite.plugins import did_you_mean
from evalsuite.samples import Several
from opgraph.errors import OwnError
from opgraph.inputs import leaves
from opgraph.limits import check_archive

TARGETS = ("y", "labels", "label", "targets", "target")
_WRITE = 'write it with numpy.savez("data.npz", x=..., y=...)'


def read_npz(source: Source) -> Raw:
    """Arrays `x` and `y`, or named inputs and `y`; each with `_train`, `_validation`, `_test`
    behind it for parts. Raises OwnError where the file is none, holds objects, or has no targets.
    """
    if not zipfile.is_zipfile(source.place):
        raise OwnError(f"{source.path}: is no .npz archive, or a damaged one; {_WRITE}")
    check_archive(source.place)
    _check_heads(source)
    with np.load(source.place, allow_pickle=False) as archive:
        arrays = {name: _array(archive, name, source.path) for name in archive.files}
    return raw_of(arrays, source, source.path)


def _check_heads(source: Source) -> None:
    """Raise OwnError where an array's head promises more numbers than the archive holds."""
    with zipfile.ZipFile(source.place) as archive:
        for entry in archive.infolist():
            shape, size = _promised(archive, entry)
            if size > entry.file_size:
                said = (
                    f"the array {entry.filename.removesuffix('.npy')!r} of shape {shape} takes"
                    f" {size:,} bytes"
                )
                raise OwnError(
                    f"{source.path}: {said}, and the file has {entry.file_size:,} of it; {_WRITE}"
                )


def _promised(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[tuple[int, ...], int]:
    """The shape in an array's head, and its bytes; (), 0 of what has no such head, which its
    reader tells.
    """
    with suppress(Exception), archive.open(entry) as file:  # a damaged head may raise anything
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, kind = read(file)
        return shape, 0 if kind.hasobject else math.prod(shape) * kind.itemsize
    return (), 0


def _array(archive: Any, name: str, said: str) -> np.ndarray:
    try:
        return np.asarray(archive[name])
    except ValueError as error:
        if "pickle" not in str(error).lower():
            raise OwnError(
                f"{said}: the array {name!r} cannot be read ({error}); {_WRITE}"
            ) from error
        cure = "save numbers, or texts of fixed length"
        raise OwnError(
            f"{said}: the array {name!r} holds pickled objects, which are not read; {cure}"
        ) from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise OwnError(f"{said}: the array {name!r} is damaged ({error}); {_WRITE}") from error


def raw_of(arrays: Mapping[str, Any], source: Source, said: str) -> Raw:
    """The data of arrays by name; a name such as `x_test` also tells the part. Raises OwnError
    where there is no array, or `part_of` refuses one.
    """
    parts: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        stem, part = _stem(name)
        parts.setdefault(part or "train", {})[stem] = array
    if not parts:
        raise OwnError(f"{said}: holds no array; {_WRITE}")
    read = {
        name: part_of(arrays_of_part, source, f"{said}, part {name}")
        for name, arrays_of_part in parts.items()
    }
    return tell(Raw(read, said=said))


def part_of(arrays: Mapping[str, Any], source: Source, said: str) -> Part:
    """The part that consists of these inputs and targets. Raises OwnError where there are no
    inputs, their numbers of samples differ, or the targets are missing or of a type that is not
    read.
    """
    if absent := [name for name in source.target if name not in arrays]:
        raise OwnError(f"{said}: there is no array {absent[0]!r}{did_you_mean(absent[0], arrays)}")
    # 1. The target, by the name that is given or by a usual one; all other arrays are inputs.
    target = (
        source.target[0]
        if source.target
        else next((name_of_target for name_of_target in TARGETS if name_of_target in arrays), "")
    )
    inputs = {
        name: tensor_of(array, f"{said}: {name}")
        for name, array in arrays.items()
        if name not in (target, *source.target)
    }
    if not inputs:
        raise OwnError(f"{said}: there are no inputs, only {target!r}; {_WRITE}")
    # 2. Inputs of equal length; several stay apart, by their names.
    sizes = {name: len(tensor) for name, tensor in inputs.items()}
    if len(set(sizes.values())) > 1:
        raise OwnError(
            f"{said}: inputs of one sample belong together, but there are {sizes}; give each"
            " sample all"
        )
    chosen = next(iter(inputs.values())) if len(inputs) == 1 else Several(inputs)
    # 3. Targets, one for each sample, of a type that a task could read.
    if len(source.target) > 1:
        several = {name: targets_of(arrays[name], f"{said}: {name}") for name in source.target}
        return Part(chosen, several, where_in(said))
    targets = targets_of(arrays[target], f"{said}: {target}") if target else None
    return Part(chosen, targets, where_in(said))


def targets_of(array: Any, said: str) -> np.ndarray:
    """Targets, one for each sample, of a type that a task could read. Raises OwnError: they are
    not.
    """
    _check_masked(array, said)
    targets = np.asarray(array)
    if targets.ndim == 0:
        raise OwnError(f"{said} is one {targets.dtype}; give each sample its target")
    if targets.dtype.kind not in "iufbUS":
        raise OwnError(f"{said} is of type {targets.dtype}; give numbers or texts")
    return targets


def _check_masked(array: Any, said: str) -> None:
    """Refuse numbers that a mask hides: without it they would be taken as they are."""
    hidden = int(np.ma.getmaskarray(array).sum()) if isinstance(array, np.ma.MaskedArray) else 0
    if hidden:
        raise OwnError(f"{said} has {hidden:,} masked entries; fill them, or leave the samples out")


def where_in(said: str, unit: str = ", sample ") -> Callable[[int], str]:
    """Names a sample of something in memory: "data.npz, part train, sample 3"."""
    return partial(_numbered, said, unit)


def _numbered(said: str, unit: str, index: int) -> str:
    return said if index < 0 else f"{said}{unit}{index}"


def tensor_of(array: Any, said: str) -> torch.Tensor:
    """An array (samples, ...) as inputs: see `as_input`. Raises OwnError for what is no number,
    and for one alone.
    """
    if isinstance(array, torch.Tensor) and (array.layout != torch.strided or array.is_nested):
        raise OwnError(f"{said} is sparse, or nested; give it as .to_dense()")
    _check_masked(array, said)
    if not isinstance(array, torch.Tensor):
        array = np.asarray(array)
        if array.dtype.kind not in "iufb":
            raise OwnError(f"{said} is of type {array.dtype}; give numbers")
        array = torch.from_numpy(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))
    if array.ndim == 0:
        raise OwnError(f"{said} is one number; give (samples, ...)")
    values = array.detach().cpu()
    if values.dtype == torch.float64 and (place := coarse(values)) is not None:
        where = f"entry {place} of a sample" if values.ndim > 1 else "it"
        cure = "subtract an offset, or scale it"
        raise OwnError(
            f"{said}: {where} differs between samples by less than float32 tells: {cure}"
        )
    return as_input(values, said)


_LOST = 0.01  # of the spread of numbers, that float32 may round away


def coarse(values: torch.Tensor) -> int | None:
    """The first entry of a sample, (samples, ...) flattened, that float32 rounds by more than a
    hundredth of its spread, as times in seconds since 1970; None where there is none.
    """
    flat = values.reshape(len(values), -1).double()
    rounding = (flat - flat.float().double()).abs().nan_to_num(posinf=0.0).amax(0)
    spread = flat.nan_to_num(posinf=0.0, neginf=0.0).std(0, correction=0)
    lost = ((rounding > _LOST * spread) & (spread > 0)).nonzero().flatten()
    return int(lost[0]) if len(lost) else None


def as_input(batch: torch.Tensor, said: str) -> torch.Tensor:
    """A batch (samples, ...) as inputs. Real numbers become float32; pixels, uint8 of three
    dimensions or more, lie in [0, 1] with channels first; other integers are tokens, int64. Raises
    OwnError where integers have three dimensions or more, or are negative.
    """
    if batch.is_complex():
        raise OwnError(f"{said} is {batch.dtype}; give its real and imaginary parts as numbers")
    # The dtype says what is meant: real numbers, pixels, or tokens.
    if batch.is_floating_point():
        return batch.float()
    if batch.dtype == torch.uint8 and batch.ndim > 2:
        # Channels last, as images are stored: three of them, or one, at the end alone.
        last = batch.ndim == 4 and batch.shape[-1] in (1, 3) and batch.shape[1] not in (1, 3)
        return (batch.permute(0, 3, 1, 2) if last else batch).float() / 255
    if batch.ndim > 2:
        raise OwnError(
            f"{said} is {batch.dtype} {tuple(batch.shape)}: give pixels as uint8, real numbers as"
            " float32"
        )
    tokens = batch.long()
    if bool((tokens < 0).any()):
        raise OwnError(
            f"{said} has the integer {int(tokens.min())}: tokens are >= 0; give real numbers as"
            " float32"
        )
    return tokens


def tell(raw: Raw) -> Raw:
    """Set the vocabulary of `raw` if its first input consists of tokens, and return it."""
    several = [part.inputs for part in raw.parts.values() if len(part.inputs)]
    first = [
        samples_of_part
        if isinstance(samples_of_part, torch.Tensor)
        else leaves(samples_of_part[:])[0]
        for samples_of_part in several
    ]
    if first and not first[0].is_floating_point():
        raw.vocabulary = 1 + max(int(tokens.max()) for tokens in first)
    return raw


def _stem(name: str) -> tuple[str, str]:
    """ "x_train" is the array x of the part train."""
    for stem, _, word in (name.rpartition("_"), name.partition("_")[::-1]):
        if stem and part_named(word):
            return stem, part_named(word)
    return name, ""
