"""Operations of our own in the network that auto_LiRPA converts: one operator for all, told apart by their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

OPERATOR = "evalsuite::Own"


class Meaning(Protocol):
    """What an operation computes, and the operator of auto_LiRPA that bounds it."""

    @property
    def value(self) -> Callable[..., torch.Tensor]:
        """Of the operands (batch, *shape) the result."""
        ...

    @property
    def operator(self) -> Callable[..., Any]:
        """Makes the operator for a node: of the arguments that auto_LiRPA gives."""
        ...


class _Function(torch.autograd.Function):
    """An operation's values, which exporters write as one operator with the number of the operation."""

    @staticmethod
    def symbolic(graph: Any, _: Meaning, number: int, shape: tuple[int, ...] | None, *operands: Any) -> Any:
        made = graph.op(OPERATOR, *operands, number_i=number)
        made.setType(operands[0].type() if shape is None else operands[0].type().with_sizes([1, *shape]))
        return made

    @staticmethod
    def forward(_: Any, meaning: Meaning, __: int, ___: tuple[int, ...] | None, *operands: torch.Tensor) -> Any:
        return meaning.value(*operands)


class Own(nn.Module):
    """Stands for an operation in the network; `shape` is that of a sample's result, None for its operand's."""

    def __init__(self, meaning: Meaning, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.meaning, self.shape, self.number = meaning, shape, -1

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        """The values of the operation, (batch, *shape)."""
        y: torch.Tensor = _Function.apply(self.meaning, self.number, self.shape, *operands)  # type: ignore[no-untyped-call]
        return y


def numbered(module: nn.Module) -> Callable[..., Any]:
    """Number the operations of a module; what makes auto_LiRPA's operator for a node, by its attributes."""
    found = [each for each in module.modules() if isinstance(each, Own)]
    for number, each in enumerate(found):
        each.number = number

    def make(attr: Any = None, inputs: Any = None, output_index: int = 0, options: Any = None) -> Any:
        return found[int(attr["number"])].meaning.operator(attr, inputs, output_index, options)

    return make
