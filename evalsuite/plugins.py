"""The suite's plugins by entry point, their options, and what they need installed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from typing import Any

from lambda_gelu import plugins
from lambda_gelu.plugins import (
    Plugin,
    PluginError,
    did_you_mean,
    first_paragraph,
    origin_of,
)

__all__ = [
    "GROUPS",
    "Plugin",
    "PluginError",
    "cure_of",
    "did_you_mean",
    "entries",
    "find",
    "first_paragraph",
    "load",
    "load_all",
    "missing",
    "options_of",
    "texts_of",
]
GROUPS = ("stages", "workloads", "variants", "activations", "tasks", "sections")


def entries(group: str) -> list[EntryPoint]:
    """The entry points of the suite's group of that name, by name; nothing is imported."""
    return plugins.entries(*_full(group))


def load_all(group: str) -> list[Plugin]:
    """Every plugin of the group, broken ones included."""
    return plugins.load_all(*_full(group))


def load(group: str, name: str) -> Plugin:
    """The plugin of that name; only it is imported.

    Raises:
        PluginError: there is none of that name, it is broken, or two distributions claim the name.
    """
    return plugins.load(name, *_full(group))


def _full(group: str) -> tuple[str, ...]:
    return plugins.ACTIVATIONS if group == "activations" else (f"evalsuite.{group}",)


def find() -> None:
    """Find all plugins, and who brings them: processes that are forked from this one then need
    not, each for itself.
    """
    for group in GROUPS:
        for entry in entries(group):
            origin_of(entry.dist)


def options_of(target: object) -> list[tuple[str, str, str]]:
    """Name, type and default of each option of a stage, workload or variant: the fields of its
    dataclass.
    """
    if not isinstance(target, type) or not is_dataclass(target):
        return []
    return [
        (field.metadata.get("option", field.name), str(field.type), _default(field))
        for field in fields(target)
        if field.init
    ]


def _default(option: Field[Any]) -> str:
    if option.default_factory is not MISSING:
        return repr(option.default_factory())
    return "required" if option.default is MISSING else repr(option.default)


def texts_of(target: object) -> dict[str, str]:
    """Read the meaning of each option: its entry under `Args:` in the class's docstring, in one
    line; some have none.

    Options that a class inherits are explained by the class that they come from.
    """
    texts: dict[str, str] = {}
    for each in reversed(inspect.getmro(target) if isinstance(target, type) else ()):
        _, _, arguments = inspect.cleandoc(each.__doc__ or "").partition("\nArgs:\n")
        found = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", arguments, flags=re.MULTILINE)
        texts |= {name: " ".join(text.split()) for name, text in found}
    return texts


def missing(libraries: Iterable[str]) -> str:
    """Which of these distributions are not installed, each with the command that installs it;
    empty where all are.
    """
    lacking = []
    for library in libraries:
        try:
            version(library)
        except PackageNotFoundError:
            lacking.append(f"{library} is not installed: {cure_of(library)}")
    return "; ".join(lacking)


def cure_of(library: str) -> str:
    """The command that installs a distribution beside the torch that is here."""
    # Its metadata asks for a torch of 2022, which pip cannot resolve beside a present one; it needs
    # none of it.
    if library.lower().replace("_", "-") == "auto-lirpa":
        return "pip install --no-deps auto-LiRPA==0.3"
    return f'pip install "{library}"'
