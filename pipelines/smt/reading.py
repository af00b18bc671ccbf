"""Reading networks exactly, whether they are modules or ONNX files: the layers of both are read
in one way.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import onnx
import torch
from torch import nn

from evalsuite import Network, Property, Unsupported
from lambda_gelu import RELU, Activation, census
from opgraph.layers import FileLayer, in_layers, layers_in_file
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import Affine, Curve, ExactNetwork

_OLDEST = 7  # before it, Gemm and Add had broadcasting rules of their own
_COMPARED = 8
CurveOf = Callable[[str, FileLayer], Curve | None]


def read(network: Network) -> ExactNetwork:
    """The exact weights of a ReLU network, as `read_curved` reads them.

    Raises:
        Unsupported: an activation is no ReLU; else as `read_curved`.
    """
    exact_network = read_curved(network)
    if exact_network.curves:
        names = ", ".join(
            sorted({curve.traits.name for curve in exact_network.curves} - {RELU.name})
        )
        raise Unsupported(f"{names}: only ReLU has an exact encoding in linear arithmetic")
    return exact_network


def read_curved(network: Network) -> ExactNetwork:
    """The network's exact maps, and the rows of its activations at their present hardness; none
    where all are ReLU.

    Flatten, Dropout and Identity vanish, neighbouring affine layers are one.

    Raises:
        Unsupported: a layer is neither affine nor a known scalar activation with sound lines,
            named; or the network computes something else than its layers in order.
    """
    layers = layered(network)
    known = {id(use.module): use.traits for use in census(layers.module, gates=True)}

    def curve_of(path: str, layer: FileLayer) -> Curve | None:
        return (
            _curve(path, known[id(layer)], layer)
            if id(layer) in known and isinstance(layer, nn.Module)
            else None
        )

    module = layers.module
    if type(module) is not nn.Sequential:
        raise Unsupported(f"only nn.Sequential is read exactly, not {type(module).__name__}")
    _refuse_changed(module)
    exact_network = _chained(_layers(module, ""), network.input_shape, curve_of)
    if exact_network.classes != network.classes:
        raise Unsupported(
            f"the output has shape {(exact_network.classes,)}, not {network.classes} logits"
        )
    _check(exact_network, network)
    return exact_network


def read_file(content: bytes) -> ExactNetwork:
    """The exact maps of an ONNX file that is a chain of affine layers and activations.

    Raises:
        Unsupported: the file has other operators, or they are no such chain from its one input to
            its one output.
    """
    model = onnx.load_model_from_string(content)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise Unsupported(f"not a valid ONNX file: {' '.join(str(error).split())[:200]}") from error
    _check_file(model)
    # 1. One input of float32 and of fixed size for each sample, and one output.
    graph, held = model.graph, {tensor.name for tensor in model.graph.initializer}
    inputs = [value_info for value_info in graph.input if value_info.name not in held]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise Unsupported(
            f"{len(inputs)} inputs and {len(graph.output)} outputs; exact reading needs one of each"
        )
    tensor_type = inputs[0].type.tensor_type
    # A free size is 0, and one of 0, of which there is no output, -1.
    batch, *sizes = [
        dimension.dim_value or -dimension.HasField("dim_value")
        for dimension in tensor_type.shape.dim
    ] or [0]
    if (
        tensor_type.elem_type != onnx.TensorProto.FLOAT
        or batch not in (0, 1)
        or not sizes
        or min(sizes) < 1
    ):
        shape = [dimension.dim_param or dimension.dim_value for dimension in tensor_type.shape.dim]
        raise Unsupported(
            f"input '{inputs[0].name}' has shape {shape}; exact reading needs float32 (1, fixed"
            " sizes)"
        )
    # 2. The operators as layers, in their order.
    try:
        return _chained(layers_in_file(model), tuple(sizes), _named)
    except Unsupported as error:
        raise Unsupported(
            f"{error} (evalsuite verify reads more operators, without proofs)"
        ) from error


def layered(network: Network) -> Network:
    """The network as an nn.Sequential of its layers, where its own `forward` calls them one behind
    the other.

    Raises:
        Unsupported: it does something else, named.
    """
    return replace(network, module=in_layers(network.module, network.input_shape))


def _chained(
    layers: Iterable[tuple[str, FileLayer]], shape: tuple[int, ...], curve_of: CurveOf
) -> ExactNetwork:
    maps: list[Affine] = []
    curves: list[Curve] = []
    pending: Affine | None = None
    # Affine layers are composed into `pending` until an activation ends that map.
    for path, layer in layers:
        curve = curve_of(path, layer)
        if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
            shape = (math.prod(shape),)
        elif curve is not None:
            maps.append(pending or _identity(math.prod(shape)))
            curves.append(curve)
            pending = None
        elif isinstance(layer, torch.Tensor):
            first = pending or _identity(math.prod(shape))
            pending = Affine(first.weight, first.bias + _added(path, layer, shape))
        elif type(layer) not in (nn.Dropout, nn.Identity):
            affine = _affine(path, layer, shape)
            pending = affine.after(pending) if pending else affine
            shape = affine.bias.shape
    if len(shape) != 1:
        raise Unsupported(
            f"the output has shape {shape}, and only vectors of logits are read exactly"
        )
    # An exact network without curves is one of ReLU, which has a decision procedure of its own.
    rectified = all(curve == Curve(RELU, 1.0) for curve in curves)
    return ExactNetwork((*maps, pending or _identity(shape[0])), () if rectified else tuple(curves))


def _named(_path: str, layer: FileLayer) -> Curve | None:
    return Curve(*layer) if isinstance(layer, tuple) else None


def _curve(path: str, traits: Activation, module: nn.Module) -> Curve:
    # A census knows subclasses by their ancestors, and others' modules by their values at some
    # points.
    if not traits.matches(module) or type(module) is not type(traits.make(1)):
        raise Unsupported(
            f"layer '{path}' ({type(module).__name__}) is taken for {traits.name}, but not known to"
            " be exactly that"
        )
    try:
        curve = Curve(traits.of(module), float(traits.hardness(module).detach().double()))
        curve.lines(np.array([-1.0]), np.array([1.0]))
    except (Unsupported, ValueError, RuntimeError) as error:
        raise Unsupported(f"layer '{path}' ({type(module).__name__}): {error}") from error
    return curve


@torch.no_grad()
def _check(read: ExactNetwork, network: Network) -> None:
    """Raise Unsupported where the network's own float64 evaluation differs by more than one in
    float32 could.
    """
    module = copy.deepcopy(network.module).double().eval()
    inputs = network.example(_COMPARED).double()
    computed, errors = read.in_float32(inputs.flatten(1).numpy())
    with np.errstate(invalid="ignore"):  # what overflows is not compared
        differs = np.abs(computed - module(inputs).numpy()) > errors
    if differs.any():
        raise Unsupported("the network computes something else than its layers in order")


def _check_file(model: onnx.ModelProto) -> None:
    if model.functions:
        raise Unsupported(f"the file defines functions of its own, as '{model.functions[0].name}'")
    version = max(
        (opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")),
        default=0,
    )
    if version < _OLDEST:
        raise Unsupported(f"operators of version {version}; exact reading needs {_OLDEST} or later")
    for tensor in model.graph.initializer:
        if tensor.data_location or tensor.external_data:
            raise Unsupported(
                f"constant '{tensor.name}' lies outside the file; export with external_data=False,"
                " or write one file by onnx.save(onnx.load(FILE), ONE_FILE)"
            )


@torch.no_grad()
def reach(network: Network, property_: Property) -> float:
    """More than any value, and any partial sum, that a `layered` network's layers compute in the
    box; rough.

    Raises:
        Unsupported: a layer of which no bound is known, named.
    """
    if not isinstance(network.module, nn.Sequential):
        raise Unsupported(f"only nn.Sequential is bounded, not {type(network.module).__name__}")
    known = {id(use.module): use.traits for use in census(network.module, gates=True)}
    # |W| |x| + |b| is at least every output, and every partial sum in whatever order it is taken.
    size = torch.maximum(property_.lower.abs(), property_.upper.abs()).flatten()
    greatest = size.max().item()
    for path, layer in _layers(network.module, ""):
        if isinstance(layer, nn.Linear):
            size = layer.weight.double().abs() @ size
        elif isinstance(layer, nn.BatchNorm1d) and layer.running_mean is not None:
            scale = _scale(layer).abs()
            greatest = max(greatest, scale.max().item())
            size = scale * (size + layer.running_mean.double().abs())
        elif id(layer) in known:
            size = _activated(known[id(layer)], layer, size)
            greatest = max(greatest, size.max().item())
            continue
        elif type(layer) in (nn.Flatten, nn.Dropout, nn.Identity):
            continue
        else:
            raise Unsupported(
                f"layer '{path}' ({type(layer).__name__}): no bound of its values is known"
            )
        size = size if layer.bias is None else size + layer.bias.double().abs()
        greatest = max(greatest, size.max().item())
    return greatest * 1.001


def _activated(traits: Activation, layer: nn.Module, size: torch.Tensor) -> torch.Tensor:
    """A bound of |g(h x) / h| where |x| <= size: the steeper of g's asymptotes, and what g
    exceeds it by near 0.
    """
    near = torch.linspace(-50, 50, 2001, dtype=torch.float64)
    steep = max(abs(limit) for limit in traits.limits)
    above = (traits.value(near).abs() - steep * near.abs()).max().clamp(min=0)
    return steep * size + above / traits.hardness(layer).detach().double().min()


def _refuse_changed(module: nn.Module) -> None:
    """Raise Unsupported where a layer may compute something else than its type and parameters
    say.
    """
    for path, layer in module.named_modules():
        where = f"layer '{path}' ({type(layer).__name__})" if path else "the network"
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise Unsupported(
                f"{where} has forward hooks, and may compute something else than its layer: remove"
                " them"
            )
        if "forward" in vars(layer):
            raise Unsupported(
                f"{where} has a forward of its own, and may compute something else than its layer"
            )


def _layers(module: nn.Sequential, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, layer in module._modules.items():  # named_children() gives a shared layer once
        if type(layer) is nn.Sequential:
            yield from _layers(layer, f"{prefix}{name}.")
        else:
            yield prefix + name, layer


def _identity(size: int) -> Affine:
    return Affine(Dyadic.identity(size), Dyadic.zeros(size))


def _added(path: str, values: torch.Tensor, shape: tuple[int, ...]) -> Dyadic:
    """Return the constant that is added to a sample of any shape, flat; the batch is one."""
    try:
        return _exact(values.expand((1, *shape)).reshape(-1))
    except RuntimeError as error:
        raise Unsupported(
            f"layer '{path}' (Add): numbers of shape {tuple(values.shape)} for {shape}"
        ) from error


def _affine(path: str, layer: FileLayer, shape: tuple[int, ...]) -> Affine:
    kind = type(layer)
    if not isinstance(layer, (nn.Linear, nn.BatchNorm1d)) or kind not in (
        nn.Linear,
        nn.BatchNorm1d,
    ):
        raise Unsupported(f"no exact encoding of layer '{path}' ({kind.__name__})")
    if len(shape) != 1:
        raise Unsupported(
            f"layer '{path}' ({kind.__name__}) acts on shape {shape}; only vectors are read exactly"
        )
    try:
        if isinstance(layer, nn.Linear):
            bias = Dyadic.zeros(layer.out_features) if layer.bias is None else _exact(layer.bias)
            return Affine(_exact(layer.weight), bias)
        if layer.running_mean is None:
            raise Unsupported(
                f"layer '{path}' (BatchNorm1d) normalises by its batch: it is no function of one"
                " input"
            )
        bias = Dyadic.zeros(layer.num_features) if layer.bias is None else _exact(layer.bias)
        scale = _exact(_scale(layer))
        return Affine(
            Dyadic.identity(layer.num_features) * scale, bias - scale * _exact(layer.running_mean)
        )
    except ValueError as error:
        raise Unsupported(f"layer '{path}' ({kind.__name__}): {error}") from error


def _exact(tensor: torch.Tensor) -> Dyadic:
    return Dyadic.of(tensor.detach().double().numpy())


def _scale(layer: nn.BatchNorm1d) -> torch.Tensor:
    """Return what the inputs are multiplied by. It has a square root: its float64 value is taken
    for the exact one.
    """
    assert layer.running_var is not None
    factor = (layer.running_var.double() + layer.eps).rsqrt()
    return factor if layer.weight is None else factor * layer.weight.detach().double()
