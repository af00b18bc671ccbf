"""lambda-GELU, f(x) = x Phi(lambda x): its hardness is learnt, hardened and replaced by ReLU.

The public names load on first use: `import lambda_gelu` itself imports nothing heavy.

>>> import torch, lambda_gelu
>>> network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())
>>> [use.traits.name for use in lambda_gelu.census(lambda_gelu.swap_to_relu(network))]
['relu']
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
# The public names by the module that defines them; __init__.pyi declares the same to type checkers.
_NAMES = {
    "activations": (
        "Activation",
        "Found",
        "GELU",
        "GatedUnit",
        "Hardenable",
        "LAMBDA_GELU",
        "LambdaGELU",
        "RELU",
        "Swish",
        "census",
        "matched_hidden",
        "replace",
    ),
    "activations.gelu_tanh": ("GELU_TANH",),
    "activations.recognition": ("Recognised", "known", "recognise"),
    "activations.relu6": ("RELU6", "clip"),
    "activations.runs": ("Call", "census_of_run"),
    "activations.silu": ("SILU",),
    "activations.traits": ("Scalar", "unit_hardness"),
    "folding": ("fold_hardness",),
    "functional": ("redirect_calls",),
    "harden_network": ("harden",),
    "hardening": ("Hardening",),
    "parameters": ("hardness_rate", "parameter_groups"),
    "repair": ("distill_loss", "recalibrate_batchnorm", "refit", "refit_bias"),
    "schedules": ("target_for", "target_for_certificate"),
    "swapping": ("expose", "swap", "swap_to_relu"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
