"""Each output of a network of several, with its own task and targets, as a network of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from evalsuite.contract import Data, Split
from evalsuite.data.parts import PARTS
from evalsuite.tasks import Heads
from opgraph.errors import OwnError
from opgraph.inputs import Inputs


class OneOutput(nn.Module):
    """One output of a network whose outputs lie beside one another, as it is without the others."""

    def __init__(self, network: nn.Module, heads: Heads, place: int) -> None:
        super().__init__()
        self.network, self._heads, self._place = network, heads, place

    def forward(self, batch: Inputs) -> torch.Tensor:
        """The output at its place, (samples, *shape)."""
        return self._heads.output_of(self._place, self.network(batch))


def heads_of(data: Data) -> Heads | None:
    """The task of several outputs; None of one."""
    task = getattr(data.task, "task", data.task)
    return task if isinstance(task, Heads) else None


def each_output(data: Data) -> Iterator[tuple[int, str, Data]]:
    """The place and the name of each output, and the data with its task and targets alone. Raises
    OwnError: an output has no target in a part.
    """
    heads = heads_of(data)
    assert heads is not None
    for place, (name, task) in enumerate(heads.heads):
        parts: dict[str, Any] = {}
        for part in PARTS:
            split: Split = getattr(data, part)
            try:
                parts[part] = Split(
                    split.inputs, heads.target_of(place, split.targets), task, keys=split.keys
                )
            except ValueError as error:
                raise OwnError(f"the output {name}, part {part}: {error}") from error
        yield place, name, replace(data, **parts, class_names=())
