"""The `quantize` stage. Importing this module imports no heavy library."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from evalsuite import Bench, Network, Outcome

# Brevitas says so whenever it is imported; the package only speeds up a rotation that is not used here.
warnings.filterwarnings("ignore", message="fast_hadamard_transform package not found")

Placement = Literal["post", "pre+post"]


@dataclass(frozen=True)
class Quantize:
    """Post-training quantization by Brevitas, exported as QCDQ ONNX, and what ONNX Runtime makes of it.

    Weights are symmetric with one scale per output channel, activations unsigned with a zero point and one scale per
    tensor, biases 32-bit integers in the scale of the accumulator. BatchNorm and lambda are folded into the
    neighbouring layers first. The network's input and every activation's output are quantized; the logits are not.

    Args:
        weight_bits: bits of a weight, 2 to 8.
        act_bits: bits of an activation, 2 to 8.
        calibration_samples: how many samples of the calibration set give the activations' ranges; all if it has fewer.
        placement: "post" quantizes each activation's output, "pre+post" its input too, for every variant alike. ONNX
            Runtime keeps a convolution in integers only if its output is quantized: with "post" a convolution before
            GELU runs in float, and with "pre+post" ReLU, which could be fused, requantizes. Measure both.
    """

    version: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ("brevitas", "torch", "onnx", "onnxruntime", "onnxoptimizer")

    weight_bits: int = 8
    act_bits: int = 8
    calibration_samples: int = 120
    placement: Placement = "post"

    def __post_init__(self) -> None:
        for name, bits in (("weight_bits", self.weight_bits), ("act_bits", self.act_bits)):
            if not 2 <= bits <= 8:
                raise ValueError(f"{name} must be in [2, 8], got {bits}")
        if self.calibration_samples < 1:
            raise ValueError(f"calibration_samples must be >= 1, got {self.calibration_samples}")
        if self.placement not in get_args(Placement):
            raise ValueError(f"placement must be one of {', '.join(get_args(Placement))}, got {self.placement!r}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Quantize, export and measure.

        Raises:
            Unsupported: a layer has no quantized counterpart here, or the layers do not follow one another.
            ValueError: the calibration inputs are not finite.
        """
        import warnings

        with warnings.catch_warnings():
            # Brevitas and torch's older exporter, which QCDQ needs, warn of their own innards at import and export.
            warnings.simplefilter("ignore")
            from pipelines.quantize.measurement import measure
            from pipelines.quantize.placement import Scheme

            scheme = Scheme(self.weight_bits, self.act_bits, before_activations=self.placement == "pre+post")
            return measure(network, bench, scheme, self.calibration_samples)
