"""Samples: inputs that need not fit into memory, and are read only when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from opgraph.inputs import Inputs, leaves, mapped

_VALUES = 2**21  # of the inputs of a batch: 682 images of 32 x 32, 13 of 224 x 224


class Samples(ABC):
    """A sequence of inputs that need not fit into memory: indexed by a slice or a tensor of
    indices, it gives a batch.

    It is picklable, gives the same at every call, and stands wherever a `Split` has a tensor of
    inputs.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples that can be indexed."""

    @abstractmethod
    def read(self, indices: Sequence[int]) -> Inputs:
        """The samples at these indices, each in [0, len), as one batch."""

    def identities(self) -> list[bytes] | None:
        """Return what tells each sample from the others, as a digest of its file; None: their
        content does.
        """
        return None

    def __getitem__(self, index: int | slice | torch.Tensor) -> Any:
        """A batch; for an int that sample alone, without the batch's dimension."""
        if isinstance(index, slice):
            return self.read(range(*index.indices(len(self))))
        if isinstance(index, torch.Tensor) and index.dtype == torch.bool:
            index = index.nonzero().flatten()
        if isinstance(index, torch.Tensor) and index.ndim:
            return self.read([int(each) for each in index.tolist()])
        place = int(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"sample {place} of {len(self)}")
        return mapped(self.read([place % len(self)]), lambda each: each[0])

    @cached_property
    def first(self) -> Inputs:
        """The first sample, as a batch of one."""
        return self.read([0])

    @property
    def shape(self) -> torch.Size:
        """(samples, *shape of one input); of several inputs the first one's."""
        return torch.Size((len(self), *leaves(self.first)[0].shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the inputs; if there are several tensors, of the first."""
        return leaves(self.first)[0].dtype


class Several(Samples):
    """Named or positional inputs, each a tensor (samples, ...) in memory."""

    def __init__(self, parts: Mapping[str, torch.Tensor] | Sequence[torch.Tensor]) -> None:
        self._parts: Inputs = dict(parts) if isinstance(parts, Mapping) else tuple(parts)
        sizes = {len(leaf) for leaf in leaves(self._parts)}
        if len(sizes) != 1:
            raise ValueError(
                f"inputs of one sample belong together, but there are {sorted(sizes)} of them"
            )

    def __len__(self) -> int:
        return len(leaves(self._parts)[0])

    def read(self, indices: Sequence[int]) -> Inputs:
        chosen = torch.as_tensor(list(indices))
        return mapped(self._parts, lambda each: each[chosen])


class Chosen(Samples):
    """Some of the samples, in an order of their own."""

    def __init__(self, of: Samples, indices: Sequence[int]) -> None:
        self._of, self._indices = of, list(indices)

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, indices: Sequence[int]) -> Inputs:
        return self._of.read([self._indices[index] for index in indices])

    def identities(self) -> list[bytes] | None:
        known = self._of.identities()
        return None if known is None else [known[index] for index in self._indices]


def batch_of(inputs: torch.Tensor | Samples, most: int) -> int:
    """How many samples to run at a time: `most`, or fewer where each has many values, so that
    memory stays bounded.
    """
    one = inputs[:1] if isinstance(inputs, torch.Tensor) else inputs.first
    return max(1, min(most, _VALUES // max(1, sum(leaf.numel() for leaf in leaves(one)))))


def pieces(inputs: torch.Tensor | Samples, most: int) -> Iterator[Any]:
    """All inputs in batches of at most `most` samples, fewer where each is large; where there are
    no inputs, one empty batch.
    """
    size = batch_of(inputs, most)
    for start in range(0, max(1, len(inputs)), size):
        yield inputs[start : start + size]
