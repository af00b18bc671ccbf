"""The best weights of a training by validation data: of each look at the network in the second half
of its training, those that are better than the last ones beyond chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from lambda_gelu.activations.census import duplicate

if TYPE_CHECKING:
    from torch import nn

Errors = list[torch.Tensor]
_FROM = 0.5  # the share of training before which weights are not kept
_LOOKS = 20  # at most
_LEAST = 0.01  # of the loss: a smaller gain is none
_ERRORS = 2.0  # standard errors that chance may make


class Best:
    """Looks at a network after epochs of the second half of its training, as it will be deployed,
    and gives it the best weights at the end.

    Which arm is trained makes no difference: one that hardens is looked at with ReLU in place, so
    that its early, smooth weights win nothing.

    Args:
        module: that is trained in place.
        validate: the errors of a network on the validation samples, each (samples,), its losses
            first.
        deployed: makes of a copy what will be deployed.
    """

    def __init__(
        self,
        module: nn.Module,
        validate: Callable[[nn.Module], Errors],
        deployed: Callable[[nn.Module], nn.Module],
    ) -> None:
        self._module, self._validate, self._deployed = module, validate, deployed
        self._next = _FROM
        self._best: tuple[float, Errors, float, dict[str, torch.Tensor]] | None = None

    def __call__(self, progress: float) -> None:
        """After an epoch: keep the weights if they are the best so far; the last are looked at by
        `restore`.
        """
        if not self._next <= progress < 1:
            return
        self._next = progress + (1 - _FROM) / _LOOKS
        errors = self._errors()
        loss = mean_loss(errors)
        if math.isfinite(loss) and (self._best is None or loss < self._best[0]):
            state = {
                name: value.detach().cpu().clone()
                for name, value in self._module.state_dict().items()
            }
            self._best = loss, errors, progress, state

    def restore(self) -> float:
        """Give the trained network its best weights; the share of training that they are of, 1
        where the last ones are as good.
        """
        if self._best is None:
            return 1.0
        _, errors, progress, state = self._best
        last = self._errors()
        if not math.isfinite(mean_loss(last)) or (
            improves(last, errors) and not improves(errors, last)
        ):
            self._module.load_state_dict(state)
            return progress
        return 1.0

    def _errors(self) -> Errors:
        with torch.random.fork_rng(devices=[]):
            return self._validate(self._deployed(duplicate(self._module)).to("cpu").eval())


def mean_loss(errors: Errors) -> float:
    """The mean loss; infinite where a training has diverged."""
    known = errors[0][~errors[0].isnan()]
    mean = float(known.mean()) if len(known) else math.inf
    return mean if math.isfinite(mean) else math.inf


def improves(before: Errors, after: Errors) -> bool:
    """Whether loss or missed share fall from one network to another, beyond chance over samples
    and by 1 % or more.
    """
    for old, new in zip(before, after, strict=True):
        known = old.isfinite() & new.isfinite()
        gains = (old - new)[known]
        if len(gains) < 2:
            continue
        gain, chance = float(gains.mean()), _ERRORS * float(gains.std()) / math.sqrt(len(gains))
        if gain > max(chance, _LEAST * abs(float(old[known].mean()))):
            return True
    return False
