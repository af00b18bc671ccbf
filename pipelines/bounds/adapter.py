"""auto_LiRPA (arXiv 2002.12920) behind one small interface; the only file that calls it. Written
for 0.3 and 0.7.

A bound is believed only for graphs of operators on a list, in geometries that were tested, and only
if the converted network computes what the network computes. All is float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from evalsuite import Unsupported
from pipelines.bounds.curved import BoundCurved
from pipelines.bounds.regions import FirstLayer, Regions
from pipelines.bounds.spread import Norm
from pipelines.bounds.steps import BoundStep, Normalised
from pipelines.bounds.surroundings import LEGACY, OPERATOR, Own, at_home, numbered

# Names that differ between the releases: the argument, the option and the method.
_GIVEN = "intermediate_layer_bounds" if LEGACY else "interm_bounds"
_FIXED = "fix_intermediate_layer_bounds" if LEGACY else "fix_interm_bounds"
_START = "init_slope" if LEGACY else "init_alpha"
# The optimizer's steps: of the margins' lines alone; of all lines, where they are ReLU's (slopes),
# and others (points).
_STEP, _SLOPE_STEP, _POINT_STEP = 0.25, 0.5, 0.1
# The operators that only move values about.
_MOVES = ("BoundFlatten", "BoundReshape", "BoundUnsqueeze")
_FIRST = ("BoundLinear", "BoundConv")
# A first layer with more coefficients than this is bounded over its box alone.
_COEFFICIENTS = 2**25
_CHUNK = 64
_CONSTANTS = ("BoundParams", "BoundBuffers", "BoundConstant")
# How often a matrix of one layer's outputs by another's is held at once, measured: for both sides,
# and in between; and what patches of a chain of layers come to at the most.
_COPIES, _PATCHES = 10, 4
# How often the lines' parameters are held at once while all lines are optimized, measured; and how
# many times the memory of a batch they may take for one input.
_PARAMETERS, _DEAREST = 16, 4

with at_home():
    # The library switches these off for the whole process when it is imported.
    _executor, _profiling = (
        torch._C._jit_set_profiling_executor(True),
        torch._C._jit_set_profiling_mode(True),
    )
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm
    from auto_LiRPA.bound_ops import BoundRelu
    from auto_LiRPA.parse_graph import parse_module

    torch._C._jit_set_profiling_executor(_executor)
    torch._C._jit_set_profiling_mode(_profiling)

Pairs = list[tuple[torch.Tensor, torch.Tensor]]
Named = dict[str, tuple[torch.Tensor, torch.Tensor]]


class _Box(PerturbationLpNorm):  # type: ignore[misc]
    """The boxes of regions, or the parts of balls inside them."""

    def __init__(self, regions: Regions) -> None:
        super().__init__(norm=np.inf, eps=0.0, x_L=regions.lower, x_U=regions.upper)
        self._regions = regions

    def concretize(self, x: Any, A: Any, sign: int = -1, aux: Any = None, **more: Any) -> Any:
        """What `A` times the input is at the least (sign -1) or at the most (sign 1)."""
        boxed = super().concretize(x, A, sign, aux, **more)
        if self._regions.center is None or boxed is None or getattr(A, "identity", 0) == 1:
            return boxed
        if hasattr(A, "to_matrix"):
            rows = A.to_matrix(x.shape).flatten(2)
        elif isinstance(A, torch.Tensor):
            rows = A.flatten(2)
        else:
            return boxed  # the identity: a ball reaches as far as its box in each input
        # Where most inputs are fixed the library leaves them out.
        if self.sparse or rows.shape[2] != prod(x.shape[1:]):
            return boxed
        balled = -sign * self._regions.least(-sign * rows)
        return (torch.maximum if sign == -1 else torch.minimum)(boxed, balled.view_as(boxed))


class _Module(BoundedModule):  # type: ignore[misc]
    """auto_LiRPA's module.

    `known` are bounds of nodes' values, by name, that narrow those of intervals; `tightest` those
    that narrow what is found backward, and are narrowed by it: each was sound, whatever the lines.
    """

    known: Named
    tightest: Named

    def _named_members(
        self, get_members_fn: Any, prefix: str = "", recurse: bool = True, **modern: Any
    ) -> Any:
        # torch 2 passes remove_duplicate, which release 0.3 does not know.
        return super()._named_members(get_members_fn, prefix, recurse, **({} if LEGACY else modern))

    def IBP_general(
        self, node: Any = None, C: Any = None, delete_bounds_after_use: bool = False
    ) -> Any:
        """Bounds of a node by intervals, within what is known."""
        ibp_general = super().IBP_general(
            node=node, C=C, delete_bounds_after_use=delete_bounds_after_use
        )
        known = self.known.get(node.name) if C is None else None
        if known is None:
            return ibp_general
        node.lower, node.upper = (
            torch.maximum(ibp_general[0], known[0]),
            torch.minimum(ibp_general[1], known[1]),
        )
        node.interval = node.lower, node.upper
        return node.interval

    def compute_intermediate_bounds(self, node: Any, prior_checked: bool = False) -> None:
        """Bounds of a node, within the tightest so far; the gradient stays that of the bounds
        found now.
        """
        super().compute_intermediate_bounds(node, prior_checked)
        tightest = self.tightest.get(node.name)
        if tightest is None:
            return
        low, high = node.lower.detach(), node.upper.detach()
        lower, upper = torch.fmax(tightest[0], low), torch.fmin(tightest[1], high)
        self.tightest[node.name] = lower, upper
        # What is added is 0.
        node.lower, node.upper = lower + (node.lower - low), upper + (node.upper - high)
        node.interval = node.lower, node.upper


class Engine:
    """One converted network: bounds of C times its logits over regions.

    Args:
        module: float64, eval mode, with `Own` in the place of the activations.
        input_shape: of one input.
        iterations: of alpha-CROWN.
        patches: whether convolutions propagate as patches: half the time of matrices, but only
            plain chains of layers with plain windows are safe to treat so.
    """

    def __init__(
        self, module: nn.Module, input_shape: tuple[int, ...], iterations: int, *, patches: bool
    ) -> None:
        example = torch.zeros(1, *input_shape, dtype=torch.float64)
        options = {
            "conv_mode": "patches" if patches else "matrix",
            "sparse_features_alpha": False,
            "sparse_spec_alpha": False,
            "sparse_intermediate_bounds": False,
            "optimize_bound_args": {
                "iteration": iterations,
                "start_save_best": -1.0,
                "init_alpha": False,
            },
        }
        self._input_shape = input_shape
        self._intervals: tuple[Pairs, Named] | None = None
        with at_home():
            self._module = _Module(
                module, example, bound_opts=options, custom_ops={OPERATOR: numbered(module)}
            )
            self._module.known, self._module.tightest = {}, {}
            # auto_LiRPA takes the type of its numbers from the first parameter, and a network may
            # have none.
            if not any(True for _ in self._module.parameters()):
                self._module.register_parameter(
                    "of_type", nn.Parameter(torch.zeros(1).double(), requires_grad=False)
                )
            self._module.eval()

    @property
    def _activations(self) -> list[Any]:
        return [
            child
            for child in self._module.children()
            if isinstance(child, (BoundRelu, BoundCurved))
        ]

    @property
    def _steps(self) -> list[BoundStep]:
        """The operators of our own that are no affine maps."""
        return [
            child
            for child in self._module.children()
            if isinstance(child, BoundStep) and child.rule.curved
        ]

    @property
    def _normalised(self) -> list[Any]:
        """The normalization steps: each divides its operand, a LayerNorm's x - mean, by the root of
        its mean square.
        """
        return [step for step in self._steps if isinstance(step.rule, Normalised)]

    @property
    def optimizes(self) -> bool:
        """Whether alpha-CROWN can work: that of MaxPool fails, on some boxes only; our steps
        have fixed lines.
        """
        return not (
            self._steps
            or any(type(child).__name__ == "BoundMaxPool" for child in self._module.children())
        )

    def batch(self, memory: int, largest: int) -> int:
        """How many inputs at once, from 1 to `largest`, CROWN can bound in about so many bytes."""
        sizes: list[int] = sorted(
            prod(child.output_shape[1:])
            for child in self._module.children()
            if child.output_shape is not None and type(child).__name__ not in _CONSTANTS
        )
        sparse = self._module.conv_mode == "patches" and not any(
            type(child).__name__ == "BoundAdd" for child in self._module.children()
        )
        each = sizes[-2:][0] * sizes[-1] * 8 * (_PATCHES if sparse else _COPIES)
        return max(1, min(largest, memory // each))

    def batch_of_all_lines(self, memory: int, largest: int, rows: int) -> int:
        """How many inputs at once, up to `largest`, of `rows` bounds each, all lines can be
        optimized for in about so many bytes; 0 where one alone would take several times as many, or
        there are no lines but the margins'.
        """
        sizes = [prod(activation.inputs[0].output_shape[1:]) for activation in self._activations]
        # Each bound of a layer has lines of its own in all layers before it.
        before = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
        hidden = sum(size * count for size, count in zip(sizes, before, strict=False))
        each: int = 2 * 8 * _PARAMETERS * (hidden + rows * before[-1])
        if hidden == 0 or each > _DEAREST * memory:
            return 0
        return max(1, min(largest, memory // each))

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits that the converted network computes."""
        with at_home():
            logits: torch.Tensor = self._module(x)
        return logits

    def inner_at(self, x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """At `x` the activations' inputs, in the order of `bound`, and what LayerNorms divide,
        of `norms`.
        """
        self.forward(x)
        inputs, divided = (
            [each.inputs[0].forward_value.detach() for each in some]
            for some in (self._activations, self._normalised)
        )
        return inputs, divided

    @property
    def norms(self) -> list[Norm]:
        """Bounds of what LayerNorms divide, as far as the last `bound` left them; all of them or
        none.
        """
        found = [(each.rule, each.inputs[0]) for each in self._normalised]
        if any(
            getattr(centered, end, None) is None
            for _, centered in found
            for end in ("lower", "upper")
        ):
            return []
        ends = [(rule, (centered.lower, centered.upper)) for rule, centered in found]
        return [
            Norm(*each, *(square.clamp(min=0).sqrt() for square in rule.squares(each)))
            for rule, each in ends
        ]

    def _box(self, regions: Regions) -> tuple[Any, ...]:
        return (BoundedTensor((regions.lower + regions.upper) / 2, _Box(regions)),)

    @torch.no_grad()
    def bound(
        self, regions: Regions, rows: torch.Tensor, method: str, reference: Pairs | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, Pairs]:
        """Lower and upper bounds of `rows` (batch, k, classes) times the logits, and of each
        activation's input.

        `method` is "ibp", "forward", "crown-ibp" or "crown"; `reference` are bounds of the
        activations' inputs that CROWN's are intersected with.
        """
        given: dict[str, Any] = {}
        if reference is not None:
            # What came with the reference counts if it is of the last call.
            beside = (
                self._intervals[1]
                if self._intervals is not None and self._intervals[0] is reference
                else {}
            )
            given["reference_bounds"] = self._by_name(reference) | beside
        layers = self._first_layers if regions.center is not None else []
        # Intervals see balls as boxes alone.
        self._module.known = {layer.name: layer.bounds(regions) for layer in layers}
        try:
            with at_home():
                lower, upper = self._module.compute_bounds(
                    x=self._box(regions), C=rows, method=method, **given
                )[:2]
        finally:
            self._module.known = {}
        for layer in layers:  # of a network that is a single layer, the rows too
            if layer.name == self._module.final_name:
                low, high = layer.bounds(regions, rows)
                lower, upper = torch.maximum(lower, low), torch.minimum(upper, high)
        inputs = [activation.inputs[0] for activation in self._activations]
        pairs = [(each.lower.detach(), each.upper.detach()) for each in inputs]
        # What intervals found beside these pairs serves a later call that takes them as its
        # reference.
        self._intervals = (pairs, self._factors()) if method == "ibp" else None
        return lower, upper, pairs

    def _factors(self) -> Named:
        """Bounds of the operands of curved steps: CROWN's may leave an operator's domain,
        intervals do not.
        """
        inputs = [given for step in self._steps for given in step.inputs]
        return {
            each.name: (each.lower, each.upper)
            for each in inputs
            if each.perturbed and each.lower is not None
        }

    def optimize(
        self,
        regions: Regions,
        rows: torch.Tensor,
        inputs: Pairs,
        done: Callable[[torch.Tensor], torch.Tensor],
        *,
        all_lines: bool = False,
    ) -> torch.Tensor:
        """Lower bounds by alpha-CROWN.

        The bounds of the activations' inputs stay as CROWN gave them; with `all_lines` those that
        they are made of are optimized too, for the same lower bounds, and the tightest of each are
        kept. `done`, given bounds (batch, k), says which need no more work, (batch, 1).
        """
        # Bounds that are given stay fixed; without them the library makes them from lines that it
        # optimizes as well.
        given = {} if all_lines else {_GIVEN: self._by_name(inputs)}
        sloped = all(isinstance(activation, BoundRelu) for activation in self._activations)
        step = (_SLOPE_STEP if sloped else _POINT_STEP) if all_lines else _STEP
        options = {"stop_criterion_func": done, _FIXED: not all_lines, "lr_alpha": step}
        self._module.bound_opts["optimize_bound_args"].update(options)
        arguments = {"method": "CROWN-Optimized", "bound_upper": False, **given}
        try:
            with at_home():
                box = self._box(regions)
                getattr(self._module, _START)(box, c=rows, bound_upper=False, **given)
                self._module.tightest = self._by_name(inputs) if all_lines else {}
                best: torch.Tensor = self._module.compute_bounds(x=box, C=rows, **arguments)[0]
        finally:
            self._module.tightest = {}
        return best.detach()

    def _by_name(self, inputs: Pairs) -> Named:
        return {
            each.inputs[0].name: pair for each, pair in zip(self._activations, inputs, strict=True)
        }

    @cached_property
    @torch.no_grad()
    def _first_layers(self) -> list[FirstLayer]:
        """The layers that the input goes into as it is, found by their values at zero and at
        each unit vector.
        """
        inputs = prod(self._input_shape)
        names = [
            child.name
            for child in self._module.children()
            if type(child).__name__ in _FIRST
            and child.output_shape is not None
            and prod(child.output_shape[1:]) * inputs <= _COEFFICIENTS
            and _is_input(child.inputs[0])
        ]
        # At zero a layer gives its bias, and at a unit vector a column of its weights more: this
        # holds for any layer that is affine, with whatever padding or groups.
        points = (
            torch.cat([torch.zeros(1, inputs), torch.eye(inputs)])
            .double()
            .reshape(-1, *self._input_shape)
        )
        values: dict[str, list[torch.Tensor]] = {name: [] for name in names}
        for at in range(0, len(points), _CHUNK):
            self.forward(points[at : at + _CHUNK])
            for name in names:
                values[name].append(self._module[name].forward_value.detach().clone())
        return [FirstLayer.of(name, torch.cat(values[name])) for name in names]


def _is_input(node: Any) -> bool:
    while type(node).__name__ in _MOVES:
        node = node.inputs[0]
    return type(node).__name__ == "BoundInput"


# Operators whose bounds were sampled in the tests. Not x / sqrt(y), which release 0.3 takes for a
# LayerNorm without its epsilon, nor softmax, which is unsound, and products of activations: our own
# steps stand for these. Not Gather, whose backward bounds lose all but one use of an index that is
# repeated.
ALLOWED = {
    "onnx::Add",
    "onnx::AveragePool",
    "onnx::BatchNormalization",
    "onnx::Concat",
    "onnx::Conv",
    "onnx::Flatten",
    "onnx::Gemm",
    "onnx::GlobalAveragePool",
    "onnx::MaxPool",
    "onnx::Relu",
    OPERATOR,
}
_WINDOWED = ("onnx::Conv", "onnx::MaxPool", "onnx::AveragePool")


def operators(module: nn.Module, input_shape: tuple[int, ...]) -> list[tuple[str, Any]]:
    """The ONNX operators of the traced `module`, with their attributes."""
    with at_home():
        numbered(module)
        parsed = parse_module(module, (torch.zeros(1, *input_shape, dtype=torch.float64),))[0]
    return [(each.op, each.attr) for each in parsed]


def _is_plain(window: Any) -> bool:
    same = all(len(set(window[name])) == 1 for name in ("kernel_shape", "strides", "pads"))
    return same and set(window.get("dilations", [1])) == {1} and window.get("group", 1) == 1


def plain_windows(module: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Whether convolutions may propagate as patches. Raises Unsupported, naming what has no
    trustworthy bounds.
    """
    found = operators(module, input_shape)
    unknown = {op for op, _ in found} - ALLOWED
    if unknown:
        raise Unsupported(f"no sound bounds for {', '.join(sorted(unknown))}")
    # Where a rule of our own is, or values are put side by side, patches were not compared with
    # matrices.
    if any(isinstance(each, Own) and each.shape is not None for each in module.modules()):
        return False
    return not any(
        op == "onnx::Concat" or (op in _WINDOWED and not _is_plain(window)) for op, window in found
    )
