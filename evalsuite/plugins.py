"""Finding plugins by entry point: each is loaded alone, so that a broken one fails alone, with
its name.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

GROUPS = ("stages", "workloads", "variants", "activations", "tasks", "sections")


class PluginError(Exception):
    """An unknown or broken plugin; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point after the attempt to load it: `target` is None where `error` says why."""

    name: str
    origin: str
    version: str
    target: Any
    error: str = ""

    @property
    def help(self) -> str:
        """The first paragraph of its `help` or of its docstring, in one line; empty where it has
        none; of a broken one the error.
        """
        if self.error:
            return self.error
        described = getattr(self.target, "help", None)
        text = described if isinstance(described, str) else inspect.getdoc(self.target) or ""
        return first_paragraph(text)


def first_paragraph(text: str) -> str:
    """The first paragraph of a text, in one line.

    >>> first_paragraph("One sentence\\nin two lines.\\n\\nMore.")
    'One sentence in two lines.'
    """
    return " ".join(text.strip().split("\n\n")[0].split())


def entries(group: str) -> list[EntryPoint]:
    """The entry points of `evalsuite.<group>`, by name; nothing is imported."""
    return _entries(group, tuple(sys.path))


@cache
def _entries(group: str, _path: tuple[str, ...]) -> list[EntryPoint]:
    """Asked often, and slow: the metadata of every installed distribution is read."""
    return sorted(entry_points(group=f"evalsuite.{group}"), key=lambda entry: entry.name)


def find() -> None:
    """Find all plugins, and who brings them: processes that are forked from this one then need
    not, each for itself.
    """
    for group in GROUPS:
        for entry in entries(group):
            _origin(entry.dist)


@cache
def _origin(distribution: Distribution | None) -> tuple[str, str]:
    return (distribution.name, distribution.version) if distribution else ("?", "?")


def _load(entry: EntryPoint) -> Plugin:
    origin, version = _origin(entry.dist)
    try:
        return Plugin(entry.name, origin, version, entry.load())
    except BaseException as error:  # a plugin may raise anything at import, even SystemExit
        if isinstance(error, KeyboardInterrupt):
            raise
        reason = " ".join(str(error).split())
        return Plugin(
            entry.name,
            origin,
            version,
            None,
            f"broken: {type(error).__name__}: {reason} ({entry.value})",
        )


def load_all(group: str) -> list[Plugin]:
    """Every plugin of the group, broken ones included."""
    return [_load(entry) for entry in entries(group)]


def load(group: str, name: str) -> Plugin:
    """The plugin of that name; only it is imported.

    Raises:
        PluginError: there is none of that name, it is broken, or two distributions claim the name.
    """
    found = [entry for entry in entries(group) if entry.name == name]
    kind = group.removesuffix("s")
    if not found:
        raise PluginError(
            f"unknown {kind} {name!r}{did_you_mean(name, [entry.name for entry in entries(group)])}"
        )
    if len(found) > 1:
        claimants = ", ".join(
            sorted(entry.dist.name if entry.dist else entry.value for entry in found)
        )
        raise PluginError(
            f"{kind} {name!r} is registered by more than one distribution: {claimants};"
            " uninstall one"
        )
    plugin = _load(found[0])
    if plugin.error:
        raise PluginError(f"{kind} {name!r} of {plugin.origin} {plugin.version} is {plugin.error}")
    return plugin


def options_of(target: object) -> list[tuple[str, str, str]]:
    """Name, type and default of each option of a stage, workload or variant: the fields of its
    dataclass.
    """
    if not isinstance(target, type) or not is_dataclass(target):
        return []
    return [
        (each.metadata.get("option", each.name), str(each.type), _default(each))
        for each in fields(target)
        if each.init
    ]


def _default(option: Field[Any]) -> str:
    if option.default_factory is not MISSING:
        return repr(option.default_factory())
    return "required" if option.default is MISSING else repr(option.default)


def texts_of(target: object) -> dict[str, str]:
    """What each option means: its entry under `Args:` in the class's docstring, in one line; some
    have none.

    Options that a class inherits are explained by the class that they come from.
    """
    texts: dict[str, str] = {}
    for each in reversed(inspect.getmro(target) if isinstance(target, type) else ()):
        _, _, arguments = inspect.cleandoc(each.__doc__ or "").partition("\nArgs:\n")
        found = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", arguments, flags=re.MULTILINE)
        texts |= {name: " ".join(text.split()) for name, text in found}
    return texts


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'; did you mean 'x'?', or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else "; none is known"


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
