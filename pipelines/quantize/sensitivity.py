"""How much of the loss of a quantized network is each layer's: one layer quantized alone, and all but one.

A loss is the mean Kullback-Leibler divergence of the class probabilities to those of the float network: 0 where they
are equal, and it needs no labels. What is chosen by it is chosen on calibration data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx, nn

from evalsuite import Direction, Inputs, Metric, Unsupported, leaves, mapped
from pipelines.quantize.placement import FLOAT_COMPUTE, Bits, Scheme
from pipelines.quantize.processor import one_thread
from pipelines.quantize.tracing import layer_of

_CHUNK = 1000  # samples at a time: bounds the memory


@dataclass(frozen=True, slots=True)
class Loss:
    """`divergence` from the float network, in nats, at least 0, and the fraction of samples whose class changed."""

    divergence: float
    changed: float


class Reference:
    """The float network's class probabilities for some inputs, to compare quantized networks with."""

    def __init__(self, traced: nn.Module, inputs: Inputs) -> None:
        """Run `traced` on `inputs`, a batch.

        Raises:
            ValueError: there is no input, or the float network's logits are not finite.
        """
        if not len(leaves(inputs)[0]):
            raise ValueError("no inputs: the loss of a quantized network is a mean over at least one sample")
        self._inputs = inputs
        logits = _logits(traced, inputs)
        if bad := int((~logits.isfinite()).sum()):
            raise ValueError(f"{bad} of {logits.numel()} logits of the float network are NaN or infinite")
        self._logs = logits.log_softmax(-1)

    def loss(self, quantized: nn.Module) -> Loss:
        """The divergence of `quantized` on the same inputs: the mean over samples of sum over classes p log(p / q), in
        float64.

        p are the float network's probabilities, q the quantized one's.

        Raises:
            ValueError: it is NaN or infinite.
        """
        logs = _logits(quantized, self._inputs).log_softmax(-1)
        # The sum's own rounding may take a divergence of 0 below 0.
        divergence = (self._logs.exp() * (self._logs - logs)).sum(-1).mean().clamp(min=0).item()
        if not math.isfinite(divergence):
            raise ValueError(f"the quantized network's divergence from the float one is {divergence}")
        changed = (self._logs.argmax(-1) != logs.argmax(-1)).double().mean().item()
        return Loss(divergence, changed)


@torch.no_grad()
def _logits(network: nn.Module, inputs: Inputs) -> torch.Tensor:
    starts = range(0, len(leaves(inputs)[0]), _CHUNK)
    chunks = (mapped(inputs, lambda each, at=start: each[at : at + _CHUNK]) for start in starts)  # type: ignore[misc]
    return torch.cat([network(chunk) for chunk in chunks]).double()


Make = Callable[[Scheme], fx.GraphModule]
"""Gives the calibrated network for a scheme, always the same one. Schemes that come from here say only how many bits
each layer has; placement of quantizers and kind of scales are for `make` to add."""

LOWER = Direction.LOWER


@dataclass(frozen=True, slots=True)
class LayerSize:
    """A linear or convolutional layer: its name in the traced graph, its weights, biases not counted, and its
    multiply-accumulates for one input."""

    name: str
    weights: int
    macs: int


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The loss with only this layer quantized (`alone`), and with all layers but this one quantized (`spared`)."""

    layer: LayerSize
    alone: Loss
    spared: Loss


@dataclass(frozen=True, slots=True)
class SensitivityProfile:
    """Of each layer in the network's order, at `bits`; `everything` is the loss with all layers quantized."""

    bits: Bits
    everything: Loss
    layers: tuple[Sensitivity, ...]


def layers_of(traced: fx.GraphModule) -> list[LayerSize]:
    """The layers that can be quantized, in the graph's order; weights inside float islands are not among them.

    Raises:
        Unsupported: there is none.
    """
    found = []
    for node in traced.graph.nodes:
        layer = layer_of(traced, node)
        if isinstance(layer, FLOAT_COMPUTE):
            macs = math.prod(node.meta["shape"][1:]) * math.prod(layer.weight.shape[1:])
            found.append(LayerSize(str(node.target), layer.weight.numel(), macs))
    if not found:
        raise Unsupported("no linear or convolutional layer to quantize")
    return found


def sensitivity(make: Make, traced: fx.GraphModule, inputs: Inputs, bits: Bits) -> SensitivityProfile:
    """Quantize each layer alone, each layer not, and all; a layer's bits are those of its weights and its input.

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
    with one_thread():
        reference = Reference(traced, inputs)
        everything = reference.loss(make(Scheme(bits)))
        found = []
        for each in layers:
            alone = reference.loss(make(Scheme(None, layers={each.name: bits})))
            # With the only layer spared nothing is quantized: nothing to make, nothing lost.
            spared = reference.loss(make(Scheme(bits, layers={each.name: None}))) if len(layers) > 1 else Loss(0.0, 0.0)
            found.append(Sensitivity(each, alone, spared))
    return SensitivityProfile(bits, everything, tuple(found))


def metrics_of_sensitivity(profile: SensitivityProfile) -> list[Metric]:
    """The losses of all layers quantized, and of each layer alone and spared with the setting "layer"."""
    at = f"{profile.bits.weight}-bit weights, {profile.bits.act}-bit activations, on calibration data"
    metrics = [
        Metric("quantization_loss", profile.everything.divergence, "nats", LOWER, reason=f"all layers at {at}"),
        Metric("quantization_changes", profile.everything.changed, "fraction", LOWER, reason=f"all layers at {at}"),
    ]
    for each in profile.layers:
        setting = {"layer": each.layer.name}
        for kind, loss, what in (("alone", each.alone, "only"), ("spared", each.spared, "all but")):
            reason = f"{what} this layer at {at}"
            metrics += [
                Metric(f"layer_{kind}_loss", loss.divergence, "nats", LOWER, setting, reason=reason),
                Metric(f"layer_{kind}_changes", loss.changed, "fraction", LOWER, setting, reason=reason),
            ]
    return metrics
