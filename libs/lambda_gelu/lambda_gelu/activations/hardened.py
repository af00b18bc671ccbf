"""A learnt hardness for any activation that approaches ReLU as it is scaled: f(x) = g(lambda x)
/ lambda.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional

from lambda_gelu.activations.elu import ELU
from lambda_gelu.activations.hard_swish import HARD_SWISH
from lambda_gelu.activations.hardenable import Hardenable, hardened
from lambda_gelu.activations.mish import MISH
from lambda_gelu.activations.traits import Activation


class Hardened(Hardenable):
    """f(x) = g(lambda x) / lambda for a subclass's `function`, g as torch computes it; arguments
    as of Hardenable.
    """

    function: ClassVar[staticmethod[..., torch.Tensor]]

    def apply_hardness(self, x: torch.Tensor, hardness: torch.Tensor) -> torch.Tensor:
        """f(x), of the shape of x."""
        scale = hardness.reshape(-1, *[1] * (x.ndim - 2)) if hardness.ndim else hardness
        return self.function(scale * x) / scale


class LambdaELU(Hardened):
    """ELU with a learnt hardness, f(x) = ELU(lambda x) / lambda."""

    function = staticmethod(functional.elu)


class LambdaHardSwish(Hardened):
    """Hard-swish with a learnt hardness, f(x) = hardswish(lambda x) / lambda."""

    function = staticmethod(functional.hardswish)


class LambdaMish(Hardened):
    """Mish with a learnt hardness, f(x) = mish(lambda x) / lambda."""

    function = staticmethod(functional.mish)


def _row(row: Activation, kind: type[Hardened]) -> Activation:
    said = f"{row.name} with one learnable lambda per layer"
    return hardened(
        row,
        kind,
        name=f"lambda-{row.name}",
        help=said,
        formula=f"g(lambda x) / lambda, g is {row.name}",
    )


LAMBDA_ELU = _row(ELU, LambdaELU)
LAMBDA_HARD_SWISH = _row(HARD_SWISH, LambdaHardSwish)
LAMBDA_MISH = _row(MISH, LambdaMish)
