"""Hidden layers behind a norm, as in transformers: two linear layers with an activation between, in
any network.

What a LayerNorm gives before its weight lies in a ball, whatever it is given: d entries whose sum
is 0, and whose squares sum up to less than d. So what a linear layer makes of it has bounds in
closed form, by Cauchy and Schwarz, that hold for every input of the network: of text as of
pictures.
"""

from __future__ import annotations

import copy
from collections import Counter
from fractions import Fraction
from math import inf

import torch
from torch import fx, nn

from evalsuite import Unsupported
from lambda_gelu import RELU, census
from netverify.certificate import UnitBounds
from opgraph import operations as op
from opgraph.graph import Graph
from opgraph.inputs import Inputs
from opgraph.modules import written
from opgraph.reading import captured, compare
from pipelines.prune.exact.layers import Hidden, Layers
from pipelines.prune.exact.questions import fractions

_NO_UNITS = "no activation stands between two linear layers alone: no units to remove"
_ROUNDED = 64 * torch.finfo(torch.float64).eps


def read_behind_norms(
    module: nn.Module, example: Inputs, graph: Graph | None = None
) -> tuple[Layers, list[UnitBounds]]:
    """The hidden layers of a network that is no chain, and bounds of what activations take:
    infinite without a norm.

    Args:
        module: the network.
        example: a batch of real inputs.
        graph: of the module, where it was captured before; it is compared here.

    Raises:
        Unsupported: the network cannot be read, or no activation stands between two linear layers.
    """
    # Where the graph has no such place, it need not be compared with the network, nor written as
    # modules: both take longer than to capture it.
    known = captured(module, example) if graph is None else graph
    if not _has_units(known):
        raise Unsupported(_NO_UNITS)
    compare(known, copy.deepcopy(module).eval(), example)
    nodes = [node for node in written(known, example).graph.nodes if node.op == "call_module"]
    times = Counter(str(node.target) for node in nodes)
    relu = {use.path: use.traits.name == RELU.name for use in census(module)}
    hidden, bounds, kept_whole = list[Hidden](), list[UnitBounds](), dict[str, str]()
    for node in nodes:
        path = str(node.target)
        if path not in relu:
            continue
        # 1. The units of an activation can go if it stands between two linear layers alone.
        found = _around(module, node, times)
        if isinstance(found, str):
            kept_whole[path] = found
            continue
        (producer, layer), consumer = found
        # 2. A norm before the layer bounds what it is given for every input of the network; without
        # a norm nothing does.
        norm = _norm_before(module, producer)
        anything = [
            torch.full((1, layer.out_features), end, dtype=torch.float64) for end in (-inf, inf)
        ]
        name, reached = ("", anything) if norm is None else (norm[0], _reached(norm[1], layer))
        shape, place = (layer.out_features,), (str(producer.target), str(consumer.target))
        hidden.append(
            Hidden(
                len(bounds),
                place[0],
                (),
                path,
                relu[path],
                (),
                place[1],
                shape,
                plain=True,
                norm=name,
            )
        )
        bounds.append(UnitBounds(path, *reached))
    if not hidden:
        raise Unsupported(_NO_UNITS)
    return Layers(hidden, kept_whole, sum(each.units for each in hidden), chain=False), bounds


def _has_units(graph: Graph) -> bool:
    """Whether some activation takes what a linear layer gives, and a linear layer takes it."""
    users = graph.users()
    return any(
        isinstance(node.operation, op.Pointwise)
        and isinstance(graph.nodes[node.sources[0]].operation, op.Linear)
        and any(isinstance(graph.nodes[user].operation, op.Linear) for user in users[at])
        for at, node in enumerate(graph.nodes)
    )


def _layer(module: nn.Module, node: object) -> nn.Module | None:
    """The network's own module that a node applies; None where it is none."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    return dict(module.named_modules()).get(str(node.target))


def _around(
    module: nn.Module, node: fx.Node, times: Counter[str]
) -> tuple[tuple[fx.Node, nn.Linear], fx.Node] | str:
    """The linear layer before an activation, and the one behind it, or why its units stay."""
    before, after = node.args[0], next(iter(node.users))
    producer, consumer = _layer(module, before), _layer(module, after)
    layer = module.get_submodule(str(node.target))
    if any(parameter.numel() > 1 for parameter in [*layer.parameters(), *layer.buffers()]):
        return "its activation has parameters per channel"
    if (
        not isinstance(before, fx.Node)
        or type(producer) is not nn.Linear
        or type(consumer) is not nn.Linear
    ):
        return "it does not stand between two linear layers"
    if len(before.users) > 1 or len(node.users) > 1:
        return "something else takes its units too"
    if any(times[str(each.target)] > 1 for each in (before, node, after)):
        return "its layers are applied more than once"
    owned = [id(value) for each in module.modules() for value in each._parameters.values()]
    if any(
        owned.count(id(value)) > 1 for each in (producer, consumer) for value in each.parameters()
    ):
        return "its layers share parameters with others"
    return (before, producer), after


def _norm_before(module: nn.Module, linear: fx.Node) -> tuple[str, nn.LayerNorm] | None:
    """The LayerNorm of single vectors that a linear layer takes the output of, and its path."""
    node = linear.args[0]
    norm = _layer(module, node)
    if not isinstance(node, fx.Node) or type(norm) is not nn.LayerNorm:
        return None
    return (str(node.target), norm) if len(norm.normalized_shape) == 1 and norm.eps > 0 else None


def _numbers(norm: nn.LayerNorm, linear: nn.Linear) -> tuple[torch.Tensor, ...]:
    """Weight of the linear layer, scale and shift of the norm, and the layer's offset, in
    float64.
    """
    weight = linear.weight.detach().double()
    count, units = weight.shape[1], len(weight)
    given = (
        (norm.weight, weight.new_ones(count)),
        (norm.bias, weight.new_zeros(count)),
        (linear.bias, weight.new_zeros(units)),
    )
    return weight, *(default if held is None else held.detach().double() for held, default in given)


def _reached(norm: nn.LayerNorm, linear: nn.Linear) -> list[torch.Tensor]:
    """Return what a linear layer makes of a norm's outputs at the least and at the most, each (1,
    units), rounded outward.
    """
    weight, scale, shift, offset = _numbers(norm, linear)
    scaled = weight * scale
    away = (scaled - scaled.mean(1, keepdim=True)).norm(dim=1) * weight.shape[1] ** 0.5
    middle = weight @ shift + offset
    size = scaled.norm(dim=1) * weight.shape[1] + weight.abs() @ shift.abs() + offset.abs()
    lost = _ROUNDED * weight.shape[1] * size
    return [(middle - away - lost)[None], (middle + away + lost)[None]]


def never_positive(norm: nn.LayerNorm, linear: nn.Linear, unit: int) -> bool:
    """Whether a unit of the linear layer is at most 0 for whatever the norm is given, in exact
    arithmetic.
    """
    matrix, *norms, offset = _numbers(norm, linear)
    weight, scale, shift = (fractions(each) for each in (matrix[unit], *norms))
    middle = sum((a * b for a, b in zip(weight, shift, strict=True)), Fraction(offset[unit].item()))
    scaled = [a * b for a, b in zip(weight, scale, strict=True)]
    mean = sum(scaled, Fraction(0)) / len(weight)
    return middle <= 0 and len(weight) * sum((each - mean) ** 2 for each in scaled) <= middle**2
