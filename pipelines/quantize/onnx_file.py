"""Quantizing an ONNX file, whoever wrote it, by ONNX Runtime's static quantization: 8 bits, Q/DQ
nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from evalsuite import Bench, Direction, Metric, Network, Outcome, Unsupported
from evalsuite.samples import pieces
from evalsuite.tasks.score import scores, worsening
from evalsuite.yardstick import untimed_batches
from opgraph.estimates import work_of_file
from opgraph.onnx_network import OnnxNetwork
from pipelines.quantize.execution import deployment_metrics
from pipelines.quantize.yardstick import NO_LAYERS, no_relative_metrics

if TYPE_CHECKING:
    from pipelines.quantize.options import QuantizeOptions

_METHODS = {
    "percentile": quantization.CalibrationMethod.Percentile,
    "max": quantization.CalibrationMethod.MinMax,
}
# Where residual streams are, they are far nearer to float when these alone are quantized.
_PRODUCTS, _MUCH = ("Conv", "Gemm", "MatMul"), 0.5
# What ONNX Runtime does, and so what an option may say; every other value takes a torch module.
_MEANT = {
    "weight_bits": (8,),
    "act_bits": (8,),
    "calibration": ("auto", *_METHODS),
    "weight_scale": ("max",),
    "weight_rounding": ("nearest",),
    "bias_correction": (False,),
    "equalization": (False,),
    "tuned": (False,),
    "qat_epochs": (0,),
    "scales": ("float",),
    "size_budget": (1.0,),
    "sensitivity": (False,),
    "qonnx": (False,),
    "placement": ("auto", "post"),
}


class _Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    """The calibration inputs, one batch after another, by the file's names."""

    def __init__(self, network: OnnxNetwork, inputs: torch.Tensor) -> None:
        # By percentiles ONNX Runtime takes batches of one size only.
        size = max(size for size in range(1, 33) if len(inputs) % size == 0)
        self._batches: Iterator[Any] = (
            network.named(piece) for piece in pieces(inputs, network.batch or size)
        )

    def get_next(self) -> dict[str, Any] | None:
        """The next batch, None where there is no more."""
        return next(self._batches, None)


def measure_file(network: Network, bench: Bench, options: QuantizeOptions) -> Outcome:
    """Quantize the file of `network`; size, latency and the task's headline against the file as it
    was.

    Raises:
        Unsupported: an option that takes the layers of a torch module, or a file that ONNX Runtime
            cannot quantize.
    """
    module = network.module
    assert isinstance(module, OnnxNetwork)
    asked = [name for name, allowed in _MEANT.items() if getattr(options, name) not in allowed]
    if asked:
        said = ", ".join(f"{name} {getattr(options, name)!r}" for name in asked)
        raise Unsupported(
            f"{said}: ONNX Runtime quantizes a file to 8 bits; for more give the model as"
            " my.py:make"
        )
    # Calibrate with whole batches, as many samples each as the file takes.
    calibration, path = bench.data.calibration, bench.folder / "quantized.onnx"
    count, batch = min(options.calibration_samples, len(calibration)), module.batch or 1
    if count < batch:
        raise Unsupported(
            f"the file takes {batch} samples at a time, and there are {count} to calibrate with"
        )
    inputs = torch.as_tensor(calibration.first(count - count % batch))
    operators = _quantize(module, inputs, path, options)
    quantized = OnnxNetwork(path, module.output)
    before, after = scores([module, quantized], bench.data.test)
    model = module.model()
    whole = model.SerializeToString()
    untimed = untimed_batches(work_of_file(model), bench.time_limit)
    metrics = [
        Metric("calibration_samples", len(inputs), "count", Direction.NEUTRAL),
        worsening(
            before.headline, after.headline, reason=f"from the file's own {before.headline.name}"
        ),
        after.named("runtime_{}", reason=f"ONNX Runtime's static quantization of {operators}"),
        *deployment_metrics(whole, path, bench.data.test, (module, quantized), untimed),
        *no_relative_metrics(NO_LAYERS),
    ]
    return Outcome(metrics, {"quantized": path}, replace(network, unswapped=None, deployed=path))


def _quantize(
    module: OnnxNetwork, inputs: torch.Tensor, path: Path, options: QuantizeOptions
) -> str:
    """Write the quantized file, and say of which operators.

    By reader, products alone are quantized where the outputs then come much nearer to the file's on
    the calibration inputs: so it is with residual streams. Else all operators are, which is faster.
    """
    _write(module, inputs, path, options.calibration)
    if options.placement != "auto":
        return "all operators"
    with TemporaryDirectory() as folder:
        other = Path(folder) / "products.onnx"
        _write(module, inputs, other, options.calibration, _PRODUCTS)
        every, products = (
            _distance(module, OnnxNetwork(file, module.output), inputs) for file in (path, other)
        )
        note = f"squared distance {products:.2g} of the outputs on calibration data, {every:.2g}"
        if not products < _MUCH * every:
            return f"all operators (with products alone {note} with all)"
        path.write_bytes(other.read_bytes())
        return f"products alone ({note} with all operators)"


@torch.no_grad()
def _distance(module: OnnxNetwork, quantized: OnnxNetwork, inputs: torch.Tensor) -> float:
    """The squared differences of the outputs over the squared outputs."""
    off, whole = 0.0, 0.0
    for piece in pieces(inputs, module.batch or 32):
        expected = module(piece).double()
        off += float((quantized(piece).double() - expected).square().sum())
        whole += float(expected.square().sum())
    return off / whole if whole else off


def _write(
    module: OnnxNetwork,
    inputs: torch.Tensor,
    path: Path,
    calibration: str,
    only: tuple[str, ...] = (),
) -> None:
    with TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        try:
            quant_pre_process(str(module.path), str(prepared), skip_symbolic_shape=True)
            quantization.quantize_static(
                str(prepared),
                str(path),
                _Reader(module, inputs),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                calibrate_method=_METHODS.get(calibration, _METHODS["percentile"]),
                op_types_to_quantize=list(only) or None,
                extra_options={"MatMulConstBOnly": bool(only)},
            )
        except (OSError, MemoryError):  # a full disk says nothing of the network
            raise
        except Exception as error:  # ONNX Runtime's errors share no base class
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[
                :200
            ]
            raise Unsupported(
                f"ONNX Runtime cannot quantize the file: {type(error).__name__}: {said}"
            ) from error
