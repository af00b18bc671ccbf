"""What of a network can be bounded, the copy of it that auto_LiRPA is given, and what its activations are called."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from evalsuite import SOFTPLUS, Activation, Found, Unsupported, census, clip
from pipelines.bounds.curved import Shape
from pipelines.bounds.own import Own
from pipelines.bounds.survey import changed

_LAYERS = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU,
    nn.Flatten, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip


def activations(module: nn.Module) -> list[Found]:
    """The activations of a network as modules: those of a census, gates, and any clip; shared modules once."""
    found = census(module, gates=True)
    counted = {id(each.module) for each in found}
    for path, each in module.named_modules():
        if id(each) in counted:
            continue
        if isinstance(each, nn.Softplus):
            found.append(Found(path, each, SOFTPLUS))
        elif isinstance(each, nn.Hardtanh):
            found.append(Found(path, each, clip(float(each.min_val), float(each.max_val))))
    return found


def _is_softplus(row: Activation, module: nn.Module) -> bool:
    # The row's own test is for its formula as it stands: without a threshold, and with beta = 1.
    return row.name == "softplus" and isinstance(module, nn.Softplus)


def prepared(module: nn.Module) -> nn.Module:
    """A float64 copy: curved activations as `Own`, no Dropout, BatchNorm folded into the convolution before it.

    Folding spares bound propagation an operator whose input bounds it would compute for nothing.

    Raises:
        Unsupported: an activation or a layer has no sound bounds here; by its path and type.
    """
    ready = with_stand_ins(copy.deepcopy(module).double().eval(), stand_in)
    _refuse_layers(ready)
    for parent in list(ready.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (nn.Dropout, nn.Dropout1d, nn.Dropout2d) and not changed(child):
                setattr(parent, name, nn.Identity())
        if type(parent) is nn.Sequential:
            _fold_norms(parent)
        elif isinstance(parent, nn.Linear) and "bias" not in dict(parent.named_parameters()):
            # With a bias it is traced as one operator, without as a product that could be of two activations.
            parent.bias = nn.Parameter(parent.weight.new_zeros(parent.out_features))
    return ready.requires_grad_(False).eval()


def with_stand_ins(module: nn.Module, make: Callable[[Found], nn.Module]) -> nn.Module:
    """`module` itself, with `make(found)` in the place of each activation."""
    stands = {id(each.module): make(each) for each in activations(module)}
    if id(module) in stands:
        return stands[id(module)]
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # a shared module under each of its names
            if id(child) in stands:
                setattr(parent, name, stands[id(child)])
    return module


def stand_in(found: Found) -> nn.Module:
    """What auto_LiRPA is given for an activation. Raises Unsupported for one without sound lines here."""
    if found.traits.name == "relu":
        return found.module
    try:
        return Own(shape_of(found))
    except ValueError as error:
        raise Unsupported(f"no sound bounds for {found.path} ({type(found.module).__name__}): {error}") from error


def shape_of(found: Found) -> Shape:
    """The shape of an activation module at its present parameters. Raises ValueError where there is no single row."""
    _refuse_more_than_the_row(found)
    if isinstance(found.module, nn.Softplus):
        beta = float(found.module.beta)
        return Shape(found.traits, (beta,), threshold=float(found.module.threshold) / beta)
    traits = found.traits.of(found.module)
    hardness = tuple(float(each) for each in traits.hardness(found.module).detach().double().flatten())
    return Shape(traits, hardness)


def _refuse_more_than_the_row(found: Found) -> None:
    """Raise ValueError where the module may compute something else than its row, which stands in its place.

    A proof can't rest on the samples by which a census knows others' modules, nor on what a subclass inherits.
    """
    module, row = found.module, found.traits
    cure = f"put {type(row.make(1)).__name__} there, or the operations themselves"
    if not (row.matches(module) or _is_softplus(row, module)):
        raise ValueError(f"it is known as {row.name} by its values at some points only; {cure}")
    if _has_its_own_forward(module, row):
        raise ValueError(f"it is a {row.name} with a forward of its own; {cure}")
    if module._forward_hooks or module._forward_pre_hooks:
        raise ValueError("it has forward hooks; remove them")


def _has_its_own_forward(module: nn.Module, row: Activation) -> bool:
    def owner(kind: type) -> type:
        return next(each for each in kind.__mro__ if "forward" in vars(each))

    known = owner(type(module)).__module__.split(".")[0] in ("torch", "evalsuite")
    return "forward" in vars(module) or not (known or owner(type(module)) is owner(type(row.make(1))))


def _fold_norms(sequence: nn.Sequential) -> None:
    for index in range(1, len(sequence)):
        layer, norm = sequence[index - 1], sequence[index]
        if changed(layer) or changed(norm) or type(layer) is not nn.Conv2d or type(norm) is not nn.BatchNorm2d:
            continue
        if norm.running_mean is not None:
            sequence[index - 1] = nn.utils.fuse_conv_bn_eval(layer, norm)
            sequence[index] = nn.Identity()


def refuse_values(module: nn.Module) -> None:
    """Raise Unsupported where a weight is NaN or infinite, or a norm's are those of the batch."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not bool(tensor.isfinite().all()):
            raise Unsupported(f"{name} has values that are not finite")
    for name, each in module.named_modules():
        if isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d)) and each.running_mean is None:
            raise Unsupported(f"{name} ({type(each).__name__}) without running statistics normalises by its batch")


@torch.no_grad()
def refuse_overwritten(module: nn.Module, input_shape: tuple[int, ...]) -> None:
    """Raise Unsupported where an activation overwrites its input, which is read again: its stand-in does not.

    ReLU stays itself. The inputs of the others are overwritten with NaN, which then reaches the outputs.
    """
    paths = [each.path for each in activations(module)
             if getattr(each.module, "inplace", False) and each.traits.name != "relu"]  # fmt: skip
    for path in paths:
        watched = copy.deepcopy(module).double().eval()
        activation = watched.get_submodule(path)
        activation.inplace = False  # type: ignore[assignment]
        activation.register_forward_hook(lambda _, given, __: (given[0].fill_(torch.nan), None)[1])
        if bool(watched(torch.rand(1, *input_shape, dtype=torch.float64)).isnan().any()):
            raise Unsupported(
                f"{path} ({type(activation).__name__}) overwrites its input, which is read again: use inplace=False"
            )


def _refuse_layers(module: nn.Module) -> None:
    unknown = [
        f"{path or 'the network'} ({type(each).__name__ if list(each.children()) else each})"
        for path, each in module.named_modules()
        if type(each).__module__.startswith("torch.nn")
        and type(each) not in (*_LAYERS, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
    ]
    if unknown:
        raise Unsupported(f"no sound bounds for {', '.join(unknown)}")


_CLOSE = 1e-9


@torch.no_grad()
def layer_names(module: nn.Module, points: torch.Tensor, seen: list[torch.Tensor]) -> tuple[str, ...]:
    """For each of `seen`, the activations' inputs at `points`, the dotted path of the module that gets it.

    A module that is called more than once has a name for each call, but for calls with one input. An activation that is
    no module, or follows one that was folded away, is "relu 3" by its place.
    """
    calls: list[tuple[str, torch.Tensor]] = []
    hooks = [
        found.module.register_forward_pre_hook(lambda _, given, path=found.path: calls.append((path, given[0].clone())))
        for found in activations(module)
    ]
    try:
        module(points)
    finally:
        for hook in hooks:
            hook.remove()
    names, often = [], dict[str, int]()
    for place, value in enumerate(seen, start=1):
        at = next((i for i, (_, given) in enumerate(calls) if _same(given, value)), None)
        path = f"relu {place}" if at is None else calls.pop(at)[0] or "the network"
        often[path] = often.get(path, 0) + 1
        names.append(path if often[path] == 1 else f"{path} call {often[path]}")
    return tuple(names)


def _same(given: torch.Tensor, value: torch.Tensor) -> bool:
    return given.shape == value.shape and torch.allclose(given, value, rtol=_CLOSE, atol=_CLOSE)
