"""A network's float32 ONNX file: written once, with the network, for all stages that need it."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from weakref import WeakKeyDictionary

import onnx
from torch import nn

from evalsuite.contract import Network
from lambda_gelu.folding import fold_hardness
from opgraph.deployment import export_onnx

# By the module, not in the network: one that `dataclasses.replace` gives another module must not
# keep the file.
_KEPT: WeakKeyDictionary[nn.Module, Path] = WeakKeyDictionary()


def export_network(network: Network, path: Path) -> onnx.ModelProto:
    """Write a stage's network, its hardness folded, as one float32 ONNX file, as `export_onnx`
    does; its model is returned.

    A stage that declares `exports` finds the file written already, with the network, and it is
    copied here.

    Raises:
        Exception: whatever torch, onnx or ONNX Script raise at a module that they do not take.
    """
    if network.module in _KEPT:
        shutil.copyfile(_KEPT[network.module], path)
        return onnx.load(str(path))
    example = network.example(2)
    return export_onnx(
        fold_hardness(network.module, (example,)), network.input_shape, path, example=example
    )


def keep_exported(network: Network, folder: Path) -> None:
    """Write the file to the folder of the saved network.

    Of a module that cannot be exported there is none: the stage that needs it tries for itself, and
    says why not.
    """
    if network.deployed is not None:
        return
    path = _place(folder)
    try:
        export_network(network, path)
    except (OSError, MemoryError):  # a full disk says nothing of the network
        raise
    except Exception:  # torch, onnx and ONNX Script share no base class
        path.unlink(missing_ok=True)


def remember_exported(network: Network, folder: Path) -> None:
    """Let `export_network` find what `keep_exported` wrote beside this network; another
    exporter's is not taken.
    """
    path = _place(folder)
    if path.is_file():
        _KEPT[network.module] = path


def _place(folder: Path) -> Path:
    versions = "-".join(version(name) for name in ("torch", "onnx", "onnxscript"))
    return folder / f"float32-{versions}.onnx"
