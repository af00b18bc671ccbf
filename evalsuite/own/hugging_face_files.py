"""The files in which Hugging Face keeps weights, as they are stored: safetensors, alone or in
pieces.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evalsuite.own.checkpoints import not_real
from opgraph.errors import OwnError

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_REAL = ("F64", "F32", "F16", "BF16")  # safetensors' names of numbers that stand for themselves


def check_stored(place: str, network: Any) -> None:
    """Raise OwnError where the files of a folder, or of a name on the hub, hold real weights of the
    model `network` of them as numbers of another kind, which the library casts.
    """
    from safetensors import safe_open

    is_float = {name: tensor.is_floating_point() for name, tensor in network.state_dict().items()}
    body = f"{network.base_model_prefix}."
    for file in _weight_files(place):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (no mapping)
                kind = tensors.get_slice(name).get_dtype()
                newer = name.replace(".gamma", ".weight").replace(".beta", ".bias")
                known = [
                    n for n in (newer, body + newer, newer.removeprefix(body)) if n in is_float
                ]
                # Of what the library renames, a bias may be an old release's mask.
                real = is_float[known[0]] if known else name.endswith(".weight")
                if real and kind not in _REAL:
                    raise not_real(name, kind, str(file))


def _weight_files(place: str) -> list[Path]:
    """The safetensors files of a folder, or those that the hub's cache has of a name. Raises
    OwnError: the index names one outside of the folder.
    """
    from transformers.utils.hub import cached_file

    alone, index = (_found(cached_file, place, name) for name in WEIGHTS)
    if alone is not None or index is None:
        return [alone] if alone is not None else []
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # the library told it
        return []
    if outside := [name for name in names if Path(str(name)).name != name]:
        raise OwnError(
            f"the model: {index} names {outside[0]!r}, outside of its folder; copy all weights"
            " beside it"
        )
    return [path for name in names if (path := _found(cached_file, place, name)) is not None]


def _found(cached_file: Any, place: str, name: str) -> Path | None:
    if Path(place).is_dir():
        return Path(place, name) if Path(place, name).is_file() else None
    path = cached_file(
        place, name, local_files_only=True, _raise_exceptions_for_missing_entries=False
    )
    return None if path is None else Path(path)
