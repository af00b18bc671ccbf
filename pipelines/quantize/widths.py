"""Which tensors of an integer-only transformer have 16 bits: those that norms, softmax, sums and
other elementwise arithmetic read. Products of matrices read 8.

So do I-BERT (arXiv 2101.01321) and I-ViT (arXiv 2207.01405): a residual stream of 8 bits loses what
the layers add to it, as few of its features reach much farther than all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import fx, nn
from torch.nn import functional

from opgraph import operations as ops
from pipelines.quantize.kinds import FLOAT_COMPUTE, is_activation, is_pool, keeps_grid
from pipelines.quantize.tracing import Add, Reshape, layer_of

WIDE_BITS = 16
_SOFTMAX = (nn.Softmax, ops.Softmax)
_NORMS = (nn.LayerNorm, nn.RMSNorm, ops.LayerNorm, ops.RMSNorm)


def has_attention_or_norms(traced: fx.GraphModule) -> bool:
    """Whether norms over features or softmax are computed: a convolutional network has none."""
    return any(
        node.target is functional.scaled_dot_product_attention
        or isinstance(_kind(traced, node), (*_SOFTMAX, *_NORMS))
        for node in traced.graph.nodes
    )


class Widths:
    """How many bits the tensors of a traced network need between its operations on integers.

    Args:
        traced: the float network.
    """

    def __init__(self, traced: fx.GraphModule) -> None:
        self._traced = traced
        self._wide: dict[fx.Node, bool] = {}

    def wide(self, node: fx.Node) -> bool:
        """Whether something reads the tensor that `node` makes at 16 bits."""
        if node not in self._wide:
            origin = self._origin(node)
            self._wide[node] = self.wide(origin) if origin is not node else self._read_wide(node)
        return self._wide[node]

    def multiplied(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """Return what a node multiplies as matrices, but for the weights of a softmax: these get
        their 8 bits before they are divided by their sum.
        """
        if node.target is functional.scaled_dot_product_attention:
            return tuple(node.args[:3])  # type: ignore[arg-type]
        if not isinstance(_kind(self._traced, node), ops.MatMul):
            return ()
        return tuple(
            source
            for source in node.all_input_nodes
            if not isinstance(_kind(self._traced, source), _SOFTMAX)
        )

    def multiplied_on_its_grid(self, node: fx.Node) -> bool:
        """Whether an operand of such a product was put on a grid of 8 bits before it was moved."""
        origin = self._origin(node)
        return origin is not node and not self.wide(origin)

    def _origin(self, node: fx.Node) -> fx.Node:
        """The integers that a node only moves, all of them; itself where it does something else."""
        origin = node
        while self._moves(origin):
            origin = origin.all_input_nodes[0]
        return node if self._in_float(origin) else origin

    def _read_wide(self, node: fx.Node) -> bool:
        if node.op in ("placeholder", "get_attr", "output"):
            return False
        layer = layer_of(self._traced, node)
        if layer is not None and (is_activation(layer) or is_pool(layer)):
            return False  # a table makes 8 bits, and so does what reads 8 bits and averages
        return any(self._takes_wide(user, source) for user, source in self._readers(node))

    def _readers(self, node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Return what reads the tensor, and as which node: of integers also through moves of
        all.
        """
        for user in node.users:
            if self._moves(user) and not self._in_float(node):
                yield from self._readers_behind(user)
            else:
                yield user, node

    def _readers_behind(self, node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
        for user in node.users:
            if self._moves(user):
                yield from self._readers_behind(user)
            else:
                yield user, node

    def _takes_wide(self, user: fx.Node, source: fx.Node) -> bool:
        layer = layer_of(self._traced, user)
        if isinstance(layer, Add):
            return True
        if isinstance(layer, Reshape):
            return self.wide(user)
        if not self._in_float(user) or user.op == "output":
            return False
        # Parts in float pass real numbers on to one another.
        return not self._in_float(source, through=True) and source not in self.multiplied(user)

    def _in_float(self, node: fx.Node, *, through: bool = False) -> bool:
        """Whether the fake-quantized network computes the node in float; `through` what it moves
        tells.
        """
        while through and self._moves(node):
            node = node.all_input_nodes[0]
        layer = layer_of(self._traced, node)
        if node.op in ("placeholder", "output"):
            return False
        if layer is None:
            return True
        return not (
            isinstance(layer, (Add, *FLOAT_COMPUTE))
            or keeps_grid(layer)
            or is_pool(layer)
            or is_activation(layer)
        )

    def _moves(self, node: fx.Node) -> bool:
        """Whether the node moves all entries of one tensor, and does nothing else."""
        sources = node.all_input_nodes
        if len(sources) != 1 or sources[0].op == "get_attr":
            return False
        if node.target is not torch.reshape and not getattr(
            _kind(self._traced, node), "moves", False
        ):
            return False
        shapes = (math.prod(source.meta["shape"][1:]) for source in (node, sources[0]))
        return len(set(shapes)) == 1


def _kind(traced: fx.GraphModule, node: fx.Node) -> object:
    """The layer that a node calls, or its operation where torch has no layer for it."""
    layer = layer_of(traced, node)
    return getattr(layer, "operation", layer)
