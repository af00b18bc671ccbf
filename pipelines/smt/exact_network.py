"""A ReLU network over the rationals: affine maps of the exact weights, with a ReLU between each two."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from torch import nn

from evalsuite import Activation, LambdaGELU, Network, Property, Unsupported, census, in_layers
from pipelines.smt.dyadic import Dyadic


@dataclass(frozen=True, slots=True)
class Affine:
    """x -> weight x + bias: weight (outputs, inputs), bias (outputs,)."""

    weight: Dyadic
    bias: Dyadic

    def after(self, first: Affine) -> Affine:
        """This map applied to the result of `first`."""
        return Affine((self.weight @ first.weight).shortened(), (self.weight @ first.bias + self.bias).shortened())


@dataclass(frozen=True, slots=True)
class ExactNetwork:
    """The last map gives the logits."""

    maps: tuple[Affine, ...]

    @property
    def neurons(self) -> int:
        """How many hidden neurons with ReLU there are."""
        return sum(each.bias.shape[0] for each in self.maps[:-1])

    @property
    def classes(self) -> int:
        """The number of logits, which the last map gives."""
        return self.maps[-1].bias.shape[0]

    def logits(self, point: Sequence[Fraction]) -> list[Fraction]:
        """The exact logits of a rational input."""
        scale = math.lcm(*[value.denominator for value in point])
        units = np.array([value.numerator * (scale // value.denominator) for value in point], dtype=object)
        state = Dyadic(units, 0)  # the true values times `scale`
        for index, each in enumerate(self.maps):
            bias = Dyadic(each.bias.units * scale, each.bias.exponent)
            state = each.weight @ (state.above_zero() if index else state) + bias
        return [value / scale for value in state.fractions()]

    def margin(self, point: Sequence[Fraction], label: int) -> Fraction:
        """The label's logit minus the greatest other one."""
        logits = self.logits(point)
        return logits[label] - max(logit for index, logit in enumerate(logits) if index != label)


def read(network: Network) -> ExactNetwork:
    """The network's exact weights. Flatten, Dropout and Identity vanish, neighbouring affine layers become one map.

    Raises:
        Unsupported: a layer without exact encoding, named.
    """
    return ExactNetwork(read_maps(layered(network), lambda layer: type(layer) is nn.ReLU)[0])


def layered(network: Network) -> Network:
    """The network as an nn.Sequential of its layers, where its own `forward` calls them one behind the other.

    Raises:
        Unsupported: it does something else, named.
    """
    return replace(network, module=in_layers(network.module, network.input_shape))


def read_maps(
    network: Network, takes: Callable[[nn.Module], bool]
) -> tuple[tuple[Affine, ...], tuple[tuple[str, nn.Module], ...]]:
    """The affine maps, and the activations between them with their paths: the layers that `takes` says are some.

    The network is one of `layered`.

    Raises:
        Unsupported: a layer that is neither, named.
    """
    module = network.module
    if type(module) is not nn.Sequential:
        raise Unsupported(f"only nn.Sequential is read exactly, not {type(module).__name__}")
    _refuse_changed(module)
    shape = network.input_shape
    maps: list[Affine] = []
    activations: list[tuple[str, nn.Module]] = []
    pending: Affine | None = None
    for path, layer in _layers(module, ""):
        if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
            shape = (math.prod(shape),)
        elif takes(layer):
            maps.append(pending or _identity(math.prod(shape)))
            activations.append((path, layer))
            pending = None
        elif type(layer) not in (nn.Dropout, nn.Identity):
            affine = _affine(path, layer, shape)
            pending = affine.after(pending) if pending else affine
            shape = affine.bias.shape
    maps.append(pending or _identity(math.prod(shape)))
    if shape != (network.classes,):
        raise Unsupported(f"the output has shape {shape}, not {network.classes} logits")
    return tuple(maps), tuple(activations)


@torch.no_grad()
def reach(network: Network, property_: Property) -> float:
    """More than any value, and any partial sum, that a `layered` network's layers compute in the box; rough.

    Raises:
        Unsupported: a layer of which no bound is known, named.
    """
    if not isinstance(network.module, nn.Sequential):
        raise Unsupported(f"only nn.Sequential is bounded, not {type(network.module).__name__}")
    known = {id(each.module): each.traits for each in census(network.module, gates=True)}
    size = torch.maximum(property_.lower.abs(), property_.upper.abs()).flatten()
    greatest = size.max().item()
    for path, layer in _layers(network.module, ""):
        if isinstance(layer, nn.Linear):
            size = layer.weight.double().abs() @ size
        elif isinstance(layer, nn.BatchNorm1d) and layer.running_mean is not None and layer.running_var is not None:
            scale = (layer.running_var.double() + layer.eps).rsqrt()
            scale = scale if layer.weight is None else scale * layer.weight.double().abs()
            greatest = max(greatest, scale.max().item())
            size = scale * (size + layer.running_mean.double().abs())
        elif id(layer) in known:
            size = _activated(known[id(layer)], layer, size)
            greatest = max(greatest, size.max().item())
            continue
        elif type(layer) in (nn.Flatten, nn.Dropout, nn.Identity):
            continue
        else:
            raise Unsupported(f"layer '{path}' ({type(layer).__name__}): no bound of its values is known")
        size = size if layer.bias is None else size + layer.bias.double().abs()
        greatest = max(greatest, size.max().item())
    return greatest * 1.001


def _activated(traits: Activation, layer: nn.Module, size: torch.Tensor) -> torch.Tensor:
    """A bound of |g(h x) / h| where |x| <= size: the steeper of g's asymptotes, and what g exceeds it by near 0."""
    near = torch.linspace(-50, 50, 2001, dtype=torch.float64)
    steep = max(abs(each) for each in traits.limits)
    above = (traits.value(near).abs() - steep * near.abs()).max().clamp(min=0)
    return steep * size + above / traits.hardness(layer).detach().double().min()


def _refuse_changed(module: nn.Module) -> None:
    """Raise Unsupported where a layer may compute something else than its type and parameters say."""
    for path, layer in module.named_modules():
        where = f"layer '{path}' ({type(layer).__name__})" if path else "the network"
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise Unsupported(f"{where} has forward hooks, and may compute something else than its layer: remove them")
        if "forward" in vars(layer):
            raise Unsupported(f"{where} has a forward of its own, and may compute something else than its layer")


def _layers(module: nn.Sequential, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, layer in module._modules.items():  # named_children() gives a shared layer once
        if type(layer) is nn.Sequential:
            yield from _layers(layer, f"{prefix}{name}.")
        else:
            yield prefix + name, layer


def _identity(size: int) -> Affine:
    return Affine(Dyadic.identity(size), Dyadic.zeros(size))


def _affine(path: str, layer: nn.Module, shape: tuple[int, ...]) -> Affine:
    kind = type(layer)
    if isinstance(layer, LambdaGELU) or (isinstance(layer, nn.GELU) and layer.approximate == "none"):
        raise Unsupported(f"erf has no exact encoding in linear arithmetic; layer '{path}' is {kind.__name__}")
    if kind not in (nn.Linear, nn.BatchNorm1d):
        raise Unsupported(f"no exact encoding of layer '{path}' ({kind.__name__})")
    if len(shape) != 1:
        raise Unsupported(f"layer '{path}' ({kind.__name__}) acts on shape {shape}; only vectors are read exactly")
    try:
        return _linear(layer) if isinstance(layer, nn.Linear) else _batch_norm(path, layer)
    except ValueError as error:
        raise Unsupported(f"layer '{path}' ({kind.__name__}): {error}") from error


def _exact(tensor: torch.Tensor) -> Dyadic:
    return Dyadic.of(tensor.detach().double().numpy())


def _linear(layer: nn.Linear) -> Affine:
    bias = Dyadic.zeros(layer.out_features) if layer.bias is None else _exact(layer.bias)
    return Affine(_exact(layer.weight), bias)


def _batch_norm(path: str, layer: nn.Module) -> Affine:
    """scale x + (bias - scale mean). The scale has a square root: its float64 value is taken for the exact one."""
    assert isinstance(layer, nn.BatchNorm1d)
    if layer.running_mean is None or layer.running_var is None:
        raise Unsupported(f"layer '{path}' (BatchNorm1d) normalises by its batch: it is no function of one input")
    factor = (layer.running_var.double() + layer.eps).rsqrt()
    scale = _exact(factor if layer.weight is None else factor * layer.weight.detach().double())
    bias = Dyadic.zeros(layer.num_features) if layer.bias is None else _exact(layer.bias)
    diagonal = Dyadic.identity(layer.num_features) * scale
    return Affine(diagonal, bias - scale * _exact(layer.running_mean))
