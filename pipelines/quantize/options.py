"""The options of `quantize`: widths, calibration, training, and what is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from evalsuite.yardstick import check_yardstick

Placement = Literal["auto", "post", "pre+post"]
_CHOICES: dict[str, tuple[str, ...]] = {
    "placement": get_args(Placement),
    "calibration": ("auto", "percentile", "max", "mse"),
    "weight_scale": ("max", "mse"),
    "weight_rounding": ("nearest", "gptq", "gpfq"),
    "scales": ("float", "power-of-two"),
    "rounding": ("half-even", "half-up", "gemmlowp"),
}
_FORMS = ("polynomial", "roundings")
_LEAST_BUDGET = 2 / 8  # Of the bytes at 8 bits: a weight has 2 at least.


@dataclass(frozen=True)
class QuantizeOptions:
    """The options of `quantize`: widths, calibration, training, and what is compared.

    Args:
        weight_bits: bits of a weight, 2 to 8; where `size_budget` is below 1, only those at which
            the treatment is tuned and the layers' sensitivity is measured.
        act_bits: bits of an activation, 2 to 8.
        calibration_samples: how many samples of the calibration set give the activations' ranges;
            all if it has fewer.
        placement: "auto" quantizes a tensor of the deployed file where an integer operator of ONNX
            Runtime reads or must write it, and the tables of embeddings; residual streams,
            attention and outputs stay real numbers. Calibration data choose how far uneven ranges
            go from features to weights (SmoothQuant) and whether biases are corrected. The
            integer-only network is placed as with "post", but for transformers: what norms,
            softmax and sums read has 16 bits there. "post" quantizes each activation's
            output, "pre+post" its input too, for every variant alike: with "post" a convolution
            before GELU runs in float, and with "pre+post" ReLU, which could be fused, requantizes.
        calibration: where activations are clipped: at percentiles, at the extremes, or at the least
            squared error. "auto" takes percentiles, unless, with placement "auto", the outputs come
            clearly nearer to the float network's on calibration data with another.
        weight_scale: where a channel's weights are clipped: nowhere ("max"), or at the least
            squared error.
        weight_rounding: "nearest", or by the layers' results on the calibration set, "gptq" or
            "gpfq".
        bias_correction: whether biases take up the mean error of each channel on the calibration
            set. With placement "auto" it is always tried, and kept where the outputs come clearly
            nearer.
        equalization: whether neighbouring layers get like ranges first, where at most ReLU and
            pools lie between them: across GELU and other smooth activations it does nothing. The
            row `equalized_pairs` says where it did.
        tuned: whether to choose `calibration`, `weight_scale`, `weight_rounding`, `bias_correction`
            and `equalization` by calibration data, among the same candidates for every network.
        qat_epochs: passes of quantization-aware training on the training data, at a tenth of the
            workload's rate.
        learn_scales_up_to: where some layer's weights or inputs have at most so many bits,
            quantization-aware training learns the scales of all layers too. It runs at three
            learning rates of the scales, one of them 0, and the validation data choose. 0 keeps the
            scales of the calibration.
        scales: "float", any number, or "power-of-two", with which every rescaling is a shift of
            bits; only averages over a number of places that is no power of two still need a
            multiplication.
        rounding: how the integer-only network rounds.
        keep_islands: whether norms, attention and all else that the fake-quantized network computes
            in float stay float islands of the integer-only network. By default only what has no
            integer form does.
        size_budget: greatest share of the 8-bit weights' bytes, 0.25 or more; below 1 the layers'
            widths are searched.
        sensitivity: whether to measure what each layer costs alone and spares, on calibration data.
        compared_samples: how many test samples the slower comparisons take, 0 for all: layer by
            layer with the file, integer by integer with the fake-quantized network, GELU as a
            polynomial, other roundings, and the definition of the integer-only network with its
            file in ONNX Runtime. Accuracies are of all.
        integer_forms: other forms of the integer-only network that are measured beside it:
            "polynomial", GELU by I-BERT's polynomial instead of a table, and "roundings", the
            other two modes of `rounding`.
        qonnx: whether to write a QONNX file too, for FPGA tools.
        yardstick: an activation's name. The same network with it in place of each activation is
            quantized likewise, and timed in turn with this one: `relative_latency` is the ratio.
    """

    weight_bits: int = 8
    act_bits: int = 8
    calibration_samples: int = 120
    placement: Placement = "auto"
    calibration: Literal["auto", "percentile", "max", "mse"] = "auto"
    weight_scale: Literal["max", "mse"] = "max"
    weight_rounding: Literal["nearest", "gptq", "gpfq"] = "nearest"
    bias_correction: bool = False
    equalization: bool = False
    tuned: bool = False
    qat_epochs: int = 0
    learn_scales_up_to: int = 3
    scales: Literal["float", "power-of-two"] = "float"
    rounding: Literal["half-even", "half-up", "gemmlowp"] = "half-even"
    keep_islands: bool = False
    size_budget: float = 1.0
    sensitivity: bool = False
    compared_samples: int = 0
    integer_forms: tuple[str, ...] = ()
    qonnx: bool = False
    yardstick: str = "gelu"

    def __post_init__(self) -> None:
        for name, least in (("weight_bits", 2), ("act_bits", 2), ("learn_scales_up_to", 0)):
            if not least <= (given := getattr(self, name)) <= 8:
                raise ValueError(f"{name} must be in [{least}, 8], got {given}")
        for name, least in (("calibration_samples", 1), ("qat_epochs", 0), ("compared_samples", 0)):
            if (given := getattr(self, name)) < least:
                raise ValueError(f"{name} must be >= {least}, got {given}")
        if not _LEAST_BUDGET <= self.size_budget <= 1:
            raise ValueError(
                f"size_budget must be in [{_LEAST_BUDGET}, 1], got {self.size_budget}: "
                f"at 2 bits in every layer it is {_LEAST_BUDGET}"
            )
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        for form in self.integer_forms:
            if form not in _FORMS or self.integer_forms.count(form) > 1:
                raise ValueError(
                    f"integer_forms must be some of {', '.join(_FORMS)}, each once, got"
                    f" {self.integer_forms}"
                )
        check_yardstick(self.yardstick)
        chosen = (
            "calibration",
            "weight_scale",
            "weight_rounding",
            "bias_correction",
            "equalization",
        )
        given = [name for name in chosen if getattr(self, name) != getattr(type(self), name)]
        if self.tuned and given:
            raise ValueError(f"tuned chooses {', '.join(given)}: leave out either")
