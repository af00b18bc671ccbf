"""A network's activations: what they compute, what they are given, and what they are called."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from evalsuite import Unsupported
from lambda_gelu import RELU, Activation, census, clip
from netverify.relaxations import SOFTPLUS

_TORCH_SOFTPLUS = 20.0
_CLOSE = 1e-9
_NOISE = 1e-14  # of what cancels, by the greatest value


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """f(x) = g(hardness x) / hardness, up to an error.

    Args:
        traits: the row of g.
        hardness: float64, broadcastable to x; None for 1, which costs nothing.
        threshold: where g is the identity instead, beyond it; torch's softplus has one.
    """

    traits: Activation
    hardness: torch.Tensor | None = None
    threshold: float = torch.inf

    @property
    def factor(self) -> torch.Tensor | float:
        """Return what x is multiplied by."""
        return 1.0 if self.hardness is None else self.hardness

    def value(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the module computes of x, elementwise: f(x), or x itself beyond the
        threshold; float64.
        """
        curved = self.traits.value(self.factor * x) / self.factor
        return (
            curved
            if self.threshold == torch.inf
            else torch.where(self.factor * x > self.threshold, x, curved)
        )

    @property
    def gap(self) -> float:
        """How far f and the module are apart at the most: they differ beyond the threshold, most
        just behind it.
        """
        if self.threshold == torch.inf:
            return 0.0
        edge = torch.tensor(self.threshold, dtype=torch.float64)
        # 2**-48 times the threshold covers the rounding of the difference.
        apart = ((self.traits.value(edge) - edge).abs() + 2.0**-48 * edge) / self.factor
        return float(apart.max())


def activations(traced: fx.GraphModule) -> dict[str, Shape]:
    """Return what each activation of a network that `in_modules` gives computes, by the name of its
    module, in order.
    """
    called = [str(node.target) for node in traced.graph.nodes if node.op == "call_module"]
    shapes = {name: _shape_of(traced.get_submodule(name)) for name in called}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _shape_of(layer: nn.Module) -> Shape | None:
    """Return what the layer computes, if it is an activation."""
    operation: Any = getattr(layer, "operation", None)
    traits, hardness = getattr(operation, "traits", None), getattr(operation, "hardness", None)
    if traits is None:
        traits = next(
            (activation.traits.of(layer) for activation in census(layer, gates=True)), None
        )
        if traits is None and isinstance(layer, nn.Hardtanh):
            traits = clip(float(layer.min_val), float(layer.max_val))
    if traits is None:
        return None
    threshold = _TORCH_SOFTPLUS if traits.name == SOFTPLUS.name else torch.inf
    return Shape(traits, None if hardness is None else hardness.double(), threshold)


def with_stand_ins(traced: fx.GraphModule, make: Callable[[Shape], nn.Module]) -> None:
    """Put `make(shape)` in the place of each activation but ReLU."""
    for name, shape in activations(traced).items():
        if shape.traits.name != RELU.name:
            traced.set_submodule(name, make(shape))


def path_of(node: fx.Node) -> str:
    """Return the name by which an error tells what computes the value: a module call's path, else
    the node's name.
    """
    return str(node.target) if node.op == "call_module" else node.name


def refuse_values(module: nn.Module) -> None:
    """Raise Unsupported where a weight is NaN or infinite, or a norm's are those of the batch."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not bool(tensor.isfinite().all()):
            raise Unsupported(f"{name} has values that are not finite")
    for name, layer in module.named_modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) and layer.running_mean is None:
            raise Unsupported(
                f"{name} ({type(layer).__name__}) without running statistics normalises by its"
                " batch"
            )


Call = tuple[str, torch.Tensor]
"""The dotted path of a module, and what it was given."""


@torch.no_grad()
def calls(traced: fx.GraphModule, points: torch.Tensor) -> tuple[list[Call], list[torch.Tensor]]:
    """Return what the activations are given at `points` in float64, call by call; and what
    LayerNorms divide, x - mean.
    """
    watched = copy.deepcopy(traced).double()
    recorded, divided = list[Call](), list[torch.Tensor]()
    paths = {str(node.target): node.meta.get("path", node.target) for node in traced.graph.nodes}
    for name in activations(watched):
        watched.get_submodule(name).register_forward_pre_hook(
            lambda _, operands, path=paths[name]: recorded.append((path, operands[0]))
        )
    for layer in watched.modules():
        if isinstance(layer, nn.LayerNorm):
            dims = tuple(range(-len(layer.normalized_shape), 0))
            layer.register_forward_pre_hook(
                lambda _, operands, dims=dims: divided.append(
                    operands[0] - operands[0].mean(dims, keepdim=True)
                )
            )
    watched(points)
    return recorded, divided


def layer_names(recorded: list[Call]) -> dict[int, str]:
    """The path of each call's module, by the place of the call.

    A module that is called more than once has a name for each call, but for calls with one input.
    """
    names, before = dict[int, str](), dict[str, list[torch.Tensor]]()
    for place, (path, value) in enumerate(recorded):
        earlier = before.setdefault(path, [])
        if any(same(shown, value, _CLOSE) for shown in earlier):
            continue
        earlier.append(value)
        names[place] = path if len(earlier) == 1 else f"{path} call {len(earlier)}"
    return names


def same(tensor: torch.Tensor, value: torch.Tensor, near: float) -> bool:
    """Whether two tensors (points, *shape) have one shape and nearly one value: of each point by
    its greatest entry, whatever its unit.
    """
    if tensor.shape != value.shape:
        return False
    sizes = value.flatten(1).abs().amax(1)
    apart = (tensor - value).flatten(1).abs().amax(1)
    return bool((apart <= near * sizes + _NOISE * sizes.amax()).all())
