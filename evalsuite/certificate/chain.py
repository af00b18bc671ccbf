"""A network as a chain: affine maps as float64 matrices, with an activation between each two.

What is read is the real function of the float32 parameters. A matrix that stands for several layers is rounded; its
`size`, the product of the layers' magnitudes, says by how much: `terms` units in the last place of it at most.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import nn
from torch.nn import functional

from evalsuite.activations import Activation, census
from evalsuite.certificate.layers import rule_of
from evalsuite.certificate.refusals import refuse_look_alike, refuse_module, refuse_scale
from evalsuite.contract import Unsupported
from evalsuite.graph.layers import in_layers
from evalsuite.graph.owned import close
from evalsuite.relaxations.twins import Place

_MATRIX_LIMIT = 2**25


@dataclass(frozen=True, slots=True)
class Affine:
    """x -> weight x + bias, float64.

    Args:
        weight: (outputs, inputs).
        size: of the same shape, at least |weight|.
        bias: (outputs,).
        bias_size: (outputs,), at least |bias|.
        terms: weight and bias are within this many units in the last place of `size` and `bias_size` of the true ones.
    """

    weight: torch.Tensor
    size: torch.Tensor
    bias: torch.Tensor
    bias_size: torch.Tensor
    terms: int

    def minus(self, other: Affine) -> Affine:
        """The map x -> self(x) - other(x)."""
        return Affine(
            self.weight - other.weight,
            self.size + other.size,
            self.bias - other.bias,
            self.bias_size + other.bias_size,
            max(self.terms, other.terms) + 1,
        )


@dataclass(frozen=True, slots=True)
class Chain:
    """`maps[0]`, `places[0]`, `maps[1]`, ..., `maps[-1]`.

    `patterns[i]` (outputs, inputs) bool says which weights of `maps[i]` can differ from 0: it comes of the layers'
    geometry, not of the weights' values. `layers[i]` are those that `maps[i]` stands for.
    """

    maps: list[Affine]
    places: list[Place]
    patterns: list[torch.Tensor]
    layers: list[list[nn.Module]]
    input_shape: tuple[int, ...]

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """The values before the last map for x (batch, *input_shape) float64; differentiable."""
        x = x.flatten(1)
        for map_, place in zip(self.maps, self.places, strict=False):
            x = place.traits.value(place.hardness * functional.linear(x, map_.weight, map_.bias)) / place.hardness
        return x

    def value(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs (batch, outputs) for x (batch, *input_shape) float64; differentiable."""
        return functional.linear(self.hidden(x), self.maps[-1].weight, self.maps[-1].bias)


def read_chain(module: nn.Module, input_shape: tuple[int, ...]) -> Chain:
    """The chain of a network whose layers follow one another, in an nn.Sequential or in a `forward` of its own.

    Raises:
        Unsupported: a layer without a rule, named by its dotted path; parameters that are not finite; a matrix of more
            than 2^25 entries; a forward pass that computes something else than its layers, or is hooked.
    """
    refuse_module(module)
    exact = copy.deepcopy(in_layers(module, input_shape)).double().eval().requires_grad_(False)
    known = {id(found.module): found.traits for found in census(exact)}
    maps: list[Affine] = []
    places: list[Place] = []
    patterns: list[torch.Tensor] = []
    parts: list[list[nn.Module]] = []
    layers: list[tuple[str, nn.Module]] = []
    shape = input_shape
    for path, layer in _leaves(exact):
        if id(layer) not in known:
            layers.append((path, layer))
            continue
        traits = _row(path, layer, known[id(layer)])
        map_, pattern, shape = _composed(layers, shape)
        maps, patterns, parts = [*maps, map_], [*patterns, pattern], [*parts, [each for _, each in layers]]
        layers = []
        places.append(Place(path, traits, _per_unit(traits.hardness(layer), shape)))
    map_, pattern, shape = _composed(layers, shape)
    parts.append([each for _, each in layers])
    chain = Chain([*maps, map_], places, [*patterns, pattern], parts, input_shape)
    _compare(chain, copy.deepcopy(module).double().eval())
    return chain


def _row(path: str, layer: nn.Module, traits: Activation) -> Activation:
    refuse_look_alike(path, layer, traits)
    try:
        return traits.of(layer)
    except ValueError as error:  # parameters per channel
        raise Unsupported(f"no certificate for {path or 'the network'}: {error}") from error


def _leaves(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    kind = type(module)
    if isinstance(module, nn.Sequential) and (kind.forward, kind.__call__) == (
        nn.Sequential.forward,
        nn.Module.__call__,
    ):
        for name, child in module._modules.items():  # named_children() gives a shared module once
            if child is not None:
                yield from _leaves(child, f"{path}.{name}" if path else name)
        return
    yield path, module


def _per_unit(hardness: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    channels = hardness.detach().double().reshape(-1, *[1] * (len(shape) - 1))
    return channels.expand(shape).flatten().clone()


@torch.no_grad()
def _composed(
    layers: list[tuple[str, nn.Module]], shape: tuple[int, ...]
) -> tuple[Affine, torch.Tensor, tuple[int, ...]]:
    """The affine map of consecutive layers, its pattern, and the shape of its output."""
    count, terms = prod(shape), 0
    if count * count > _MATRIX_LIMIT and layers:
        raise Unsupported(f"{layers[0][0]}: its matrix would have more than 2^25 entries")
    weight = size = pattern = torch.eye(count, dtype=torch.float64).reshape(count, *shape)
    bias = bias_size = torch.zeros(1, *shape, dtype=torch.float64)
    for path, layer in layers:
        rule = rule_of(path, layer, bias.numel())
        bias, bias_size = rule.shift(rule.linear(bias)), rule.shift_size(rule.size(bias_size))
        if bias.numel() * count > _MATRIX_LIMIT:
            raise Unsupported(f"{path}: its matrix would have more than 2^25 entries")
        weight, size = rule.linear(weight), rule.size(size)
        if bias.ndim < 2 or len(bias) != 1 or len(weight) != count:
            raise Unsupported(f"no certificate for {path}: {layer} mixes the samples of a batch")
        refuse_scale(path, size)
        refuse_scale(path, bias_size)
        pattern = (rule.reach(pattern) > 0).double()
        terms += rule.terms
    affine = Affine(
        weight.flatten(1).T.contiguous(), size.flatten(1).T.contiguous(), bias.flatten(), bias_size.flatten(), terms
    )
    return affine, pattern.flatten(1).T.bool().contiguous(), tuple(bias.shape[1:])


@torch.no_grad()
def _compare(chain: Chain, exact: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand((4, *chain.input_shape), generator=generator, dtype=torch.float64)
    normal = torch.randn((16, *chain.input_shape), generator=generator, dtype=torch.float64)
    for inputs in (points, normal, 10 * normal, 100 * normal):
        known = chain.value(inputs)
        logits: torch.Tensor = exact(inputs.clone())
        if logits.numel() != known.numel() or not close(known, logits.reshape(known.shape), 1e-9):
            raise Unsupported("the network computes something else than its layers in order")
