"""Parameter groups of optimizers, in which the raw hardness has a learning rate of its own.

The step that lambda itself takes is then the one that c asks for, whatever the temperature is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from lambda_gelu.activations.hardenable import Hardenable
from lambda_gelu.activations.recognition import known
from lambda_gelu.plugins import did_you_mean

HARDNESS_STEP = 9.0  # c of arXiv 2603.21991, found there by grid search together with t = 0.1.

# The learning rate of s, in units of c times the others', by the temperature t. See
# parameter_groups.
_RATE_OF: dict[str, Callable[[float], float]] = {
    "sgd": lambda temperature: temperature**2,
    "adam": lambda temperature: temperature,
    "adamw": lambda temperature: temperature,
}


def hardness_rate(
    temperature: float,
    *,
    learning_rate: float,
    optimizer: str = "adamw",
    step: float = HARDNESS_STEP,
) -> float:
    """The learning rate of s at temperature t: c t^2 times the others' for SGD, c t times for Adam
    and AdamW.

    lambda = 1 + softplus(s / t), so d lambda / ds = sigmoid(s / t) / t.

    - SGD moves s by -rate dL/ds, and dL/ds has that factor once more: lambda moves by -rate
      sigmoid(s / t)^2 / t^2 dL/dlambda. With c t^2 this is c learning_rate sigmoid^2: up to
      sigmoid^2 in (0, 1), which is the parametrisation's own (1/4 at s = 0), the step of a lambda
      trained directly at c times the learning rate, whatever t.
    - Adam divides the gradient by its own size, so s moves by about its rate and lambda by rate
      sigmoid(s / t) / t. With c t this is c learning_rate sigmoid.

    Momentum m multiplies the asymptotic step of every group by 1 / (1 - m) alike, so c, which is
    relative to the other parameters' steps, needs no correction by it. Raises ValueError: an
    unknown optimizer, or a step, temperature or learning rate not above 0.
    """
    if optimizer not in _RATE_OF:
        raise ValueError(f"unknown optimizer {optimizer!r}{did_you_mean(optimizer, _RATE_OF)}")
    for name, value in (
        ("step", step),
        ("learning_rate", learning_rate),
        ("temperature", temperature),
    ):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be > 0 and finite, got {value}")
    return step * _RATE_OF[optimizer](temperature) * learning_rate


def parameter_groups(
    module: nn.Module,
    *,
    learning_rate: float,
    optimizer: str = "adamw",
    momentum: float = 0.0,
    weight_decay: float = 0.01,
    step: float = HARDNESS_STEP,
) -> list[dict[str, Any]]:
    """Parameter groups for torch.optim's SGD, Adam or AdamW, in which the raw hardness of every
    Hardenable stands apart.

    The groups of s have the learning rate of `hardness_rate` and no weight decay, which would pull
    lambda towards that of s = 0; temperatures that differ have groups of their own. What other
    activations learn, such as PReLU's slope or xIELU's raw p and n, has the learning rate of the
    rest and no weight decay, which would pull an activation towards the form that its raw zeros
    happen to have. Parameters that are frozen or shared are left out or counted once. For SGD each
    group carries `momentum`.

    Args:
        module: the network, or any part of it.
        learning_rate: of all other parameters.
        optimizer: "sgd", "adam" or "adamw".
        momentum: of SGD, in [0, 1); the others take no notice of it.
        weight_decay: of all parameters that are no activation's, at least 0.
        step: c, lambda's effective step relative to the other parameters'.

    Raises:
        ValueError: an option out of its bounds, or nothing to train.
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), got {momentum}")
    if not 0 <= weight_decay < float("inf"):
        raise ValueError(f"weight_decay must be >= 0 and finite, got {weight_decay}")
    # validates before any module
    hardness_rate(1.0, learning_rate=learning_rate, optimizer=optimizer, step=step)
    raw = {id(layer.s): layer for layer in module.modules() if isinstance(layer, Hardenable)}
    # By their types alone: what is known by its values has no parameters.
    rows = [
        (layer, row)
        for layer in module.modules()
        for row in known()
        if row.parameters and row.matches(layer)
    ]
    shapes = {id(getattr(layer, name)) for layer, row in rows for name in row.parameters}
    taught = [
        parameter
        for parameter in module.parameters()
        if parameter.requires_grad and id(parameter) not in raw
    ]
    others, learnt = (
        [parameter for parameter in taught if (id(parameter) in shapes) is is_shape]
        for is_shape in (False, True)
    )
    by_temperature: dict[float, list[nn.Parameter]] = {}
    for layer in raw.values():
        if layer.s.requires_grad:
            by_temperature.setdefault(layer.temperature, []).append(layer.s)
    if not taught and not by_temperature:
        raise ValueError(
            f"nothing to train: {type(module).__name__} has no parameter that requires a gradient"
        )
    groups: list[dict[str, Any]] = []
    if others:
        groups.append({"params": others, "lr": learning_rate, "weight_decay": weight_decay})
    if learnt:
        groups.append({"params": learnt, "lr": learning_rate, "weight_decay": 0.0})
    for temperature, parameters in by_temperature.items():
        rate = hardness_rate(
            temperature, learning_rate=learning_rate, optimizer=optimizer, step=step
        )
        groups.append({"params": parameters, "lr": rate, "weight_decay": 0.0})
    if optimizer == "sgd":
        for group in groups:
            group["momentum"] = momentum
    return groups
