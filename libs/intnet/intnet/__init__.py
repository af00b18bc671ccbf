"""Integer-only neural networks: run by definition, proven not to overflow, written as ONNX.

The public names load on first use: `import intnet` itself imports nothing heavy.

>>> import intnet
>>> grid = intnet.Grid(1 / 255, 0, 0, 255)
>>> intnet.IntegerNetwork(grid, (4,), (), grid).rounding.value
'half-even'
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
# The public names by the module that defines them; __init__.pyi declares the same to type checkers.
_NAMES = {
    "execution": ("Executor",),
    "grids": (
        "INPUT",
        "Dyadic",
        "Grid",
        "Rounding",
    ),
    "network": (
        "IntegerNetwork",
        "count_operations",
        "prove_ranges",
        "write_integer_onnx",
    ),
    "parts": ("in_integers",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
