"""Which activations a network contains as modules, and where; and replacing them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from lambda_gelu.activations.recognition import Recognised, known, recognise_module
from lambda_gelu.activations.traits import Activation


@dataclass(frozen=True, slots=True)
class Found:
    """An activation module of a network: its dotted path, the module and its traits."""

    path: str
    module: nn.Module
    traits: Activation


def identify(module: nn.Module, *, gates: bool = False) -> Recognised | None:
    """Return what `module` computes, by its type or, for a third party's module without parameters,
    by its values.

    Rows that are gates (`Activation.gate`) are known by the type alone, and only with `gates`.

    The hardness is the fixed one of such a module (x sigmoid(3 x) is SiLU at 3); one that is learnt
    is not told here, see `Activation.hardness`.
    """
    traits = next((row for row in known() if row.matches(module)), None)
    if traits is None:
        return recognise_module(module)
    return Recognised(traits) if gates or not traits.gate else None


def census(network: nn.Module, *, gates: bool = False) -> list[Found]:
    """Every module of `network` that computes a known activation, in registration order, shared
    modules once.

    Modules are known by their type or, if they are a third party's and have no parameters, by their
    values: the activations of Hugging Face are found. One that computes a row at another fixed
    hardness than 1 is not reported, since its traits would not speak for it. The rows of sigmoid,
    tanh and the like are reported with `gates`, as most such modules are gates, poolers or
    probabilities. Activations called as functions inside `forward` are not modules: `census_of_run`
    finds them, and `expose` makes modules of them.
    """
    activations = []
    for path, module in network.named_modules():
        recognised = identify(module, gates=gates)
        if recognised is not None and recognised.hardness == 1:
            activations.append(Found(path, module, recognised.traits))
    return activations


_STAYS = "_stays_as_it_is"


def let_stay(activation: nn.Module) -> None:
    """Mark an activation, and its copies, as the architecture's own, which no treatment
    replaces.
    """
    vars(activation)[_STAYS] = True


def stays(activation: nn.Module) -> bool:
    """Whether it is marked by `let_stay`."""
    return _STAYS in vars(activation)


def staying(network: nn.Module) -> list[str]:
    """The paths of the activations that stay."""
    return [path for path, layer in network.named_modules() if stays(layer)]


def built_with(network: nn.Module) -> list[Found]:
    """The activations that a network is built with: those like ReLU, else clips such as ReLU6, else
    gates.

    Gates and clips beside the activations are the architecture's own, and so are those marked by
    `let_stay`.
    """
    every = [use for use in census(network, gates=True) if not stays(use.module)]
    counted = [activation for activation in every if not activation.traits.gate]
    return [activation for activation in counted if activation.traits.swaps] or counted or every


def replace(network: nn.Module, make: Callable[[Found], nn.Module]) -> nn.Module:
    """A copy of `network` in which `make(found)` stands in each activation's place.

    Transformer layers of torch are told of their new activation, so that their fused path in
    evaluation mode is taken for ReLU and GELU alone.

    Raises:
        ValueError: the network contains no known activation.
    """
    changed = duplicate(network)
    activations = census(changed)
    if not activations:
        raise ValueError(
            f"no known activation found in {type(network).__name__}: its modules were looked at;"
            " for activations that are called as functions or written by hand, first"
            " expose(network, example)"
        )
    return substitute(
        changed, {id(activation.module): make(activation) for activation in activations}
    )


def made_like(network: nn.Module, activation: nn.Module) -> nn.Module:
    """The activation where the network's parameters are, as precise and in the same mode."""
    like = next(
        (parameter for parameter in network.parameters() if parameter.is_floating_point()),
        torch.zeros(()),
    )
    return activation.to(like.device, like.dtype).train(network.training)


def duplicate(network: nn.Module) -> nn.Module:
    """A deep copy that computes what `network` computes.

    copy.deepcopy makes ReLU the activation of an nn.TransformerDecoderLayer that was given a module
    for it: its __setstate__ takes a module for a missing attribute. Nor does it copy what is kept
    of a pass (`kept_of_a_pass`).
    """
    kept = {id(tensor): tensor.detach().clone() for _, _, tensor in kept_of_a_pass(network)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of how it copies a traced module
        copied = copy.deepcopy(network, kept)
    for original, layer in zip(network.modules(), copied.modules(), strict=True):
        if isinstance(original, nn.TransformerDecoderLayer) and "activation" not in vars(original):
            vars(layer).pop("activation", None)
    return copied


def kept_of_a_pass(network: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """The attributes that modules keep of a pass with gradients, as torch.nn.utils.weight_norm
    keeps the weight.
    """
    kept_tensors = [
        (layer, name, value) for layer in network.modules() for name, value in vars(layer).items()
    ]
    return [
        (layer, name, value)
        for layer, name, value in kept_tensors
        if isinstance(value, torch.Tensor) and not value.is_leaf
    ]


def substitute(network: nn.Module, replacement: Mapping[int, nn.Module]) -> nn.Module:
    """`network` itself, in which each module whose id is a key has given way to the value,
    wherever it is used.
    """
    if id(network) in replacement:
        return replacement[id(network)]
    for parent in list(network.modules()):
        # named_children() gives a shared module once
        for name, child in list(parent._modules.items()):
            if id(child) in replacement:
                setattr(parent, name, replacement[id(child)])
    settle_transformers(network)
    return network


def settle_transformers(network: nn.Module) -> None:
    """Tell torch's transformer layers which activation they have.

    In evaluation mode nn.TransformerEncoderLayer computes a fused layer by the number in
    `activation_relu_or_gelu` (1 ReLU, 2 exact GELU, 0 neither: no fused layer) and does not call
    its activation; and nn.TransformerEncoder packs padded batches into nested tensors, which only
    the fused layer takes. nn.TransformerDecoderLayer gets its activation as an attribute beside the
    child module, so that plain copies keep it (see `duplicate`).
    """
    # 1. A decoder layer reads its activation as an attribute.
    for layer in network.modules():
        if isinstance(layer, nn.TransformerDecoderLayer) and "activation" in layer._modules:
            vars(layer).setdefault("activation", layer._modules["activation"])
    # 2. The flag by which an encoder layer takes its fused path must tell the activation that it
    # has now, or evaluation would compute the one that it had before.
    for layer in network.modules():
        if isinstance(layer, nn.TransformerEncoderLayer) and isinstance(
            layer.activation, nn.Module
        ):
            recognised = identify(layer.activation)
            name = (
                recognised.traits.name
                if recognised is not None and recognised.hardness == 1
                else ""
            )
            layer.activation_relu_or_gelu = {"relu": 1, "gelu": 2}.get(name, 0)
    # 3. Nested tensors are for encoders all of whose layers are fused.
    for encoder in network.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            fused = [getattr(layer, "activation_relu_or_gelu", 0) for layer in encoder.layers]
            encoder.use_nested_tensor = encoder.use_nested_tensor and all(fused)
