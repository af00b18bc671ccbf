"""One typed graph of a network, read from a module or from an ONNX file, run by a plain reference.

The public names load on first use: `import opgraph` itself imports nothing heavy.

>>> import opgraph, torch
>>> network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GELU())
>>> graph = opgraph.read(network, torch.zeros(1, 2))
>>> [type(node.operation).__name__ for node in graph.nodes]
['Input', 'Linear', 'Pointwise']
"""

from __future__ import annotations

from lambda_gelu.public_names import attach

__version__ = "0.1.0"
# By the module that defines them; __init__.pyi declares the same to type checkers.
__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "deployment": ("export_onnx", "graph_digest", "run_onnx"),
        "errors": ("OwnError", "Unsupported"),
        "graph": ("Graph", "Node"),
        "inputs": ("Inputs",),
        "onnx_model": ("load_model",),
        "onnx_network": ("OnnxNetwork", "open_onnx"),
        "reading": ("read", "read_onnx"),
    },
)
