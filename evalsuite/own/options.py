"""The options of a user's model: as a command gives them, and resolved into the workload `own`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from evalsuite.data.reading import is_running_text
from evalsuite.own.own import Own
from evalsuite.plugins import did_you_mean
from evalsuite.recipe import construct, in_words, option_names
from evalsuite.recipe_files import declared_options
from opgraph.errors import OwnError


@dataclass(frozen=True)
class Given:
    """The options of a model as a command line, or a call in Python, gives them; empty texts stand
    for options that are not given.

    Args:
        model: a reference, `hf:FOLDER`, `timm:NAME` or `net.onnx`.
        data: a path, a reference, or a mapping with options.
        task: as the option `task` of `own`; where none is named, language-model for running text.
        weights: a file of them.
        start: as the option `start` of `own`.
        settings: other options, each as OPTION=VALUE.
    """

    model: str
    data: str | dict[str, Any] = ""
    task: str = ""
    weights: str = ""
    start: str = ""
    settings: Sequence[str] = ()

    def options(self) -> dict[str, Any]:
        """The options of the workload `own`: those of @evalsuite.workload, then what is given.

        Raises:
            OwnError: an option is unknown, or something that is needed is missing.
        """
        # 1. What is declared beside the model, then what the command line gives, then single
        # settings: the later wins.
        given = {"data": self.data, "task": self.task, "start": self.start}
        given = {name: value for name, value in given.items() if value}
        options = {**declared_options(self.model, given), **given}
        named = options.setdefault("model", self.model)
        if self.weights:
            options["model"] = {
                **({"path": named} if isinstance(named, str) else named),
                "weights": self.weights,
            }
        for setting in self.settings:
            _set(options, setting)
        # 2. What must be there. Running text has no targets but its own tokens; a model that has
        # weights is trained already.
        if "data" not in options:
            raise OwnError("--data is missing: a file, a folder, or my.py:make_data")
        if "task" not in options and is_running_text(options["data"]):
            options["task"] = "language-model"
        if "start" not in options:
            model_given = options["model"]
            loaded = isinstance(model_given, dict) and model_given.get("weights")
            ready = self.model.startswith(("hf:", "timm:")) or self.model.endswith(".onnx")
            options["start"] = "trained" if loaded or ready else "scratch"
        return options


def _set(options: dict[str, Any], setting: str) -> None:
    name, equals, text = setting.partition("=")
    if not equals:
        raise OwnError(f"--set {setting!r}: write OPTION=VALUE, as epochs=5 or data.target=price")
    # 1. The option, and its value as YAML would read it.
    first, *rest = name.split(".")
    known = option_names(Own)
    if first not in known:
        raise OwnError(f"--set {first}: `own` has no such option{did_you_mean(first, known)}")
    try:
        value = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise OwnError(
            f"--set {setting}: the value is no YAML; put texts with signs into quotes"
        ) from error
    # 2. Where it goes: the option itself, or a place inside, as data.target; an option that was a
    # text becomes the mapping that the text stands for.
    if not rest:
        options[first] = value
        return
    inner = options.get(first, {})
    alone = "use" if first == "task" else "path"  # what a text stands for
    place = options[first] = {alone: inner} if isinstance(inner, str) else dict(inner)
    if len(rest) > 1 and not isinstance(place.setdefault(rest[0], {}), dict):
        raise OwnError(
            f"--set {setting}: {first}.{rest[0]} is no mapping; write {first}.{rest[0]}=VALUE"
        )
    for key in rest[:-1]:
        place = place.setdefault(key, {})
    place[rest[-1]] = value


def own_of(options: Mapping[str, Any]) -> Own:
    """The workload with these options, as a recipe would make it. Raises OwnError: an option is
    unknown, or its value is refused.
    """
    known = option_names(Own)
    for name in options:
        if name not in known:
            raise OwnError(f"`own` has no option {name!r}{did_you_mean(name, known)}")
    try:
        workload: Own = construct(Own, options)
    except ValidationError as error:
        first = error.errors()[0]
        parts = [part for part in first["loc"] if part not in ("str", "dict[str,any]")]
        where = ".".join("data" if part == "source" else str(part) for part in parts)
        raise OwnError(f"{where}: {in_words(first)}" if where else in_words(first)) from error
    return workload
