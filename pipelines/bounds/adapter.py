"""auto_LiRPA (arXiv 2002.12920) behind one small interface; the only file that calls it. Written for 0.3 and 0.7.

A bound is believed only for graphs of operators on a list, in geometries that were tested, and only if the converted
network computes what the network computes. All is float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from evalsuite import GELU, interval, relax
from pipelines.bounds.surroundings import LEGACY, at_home

OPERATOR = "evalsuite::Gelu"
# Operators whose bounds were sampled in the tests. Not softmax, x / sqrt(y), ELU, products of activations; and not
# Gather, whose backward bounds lose all but one use of an index that is repeated.
ALLOWED = {
    "onnx::Add", "onnx::AveragePool", "onnx::BatchNormalization", "onnx::Concat", "onnx::Constant", "onnx::Conv",
    "onnx::Flatten", "onnx::Gemm", "onnx::GlobalAveragePool", "onnx::MaxPool", "onnx::Relu", "onnx::Reshape",
    "onnx::Sub", "onnx::Unsqueeze", OPERATOR,
}  # fmt: skip
# Names that differ between the releases: the argument, the option and the method.
_GIVEN = "intermediate_layer_bounds" if LEGACY else "interm_bounds"
_FIXED = "fix_intermediate_layer_bounds" if LEGACY else "fix_interm_bounds"
_START = "init_slope" if LEGACY else "init_alpha"
_STEP = 0.25


with at_home():
    # The library switches these off for the whole process when it is imported.
    _executor, _profiling = torch._C._jit_set_profiling_executor(True), torch._C._jit_set_profiling_mode(True)
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm
    from auto_LiRPA.bound_ops import BoundOptimizableActivation, BoundRelu
    from auto_LiRPA.parse_graph import parse_module

    torch._C._jit_set_profiling_executor(_executor)
    torch._C._jit_set_profiling_mode(_profiling)


class _Function(torch.autograd.Function):
    """gelu(hardness x) / hardness, which exporters write as one operator."""

    @staticmethod
    def symbolic(graph: Any, x: Any, hardness: tuple[float, ...]) -> Any:
        made = graph.op(OPERATOR, x, hardness_t=torch.tensor(hardness, dtype=torch.float64))
        made.setType(x.type())
        return made

    @staticmethod
    def forward(_: Any, x: torch.Tensor, hardness: tuple[float, ...]) -> torch.Tensor:
        return _gelu(x, hardness)


def _per_channel(hardness: tuple[float, ...], ndim: int) -> torch.Tensor:
    """One value, or one per channel (dimension 1), float64, broadcastable to `ndim` dimensions."""
    return torch.tensor(hardness, dtype=torch.float64).reshape(1, -1, *[1] * (ndim - 2))


def _gelu(x: torch.Tensor, hardness: tuple[float, ...]) -> torch.Tensor:
    factor = _per_channel(hardness, x.ndim)
    return GELU.value(factor * x) / factor


class Gelu(nn.Module):
    """Stands for nn.GELU and LambdaGELU in the network that auto_LiRPA converts."""

    def __init__(self, hardness: torch.Tensor) -> None:
        super().__init__()
        self.hardness = tuple(float(each) for each in hardness.double().flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x Phi(hardness x)."""
        y: torch.Tensor = _Function.apply(x, self.hardness)  # type: ignore[no-untyped-call]
        return y


class _BoundGelu(BoundOptimizableActivation):  # type: ignore[misc]
    """Our relaxation as an operator of auto_LiRPA; alpha is where the tangents touch, z = hardness x.

    alpha: (2 for lower and upper line, rows of C, batch, *shape). Both releases take the batch at dimension 2.
    """

    def __init__(self, attr: Any = None, inputs: Any = None, output_index: int = 0, options: Any = None) -> None:
        super().__init__(attr, inputs, output_index, options)
        self.hardness = tuple(attr["hardness"].tolist())
        self.alpha_batch_dim = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _gelu(x, self.hardness)

    def interval_propagate(self, *bounds: Any) -> tuple[torch.Tensor, torch.Tensor]:
        lower, upper = bounds[0][0], bounds[0][1]
        return interval(GELU, lower, upper, hardness=_per_channel(self.hardness, lower.ndim))

    def bound_relax(self, x: Any, init: bool = False, dim_opt: Any = None) -> None:
        optimized = self.opt_stage in ("opt", "reuse")
        points = tuple(self.alpha[self._start]) if optimized else None
        factor = _per_channel(self.hardness, x.lower.ndim)
        lines = relax(GELU, x.lower, x.upper, hardness=factor, points=points)
        parts = (lines.lower_slope, lines.lower_intercept, lines.upper_slope, lines.upper_intercept)
        # While optimizing, auto_LiRPA indexes the lines by the side that it bounds; one set serves both.
        both: list[Any] = [(each, each) for each in parts] if optimized else list(parts)
        self.lw, self.lb, self.uw, self.ub = both

    def init_linear_relaxation(self, x: Any, dim_opt: Any = None) -> None:
        """Nothing: `bound_relax` makes the lines in one go."""

    def init_opt_parameters(self, start_nodes: Any) -> None:
        lower, upper = self.inputs[0].lower, self.inputs[0].upper
        middle = _per_channel(self.hardness, lower.ndim) * (lower + upper) / 2
        self.alpha.clear()
        for name, size, *_ in start_nodes:
            rows = size if isinstance(size, int) else prod(size)
            self.alpha[name] = middle.repeat(2, rows, *[1] * middle.ndim).requires_grad_()

    def dump_optimized_params(self) -> Any:
        return self.alpha

    def restore_optimized_params(self, alpha: Any) -> None:
        self.alpha = alpha


class _Module(BoundedModule):  # type: ignore[misc]
    def _named_members(self, get_members_fn: Any, prefix: str = "", recurse: bool = True, **modern: Any) -> Any:
        # torch 2 passes remove_duplicate, which release 0.3 does not know.
        return super()._named_members(get_members_fn, prefix, recurse, **({} if LEGACY else modern))


_WINDOWED = ("onnx::Conv", "onnx::MaxPool", "onnx::AveragePool")


@dataclass(frozen=True, slots=True)
class Survey:
    """What a traced network consists of.

    Args:
        refused: the operators for which there are no trustworthy bounds, by name, sorted.
        plain: every window is square, with the same stride and padding on all sides, undilated and ungrouped: only
            there patches give the bounds that matrices give.
    """

    refused: list[str]
    plain: bool


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


class Engine:
    """One converted network: bounds of C times its logits over boxes.

    Args:
        module: float64, eval mode, with `Gelu` in the place of the GELUs.
        input_shape: of one input.
        iterations: of alpha-CROWN.
        patches: whether convolutions propagate as patches: half the time of matrices, but only plain chains of
            layers with plain windows are safe to treat so.
    """

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...], iterations: int, *, patches: bool) -> None:
        example = torch.zeros(1, *input_shape, dtype=torch.float64)
        optimizing = {
            "iteration": iterations, "lr_alpha": _STEP, "start_save_best": -1.0, "init_alpha": False, _FIXED: True,
        }  # fmt: skip
        options = {
            "conv_mode": "patches" if patches else "matrix", "sparse_features_alpha": False, "sparse_spec_alpha": False,
            "sparse_intermediate_bounds": False, "optimize_bound_args": optimizing,
        }  # fmt: skip
        with at_home():
            self._module = _Module(module, example, bound_opts=options, custom_ops={OPERATOR: _BoundGelu})
            self._module.eval()

    @staticmethod
    def survey(module: nn.Module, input_shape: tuple[int, ...]) -> Survey:
        """What the traced `module` consists of."""
        with at_home():
            operators = parse_module(module, (torch.zeros(1, *input_shape, dtype=torch.float64),))[0]
        refused = {each.op.removeprefix("onnx::") for each in operators if each.op not in ALLOWED}
        refused |= {told for each in operators if (told := _refused_geometry(each.op, each.attr))}
        plain = not refused and all(_is_plain(each.attr) for each in operators if each.op in _WINDOWED)
        return Survey(sorted(refused), plain)

    @property
    def _activations(self) -> list[Any]:
        return [each for each in self._module.children() if isinstance(each, (BoundRelu, _BoundGelu))]

    def sizes(self) -> list[int]:
        """The numbers of outputs of the operators, of one input."""
        return [prod(each.output_shape[1:]) for each in self._module.children() if each.output_shape is not None]

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits that the converted network computes."""
        with at_home():
            logits: torch.Tensor = self._module(x)
        return logits

    def _box(self, lower: torch.Tensor, upper: torch.Tensor) -> Any:
        box = PerturbationLpNorm(norm=np.inf, eps=0.0, x_L=lower, x_U=upper)
        return BoundedTensor((lower + upper) / 2, box)

    @torch.no_grad()
    def bound(
        self, lower: torch.Tensor, upper: torch.Tensor, rows: torch.Tensor, method: str
    ) -> tuple[torch.Tensor, torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Lower and upper bounds of `rows` (batch, k, classes) times the logits, and of each activation's input.

        `method` is "ibp" or "crown"; the box's ends are (batch, *input_shape).
        """
        with at_home():
            found = self._module.compute_bounds(x=(self._box(lower, upper),), C=rows, method=method)
        inputs = [each.inputs[0] for each in self._activations]
        return found[0], found[1], [(each.lower.detach(), each.upper.detach()) for each in inputs]

    def optimize(
        self,
        lower: torch.Tensor,
        upper: torch.Tensor,
        rows: torch.Tensor,
        inputs: list[tuple[torch.Tensor, torch.Tensor]],
        done: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Lower bounds by alpha-CROWN; the bounds of the activations' inputs stay as CROWN gave them.

        `done`, given bounds (batch, k), says which need no more work, (batch, 1).
        """
        given = {each.inputs[0].name: pair for each, pair in zip(self._activations, inputs, strict=True)}
        self._module.bound_opts["optimize_bound_args"]["stop_criterion_func"] = done
        with at_home():
            box = (self._box(lower, upper),)
            getattr(self._module, _START)(box, c=rows, bound_upper=False, **{_GIVEN: given})
            arguments = {"x": box, "C": rows, "method": "CROWN-Optimized", "bound_upper": False, _GIVEN: given}
            best: torch.Tensor = self._module.compute_bounds(**arguments)[0]
        return best.detach()
