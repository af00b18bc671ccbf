"""A network as a graph of layers, BatchNorm folded: what quantizers are placed in."""

from __future__ import annotations

import copy
import math
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp, TensorMetadata
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from evalsuite import Inputs, Unsupported, census, in_modules, mapped

_ADAPTIVE_1D = (nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)
ADAPTIVE = (*_ADAPTIVE_1D, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_NOTHING_TO_DO = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_FLATTENINGS = (torch.flatten, torch.reshape, "flatten", "view", "reshape")
_RECTIFIERS = (torch.relu, functional.relu, torch.relu_, "relu", "relu_")
_MEANS = (torch.mean, "mean")
_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
_RESERVED = ("quantize_", "value_")  # how the quantizers of a network are named
_VALUES = 2**28  # of all tensors of a batch: 1 GiB of float32
_NEAR = 1e-3  # of the greatest output: far above what folding a norm rounds, far below another computation's error


class Reshape(nn.Module):
    """Flattens to (batch, features).

    ONNX Runtime fuses an integer Gemm behind a Reshape, but not behind the Flatten that nn.Flatten becomes.
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


class _Tracer(fx.Tracer):
    """Keeps activations whole: a quantizer in the midst of one would quantize something else in every variant."""

    def __init__(self, activations: set[nn.Module]) -> None:
        super().__init__()
        self._activations = activations

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether to keep `m` as one layer."""
        return m in self._activations or super().is_leaf_module(m, module_qualified_name)


def trace(module: nn.Module, input_shape: tuple[int, ...], example: Inputs | None = None) -> fx.GraphModule:
    """A copy of `module` as a graph: of layers, each called once, and of the functions for which there is no layer.

    Additions of two tensors, flattening to (batch, features), ReLU, GELU and the mean over all pixels become modules
    where they are functions in `forward`; dropout is left out, BatchNorm folded into the layer before it. Each layer
    is named by its path. Every node has its shape for a batch of one in `meta["shape"]`, () if it is no tensor; a
    placeholder says in `meta["real"]` whether it takes real numbers. What torch.fx cannot trace is read by
    torch.export (`in_modules`).

    Args:
        module: called with one argument, the batch.
        input_shape: of one input of real numbers.
        example: a batch, where the inputs are tokens or several.

    Raises:
        Unsupported: it cannot be traced, or the graph does not compute what the module does.
    """
    for path, layer in module.named_modules():
        # Dropout is left out, BatchNorm folded, and a layer rewritten: what hangs on them would be lost.
        if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
            raise Unsupported(
                f"{path or 'the network'} ({type(layer).__name__}) has forward hooks, or a forward of its own, and may "
                "compute something else than its layer: remove them"
            )
        if isinstance(layer, _NORMS) and layer.running_mean is None:
            raise Unsupported(f"{path} norms by the statistics of its batch; give it track_running_stats=True")
    copied = copy.deepcopy(module).eval()
    traced, root = _traced(copied, input_shape) if example is None else (in_modules(copied, example), "")
    sizes = torch.zeros(1, *input_shape) if example is None else example
    ShapeProp(traced).propagate(_rows(sizes, 2))
    of_two = {node: _shape(node) for node in traced.graph.nodes}
    ShapeProp(traced).propagate(_rows(sizes, 1))
    per_sample = {node for node in traced.graph.nodes if of_two[node] == (2, *_shape(node)[1:])}
    normalised = _Normaliser(traced, per_sample, root).run()
    _fold_norms(normalised)
    _keep_positions(normalised, sizes)
    normalised.graph.eliminate_dead_code()
    normalised.delete_all_unused_submodules()
    normalised.recompile()
    random = torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(0))
    _check_same(copied, normalised, random if example is None else example)
    return normalised


def at_a_time(traced: fx.GraphModule, most: int) -> int:
    """How many samples to run at a time: `most`, or fewer where the tensors are large: some callers keep all."""
    values: int = sum(math.prod(node.meta.get("shape", ())) for node in traced.graph.nodes)
    return max(1, min(most, _VALUES // values))


def _rows(inputs: Inputs, batch: int) -> Inputs:
    """So many samples of a batch, which may be smaller."""
    return mapped(inputs, lambda each: each[torch.arange(batch) % len(each)])


def _traced(module: nn.Module, input_shape: tuple[int, ...]) -> tuple[fx.GraphModule, str]:
    """The graph of `module` by torch.fx, or, where that cannot follow its forward, by torch.export; its path in it.

    Raises:
        Unsupported: neither can.
    """
    try:
        # The root itself may be one leaf, which only a parent lets the tracer see.
        root = nn.Sequential(module)
        graph = _Tracer({found.module for found in census(module, gates=True)}).trace(root)
        return fx.GraphModule(root, graph), "0"
    except Exception as error:  # torch.fx raises many types, and whatever `forward` raises on a symbolic value
        said = f"torch.fx cannot trace {type(module).__name__}: {error}"
    try:
        return in_modules(module, torch.rand((2, *input_shape), generator=torch.Generator().manual_seed(0))), ""
    except Unsupported as error:
        raise Unsupported(f"{said}; nor is it read otherwise: {error}") from error


@torch.no_grad()
def _check_same(module: nn.Module, traced: fx.GraphModule, inputs: Inputs) -> None:
    """Raise Unsupported unless both give the same on these inputs."""
    with torch.random.fork_rng(devices=[]):
        wanted, made = (each(mapped(inputs, torch.Tensor.clone)) for each in (module, traced))
    if not isinstance(wanted, torch.Tensor) or not bool(torch.isfinite(wanted).all()):
        return
    limit = _NEAR * wanted.abs().max().item()
    if made.shape != wanted.shape:
        raise Unsupported(f"the graph of {type(module).__name__} gives {tuple(made.shape)}, not {tuple(wanted.shape)}")
    if not torch.allclose(made, wanted, rtol=0.0, atol=limit, equal_nan=True):
        raise Unsupported(
            f"the graph of {type(module).__name__} computes something else, up to {(made - wanted).abs().max():.3g} off"
            f" where the outputs reach {wanted.abs().max():.3g}: a tensor that is changed in place and read under"
            " another name, or a random choice? Write it without"
        )


def layer_of(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    """The module that a node calls; None if it calls none."""
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


class _Normaliser:
    """Writes the graph anew: each call of a module gets a module and a name of its own."""

    def __init__(self, traced: fx.GraphModule, per_sample: set[fx.Node], root: str) -> None:
        self._traced, self._per_sample, self._root = traced, per_sample, root
        self._graph = fx.Graph()
        self._new: dict[fx.Node, fx.Node] = {}
        self._owned: dict[str, Any] = {}

    def run(self) -> fx.GraphModule:
        for node in self._traced.graph.nodes:
            self._new[node] = made = self._write(node)
            if _changes_its_input(node, layer_of(self._traced, node)):
                self._new[node.all_input_nodes[0]] = made  # what reads it from here on reads the changed tensor
        return fx.GraphModule(self._owned, self._graph)

    def _write(self, node: fx.Node) -> fx.Node:
        shape = _shape(node)
        layer = layer_of(self._traced, node)
        if isinstance(layer, _NOTHING_TO_DO) or node.target is functional.dropout:
            return self._new[node.all_input_nodes[0]]
        if layer is not None:
            if isinstance(layer, nn.Flatten) and len(shape) == 2 and layer.start_dim == 1:
                layer = Reshape(shape[1])
            path = str(node.target).removeprefix(self._root).strip(".") or type(layer).__name__.lower()
            args, kwargs = fx.map_arg((node.args, node.kwargs), self._new.__getitem__)
            return self._call(layer, path, args, kwargs, shape)
        if _keeps_shape(node, self._per_sample):
            return self._new[node.all_input_nodes[0]]
        layers = _layers_for(node, self._per_sample)
        if layers:
            # Others than additions read one tensor, and perhaps sizes, which they do not need.
            read = node.args if isinstance(layers[0], Add) else node.all_input_nodes[:1]
            args = tuple(self._new[each] for each in read if isinstance(each, fx.Node))
            for layer in layers[:-1]:
                args = (self._call(layer, node.name, args, {}, (*_shape(node.all_input_nodes[0])[:2], 1, 1)),)
            return self._call(layers[-1], node.name, args, {}, shape)
        copied = self._graph.node_copy(node, self._new.__getitem__)
        if node.op == "get_attr":
            name = self._free(str(node.target))
            self._owned[name], copied.target = operator.attrgetter(str(node.target))(self._traced), name
        copied.meta["shape"] = shape
        if node.op == "placeholder":
            found = node.meta["tensor_meta"]
            copied.meta["real"] = isinstance(found, TensorMetadata) and found.dtype.is_floating_point
        return copied

    def _call(self, layer: nn.Module, path: str, args: Any, kwargs: Any, shape: tuple[int, ...]) -> fx.Node:
        reserved = path == "input" or path.startswith(_RESERVED) or not path[:1].isalpha()
        name = self._free(f"layer_{path}" if reserved else path)
        self._owned[name] = own = copy.deepcopy(layer)
        if getattr(own, "inplace", False):
            setattr(own, "inplace", False)  # noqa: B010 - who reads its input behind it is given the result by `run`
        if isinstance(own, ADAPTIVE) and shape:  # None, for as many as there are, is no size that exporters take
            own.output_size = shape[-1:] if isinstance(own, _ADAPTIVE_1D) else shape[-2:]  # type: ignore[assignment]
        called = self._graph.call_module(name, args, kwargs)
        called.meta["shape"] = shape
        return called

    def _free(self, path: str) -> str:
        name = path.replace(".", "_")
        return next(each for i in range(10**6) if (each := f"{name}_{i}" if i else name) not in self._owned)


def _shape(node: fx.Node) -> tuple[int, ...]:
    found = node.meta.get("tensor_meta")
    return tuple(found.shape) if isinstance(found, TensorMetadata) else ()


def _changes_its_input(node: fx.Node, layer: nn.Module | None) -> bool:
    """Whether it writes its result over its first input too."""
    if layer is not None:
        return bool(getattr(layer, "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    if node.kwargs.get("inplace") or (node.target in (functional.relu, functional.relu6) and node.args[1:] == (True,)):
        return True
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    # torch ends the names of what works in place with "_", Python those of and_, or_, not_, is_.
    ours = getattr(node.target, "__module__", "") != operator.and_.__module__
    return node.target in _IN_PLACE or (ours and name.endswith("_") and not name.endswith("__"))


def _keeps_shape(node: fx.Node, per_sample: set[fx.Node]) -> bool:
    """Whether it reshapes to the shape that there is, which is nothing."""
    if node.target not in _FLATTENINGS or not node.all_input_nodes:
        return False
    source = node.all_input_nodes[0]
    return _shape(node) == _shape(source) != () and per_sample.issuperset((node, source))


def _layers_for(node: fx.Node, per_sample: set[fx.Node]) -> list[nn.Module]:
    """The layers that do what a function called in `forward` does; empty if there are none."""
    if node.op not in ("call_function", "call_method") or not node.all_input_nodes:
        return []
    shape, source = _shape(node), _shape(node.all_input_nodes[0])
    found: list[nn.Module] = []
    if node.target in _ADDITIONS:
        found = [Add()] if _adds_two_tensors(node, per_sample) else []
    elif node.target in _RECTIFIERS:
        found = [nn.ReLU()]
    elif node.target is functional.relu6:
        found = [nn.ReLU6()]
    elif node.target is functional.gelu:
        found = [nn.GELU(str(node.kwargs.get("approximate", "none")))]
    elif node.target in _FLATTENINGS:
        flat = len(source) > 2 and shape == (1, math.prod(source)) and node in per_sample
        found = [Reshape(shape[1])] if flat else []
    elif node.target in _MEANS and _mean_dimensions(node) == {2, 3}:
        found = [nn.AdaptiveAvgPool2d(1), Reshape(shape[1])] if len(shape) == 2 else [nn.AdaptiveAvgPool2d(1)]
    return found


def _adds_two_tensors(node: fx.Node, per_sample: set[fx.Node]) -> bool:
    """Of one shape, and both different for each sample: a constant is no residual."""
    terms = [each for each in node.args if isinstance(each, fx.Node)]
    alike = {_shape(each) for each in terms} == {_shape(node)} != {()}
    return len(terms) == len(node.args) == 2 and not node.kwargs and alike and per_sample.issuperset(terms)


def _mean_dimensions(node: fx.Node) -> set[int]:
    """Those that it reduces, of a tensor of four; empty for what is no plain mean over some of them."""
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dimensions = [given] if isinstance(given, int) else given
    plain = len(_shape(node.all_input_nodes[0])) == 4 and node.kwargs.get("dtype") is None
    if not plain or not isinstance(dimensions, (list, tuple)) or not all(isinstance(each, int) for each in dimensions):
        return set()
    return {each % 4 for each in dimensions if isinstance(each, int)}


def _fold_norms(traced: fx.GraphModule) -> None:
    """Fold each BatchNorm into the only layer that it follows, in place; one that follows none stays a float layer."""
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
            if not norm.affine and norm.running_mean is not None:  # torch folds such a norm into convolutions only
                norm.weight, norm.bias = (nn.Parameter(torch.full_like(norm.running_mean, each)) for each in (1.0, 0.0))
            setattr(traced, str(before.target), fuse_linear_bn_eval(layer, norm))
        else:
            continue
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)


def _keep_positions(traced: fx.GraphModule, sizes: Inputs) -> None:
    """Give linear layers (batch, positions, features) where they are given (batch x positions, features), in place.

    GPT-2's layers flatten what they are given and unflatten what they make; a linear layer takes the last dimension of
    any tensor, and the first counts the samples then.
    """
    flattened = [
        (node, node.all_input_nodes[0])
        for node in traced.graph.nodes
        if isinstance(layer_of(traced, node), nn.Linear) and _is_reshape(node.all_input_nodes[0])
    ]
    if not flattened:
        return
    ShapeProp(traced).propagate(_rows(sizes, 2))
    of_two = {node: _shape(node) for node in traced.graph.nodes}
    for node, flat in flattened:
        users, features = list(node.users), flat.meta["shape"][-1]
        shape: tuple[int, ...] = users[0].meta["shape"] if users else ()
        apart = (
            len(shape) > 2
            and shape[0] == 1
            and shape[-1] == node.meta["shape"][-1]
            and all(_is_reshape(user) and of_two[user] == (2, *shape[1:]) for user in users)
        )
        if not apart or len(flat.users) > 1 or flat.meta["shape"] != (math.prod(shape[:-1]), features):
            continue
        flat.args, flat.meta["shape"] = (flat.args[0], (-1, *shape[1:-1], features)), (*shape[:-1], features)
        node.meta["shape"] = shape
        for user in users:
            user.replace_all_uses_with(node)
            traced.graph.erase_node(user)


def _is_reshape(node: fx.Node) -> bool:
    return node.target is torch.reshape and len(node.args) == 2 and not node.kwargs
