"""Give auto_LiRPA what it needs around it: what later torch and numpy removed, and an operator for
operations of our own.

Release 0.3 is from the time of torch 1.12. What it lacks is lent while it runs, and taken back.
"""

from __future__ import annotations

import collections.abc
import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

_DEPTH = 1_000_000  # of calls, which auto_LiRPA asks for
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
    raise ImportError(
        "torch.onnx has no settings of its TorchScript exporter; use an earlier torch"
    )


def _lendings() -> tuple[list[tuple[Any, str, Any]], dict[str, ModuleType]]:
    """The attributes and the modules that release 0.3 needs and that are not there."""
    set_opset = partial(setattr, _exporter(), "export_onnx_opset_version")
    six = _module(
        "torch._six", string_classes=(str, bytes), inf=float("inf"), container_abcs=collections.abc
    )
    attributes = [
        (torch, "_six", six),
        (import_module("torch.onnx.symbolic_helper"), "_set_opset_version", set_opset),
        (torch._C.Node, "__getitem__", lambda node, key: getattr(node, node.kindOf(key))(key)),
        (np, "bool", np.bool_),
    ]
    modules = {
        "torch._six": six,
        "numpy.lib.arraysetops": _module("numpy.lib.arraysetops", isin=np.isin),
    }
    return (
        [attribute for attribute in attributes if not hasattr(attribute[0], attribute[1])],
        {name: module for name, module in modules.items() if name not in sys.modules},
    )


@contextlib.contextmanager
def at_home() -> Iterator[None]:
    """Provide what auto_LiRPA expects of its surroundings while it runs, and float64; put back
    afterwards.
    """
    exporter = _exporter()
    lent, modules = _lendings() if LEGACY else ([], {})
    dtype, opset, handlers = (
        torch.get_default_dtype(),
        exporter.export_onnx_opset_version,
        list(logging.root.handlers),
    )
    # An operator of our own is written as it says itself, whatever torch's functions inside it do.
    inlining = getattr(exporter, "autograd_inlining", True)
    exporter.autograd_inlining = False
    sys.modules.update(modules)
    for owner, name, value in lent:
        setattr(owner, name, value)
    torch.set_default_dtype(torch.float64)
    # It sets this limit for the whole process when it is imported: deeply nested JSON then
    # overflows the stack, where it is an error that can be told.
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(max(depth, _DEPTH))
    try:
        # It prints its progress, and sets filters of its own for warnings.
        with warnings.catch_warnings(record=True), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.setrecursionlimit(depth)
        torch.set_default_dtype(dtype)
        for owner, name, _ in lent:
            delattr(owner, name)
        for name in modules:
            del sys.modules[name]
        exporter.export_onnx_opset_version = opset
        exporter.autograd_inlining = inlining
        logging.root.handlers[:] = handlers


def ordered(lower: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where it intersected two bounds of one value, rounding may have reversed them."""
    return torch.minimum(lower, upper), torch.maximum(lower, upper)


OPERATOR = "evalsuite::Own"


class _Function(torch.autograd.Function):
    """An operation's values, which exporters write as one operator with the number of the
    operation.
    """

    @staticmethod
    def symbolic(graph: Any, operator: Own, *operands: Any) -> Any:
        value = graph.op(OPERATOR, *operands, number_i=operator.number)
        value.setType(
            operands[0].type()
            if operator.shape is None
            else operands[0].type().with_sizes([1, *operator.shape])
        )
        return value

    @staticmethod
    def forward(_: Any, operator: Own, *operands: torch.Tensor) -> Any:
        return operator.value(*operands)


class Own(nn.Module):
    """Stands for an operation in the network that auto_LiRPA converts.

    Args:
        value: of the operands (batch, *shape) the result.
        operator: makes auto_LiRPA's operator for a node, of the arguments that it gives.
        shape: of a sample's result; None for its operand's.
    """

    def __init__(
        self,
        value: Callable[..., torch.Tensor],
        operator: Callable[..., Any],
        shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.value, self.operator, self.shape, self.number = value, operator, shape, -1

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        """The values of the operation, (batch, *shape)."""
        output: torch.Tensor = _Function.apply(self, *operands)  # type: ignore[no-untyped-call]
        return output


def numbered(module: nn.Module) -> Callable[..., Any]:
    """Number the operations of a module; what makes auto_LiRPA's operator for a node, by its
    attributes.
    """
    operators = [layer for layer in module.modules() if isinstance(layer, Own)]
    for number, operator in enumerate(operators):
        operator.number = number

    def make(
        attr: Any = None, inputs: Any = None, output_index: int = 0, options: Any = None
    ) -> Any:
        return operators[int(attr["number"])].operator(attr, inputs, output_index, options)

    return make
