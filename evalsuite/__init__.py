"""evalsuite: what does replacing GELU by ReLU buy, and cost, downstream?

The names to learn first. They load on first use: `import evalsuite` itself imports nothing heavy.
All other names are imported from their modules and libraries, as docs/reference.md lists them.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from evalsuite.moved import NEW_PLACES

__version__ = "0.1.0"
# By the module that defines them; __init__.pyi declares the same to type checkers.
_NAMES = {
    "evalsuite.contract": (
        "Bench",
        "Capabilities",
        "Data",
        "Direction",
        "Metric",
        "Network",
        "Outcome",
        "Property",
        "Split",
        "Stage",
        "Task",
        "Unsupported",
        "Verdict",
    ),
    "evalsuite.own.calling": (
        "assess",
        "workload",
    ),
    "evalsuite.own.reluizing": ("relu_ize",),
    "evalsuite.own.saving": ("load_own",),
    "evalsuite.report.section": ("Section",),
    "evalsuite.results": ("read_results",),
    "evalsuite.tasks": ("score",),
    "evalsuite.variants.variant": ("Variant",),
    "evalsuite.workloads.workload": ("Workload",),
    "lambda_gelu": (
        "Activation",
        "LambdaGELU",
        "census",
        "fold_hardness",
        "harden",
        "swap",
        "swap_to_relu",
    ),
    "netverify": (
        "Answer",
        "certify_swap",
        "verify",
    ),
    "netverify.proofs": ("check_proof",),
    "opgraph": (
        "OwnError",
        "export_onnx",
        "open_onnx",
    ),
    "opgraph.from_onnx": ("from_onnx",),
}

_PLACES = {name: module for module, names in _NAMES.items() for name in names}
_PLACES["run"] = "evalsuite.run"  # a package that is called
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    """Load a public name; a name that has moved warns once, and says where it is now."""
    module = _PLACES.get(name) or NEW_PLACES.get(name)
    if module is None:
        raise AttributeError(f"No {__name__} attribute {name}")
    if name not in _PLACES:
        text = f"`from evalsuite import {name}` is deprecated: `from {module} import {name}`"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
    value = import_module(module)
    if name != "run":
        value = getattr(value, name)
    # An import statement asks twice: the second time it finds the value, and warns no more.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
