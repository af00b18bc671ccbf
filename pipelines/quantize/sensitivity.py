"""How much of the loss of a quantized network is each layer's: one layer quantized alone, and all but one.

A loss is the mean Kullback-Leibler divergence of the class probabilities to those of the float network: 0 where they
are equal, and it needs no labels. What is chosen by it is chosen on calibration data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from evalsuite import Direction, Inputs, Metric, Unsupported
from pipelines.quantize.divergence import Loss, Reference
from pipelines.quantize.placement import FLOAT_COMPUTE, Bits, Scheme
from pipelines.quantize.processor import one_thread
from pipelines.quantize.tracing import layer_of

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
