"""Reading any module by torch.export: its program, operator by operator, and what stands for
modules meanwhile.
"""

from __future__ import annotations

import copy
import logging
import math
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional
from torch.nn.utils import parametrize

from lambda_gelu.activations import Activation
from lambda_gelu.activations.census import identify
from lambda_gelu.activations.recognition import TOLERANCE, known, marked
from opgraph.aten import COMPUTING
from opgraph.aten_moving import MOVING
from opgraph.call import Call, Times, Value
from opgraph.errors import Unsupported
from opgraph.graph import Builder, Graph, kind_of
from opgraph.inputs import Inputs, leaves, mapped
from opgraph.operations import Operation, Pointwise, Whole
from opgraph.sizes import BATCHES, Shape, shape, size


def _overwritten(tensor: torch.Tensor, number: int) -> torch.Tensor:
    return tensor.copy_(marked(tensor, number))


class _Attention(nn.MultiheadAttention):
    """In operators that keep the samples first, where torch's own put the positions first and
    flatten both.
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        parts = self._projected(query, key, value)
        queries, keys, values = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
            for part in parts
        )
        mask = None if attn_mask is None else _added(attn_mask, queries)
        if mask is not None and mask.ndim == 3:  # (batch x heads, positions, positions)
            mask = mask.unflatten(0, (-1, self.num_heads))  # type: ignore[no-untyped-call]
        if key_padding_mask is not None:
            padded = _added(key_padding_mask, queries)[:, None, None]
            mask = padded if mask is None else mask + padded
        mixed = functional.scaled_dot_product_attention(queries, keys, values, mask)
        output = self.out_proj(mixed.transpose(1, 2).flatten(-2))
        output = output if self.batch_first else output.transpose(0, 1)
        if not need_weights:
            return output, None
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return output, weights.mean(1) if average_attn_weights else weights

    def _projected(self, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
        first = [tensor if self.batch_first else tensor.transpose(0, 1) for tensor in operands]
        if self._qkv_same_embed_dim and operands[0] is operands[1] is operands[2]:
            return functional.linear(first[0], self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = self.in_proj_weight.chunk(3) if self._qkv_same_embed_dim else apart
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [functional.linear(*parts) for parts in zip(first, weights, biases, strict=True)]


def _added(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A mask to add to scores; of truth values those that are true do not count."""
    return (
        torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)
        if mask.dtype == torch.bool
        else mask
    )


def prepare(module: nn.Module, whole: Collection[nn.Module]) -> list[Operation]:
    """Change a copy of a network for torch.export: `whole`, and activations with learnt numbers,
    are one operator each.

    Returns:
        What each operator computes, by its number.
    """
    asked, operations = {id(layer) for layer in whole}, list[Operation]()
    for part in module.modules():
        if type(part) is nn.MultiheadAttention and part.bias_k is None and not part.add_zero_attn:
            part.__class__ = _Attention
        operation = _whole(part) if id(part) in asked else _learnt(part)
        if operation is not None:
            replacement = _overwritten if getattr(part, "inplace", False) else marked
            vars(part)["forward"] = partial(replacement, number=len(operations))
            operations.append(operation)
    return operations


def _whole(module: nn.Module) -> Operation:
    """The module as one; one of a class without a row of its own by the row whose values it has."""
    recognised = identify(module, gates=True)
    if (
        recognised is not None
        and recognised.hardness == 1
        and not recognised.traits.matches(module)
    ):
        return Pointwise(recognised.traits, deviation=TOLERANCE)
    copied = copy.deepcopy(module)
    if getattr(copied, "inplace", False):
        setattr(copied, "inplace", False)  # noqa: B010 - what stands for it writes where it does
    return Whole(copied)


def _learnt(module: nn.Module) -> Operation | None:
    """An activation with learnt numbers, whose formula would be read with these rounded: its
    row, of float64.
    """
    row = next(
        (
            row
            for row in known()
            if row.row_of is not None and row.parameters and row.matches(module)
        ),
        None,
    )
    if row is None or _has_more_than_its_type(module, row):
        return None
    try:
        return Pointwise(row.of(copy.deepcopy(module).double()))
    except ValueError:  # numbers for each channel, for which no row speaks
        return None


def _has_more_than_its_type(module: nn.Module, row: Activation) -> bool:
    """Whether it may compute something else than its type: by hooks, a forward of its own, or
    numbers from others.
    """

    def owner(kind: type) -> type:
        return next(base for base in kind.__mro__ if "forward" in vars(base))

    # A parametrized module computes its numbers of others, and a subclass may compute what it
    # likes.
    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return (
        bool(hooked)
        or parametrize.is_parametrized(module)
        or owner(type(module)) is not owner(type(row.make(1)))
    )


_READERS = MOVING | COMPUTING
_ROUNDS = 4  # what an operator without a reader becomes may itself be without one
# Checks of types and sizes that held when the program was traced, and hold for every batch.
_SKIPPED = (
    "_assert_tensor_metadata",
    "_assert_scalar",
    "_assert_async",
    "sym_constrain_range_for_size",
)


def graph_of_module(module: nn.Module, example: Inputs, whole: Collection[nn.Module] = ()) -> Graph:
    """The graph of a module in evaluation mode, called with one argument, a batch; not yet compared
    with it.

    Raises:
        Unsupported: torch.export cannot capture it, or an operator has no reader; the text names
            the module's path.
    """
    copied = copy.deepcopy(module).eval()
    asked = {id(layer) for layer in whole}
    pairs = zip(module.modules(), copied.modules(), strict=True)
    operations = prepare(copied, [layer for original, layer in pairs if id(original) in asked])
    return _Reader(_plain(_program(copied, example)), example, operations).graph()


def _plain(program: ExportedProgram) -> ExportedProgram:
    """Without operators that write into their operands, and of those without a reader what torch
    makes of them.
    """
    for _ in range(_ROUNDS):
        # Decompose only what has no reader, and nothing else: readers of whole operations, as of a
        # LayerNorm, give better bounds than their parts. With an empty table this still removes
        # writes in place.
        called = [node for node in program.graph.nodes if node.op == "call_function"]
        unread = {node.target for node in called if _is_unread(node)}
        table = torch.export.default_decompositions() if unread else {}
        known = {operator: table[operator] for operator in unread if operator in table}
        if not known and not any(map(_changes, called)):
            break
        try:
            with _quiet():
                program = program.run_decompositions(known)
        except Exception as error:  # torch's errors share no base class
            said = f"{type(error).__name__}: {_first_lines(str(error))}"
            raise Unsupported(
                f"torch cannot rewrite it with operators that are read: {said}"
            ) from error
    return program


def _is_unread(node: fx.Node) -> bool:
    is_aten = getattr(node.target, "namespace", "") == "aten" and isinstance(
        node.meta.get("val"), torch.Tensor | tuple
    )
    return is_aten and _name(node.target) not in _READERS and _name(node.target) not in _SKIPPED


def _name(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    return (
        str(schema.name.split("::")[-1]) if schema is not None else getattr(target, "__name__", "")
    )


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logger.setLevel(level)


def _program(module: nn.Module, example: Inputs) -> ExportedProgram:
    # A batch of one would be taken for a constant.
    pair = mapped(example, lambda tensor: tensor[torch.arange(2) % len(tensor)])
    batch = Dim("batch")
    dynamic = mapped(pair, lambda _: {0: batch})  # type: ignore[arg-type, return-value]
    said = ""
    for strict in (False, True):
        try:
            with _quiet(), torch.no_grad():
                # A guard on the batch, as that it is not the number of features, would be refused
                # at once.
                return torch.export.export(
                    module,
                    (pair,),
                    dynamic_shapes=(dynamic,),
                    strict=strict,
                    prefer_deferred_runtime_asserts_over_guards=True,
                )
        except Exception as error:  # torch's errors share no base class
            said = said or f"{type(error).__name__}: {_first_lines(str(error))}"
    raise Unsupported(
        f"torch.export cannot capture {type(module).__name__}: {said}; its forward must take"
        " batches of any size, and must not choose by the values of its input"
    )


def _first_lines(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())[:300]


def _changes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    return schema is not None and schema.is_mutable and not schema.name.startswith("aten::dropout_")


class _Reader:
    def __init__(self, program: ExportedProgram, example: Inputs, whole: list[Operation]) -> None:
        self.program, self.whole = program, whole
        self.builder = Builder()
        self.found: dict[fx.Node, Any] = {}
        count = len(leaves(example))
        numbered = ["input"] if count == 1 else [f"input_{place}" for place in range(count)]
        self.names = list(example) if isinstance(example, dict) else numbered

    def graph(self) -> Graph:
        # 1. Refuse a forward pass that changes buffers or inputs.
        signature = self.program.graph_signature
        changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
        if changed:
            raise Unsupported(
                f"its forward pass changes {', '.join(map(repr, changed))}: it is no function of"
                " its input"
            )
        # 2. Inputs and weights first, then each operator with its reader, in the order of the
        # program.
        self._inputs()
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self.found[node] = self._read(node)
        if len(signature.user_outputs) != 1:
            raise Unsupported(
                f"it gives {len(signature.user_outputs)} outputs; wrap it, so that it gives one"
                " tensor"
            )
        (output,) = (
            node for node in self.program.graph.nodes if node.name == signature.user_outputs[0]
        )
        return self.builder.graph(self.found[output])

    def _inputs(self) -> None:
        signature, weights = (
            self.program.graph_signature,
            self.program.state_dict | self.program.constants,
        )
        # Placeholders are the inputs of the user, and parameters, buffers and constants, which have
        # values.
        held = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        for name, argument in zip(signature.user_inputs, self.names, strict=True):
            node = nodes[str(name)]
            self.builder.name = argument
            self.found[node] = Value(self.builder.input(argument, *_described(node.meta["val"])))
        for name, argument in held.items():
            self.builder.name = argument
            self.found[nodes[name]] = Value(self.builder.constant(weights[argument]))

    def _read(self, node: fx.Node) -> Any:
        target = _name(node.target)
        if target in _SKIPPED or isinstance(node.meta.get("val"), torch.SymBool | bool):
            return None
        self.builder.name = path = _path(node)
        where = f"{path or 'the network'} ({target})"
        try:
            return self._value(node, target, where)
        except Unsupported as error:
            raise Unsupported(
                str(error) if str(error).startswith(where) else f"{where}: {error}"
            ) from error
        # what torch raises of operands that its meta functions do not take
        except Exception as error:
            said = _first_lines(str(error))
            raise Unsupported(f"{where}: not read: {type(error).__name__}: {said}") from error

    def _value(self, node: fx.Node, target: str, where: str) -> Any:
        # 1. Sizes are no values: numbers, or multiples of the batch.
        known = node.meta.get("val")
        if isinstance(known, torch.SymInt | int):
            number = size(*(_at(known, batch) for batch in BATCHES))
            return Times(-number) if number < 0 else number
        # 2. Operators that need no reader: parts of a tuple, and modules that are read as a whole.
        args, kwargs = self._resolved(node.args), self._resolved(node.kwargs)
        if target == "getitem":
            return args[0][args[1]]
        if node.target is torch.ops.lambda_gelu.activation.default:
            return Value(self.builder.add(self.whole[args[1]], args[0]))
        if target not in _READERS and torch.Tag.nondeterministic_seeded in getattr(
            node.target, "tags", ()
        ):
            raise Unsupported(
                "is random in evaluation mode, so that the network is no function of its input:"
                " remove it"
            )
        if target not in _READERS:
            raise Unsupported(
                f"no reader for torch's operator {node.target}: write it with others, or ask for it"
            )
        # 3. All others by the table, with the shape that torch found for the result.
        listed = known if isinstance(known, list | tuple) else [known]
        values = [element for element in listed if isinstance(element, torch.Tensor)]
        eps = args[3] if len(args) > 3 else kwargs.get("eps")
        if target == "rms_norm" and eps is None and values[0].dtype == torch.float64:
            raise Unsupported("in float64 its eps is that of the type: give it one")
        call = Call(self.builder, where, *(_described(values[0]) if values else ()))
        return _READERS[target](call, *args, **kwargs)

    def _resolved(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self.found[argument]
        if isinstance(argument, dict):
            return {
                key: self._resolved(element)
                for key, element in argument.items()
                if key not in _OF_MEMORY
            }
        if isinstance(argument, list | tuple):
            return [self._resolved(element) for element in argument]
        return argument


# Where and how a result lies in memory.
_OF_MEMORY = ("device", "layout", "memory_format", "pin_memory", "implicit", "non_blocking", "copy")


def _at(value: Any, batch: int) -> int:
    if isinstance(value, int):
        return value
    # torch's sizes are expressions in the batch: only k times the batch has a place in a shape.
    expression = value.node.expr
    factor, symbol = expression.as_coeff_Mul()
    if expression.free_symbols and not (symbol.is_Symbol and factor.is_Integer):
        raise Unsupported(
            f"it computes with the size {expression}, which is no multiple of the batch"
        )
    return int(expression.subs(dict.fromkeys(expression.free_symbols, batch)))


def _described(value: torch.Tensor) -> tuple[Shape, torch.dtype]:
    sizes = ([_at(extent, batch) for extent in value.shape] for batch in BATCHES)
    return shape(*sizes), kind_of(value.dtype)


def _path(node: fx.Node) -> str:
    """The dotted path of the module in whose forward the operator is; "" for the network's own."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return re.sub(r"^L\['self'\]\.?", "", path)
