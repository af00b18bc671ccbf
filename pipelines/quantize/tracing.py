"""A network as a graph of layers, BatchNorm folded: what quantizers are placed in."""

from __future__ import annotations

import copy
import math
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from evalsuite import Unsupported
from lambda_gelu import census
from opgraph.inputs import Inputs
from opgraph.modules import in_modules
from opgraph.recurrent import refuse_recurrent

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_RESERVED = (
    "quantize_",
    "value_",
    "quantize16_",
    "value16_",
)  # how the quantizers of a network are named
_VALUES = 2**28  # of all tensors of a batch: 1 GiB of float32


class Reshape(nn.Module):
    """Flattens to (batch, features).

    ONNX Runtime fuses an integer Gemm behind a Reshape, but not behind the Flatten that nn.Flatten
    becomes.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Flatten (batch, ...) to (batch, features)."""
        return x.reshape(-1, self.features)


class Add(nn.Module):
    """The sum of two tensors of one shape: a residual connection."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Add two tensors (batch, ...), elementwise."""
        return first + second


def trace(
    module: nn.Module, input_shape: tuple[int, ...], example: Inputs | None = None
) -> fx.GraphModule:
    """A copy of `module` as a graph: of layers, each called once, and of the functions for which
    there is no layer.

    It is read as `in_modules` does, with each activation as one layer. Additions of two tensors and
    flattening to (batch, features) become modules, BatchNorm is folded into the layer before it.
    Each layer is named by its path. Every node has its shape for a batch of one in `meta["shape"]`,
    () if it is no tensor; a placeholder says in `meta["real"]` whether it takes real numbers.

    Args:
        module: called with one argument, the batch.
        input_shape: of one input of real numbers.
        example: a batch, where the inputs are tokens or several.

    Raises:
        Unsupported: it cannot be read, or something hangs on a layer that its graph would lose.
    """
    refuse_recurrent(module, "quantized")
    for path, layer in module.named_modules():
        # An activation is taken as it is, BatchNorm folded, and a layer rewritten: what hangs on
        # them would be lost.
        if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
            raise Unsupported(
                f"{path or 'the network'} ({type(layer).__name__}) has forward hooks, or a forward"
                " of its own, and may compute something else than its layer: remove them"
            )
        if isinstance(layer, _NORMS) and layer.running_mean is None:
            raise Unsupported(
                f"{path} norms by the statistics of its batch; give it track_running_stats=True"
            )
    if example is None:
        example = torch.rand((2, *input_shape), generator=torch.Generator().manual_seed(0))
    # 1. Read the graph, and write it anew with a module for every call.
    read = in_modules(module, example, whole=_activations(module))
    real = isinstance(example, torch.Tensor) and example.is_floating_point()
    normalised = _normalised(read, real)
    # 2. Fold norms into layers, keep the positions of samples apart, and drop what nothing uses.
    _fold_norms(normalised)
    _keep_positions(normalised)
    normalised.graph.eliminate_dead_code()
    normalised.delete_all_unused_submodules()
    normalised.recompile()
    for node in normalised.graph.nodes:
        node.meta["shape"] = tuple(map(abs, node.meta.get("shape", ())))
    return normalised


def _activations(module: nn.Module) -> list[nn.Module]:
    """Return the modules that are traced as one layer: activations that the table of activations
    has, and torch's others. A quantizer in the midst of one would quantize something else in each.
    """
    known = [use.module for use in census(module, gates=True)]
    layers = [
        layer
        for layer in module.modules()
        if type(layer).__module__ == "torch.nn.modules.activation"
    ]
    return known + [
        layer for layer in layers if not isinstance(layer, nn.GLU) and not list(layer.children())
    ]


def at_a_time(traced: fx.GraphModule, most: int) -> int:
    """How many samples to run at a time: `most`, or fewer where the tensors are large: some
    callers keep all.
    """
    values: int = sum(math.prod(node.meta.get("shape", ())) for node in traced.graph.nodes)
    return max(1, min(most, _VALUES // values))


def layer_of(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    """The module that a node calls; None if it calls none."""
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


def _normalised(read: fx.GraphModule, real: bool) -> fx.GraphModule:
    """The graph written anew: each call of a module gets a module and a name of its own."""
    graph, owned, new = fx.Graph(), dict[str, Any](), dict[fx.Node, fx.Node]()
    layers = {node: _layer(read, node) for node in read.graph.nodes}
    kinds: dict[str, set[Any]] = {}
    for node, layer in layers.items():
        kinds.setdefault(node.meta.get("path", ""), set()).add(type(layer))

    def free(path: str) -> str:
        name = path.replace(".", "_")
        if name == "input" or name.startswith(_RESERVED) or not name[:1].isalpha():
            name = f"layer_{name.lstrip('_')}"
        return next(
            candidate
            for number in range(10**6)
            if (candidate := f"{name}_{number}" if number else name) not in owned
        )

    for node, layer in layers.items():
        if layer is not None:
            # By the path, where one kind of layer is called there, once or more, and nothing else.
            path, named = (
                node.meta.get("path", ""),
                str(node.target) if node.op == "call_module" else node.name,
            )
            name = free(path if path and len(kinds[path]) == 1 else named)
            owned[name] = copy.deepcopy(layer)
            sources = node.args[:1] if node.target is torch.reshape else node.args
            normalised = graph.call_module(name, fx.map_arg(sources, new.__getitem__))
        else:
            normalised = graph.node_copy(node, new.__getitem__)
            if node.op == "get_attr":
                normalised.target = free(str(node.target))
                owned[normalised.target] = operator.attrgetter(str(node.target))(read)
            normalised.meta["real"] = real
        normalised.meta["shape"] = node.meta.get("shape", ())
        new[node] = normalised
    return fx.GraphModule(owned, graph)


def _layer(read: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    """The layer that a node calls, or the one that does the same; None where there is none."""
    layer, shape = layer_of(read, node), node.meta.get("shape", ())
    operands = [
        argument.meta.get("shape", ()) for argument in node.args if isinstance(argument, fx.Node)
    ]
    if (
        node.target is operator.add
        and len(operands) == 2
        and operands == [shape] * 2
        and shape[:1] == (-1,)
    ):
        return Add()
    flat = (
        node.target is torch.reshape
        and len(operands[0]) > 2
        and operands[0][0] == -1
        and len(shape) == 2
    )
    if isinstance(layer, nn.Flatten) or (flat and shape[0] == -1):
        return Reshape(shape[1])
    return layer


def _fold_norms(traced: fx.GraphModule) -> None:
    """Fold each BatchNorm into the only layer that it follows, in place; one that follows none
    stays a float layer.
    """
    for node in list(traced.graph.nodes):
        norm = layer_of(traced, node)
        if not isinstance(norm, _NORMS):
            continue
        before = node.all_input_nodes[0]
        layer = layer_of(traced, before)
        if len(before.users) > 1:
            continue
        if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
            setattr(traced, str(before.target), fuse_conv_bn_eval(layer, norm))
        elif isinstance(layer, nn.Linear) and len(node.meta["shape"]) == 2:
            # torch folds such a norm into convolutions only
            if not norm.affine and norm.running_mean is not None:
                norm.weight, norm.bias = (
                    nn.Parameter(torch.full_like(norm.running_mean, value)) for value in (1.0, 0.0)
                )
            setattr(traced, str(before.target), fuse_linear_bn_eval(layer, norm))
        else:
            continue
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)


def _keep_positions(traced: fx.GraphModule) -> None:
    """Give linear layers (batch, positions, features) where they are given (batch x positions,
    features), in place.

    GPT-2's layers flatten what they are given and unflatten what they make; a linear layer takes
    the last dimension of any tensor, and the first counts the samples then.
    """
    for node in list(traced.graph.nodes):
        flat = node.all_input_nodes[0] if isinstance(layer_of(traced, node), nn.Linear) else None
        if flat is None or flat.target is not torch.reshape:
            continue
        # What may go: a reshape to (batch x positions, features) before the layer, which nothing
        # else reads, and behind it only reshapes back.
        users, features = list(node.users), flat.meta["shape"][-1]
        shape: tuple[int, ...] = users[0].meta["shape"] if users else ()
        if (
            len(shape) <= 2
            or shape[0] != -1
            or shape[-1] != node.meta["shape"][-1]
            or any(
                user.target is not torch.reshape or user.meta["shape"] != shape for user in users
            )
            or len(flat.users) > 1
            or flat.meta["shape"] != (-math.prod(shape[1:-1]), features)
        ):
            continue
        # Flatten to (batch, positions, features) only; then the reshapes behind have nothing to do.
        flat.args, flat.meta["shape"] = (
            (flat.args[0], (-1, *shape[1:-1], features)),
            (*shape[:-1], features),
        )
        node.meta["shape"] = shape
        for user in users:
            user.replace_all_uses_with(node)
            traced.graph.erase_node(user)
