"""Writing a calibrated network as ONNX with QuantizeLinear, Clip and DequantizeLinear nodes (QCDQ)."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from brevitas.export import export_onnx_qcdq
from onnx import numpy_helper
from torch import nn

from pipelines.quantize.rewriting import fixed_shapes, flat_products

# Opset 20, that of the float32 file, writes GELU as one operator, so both files run the same kernel. IR 9 came with it.
_OPSET, _IR = 20, 9


def export_qcdq(quantized: nn.Module, input_shape: tuple[int, ...], path: Path) -> None:
    """Write `path`: dynamic batch, input "input", output "logits".

    Widths below 8 bits are stored in 8 and clipped.
    """
    export_onnx_qcdq(
        quantized,
        torch.zeros(2, *input_shape),
        export_path=str(path),
        dynamo=False,  # torch's newer exporter cannot write quantized biases
        opset_version=_OPSET,
        keep_initializers_as_inputs=False,  # a constant that is an input too is never folded
        input_names=["input"],
        output_names=["logits"],
        dynamic_axes={"input": {0: "batch"}, "logits": {0: "batch"}},
    )
    model = onnx.load(str(path))
    model.ir_version = _IR
    fixed_shapes(model, input_shape)
    flat_products(model, input_shape)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def constant_bytes(content: bytes) -> int:
    """Bytes of all constants in the content of an ONNX file, weights and the rest; without names and metadata."""
    model = onnx.load_from_string(content)
    tensors = list(model.graph.initializer)
    tensors += [
        a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute if a.HasField("t")
    ]
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in tensors)
