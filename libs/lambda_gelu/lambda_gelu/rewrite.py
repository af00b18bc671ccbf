"""Activations written out by hand, made modules: a rewrite of the graph that torch.export takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from lambda_gelu.activations.census import duplicate, identify, made_like, substitute
from lambda_gelu.activations.recognition import (
    Expression,
    Formulas,
    Recognised,
    interior,
    is_elementwise,
    marked,
    operator_name,
)

_CLOSENESS = 1e-5


def rewrite_formulas(
    network: nn.Module,
    make: Callable[[Recognised], nn.Module],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> fx.GraphModule:
    """`network` as a graph in which a module made by `make` stands in place of each activation
    written by hand.

    The activation modules that it has stay the modules they are, at their paths; what they compute
    is not looked into. The other layers are aten operators, whose parameters keep their names. The
    graph does what the network does in the mode in which it is given: train() and eval() of the
    graph change no dropout. The batch may have another size than the example's, if that is at least
    2 and the network allows it. Raises ValueError: torch.export fails; no formula is found; or the
    graph's outputs differ from the network's by more than 1e-5 of the largest.
    """
    # 1. Export with a numbered operator in place of each known activation, which the export keeps
    # as one node; traced through, the modules would be formulas too.
    original = duplicate(network)
    known = {
        path: module for path, module in original.named_modules() if identify(module) is not None
    }
    marks: dict[int, nn.Module] = {
        id(module): _Mark(index) for index, module in enumerate(known.values())
    }
    graph = _export(substitute(original, marks), args, kwargs, type(network).__name__)
    _unmark(graph, dict(enumerate(known.items())))
    # 2. Find the formulas, and put a module in place of each.
    formulas = _formulas(graph)
    if not formulas:
        raise ValueError(
            f"{type(network).__name__}: no activation written by hand found in the graph of"
            " torch.export that can be replaced; one that overwrites its own input in place cannot"
        )
    for index, (recognised, nodes, root) in enumerate(formulas):
        _replace(graph, nodes, root, f"formula_{index}", make(recognised))
    # 3. Drop the operators that nobody reads any more, and compare the outputs with the network's
    # on the example: what was matched by values is checked by values.
    _sweep(graph.graph)
    graph.graph.lint()
    rewritten = fx.GraphModule(graph, graph.graph, type(network).__name__).train(network.training)
    _compare(network, rewritten, args, kwargs)
    return rewritten


class _Mark(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tensor: torch.Tensor = marked(x, self.index)
        return tensor


def _export(
    network: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str
) -> fx.GraphModule:
    def batch(value: Any) -> Any:
        return {0: Dim.AUTO} if isinstance(value, torch.Tensor) and value.ndim else None

    shapes: Any = (
        tuple(map(batch, args)) if args else {name: batch(value) for name, value in kwargs.items()}
    )
    if args and kwargs:
        shapes = None
    # First with a batch of any size; a network that allows only the example's is exported for
    # that.
    reason: Exception | None = None
    for dynamic_shapes in (shapes, None):
        try:
            exported = torch.export.export(
                network, args, dict(kwargs), dynamic_shapes=dynamic_shapes
            )
            return exported.module(check_guards=False)
        # torch.export reports what it cannot trace by errors of many kinds
        except Exception as error:
            reason = error
    raise ValueError(
        f"{name}: torch.export cannot trace it, so that formulas written by hand stay unseen; write"
        f" them as modules such as nn.GELU. It says: {reason}"
    ) from reason


def _unmark(graph: fx.GraphModule, known: Mapping[int, tuple[str, nn.Module]]) -> None:
    for node in graph.graph.find_nodes(
        op="call_function", target=torch.ops.lambda_gelu.activation.default
    ):
        path, module = known[node.args[1]]
        if path not in dict(graph.named_modules()):
            graph.add_submodule(path, module)
        with graph.graph.inserting_before(node):
            call = graph.graph.call_module(path, (node.args[0],))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        graph.graph.erase_node(node)


def _formulas(graph: fx.GraphModule) -> list[tuple[Recognised, list[fx.Node], fx.Node]]:
    """Return what each known formula of a graph computes, its nodes from the last on, and the node
    of its variable.
    """
    formulas = Formulas()
    expressions: dict[fx.Node, Any] = {}
    node_of: dict[int, fx.Node] = {}
    made: list[Expression] = []  # kept, so that ids stay unique

    def of(value: Any) -> Any:
        return expressions[value] if isinstance(value, fx.Node) else value

    # 1. In the order of execution, write each elementwise node as an expression of those before.
    # Any other node is a fresh variable, and so is one that overwrites what others read: an
    # expression of it would not tell which value is meant.
    for node in graph.graph.nodes:
        expressions[node] = Expression()
        if node.op == "get_attr":
            expressions[node] = _constant(graph, str(node.target))
        elif (
            node.op == "call_function"
            and is_elementwise(node.target)
            and not _changes_what_others_read(node)
        ):
            args, kwargs = (
                tuple(map(of, node.args)),
                {name: of(value) for name, value in node.kwargs.items()},
            )
            expression = Expression(node.target, args, kwargs)
            node_of[id(expression)] = node
            made.append(expression)
            if not expression.children:  # a constant that was lifted out of forward, and its copies
                expressions[node] = args[0]
            # What a known activation gives is a variable for what follows, so that no formula
            # reaches through an activation.
            elif not formulas.add(expression, node):
                expressions[node] = expression
        node_of[id(expressions[node])] = node
    # 2. Translate the formulas that were recognised back to nodes, from the last to the first.
    known = []
    for formula in formulas:
        if formula.recognised is not None and formula.root is not None:
            inside, root = interior(formula.expression, formula.root), node_of[id(formula.root)]
            before, after = root.meta.get("val"), formula.place.meta.get("val")
            # An activation can stand where the shape of its input is kept.
            if (
                isinstance(before, torch.Tensor)
                and isinstance(after, torch.Tensor)
                and before.shape == after.shape
            ):
                known.append((formula.recognised, [node_of[id(node)] for node in inside], root))
    return known


def _changes_what_others_read(node: fx.Node) -> bool:
    """Whether an operator in place overwrites a tensor that another node reads too: no formula
    then goes through it.
    """
    in_place = node.target._schema.is_mutable  # type: ignore[union-attr]
    return in_place and isinstance(node.args[0], fx.Node) and len(node.args[0].users) > 1


def _constant(graph: fx.GraphModule, target: str) -> Any:
    """The number that an attribute of the graph holds; a parameter, a buffer or a longer tensor
    is no number.
    """
    learnt = {name for name, _ in graph.named_parameters()} | {
        name for name, _ in graph.named_buffers()
    }
    value: Any = graph
    for name in target.split("."):
        value = getattr(value, name)
    if (
        isinstance(value, torch.Tensor)
        and value.ndim == 0
        and (target not in learnt or "lifted_tensor" in target)
    ):
        return value.item()
    return Expression(learnt=isinstance(value, nn.Parameter))


def _replace(
    graph: fx.GraphModule, nodes: list[fx.Node], root: fx.Node, name: str, module: nn.Module
) -> None:
    graph.add_submodule(name, made_like(graph, module))
    # A formula may change the dtype on its way, as float16 to float32; the module computes in
    # that of the result.
    last = nodes[0]
    before, after = root.meta["val"].dtype, last.meta["val"].dtype
    with graph.graph.inserting_before(last):
        operand = (
            root
            if before == after
            else graph.graph.call_function(torch.ops.aten.to.dtype, (root, after))
        )
        call = graph.graph.call_module(name, (operand,))
    call.meta = dict(last.meta)
    last.replace_all_uses_with(call)
    # From the last node on, because a node can be erased only after those that read it.
    for node in sorted(nodes, reverse=True):  # operators in place are no dead code to fx
        if not node.users:
            graph.graph.erase_node(node)


def _sweep(graph: fx.Graph) -> None:
    graph.eliminate_dead_code()
    for node in reversed(list(graph.nodes)):
        if not node.users and node.target in (
            torch.ops.aten.lift_fresh_copy.default,
            torch.ops.aten.detach_.default,
        ):
            graph.erase_node(node)
    graph.eliminate_dead_code()


def modes_in(network: nn.Module) -> dict[str, bool]:
    """The operators of an exported graph whose mode is written into it, as batch_norm: name ->
    whether it trains.

    train() and eval() do not reach them. Empty for all other networks, and for dropout that drops
    nothing.
    """
    modes: dict[str, bool] = {}
    nodes = network.graph.nodes if isinstance(network, fx.GraphModule) else ()
    # Aten operators name their mode by an argument, mostly one given by position.
    for node in nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            defaults = dict(
                zip(
                    [argument.name for argument in node.target._schema.arguments],
                    node.args,
                    strict=False,
                )
            )
            defaults |= node.kwargs
            trains = bool(
                defaults.get("train") or defaults.get("training") or defaults.get("dropout_p")
            )
            drops_nothing = 0 in (defaults.get("p"), defaults.get("dropout"))
            if (trains or defaults.keys() & {"train", "training"}) and not drops_nothing:
                modes[operator_name(node.target)] = trains
    return modes


def _compare(
    network: nn.Module, rewritten: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raise ValueError where the two do not agree on the example, with the same random numbers."""
    outputs = []
    for module in (network, rewritten):
        # The same seed before each, so that dropout drops the same elements in both.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            outputs.append(tree_leaves(duplicate(module)(*args, **kwargs)))
    for expected, output in zip(*outputs, strict=True):
        if isinstance(expected, torch.Tensor) and expected.is_floating_point():
            distance, size = float((output - expected).abs().max()), float(expected.abs().max())
            if not distance <= _CLOSENESS * max(size, 1.0):
                raise ValueError(
                    f"{type(network).__name__}: the rewritten graph's outputs are off by"
                    f" {distance:.3g}; nothing was replaced. Give the network as modules, or report"
                    " this as a bug"
                )
