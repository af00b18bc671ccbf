"""One typed graph of a network, read from a module or from an ONNX file, run by a plain reference.

The public names load on first use: `import opgraph` itself imports nothing heavy.

>>> import opgraph, torch
>>> network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GELU())
>>> graph = opgraph.read(network, torch.zeros(1, 2))
>>> [type(node.operation).__name__ for node in graph.nodes]
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
# The public names by the module that defines them; __init__.pyi declares the same to type checkers.
_NAMES = {
    "deployment": ("export_onnx", "graph_digest", "run_onnx"),
    "errors": ("OwnError", "Unsupported"),
    "graph": ("Graph", "Node"),
    "inputs": ("Inputs",),
    "onnx_model": ("load_model",),
    "onnx_network": ("OnnxNetwork", "open_onnx"),
    "reading": ("read", "read_onnx"),
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
