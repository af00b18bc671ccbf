"""Names of variants in words, and the activation that each ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SPELLED = {
    "gelu": "GELU",
    "gelu-tanh": "GELU (tanh)",
    "relu": "ReLU",
    "silu": "SiLU",
    "mish": "Mish",
    "lambda-gelu": "λ-GELU",
    "lambda-mish": "λ-Mish",
    "swish": "Swish",
    "relu2": "ReLU²",
    "prelu": "PReLU",
}
# An activation without a hardness stands for its form with one.
_WITH_A_HARDNESS = {
    "gelu": "lambda-gelu",
    "gelu-tanh": "lambda-gelu",
    "silu": "swish",
    "quick-gelu": "swish",
    "mish": "lambda-mish",
}
# Treatment -> the words, with the activation that it ends with and the one that it begins with.
_WORDS = {
    "annealed": "annealed to {end}",
    "swish-annealed": "Swish annealed to {end}",
    "post-hoc": "trained, then annealed to {end}",
    "swapped": "{end} put in directly",
    "gelu-swap": "{end} put in directly",
    "prelu-swap": "{end} put in directly",
    "lambda-gelu-swap": "λ-GELU {hardness}, then {end} put in directly",
    "swap-refit": "{end} put in, biases re-fitted",
    "swap-recalibrated": "{end} put in, BatchNorm recalibrated",
    "swap-finetuned": "{end} put in, then fine-tuned",
    "hard-switch": "switched to {end} at once, in training",
    "lambda-gelu": "{learnt}, hardness {hardness}",
}


def called(treatment: str, options: Mapping[str, Any]) -> tuple[str, str]:
    """A variant in words, and the activation that it ends with; empty for a treatment that is
    not known here.
    """
    if treatment in _WORDS:
        learnt = str(options.get("activation") or "lambda-gelu")
        learnt = _WITH_A_HARDNESS.get(learnt, learnt)
        hardness = "fixed" if str(options.get("learn")) == "False" else "learnt"
        end = learnt if treatment == "lambda-gelu" else str(options.get("to") or "relu")
        end = _SPELLED.get(end, end)
        words = _WORDS[treatment]
        if treatment == "annealed" and learnt != "lambda-gelu":
            words = "{learnt} annealed to {end}"
        # Words that leave the hardness out are of a learnt one.
        beside = (
            " from a fixed hardness" if hardness == "fixed" and "{hardness}" not in words else ""
        )
        spelled = _SPELLED.get(learnt, learnt)
        return words.format(end=end, hardness=hardness, learnt=spelled) + beside, end
    activation = str(options.get("activation") or treatment)
    if treatment in ("trained", activation):
        end = _SPELLED.get(activation, activation)
        return f"trained with {end}", end
    return "", ""
