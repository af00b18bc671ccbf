"""A typed graph written in the few kinds of nodes whose bounds are known, an operation at a
time.

`Writer` goes through the graph and keeps, for each value, one of three things: a tensor that
depends on the input, a constant, or a tensor with -inf among its entries (`Padded`). What an
operation becomes is said by the rules in `of_graph`; moves, masks and folded constants are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any, NoReturn

import numpy as np
import torch

from lambda_gelu.activations import Activation
from netverify.graph import Affine, Convex, Node, Operation, Pointwise, Product
from netverify.linear import Dense, Linear, Same, Scale, Select
from netverify.rules import Arithmetic
from opgraph import operations as typed
from opgraph.call import guarded
from opgraph.errors import Unsupported
from opgraph.graph import Graph as TypedGraph
from opgraph.graph import Node as TypedNode
from opgraph.moving import Expand, Pad, Positions, Reshape, Transpose
from opgraph.sizes import at


@dataclass(frozen=True, slots=True)
class Tensor:
    """Stands for what depends on the input: a value of the network, and its shape in the graph."""

    value: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Padded:
    """A tensor with -inf around or among its entries, as only a maximum and a softmax take it.

    `index` has of each entry the number in `inner`, and -1 for -inf.
    """

    inner: Tensor
    index: torch.Tensor


Known = Tensor | torch.Tensor
Rule = Callable[..., Tensor | Padded]


class Writer(Arithmetic[Tensor]):
    """Writes operation after operation; those that compute by `rules`, of the writer, the operation
    and what is given.

    `check` is called before each; what it raises ends the writing. `computed` allows hardnesses
    that were computed in float64.
    """

    bounds = "sound bounds"

    def __init__(
        self,
        graph: TypedGraph,
        rules: dict[type, Rule],
        check: Callable[[], None],
        *,
        computed: bool = False,
    ) -> None:
        self.graph, self.nodes, self._computed_too = graph, list[Node](), computed
        self._rules, self._check = rules, check
        self.found: list[Known | Padded] = []
        self._name = self._where = ""

    def run(self) -> tuple[list[Node], Tensor]:
        """The nodes, and the output. Raises Unsupported, with the name of the node."""
        for node in self.graph.nodes:
            self._check()
            self._name, kind = (
                node.name,
                "constant" if isinstance(node.operation, typed.Constant) else "node",
            )
            self._where = f"{kind} {node.name!r}"
            with guarded(self._where):
                self.found.append(self._written(node))
        output = self.found[self.graph.output]
        if not isinstance(output, Tensor):
            raise Unsupported("the output does not depend on the input")
        return self.nodes, output

    def refuse(self, why: str) -> NoReturn:
        """Raise Unsupported; its text is the name of the node that is being written, then `why`."""
        raise Unsupported(f"{self._where}: {why}")

    def append(self, operation: Operation, shape: tuple[int, ...], *operands: Tensor) -> Tensor:
        """A new node of what is given, with the shape of what it computes."""
        self.nodes.append(
            Node(self._name, operation, tuple(tensor.value for tensor in operands), prod(shape))
        )
        return Tensor(len(self.nodes), shape)

    def affine(
        self,
        operand: Tensor,
        map_: Linear,
        shape: tuple[int, ...],
        bias: torch.Tensor | None = None,
    ) -> Tensor:
        """A new affine node of one tensor; `bias` is broadcast."""
        flat = torch.zeros(prod(shape)) if bias is None else bias.expand(shape).flatten()
        return self.append(Affine((map_,), flat.double()), shape, operand)

    def shifted(self, operand: Tensor, constant: torch.Tensor, sign: int = 1) -> Tensor:
        """One node with that before, where that has no bias. To add to 0 is exact, and one node
        is faster.
        """
        bias = sign * constant
        node = self.nodes[operand.value - 1] if operand.value else None
        if node and isinstance(node.operation, Affine) and not bool(node.operation.bias.any()):
            module = replace(node.operation, bias=bias.expand(operand.shape).flatten().double())
            self.nodes.append(replace(node, name=self._name, operation=module))
            return Tensor(len(self.nodes), operand.shape)
        return self.affine(operand, Same(), operand.shape, bias)

    def _written(self, node: TypedNode) -> Known | Padded:
        operation: Any = node.operation
        allowed = self._computed_too and isinstance(operation, typed.Pointwise)
        if not allowed and (why := inexact(operation)):
            self.refuse(why)
        if isinstance(operation, typed.Input):
            return Tensor(0, at(node.shape, 1))
        if isinstance(operation, typed.Constant):
            return (
                operation.value.double() if operation.value.is_floating_point() else operation.value
            )
        if isinstance(operation, typed.MaxPool | typed.Softmax) and isinstance(
            self.found[node.sources[0]], Padded
        ):
            return self._rules[type(operation)](self, operation, self.found[node.sources[0]])
        masked = any(isinstance(self.found[source], Padded) for source in node.sources)
        return self._masked(node) if masked else self._of_operands(node)

    def _of_operands(self, node: TypedNode) -> Known | Padded:
        operation: Any = node.operation
        operands = [self.known(source) for source in node.sources]
        if isinstance(operation, typed.Where) and isinstance(operands[0], torch.Tensor):
            return self._chosen(operation, operands)
        finite = all(
            bool(operand.isfinite().all())
            for operand in operands
            if isinstance(operand, torch.Tensor)
        )
        if not (finite or operation.moves or isinstance(operation, typed.Sum)):
            self.refuse("takes an infinite constant")
        if isinstance(operation, Positions):
            return torch.arange(operation.times)
        if isinstance(operation, Expand | Reshape):
            # The batch is known: it is one.
            operation, operands = replace(operation, shape=at(operation.shape, 1)), operands[:1]
        # What depends on the input gets a node, and all else is computed now.
        constants = [operand for operand in operands if isinstance(operand, torch.Tensor)]
        return (
            self._computed(operation, operands)
            if len(constants) < len(operands)
            else self._folded(operation, constants)
        )

    def _computed(self, operation: Any, operands: list[Known]) -> Known | Padded:
        if (
            isinstance(operation, Pad)
            and operation.value == -inf
            and isinstance(operands[0], Tensor)
        ):
            return Padded(operands[0], replace(operation, value=-1.0)(numbers(operands[0].shape)))
        if operation.moves:
            return self.moved(operation, *operands)
        if type(operation) not in self._rules:
            self.refuse(
                f"no sound bounds of {getattr(operation, 'name', type(operation).__name__)}"
            )
        return self._rules[type(operation)](
            self, typed.converted(operation, torch.float64), *operands
        )

    def _folded(self, operation: Any, constants: list[torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = typed.converted(operation, torch.float64)(*constants)
        if result.is_floating_point() and not (
            operation.moves or isinstance(operation, typed.Where)
        ):
            self.refuse("takes constants alone, whose rounded result would be none of the network")
        if not (bool(result.isfinite().all()) or operation.moves):
            self.refuse("its numbers are NaN or infinite, as of a mask")
        return result

    def _chosen(self, operation: typed.Where, operands: list[Known]) -> Known | Padded:
        """Write a Where with a constant condition. What is chosen of a constant may be -inf, as of
        a mask.
        """
        constants = [known for known in operands if isinstance(known, torch.Tensor)]
        if len(constants) == len(operands):
            return operation(*constants)
        plain = [
            torch.zeros(known.shape).double() if isinstance(known, Tensor) else known
            for known in operands
        ]
        # 1. Where the chosen constant is -inf, whatever the values are; without any, it is a plain
        # move.
        masked = operation(*plain) == -inf
        if not bool(masked.any()):
            return self.moved(operation, *operands)
        # 2. All other entries must be those of one value, which then is padded with -inf.
        tensors = [known for known in operands if isinstance(known, Tensor)]
        index = operation(*(_marked(known, own=True) for known in operands))
        if len(tensors) > 1 or not torch.equal(masked, index < 0):
            self.refuse("chooses between entries, -inf and other numbers")
        return Padded(tensors[0], index)

    def _masked(self, node: TypedNode) -> Padded:
        """Return what moves, chooses or adds to scores that are masked before: 0 in the place of
        -inf, which is put back.
        """
        operation: Any = node.operation
        sources = node.sources
        if isinstance(operation, Expand | Reshape):
            operation, sources = replace(operation, shape=at(operation.shape, 1)), sources[:1]
        # 1. Only these keep a mask what it is.
        single = operation.moves and len(sources) == 1
        added = isinstance(operation, typed.Sum) and min(operation.signs) > 0
        if not (single or added or isinstance(operation, typed.Where)):
            self.refuse("takes what is padded, or masked, with -inf")
        # 2. Split each operand into where it is -inf, and numbers elsewhere, with 0 in its place.
        masks, operands = list[torch.Tensor](), list[Known]()
        for operand in map(self.found.__getitem__, sources):
            if isinstance(operand, Padded):
                masks.append(operand.index < 0)
                flat, shape = operand.index.flatten().long(), tuple(operand.index.shape)
                operands.append(
                    self.affine(operand.inner, Select(flat, prod(operand.inner.shape)), shape)
                )
            else:
                masks.append(torch.zeros(operand.shape, dtype=torch.bool))
                operands.append(operand)
        # 3. Apply the operation to the numbers, and to the masks: moved and chosen alike, and for
        # sums the union, as what is added to -inf stays that.
        if isinstance(operation, typed.Where):
            if not isinstance(operands[0], torch.Tensor):
                self.refuse("chooses by what depends on the input")
            mask, result = operation(operands[0], *masks[1:]), self._chosen(operation, operands)
        elif single:
            mask, result = operation(masks[0].double()) > 0, self.moved(operation, *operands)
        else:
            mask = masks[0]
            for operand in masks[1:]:
                mask = mask | operand
            result = self._rules[typed.Sum](self, operation, *operands)
        # 4. Put -inf back.
        if isinstance(result, Padded):
            return Padded(result.inner, result.index.masked_fill(mask, -1.0))
        assert isinstance(result, Tensor)
        return Padded(result, numbers(result.shape).masked_fill(mask, -1.0))

    def known(self, source: int) -> Known:
        """Return what was written of a value that is not padded or masked."""
        value = self.found[source]
        assert not isinstance(value, Padded)
        return value

    def moved(self, operation: Any, *operands: Known) -> Tensor:
        """Write an operation that only moves entries, by the same moves of their numbers, -1 for
        all that is none of them.
        """
        numbered = replace(operation, value=-1.0) if isinstance(operation, Pad) else operation
        # 1. Each operand's map chooses its entries; constants and padding are the bias.
        maps, shape = list[Select](), tuple[int, ...]()
        for place, operand in enumerate(operands):
            if isinstance(operand, Tensor):
                marked = [_marked(other, number == place) for number, other in enumerate(operands)]
                index = numbered(*marked)
                shape = tuple(index.shape)
                maps.append(Select(index.flatten().long(), prod(operand.shape)))
        bias = operation(
            *(
                torch.zeros(known.shape).double() if isinstance(known, Tensor) else known
                for known in operands
            )
        )
        if not bool(bias.isfinite().all()):
            self.refuse("pads with infinity")
        # 2. Where all entries stay in their order, the value is the same, and no node is needed.
        (first, *more), tensors = maps, [known for known in operands if isinstance(known, Tensor)]
        if (
            torch.equal(first.index, torch.arange(first.inputs))
            and not more
            and not bool(bias.any())
        ):
            return Tensor(tensors[0].value, shape)
        return self.append(Affine(tuple(maps), bias.flatten()), shape, *tensors)

    def along_last(
        self, operand: Tensor, axes: tuple[int, ...], then: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """`then` of (groups, entries), the entries those along the axes; back in place, where it
        keeps their number.
        """
        # Move the axes behind all others and make them one; the way back is the inverse order.
        rest = [axis for axis in range(len(operand.shape)) if axis not in axes]
        order = (*rest, *axes)
        rows = self.moved(Transpose(order), operand)
        result = then(self.moved(Reshape((prod(operand.shape[axis] for axis in rest), -1)), rows))
        if result.shape[1] == 1 != prod(operand.shape[axis] for axis in axes):
            return result
        back = tuple(sorted(range(len(order)), key=order.__getitem__))
        return self.moved(Transpose(back), self.moved(Reshape(rows.shape), result))

    def dense(
        self, operand: Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> Tensor:
        """The operand (..., inputs) times the transpose of `weight` (outputs, inputs), plus
        `bias`: (..., outputs).
        """
        shape = (*operand.shape[:-1], len(weight))
        return self.affine(operand, Dense(weight.double(), prod(operand.shape[:-1])), shape, bias)

    def repeated(self, operand: Tensor, shape: tuple[int, ...]) -> Linear:
        """The choice of entries that broadcasts."""
        if prod(operand.shape) == prod(shape):
            return Same()
        return Select(numbers(operand.shape).expand(shape).flatten().long(), prod(operand.shape))

    def convex(self, operand: Tensor, name: str) -> Tensor:
        return self.append(Convex(name), operand.shape, operand)

    def curve(self, operand: Tensor, traits: Activation) -> Tensor:
        return self.append(Pointwise(traits), operand.shape, operand)

    def product(self, operand: Tensor, other: Tensor, most: float = inf) -> Tensor:
        """The product, entry by entry, known to be of magnitudes up to `most`."""
        if operand == other:
            return self.convex(operand, "square")
        shape = tuple(np.broadcast_shapes(operand.shape, other.shape))
        return self.append(
            Product(self.repeated(operand, shape), self.repeated(other, shape), most),
            shape,
            operand,
            other,
        )

    def scaled(
        self,
        operand: Tensor,
        factor: torch.Tensor,
        terms: int = 2,
        of: tuple[torch.Tensor, ...] = (),
    ) -> Tensor:
        shape = tuple(np.broadcast_shapes(operand.shape, factor.shape))
        operand = (
            self.affine(operand, self.repeated(operand, shape), shape)
            if prod(operand.shape) < prod(shape)
            else operand
        )
        return self.affine(
            operand, Scale(factor.double().expand(shape).flatten(), terms, of), shape
        )


def inexact(operation: typed.Operation) -> str:
    """Why the numbers of an operation are none that float32 gives; "" where they are."""
    weights = [value for value in vars(operation).values() if isinstance(value, torch.Tensor)]
    constant = isinstance(operation, typed.Constant)
    if isinstance(operation, typed.Constant):
        rounded = not operation.exact
    else:
        rounded = any(weight.dtype == torch.float64 for weight in weights)
    if rounded:
        return "its numbers are computed from others, and rounded"
    finite = all(
        bool((weight.isfinite() | (constant & (weight == -inf))).all()) for weight in weights
    )
    return "" if finite else "has values that are NaN or infinite"


def numbers(shape: tuple[int, ...]) -> torch.Tensor:
    """The flat number of each entry, float64, which a move keeps exactly."""
    return torch.arange(prod(shape), dtype=torch.float64).reshape(shape)


def _marked(known: Known, own: bool) -> torch.Tensor:
    if isinstance(known, Tensor):
        return numbers(known.shape) if own else torch.full(known.shape, -1.0, dtype=torch.float64)
    # Integers say where, all else is none of the entries.
    return torch.full_like(known, -1.0) if known.is_floating_point() else known
