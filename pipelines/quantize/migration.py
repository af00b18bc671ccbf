"""Moving what is hard to quantize from activations to weights: a factor for each feature.

SmoothQuant, arXiv 2211.10438, eq. 3 and 4: X W = (X / s) (s W), with
s_j = max |X_j|^a / max |W_j|^(1 - a) for feature j and the strength a. Where only the layers in
question read it, the norm that makes X takes the division in, and so does a linear layer, also with
ReLU behind it; elsewhere a multiplication stands before the quantizer.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx, nn

from opgraph.inputs import Inputs
from pipelines.quantize.readers import Readers
from pipelines.quantize.tracing import layer_of

# A feature that is never seen, or that no weight reads, keeps its scale: it lies below this share
# of the greatest.
_LEAST = 1e-5


class Scaled(nn.Module):
    """The product with a constant for each feature, the last dimension."""

    factor: torch.Tensor

    def __init__(self, factor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("factor", factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply (..., features) by the factors, (features,)."""
        return x * self.factor


def migratable(traced: fx.GraphModule, readers: Readers) -> dict[fx.Node, list[fx.Node]]:
    """Tensors of real numbers whose integer readers are linear layers alone, with these layers."""
    groups = {}
    for node in traced.graph.nodes:
        users = [user for user in node.users if readers.reads_integers(user)]
        linear = all(isinstance(layer_of(traced, user), nn.Linear) for user in users)
        if users and linear and not readers.written(node) and node.op != "placeholder":
            groups[node] = users
    return groups


@torch.no_grad()
def migrate(
    traced: fx.GraphModule, readers: Readers, inputs: Inputs, strength: float
) -> fx.GraphModule:
    """Scale each feature of what linear layers read, and their weights, so that the layers make the
    same of it but for rounding; `traced` stays as it is.

    Args:
        traced: the float network.
        readers: of `traced`.
        inputs: a batch of calibration inputs, which shows how great each feature becomes.
        strength: the share of the range's unevenness that goes into the weights, in (0, 1).
    """
    groups = migratable(traced, readers)
    greatest = _greatest_features(traced, groups, inputs)
    migrated = copy.deepcopy(traced)
    copies = {node.name: node for node in migrated.graph.nodes}
    # All that read one tensor share a factor: their weights take it up, and what makes the tensor
    # gives it off, or an operation behind that where others read it too.
    for node, users in groups.items():
        layers = [_linear(migrated, user) for user in users]
        factor = _factors(greatest[node], layers, strength)
        for layer in layers:
            layer.weight.mul_(factor)
        maker = _maker(migrated, copies[node.name]) if len(users) == len(node.users) else None
        if maker is not None:
            maker.weight.div_(factor.view(-1, *[1] * (maker.weight.ndim - 1)))
            if maker.bias is not None:
                maker.bias.div_(factor)
        else:
            _insert(migrated, copies[node.name], [copies[user.name] for user in users], 1 / factor)
    migrated.recompile()
    return migrated


def _linear(migrated: fx.GraphModule, node: fx.Node) -> nn.Linear:
    layer = layer_of(migrated, node)
    assert isinstance(layer, nn.Linear)
    return layer


def _maker(migrated: fx.GraphModule, node: fx.Node) -> nn.LayerNorm | nn.Linear | None:
    """The layer whose weights scale each feature of what `node` makes, if there is one."""
    layer = layer_of(migrated, node)
    if isinstance(layer, nn.ReLU):  # max(0, x / s) = max(0, x) / s
        (source,) = node.all_input_nodes
        making = layer_of(migrated, source)
        return making if isinstance(making, nn.Linear) and len(source.users) == 1 else None
    if isinstance(layer, nn.Linear) or (
        isinstance(layer, nn.LayerNorm) and layer.elementwise_affine
    ):
        return layer
    return None


def _factors(seen: torch.Tensor, layers: list[nn.Linear], strength: float) -> torch.Tensor:
    """Compute the factor that divides each feature and multiplies its weights, (features,)."""
    read = torch.stack([layer.weight.abs().amax(0) for layer in layers]).amax(0)
    known = (seen > _LEAST * seen.max()) & (read > _LEAST * read.max())
    if not bool(known.any()):
        return torch.ones_like(seen)
    factor = seen[known] ** strength / read[known] ** (1 - strength)
    factors = torch.ones_like(seen)
    # The mean factor is 1: features that keep their scale lie among the others.
    factors[known] = factor / factor.log().mean().exp()
    return factors


def _insert(
    migrated: fx.GraphModule, node: fx.Node, users: list[fx.Node], factor: torch.Tensor
) -> None:
    name = f"migrated_{node.name}"
    while hasattr(migrated, name):
        name = f"{name}_"
    migrated.add_module(name, Scaled(factor))
    with migrated.graph.inserting_after(node):
        scaled = migrated.graph.call_module(name, (node,))
    scaled.meta["shape"] = node.meta["shape"]
    for user in users:
        user.replace_input_with(node, scaled)


def _greatest_features(
    traced: fx.GraphModule, nodes: dict[fx.Node, list[fx.Node]], inputs: Inputs
) -> dict[fx.Node, torch.Tensor]:
    """The greatest magnitude of each feature, the last dimension, of what `nodes` make."""
    seen = {}

    class Watching(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            result = super().run_node(node)
            if node in nodes:
                seen[node] = result.abs().flatten(0, -2).amax(0)
            return result

    watching = Watching(traced)
    watching.extra_traceback = False  # else torch.fx adds its own lines to the text of every error
    watching.run(inputs)
    return seen
