"""A batch of inputs as a network takes it: one tensor, positional ones, or named ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

Inputs = torch.Tensor | tuple[torch.Tensor, ...] | dict[str, torch.Tensor]
"""A batch: one tensor, positional ones, or named ones; the first dimension of each is the batch.
"""


def leaves(inputs: Inputs) -> list[torch.Tensor]:
    """The tensors of which a batch consists, in order: itself, or the values of a mapping or a
    tuple.
    """
    if isinstance(inputs, torch.Tensor):
        return [inputs]
    return list(inputs.values() if isinstance(inputs, dict) else inputs)


def contents(inputs: Inputs) -> Iterator[bytes]:
    """The bytes of each sample of a batch, of all its tensors."""
    for sample in zip(*(leaf.detach().numpy() for leaf in leaves(inputs)), strict=True):
        yield b"".join(array.tobytes() for array in sample)


def mapped(inputs: Inputs, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    """A batch of the same form, in which `change` was applied to each tensor."""
    if isinstance(inputs, torch.Tensor):
        return change(inputs)
    if isinstance(inputs, dict):
        return {name: change(tensor) for name, tensor in inputs.items()}
    return tuple(change(tensor) for tensor in inputs)


def on(device: torch.device | str, inputs: Inputs) -> Inputs:
    """The batch with each of its tensors on the device; those that are there already are not
    copied.
    """
    return mapped(inputs, lambda tensor: tensor.to(device))
