"""auto_LiRPA (arXiv 2002.12920) behind one small interface; the only file that calls it. Written
for 0.3 and 0.7.

A bound is believed only for graphs of operators on a list, in geometries that were tested. All is
float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from evalsuite import Unsupported
from pipelines.bounds.curved import activations, path_of, with_stand_ins
from pipelines.bounds.margins import Pairs
from pipelines.bounds.operator import BoundCurved, own
from pipelines.bounds.regions import Regions
from pipelines.bounds.surroundings import LEGACY, OPERATOR, at_home, numbered

# Names that differ between the releases: the argument, the option and the method.
_GIVEN = "intermediate_layer_bounds" if LEGACY else "interm_bounds"
_FIXED = "fix_intermediate_layer_bounds" if LEGACY else "fix_interm_bounds"
_START = "init_slope" if LEGACY else "init_alpha"
# The optimizer's steps: of the margins' lines alone; of all lines, where they are ReLU's (slopes),
# and others (points).
_STEP, _SLOPE_STEP, _POINT_STEP = 0.25, 0.5, 0.1
_CONSTANTS = ("BoundParams", "BoundBuffers", "BoundConstant")
# Layers that it is given as they are.
_KEPT = (nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.Flatten, nn.AdaptiveAvgPool2d)
# How often a matrix of one layer's outputs by another's is held at once, measured: for both sides,
# and in between.
_COPIES = 10
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

Named = dict[str, tuple[torch.Tensor, torch.Tensor]]


class _Box(PerturbationLpNorm):  # type: ignore[misc]
    """The boxes of regions, or the parts of balls inside them."""

    def __init__(self, regions: Regions) -> None:
        super().__init__(norm=np.inf, eps=0.0, x_L=regions.lower, x_U=regions.upper)
        self._regions = regions

    def concretize(self, x: Any, A: Any, sign: int = -1, aux: Any = None, **more: Any) -> Any:
        """Return what `A` times the input is at the least (sign -1) or at the most (sign 1)."""
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

    `tightest` are bounds of nodes' values, by name, that narrow what is found backward, and are
    narrowed by it: each was sound, whatever the lines.
    """

    tightest: Named

    def _named_members(
        self, get_members_fn: Any, prefix: str = "", recurse: bool = True, **modern: Any
    ) -> Any:
        # torch 2 passes remove_duplicate, which release 0.3 does not know.
        return super()._named_members(get_members_fn, prefix, recurse, **({} if LEGACY else modern))

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
        module: float64, eval mode, with `Own` in the place of the activations: see `plain`.
        input_shape: of one input.
        iterations: of alpha-CROWN.
    """

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...], iterations: int) -> None:
        example = torch.zeros(1, *input_shape, dtype=torch.float64)
        options = {
            # Patches of convolutions are quicker, wrong for some windows, and share the lines of a
            # channel.
            "conv_mode": "matrix",
            "sparse_features_alpha": False,
            "sparse_spec_alpha": False,
            "sparse_intermediate_bounds": False,
            "optimize_bound_args": {
                "iteration": iterations,
                "start_save_best": -1.0,
                "init_alpha": False,
            },
        }
        with at_home():
            self._module = _Module(
                module, example, bound_opts=options, custom_ops={OPERATOR: numbered(module)}
            )
            self._module.tightest = {}
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
    def optimizes(self) -> bool:
        """Whether alpha-CROWN can work: that of MaxPool fails, on some boxes only."""
        return not any(type(child).__name__ == "BoundMaxPool" for child in self._module.children())

    def batch(self, memory: int, largest: int) -> int:
        """How many inputs at once, from 1 to `largest`, CROWN can bound in about so many bytes."""
        sizes: list[int] = sorted(
            prod(child.output_shape[1:])
            for child in self._module.children()
            if child.output_shape is not None and type(child).__name__ not in _CONSTANTS
        )
        bytes_of_one = sizes[-2:][0] * sizes[-1] * 8 * _COPIES
        return max(1, min(largest, memory // bytes_of_one))

    def batch_of_all_lines(self, memory: int, largest: int, rows: int) -> int:
        """How many inputs at once, up to `largest`, of `rows` bounds each, all lines can be
        optimized for in about so many bytes; 0 where one alone would take several times as many, or
        there are no lines but the margins'.
        """
        sizes = [prod(activation.inputs[0].output_shape[1:]) for activation in self._activations]
        # Each bound of a layer has lines of its own in all layers before it.
        before = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
        hidden = sum(size * count for size, count in zip(sizes, before, strict=False))
        bytes_of_one: int = 2 * 8 * _PARAMETERS * (hidden + rows * before[-1])
        if hidden == 0 or bytes_of_one > _DEAREST * memory:
            return 0
        return max(1, min(largest, memory // bytes_of_one))

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits that the converted network computes."""
        with at_home():
            logits: torch.Tensor = self._module(x)
        return logits

    def inputs_at(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return what the activations are given at `x`, in the order of `bound`."""
        self.forward(x)
        return [activation.inputs[0].forward_value.detach() for activation in self._activations]

    def _box(self, regions: Regions) -> tuple[Any, ...]:
        return (BoundedTensor((regions.lower + regions.upper) / 2, _Box(regions)),)

    @torch.no_grad()
    def bound(
        self, regions: Regions, rows: torch.Tensor, method: str, known: Named | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, Pairs]:
        """Lower and upper bounds of `rows` (batch, k, classes) times the logits, and of each
        activation's input, by "ibp", "forward" or "crown"; within those that are known of nodes, by
        name.
        """
        reference = {} if known is None else {"reference_bounds": known}
        with at_home():
            lower, upper = self._module.compute_bounds(
                x=self._box(regions), C=rows, method=method, **reference
            )[:2]
        inputs = [activation.inputs[0] for activation in self._activations]
        return (
            lower,
            upper,
            [(operand.lower.detach(), operand.upper.detach()) for operand in inputs],
        )

    def operands(self) -> Named:
        """The last bounds of what operators take that need them, by the name of the node."""
        inputs = [
            child.inputs[place]
            for child in self._module.children()
            for place in getattr(child, "requires_input_bounds", [])
        ]
        return {
            operand.name: (operand.lower, operand.upper)
            for operand in inputs
            if operand.lower is not None
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

        The bounds of the activations' inputs stay as they are given; with `all_lines` those that
        they are made of are optimized too, for the same lower bounds, and the tightest of each are
        kept. `done`, given bounds (batch, k), says which need no more work, (batch, 1).
        """
        # Bounds that are given stay fixed; without them the library makes them from lines that it
        # optimizes as well.
        kept = {} if all_lines else {_GIVEN: self._by_name(inputs)}
        sloped = all(isinstance(activation, BoundRelu) for activation in self._activations)
        step = (_SLOPE_STEP if sloped else _POINT_STEP) if all_lines else _STEP
        options = {"stop_criterion_func": done, _FIXED: not all_lines, "lr_alpha": step}
        self._module.bound_opts["optimize_bound_args"].update(options)
        arguments = {"method": "CROWN-Optimized", "bound_upper": False, **kept}
        try:
            with at_home():
                box = self._box(regions)
                getattr(self._module, _START)(box, c=rows, bound_upper=False, **kept)
                self._module.tightest = self._by_name(inputs) if all_lines else {}
                best: torch.Tensor = self._module.compute_bounds(x=box, C=rows, **arguments)[0]
        finally:
            self._module.tightest = {}
        return best.detach()

    def _by_name(self, inputs: Pairs) -> Named:
        return {
            activation.inputs[0].name: pair
            for activation, pair in zip(self._activations, inputs, strict=True)
        }


# Operators whose bounds were sampled in the tests. Not x / sqrt(y), which release 0.3 takes for a
# LayerNorm without its epsilon, nor softmax, which is unsound, nor Gather, whose backward bounds
# lose all but one use of an index that is repeated.
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


def operators(module: nn.Module, input_shape: tuple[int, ...]) -> list[tuple[str, Any]]:
    """The ONNX operators of the traced `module`, with their attributes."""
    with at_home():
        numbered(module)
        parsed = parse_module(module, (torch.zeros(1, *input_shape, dtype=torch.float64),))[0]
    return [(node.op, node.attr) for node in parsed]


def refuse_operators(module: nn.Module, input_shape: tuple[int, ...]) -> None:
    """Raise Unsupported, naming operators that have no trustworthy bounds."""
    unknown = {operator for operator, _ in operators(module, input_shape)} - ALLOWED
    if unknown:
        raise Unsupported(f"no sound bounds for {', '.join(sorted(unknown))}")


def plain(traced: fx.GraphModule) -> nn.Module:
    """A float64 copy of what `in_modules` gives, in layers that auto_LiRPA bounds soundly, with our
    activations.

    Raises:
        Unsupported: a layer or function is none of these, by its path.
    """
    module = copy.deepcopy(traced).double().requires_grad_(False)
    known = activations(module)
    with_stand_ins(module, own)
    _fold_norms(module)
    shapes = {node: node.meta.get("shape", ()) for node in module.graph.nodes}
    for node in list(module.graph.nodes):
        if node.op in ("placeholder", "get_attr", "output") or str(node.target) in known:
            continue
        layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        flat = len(shapes[node]) == 2
        if node.target is torch.reshape and flat:
            # auto_LiRPA knows this reshape by the name of its layer.
            module.add_submodule(f"flat_{node.name}", nn.Flatten())
            with module.graph.inserting_before(node):
                flattened = module.graph.call_module(f"flat_{node.name}", (node.args[0],))
            node.replace_all_uses_with(flattened)
            module.graph.erase_node(node)
            continue
        if isinstance(layer, nn.Linear) and flat and getattr(layer, "bias", None) is None:
            # Without a bias it is traced as a product, which could be of two activations.
            bias = layer.weight.new_zeros(layer.out_features)
            layer.bias = nn.Parameter(bias, requires_grad=False)
        operands = node.all_input_nodes
        added = node.target.__class__.__name__ and getattr(node.target, "__name__", "") == "add"
        if not (
            isinstance(layer, _KEPT)
            or (isinstance(layer, nn.Linear) and flat)
            or _tiles(layer)
            or (added and {shapes[operand] for operand in operands} == {shapes[node]})
            or type(getattr(layer, "operation", None)).__name__ == "Concat"
        ) or any(operand.op == "get_attr" for operand in operands):
            raise Unsupported(f"{path_of(node)} is none of the layers that it is given")
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return module.eval()


def _tiles(layer: nn.Module | None) -> bool:
    """Whether it is a pool of square windows that do not overlap."""
    if (
        not isinstance(layer, nn.MaxPool2d | nn.AvgPool2d)
        or layer.kernel_size != layer.stride
        or layer.ceil_mode
    ):
        return False
    window = layer.kernel_size
    square = isinstance(window, int) or len(set(window)) == 1
    return square and layer.padding in (0, (0, 0)) and getattr(layer, "dilation", 1) in (1, (1, 1))


def _fold_norms(traced: fx.GraphModule) -> None:
    """Fold BatchNorm into the convolution before it: an operator less, whose input would be
    bounded for nothing.
    """
    for node in list(traced.graph.nodes):
        norm = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        # auto_LiRPA asks for weights
        if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and not norm.affine:
            norm.weight = nn.Parameter(torch.ones(norm.num_features).double(), requires_grad=False)
            norm.bias = nn.Parameter(torch.zeros(norm.num_features).double(), requires_grad=False)
        if not isinstance(norm, nn.BatchNorm2d):
            continue
        (before,) = node.all_input_nodes
        layer = traced.get_submodule(str(before.target)) if before.op == "call_module" else None
        if isinstance(layer, nn.Conv2d) and len(before.users) == 1:
            traced.set_submodule(str(before.target), nn.utils.fuse_conv_bn_eval(layer, norm))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
