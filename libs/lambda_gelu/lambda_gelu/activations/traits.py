"""The traits of an activation: all that the toolchains need to know of it, said in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Scalar = Callable[[torch.Tensor], torch.Tensor]
"""An elementwise function of a float32 or float64 tensor.
"""


def unit_hardness(_: nn.Module) -> torch.Tensor:
    """The hardness lambda = 1, for the row of an activation that has none to learn."""
    return torch.ones(())


@dataclass(frozen=True, slots=True)
class Activation:
    """One scalar activation in its normal form g(z); a hardness lambda scales it: f(x) = g(lambda
    x) / lambda.

    The row of an activation with parameters of its own (PReLU's slope, say) speaks for their
    initial values; `of` gives the row for a module's present ones.

    Args:
        name: the name in recipes and tables.
        help: one line.
        source: paper and equation.
        formula: f(x) as text.
        value: g, elementwise, for float32 or float64 tensors; in float64 exact to some units in the
            last place.
        slope: g', elementwise; at a kink the subgradient that torch takes.
        inflections: where g'' changes sign, ascending, zero being a sign of its own; empty for a
            piecewise-linear g.
        shape: signs of g'' on the pieces between, e.g. "-+-" (concave, convex, concave), or "+0"
            (convex, then linear); "" for piecewise linear.
        relu_distance: sup |g(z) - max(z, 0)|, possibly infinite; at hardness lambda the distance is
            this over lambda.
        make: a new module, given the number of channels it acts on; it draws no random number.
        matches: whether a module computes this activation.
        onnx: the ONNX operator (opset 20) that computes g, perhaps by an attribute; "" where it
            takes several.
        hardness: lambda of a matching module: a 0-d tensor, or one value per channel.
        limits: the slopes towards minus and plus infinity.
        hardens_to: the activation that f approaches uniformly as lambda grows; "" where there is
            none, or where that depends on learnt parameters.
        hardened_by: the activation that computes g(lambda x) / lambda with a learnt lambda: how
            hardening treats this one; its own name where it learns lambda itself, "" where there is
            none.
        hardened_at: the lambda at which that activation computes this row.
        kinks: where g' jumps, ascending; a jump counts neither as an inflection nor as a piece of
            `shape`.
        parameters: the names of what a module learns; "s" is the raw hardness.
        row_of: the row at a matching module's parameters; None if g has none.
        swaps: whether the swap puts ReLU in its place. Not where it is bounded above on purpose, as
            ReLU6, which is piecewise linear already, and in a hand-written hard-sigmoid a part of a
            gate.
        gate: whether networks have it as a gate, a pooler, a probability or a scale, whose range
            others rely on. Then a census counts it on request alone, values are not recognised as
            it, and what treats activations (the swap, hardening, pruning) leaves it as it is.
    """

    name: str
    help: str
    source: str
    formula: str
    value: Scalar
    slope: Scalar
    relu_distance: float
    make: Callable[[int], nn.Module]
    matches: Callable[[nn.Module], bool]
    inflections: tuple[float, ...] = ()
    shape: str = ""
    onnx: str = ""
    hardness: Callable[[nn.Module], torch.Tensor] = unit_hardness
    limits: tuple[float, float] = (0.0, 1.0)
    hardens_to: str = ""
    hardened_by: str = ""
    hardened_at: float = 1.0
    kinks: tuple[float, ...] = ()
    parameters: tuple[str, ...] = ()
    row_of: Callable[[nn.Module], Activation] | None = None
    swaps: bool = True
    gate: bool = False

    def of(self, module: nn.Module) -> Activation:
        """The row for a matching module's present parameters; this row where g has none. The
        hardness is apart.

        Raises:
            ValueError: `module` does not match, or has parameters per channel, for which no single
                row speaks.
        """
        if not self.matches(module):
            raise ValueError(
                f"{type(module).__name__} does not compute {self.name!r}; take the row that"
                " census() found"
            )
        return self if self.row_of is None else self.row_of(module)


def only_value(parameter: torch.Tensor, activation: str, name: str) -> float:
    """The one value of a parameter of any shape. Raises ValueError where there are several, one
    for each channel.
    """
    if parameter.numel() != 1:
        raise ValueError(
            f"{activation}: {name} has {parameter.numel()} values, one per channel, and no single"
            " row of traits speaks for them; build the module with one value, or treat each"
            " channel alone"
        )
    return float(parameter.detach())
