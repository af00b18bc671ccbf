"""Treat a network, besides rounding it, so that it loses less when quantized; and choose the
treatment.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch
from torch import fx, nn

from evalsuite import Unsupported
from intnet.threads import one_thread
from opgraph.inputs import Inputs, leaves, mapped
from pipelines.quantize.calibration import (
    Calibration,
    FloatRun,
    WeightScale,
    calibrate,
    check_grid,
    check_inputs,
    check_ranges,
    even_zero_points,
    weight_thresholds,
)
from pipelines.quantize.kinds import FLOAT_COMPUTE
from pipelines.quantize.migration import migrate
from pipelines.quantize.placement import (
    COMPUTE,
    Scheme,
    is_power_of_two,
    kept_length,
    kernel_of,
    place,
    weight_bits,
)
from pipelines.quantize.sensitivity import Reference
from pipelines.quantize.tracing import trace
from pipelines.quantize.weights import Products, WeightRounding, equalize, round_weights

_CHOICES = {
    "calibration": Calibration,
    "weight_scale": WeightScale,
    "weight_rounding": WeightRounding,
}


@dataclass(frozen=True, slots=True)
class Treatment:
    """How the ranges are chosen and the weights rounded, after training.

    Args:
        calibration: where activations are clipped: see `activation_range`.
        weight_scale: where the weights of a channel are clipped: see `weight_thresholds`.
        weight_rounding: "nearest", or by what the layers give on the calibration set: see
            `round_weights`.
        bias_correction: whether biases take up the mean error of each channel on the calibration
            set.
        equalization: whether weights of neighbouring layers get like ranges first: see `equalize`.
        migration: the share of uneven ranges that goes from features to weights, in [0, 1), where
            tensors are quantized by reader; 0 moves nothing: see `migrate`.
    """

    calibration: Calibration = "percentile"
    weight_scale: WeightScale = "max"
    weight_rounding: WeightRounding = "nearest"
    bias_correction: bool = False
    equalization: bool = False
    migration: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.migration < 1:
            raise ValueError(f"migration must be in [0, 1), got {self.migration}")
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in get_args(choices):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}"
                )

    def __str__(self) -> str:
        """As in "mse activations + max weights + gptq + bias correction"; ',' and '=' cannot
        stand in a setting.
        """
        parts = [
            f"{self.calibration} activations",
            f"{self.weight_scale} weights",
            self.weight_rounding,
        ]
        flags = [
            name.replace("_", " ")
            for name in ("bias_correction", "equalization")
            if getattr(self, name)
        ]
        migration = [f"migration {self.migration:g}"] if self.migration else []
        return " + ".join(parts + flags + migration)


PLAIN = Treatment()


@dataclass(frozen=True, slots=True)
class Treated:
    """A calibrated network, and what the treatment did to it.

    `rerounded` has for each layer whose weights were not simply rounded to nearest the share of
    integers that came out otherwise; `equalized` the pairs of layers with like ranges; `notes` say
    what of the treatment did nothing, and why.
    """

    network: fx.GraphModule
    rerounded: Mapping[str, float]
    equalized: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def quantize(
    module: nn.Module,
    input_shape: tuple[int, ...],
    scheme: Scheme,
    inputs: torch.Tensor,
    treatment: Treatment = PLAIN,
) -> fx.GraphModule:
    """The calibrated Brevitas network of `module`; see `treat`."""
    return treat(trace(module, input_shape), scheme, inputs, treatment).network


def treat(
    traced: fx.GraphModule,
    scheme: Scheme,
    inputs: Inputs,
    treatment: Treatment,
    *,
    trial: bool = False,
) -> Treated:
    """Quantize a traced network, which stays as it is, with a batch of calibration inputs.

    The result is the same for every number of threads. Its weights are checked to lie on their
    grid, but for a `trial`, after which the chosen treatment is applied anew.

    Raises:
        ValueError: there is no input, or one is not finite.
        Unsupported: a layer cannot be quantized; a tensor has no usable range; a bias does not fit
            into 32 bits.
    """
    check_inputs(inputs)
    pairs: tuple[tuple[str, str], ...] = ()
    notes = []
    with one_thread(), torch.no_grad():
        # 1. Rewrite the float network, which computes the same as before: scales move between
        # layers.
        if treatment.equalization:
            traced, pairs, reason = equalize(traced)
            if reason:
                notes.append(f"equalization: {reason}")
        if treatment.bias_correction:
            traced = copy.deepcopy(traced)
            for layer in traced.modules():  # every one has biases to correct
                if isinstance(layer, FLOAT_COMPUTE) and layer.bias is None:
                    layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
        if treatment.migration and scheme.by_reader:
            traced = migrate(traced, scheme.readers(traced), inputs, treatment.migration)
        # 2. Place the quantizers, and set the scales of weights and the ranges of activations.
        quantized = place(traced, scheme)
        _scale_weights(quantized, treatment.weight_scale)
        calibrate(quantized, inputs, treatment.calibration)
        if scheme.scales == "power-of-two":
            even_zero_points(quantized)
        # 3. Correct rounding and biases on the calibration data.
        rerounded = _correct(quantized, inputs, treatment)
        if treatment.weight_rounding != "nearest" and not any(rerounded.values()):
            notes.append(
                f"{treatment.weight_rounding}: no integer came out other than rounded to nearest"
            )
        # 4. Nothing of that may leave a bias beyond 32 bits, or a weight off its grid.
        if treatment.bias_correction:
            check_ranges(quantized)
        if not trial:
            check_grid(quantized)
    return Treated(quantized, rerounded, pairs, tuple(notes))


def _scale_weights(quantized: fx.GraphModule, weight_scale: WeightScale) -> None:
    for layer in quantized.modules():
        if isinstance(layer, COMPUTE):
            kernel, bits = kernel_of(layer), weight_bits(layer)
            least, value = (
                kernel.scaling_impl.clamp_scaling.clamp_min_ste.min_val,
                kernel.scaling_impl.value,
            )
            tensor = weight_thresholds(
                layer.weight, bits, weight_scale, least, is_power_of_two(kernel)
            )
            value.copy_(kept_length(kernel, tensor).view_as(value))


def _correct(quantized: fx.GraphModule, inputs: Inputs, treatment: Treatment) -> dict[str, float]:
    """Weights and biases, layer by layer, each on what the layers before it, corrected, give."""
    rounded, biased = treatment.weight_rounding != "nearest", treatment.bias_correction
    if not (rounded or biased):
        return {}
    floats, means, rerounded = {}, {}, dict[str, float]()

    def see(name: str, layer: Any, inputs_in_float: torch.Tensor, output: torch.Tensor) -> None:
        if isinstance(layer, COMPUTE):
            means[name] = _channel_means(layer, output)
            if treatment.weight_rounding == "gpfq":
                floats[name] = inputs_in_float

    def correct(name: str, layer: Any, args: tuple[Any, ...]) -> None:
        (operand,) = args
        if rounded:
            products = Products(layer, operand.value, floats.get(name))
            rerounded[name] = round_weights(layer, treatment.weight_rounding, products)
        if biased:
            # Found without the old bias: its own rounding would be corrected, and then come on top
            # of the new one's.
            layer.bias.zero_()
            layer.bias.copy_(means[name] - _channel_means(layer, layer.forward(operand)))

    # 1. What each layer is given, and makes, in the float network.
    FloatRun(quantized, see).run(inputs)
    layers = [
        (name, layer) for name, layer in quantized.named_modules() if isinstance(layer, COMPUTE)
    ]
    # 2. One run of the quantized network. A hook corrects each layer before it computes, so that
    # the layers behind it see what the corrected one gives.
    hooks = [layer.register_forward_pre_hook(partial(correct, name)) for name, layer in layers]
    quantized(inputs)
    for hook in hooks:
        hook.remove()
    return rerounded


def _channel_means(layer: nn.Module, output: torch.Tensor) -> torch.Tensor:
    """Over samples and places, (channels,): channels come last out of a linear layer, else
    second.
    """
    channels_last = output if isinstance(layer, nn.Linear) else output.movedim(1, -1)
    return channels_last.flatten(0, -2).double().mean(0).to(output.dtype)


# The same for every network. Simpler ones first: of equally good ones the first is taken.
CANDIDATES = (
    Treatment(),
    Treatment("mse", "mse"),
    Treatment("mse", "mse", bias_correction=True),
    Treatment("mse", "mse", "gptq"),
    Treatment("mse", "mse", "gptq", bias_correction=True),
    Treatment("mse", "mse", "gpfq", bias_correction=True),
    Treatment("percentile", "mse", "gptq", bias_correction=True),
    Treatment("mse", "mse", "gptq", bias_correction=True, equalization=True),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate: its distance from the float network, or None and the reason why it has none.

    The distance is that of `Reference`: nats, or a share of the squared outputs.
    """

    treatment: Treatment
    loss: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The chosen treatment, the network that it gives on the whole calibration set, and all
    trials.
    """

    treatment: Treatment
    treated: Treated
    trials: tuple[Trial, ...]


def tune(
    traced: fx.GraphModule,
    scheme: Scheme,
    inputs: Inputs,
    candidates: Sequence[Treatment] = CANDIDATES,
) -> Tuned:
    """Try each candidate, and treat `traced` with the best.

    Every candidate is fitted to every other calibration input and judged on the rest, by the mean
    Kullback-Leibler divergence of the quantized network's class probabilities from the float
    network's: no label and no test sample is seen. Fewer than two inputs serve as both. The best
    one is then fitted to all.

    Raises:
        ValueError: no candidate, no input, or one that is not finite.
        Unsupported: no candidate can be applied.
    """
    if not candidates:
        raise ValueError("there is no candidate treatment")
    check_inputs(inputs)
    fitted, judged = halves(inputs)
    with one_thread(), torch.no_grad():
        reference = Reference(traced, judged)
        trials = [attempt(traced, scheme, fitted, reference, candidate) for candidate in candidates]
    losses = [(trial.loss, trial.treatment) for trial in trials if trial.loss is not None]
    if not losses:
        raise Unsupported(f"no treatment can be applied: {trials[0].reason}")
    _, best = min(losses, key=lambda candidate: candidate[0])
    return Tuned(best, treat(traced, scheme, inputs, best), tuple(trials))


def halves(inputs: Inputs) -> tuple[Inputs, Inputs]:
    """Every other input to fit a treatment to, and the rest to judge it on; one alone is both."""
    fitted = mapped(inputs, lambda tensor: tensor[::2])
    judged = mapped(inputs, lambda tensor: tensor[1::2]) if len(leaves(inputs)[0]) > 1 else inputs
    return fitted, judged


def attempt(
    traced: fx.GraphModule,
    scheme: Scheme,
    fitted: Inputs,
    reference: Reference,
    treatment: Treatment,
    *,
    alone: bool = False,
) -> Trial:
    """Fit one treatment to some inputs, and measure how far it leads from the float network.

    Equalization that finds no pair of layers is no treatment of its own, unless it is the only one,
    `alone`.
    """
    try:
        treated = treat(traced, scheme, fitted, treatment, trial=True)
    except Unsupported as error:
        return Trial(treatment, None, str(error))
    if treatment.equalization and not treated.equalized and not alone:
        return Trial(treatment, None, "; ".join(treated.notes))
    return Trial(treatment, reference.distance(treated.network), "; ".join(treated.notes))
