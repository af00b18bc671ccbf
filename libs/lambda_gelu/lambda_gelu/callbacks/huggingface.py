"""Hardening in the Trainer of Hugging Face transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lambda_gelu.hardening import Hardening

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"HardeningCallback needs transformers ({error}): pip install 'lambda-gelu[transformers]'",
        name=error.name,
    ) from error

_FILE = "hardening.pt"


class HardeningCallback(TrainerCallback):
    """Raises lambda before each optimizer step, over the steps that the Trainer takes.

        hardening = harden(model)  # before the Trainer is made
        Trainer(model, ..., callbacks=[HardeningCallback(hardening)]).train()
        relu_network = hardening.swap()

    Weight decay, if you set it, falls on s as well, unless the Trainer gets an optimizer made of
    `hardening.parameter_groups(learning_rate)`. A checkpoint gets a file `hardening.pt`, from which
    a resumed training continues as it was.
    """

    def __init__(self, hardening: Hardening) -> None:
        self.hardening = hardening

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Where training is resumed, read the checkpoint's hardening, unless you have loaded it
        yourself.

        Raises:
            FileNotFoundError: there is no checkpoint of this step in the output folder, or none
                with a hardening.
        """
        if state.global_step == 0 or self.hardening.progress == state.global_step / state.max_steps:
            return
        file = _checkpoint(args, state) / _FILE
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} is missing: to resume from another folder, first call "
                "hardening.load_state_dict(torch.load(<checkpoint>/hardening.pt))"
            )
        self.hardening.load_state_dict(torch.load(file, weights_only=True))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the lambda due at the coming optimizer step."""
        self.hardening((state.global_step + 1) / state.max_steps)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the hardening's state into the checkpoint's folder, in the main process alone."""
        if state.is_world_process_zero:
            torch.save(self.hardening.state_dict(), _checkpoint(args, state) / _FILE)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
