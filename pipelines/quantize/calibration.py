"""Calibrating a quantized network, and making sure that it is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from brevitas.nn import QuantIdentity
from torch import fx, nn

from evalsuite import Inputs, Unsupported, leaves
from pipelines.quantize.clipping import Calibration, activation_range
from pipelines.quantize.processor import one_thread
from pipelines.quantize.quantizers import COMPUTE, is_power_of_two, kept_length, kernel_of
from pipelines.quantize.tracing import layer_of

_INT32_MAX = 2**31 - 1
_LEAST_LENGTH = 1e-10  # of a range, far below what `check_ranges` lets pass
See = Callable[[str, Any, torch.Tensor, torch.Tensor], None]


class FloatRun(fx.Interpreter):
    """Runs a quantized network without quantization; `see` is called with each layer of Brevitas' and what it is given.

    `see(name, layer, input, output)` gets float tensors; a quantizer's output is its input.
    """

    def __init__(self, quantized: fx.GraphModule, see: See) -> None:
        super().__init__(quantized)
        self.extra_traceback = False  # else torch.fx adds its own lines to the text of every error
        self._see = see

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One layer, in float where it is quantized."""
        layer = self.fetch_attr(target)
        if not isinstance(layer, (QuantIdentity, *COMPUTE)):
            return super().call_module(target, args, kwargs)
        (given,) = args
        made = given if isinstance(layer, QuantIdentity) else compute(layer, given)
        self._see(target, layer, given, made)
        return made


def compute(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
    """What a layer of `COMPUTE` makes of real inputs, (batch, ...), with weights and biases that are not quantized."""
    if isinstance(layer, nn.Linear):
        return nn.functional.linear(inputs, layer.weight, layer.bias)
    made: torch.Tensor = layer._conv_forward(inputs, layer.weight, layer.bias)
    return made


@torch.no_grad()
def calibrate(quantized: fx.GraphModule, inputs: Inputs, calibration: Calibration = "percentile") -> None:
    """Set the range of every activation from `inputs`, in place, in one batch.

    The ranges are those of the float network's tensors, and the same for every number of threads. Each holds 0.

    Raises:
        ValueError: there is no input, or one is not finite.
        Unsupported: the network gives a tensor without a usable range, or a bias that 32 bits cannot hold.
    """
    check_inputs(inputs)

    def set_range(name: str, layer: Any, given: torch.Tensor, _made: torch.Tensor) -> None:
        if not isinstance(layer, QuantIdentity):
            return
        if not bool(torch.isfinite(given).all()):
            raise Unsupported(f"{name}: the calibration samples give this tensor values that are not finite")
        kernel, bits = kernel_of(layer), int(layer.act_quant.bit_width())
        _write_range(kernel, *activation_range(given, bits, calibration, is_power_of_two(kernel)))

    with one_thread():
        FloatRun(quantized, set_range).run(inputs)
    check_ranges(quantized)


def check_inputs(inputs: Inputs) -> None:
    """Raise ValueError if there are none, or one is not finite."""
    if not len(leaves(inputs)[0]):
        raise ValueError("the calibration set is empty: it takes at least one sample to set the activations' ranges")
    if bad := sum(int((~torch.isfinite(each)).sum()) for each in leaves(inputs)):
        raise ValueError(f"{bad} values of the calibration inputs are not finite")


def _write_range(kernel: Any, lower: float, upper: float) -> None:
    """Into Brevitas' parameters: the length of the range, or its logarithm, and how far it reaches below 0."""
    kernel.scaling_impl.value.fill_(kept_length(kernel, torch.tensor(upper - lower).clamp(min=_LEAST_LENGTH)))
    kernel.zero_point_impl.value.fill_(-lower)
    for each in (kernel.scaling_impl, kernel.zero_point_impl):
        each.counter = each.collect_stats_steps + 1  # statistics are collected: training does not begin anew


@torch.no_grad()
def check_ranges(quantized: fx.GraphModule) -> None:
    """Raise Unsupported unless every activation has a usable range and every bias fits into 32 bits."""
    for node in quantized.graph.nodes:
        layer = layer_of(quantized, node)
        if isinstance(layer, QuantIdentity):
            scale = layer.act_quant.scale()
            if not (bool(torch.isfinite(scale)) and scale.item() > 1e-9):
                raise Unsupported(
                    f"{node.target}: the calibration samples give this tensor no range (scale {scale.item():.3g}); take"
                    " others or more of them, or leave out the layer that gives the same for all"
                )
        elif isinstance(layer, COMPUTE) and layer.bias is not None:
            scale = quantizer_of(quantized, node.all_input_nodes[0]).act_quant.scale()
            steps = layer.bias.double().abs() / (scale.double() * layer.quant_weight().scale.double().flatten())
            if steps.max().item() > _INT32_MAX:
                raise Unsupported(f"{node.target}: a bias of {steps.max().item():.3g} steps does not fit into 32 bits")


def quantizer_of(quantized: fx.GraphModule, node: fx.Node) -> QuantIdentity:
    """The quantizer on whose grid the tensor that `node` makes lies; layers that keep the grid may lie between."""
    while not isinstance(layer := layer_of(quantized, node), QuantIdentity):
        (node,) = node.all_input_nodes
    return layer


@torch.no_grad()
def check_grid(quantized: nn.Module) -> None:
    """Raise RuntimeError unless each layer has no more weight levels than its bits, each nearest its float weight."""
    checked = 0
    for name, layer in quantized.named_modules():
        if not isinstance(layer, COMPUTE):
            continue
        weight = layer.quant_weight()
        integers, scale = weight.int(float_datatype=False), weight.scale.double()
        bits, greatest = int(weight.bit_width), int(integers.abs().max())
        if greatest > 2 ** (bits - 1) - 1:
            raise RuntimeError(f"{name}: the integer weight {greatest} exceeds {bits} bits")
        off = ((integers * scale - weight.value.double()).abs() / scale).max().item()
        clipped = torch.minimum(layer.weight.double().abs(), (2 ** (bits - 1) - 1) * scale) * layer.weight.sign()
        moved = ((clipped - weight.value.double()).abs() / scale).max().item()
        if off > 1e-4 or moved > 0.5001:
            raise RuntimeError(f"{name}: weights lie {off:.3g} steps off the grid, {moved:.3g} from their float values")
        checked += 1
    if not checked:
        raise RuntimeError("no layer was quantized")
