"""GPT-2's `Conv1D` is a linear layer that keeps its weight transposed: as `nn.Linear`, every
tool knows it.
"""

from __future__ import annotations

import copy
import sys

from torch import nn

from evalsuite import Unsupported


def conv1d_to_linear(module: nn.Module) -> nn.Module:
    """A copy of `module` in which each `transformers.pytorch_utils.Conv1D` is an nn.Linear that
    computes the same.

    Paths, the mode and `requires_grad` stay, and weights that are shared stay shared. The weights
    of what was a Conv1D are transposed, so its state dict no longer fits the original.

    Raises:
        Unsupported: a weight is shared between a Conv1D and another layer, which needs it the other
            way round.
    """
    module = copy.deepcopy(module)
    library = sys.modules.get("transformers.pytorch_utils")
    if library is None:  # never imported: there can be no instance
        return module
    paths = {
        path: layer
        for path, layer in module.named_modules(remove_duplicate=False)
        if type(layer) is library.Conv1D  # a subclass may compute something else
    }
    _check_not_shared(module, paths)
    # Layers and weights that occur at several paths are converted once, so that they stay shared.
    weights: dict[int, nn.Parameter] = {}
    linears: dict[int, nn.Linear] = {}
    for path, layer in paths.items():
        if id(layer) not in linears:
            linears[id(layer)] = _linear(layer, weights)
        if not path:
            return linears[id(layer)]
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, linears[id(layer)])
    return module


def _check_not_shared(module: nn.Module, paths: dict[str, nn.Module]) -> None:
    transposed = {id(layer.weight): path for path, layer in paths.items()}
    for path, layer in module.named_modules():
        for name, weight in layer.named_parameters(recurse=False):
            if id(weight) in transposed and (path not in paths or name != "weight"):
                raise Unsupported(
                    f"{transposed[id(weight)]}: a Conv1D whose weight is also"
                    f" {f'{path}.{name}'.strip('.')}; give each a weight of its own first"
                )


def _linear(layer: nn.Module, weights: dict[int, nn.Parameter]) -> nn.Linear:
    """`weights`: id of a Conv1D's weight -> the transposed one, so that layers which shared it
    share it again.
    """
    weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
    # On the meta device nothing is drawn from the caller's random generator.
    linear = nn.Linear(weight.shape[0], weight.shape[1], device="meta")
    if id(weight) not in weights:
        weights[id(weight)] = nn.Parameter(
            weight.detach().t().contiguous(), requires_grad=weight.requires_grad
        )
    linear.weight = weights[id(weight)]
    linear.bias = bias
    return linear.train(layer.training)
