"""What bounds say of each activation layer: how wide its inputs' intervals are, and how many of them are decided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evalsuite import Direction, Metric
from pipelines.bounds.propagation import Margins


def layer_metrics(
    bounds: Margins, names: Sequence[str], setting: Mapping[str, str | int | float | bool], reason: str = ""
) -> list[Metric]:
    """Of each layer the mean width of its inputs' intervals, and the shares that are unstable and that are off.

    An input is unstable where its interval has 0 strictly inside, and off where it has nothing above 0. Means are over
    all properties and inputs. `names` has one for each of `bounds.inputs`.
    """
    metrics = []
    for name, (low, high) in zip(names, bounds.inputs, strict=True):
        where = {**setting, "layer": name}
        width = (high - low).mean().item()
        unstable, off = (low < 0) & (high > 0), high <= 0
        metrics += [
            finite("layer_width", width, "activation", Direction.LOWER, where, reason),
            # No direction: a ReLU whose interval does not contain 0 is linear, a GELU is not.
            Metric("unstable_share", unstable.double().mean().item(), "share", Direction.NEUTRAL, where, reason=reason),
            Metric("stable_off_share", off.double().mean().item(), "share", Direction.NEUTRAL, where, reason=reason),
        ]
    return metrics


def finite(
    name: str,
    value: float | None,
    unit: str,
    direction: Direction,
    setting: Mapping[str, str | int | float | bool],
    reason: str = "",
) -> Metric:
    """The metric, without a value where bounds are infinite."""
    if value is not None and not math.isfinite(value):
        value, reason = None, "; ".join(each for each in (reason, "some bounds are infinite") if each)
    return Metric(name, value, unit, direction, setting, reason=reason)
