"""Bounds, search and proofs for neural networks: does a property hold on a box of inputs?

The public names load on first use: `import netverify` itself imports nothing heavy.

>>> import netverify, torch
>>> from lambda_gelu import GELU
>>> least, most = netverify.interval(GELU, torch.tensor(-1.0), torch.tensor(2.0))
>>> f"{least:.2f} to {most:.2f}"
'-0.17 to 1.95'
"""

from __future__ import annotations

from lambda_gelu.public_names import attach

__version__ = "0.1.0"
# By the module that defines them; __init__.pyi declares the same to type checkers.
__getattr__, __dir__, __all__ = attach(
    __name__,
    {
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
    },
)
