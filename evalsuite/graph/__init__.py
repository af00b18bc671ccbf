"""One typed graph of a network, read from a module or from an ONNX file, run by a plain
reference.
"""

from evalsuite.graph import moving, operations
from evalsuite.graph.graph import Graph, Node
from evalsuite.graph.reading import read, read_onnx

__all__ = ["Graph", "Node", "moving", "operations", "read", "read_onnx"]
