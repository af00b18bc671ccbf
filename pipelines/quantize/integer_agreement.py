"""Where the fake-quantized network and the integer-only one differ, and whether every difference
is a rounding tie.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from brevitas.nn import QuantIdentity
from brevitas.quant_tensor import QuantTensor
from torch import fx

from evalsuite.samples import Samples, pieces
from intnet.execution import Executor
from intnet.grids import INPUT, Integers, quantize
from intnet.layers import Weighted
from intnet.network import IntegerNetwork
from pipelines.quantize.agreement import in_brevitas, quantizers
from pipelines.quantize.lowering import grid_of
from pipelines.quantize.placement import COMPUTE, is_power_of_two, kept_length, kernel_of
from pipelines.quantize.tracing import at_a_time


def tensor_of(quantizer: str) -> str:
    """The integer network's name of the tensor that a quantizer makes."""
    return INPUT if quantizer == "quantize_input" else quantizer


def in_float64(quantized: fx.GraphModule, network: IntegerNetwork) -> fx.GraphModule:
    """A copy of the fake-quantized network that computes in float64, with the grids, integer
    weights and biases it has.

    It is Brevitas' own code. Float32 decides by its rounding errors what lies nearly half-way
    between two integers; here nothing that the network defines is decided so.

    Args:
        quantized: stays as it is.
        network: what `lower` made of it: the biases are its integers.

    Raises:
        RuntimeError: a layer keeps its scale in a way that is not known here, so that its integers
            would move.
    """
    exact = copy.deepcopy(quantized).double()
    biases = {
        operation.name: operation
        for operation in network.operations
        if isinstance(operation, Weighted)
    }
    for name, layer in quantized.named_modules():
        twin: Any = exact.get_submodule(name)
        if isinstance(layer, QuantIdentity):
            grid, kernel = grid_of(layer), kernel_of(twin)
            # Brevitas keeps a grid's reach and its zero, both as real numbers, and divides: in
            # float64, once more.
            reach = _reach(kernel, torch.tensor(grid.scale, dtype=torch.float64), grid.high)
            kernel.scaling_impl.value.data.copy_(reach)
            kernel.zero_point_impl.value.data.fill_(grid.scale * grid.zero_point)
            if grid_of(twin) != grid:
                raise RuntimeError(
                    f"{name}: in float64 its grid became {grid_of(twin)} instead of {grid}"
                )
        elif isinstance(layer, COMPUTE):
            weight = layer.quant_weight()
            scale, integers, kernel = weight.scale.double(), weight.int(), kernel_of(twin)
            for part in twin.weight_quant.modules():
                if hasattr(part, "min_val"):
                    # a limit that float32 rounded would lift the scales that it made a little
                    part.min_val = 0.0
            value = kernel.scaling_impl.value
            value.data = _reach(kernel, scale.view_as(value), 2 ** (int(weight.bit_width) - 1) - 1)
            # Weights on their own grid, so that float64 quantizes them to the same integers.
            twin.weight.data = integers * scale
            made = twin.quant_weight()
            if not torch.equal(made.scale, scale) or not torch.equal(made.int(), integers):
                raise RuntimeError(f"{name}: in float64 its weights are quantized otherwise")
            # Biases as the integer network has them, which are rounded.
            if name in biases and twin.bias is not None:
                twin.bias.data = torch.from_numpy(biases[name].bias * biases[name].scale)
    return exact


def _reach(kernel: Any, scale: torch.Tensor, greatest: int) -> torch.Tensor:
    """Return what Brevitas keeps to find `scale` again: that of the greatest integer, or the
    logarithm of the next power's.
    """
    return kept_length(kernel, scale * (greatest + is_power_of_two(kernel)))


def real_steps(
    quantized: fx.GraphModule,
    network: IntegerNetwork,
    integers: dict[str, Integers],
    inputs: torch.Tensor,
) -> dict[str, npt.NDArray[np.float64]]:
    """Return what each quantizer rounds, in steps of its grid, in float64.

    Args:
        quantized: stays as it is.
        network: what `lower` made of it.
        integers: by quantizer, to hand on instead of what it would round.
        inputs: of the network.
    """
    exact = in_float64(quantized, network)
    steps: dict[str, npt.NDArray[np.float64]] = {}

    def see(tensor: str, layer: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor]:
        grid, real = grid_of(layer), args[0].value if isinstance(args[0], QuantTensor) else args[0]
        steps[tensor] = real.numpy() / grid.scale + grid.zero_point
        return (torch.from_numpy(grid.scale * (integers[tensor] - grid.zero_point)),)

    for name in quantizers(exact):
        exact.get_submodule(name).register_forward_pre_hook(partial(see, tensor_of(name)))
    exact(inputs if network.tokens else inputs.double())
    return steps


TIE = 1e-4
"""Closer to a tie than this, in steps of the grid, float32 arithmetic may round either way."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """At one quantizer, given the same integers before it.

    `distance` is the greatest distance of a differing element's real value to the tie between its
    two integers, in steps of the grid; `unexplained` counts those not nearer than `TIE`, or more
    than one step apart. `first` is the index of the first.
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
        """The agreement in one line, for people."""
        return (
            f"{self.layer}: {self.differing} of {self.elements} integers, first at"
            f" {list(self.first)}: {self.fake_quantized} fake-quantized, {self.integer} in"
            f" integers; farthest from a tie {self.distance:.1e}"
        )


@dataclass(frozen=True, slots=True)
class IntegerAgreement:
    """How far the integer logits agree with those of the fake-quantized network, as integers on the
    same grid.

    `predictions` are one of each sample, or of each of its positions. `disagreements` are of the
    samples whose logits differ, in the network's order.
    """

    predictions: int
    same_class: int
    logits: int
    differing: int
    disagreements: list[Disagreement]

    @property
    def distance(self) -> float:
        """The greatest distance to a tie among all differing elements; 0 where none differs."""
        return max((disagreement.distance for disagreement in self.disagreements), default=0.0)

    @property
    def unexplained(self) -> int:
        """How many differing elements are no rounding ties."""
        return sum(disagreement.unexplained for disagreement in self.disagreements)


@torch.no_grad()
def compare(
    quantized: fx.GraphModule,
    network: IntegerNetwork,
    inputs: torch.Tensor | Samples,
    *,
    precision: torch.dtype = torch.float32,
    diagnose: bool = True,
    chunk: int = 500,
) -> IntegerAgreement:
    """Run both on `inputs` (samples, *input_shape); where logits differ, compare quantizer by
    quantizer.

    For that each quantizer is given the integers that the fake-quantized network computed before
    it, so that a difference is its own and not carried over; its real value is computed in float64.

    Args:
        quantized: stays as it is.
        network: what `lower` made of it.
        inputs: float32.
        precision: that Brevitas computes in: float32, or float64, in which rounding errors decide
            no tie. What is left there comes of factors that `Dyadic` rounds: behind an average over
            6 places a tie is none for the integers.
        diagnose: whether to look for the quantizers at which they differ. A sample whose logits
            agree is not looked at: an integer inside that differs without a trace in them is not
            found.
        chunk: samples at a time, at most.

    Raises:
        ValueError: there is no input, one is not finite, or the shape is wrong.
    """
    executor = Executor(network)
    exact = None if precision == torch.float32 else in_float64(quantized, network)
    predictions = same = logits = differing = 0
    disagreements: dict[str, Disagreement] = {}
    for part in pieces(inputs, at_a_time(quantized, chunk)):
        integer = executor.run_reals(part.numpy())  # first: it says what is wrong with the inputs
        made = (
            recorded_integers(quantized, part)
            if exact is None
            else _exact_integers(exact, network, part)
        )
        fake = _integers_of(network.operations[-1].name, network, made)
        # 1. Count the classes and logits that are equal.
        alike = fake.argmax(-1) == integer.argmax(-1)
        predictions += alike.size
        same += int(alike.sum())
        logits += integer.size
        unequal = fake != integer
        differing += int(unequal.sum())
        # 2. For samples with other logits look for the quantizers where they part, each given the
        # integers that the fake-quantized network had before it.
        samples = np.flatnonzero(unequal.reshape(len(part), -1).any(1))
        if diagnose and len(samples):
            chosen = {name: integers[samples] for name, integers in made.items()}
            _merge(disagreements, _local_differences(quantized, network, part[samples], chosen))
    return IntegerAgreement(predictions, same, logits, differing, list(disagreements.values()))


def _integers_of(name: str, network: IntegerNetwork, known: dict[str, Integers]) -> Integers:
    """As a quantizer made them, or by the layers that keep the grid behind one: pools and
    flattening.
    """
    if name in known:
        return known[name]
    operation = next(operation for operation in network.operations if operation.name == name)
    return operation.apply(
        [_integers_of(source, network, known) for source in operation.inputs], network.rounding
    )


def _exact_integers(
    exact: fx.GraphModule, network: IntegerNetwork, inputs: torch.Tensor
) -> dict[str, Integers]:
    """The input, which is float32, is quantized in float32, as both networks do; tokens stay
    what they are.
    """
    if network.tokens:
        return recorded_integers(exact, inputs)
    first = quantize(inputs.numpy(), network.input, "the inputs")
    return recorded_integers(
        exact, torch.from_numpy(network.input.scale * (first - network.input.zero_point))
    )


def recorded_integers(quantized: fx.GraphModule, inputs: torch.Tensor) -> dict[str, Integers]:
    """The integers that every quantizer of the fake-quantized network makes of `inputs`, (batch,
    ...): int64 by its name, the input's by `INPUT`.
    """
    return {
        tensor_of(name): result.integers for name, result in in_brevitas(quantized, inputs).items()
    }


def _local_differences(
    quantized: fx.GraphModule,
    network: IntegerNetwork,
    inputs: torch.Tensor,
    known: dict[str, Integers],
) -> list[Disagreement]:
    steps = real_steps(quantized, network, known, inputs)
    tensors = {INPUT: inputs.numpy() if network.tokens else known[INPUT]}
    disagreements = []
    for operation in network.operations:
        # Give each operation the fake-quantized network's integers, so that a difference is its
        # own.
        local = operation.apply([tensors[name] for name in operation.inputs], network.rounding)
        tensors[operation.name] = known.get(operation.name, local)
        if operation.name in known and not np.array_equal(local, known[operation.name]):
            disagreements.append(
                _disagreement(operation.name, known[operation.name], local, steps[operation.name])
            )
    return disagreements


def _disagreement(
    name: str, fake: Integers, integer: Integers, steps: npt.NDArray[np.float64]
) -> Disagreement:
    wrong = fake != integer
    # The tie between these two: near some other lies, by chance, also what was clipped, or wrong by
    # many steps.
    distance = np.abs(steps - (fake + integer) / 2)[wrong]
    apart = np.abs(fake - integer)[wrong]
    first = tuple(int(index) for index in np.argwhere(wrong)[0])
    return Disagreement(
        name,
        wrong.size,
        int(wrong.sum()),
        float(distance.max()),
        int((~(distance < TIE) | (apart > 1)).sum()),
        first,
        int(fake[first]),
        int(integer[first]),
    )


def _merge(disagreements: dict[str, Disagreement], more: list[Disagreement]) -> None:
    """Add the counts of another part of the inputs; the first differing element stays the first."""
    for disagreement in more:
        old = disagreements.setdefault(disagreement.layer, disagreement)
        if old is not disagreement:
            sums = {
                name: getattr(old, name) + getattr(disagreement, name)
                for name in ("elements", "differing", "unexplained")
            }
            disagreements[disagreement.layer] = replace(
                old, distance=max(old.distance, disagreement.distance), **sums
            )
