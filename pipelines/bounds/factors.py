"""What norms and attention divide, take roots of and multiply, found among auto_LiRPA's nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pipelines.bounds.spread import Norm
from pipelines.bounds.steps import BoundStep, Normalised
from pipelines.bounds.surroundings import LEGACY

# auto_LiRPA's operators of LayerNorm and attention that are no lines; release 0.3 has none of them here.
_CURVED = () if LEGACY else ("BoundMatMul", "BoundMul", "BoundReciprocal", "BoundSoftmax", "BoundSqr", "BoundSqrt")
# What the root of a LayerNorm is taken of, back to the square of x - mean.
_SQUARES = ("BoundAdd", "BoundReduceMean", "BoundSqr")


def factors(module: nn.Module) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Bounds of the arguments of these operators, by node: CROWN's may leave an operator's domain, intervals do not."""
    curved = [each for each in module.children()
              if type(each).__name__ in _CURVED or (isinstance(each, BoundStep) and each.rule.curved)]  # fmt: skip
    inputs = [given for each in curved for given in _inputs(each)]
    return {each.name: (each.lower, each.upper) for each in inputs if each.perturbed and each.lower is not None}


def norm_nodes(module: nn.Module) -> list[tuple[Any, Any]]:
    """For each LayerNorm the nodes of x - mean and of variance + epsilon; none at all where one looks otherwise.

    In a step of our own the one node stands for both.
    """
    found: list[tuple[Any, Any]] = []
    for root in module.children():
        if isinstance(root, BoundStep) and isinstance(root.rule, Normalised):
            found.append((_inputs(root)[0], root))
        if type(root).__name__ != "BoundSqrt":
            continue
        node: Any = root
        chain: list[Any] = []
        while len(chain) < len(_SQUARES) and _inputs(node):
            node = _inputs(node)[0]
            chain.append(node)
        if tuple(type(each).__name__ for each in chain) != _SQUARES:
            return []
        found.append((_inputs(node)[0], chain[0]))
    return found


def norm_bounds(module: nn.Module) -> list[Norm]:
    """Bounds of what LayerNorms divide, where the last propagation left them for all of them; else none."""
    pairs = norm_nodes(module)
    if any(getattr(each, end, None) is None for pair in pairs for each in _bounded(pair) for end in ("lower", "upper")):
        return []
    return [
        Norm(pair[0].lower, pair[0].upper, *(each.clamp(min=0).sqrt() for each in _squares(*pair))) for pair in pairs
    ]


def _bounded(pair: tuple[Any, Any]) -> tuple[Any, ...]:
    return pair[:1] if isinstance(pair[1], BoundStep) else pair


def _squares(centered: Any, squares: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower and upper bounds of a LayerNorm's variance + epsilon, as they follow from the last propagation."""
    if isinstance(squares, BoundStep):
        assert isinstance(squares.rule, Normalised)
        found: tuple[torch.Tensor, torch.Tensor] = squares.rule.squares((centered.lower, centered.upper))
        return found
    return squares.lower, squares.upper


def _inputs(node: Any) -> list[Any]:
    found: list[Any] = node.inputs
    return found
