"""How wide the accumulators of an integer-only network must be: proven for all inputs, and seen on given ones."""

from __future__ import annotations

from evalsuite import Direction, Metric
from pipelines.quantize.integer.execution import Executor
from pipelines.quantize.integer.grids import Integers
from pipelines.quantize.integer.network import IntegerNetwork, prove_ranges
from pipelines.quantize.integer.operation import Sum

_CHUNK = 256  # samples at a time: every tensor is kept, in int64
LOWER = Direction.LOWER
_PROVEN, _OBSERVED = "accumulator_bits", "accumulator_bits_observed"
_WIDEST = 64  # Accumulators between 32 bits and this are told, though no executor runs them.


def accumulator_metrics(network: IntegerNetwork, inputs: Integers) -> list[Metric]:
    """The bits of each accumulating operation, proven and observed, with the setting "layer"; of all without one.

    Proven bits hold every partial sum. Observed ones hold the results, so they are never more. Where an overflow of 32
    bits cannot be ruled out nothing is run, and the observed ones have a reason instead of a value; the proven ones
    too, where a rescaling of such accumulators would not fit into 64 bits.

    Args:
        network: pools count among its layers, as they sum.
        inputs: integers of the input's grid, (samples, *input_shape).

    Raises:
        ValueError: there is no input, one lies outside the grid, or nothing in the network accumulates.
    """
    try:
        sums = prove_ranges(network, width=_WIDEST).sums
    except OverflowError as error:
        return [Metric(name, None, "count", LOWER, reason=str(error)) for name in (_PROVEN, _OBSERVED)]
    if not sums:
        raise ValueError("no operation of the integer network accumulates: there is no accumulator to measure")
    metrics = _rows(_PROVEN, sums, "for any input, in any order of summation")
    try:
        observed = observed_sums(network, inputs, list(sums))
    except OverflowError as error:
        return [*metrics, Metric(_OBSERVED, None, "count", LOWER, reason=str(error))]
    return metrics + _rows(_OBSERVED, observed, "the finished sums on the given inputs")


def observed_sums(network: IntegerNetwork, inputs: Integers, names: list[str]) -> dict[str, Sum]:
    """The least and the greatest result, or 0, of each of these operations on `inputs`.

    Raises:
        OverflowError: an overflow of 32 bits cannot be ruled out.
        ValueError: there is no input, or one lies outside the grid.
    """
    executor = Executor(network, checked=True)
    found = dict.fromkeys(names, Sum(0, 0))
    for start in range(0, max(1, len(inputs)), _CHUNK):
        tensors = executor.trace(inputs[start : start + _CHUNK])
        for name, known in found.items():
            values = tensors[name]
            found[name] = Sum(min(known.least, int(values.min())), max(known.greatest, int(values.max())))
    return found


def _rows(name: str, sums: dict[str, Sum], reason: str) -> list[Metric]:
    widest = max(sums, key=lambda layer: sums[layer].bits)
    return [
        Metric(name, sums[widest].bits, "count", LOWER, reason=f"the most of all layers, {widest}; {reason}"),
        *(Metric(name, each.bits, "count", LOWER, {"layer": layer}, reason=reason) for layer, each in sums.items()),
    ]
