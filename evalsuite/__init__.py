"""evalsuite: what does replacing GELU by ReLU buy, and cost, downstream?

The public names, all that a plugin may import. They load on first use: `import evalsuite` itself imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite.activations import GELU, LAMBDA_GELU, RELU, Activation, Found, LambdaGELU, census, replace
    from evalsuite.contract import (
        Bench,
        Data,
        Direction,
        Metric,
        Network,
        Outcome,
        Property,
        Split,
        Stage,
        Unsupported,
        Verdict,
    )
    from evalsuite.deployment import Latency, compare_latency, export_onnx, open_onnx, run_onnx
    from evalsuite.relaxations import Lines, interval, relax
    from evalsuite.reluize.folding import fold_hardness
    from evalsuite.reluize.hardening import Hardening
    from evalsuite.reluize.swap import swap_to_relu
    from evalsuite.verification import Replay, falsify, float32_box, margin

_HOME = {
    "evalsuite.activations": (
        "GELU",
        "LAMBDA_GELU",
        "RELU",
        "Activation",
        "Found",
        "LambdaGELU",
        "census",
        "replace",
    ),
    "evalsuite.contract": (
        "Bench",
        "Data",
        "Direction",
        "Metric",
        "Network",
        "Outcome",
        "Property",
        "Split",
        "Stage",
        "Unsupported",
        "Verdict",
    ),
    "evalsuite.deployment": ("Latency", "compare_latency", "export_onnx", "open_onnx", "run_onnx"),
    "evalsuite.reluize.folding": ("fold_hardness",),
    "evalsuite.reluize.hardening": ("Hardening",),
    "evalsuite.reluize.swap": ("swap_to_relu",),
    "evalsuite.relaxations": ("Lines", "interval", "relax"),
    "evalsuite.verification": ("Replay", "falsify", "float32_box", "margin"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "GELU",
    "LAMBDA_GELU",
    "RELU",
    "Activation",
    "Bench",
    "Data",
    "Direction",
    "Found",
    "Hardening",
    "LambdaGELU",
    "Latency",
    "Lines",
    "Metric",
    "Network",
    "Outcome",
    "Property",
    "Replay",
    "Split",
    "Stage",
    "Unsupported",
    "Verdict",
    "census",
    "compare_latency",
    "export_onnx",
    "falsify",
    "float32_box",
    "fold_hardness",
    "interval",
    "margin",
    "open_onnx",
    "relax",
    "replace",
    "run_onnx",
    "swap_to_relu",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'evalsuite' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
