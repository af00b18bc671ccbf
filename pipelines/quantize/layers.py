"""A network as the list of its layers, in the order in which they run, BatchNorm folded."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from evalsuite import Unsupported, census

Named = tuple[str, nn.Module]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_NOTHING_TO_DO = (nn.Identity, nn.Dropout)


class Reshape(nn.Module):
    """Flattens to (batch, features).

    ONNX Runtime fuses an integer Gemm behind a Reshape, but not behind the Flatten that nn.Flatten becomes.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, ...) to (batch, features)."""
        return x.reshape(-1, self.features)


class _Tracer(fx.Tracer):
    """Keeps activations whole: a quantizer in the midst of one would quantize something else in every variant."""

    def __init__(self, activations: set[nn.Module]) -> None:
        super().__init__()
        self._activations = activations

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether to keep `m` as one layer."""
        return m in self._activations or super().is_leaf_module(m, module_qualified_name)


def layers(module: nn.Module, input_shape: tuple[int, ...]) -> list[Named]:
    """Copies of the layers of `module`, each with a name that no other has.

    Raises:
        Unsupported: it cannot be traced, its layers do not follow one another, or a BatchNorm has nothing to fold into.
    """
    copied = copy.deepcopy(module).eval()
    try:
        # The root itself may be one leaf, which only a parent lets the tracer see.
        root = nn.Sequential(copied)
        graph = _Tracer({found.module for found in census(copied)}).trace(root)
    except Exception as error:  # torch.fx raises many types, and whatever `forward` raises on a symbolic value
        raise Unsupported(f"torch.fx cannot trace {type(module).__name__}: {error}") from error
    traced = fx.GraphModule(root, graph)
    ShapeProp(traced).propagate(torch.zeros(1, *input_shape))
    return _fold_norms([layer for node in _chain(graph) if (layer := _layer(traced, node))])


def _chain(graph: fx.Graph) -> list[fx.Node]:
    """The nodes between input and output, if each feeds exactly the next one."""
    nodes = list(graph.nodes)
    for before, after in pairwise(nodes):
        if after.all_input_nodes != [before] or len(before.users) != 1:
            raise Unsupported(
                "only networks whose layers follow one another are quantized; "
                f"{before.name!r} does not feed {after.name!r} alone, or not it only"
            )
    return nodes[1:-1]


def _layer(traced: fx.GraphModule, node: fx.Node) -> Named | None:
    if node.op != "call_module":
        raise Unsupported(f"{node.name!r} is a function called in `forward`; only modules are quantized")
    layer = traced.get_submodule(str(node.target))
    if isinstance(layer, _NOTHING_TO_DO):
        return None
    if isinstance(layer, nn.Flatten):
        shape = node.meta["tensor_meta"].shape
        if len(shape) != 2 or layer.start_dim != 1:
            raise Unsupported(f"{node.name!r}: only flattening to (batch, features) is quantized, not {tuple(shape)}")
        layer = Reshape(shape[1])
    return node.name.removeprefix("_0").strip("_"), copy.deepcopy(layer)


def _fold_norms(found: list[Named]) -> list[Named]:
    folded: list[Named] = []
    for name, layer in found:
        if not isinstance(layer, _NORMS):
            folded.append((name, layer))
            continue
        before = folded[-1] if folded else None
        if before is not None and isinstance(before[1], (nn.Conv1d, nn.Conv2d)):
            folded[-1] = (before[0], fuse_conv_bn_eval(before[1], layer))
        elif before is not None and isinstance(before[1], nn.Linear):
            folded[-1] = (before[0], fuse_linear_bn_eval(before[1], layer))
        else:
            raise Unsupported(f"{name!r}: no linear or convolutional layer before this BatchNorm to fold it into")
    return folded
