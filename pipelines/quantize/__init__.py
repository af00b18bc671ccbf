"""The `quantize` stage: networks in integers, calibrated or trained so, as ONNX Runtime runs them.

Importing this module imports no heavy library.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Capabilities, Network, Outcome
from pipelines.quantize.options import QuantizeOptions

# Brevitas says so whenever it is imported; the package only speeds up a rotation that is not used
# here.
warnings.filterwarnings("ignore", message="fast_hadamard_transform package not found")


@dataclass(frozen=True)
class Quantize(QuantizeOptions):
    """Quantization by Brevitas, the integer-only network that it stands for, and what ONNX Runtime
    makes of both.

    Weights are symmetric with one scale per output channel, activations unsigned with a zero point
    and one scale per tensor, biases 32-bit integers in the scale of the accumulator. BatchNorm and
    lambda are folded into the neighbouring layers first. Quantized are the network's input, every
    activation's output, residual sums and, with 8 bits, the logits. Norms, attention, sums with
    constants and what else lies between stay in float in the fake-quantized network; the
    integer-only network computes them on integers, and what has no integer form is a float island
    of it. The network is read as the graph of its operations, whatever classes and functions it is
    written with.

    A network that is an ONNX file is quantized by ONNX Runtime instead, to 8 bits with Q/DQ nodes.
    Of a task without classes rows are named by its first metric, and `tuned`, `size_budget` and
    `sensitivity` are refused.
    """

    version: ClassVar[str] = "16"
    libraries: ClassVar[tuple[str, ...]] = (
        "brevitas",
        "torch",
        "numpy",
        "onnx",
        "onnxruntime",
        "onnxoptimizer",
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        tokens=True, several=True, any_task=True, deployed=True, timed=True, exports=True
    )

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Quantize, export and measure.

        Raises:
            Unsupported: the network cannot be read, nothing in it can be quantized, a tensor has no
                usable range, or a layer has no operator in the file.
            ValueError: the calibration inputs are not finite.
        """
        with warnings.catch_warnings():
            # Brevitas and torch's older exporter, which QCDQ needs, warn of their own innards at
            # import and export.
            warnings.simplefilter("ignore")
            from pipelines.quantize.measurement import measure

            return measure(network, bench, self)
