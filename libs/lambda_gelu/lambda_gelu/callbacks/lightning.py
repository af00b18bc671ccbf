"""Hardening in a Lightning Trainer."""

from __future__ import annotations

import math
from typing import Any

from lambda_gelu.hardening import Hardening

try:
    import lightning.pytorch as pl
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"HardeningCallback needs Lightning ({error}): pip install 'lambda-gelu[lightning]'",
        name=error.name,
    ) from error


class HardeningCallback(pl.Callback):
    """Raises lambda before each optimizer step, over the steps that the Trainer expects to take.

        hardening = harden(model)  # before configure_optimizers
        Trainer(..., callbacks=[HardeningCallback(hardening)]).fit(...)
        relu_network = hardening.swap()

    For one optimizer. Its state is in Lightning's checkpoints, so that a resumed training continues
    as it was.

    Raises:
        ValueError: at the start of training, if the number of steps is not known.
    """

    def __init__(self, hardening: Hardening) -> None:
        self.hardening = hardening

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Raise ValueError where the training has no end: hardening needs to know the number of
        steps.
        """
        if not math.isfinite(trainer.estimated_stepping_batches):
            raise ValueError(
                "hardening needs the number of steps: give the Trainer max_epochs or max_steps"
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the lambda due at the step that this batch belongs to."""
        self.hardening(min(1.0, (trainer.global_step + 1) / trainer.estimated_stepping_batches))

    def state_dict(self) -> dict[str, Any]:
        """The state of the hardening, for the checkpoint."""
        return self.hardening.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the hardening from the checkpoint."""
        self.hardening.load_state_dict(state_dict)
