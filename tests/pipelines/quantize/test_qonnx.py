"""The QONNX file, executed by onnx's own reference evaluator with Quant as its specification defines it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import nn

from pipelines.quantize.placement import Bits, Scheme
from pipelines.quantize.qcdq import export_qonnx
from pipelines.quantize.treatment import quantize

DOMAIN = "qonnx.custom_op.general"


class Quant(OpRun):  # type: ignore[misc]
    """arXiv 2206.07527, equations 1-3: rounded to an integer, clipped, and scaled back."""

    op_domain = DOMAIN

    def _run(self, x, scale, zero_point, bits, narrow=None, rounding_mode=None, signed=None):
        assert rounding_mode in ("ROUND", b"ROUND")
        low = -(2 ** (bits - 1)) + narrow if signed else np.zeros(())
        high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow
        integers = np.clip(np.rint(x / scale + zero_point), low, high)
        return (((integers - zero_point) * scale).astype(np.float32),)


def mlp(act: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), act(), nn.Linear(32, 5))


def cnn(act: type[nn.Module]) -> nn.Module:
    first = (nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), act(), nn.MaxPool2d(2))
    second = (nn.Conv2d(6, 6, 3, groups=2), act(), nn.AvgPool2d(2), nn.Flatten())
    return nn.Sequential(*first, *second, nn.Linear(6, 5)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU])
@pytest.mark.parametrize(("make", "shape"), [(mlp, (16,)), (cnn, (2, 8, 8))])
@pytest.mark.filterwarnings("ignore")
def test_the_file_computes_what_brevitas_does(make: Any, shape: tuple[int, ...], act: Any, bits: int, tmp_path: Path):
    torch.manual_seed(0)
    inputs = torch.rand(64, *shape)
    quantized = quantize(make(act), shape, Scheme(Bits(bits, bits)), inputs)
    export_qonnx(quantized, shape, tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    widths = {int(stored[node.input[3]]) for node in model.graph.node if node.op_type == "Quant"}
    assert widths == {bits, 8, 32}, "weights and activations, logits, biases"
    (found,) = ReferenceEvaluator(model, new_ops=[Quant]).run(["logits"], {"input": inputs.numpy()})
    with torch.no_grad():
        expected = quantized(inputs).numpy()
    step = np.diff(np.unique(expected)).min()
    differing = np.abs(found - expected) > step / 2
    # Float sums in another order may turn a rounding tie here and there.
    assert differing.mean() <= 0.01
    assert np.abs(found - expected).max() <= 1.5 * step
    assert [each.name for each in model.graph.input] == ["input"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert model.ir_version <= 13
