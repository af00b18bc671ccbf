"""lambda-GELU, f(x) = x Phi(lambda x): its hardness is learnt, hardened and replaced by ReLU.

The public names load on first use: `import lambda_gelu` itself imports nothing heavy.

>>> import torch, lambda_gelu
>>> network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())
>>> [use.traits.name for use in lambda_gelu.census(lambda_gelu.swap_to_relu(network))]
['relu']
"""

from __future__ import annotations

from lambda_gelu.public_names import attach

__version__ = "0.1.0"
# By the module that defines them; __init__.pyi declares the same to type checkers.
__getattr__, __dir__, __all__ = attach(
    __name__,
    {
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
    },
)
