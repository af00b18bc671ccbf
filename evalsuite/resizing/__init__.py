"""Modules whose layers were resized, as by pruning: saved without pickle, and loaded into a fresh, unpruned module."""

from evalsuite.resizing.description import Description, checksum, describe, printable
from evalsuite.resizing.files import (
    DESCRIPTION,
    LARGEST_JSON,
    TENSORS,
    load_module,
    parsed_json,
    read_tensors,
    save_module,
    tensor_bytes,
)
from evalsuite.resizing.fitting import fitted

__all__ = [
    "DESCRIPTION",
    "LARGEST_JSON",
    "TENSORS",
    "Description",
    "checksum",
    "describe",
    "fitted",
    "load_module",
    "parsed_json",
    "printable",
    "read_tensors",
    "save_module",
    "tensor_bytes",
]
