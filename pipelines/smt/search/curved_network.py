"""Networks with curved activations: exact affine maps, and activations that have sound lines."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from evalsuite import Activation, Network, Unsupported, census, relax
from pipelines.smt.exact_network import Affine, layered, read_maps
from pipelines.smt.search.program import Floats

# Intercepts are rounded outward to multiples of this: a slack of 1e-300 would make every number a thousand bits long.
_INTERCEPT_STEP = 2.0**-60


@dataclass(frozen=True, slots=True)
class Lines:
    """below_slope z + below_start <= f(z) <= above_slope z + above_start for every real z of the intervals, exactly."""

    below_slope: Floats
    below_start: Floats
    above_slope: Floats
    above_start: Floats


@dataclass(frozen=True, slots=True)
class Curve:
    """f(x) = g(hardness x) / hardness."""

    traits: Activation
    hardness: float

    def value(self, x: Floats) -> Floats:
        """f(x), elementwise, to some units in the last place."""
        return self._at(self.traits.value(torch.from_numpy(self.hardness * x))) / self.hardness

    def slope(self, x: Floats) -> Floats:
        """The derivative f'(x) = g'(hardness x), elementwise, of the shape of x."""
        return self._at(self.traits.slope(torch.from_numpy(self.hardness * x)))

    def lines(self, lower: Floats, upper: Floats) -> Lines:
        """Sound lines on the intervals [lower, upper]. Raises Unsupported where there are none, as beyond 1e100."""
        ends = torch.from_numpy(lower), torch.from_numpy(upper)
        try:
            found = relax(self.traits, *ends, hardness=self.hardness)
        except ValueError as error:
            raise Unsupported(f"no lines of {self.traits.name!r}: {error}") from error
        below, above = found.lower_intercept.numpy(), found.upper_intercept.numpy()
        start = np.floor(below / _INTERCEPT_STEP), np.ceil(above / _INTERCEPT_STEP)
        # Where a number is too large for such steps, it is a multiple of them, or beyond what is verified at all.
        slopes = found.lower_slope.numpy(), found.upper_slope.numpy()
        return Lines(slopes[0], start[0] * _INTERCEPT_STEP, slopes[1], start[1] * _INTERCEPT_STEP)

    @staticmethod
    def _at(values: torch.Tensor) -> Floats:
        return np.asarray(values.detach().numpy(), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class CurvedNetwork:
    """Affine maps of the exact float32 weights with an activation between each two; the last map gives the logits."""

    maps: tuple[Affine, ...]
    curves: tuple[Curve, ...]

    @property
    def classes(self) -> int:
        """The number of logits, which the last map gives."""
        return self.maps[-1].bias.shape[0]


def read_curved(network: Network) -> CurvedNetwork:
    """The network's exact maps, and the rows of its activations at their present hardness.

    Raises:
        Unsupported: a layer is neither affine nor a known scalar activation with sound lines, named; or the network
            computes something else than its layers in order.
    """
    layers = layered(network)
    found = {id(each.module): each.traits for each in census(layers.module, gates=True)}
    maps, activations = read_maps(layers, lambda layer: id(layer) in found)
    curves = tuple(_curve(path, found[id(module)], module) for path, module in activations)
    read = CurvedNetwork(maps, curves)
    _check(read, network)
    return read


def _curve(path: str, traits: Activation, module: nn.Module) -> Curve:
    # A census knows subclasses by their ancestors, and others' modules by their values at some points.
    if not traits.matches(module) or type(module) is not type(traits.make(1)):
        raise Unsupported(
            f"layer '{path}' ({type(module).__name__}) is taken for {traits.name}, but not known to be exactly that"
        )
    try:
        curve = Curve(traits.of(module), float(traits.hardness(module).detach().double()))
        curve.lines(np.array([-1.0]), np.array([1.0]))
    except (Unsupported, ValueError, RuntimeError) as error:
        raise Unsupported(f"layer '{path}' ({type(module).__name__}): {error}") from error
    return curve


def forward(network: CurvedNetwork, point: Sequence[float] | Floats) -> Floats:
    """The logits (classes,) at a point (inputs,), computed plainly in float64, with its rounding errors."""
    (weight, bias), *rest = [(each.weight.floats(), each.bias.floats()) for each in network.maps]
    state: Floats = weight @ np.asarray(point, dtype=np.float64) + bias
    for curve, (weight, bias) in zip(network.curves, rest, strict=True):
        state = weight @ curve.value(state) + bias
    return state


@torch.no_grad()
def _check(read: CurvedNetwork, network: Network) -> None:
    """A hook or a changed forward would make the layers mean something else."""
    module = copy.deepcopy(network.module).double().eval()
    inputs = network.example(3).double()
    for point, expected in zip(inputs, module(inputs), strict=True):
        # The hardness is computed in float32 in the one and in float64 in the other.
        if not np.allclose(forward(read, point.flatten().numpy()), expected.numpy(), rtol=1e-5, atol=1e-6):
            raise Unsupported("the network computes something else than its layers in order")
