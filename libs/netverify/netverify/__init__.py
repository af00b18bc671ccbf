"""Bounds, search and proofs for neural networks: does a property hold on a box of inputs?

The public names load on first use: `import netverify` itself imports nothing heavy.

>>> import netverify, torch
>>> from lambda_gelu import GELU
>>> lines = netverify.relax(GELU, torch.tensor(-1.0), torch.tensor(2.0))
>>> bool(lines.lower_slope < lines.upper_slope)
True
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
# The public names by the module that defines them; __init__.pyi declares the same to type checkers.
_NAMES = {
    "cascade": ("verify",),
    "certificate": (
        "SwapBounds",
        "SwapCertificate",
        "UnitBounds",
        "certify_swap",
        "preactivation_bounds",
    ),
    "falsifier": (
        "falsify",
        "float32_box",
        "margin",
    ),
    "onnx_reader": ("read_onnx",),
    "properties": (
        "Property",
        "Verdict",
    ),
    "question": (
        "Answer",
        "Question",
        "Verification",
    ),
    "relaxations": (
        "SIGMOID",
        "SOFTPLUS",
        "TANH",
        "envelope",
        "gated",
        "interval",
        "product",
        "relax",
    ),
    "vnnlib": ("read_vnnlib",),
    "witness": ("Replay",),
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
