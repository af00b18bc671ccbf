"""The plain question: every neuron, no reduction, with or without bounds. Reduction and search are measured by it."""

from __future__ import annotations

from collections.abc import Sequence

from evalsuite import Property, Unsupported
from pipelines.smt import EncodingName
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.encoding import between, declared, defined, linear, relu
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.reduction import Ends
from pipelines.smt.solvers import Limits, Reply, ask_z3


def ask_plainly(
    exact: ExactNetwork,
    property_: Property,
    *,
    limits: Limits | None = None,
    encoding: EncodingName = "or",
    bounds: Sequence[Ends] = (),
) -> Reply:
    """Whether any margin can be <= 0 in the box, exactly; where sat, its values are the whole input.

    With `bounds`, one of each hidden layer that hold in the box, neurons that keep their sign there are not split.

    Raises:
        ValueError: an encoding with a triangle, which needs bounds.
        Unsupported: the property is an L2 ball.
    """
    names = [f"x{index}" for index in range(property_.lower.numel())]
    return ask_z3(plain_question(exact, property_, encoding, bounds), names, limits or Limits())


def plain_question(
    exact: ExactNetwork, property_: Property, encoding: EncodingName, bounds: Sequence[Ends] = ()
) -> str:
    """SMT-LIB declarations and assertions, satisfiable if the property is violated by a real input."""
    if property_.center is not None:
        raise Unsupported("the plain question is of boxes, and this property is an L2 ball")
    if encoding.endswith("-triangle"):
        raise ValueError(f"the plain question has no bounds, so no triangle: {encoding!r}")
    lower = Dyadic.of(property_.lower.numpy().ravel()).fractions()
    upper = Dyadic.of(property_.upper.numpy().ravel()).fractions()
    columns = [f"x{index}" for index in range(len(lower))]
    lines = []
    for name, low, high in zip(columns, lower, upper, strict=True):
        lines += [declared(name), between(name, low, high)]
    *hidden, last = exact.maps
    for depth, each in enumerate(hidden):
        outputs = []
        fixed = _signs(bounds[depth]) if bounds else {}
        for index, term in enumerate(_terms(each.weight, each.bias, columns)):
            outputs.append(f"a{depth}_{index}")
            if index in fixed:
                lines.append(defined(outputs[-1], term if fixed[index] else "0.0"))
                continue
            lines.append(defined(f"z{depth}_{index}", term))
            lines += relu(outputs[-1], f"z{depth}_{index}", f"z{depth}_{index}", encoding)
        columns = outputs
    logits = list(_terms(last.weight, last.bias, columns))
    others = [f"(<= {logits[property_.label]} {each})" for i, each in enumerate(logits) if i != property_.label]
    return "\n".join([*lines, f"(assert (or {' '.join(others)} false))"])


def _signs(bounds: Ends) -> dict[int, bool]:
    """Of each neuron that keeps its sign, whether it is never negative."""
    ends = enumerate(zip(*(each.units for each in bounds), strict=True))
    return {index: low >= 0 for index, (low, high) in ends if low >= 0 or high <= 0}


def _terms(weight: Dyadic, bias: Dyadic, names: Sequence[str]) -> list[str]:
    factors, width = weight.fractions(), weight.shape[1]
    return [
        linear(constant, factors[row * width : (row + 1) * width], names)
        for row, constant in enumerate(bias.fractions())
    ]
