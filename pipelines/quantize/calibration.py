"""Calibrating a quantized network: the ranges of its tensors, where they clip, and whether it is
quantized at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from brevitas.nn import QuantIdentity
from torch import fx, nn

from evalsuite import Unsupported
from intnet.threads import one_thread
from opgraph.inputs import Inputs, leaves
from pipelines.quantize.placement import (
    COMPUTE,
    is_power_of_two,
    kept_length,
    kernel_of,
    weight_scale,
)
from pipelines.quantize.tracing import layer_of

Calibration = Literal["percentile", "max", "mse"]
WeightScale = Literal["max", "mse"]

# The share of a tensor's values that "percentile" leaves outside at each end: Brevitas' default.
_OUTSIDE = 1e-5
# The squared error is that of so many values at most, evenly spread; values that are 0 are exact on
# every grid.
_SEARCHED = 2**15
_SHARES = torch.linspace(0.02, 1.0, 50).tolist()
_WEIGHT_SHARES = torch.linspace(0.1, 1.0, 91).tolist()
# Powers of two below the greatest that are tried.
_EXPONENTS = 6
# Grids of more bits than these take in what lies twice as far out as all that was seen.
_NARROW_BITS, _HEADROOM = 8, 2.0
_LOWER_SHARES = torch.linspace(0.0, 1.0, 9).tolist()


def activation_range(
    values: torch.Tensor, bits: int, calibration: Calibration, power_of_two: bool
) -> tuple[float, float]:
    """(lower, upper) with lower <= 0 <= upper: what an unsigned quantizer with a zero point should
    reach.

    Args:
        values: of any shape, finite.
        calibration: "max" takes all values in, "percentile" all but 0.001 % at each end, and "mse"
            makes the mean squared error of the quantized values small. Its search goes over shares
            of the range, of which it takes each end in turn. Grids of more than 8 bits have steps
            to spare: they reach twice as far as the values, whatever is chosen here.
        power_of_two: whether upper - lower will be rounded up to a power of two; "mse" then chooses
            among those.
    """
    flat = values.detach().flatten().float()
    if bits > _NARROW_BITS:
        return _HEADROOM * min(0.0, flat.min().item()), _HEADROOM * max(0.0, flat.max().item())
    if calibration == "percentile":
        return min(0.0, _beyond(flat, largest=False)), max(0.0, _beyond(flat, largest=True))
    lower, upper = min(0.0, flat.min().item()), max(0.0, flat.max().item())
    if calibration == "max" or lower == upper:
        return lower, upper
    # Every grid holds 0, so that zeros have no error. Of the others a part is enough for the
    # search.
    flat = flat[flat != 0]
    flat = flat[:: -(-len(flat) // _SEARCHED)].double()
    if power_of_two:
        return min(
            _powers(lower, upper), key=lambda ends: _error(flat, ends, bits, power_of_two=True)
        )
    return _search(flat, lower, upper, bits)


def weight_thresholds(
    weight: torch.Tensor, bits: int, weight_scale: WeightScale, least: float, power_of_two: bool
) -> torch.Tensor:
    """For each output channel the magnitude that its greatest integer stands for, (channels,).

    Args:
        weight: (channels, ...).
        weight_scale: "max" takes the greatest magnitude, "mse" the share of it with the least
            squared error.
        least: no threshold is less.
        power_of_two: whether thresholds are powers of two, which then stand for 2^(bits - 1) steps.
    """
    rows = weight.detach().flatten(1).double()
    greatest = rows.abs().amax(1).clamp(min=least)
    if power_of_two:
        greatest = _next_power(greatest)
    if weight_scale == "max":
        return greatest.float()
    shares = (
        [2.0**-exponent for exponent in range(_EXPONENTS)] if power_of_two else _WEIGHT_SHARES[::-1]
    )
    most = 2 ** (bits - 1) - 1
    best, least_error = greatest, torch.full_like(greatest, torch.inf)
    # Try all channels at once; each keeps the threshold of its own least error.
    for share in shares:
        thresholds = (share * greatest).clamp(min=least)
        scale = (thresholds / (most + power_of_two))[:, None]
        error = ((rows / scale).round().clamp(-most, most) * scale - rows).square().sum(1)
        best = torch.where(error < least_error, thresholds, best)
        least_error = torch.minimum(error, least_error)
    return best.float()


def _beyond(flat: torch.Tensor, largest: bool) -> float:
    """The value that `_OUTSIDE` of all values exceed at one end."""
    # By the few values outside: finding a rank among all takes quadratic time where they happen to
    # be sorted.
    return float(
        flat.topk(min(int(_OUTSIDE * len(flat) + 0.5) + 1, len(flat)), largest=largest).values[-1]
    )


def _next_power(values: torch.Tensor) -> torch.Tensor:
    return torch.exp2(values.log2().ceil())


def _error(
    flat: torch.Tensor, ends: tuple[float, float], bits: int, *, power_of_two: bool = False
) -> float:
    """The sum of squared differences between the values and their quantized ones."""
    (lower, upper), most = ends, 2**bits - 1
    scale = (upper - lower) / (most + power_of_two)
    zero = min(max(round(-lower / scale), 0), most)
    return float(
        ((flat / scale + zero).round_().clamp_(0, most).sub_(zero).mul_(scale) - flat)
        .square_()
        .sum()
    )


def _search(flat: torch.Tensor, lower: float, upper: float, bits: int) -> tuple[float, float]:
    """Each end in turn, twice if there are two: a range around 0 has no better end alone."""
    ends = lower, upper
    for _ in range(2 if lower and upper else 1):
        if upper:
            ends = min(
                ((ends[0], share * upper) for share in _SHARES),
                key=lambda share: _error(flat, share, bits),
            )
        if lower:
            ends = min(
                ((share * lower, ends[1]) for share in (0.0, *_SHARES) if share * lower < ends[1]),
                key=lambda share: _error(flat, share, bits),
            )
    return ends


def _powers(lower: float, upper: float) -> Iterator[tuple[float, float]]:
    greatest = _next_power(torch.tensor(upper - lower, dtype=torch.float64)).item()
    for exponent in range(_EXPONENTS):
        for share in _LOWER_SHARES if lower else (0.0,):
            yield share * lower, share * lower + greatest / 2**exponent


_INT32_MAX = 2**31 - 1
_LEAST_LENGTH = 1e-10  # of a range, far below what `check_ranges` lets pass
See = Callable[[str, Any, torch.Tensor, torch.Tensor], None]


class FloatRun(fx.Interpreter):
    """Runs a quantized network without quantization; `see` is called with each layer of Brevitas'
    and what it is given.

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
        (operand,) = args
        result = operand if isinstance(layer, QuantIdentity) else compute(layer, operand)
        self._see(target, layer, operand, result)
        return result


def compute(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Return what a layer of `COMPUTE` makes of real inputs, (batch, ...), with weights and biases
    that are not quantized.
    """
    if isinstance(layer, nn.Linear):
        return nn.functional.linear(inputs, layer.weight, layer.bias)
    tensor: torch.Tensor = layer._conv_forward(inputs, layer.weight, layer.bias)
    return tensor


@torch.no_grad()
def calibrate(
    quantized: fx.GraphModule, inputs: Inputs, calibration: Calibration = "percentile"
) -> None:
    """Set the range of every activation from `inputs`, in place, in one batch.

    The ranges are those of the float network's tensors, and the same for every number of threads.
    Each holds 0.

    Raises:
        ValueError: there is no input, or one is not finite.
        Unsupported: the network gives a tensor without a usable range, or a bias that 32 bits
            cannot hold.
    """
    check_inputs(inputs)

    def set_range(name: str, layer: Any, tensor: torch.Tensor, _made: torch.Tensor) -> None:
        if not isinstance(layer, QuantIdentity):
            return
        if not bool(torch.isfinite(tensor).all()):
            raise Unsupported(
                f"{name}: the calibration samples give this tensor values that are not finite"
            )
        kernel, bits = kernel_of(layer), int(layer.act_quant.bit_width())
        lower, upper = activation_range(tensor, bits, calibration, is_power_of_two(kernel))
        # Brevitas keeps the length of the range, or its logarithm, and how far it reaches below 0.
        kernel.scaling_impl.value.fill_(
            kept_length(kernel, torch.tensor(upper - lower).clamp(min=_LEAST_LENGTH))
        )
        kernel.zero_point_impl.value.fill_(-lower)
        for parameter in (kernel.scaling_impl, kernel.zero_point_impl):
            # statistics are collected: training does not begin anew
            parameter.counter = parameter.collect_stats_steps + 1

    # One run of the float network sees every tensor, so that no range depends on another's
    # rounding.
    with one_thread():
        FloatRun(quantized, set_range).run(inputs)
    check_ranges(quantized)


def check_inputs(inputs: Inputs) -> None:
    """Raise ValueError if there are none, or one is not finite."""
    if not len(leaves(inputs)[0]):
        raise ValueError(
            "the calibration set is empty: it takes at least one sample to set the activations'"
            " ranges"
        )
    if bad := sum(int((~torch.isfinite(leaf)).sum()) for leaf in leaves(inputs)):
        raise ValueError(f"{bad} values of the calibration inputs are not finite")


@torch.no_grad()
def check_ranges(quantized: fx.GraphModule) -> None:
    """Raise Unsupported unless every activation has a usable range and every bias fits into 32
    bits.
    """
    for node in quantized.graph.nodes:
        layer = layer_of(quantized, node)
        if isinstance(layer, QuantIdentity):
            scale = layer.act_quant.scale()
            if not (bool(torch.isfinite(scale)) and scale.item() > 1e-9):
                raise Unsupported(
                    f"{node.target}: the calibration samples give this tensor no range (scale"
                    f" {scale.item():.3g}); take others or more of them, or leave out the layer"
                    " that gives the same for all"
                )
        elif isinstance(layer, COMPUTE) and layer.bias is not None:
            scale = quantizer_of(quantized, node.all_input_nodes[0]).act_quant.scale()
            steps = layer.bias.double().abs() / (
                scale.double() * weight_scale(layer).double().flatten()
            )
            if steps.max().item() > _INT32_MAX:
                raise Unsupported(
                    f"{node.target}: a bias of {steps.max().item():.3g} steps does not fit into 32"
                    " bits"
                )


def quantizer_of(quantized: fx.GraphModule, node: fx.Node) -> QuantIdentity:
    """The quantizer on whose grid the tensor that `node` makes lies; layers that keep the grid
    may lie between.
    """
    while not isinstance(layer := layer_of(quantized, node), QuantIdentity):
        (node,) = node.all_input_nodes
    return layer


@torch.no_grad()
def check_grid(quantized: nn.Module) -> None:
    """Raise RuntimeError unless each layer has no more weight levels than its bits, each nearest
    its float weight.
    """
    checked = 0
    for name, layer in quantized.named_modules():
        if not isinstance(layer, COMPUTE):
            continue
        weight = layer.quant_weight()
        integers, scale = weight.int(float_datatype=False), weight.scale.double()
        # 1. No integer is beyond its bits.
        bits, greatest = int(weight.bit_width), int(integers.abs().max())
        if greatest > 2 ** (bits - 1) - 1:
            raise RuntimeError(f"{name}: the integer weight {greatest} exceeds {bits} bits")
        # 2. Weights lie on the grid, at most half a step from the float weights as far as it
        # reaches.
        off = ((integers * scale - weight.value.double()).abs() / scale).max().item()
        clipped = (
            torch.minimum(layer.weight.double().abs(), (2 ** (bits - 1) - 1) * scale)
            * layer.weight.sign()
        )
        moved = ((clipped - weight.value.double()).abs() / scale).max().item()
        if off > 1e-4 or moved > 0.5001:
            raise RuntimeError(
                f"{name}: weights lie {off:.3g} steps off the grid, {moved:.3g} from their float"
                " values"
            )
        checked += 1
    if not checked:
        raise RuntimeError("no layer was quantized")


_BITS = 8


@torch.no_grad()
def even_zero_points(quantized: nn.Module) -> list[str]:
    """Move each odd zero point of an 8-bit grid by one step, in place; the quantizers of the
    network that moved.

    Of x / scale = n + 1/2, Brevitas and ONNX Runtime's QLinearAdd round x / scale + zero_point to
    the even integer, ONNX's QuantizeLinear and the fused convolutions round x / scale, and add the
    zero point behind: with an odd zero point they differ by one. Ties are common with power-of-two
    scales (up to 25% of a layer's integers at 4 bits) and rare with others. The range moves by the
    step to the side where it cuts off less: nothing of note at 8 bits, but up to 3 points of
    accuracy at 4 bits and more below, so coarser grids stay as they are.

    Raises:
        RuntimeError: a zero point did not become the even one that was asked for.
    """
    moved = []
    for name, layer in quantized.named_modules():
        if not isinstance(layer, QuantIdentity):
            continue
        zero_point, scale = (
            round(layer.act_quant.zero_point().item()),
            layer.act_quant.scale().item(),
        )
        bits = int(layer.act_quant.bit_width().item())
        if zero_point % 2 == 0 or bits < _BITS:
            continue
        kernel = kernel_of(layer)
        greatest = 2**bits - 1
        length = kernel.scaling_impl.value.double()
        length = length.exp2() if is_power_of_two(kernel) else length
        # How far the range reaches below 0 and above it, in steps.
        below = kernel.zero_point_impl.value.item() / scale
        above = length.item() / scale - below
        # Of the even neighbours the one whose grid cuts off less at its worse end.
        nearest = min(
            (candidate for candidate in (zero_point + 1, zero_point - 1) if candidate <= greatest),
            key=lambda candidate: max(below - candidate, above - (greatest - candidate)),
        )
        kernel.zero_point_impl.value.fill_(nearest * scale)
        if round(layer.act_quant.zero_point().item()) != nearest:
            raise RuntimeError(f"{name}: the zero point {zero_point} did not become {nearest}")
        moved.append(name)
    return moved
