"""Modules whose layers were resized, as by pruning: saved without pickle, and loaded into a
fresh, unpruned module.
"""

from evalsuite.resizing.files import load_module, save_module

__all__ = ["load_module", "save_module"]
