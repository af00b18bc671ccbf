"""Where the fake-quantized network and the integer-only one differ, and whether every difference is a rounding tie."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from brevitas.nn import QuantIdentity
from brevitas.quant_tensor import QuantTensor
from torch import fx, nn
from torch.nn import functional

from pipelines.quantize.integer.execution import Executor
from pipelines.quantize.integer.islands import quantize
from pipelines.quantize.integer.lowering import grid_of
from pipelines.quantize.integer.network import INPUT, Convolution, Grid, IntegerNetwork, Integers, Linear
from pipelines.quantize.integer.oracle import apply
from pipelines.quantize.tracing import layer_of

_QUANTIZE_INPUT = "quantize_input"
TIE = 1e-4
"""Closer to a tie than this, in steps of the grid, float32 arithmetic may round either way."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """At one quantizer, given the same integers before it.

    `distance` is the greatest distance of a differing element's real value to the tie between its two integers, in
    steps of the grid; `unexplained` counts those not nearer than `TIE`, or more than one step apart. `first` is the
    index of the first.
    """

    layer: str
    elements: int
    differing: int
    distance: float
    unexplained: int
    first: tuple[int, ...]
    fake_quantized: int
    integer: int

    def describe(self) -> str:
        """One line for people."""
        return (
            f"{self.layer}: {self.differing} of {self.elements} integers, first at {list(self.first)}:"
            f" {self.fake_quantized} fake-quantized, {self.integer} in integers;"
            f" farthest from a tie {self.distance:.1e}"
        )


@dataclass(frozen=True, slots=True)
class IntegerAgreement:
    """Of the integer logits with those of the fake-quantized network, as integers on the same grid.

    `disagreements` are of the samples whose logits differ, in the network's order.
    """

    samples: int
    same_class: int
    logits: int
    differing: int
    disagreements: list[Disagreement]

    @property
    def distance(self) -> float:
        """The greatest distance to a tie among all differing elements; 0 where none differs."""
        return max((each.distance for each in self.disagreements), default=0.0)

    @property
    def unexplained(self) -> int:
        """How many differing elements are no rounding ties."""
        return sum(each.unexplained for each in self.disagreements)


@torch.no_grad()
def compare(
    quantized: fx.GraphModule,
    network: IntegerNetwork,
    inputs: torch.Tensor,
    *,
    precision: torch.dtype = torch.float32,
    diagnose: bool = True,
    chunk: int = 500,
) -> IntegerAgreement:
    """Run both on `inputs` (samples, *input_shape); where logits differ, compare quantizer by quantizer.

    For that each quantizer is given the integers that the fake-quantized network computed before it, so that a
    difference is its own and not carried over; its real value is computed in float64.

    Args:
        quantized: stays as it is.
        network: what `lower` made of it.
        inputs: float32.
        precision: float32, in which Brevitas computes, or float64: the same scales, weights and biases, but sums and
            quotients in which float32's errors decide no tie.
        diagnose: whether to look for the quantizers at which they differ. A sample whose logits agree is not looked
            at: an integer inside that differs without a trace in them is not found.
        chunk: samples at a time.

    Raises:
        ValueError: there is no input, one is not finite, or the shape is wrong.
    """
    executor = Executor(network)
    exact = None if precision == torch.float32 else _Exactly(quantized, network)
    same = logits = differing = 0
    found: dict[str, Disagreement] = {}
    for part in torch.split(inputs, chunk):
        integer = executor(part.numpy())  # first: it says what is wrong with the inputs
        made = recorded_integers(quantized, part) if exact is None else exact.integers(part)
        fake = _integers_of(network.operations[-1].name, network, made)
        same += int((fake.argmax(-1) == integer.argmax(-1)).sum())
        logits += integer.size
        unequal = fake != integer
        differing += int(unequal.sum())
        samples = np.flatnonzero(unequal.reshape(len(part), -1).any(1))
        if diagnose and len(samples):
            chosen = {name: integers[samples] for name, integers in made.items()}
            _merge(found, _local_differences(quantized, network, part[samples], chosen))
    return IntegerAgreement(len(inputs), same, logits, differing, list(found.values()))


def _integers_of(name: str, network: IntegerNetwork, made: dict[str, Integers]) -> Integers:
    """As a quantizer made them, or by the layers that keep the grid behind one: pools and flattening."""
    if name in made:
        return made[name]
    operation = next(each for each in network.operations if each.name == name)
    return apply(operation, [_integers_of(each, network, made) for each in operation.inputs], network.rounding)


def recorded_integers(quantized: fx.GraphModule, inputs: torch.Tensor) -> dict[str, Integers]:
    """What every quantizer of the fake-quantized network makes of `inputs`: int64, by name, the input's by `INPUT`."""
    made: dict[str, Integers] = {}
    hooks = []
    for name, layer in _quantizers(quantized):

        def record(_: nn.Module, __: Any, output: QuantTensor, name: str = name) -> None:
            made[name] = output.int(float_datatype=False).numpy().astype(np.int64)

        hooks.append(layer.register_forward_hook(record))
    try:
        quantized(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return made


def _quantizers(quantized: fx.GraphModule) -> list[tuple[str, QuantIdentity]]:
    """By the names of the integer network's tensors."""
    found = []
    for node in quantized.graph.nodes:
        layer = layer_of(quantized, node)
        if isinstance(layer, QuantIdentity):
            found.append((INPUT if node.all_input_nodes[0].op == "placeholder" else str(node.target), layer))
    return found


class _Step(nn.Module):
    """Stands for a quantizer, in float64: keeps what it is given, in steps of its grid, and the integers it makes.

    Args:
        grid: of the quantizer.
        integers: to hand on, whatever it is given; None to round, half to even.
    """

    def __init__(self, grid: Grid, integers: Integers | None = None) -> None:
        super().__init__()
        self._grid = grid
        self._forced = integers
        self.steps: npt.NDArray[np.float64] = np.empty(0)
        self.made: Integers = np.empty(0, dtype=np.int64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = self._grid
        self.steps = x.numpy() / grid.scale + grid.zero_point
        rounded = np.clip(np.rint(self.steps), grid.low, grid.high).astype(np.int64)
        self.made = rounded if self._forced is None else self._forced
        return torch.from_numpy(grid.scale * (self.made - grid.zero_point))


class _Exact(nn.Module):
    """A quantized layer on the real values of its integer weights and biases, in float64."""

    def __init__(self, layer: nn.Module, operation: Linear | Convolution) -> None:
        super().__init__()
        shape = (-1, *[1] * (operation.weight.ndim - 1))
        scales = np.broadcast_to(operation.scale, len(operation.weight))
        self._layer = layer
        self._weight = torch.from_numpy(operation.weight * (scales / operation.input.scale).reshape(shape))
        self._bias = torch.from_numpy(operation.bias * scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self._layer
        if isinstance(layer, nn.Linear):
            return functional.linear(x, self._weight, self._bias)
        if not isinstance(layer, (nn.Conv1d, nn.Conv2d)):
            raise TypeError(f"no quantized layer: {type(layer).__name__}")
        convolve = functional.conv1d if isinstance(layer, nn.Conv1d) else functional.conv2d
        made: torch.Tensor = convolve(
            x, self._weight, self._bias, layer.stride, layer.padding, layer.dilation, layer.groups
        )
        return made


class _Exactly:
    """The fake-quantized network in float64, from the scales, integer weights and biases that `network` has.

    Args:
        quantized: stays as it is.
        network: what `lower` made of it.
        integers: by quantizer, to hand on instead of what it would round.
    """

    def __init__(
        self, quantized: fx.GraphModule, network: IntegerNetwork, integers: dict[str, Integers] | None = None
    ) -> None:
        forced = integers or {}
        self._input = network.input
        self._steps = {name: _Step(grid_of(layer), forced.get(name)) for name, layer in _quantizers(quantized)}
        self._module = copy.deepcopy(quantized).double()
        for name, step in self._steps.items():
            setattr(self._module, _QUANTIZE_INPUT if name == INPUT else name, step)
        for operation in network.operations:
            if isinstance(operation, (Linear, Convolution)):
                layer = self._module.get_submodule(operation.name)
                setattr(self._module, operation.name, _Exact(layer, operation))

    def integers(self, inputs: torch.Tensor) -> dict[str, Integers]:
        """What each quantizer makes. The input, which is float32, is quantized in float32, as both networks do."""
        grid = self._input
        first = quantize(inputs.numpy(), grid, "the inputs")
        self._module(torch.from_numpy(grid.scale * (first - grid.zero_point)))
        return {name: step.made for name, step in self._steps.items()}

    def steps(self, inputs: torch.Tensor) -> dict[str, npt.NDArray[np.float64]]:
        """What each quantizer rounds, in steps of its grid."""
        self._module(inputs.double())
        return {name: step.steps for name, step in self._steps.items()}


def _local_differences(
    quantized: fx.GraphModule, network: IntegerNetwork, inputs: torch.Tensor, made: dict[str, Integers]
) -> list[Disagreement]:
    steps = _Exactly(quantized, network, made).steps(inputs)
    tensors = {INPUT: made[INPUT]}
    found = []
    for operation in network.operations:
        local = apply(operation, [tensors[name] for name in operation.inputs], network.rounding)
        tensors[operation.name] = made.get(operation.name, local)
        if operation.name in made and not np.array_equal(local, made[operation.name]):
            found.append(_disagreement(operation.name, made[operation.name], local, steps[operation.name]))
    return found


def _disagreement(name: str, fake: Integers, integer: Integers, steps: npt.NDArray[np.float64]) -> Disagreement:
    wrong = fake != integer
    # The tie between these two: near some other lies, by chance, also what was clipped, or wrong by many steps.
    distance = np.abs(steps - (fake + integer) / 2)[wrong]
    apart = np.abs(fake - integer)[wrong]
    first = tuple(int(each) for each in np.argwhere(wrong)[0])
    return Disagreement(
        name, wrong.size, int(wrong.sum()), float(distance.max()), int((~(distance < TIE) | (apart > 1)).sum()),
        first, int(fake[first]), int(integer[first]),
    )  # fmt: skip


def _merge(found: dict[str, Disagreement], more: list[Disagreement]) -> None:
    """Add the counts of another part of the inputs; the first differing element stays the first."""
    for each in more:
        old = found.get(each.layer)
        found[each.layer] = (
            each
            if old is None
            else replace(
                old,
                elements=old.elements + each.elements,
                differing=old.differing + each.differing,
                distance=max(old.distance, each.distance),
                unexplained=old.unexplained + each.unexplained,
            )
        )
