"""Parts that are given in another scale than the training part, as pixels up to 255 beside pixels
up to 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evalsuite.data.parts import Part

_FEWEST = 10  # numbers that tell a scale
_FACTOR = 10.0  # between the deviations of two parts that no drawing makes


def other_scales(parts: Mapping[str, Part], targets: Mapping[str, torch.Tensor]) -> list[str]:
    """A sentence for each given part whose inputs, or real targets, lie in another scale than those
    of the training part. Inputs that are not in memory as one tensor are passed over.
    """
    sentences = []
    inputs = {
        name: part.inputs
        for name, part in parts.items()
        if isinstance(part.inputs, torch.Tensor) and part.inputs.is_floating_point()
    }
    real = {name: values for name, values in targets.items() if values.is_floating_point()}
    for what, tensors in (("inputs", inputs), ("targets", real)):
        for name, values in tensors.items():
            if name == "train" or "train" not in tensors:
                continue
            if factor := _factor(tensors["train"], values):
                sentences.append(
                    f"the {what} of {name} deviate {factor:.3g} times as far from their mean as"
                    " those of train: give both in one scale"
                )
    return sentences


def _factor(train: torch.Tensor, other: torch.Tensor) -> float:
    """How many times as great the deviation of the others is, where that is no chance; else 0."""
    if min(train.numel(), other.numel()) < _FEWEST:
        return 0.0
    first, second = float(train.double().std()), float(other.double().std())
    if not first > 0 or not second > 0:
        return 0.0
    factor = second / first
    return factor if not 1 / _FACTOR < factor < _FACTOR else 0.0
