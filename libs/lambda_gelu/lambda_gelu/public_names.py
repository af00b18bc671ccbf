"""The public names of a package, each loaded on first use, so that importing it imports nothing
heavy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def attach(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return what a package's `__init__.py` needs to load its public names: `__getattr__`,
    `__dir__` and `__all__`.

    Args:
        package: its `__name__`.
        names: the public names by the module that defines them, relative to the package. Its
            `__init__.pyi` declares the same to type checkers.
    """
    homes = {name: module for module, several in names.items() for name in several}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, listed, [*homes]
