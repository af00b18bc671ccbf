"""What of a network can be bounded, what its activations compute, and what they are called."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from evalsuite import RELU, SOFTPLUS, Unsupported, census, clip
from pipelines.bounds.curved import Shape

_TORCH_SOFTPLUS = 20.0
_CLOSE = 1e-9


def activations(traced: fx.GraphModule) -> dict[str, Shape]:
    """What each activation of a network that `in_modules` gives computes, by the name of its module, in order."""
    called = [str(node.target) for node in traced.graph.nodes if node.op == "call_module"]
    shapes = {name: _shape_of(traced.get_submodule(name)) for name in called}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _shape_of(layer: nn.Module) -> Shape | None:
    """What the layer computes, if it is an activation."""
    operation: Any = getattr(layer, "operation", None)
    if hasattr(operation, "traits"):
        hardness = None if operation.hardness is None else operation.hardness.double()
        return _threshold(Shape(operation.traits, hardness))
    for found in census(layer, gates=True):
        return _threshold(Shape(found.traits.of(layer)))
    if isinstance(layer, nn.Hardtanh):
        return Shape(clip(float(layer.min_val), float(layer.max_val)))
    return None


def _threshold(shape: Shape) -> Shape:
    return replace(shape, threshold=_TORCH_SOFTPLUS) if shape.traits.name == SOFTPLUS.name else shape


def with_stand_ins(traced: fx.GraphModule, make: Callable[[Shape], nn.Module]) -> None:
    """Put `make(shape)` in the place of each activation but ReLU."""
    for name, shape in activations(traced).items():
        if shape.traits.name != RELU.name:
            traced.set_submodule(name, make(shape))


def path_of(node: fx.Node) -> str:
    """By which a refusal tells what computes the value."""
    return str(node.target) if node.op == "call_module" else node.name


def refuse_values(module: nn.Module) -> None:
    """Raise Unsupported where a weight is NaN or infinite, or a norm's are those of the batch."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not bool(tensor.isfinite().all()):
            raise Unsupported(f"{name} has values that are not finite")
    for name, each in module.named_modules():
        if isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d)) and each.running_mean is None:
            raise Unsupported(f"{name} ({type(each).__name__}) without running statistics normalises by its batch")


@torch.no_grad()
def layer_names(traced: fx.GraphModule, points: torch.Tensor, seen: list[torch.Tensor]) -> tuple[str, ...]:
    """For each of `seen`, the activations' inputs at `points`, the dotted path of the module that gets it.

    A module that is called more than once has a name for each call, but for calls with one input. An activation whose
    input is not found, as behind one that was merged with it, is "activation 3" by its place.
    """
    watched = copy.deepcopy(traced).double()
    calls: list[tuple[str, torch.Tensor]] = []
    paths = {
        str(node.target): node.meta.get("path", node.target) for node in traced.graph.nodes if node.op == "call_module"
    }
    for name in activations(watched):
        watched.get_submodule(name).register_forward_pre_hook(
            lambda _, given, path=paths[name]: calls.append((path, given[0]))
        )
    watched(points)
    names, often = [], dict[str, int]()
    for place, value in enumerate(seen, start=1):
        at = next((i for i, (_, given) in enumerate(calls) if _same(given, value)), None)
        path = f"activation {place}" if at is None else calls.pop(at)[0]
        often[path] = often.get(path, 0) + 1
        names.append(path if often[path] == 1 else f"{path} call {often[path]}")
    return tuple(names)


def _same(given: torch.Tensor, value: torch.Tensor) -> bool:
    return given.shape == value.shape and torch.allclose(given, value, rtol=_CLOSE, atol=_CLOSE)
