"""Integer-only neural networks: run by definition, proven not to overflow, written as ONNX.

The public names load on first use: `import intnet` itself imports nothing heavy.

>>> import intnet
>>> grid = intnet.Grid(1 / 255, 0, 0, 255)
>>> intnet.IntegerNetwork(grid, (4,), (), grid).rounding.value
'half-even'
"""

from __future__ import annotations

from lambda_gelu.public_names import attach

__version__ = "0.1.0"
# By the module that defines them; __init__.pyi declares the same to type checkers.
__getattr__, __dir__, __all__ = attach(
    __name__,
    {
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
    },
)
