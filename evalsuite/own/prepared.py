"""A user's module as it is measured: not compiled, in float32, and with a shape for each layer."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from opgraph.errors import OwnError

# Each of their values is a float32's, but for float64, which is rounded.
_CONVERTED = (torch.bfloat16, torch.float16, torch.float64)
COMPILED = "compiled, and measured without torch.compile"


def prepared(
    module: nn.Module, path: str, run: Callable[[nn.Module], object] | None = None
) -> tuple[nn.Module, list[str]]:
    """The module as it is measured, changed in place, and what was changed, for the user.

    Args:
        module: the user's.
        path: what makes it, for messages.
        run: calls a module on a batch of the data, in which lazy layers take their shapes.

    Raises:
        OwnError: a layer has no shape and there is no batch, or weights are stored as numbers that
            need scales.
    """
    # 1. What torch.compile put around it: every variant is another graph, and none is worth its
    # minutes.
    module, changed = _uncompiled(module)
    changes = [COMPILED] if changed else []
    # 2. Numbers, of the data and of all stages, are float32.
    kinds = {tensor.dtype for tensor in _stored(module) if tensor.is_floating_point()}
    for kind in sorted(map(str, kinds - {torch.float32, *_CONVERTED})):
        raise OwnError(
            f"the model: {path} has weights of {kind.removeprefix('torch.')}, which need scales;"
            " give it in float32 or bfloat16"
        )
    if others := other_kinds(module):
        module.float()
        changes.append(converted(others))
    # 3. Layers that take their shape from the first batch.
    if lazy := _lazy(module):
        if run is None:
            raise OwnError(
                f"the model: {path}: {lazy[0]} has no shape yet; write its size instead of a lazy"
                " layer"
            )
        run(module)
        if lazy := _lazy(module):
            raise OwnError(
                f"the model: {path}: {lazy[0]} has no shape after a batch of the data; leave out"
                " the layer, which forward does not call, or write its size"
            )
    return module, changes


def other_kinds(module: nn.Module) -> list[str]:
    """The kinds of real numbers among a module's weights that are converted to float32."""
    kinds = {stored.dtype for stored in _stored(module)} & {*_CONVERTED}
    return sorted(str(kind).removeprefix("torch.") for kind in kinds)


def converted(kinds: list[str]) -> str:
    """Say that weights were given in these kinds of numbers."""
    return f"weights of {' and '.join(kinds)}, measured in float32"


def _stored(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _lazy(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if is_lazy(parameter)]


def _uncompiled(module: nn.Module) -> tuple[nn.Module, bool]:
    """The module without what torch.compile put around it and its parts, and whether it did."""
    # Where nothing was compiled, torch's compiler was not imported; it takes seconds.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    kind: type | tuple[()] = () if dynamo is None else dynamo.OptimizedModule
    changed = False
    while isinstance(module, kind):
        inner = module._orig_mod
        assert isinstance(inner, nn.Module)
        module, changed = inner, True
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, kind):
                parent._modules[name], changed = _uncompiled(child)[0], True
    # By module.compile() a module is compiled in its place.
    for layer in module.modules():
        if getattr(layer, "_compiled_call_impl", None) is not None:
            layer._compiled_call_impl, changed = None, True
    return module, changed
