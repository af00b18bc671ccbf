"""A network that is read by torch.export, as the operators that have sound bounds: auto_LiRPA's,
and steps of our own.

Which these are is told by the graph's operations, not by the network's classes.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from evalsuite import Unsupported
from pipelines.bounds.curved import Shape, activations, path_of, with_stand_ins
from pipelines.bounds.steps import (
    Affine,
    Greatest,
    Matrices,
    Normalised,
    Rule,
    Softmax,
    Times,
    Total,
)

Sizes = tuple[int, ...]
# What auto_LiRPA bounds by operators of its own that were compared with samples.
_KEPT = (nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.Flatten, nn.AdaptiveAvgPool2d)
# Operations that move entries, or take means of them: their bounds are those of the ends.
_MONOTONE = ("AveragePool", "Pad", "Reduction", "Reshape", "Resample", "Slice", "Transpose")
_MEANS = ("mean", "sum")
_COMPARED = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal", "Where")
_CURE = (
    ": a choice by what depends on the input, as PReLU's with a slope for each channel; with slopes"
    " a it is torch.relu(x) - a * torch.relu(-x)"
)
# How often a matrix of coefficients is held at once, and the bytes that they may take.
_COPIES, _MEMORY = 10, 2**32


def stepped(traced: fx.GraphModule) -> nn.Module:
    """A float64 copy of what `in_modules` gives, as operators that have sound bounds.

    Raises:
        Unsupported: an operation has no sound bounds here, by its path; or it does not keep samples
            apart.
    """
    stepper = _Stepper(traced)
    module = stepper.module
    for node in list(module.graph.nodes):
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        with module.graph.inserting_before(node):
            made = stepper.replaced(node)
        if made is not None:
            node.replace_all_uses_with(made)
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return module.eval()


class _Stepper:
    """Writes the graph anew, in place of a copy's nodes."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self.module = copy.deepcopy(traced).double().requires_grad_(False)
        self.known = activations(self.module)
        with_stand_ins(self.module, Shape.own)
        _fold_norms(self.module)
        nodes = self.module.graph.nodes
        self.shapes: dict[fx.Node, Sizes] = {node: node.meta.get("shape", ()) for node in nodes}
        # A constant has one shape, whatever the batch.
        self.constant = {node for node in nodes if node.op == "get_attr"}
        # Each tensor must be one sample after the other: a rule sees samples apart.
        for node, shape in self.shapes.items():
            if node.op not in ("get_attr", "output") and shape[:1] != (-1,):
                raise Unsupported(
                    f"no sound bounds for {path_of(node)}: its tensor is not one sample after the"
                    " other"
                )
        greatest = max(math.prod(shape[1:]) for shape in self.shapes.values())
        if _COPIES * 8 * greatest**2 > _MEMORY:
            raise Unsupported(
                f"a tensor of {greatest} values: the coefficients of each by each would not fit"
                f" into {_MEMORY // 2**30} GiB"
            )

    def replaced(self, node: fx.Node) -> fx.Node | None:
        """What stands for the node; None where it stays."""
        layer = self.module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if str(node.target) in self.known or isinstance(layer, _KEPT) or _tiles(layer):
            return None
        if self._is_own_operator(node, layer):
            return None
        if node.target is torch.reshape and len(self.shapes[node]) == 2:
            return self._called(nn.Flatten(), node.all_input_nodes, self.shapes[node])
        if isinstance(layer, nn.LayerNorm):
            return self._norm(node, layer)
        if node.target is functional.scaled_dot_product_attention:
            return self._attention(node)
        rule = self._rule(node, layer)
        if rule is None:
            kind = _kind(node, layer)
            raise Unsupported(
                f"no sound bounds for {path_of(node)} ({kind}){_CURE if kind in _COMPARED else ''}"
            )
        given = [
            argument
            for argument in node.args
            if isinstance(argument, fx.Node) and argument not in self.constant
        ]
        return self._step(rule, given, self.shapes[node])

    def _is_own_operator(self, node: fx.Node, layer: nn.Module | None) -> bool:
        """Whether auto_LiRPA has a sound operator for it, given these operands."""
        operands = node.all_input_nodes
        if isinstance(layer, nn.Linear) and len(self.shapes[node]) == 2:
            # Without a bias it is traced as a product, which could be of two activations.
            if getattr(layer, "bias", None) is None:
                layer.bias = nn.Parameter(
                    layer.weight.new_zeros(layer.out_features), requires_grad=False
                )
            return True
        if self.constant.intersection(operands):
            return False
        if node.target is operator.add:
            return {self.shapes[operand] for operand in operands} == {self.shapes[node]}
        return _kind(node, layer) == "Concat"

    def _rule(self, node: fx.Node, layer: Any) -> Rule | None:
        """What a step computes; None where there are no bounds of it."""
        operands = [argument for argument in node.args if isinstance(argument, fx.Node)]
        apart = [operand for operand in operands if operand not in self.constant]
        for kinds, make in _OF_LAYERS.items():
            if isinstance(layer, kinds):
                return make(layer)
        operation = getattr(layer, "operation", None)
        if node.target is torch.reshape:
            sizes: Any = node.args[1]
            return _monotone(lambda x: torch.reshape(x, sizes))
        if node.target is operator.add or (type(operation).__name__ == "Sum" and len(operands) > 1):
            return self._sum(operands, apart, getattr(operation, "signs", (1, 1)))
        if operation is None:
            return None
        if len(operands) == 1:
            return _of_one(layer, operation, len(self.shapes[operands[0]]))
        return self._of_two(layer, operation, operands, apart)

    def _of_two(
        self, layer: Any, operation: Any, operands: list[fx.Node], apart: list[fx.Node]
    ) -> Rule | None:
        kind, both = type(operation).__name__, len(apart) == len(operands) == 2
        if kind == "Gather" and apart == operands[:1] and 0 not in operation.axes:
            places = [self._value(operand) for operand in operands[1:]]
            return _monotone(lambda x: layer(x, *places))
        if kind in ("Product", "Quotient") and len(operands) == 2 and len(apart) == 1:
            if kind == "Quotient" and operands[0] is not apart[0]:
                return None
            value = self._value(next(operand for operand in operands if operand is not apart[0]))
            if kind == "Quotient":
                return Affine(lambda x: x / value, lambda r: r / value.abs())
            return Affine(lambda x: x * value, lambda r: r * value.abs())
        rules = {"Product": Times(), "MatMul": Matrices()}
        return rules.get(kind) if both else None

    def _value(self, node: fx.Node) -> torch.Tensor:
        """Return the tensor of a constant node; where it has as many dimensions as a batch of
        samples, the first is the batch's.
        """
        return operator.attrgetter(str(node.target))(self.module).detach()  # type: ignore[no-any-return]

    def _sum(
        self, operands: list[fx.Node], apart: list[fx.Node], signs: Sequence[int]
    ) -> Rule | None:
        if len(apart) == len(operands):
            return Total(tuple(signs))
        if len(operands) != 2 or len(apart) != 1:
            return None
        place = operands.index(apart[0])
        own, value = signs[place], signs[1 - place] * self._value(operands[1 - place])
        zero = torch.zeros_like(value)
        # The sum has the larger of both shapes.
        return Affine(lambda x: own * x + value, lambda radius: radius + zero)

    def _norm(self, node: fx.Node, layer: nn.LayerNorm) -> fx.Node:
        (given,), shape, axes = node.all_input_nodes, self.shapes[node], len(layer.normalized_shape)
        made = self._step(_centered(axes), [given], shape)
        made = self._step(Normalised(axes, layer.eps), [made], shape)
        if layer.elementwise_affine:
            weight, bias = layer.weight.detach(), layer.bias.detach()
            made = self._step(
                Affine(lambda x: x * weight + bias, lambda r: r * weight.abs()), [made], shape
            )
        return made

    def _attention(self, node: fx.Node) -> fx.Node:
        operands: Any = node.args
        query, key, value = operands
        given: dict[str, Any] = dict(node.kwargs)
        if given["attn_mask"] is not None or not given["scale"] > 0:
            raise Unsupported(
                f"no sound bounds for {path_of(node)} with a mask of its own, or a negative scale"
            )
        square = self.shapes[query][-2] == self.shapes[key][-2]
        if given["is_causal"] and not square:
            raise Unsupported(
                f"no sound bounds for {path_of(node)}: causal, of more queries than keys, or fewer"
            )
        if any(all_input_node in self.constant for all_input_node in node.all_input_nodes):
            raise Unsupported(f"no sound bounds for {path_of(node)} of a constant")
        # softmax(scale Q K^T) V in three steps, each with bounds of its own.
        scores = (*self.shapes[query][:-1], self.shapes[key][-2])
        made = self._step(Matrices(transposed=True), [query, key], scores)
        made = self._step(Softmax(given["scale"], given["is_causal"]), [made], scores)
        return self._step(Matrices(), [made, value], self.shapes[node])

    def _step(self, rule: Rule, given: list[Any], shape: Sizes) -> fx.Node:
        return self._called(rule.own(shape[1:]), given, shape)

    def _called(self, layer: nn.Module, given: list[Any], shape: Sizes) -> fx.Node:
        name = next(
            each for number in range(10**6) if not hasattr(self.module, each := f"step_{number}")
        )
        self.module.add_submodule(name, layer)
        made = self.module.graph.call_module(name, tuple(given))
        self.shapes[made] = shape
        return made


def _kind(node: fx.Node, layer: nn.Module | None) -> str:
    operation = getattr(layer, "operation", layer)
    if layer is None:
        return getattr(node.target, "__name__", str(node.target))
    log = "Log" if getattr(operation, "log", False) else ""
    name = f"{log}{getattr(operation, 'name', type(operation).__name__)}"
    return f"{name} with ceil_mode" if getattr(layer, "ceil_mode", False) else name


def _tiles(layer: nn.Module | None) -> bool:
    """Whether it is a pool of square windows that do not overlap, for which auto_LiRPA has an
    operator.
    """
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


def _of_one(layer: Any, operation: Any, dimensions: int) -> Rule | None:
    kind = type(operation).__name__
    if kind == "Sum":
        return Total(operation.signs)
    if kind == "Softmax" and not operation.log and operation.axis == dimensions - 1:
        return Softmax()
    if kind == "Convolution":
        return _convolution(layer)
    if kind not in _MONOTONE or (kind == "Reduction" and operation.name not in _MEANS):
        return None
    return _monotone(layer)


def _monotone(of: Callable[[torch.Tensor], torch.Tensor]) -> Rule:
    """Linear, with no coefficient below 0."""
    return Affine(of, lambda radius: of(radius) - of(torch.zeros_like(radius[:1])))


def _convolution(layer: Any) -> Rule:
    """Return the rule of a convolution of one or three dimensions, or of a transposed one, for
    which torch has no layer here.
    """
    wide = copy.deepcopy(layer)
    if isinstance(layer, nn.Conv1d | nn.Conv3d):
        wide.weight, wide.bias = nn.Parameter(layer.weight.abs(), requires_grad=False), None
    else:
        wide.operation = replace(layer.operation, weight=layer.operation.weight.abs(), bias=None)
    return Affine(layer, wide)


def _centered(axes: int) -> Rule:
    """x less its mean over the last dimensions: of n entries the own one counts 1 - 1/n, the
    others 1/n.
    """
    dims = tuple(range(-axes, 0))

    def of(x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dims, keepdim=True)

    def wide(radius: torch.Tensor) -> torch.Tensor:
        count = math.prod(radius.shape[-axes:])
        return (radius * (1 - 2 / count) + radius.mean(dims, keepdim=True)).clamp(min=0)

    return Affine(of, wide)


def _linear(layer: nn.Linear) -> Rule:
    size = layer.weight.detach().abs()
    return Affine(layer, lambda radius: functional.linear(radius, size))


def _greatest(layer: nn.MaxPool2d) -> Rule | None:
    if layer.ceil_mode or layer.return_indices:
        return None
    given = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    pairs = [(each, each) if isinstance(each, int) else (each[0], each[1]) for each in given]
    return Greatest(*pairs)


_OF_LAYERS: dict[Any, Callable[[Any], Rule | None]] = {
    (nn.AvgPool1d, nn.AvgPool2d): _monotone,
    nn.MaxPool2d: _greatest,
    nn.Linear: _linear,
    (nn.Conv1d, nn.Conv3d): _convolution,
}
