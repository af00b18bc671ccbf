"""A learnt hardness for any activation that approaches ReLU as it is scaled: f(x) = g(lambda x) / lambda."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch.nn import functional

from evalsuite.activations.elu import ELU
from evalsuite.activations.hard_swish import HARD_SWISH
from evalsuite.activations.hardenable import Hardenable, learnt_hardness
from evalsuite.activations.mish import MISH
from evalsuite.activations.traits import Activation


class Hardened(Hardenable):
    """f(x) = g(lambda x) / lambda for a subclass's `row`, g as torch computes it; the arguments are Hardenable's."""

    row: ClassVar[Activation]
    function: ClassVar[staticmethod[..., torch.Tensor]]

    def apply_hardness(self, x: torch.Tensor, hardness: torch.Tensor) -> torch.Tensor:
        """f(x), of the shape of x."""
        scale = hardness.reshape(-1, *[1] * (x.ndim - 2)) if hardness.ndim else hardness
        return self.function(scale * x) / scale


class LambdaELU(Hardened):
    """ELU with a learnt hardness, f(x) = ELU(lambda x) / lambda."""

    row, function = ELU, staticmethod(functional.elu)


class LambdaHardSwish(Hardened):
    """Hard-swish with a learnt hardness, f(x) = hardswish(lambda x) / lambda."""

    row, function = HARD_SWISH, staticmethod(functional.hardswish)


class LambdaMish(Hardened):
    """Mish with a learnt hardness, f(x) = mish(lambda x) / lambda."""

    row, function = MISH, staticmethod(functional.mish)


def hardened(kind: type[Hardened]) -> Activation:
    """The row of an activation with a learnt hardness, from that of the one without."""
    row = kind.row
    return replace(
        row,
        name=f"lambda-{row.name}",
        help=f"{row.name} with one learnable lambda per layer",
        source="arXiv 2603.21991, eq. 1-3",
        formula=f"g(lambda x) / lambda, g is {row.name}",
        make=lambda _: kind(),
        matches=lambda module: isinstance(module, kind),
        hardness=learnt_hardness,
        hardened_by=f"lambda-{row.name}",
        parameters=("s",),
        row_of=None,
    )


LAMBDA_ELU = hardened(LambdaELU)
LAMBDA_HARD_SWISH = hardened(LambdaHardSwish)
LAMBDA_MISH = hardened(LambdaMish)
