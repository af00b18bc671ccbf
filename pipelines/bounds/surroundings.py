"""What auto_LiRPA needs around it: what later torch and numpy removed, lent while it runs and taken back.

Release 0.3 is from the time of torch 1.12.
"""

from __future__ import annotations

import collections.abc
import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np
import torch

LEGACY = tuple(int(part) for part in version("auto_LiRPA").split(".")[:2]) < (0, 4)


def _module(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    return module


def _exporter() -> Any:
    """The settings of torch's exporter, whose module moved after torch 2.8."""
    for name in ("torch.onnx._internal.torchscript_exporter._globals", "torch.onnx._globals"):
        with contextlib.suppress(ModuleNotFoundError):
            return import_module(name).GLOBALS
    raise ImportError("torch.onnx has no settings of its TorchScript exporter; use an earlier torch")


def _lendings() -> tuple[list[tuple[Any, str, Any]], dict[str, ModuleType]]:
    """The attributes and the modules that release 0.3 needs and that are not there."""
    exporter = _exporter()

    def set_opset(number: int) -> None:
        exporter.export_onnx_opset_version = number

    six = _module("torch._six", string_classes=(str, bytes), inf=float("inf"), container_abcs=collections.abc)
    attributes = [
        (torch, "_six", six),
        (import_module("torch.onnx.symbolic_helper"), "_set_opset_version", set_opset),
        (torch._C.Node, "__getitem__", lambda node, key: getattr(node, node.kindOf(key))(key)),
        (np, "bool", np.bool_),
    ]
    modules = {"torch._six": six, "numpy.lib.arraysetops": _module("numpy.lib.arraysetops", isin=np.isin)}
    return (
        [each for each in attributes if not hasattr(each[0], each[1])],
        {name: each for name, each in modules.items() if name not in sys.modules},
    )


@contextlib.contextmanager
def at_home() -> Iterator[None]:
    """What auto_LiRPA expects of its surroundings while it runs, and float64; put back afterwards."""
    exporter = _exporter()
    lent, modules = _lendings() if LEGACY else ([], {})
    dtype, opset, handlers = torch.get_default_dtype(), exporter.export_onnx_opset_version, list(logging.root.handlers)
    # An operator of our own is written as it says itself, whatever torch's functions inside it do.
    inlining = getattr(exporter, "autograd_inlining", True)
    exporter.autograd_inlining = False
    sys.modules.update(modules)
    for owner, name, value in lent:
        setattr(owner, name, value)
    torch.set_default_dtype(torch.float64)
    try:
        # It prints its progress, and sets filters of its own for warnings.
        with warnings.catch_warnings(record=True), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        torch.set_default_dtype(dtype)
        for owner, name, _ in lent:
            delattr(owner, name)
        for name in modules:
            del sys.modules[name]
        exporter.export_onnx_opset_version = opset
        exporter.autograd_inlining = inlining
        logging.root.handlers[:] = handlers
