"""What a traced network consists of, and what of it has no trustworthy bounds."""

from __future__ import annotations

from typing import Any

from torch import nn

from evalsuite import Unsupported
from pipelines.bounds.adapter import Engine
from pipelines.bounds.own import OPERATOR, Own
from pipelines.bounds.steps import Rule

# Operators whose bounds were sampled in the tests. Not x / sqrt(y), which release 0.3 takes for a LayerNorm without its
# epsilon, nor softmax, which is unsound, and products of activations: our own steps stand for these. Not Gather, whose
# backward bounds lose all but one use of an index that is repeated.
ALLOWED = {
    "onnx::Add", "onnx::AveragePool", "onnx::BatchNormalization", "onnx::Concat", "onnx::Conv",
    "onnx::Flatten", "onnx::Gemm", "onnx::GlobalAveragePool", "onnx::MaxPool", "onnx::Relu", OPERATOR,
}  # fmt: skip
_WINDOWED = ("onnx::Conv", "onnx::MaxPool", "onnx::AveragePool")


def _is_plain(window: Any) -> bool:
    same = all(len(set(window[name])) == 1 for name in ("kernel_shape", "strides", "pads"))
    return same and set(window.get("dilations", [1])) == {1} and window.get("group", 1) == 1


def plain_windows(module: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Whether convolutions may propagate as patches. Raises Unsupported, naming what has no trustworthy bounds."""
    operators = Engine.operators(module, input_shape)
    unknown = {op for op, _ in operators} - ALLOWED
    if unknown:
        raise Unsupported(f"no sound bounds for {', '.join(sorted(unknown))}")
    # Where a rule of our own is, or values are put side by side, patches were not compared with matrices.
    if any(isinstance(each, Own) and isinstance(each.meaning, Rule) for each in module.modules()):
        return False
    return not any(op == "onnx::Concat" or (op in _WINDOWED and not _is_plain(window)) for op, window in operators)
