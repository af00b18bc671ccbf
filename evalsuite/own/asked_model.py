"""A model as a recipe names it, and what was changed of it so that it can be measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import model_validator
from torch import nn

from evalsuite.plugins import did_you_mean
from evalsuite.resizing.description import all_sites, check_finite
from opgraph.errors import OwnError

_KEYS = ("path", "args", "weights", "weights_key")
HOW = "write my.py:make, hf:FOLDER, timm:NAME or a file .onnx"


class Arguments(Mapping[str, Any]):
    """Named arguments, as JSON has them: a mapping that is frozen and hashable."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        try:
            self._text = json.dumps(dict(arguments), sort_keys=True)
        except TypeError as error:
            raise ValueError(
                f"args are numbers, texts, lists and mappings, got {dict(arguments)!r}"
            ) from error

    def __getitem__(self, name: str) -> Any:
        return json.loads(self._text)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(json.loads(self._text))

    def __len__(self) -> int:
        return len(json.loads(self._text))

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return self._text


@dataclass(frozen=True)
class Model:
    """A model as a recipe names it: a text, which is the path, or a mapping of these.

    Args:
        path: `my.py:make`, `package.module:Net`, `hf:FOLDER` (or a name on the hub), `timm:NAME`,
            or a file `.onnx`.
        args: of what makes it; of a Hugging Face model changes of its configuration.
        weights: a file of them, `.safetensors`, or `.pt` or `.pth` with a state dict.
        weights_key: which of the file's state dicts, as `state_dict_ema`, or the prefix of the
            network's names in it, as `teacher`. By default the one that fits.
    """

    path: str
    args: Mapping[str, Any] = field(default_factory=dict)
    weights: str = ""
    weights_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", Arguments(self.args))
        if self.weights_key and not self.weights:
            raise ValueError(
                f"weights_key is {self.weights_key!r}, but there are no `weights`: name their file"
            )
        if self.path.endswith(".onnx") and (self.weights or self.args):
            raise ValueError(
                f"{self.path} has weights of its own and takes none, and no `args`: leave them out"
            )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, option: Any) -> Any:
        if isinstance(option, str):
            return {"path": option}
        if isinstance(option, Mapping):
            for key in option:
                if key not in _KEYS:
                    raise ValueError(
                        f"unknown key {key!r} of the model{did_you_mean(str(key), _KEYS)}"
                    )
            if "path" not in option:
                raise ValueError(f"the model has no `path`: {HOW}")
        return option

    @property
    def files(self) -> list[Path]:
        """The files and folders that are named, besides what they import: what a cached result
        depends on.
        """
        _, _, rest = self.path.partition(":")
        named = [
            rest if self.path.startswith("hf:") else self.path.rpartition(":")[0] or self.path,
            self.weights,
        ]
        files = [
            Path(place).expanduser()
            for place in named
            if place and Path(place).expanduser().exists()
        ]
        if self.path.endswith(".onnx") and files:
            from opgraph.onnx_model import parsed, weight_files

            files += weight_files(parsed(files[0]), files[0])
        return files


# What was changed of modules and weights so that they can be measured, in this process.
_CHANGED: dict[Model, dict[str, None]] = {}


def changes_of(model: Model) -> list[str]:
    """List the changes that a model needed so that it can be measured, after it was loaded."""
    return list(_CHANGED.get(model, ()))


def note_change(model: Model, change: str) -> None:
    """Remember a change for `changes_of`."""
    _CHANGED.setdefault(model, {})[change] = None


def check_weights(module: nn.Module, file: str) -> None:
    """Raise OwnError where a tensor of the module is NaN, or a parameter infinite."""
    for site in all_sites(module):
        if site.tensor is not None:
            try:
                check_finite(site, site.tensor)
            except ValueError as error:
                raise OwnError(
                    f"weights: {file}: {site.name} has a value that is NaN or infinite; take an"
                    " earlier checkpoint"
                ) from error
