"""Writing a calibrated network as QONNX (arXiv 2206.07527), for FPGAs: one Quant node of any width per quantizer."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from brevitas.export import export_qonnx as export_by_brevitas
from torch import nn
from torch.onnx.errors import UnsupportedOperatorError

from evalsuite import Unsupported
from pipelines.quantize.rewriting import explicit_padding

# Opset 13 and IR 8 are what FPGA compilers read; GELU is written as Div, Erf, Add and Mul there.
_OPSET, _IR = 13, 8


def export_qonnx(quantized: nn.Module, input_shape: tuple[int, ...], path: Path) -> None:
    """Write `path`: dynamic batch, input "input", output "logits", float32 between Quant nodes.

    Unlike in QCDQ, widths below 8 bits are stated in the file. ONNX Runtime does not run it: Quant is an operator of
    the domain "qonnx.custom_op.general", which the package qonnx executes.

    Args:
        quantized: calibrated; stays as it is.
        input_shape: of one input.
        path: the file.

    Raises:
        Unsupported: a float island, such as attention, has no operator in this opset.
    """
    try:
        export_by_brevitas(
            quantized,
            torch.zeros(2, *input_shape),
            export_path=str(path),
            dynamo=False,
            opset_version=_OPSET,
            keep_initializers_as_inputs=False,  # FPGA compilers fold only constants that are no inputs
            input_names=["input"],
            output_names=["logits"],
            dynamic_axes={"input": {0: "batch"}, "logits": {0: "batch"}},
        )
    except UnsupportedOperatorError as error:
        raise Unsupported(f"QONNX: {str(error).splitlines()[0]}") from error
    model = onnx.load(str(path))
    model.ir_version = _IR
    explicit_padding(model)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
