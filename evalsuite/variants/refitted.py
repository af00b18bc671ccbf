"""The swap repaired by closed-form regression: seconds of work, and no labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evalsuite.contract import Unsupported
from evalsuite.variants.swapped import Swapped
from evalsuite.variants.variant import Made, Setup, required

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class SwapRefit(Swapped):
    """The direct swap, then biases re-fitted in closed form on the unlabeled calibration inputs.

    Args:
        scale: re-fit a scale per unit too.
    """

    scale: bool = False

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`. Raises Unsupported where no bias could mend anything."""
        from lambda_gelu.repair import NothingToRefit, refit_bias

        swapped = super().make(setup, base)
        original = required(base, self.base)
        try:
            module = refit_bias(
                swapped.module, original, (setup.calibration.inputs[:],), scale=self.scale
            )
        except NothingToRefit as reason:
            raise Unsupported(str(reason)) from reason
        return replace(swapped, module=module)
