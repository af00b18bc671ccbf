"""What of a network can be bounded, and the copy of it that auto_LiRPA is given."""

from __future__ import annotations

import copy

from torch import nn

from evalsuite import GELU, Found, Unsupported, census, replace
from pipelines.bounds.adapter import Engine, Gelu

_LAYERS = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU,
    nn.Flatten, nn.Identity, nn.MaxPool2d,
    nn.AvgPool2d, nn.AdaptiveAvgPool2d, Gelu,
)  # fmt: skip


def prepared(module: nn.Module) -> nn.Module:
    """A float64 copy: GELUs as `Gelu`, no Dropout, BatchNorm folded into the convolution before it.

    Folding spares bound propagation an operator whose input bounds it would compute for nothing.
    """
    ready = copy.deepcopy(module).double().eval()
    if census(ready):
        ready = replace(ready, stand_in)
    for parent in list(ready.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, (nn.Dropout, nn.Dropout1d, nn.Dropout2d)):
                setattr(parent, name, nn.Identity())
        if isinstance(parent, nn.Sequential):
            _fold_norms(parent)
        elif isinstance(parent, nn.Linear) and "bias" not in dict(parent.named_parameters()):
            # With a bias it is traced as one operator, without as a product that could be of two activations.
            parent.bias = nn.Parameter(parent.weight.new_zeros(parent.out_features))
    return ready.requires_grad_(False).eval()


def stand_in(found: Found) -> nn.Module:
    """What auto_LiRPA is given for an activation. Raises Unsupported for one without sound lines here."""
    if found.traits.name == "relu":
        return found.module
    if found.traits.value is not GELU.value:
        raise Unsupported(f"no sound bounds for the activation {found.traits.name}")
    return Gelu(found.traits.hardness(found.module))


def _fold_norms(sequence: nn.Sequential) -> None:
    for index in range(1, len(sequence)):
        layer, norm = sequence[index - 1], sequence[index]
        if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            sequence[index - 1] = nn.utils.fuse_conv_bn_eval(layer, norm)
            sequence[index] = nn.Identity()


def refuse_values(module: nn.Module) -> None:
    """Raise Unsupported where a weight is NaN or infinite, or a norm's are those of the batch."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not bool(tensor.isfinite().all()):
            raise Unsupported(f"{name} has values that are not finite")
    for each in module.modules():
        if isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d)) and each.running_mean is None:
            raise Unsupported(f"{type(each).__name__} without running statistics normalises by its batch")


def plain_windows(module: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Whether convolutions may propagate as patches. Raises Unsupported, naming what has no trustworthy bounds."""
    unknown = {
        type(each).__name__ if list(each.children()) else str(each)
        for each in module.modules()
        if type(each).__module__.startswith("torch.nn") and type(each) not in _LAYERS
    }
    if unknown:
        raise Unsupported(f"no sound bounds for {', '.join(sorted(unknown))}")
    try:
        found = Engine.survey(module, input_shape)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise Unsupported(f"the network could not be traced: {(str(error).splitlines() or [''])[0]}") from error
    if found.refused:
        raise Unsupported(f"no sound bounds for {', '.join(found.refused)}")
    chain = all(isinstance(each, nn.Sequential) for each in module.modules() if list(each.children()))
    return chain and found.plain
