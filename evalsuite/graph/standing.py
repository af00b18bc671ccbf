"""What stands in a network for some of its modules while torch.export captures it."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from evalsuite.activations import Activation
from evalsuite.activations.census import identify
from evalsuite.activations.recognition import TOLERANCE, known, marked
from evalsuite.graph.operations import Operation, Pointwise, Whole


def _overwritten(x: torch.Tensor, number: int) -> torch.Tensor:
    return x.copy_(marked(x, number))


class _Attention(nn.MultiheadAttention):
    """In operators that keep the samples first, where torch's own put the positions first and flatten both."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None, need_weights: bool = True,
        attn_mask: torch.Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        parts = self._projected(query, key, value)
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in parts)  # type: ignore[no-untyped-call]
        mask = None if attn_mask is None else _added(attn_mask, q)
        if mask is not None and mask.ndim == 3:  # (batch x heads, positions, positions)
            mask = mask.unflatten(0, (-1, self.num_heads))  # type: ignore[no-untyped-call]
        if key_padding_mask is not None:
            padded = _added(key_padding_mask, q)[:, None, None]
            mask = padded if mask is None else mask + padded
        mixed = functional.scaled_dot_product_attention(q, k, v, mask)
        made = self.out_proj(mixed.transpose(1, 2).flatten(-2))
        made = made if self.batch_first else made.transpose(0, 1)
        if not need_weights:
            return made, None
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return made, weights.mean(1) if average_attn_weights else weights

    def _projected(self, *given: torch.Tensor) -> Sequence[torch.Tensor]:
        """Queries, keys and values, each (batch, positions, width)."""
        first = [each if self.batch_first else each.transpose(0, 1) for each in given]
        if self._qkv_same_embed_dim and given[0] is given[1] is given[2]:
            return functional.linear(first[0], self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = self.in_proj_weight.chunk(3) if self._qkv_same_embed_dim else apart
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [functional.linear(*each) for each in zip(first, weights, biases, strict=True)]


def _added(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A mask to add to scores; of truth values those that are true do not count."""
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf) if mask.dtype == torch.bool else mask


def prepare(module: nn.Module, whole: Collection[nn.Module]) -> list[Operation]:
    """Change a copy of a network for torch.export: `whole`, and activations with learnt numbers, are one operator each.

    Returns:
        What each operator computes, by its number.
    """
    asked, operations = {id(each) for each in whole}, list[Operation]()
    for each in module.modules():
        if type(each) is nn.MultiheadAttention and each.bias_k is None and not each.add_zero_attn:
            each.__class__ = _Attention
        operation = _whole(each) if id(each) in asked else _learnt(each)
        if operation is not None:
            made = _overwritten if getattr(each, "inplace", False) else marked
            vars(each)["forward"] = partial(made, number=len(operations))
            operations.append(operation)
    return operations


def _whole(module: nn.Module) -> Operation:
    """The module as one; one of a class without a row of its own by the row whose values it has."""
    found = identify(module, gates=True)
    if found is not None and found.hardness == 1 and not found.traits.matches(module):
        return Pointwise(found.traits, deviation=TOLERANCE)
    copied = copy.deepcopy(module)
    if getattr(copied, "inplace", False):
        setattr(copied, "inplace", False)  # noqa: B010 - what stands for it writes where it does
    return Whole(copied)


def _learnt(module: nn.Module) -> Operation | None:
    """An activation with learnt numbers, whose formula would be read with these rounded: its row, of float64."""
    row = next((row for row in known() if row.row_of is not None and row.parameters and row.matches(module)), None)
    if row is None or _has_more_than_its_type(module, row):
        return None
    try:
        return Pointwise(row.of(copy.deepcopy(module).double()))
    except ValueError:  # numbers for each channel, for which no row speaks
        return None


def _has_more_than_its_type(module: nn.Module, row: Activation) -> bool:
    """Whether it may compute something else than its type: by hooks, a forward of its own, or numbers from others."""

    def owner(kind: type) -> type:
        return next(each for each in kind.__mro__ if "forward" in vars(each))

    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return bool(hooked) or parametrize.is_parametrized(module) or owner(type(module)) is not owner(type(row.make(1)))
