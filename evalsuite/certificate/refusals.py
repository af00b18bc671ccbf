"""Networks of which no certificate could speak: what a module computes must follow from its type and parameters."""

from __future__ import annotations

import torch
from torch import nn

from evalsuite.activations import Activation
from evalsuite.contract import Unsupported

# Products of numbers within are far from overflow, and from the underflow that a relative rounding error leaves out.
_LEAST, _MOST = 1e-200, 1e200
# With values up to this, the constants that stand for underflow (`TINY`) cover what the coefficients before them lose.
_LARGEST_VALUE = 1e100


def refuse_module(module: nn.Module) -> None:
    """Raise Unsupported where a parameter is NaN or infinite, or a forward pass is changed from outside."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not bool(tensor.isfinite().all()):
            raise Unsupported(f"{name} has values that are not finite")
    for path, layer in module.named_modules():
        where = path or "the network"
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise Unsupported(f"{where} has forward hooks and may compute something else than its layer: remove them")
        if "forward" in vars(layer):
            raise Unsupported(f"{where} has a forward of its own, and may compute something else than its layer")


def refuse_look_alike(path: str, layer: nn.Module, traits: Activation) -> None:
    """Raise Unsupported where the activation `layer` is not exactly its row.

    The census knows third parties' modules by their values, to 2e-7, and subclasses by their ancestors.
    """
    if not traits.matches(layer) or type(layer) is not type(traits.make(1)):
        raise Unsupported(
            f"no certificate for {path or 'the network'}: {type(layer).__name__} is taken for {traits.name}, but not"
            " known to be exactly that"
        )


def refuse_scale(path: str, size: torch.Tensor) -> None:
    """Raise Unsupported where the product of layers up to `path` leaves the range of exact relative rounding errors."""
    if not bool((size <= _MOST).all()) or bool(((size > 0) & (size < _LEAST)).any()):
        raise Unsupported(
            f"no certificate for {path}: the layers up to it multiply by more than 1e200, or less than 1e-200"
        )


def refuse_values(where: str, magnitude: torch.Tensor) -> None:
    """Raise Unsupported where values beyond 1e100 are possible."""
    if not bool((magnitude <= _LARGEST_VALUE).all()):
        raise Unsupported(f"no certificate for {where}: values beyond 1e100 are possible there")
