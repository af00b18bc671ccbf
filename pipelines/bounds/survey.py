"""What a traced network consists of, and what of it has no trustworthy bounds."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from evalsuite import Unsupported
from pipelines.bounds.adapter import Engine
from pipelines.bounds.own import OPERATOR, Own
from pipelines.bounds.steps import Rule

# Operators whose bounds were sampled in the tests. Not x / sqrt(y), which release 0.3 takes for a LayerNorm without its
# epsilon, nor softmax, which is unsound, and products of activations: our own steps stand for these. Not Gather, whose
# backward bounds lose all but one use of an index that is repeated.
ALLOWED = {
    "onnx::Add", "onnx::AveragePool", "onnx::BatchNormalization", "onnx::Concat", "onnx::Constant", "onnx::Conv",
    "onnx::Flatten", "onnx::Gemm", "onnx::GlobalAveragePool", "onnx::MaxPool", "onnx::Relu", "onnx::Reshape",
    "onnx::Sub", "onnx::Unsqueeze", OPERATOR,
}  # fmt: skip
_WINDOWED = ("onnx::Conv", "onnx::MaxPool", "onnx::AveragePool")
# Where one of these is, or a rule of our own, patches were not compared with matrices.
_MATRICES = {"onnx::Concat", "onnx::Reshape", "onnx::Sub", "onnx::Unsqueeze"}
# The functions of torch that exporters write as an operator of another name.
_MADE_BY = {
    "Softmax": ("scaled_dot_product_attention",), "MatMul": ("scaled_dot_product_attention", "__matmul__", "bmm"),
    "Erf": ("gelu",), "Gather": ("__getitem__", "chunk"), "Mul": ("__mul__", "__rmul__"), "Div": ("__truediv__",),
    "aten::ATen": ("scaled_dot_product_attention",), "Max": ("maximum", "clamp", "clamp_min"),
    "Min": ("minimum", "clamp", "clamp_max"), "Clip": ("clamp", "clamp_", "clamp_min", "clamp_max"),
}  # fmt: skip


def changed(module: nn.Module) -> bool:
    """Whether its forward pass may be more than its type says: such a layer is traced as it is, never replaced."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in vars(module)


class _Watch(TorchFunctionMode):
    """Notes which functions of torch are called, and by which module."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.calls: list[tuple[str, str]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.stack:
            self.calls.append((getattr(function, "__name__", ""), self.stack[-1]))
        return function(*args, **(kwargs or {}))


def _placed(operator: str, module: nn.Module, input_shape: tuple[int, ...]) -> str:
    """The operator's name, with the path and type of the module that calls for it, where one is found."""
    watched, watch = copy.deepcopy(module), _Watch()
    for path, each in watched.named_modules():
        each.register_forward_pre_hook(lambda *_, path=path: watch.stack.append(path))
        each.register_forward_hook(lambda *_: (watch.stack.pop(), None)[1])
    with watch, torch.no_grad():
        watched(torch.zeros(1, *input_shape, dtype=torch.float64))
    names = {operator.lower(), *_MADE_BY.get(operator, ())}
    paths = dict.fromkeys(path for name, path in watch.calls if name in names)
    modules = dict(module.named_modules())
    places = [f"{path or 'the network'} ({type(modules[path]).__name__})" for path in paths]
    return f"{operator} in {' and '.join(places)}" if places else operator


def _refused_geometry(operator: str, window: Any) -> str:
    """What is wrong with a window, or nothing."""
    if operator not in _WINDOWED:
        return ""
    name = operator.removeprefix("onnx::")
    if "pads" not in window:
        return f"{name} with padding by name"
    if window.get("ceil_mode", 0):
        return f"{name} with ceil_mode"
    kernel, steps = list(window["kernel_shape"]), list(window["strides"])
    tiles = kernel == steps and len(set(kernel)) == 1 and not any(window["pads"])
    if operator != "onnx::Conv" and not (tiles and set(window.get("dilations", [1])) == {1}):
        return f"{name} that does not tile (window {kernel}, stride {steps}, padding {list(window['pads'])})"
    return ""


def _is_plain(window: Any) -> bool:
    same = all(len(set(window[name])) == 1 for name in ("kernel_shape", "strides", "pads"))
    return same and set(window.get("dilations", [1])) == {1} and window.get("group", 1) == 1


def plain_windows(module: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Whether convolutions may propagate as patches. Raises Unsupported, naming what has no trustworthy bounds."""
    try:
        operators = Engine.operators(module, input_shape)
        unknown = {op.removeprefix("onnx::") for op, _ in operators if op not in ALLOWED}
        refused = {_placed(name, module, input_shape) for name in unknown}
    except (RuntimeError, NotImplementedError, TypeError) as error:
        told = _placed("Softmax", module, input_shape)
        if told != "Softmax":
            raise Unsupported(f"no sound bounds for {told}") from error
        raise Unsupported(f"the network could not be traced: {(str(error).splitlines() or [''])[0]}") from error
    refused |= {told for each in operators if (told := _refused_geometry(*each))}
    if refused:
        raise Unsupported(f"no sound bounds for {', '.join(sorted(refused))}")
    if any(isinstance(each, Own) and isinstance(each.meaning, Rule) for each in module.modules()):
        return False
    return not any(op in _MATRICES or (op in _WINDOWED and not _is_plain(window)) for op, window in operators)
