"""Entry points: each plugin is loaded alone, so that a broken one fails alone, with its name."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from typing import Any

# The groups of rows of traits: a row is registered in either. The second is older than this
# library, and installed plugins have it.
ACTIVATIONS = ("lambda_gelu.activations", "evalsuite.activations")


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


def entries(*groups: str) -> list[EntryPoint]:
    """The entry points of these groups, by name; nothing is imported."""
    return _entries(groups, tuple(folder for folder in sys.path if _holds_distributions(folder)))


@cache
def _holds_distributions(folder: str) -> bool:
    return any(True for _ in distributions(path=[folder]))


@cache
def _entries(groups: tuple[str, ...], _folders: tuple[str, ...]) -> list[EntryPoint]:
    """Asked often, and slow: the metadata of every installed distribution is read. It is read anew
    only where another folder of distributions is on the path, not for a user's folder of modules.
    """
    points = [point for group in groups for point in entry_points(group=group)]
    return sorted(points, key=lambda entry: entry.name)


@cache
def origin_of(distribution: Distribution | None) -> tuple[str, str]:
    """The name and the version of what brings a plugin."""
    return (distribution.name, distribution.version) if distribution else ("?", "?")


def _load(entry: EntryPoint) -> Plugin:
    origin, version = origin_of(entry.dist)
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


def load_all(*groups: str) -> list[Plugin]:
    """Every plugin of these groups, broken ones included."""
    return [_load(entry) for entry in entries(*groups)]


def load(name: str, *groups: str) -> Plugin:
    """The plugin of that name; only it is imported.

    Raises:
        PluginError: there is none of that name, it is broken, or two distributions claim the name.
    """
    matching = [entry for entry in entries(*groups) if entry.name == name]
    kind = groups[0].rpartition(".")[2].removesuffix("s")
    if not matching:
        known = [entry.name for entry in entries(*groups)]
        raise PluginError(f"unknown {kind} {name!r}{did_you_mean(name, known)}")
    # A name that two distributions claim must not depend on which is found first.
    if len(matching) > 1:
        claimants = ", ".join(
            sorted(entry.dist.name if entry.dist else entry.value for entry in matching)
        )
        raise PluginError(
            f"{kind} {name!r} is registered by more than one distribution: {claimants};"
            " uninstall one"
        )
    plugin = _load(matching[0])
    if plugin.error:
        raise PluginError(f"{kind} {name!r} of {plugin.origin} {plugin.version} is {plugin.error}")
    return plugin


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'; did you mean 'x'?', or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else "; none is known"
