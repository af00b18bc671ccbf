"""One call that makes a network ready for hardening: hardenable activations in place of GELU and
SiLU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from lambda_gelu.activations import Activation, Found, census
from lambda_gelu.activations.census import made_like, settle_transformers, stays, substitute
from lambda_gelu.activations.hardenable import Hardenable
from lambda_gelu.activations.recognition import known as known_rows
from lambda_gelu.activations.runs import function_name
from lambda_gelu.hardening import Hardening
from lambda_gelu.plugins import ACTIVATIONS, load
from lambda_gelu.rewrite import modes_in
from lambda_gelu.schedules import Curve
from lambda_gelu.swapping import adopt, expose

NEAREST = 1.001
"""The lambda that a trained network's activations get, which would be 1 but for s = -infinity.

A step of Adam multiplies lambda - 1 by up to exp(c rate), c being `HARDNESS_STEP`, so that each
factor of ten nearer to 1 takes 2.3 / (c rate) steps longer to leave (85 at a rate of 3e-3), and
below 1e-7 float32 has no lambda between. At 1.001 the outputs of a trained network move by 1e-4 of
their size, at 1.01 by 1e-3 (digits-mlp).
"""


def hardenable_form(name: str) -> str:
    """The activation whose learnt lambda hardens the one of that name; itself, where it has a
    lambda to learn. Raises ValueError: there is none.
    """
    row: Activation = load(name, *ACTIVATIONS).target
    if not row.hardened_by:
        known = ", ".join(sorted(row.name for row in known_rows() if row.hardened_by))
        raise ValueError(
            f"activation {name!r} has no form with a learnable hardness; those with one: {known}"
        )
    return row.hardened_by


def harden(
    module: nn.Module,
    *,
    steps: int | None = None,
    start: float = 0.25,
    target: float | Mapping[str, float] = 160.0,
    schedule: str | Curve = "linear",
    learn: bool = False,
    order: str = "together",
    hardness: float = NEAREST,
    in_place: bool = True,
    example: Any = None,
) -> Hardening:
    """Put hardenable activations into `module`, and return the hook that hardens them during
    training.

        hardening = harden(model, steps=len(loader) * epochs)  # before the optimizer is made
        ...
        hardening.step()  # before each optimizer step
        ...
        relu_network = hardening.swap()

    GELU becomes lambda-GELU and SiLU becomes Swish, both at lambda = `hardness`, where they are
    modules or functions that are attributes, as nn.TransformerEncoderLayer's; ELU, Mish and
    hard-swish become their forms with a lambda; quick GELU becomes Swish at 1.702 or `hardness`,
    whichever is greater; what has a lambda stays. The module is changed in place, because a copy
    that the training loop does not train would go unnoticed; its weights stay the same parameters,
    so that an optimizer which holds them already still serves, but does not learn s.

    An already trained network: start=0 hardens over a short fine-tuning, with no lambda learnt.
    lambda cannot be 1 itself (s would be minus infinity); at 1.001 an activation moves by at most
    0.2935 * 0.001, the largest x^2 phi(x) times the change in lambda (GELU's tanh form differs by
    another 0.0005).

    Args:
        module: any network; its training mode, device and precision are kept.
        steps: how many optimizer steps training has, for `step()`; None if you call
            hardening(progress) yourself.
        start, target, schedule, learn, order: see `Hardening`.
        hardness: the lambda put in. For training from scratch with a learnt lambda the paper starts
            at s = 0: 1 + log 2 = 1.693, from where s also learns faster than near 1.
        in_place: False leaves `module` alone; then train `hardening.module`.
        example: inputs (a tensor, a tuple of arguments or a mapping of named ones), with
            in_place=False: activations that a run on them calls as functions, or computes by
            formulas of the user's own, are hardened too; see `expose`. Without it only modules are.

    Raises:
        ValueError: an option is out of its range, there is nothing to harden, or the example shows
            formulas beside dropout or batch normalisation, whose mode the rewritten graph could not
            change.
    """
    if not hardness > 1:
        raise ValueError(f"hardness: lambda must be > 1, got {hardness}")
    if example is not None and in_place:
        raise ValueError(
            "an example exposes activations in a copy: pass in_place=False, and train"
            " hardening.module"
        )
    # 1. Have every activation as a module, and refuse a graph whose mode is fixed.
    prepared = module if in_place else expose(module, example)
    if modes := modes_in(prepared):
        raise ValueError(
            f"{type(module).__name__}: formulas written by hand need torch.export, which fixes"
            f" {', '.join(modes)} in one mode, so that the copy cannot be trained and then used;"
            " write the formulas as modules such as nn.GELU"
        )
    # 2. Put a form with a lambda in place of each activation that has one. What the attributes
    # held before is kept, so that a refusal below leaves the user's module as it was.
    before = _attributes(prepared)
    adopt(prepared)
    replacement = {
        id(activation.module): _hardenable(activation, prepared, hardness)
        for activation in census(prepared)
        if activation.traits.hardened_by not in ("", activation.traits.name)
        # Not an ELU with a slope of its own, say, which the form with a lambda would not keep.
        and (
            activation.traits.row_of is None
            or activation.traits.row_of(activation.module) is activation.traits
        )
        and not stays(activation.module)
    }
    if in_place and id(prepared) in replacement:
        raise ValueError(
            f"{type(module).__name__} is itself the activation: use in_place=False, or wrap it"
        )
    # The old modules by their ids, which step 3 puts back.
    present = {id(layer): layer for layer in prepared.modules() if id(layer) in replacement}
    prepared = substitute(prepared, replacement)
    settle_transformers(prepared)
    # 3. Check the options against the layers that there are now; where they do not fit, undo step
    # 2.
    try:
        return Hardening(prepared, start, target, schedule, learn, order, steps)
    except ValueError:
        substitute(prepared, {id(replacement[old]): layer for old, layer in present.items()})
        settle_transformers(prepared)
        for owner, name, value in before:
            owner._modules.pop(name, None)
            setattr(owner, name, value)
        raise


def _attributes(network: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Owner, name and value of what `adopt` and `settle_transformers` may change besides child
    modules.
    """
    flags = ("activation_relu_or_gelu", "use_nested_tensor")
    owned = [
        (owner, name, value) for owner in network.modules() for name, value in vars(owner).items()
    ]
    return [
        attribute
        for attribute in owned
        if attribute[1] in flags or function_name(getattr(attribute[2], "func", attribute[2]))
    ]


def _hardenable(activation: Found, network: nn.Module, hardness: float) -> nn.Module:
    """The activation's hardenable form, where the network's parameters are and as precise as
    they.
    """
    module: nn.Module = load(activation.traits.hardened_by, *ACTIVATIONS).target.make(0)
    if not isinstance(module, Hardenable):
        raise TypeError(f"the activation {activation.traits.hardened_by!r} must make a Hardenable")
    made_like(network, module)
    module.set_hardness(max(hardness, activation.traits.hardened_at))
    return module.train(activation.module.training)
