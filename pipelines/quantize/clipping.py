"""Ranges of tensors: where a quantizer clips."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch

Calibration = Literal["percentile", "max", "mse"]
WeightScale = Literal["max", "mse"]

# The share of a tensor's values that "percentile" leaves outside at each end: Brevitas' default.
_OUTSIDE = 1e-5
# The squared error is that of so many values at most, evenly spread; values that are 0 are exact on every grid.
_SEARCHED = 2**15
_SHARES = torch.linspace(0.02, 1.0, 50).tolist()
_WEIGHT_SHARES = torch.linspace(0.1, 1.0, 91).tolist()
# Powers of two below the greatest that are tried.
_EXPONENTS = 6
_LOWER_SHARES = torch.linspace(0.0, 1.0, 9).tolist()


def activation_range(
    values: torch.Tensor, bits: int, calibration: Calibration, power_of_two: bool
) -> tuple[float, float]:
    """(lower, upper) with lower <= 0 <= upper: what an unsigned quantizer with a zero point should reach.

    Args:
        values: of any shape, finite.
        calibration: "max" takes all values in, "percentile" all but 0.001 % at each end, and "mse" makes the mean
            squared error of the quantized values small. Its search goes over shares of the range, of which it takes
            each end in turn.
        power_of_two: whether upper - lower will be rounded up to a power of two; "mse" then chooses among those.
    """
    flat = values.detach().flatten().float()
    if calibration == "percentile":
        return min(0.0, _beyond(flat, largest=False)), max(0.0, _beyond(flat, largest=True))
    lower, upper = min(0.0, flat.min().item()), max(0.0, flat.max().item())
    if calibration == "max" or lower == upper:
        return lower, upper
    flat = flat[flat != 0]
    flat = flat[:: -(-len(flat) // _SEARCHED)].double()
    if power_of_two:
        return min(_powers(lower, upper), key=lambda ends: _error(flat, ends, bits, power_of_two=True))
    return _search(flat, lower, upper, bits)


def weight_thresholds(
    weight: torch.Tensor, bits: int, weight_scale: WeightScale, least: float, power_of_two: bool
) -> torch.Tensor:
    """For each output channel the magnitude that its greatest integer stands for, (channels,).

    Args:
        weight: (channels, ...).
        weight_scale: "max" takes the greatest magnitude, "mse" the share of it with the least squared error.
        least: no threshold is less.
        power_of_two: whether thresholds are powers of two, which then stand for 2^(bits - 1) steps.
    """
    rows = weight.detach().flatten(1).double()
    greatest = rows.abs().amax(1).clamp(min=least)
    if power_of_two:
        greatest = _next_power(greatest)
    if weight_scale == "max":
        return greatest.float()
    shares = [2.0**-k for k in range(_EXPONENTS)] if power_of_two else _WEIGHT_SHARES[::-1]
    most = 2 ** (bits - 1) - 1
    best, least_error = greatest, torch.full_like(greatest, torch.inf)
    for share in shares:
        thresholds = (share * greatest).clamp(min=least)
        scale = (thresholds / (most + power_of_two))[:, None]
        error = ((rows / scale).round().clamp(-most, most) * scale - rows).square().sum(1)
        best = torch.where(error < least_error, thresholds, best)
        least_error = torch.minimum(error, least_error)
    return best.float()


def _beyond(flat: torch.Tensor, largest: bool) -> float:
    """The value that `_OUTSIDE` of all values exceed at one end."""
    # By the few values outside: finding a rank among all takes quadratic time where they happen to be sorted.
    return float(flat.topk(min(int(_OUTSIDE * len(flat) + 0.5) + 1, len(flat)), largest=largest).values[-1])


def _next_power(values: torch.Tensor) -> torch.Tensor:
    return torch.exp2(values.log2().ceil())


def _error(flat: torch.Tensor, ends: tuple[float, float], bits: int, *, power_of_two: bool = False) -> float:
    """The sum of squared differences between the values and their quantized ones."""
    (lower, upper), most = ends, 2**bits - 1
    scale = (upper - lower) / (most + power_of_two)
    zero = min(max(round(-lower / scale), 0), most)
    return float(((flat / scale + zero).round_().clamp_(0, most).sub_(zero).mul_(scale) - flat).square_().sum())


def _search(flat: torch.Tensor, lower: float, upper: float, bits: int) -> tuple[float, float]:
    """Each end in turn, twice if there are two: a range around 0 has no better end alone."""
    ends = lower, upper
    for _ in range(2 if lower and upper else 1):
        if upper:
            ends = min(((ends[0], share * upper) for share in _SHARES), key=lambda each: _error(flat, each, bits))
        if lower:
            ends = min(
                ((share * lower, ends[1]) for share in (0.0, *_SHARES) if share * lower < ends[1]),
                key=lambda each: _error(flat, each, bits),
            )
    return ends


def _powers(lower: float, upper: float) -> Iterator[tuple[float, float]]:
    greatest = _next_power(torch.tensor(upper - lower, dtype=torch.float64)).item()
    for k in range(_EXPONENTS):
        for share in _LOWER_SHARES if lower else (0.0,):
            yield share * lower, share * lower + greatest / 2**k
