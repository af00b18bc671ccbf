"""Reading the integers of every quantized tensor, in Brevitas and in ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from brevitas.nn import QuantIdentity
from numpy.typing import NDArray
from torch import fx

from evalsuite import Inputs, feed, open_onnx
from pipelines.quantize.tracing import layer_of

_DEQUANTIZE = "/{}/act_quant/export_handler/DequantizeLinear"


@dataclass(frozen=True, slots=True)
class Rounded:
    """What a quantizer of Brevitas made: the integers, and what it rounded, in steps, both (samples, ...)."""

    integers: NDArray[np.int64]
    real: NDArray[np.float64]
    zero_point: int


def quantizers(quantized: fx.GraphModule) -> list[str]:
    """The names of its quantizers in the graph's order; the last one makes the logits."""
    return [str(node.target) for node in quantized.graph.nodes if isinstance(layer_of(quantized, node), QuantIdentity)]


@torch.no_grad()
def in_brevitas(quantized: fx.GraphModule, inputs: Inputs) -> dict[str, Rounded]:
    """What each quantizer makes of a batch, by its name."""
    found: dict[str, Rounded] = {}

    def see(name: str, _: Any, args: tuple[Any, ...], made: Any) -> None:
        given = args[0] if isinstance(args[0], torch.Tensor) else args[0].value
        real = given.double() / made.scale.double() + made.zero_point.double()
        integers = made.int(float_datatype=False).numpy().astype(np.int64)
        found[name] = Rounded(integers, real.numpy(), round(made.zero_point.item()))

    names = quantizers(quantized)
    handles = [quantized.get_submodule(name).register_forward_hook(partial(see, name)) for name in names]
    try:
        quantized(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


class InRuntime:
    """A QCDQ file in ONNX Runtime, with the integers of the named quantizers as further outputs.

    Raises:
        RuntimeError: the file lacks one of them.
    """

    def __init__(self, path: Path, names: list[str], *, fused: bool) -> None:
        self._names = names
        model = onnx.load(str(path))
        integers = {node.name: node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
        for each in names:
            node = _DEQUANTIZE.format(each)
            if node not in integers:
                raise RuntimeError(f"{path.name} has no node {node!r}: it is not the export of this network")
            model.graph.output.append(onnx.helper.make_tensor_value_info(integers[node], onnx.TensorProto.UINT8, None))
        content = model.SerializeToString()
        self._session = open_onnx(content) if fused else _open_unfused(content)

    def run(self, inputs: Inputs) -> tuple[NDArray[np.float32], dict[str, NDArray[np.uint8]]]:
        """The logits, and the integers by the quantizer's name."""
        logits, *integers = self._session.run(None, feed(self._session, inputs))
        return logits, dict(zip(self._names, integers, strict=True))


def _open_unfused(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
