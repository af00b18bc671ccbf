"""The swap repaired by BatchNorm's statistics alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evalsuite.contract import Unsupported
from evalsuite.variants.swapped import Swapped
from evalsuite.variants.variant import Made, Setup

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class SwapRecalibrated(Swapped):
    """The direct swap, then BatchNorm's statistics recomputed on the unlabeled calibration
    inputs.
    """

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`. Raises Unsupported where the network has no BatchNorm."""
        from torch import nn

        from lambda_gelu.repair import recalibrate_batchnorm

        swapped = super().make(setup, base)
        if not any(
            isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))
            for layer in swapped.module.modules()
        ):
            raise Unsupported("the network has no BatchNorm to recalibrate")
        return replace(
            swapped, module=recalibrate_batchnorm(swapped.module, (setup.calibration.inputs[:],))
        )
