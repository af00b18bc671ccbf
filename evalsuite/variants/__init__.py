"""The variants: how the activation is treated. Same initial weights, data order and budget for one seed.

Importing this package imports no heavy library.
"""

from evalsuite.variants import trained, treated
from evalsuite.variants.variant import Made, Setup, Variant

VARIANTS: dict[str, type[Variant]] = {
    "gelu": trained.Gelu,
    "gelu-swap": treated.GeluSwap,
    "swap-refit": treated.SwapRefit,
    "swap-recalibrated": treated.SwapRecalibrated,
    "swap-finetuned": treated.SwapFinetuned,
    "post-hoc": treated.PostHoc,
    "hard-switch": trained.HardSwitch,
    "lambda-gelu": trained.Learnt,
    "lambda-gelu-swap": treated.LambdaGeluSwap,
    "annealed": trained.Annealed,
    "swish-annealed": trained.SwishAnnealed,
    "prelu": trained.Prelu,
    "prelu-swap": treated.PreluSwap,
    "relu": trained.Relu,
}

__all__ = ["VARIANTS", "Made", "Setup", "Variant"]
