"""What computing on integers adds where the fake-quantized network computes in float: norms, attention and the like."""

from __future__ import annotations

import numpy as np
from torch import fx

from evalsuite import Direction, Metric
from pipelines.quantize.integer.execution import Executor
from pipelines.quantize.integer.grids import Integers
from pipelines.quantize.integer.lowering import lower
from pipelines.quantize.integer.network import IntegerNetwork

_NAME = "integer_part_error"


def part_errors(quantized: fx.GraphModule, network: IntegerNetwork, inputs: Integers) -> list[Metric]:
    """Of each part that is float in `quantized`: the greatest difference of its integers, in steps of its output.

    Both are given the integers that `network` has before the part, so that a difference is the part's own. The first
    row, without the setting "layer", is the greatest of all; there are none where the network has no such part.

    Args:
        quantized: what `network` was made of.
        network: the integer-only network; parts that are islands of it are left out.
        inputs: integers of its input's grid, (samples, *input_shape).
    """
    kept = {each.name for each in network.islands}
    tokens = network.input.high + 1 if network.tokens else None
    apart = lower(quantized, network.input_shape, rounding=network.rounding, islands=True, tokens=tokens)
    float_parts = [each for each in apart.islands if each.name not in kept]
    if not float_parts:
        return []
    tensors, rows = Executor(network, checked=True).trace(inputs), []
    for part in float_parts:
        off = np.abs(part.apply([tensors[name] for name in part.inputs]) - tensors[part.name])
        said = (
            f"steps of its output, of {off.size} integers; {(off > 0).mean():.2%} differ, {off.mean():.3f} on average"
        )
        rows.append(Metric(_NAME, int(off.max()), "step", Direction.LOWER, {"layer": part.name}, reason=said))
    worst = max(rows, key=lambda each: each.value or 0)
    return [
        Metric(_NAME, worst.value, "step", Direction.LOWER, reason=f"the most of all, {worst.setting['layer']}"),
        *rows,
    ]
