"""Which activation of a network each of auto_LiRPA's is: told by their inputs."""

from __future__ import annotations

import torch
from torch import nn

from pipelines.bounds.preparing import activations

_CLOSE = 1e-9


@torch.no_grad()
def layer_names(module: nn.Module, points: torch.Tensor, seen: list[torch.Tensor]) -> tuple[str, ...]:
    """For each of `seen`, the activations' inputs at `points`, the dotted path of the module that gets it.

    A module that is called more than once has a name for each call, but for calls with one input. An activation that is
    no module, or follows one that was folded away, is "relu 3" by its place.
    """
    calls: list[tuple[str, torch.Tensor]] = []
    hooks = [
        found.module.register_forward_pre_hook(lambda _, given, path=found.path: calls.append((path, given[0].clone())))
        for found in activations(module)
    ]
    try:
        module(points)
    finally:
        for hook in hooks:
            hook.remove()
    names, often = [], dict[str, int]()
    for place, value in enumerate(seen, start=1):
        at = next((i for i, (_, given) in enumerate(calls) if _same(given, value)), None)
        path = f"relu {place}" if at is None else calls.pop(at)[0] or "the network"
        often[path] = often.get(path, 0) + 1
        names.append(path if often[path] == 1 else f"{path} call {often[path]}")
    return tuple(names)


def _same(given: torch.Tensor, value: torch.Tensor) -> bool:
    return given.shape == value.shape and torch.allclose(given, value, rtol=_CLOSE, atol=_CLOSE)
