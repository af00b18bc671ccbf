"""Modules whose layers were resized, as by pruning: saved without pickle, and loaded into a fresh, unpruned module."""

from evalsuite.resizing.description import Description, describe
from evalsuite.resizing.files import DESCRIPTION, TENSORS, load_module, read_tensors, save_module, tensor_bytes
from evalsuite.resizing.fitting import fitted

__all__ = [
    "DESCRIPTION",
    "TENSORS",
    "Description",
    "describe",
    "fitted",
    "load_module",
    "read_tensors",
    "save_module",
    "tensor_bytes",
]
