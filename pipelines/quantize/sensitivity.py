"""How much of the loss of a quantized network is each layer's: one layer quantized alone, and all
but one.

A loss is the mean Kullback-Leibler divergence of the class probabilities to those of the float
network: 0 where they are equal, and it needs no labels. What is chosen by it is chosen on
calibration data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx, nn

from evalsuite import Direction, Metric, Unsupported
from intnet.threads import one_thread
from opgraph.inputs import Inputs, leaves, mapped
from pipelines.quantize.kinds import FLOAT_COMPUTE
from pipelines.quantize.placement import Bits, Scheme
from pipelines.quantize.tracing import layer_of

_CHUNK = 1000  # samples at a time: bounds the memory


@dataclass(frozen=True, slots=True)
class Loss:
    """`divergence` from the float network, in nats, at least 0, and the fraction of samples
    whose class changed.
    """

    divergence: float
    changed: float


class Reference:
    """Holds what the float network makes of some inputs, to compare quantized networks with."""

    def __init__(self, traced: nn.Module, inputs: Inputs, *, classes: bool = True) -> None:
        """Run `traced` on `inputs`, a batch; without `classes` its outputs are no logits.

        Raises:
            ValueError: there is no input, or the float network's logits are not finite.
        """
        if not len(leaves(inputs)[0]):
            raise ValueError(
                "no inputs: the loss of a quantized network is a mean over at least one sample"
            )
        self._inputs = inputs
        logits = _logits(traced, inputs)
        if bad := int((~logits.isfinite()).sum()):
            raise ValueError(
                f"{bad} of {logits.numel()} logits of the float network are NaN or infinite"
            )
        self._outputs, self._logs, self._classes = logits, logits.log_softmax(-1), classes

    def distance(self, quantized: nn.Module) -> float:
        """How far `quantized` is from the float network: the divergence of `loss`, or, without
        classes, the squared differences of all outputs over the squared outputs.

        Raises:
            ValueError: it is NaN or infinite.
        """
        if self._classes:
            return self.loss(quantized).divergence
        off = (_logits(quantized, self._inputs) - self._outputs).square().sum()
        distance = (
            off / self._outputs.square().sum().clamp(min=torch.finfo(off.dtype).tiny)
        ).item()
        if not math.isfinite(distance):
            raise ValueError(f"the quantized network's distance from the float one is {distance}")
        return distance

    def loss(self, quantized: nn.Module) -> Loss:
        """The divergence of `quantized` on the same inputs: the mean over samples of sum over
        classes p log(p / q), in float64.

        p are the float network's probabilities, q the quantized one's.

        Raises:
            ValueError: it is NaN or infinite.
        """
        logs = _logits(quantized, self._inputs).log_softmax(-1)
        # The sum's own rounding may take a divergence of 0 below 0.
        divergence = (self._logs.exp() * (self._logs - logs)).sum(-1).mean().clamp(min=0).item()
        if not math.isfinite(divergence):
            raise ValueError(
                f"the quantized network's divergence from the float one is {divergence}"
            )
        changed = (self._logs.argmax(-1) != logs.argmax(-1)).double().mean().item()
        return Loss(divergence, changed)


@torch.no_grad()
def _logits(network: nn.Module, inputs: Inputs) -> torch.Tensor:
    starts = range(0, len(leaves(inputs)[0]), _CHUNK)
    chunks = (
        mapped(inputs, lambda tensor, first=start: tensor[first : first + _CHUNK])  # type: ignore[misc]
        for start in starts
    )
    return torch.cat([network(chunk) for chunk in chunks]).double()


Make = Callable[[Scheme], fx.GraphModule]
"""Gives the calibrated network for a scheme, always the same one. Schemes that come from here say
only how many bits each layer has; placement of quantizers and kind of scales are for `make` to add.
"""


def layers_of(traced: fx.GraphModule) -> dict[str, int]:
    """The layers that can be quantized, in the graph's order, and how many weights each has, biases
    not counted; weights inside float islands are not among them.

    Raises:
        Unsupported: there is none.
    """
    layers = {str(node.target): layer_of(traced, node) for node in traced.graph.nodes}
    found = {
        name: layer.weight.numel()
        for name, layer in layers.items()
        if isinstance(layer, FLOAT_COMPUTE)
    }
    if not found:
        raise Unsupported("no linear or convolutional layer to quantize")
    return found


def sensitivity(make: Make, traced: fx.GraphModule, inputs: Inputs, bits: Bits) -> list[Metric]:
    """The loss with all layers quantized, and, with the setting "layer", with this one alone, and
    with this one spared; a layer's bits are those of its weights and its input.

    Args:
        make: gives the calibrated network for a scheme.
        traced: the float network.
        inputs: a batch, of the calibration data where anything is chosen by the result.
        bits: of every layer that is quantized.

    Raises:
        Unsupported: there is no layer to quantize.
        ValueError: there is no input, or logits are not finite.
    """
    layers = layers_of(traced)
    condition = f"at {bits.weight}-bit weights, {bits.act}-bit activations, on calibration data"
    rows = []

    def tell(subject: str, loss: Loss, which: str, **setting: str) -> None:
        for what, value, unit in (
            ("loss", loss.divergence, "nats"),
            ("changes", loss.changed, "fraction"),
        ):
            rows.append(
                Metric(
                    f"{subject}_{what}",
                    value,
                    unit,
                    Direction.LOWER,
                    setting,
                    reason=f"{which} {condition}",
                )
            )

    with one_thread():
        reference = Reference(traced, inputs)
        tell("quantization", reference.loss(make(Scheme(bits))), "all layers")
        for name in layers:
            alone = reference.loss(make(Scheme(None, layers={name: bits})))
            tell("layer_alone", alone, "only this layer", layer=name)
            # With the only layer spared nothing is quantized: nothing to make, nothing lost.
            spared = (
                reference.loss(make(Scheme(bits, layers={name: None})))
                if len(layers) > 1
                else Loss(0.0, 0.0)
            )
            tell("layer_spared", spared, "all but this layer", layer=name)
    return rows
