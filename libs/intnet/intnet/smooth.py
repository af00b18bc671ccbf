"""Tell what keeping a smooth activation costs in integers: a look-up table, or I-BERT's polynomial
for GELU.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from intnet.grids import Dyadic, Grid
from intnet.pointwise import Polynomial, Table
from lambda_gelu import GELU, Activation
from opgraph.errors import Unsupported

_A, _B = -0.2888, -1.769
"""erf(y) is about sign(y) (a (min(|y|, -b) + b)^2 + 1): arXiv 2101.01321, equation 8."""
_GREATEST_LIMIT = 2**31 - 1  # its square fits into 64 bits
_GREATEST_PRODUCT = 2**31 - 1  # times a multiplier of 31 bits it fits into 64 bits
_SCAN = 2**13
_FAR = 1e6


def make_table(
    name: str, inputs: tuple[str, ...], row: Activation, hardness: float, input: Grid, output: Grid
) -> Table:
    """The activation f(x) = g(lambda x) / lambda of a row of traits as a table, for every integer
    of the input's grid.

    An entry is clip(round(f(x) / scale + zero_point)) of the output's grid, computed in float64,
    rounded half to even.

    Raises:
        ValueError: the hardness is not positive, the output's integers do not fit into 8 bits, or f
            is not finite.
    """
    if not 0 <= output.low <= output.high <= np.iinfo(np.uint8).max:
        raise ValueError(
            f"{name!r}: a table holds integers in [0, 255], not [{output.low}, {output.high}]"
        )
    _check_hardness(name, hardness)
    real = input.scale * (np.arange(input.low, input.high + 1) - input.zero_point)
    table = _entries(row, hardness, real, output)
    return Table(name, inputs, input=input, table=table.astype(np.uint8), output=output)


def make_polynomial(
    name: str, inputs: tuple[str, ...], hardness: float, input: Grid, output: Grid
) -> Polynomial:
    """I-BERT's integer GELU (arXiv 2101.01321, section 3.4, algorithm 2) of x = S q, for x
    Phi(lambda x) as well.

    x Phi(lambda x) = x / 2 (1 + erf(y)) at y = E q with E = lambda S / sqrt(2). There equation 8
    becomes, with a < 0,

        erf(y) = sign(q) |a| E^2 (1 / (|a| E^2) - (min(|q|, -b / E) + b / E)^2),

    so with limit = round(-b / E), t = min(|q|, limit) - limit and constant = round(1 / (|a| E^2))
    the error function is sign(q) (constant - t^2) / constant. That is cut to steps of 1 / one by a
    right shift, and as (1 + erf) has as many steps, the result is q (e + one) x S / (2 one), which
    `factor` brings onto the output's grid.

    Two things differ from the paper. The shift is the least with 2 one max |q| < 2^31, so that the
    product fits into 32 bits and its rescaling into 64; the paper shifts by a fixed number. And
    constant = one 2^shift, rounded to a multiple of 2^shift: then erf is exactly 1 and -1 where it
    is clipped, and the tails exactly x and 0.

    Raises:
        ValueError: the hardness is not positive, or the input's grid is so fine that products
            exceed 64 bits.
    """
    _check_hardness(name, hardness)
    # 1. I-BERT's constants in steps of the input's grid.
    step = hardness * input.scale / math.sqrt(2)
    greatest = max(input.high - input.zero_point, input.zero_point - input.low)
    limit = -_B / step
    if not limit <= _GREATEST_LIMIT:
        raise ValueError(
            f"{name!r}: the input's scale {input.scale} is so fine that I-BERT's polynomial exceeds"
            f" 64 bits; it must be at least {-_B * math.sqrt(2) / hardness / _GREATEST_LIMIT:.3g}"
        )
    constant = max(1.0, 1 / (-_A * step**2))  # 1 where every q but 0 lies in a tail
    # 2. The least shift with which products fit: every bit that is cut off costs precision.
    greatest_one = _GREATEST_PRODUCT // (2 * max(1, greatest))
    if greatest_one < 1:
        raise ValueError(
            f"{name!r}: the input's integers, up to {greatest} from the zero point, exceed 30 bits"
        )
    shift = 0
    while round(constant / 2**shift) > greatest_one:
        shift += 1
    one = round(constant / 2**shift)
    # 3. The rescaling onto the output's grid, for which `one` is divided out.
    factor = Dyadic.nearest(input.scale / (2 * one * output.scale))
    return Polynomial(
        name,
        inputs,
        input=input,
        limit=round(limit),
        constant=one << shift,
        shift=shift,
        one=one,
        factor=factor,
        output=output,
    )


def smooth_input_grid(hardness: float, output: Grid, bits: int, row: Activation = GELU) -> Grid:
    """The finest unsigned grid of `bits` bits for the input of an activation, outside which its
    result is constant.

    Below the grid f(x) = g(lambda x) / lambda is rounded or clipped to the output's zero point,
    above it to the output's greatest integer: clipping the input changes no result. A table takes 8
    bits, the polynomial 16: a grid of more than 8 bits also holds all x for which the polynomial is
    neither x nor 0.

    The two ends are searched on 8,192 points each: as f(x) >= x - D / lambda, where D is the row's
    distance to ReLU, all x from the greatest real output + D / lambda on give the greatest integer;
    on the left the search goes as far as there are other integers than the zero point. Where f
    tends to two values, as tanh and ReLU6, the integers of those take the place of the zero point
    and of the greatest integer.

    Raises:
        Unsupported: f neither tends to 0 on the left and to x on the right nor to two values.
        ValueError: bits are not in [2, 16], or the hardness is not positive.
    """
    if not 2 <= bits <= 16:
        raise ValueError(f"bits must be in [2, 16], got {bits}")
    if not (_ends_like_relu(row) or _ends_level(row)):
        raise Unsupported(
            f"{row.name!r} neither tends to 0 on the left and to x on the right nor to two values,"
            " so its input needs a calibrated grid"
        )
    _check_hardness(row.name, hardness)
    lower, upper = (_level_ends if _ends_level(row) else _ends)(row, hardness, output)
    if bits > 8:
        tail = -_B * math.sqrt(2) / hardness
        lower, upper = min(lower, -tail), max(upper, tail)
    return Grid.over(lower, upper, bits)


def _ends_like_relu(row: Activation) -> bool:
    """Whether g tends to 0 and to z: equal slopes are not enough, as ELU shows, which tends to
    -1.
    """
    far = torch.tensor([-_FAR, _FAR], dtype=torch.float64)
    near = torch.allclose(row.value(far), far.clamp(min=0), rtol=0, atol=1e-6)
    return near and row.limits == (0.0, 1.0) and math.isfinite(row.relu_distance)


def _ends_level(row: Activation) -> bool:
    """Whether g tends to a value on either side."""
    far = row.value(torch.tensor([-_FAR, -2 * _FAR, _FAR, 2 * _FAR], dtype=torch.float64))
    return row.limits == (0.0, 0.0) and bool(far[0] == far[1]) and bool(far[2] == far[3])


def _level_ends(row: Activation, hardness: float, output: Grid) -> tuple[float, float]:
    """As `_ends`, for what tends to a value on either side."""
    levels = _entries(row, hardness, np.array([[-_FAR], [_FAR]]) / hardness, output)
    reach, sides = 1 / hardness, np.array([[-1.0], [1.0]]) * np.geomspace(1, 2**10, _SCAN)
    # Double the reach until the results beyond it are the levels.
    while np.any(_entries(row, hardness, reach * sides, output) != levels):
        reach *= 2
    points = np.linspace(-reach, reach, 2 * _SCAN)
    entries = _entries(row, hardness, points, output)
    # The grid ends one point outside the last result that is none of them.
    inner = np.flatnonzero(entries != levels[0]), np.flatnonzero(entries != levels[1])
    lower = points[max(inner[0][0] - 1, 0)] if len(inner[0]) else 0.0
    upper = points[min(inner[1][-1] + 1, len(points) - 1)] if len(inner[1]) else output.scale
    return min(float(lower), 0.0), max(float(upper), 0.0)


def _ends(row: Activation, hardness: float, output: Grid) -> tuple[float, float]:
    """The interval outside which the entries are constant, 0 in it; too wide by at most 2^-13 of
    what was searched.
    """
    top = output.scale * (output.high - output.zero_point)
    upper = top + row.relu_distance / hardness
    left = output.scale + row.relu_distance / hardness
    while np.any(
        _entries(row, hardness, -left * np.geomspace(1, 2**10, _SCAN), output) != output.zero_point
    ):
        left *= 2
    points = np.concatenate([np.linspace(-left, 0, _SCAN), np.linspace(0, upper, _SCAN)[1:]])
    entries = _entries(row, hardness, points, output)
    below = np.flatnonzero(entries != output.zero_point)
    lower = points[max(below[0] - 1, 0)] if len(below) and points[below[0]] <= 0 else 0.0
    above = np.flatnonzero(entries != output.high)
    end = points[min(above[-1] + 1, len(points) - 1)] if len(above) else 0.0
    # Where every x gives the same integer, any grid serves.
    return (float(lower), max(float(end), 0.0)) if end > 0 or lower < 0 else (0.0, output.scale)


def _entries(
    row: Activation, hardness: float, real: npt.NDArray[np.floating], output: Grid
) -> npt.NDArray[np.float64]:
    value = row.value(torch.from_numpy(hardness * real)).numpy() / hardness
    if not np.isfinite(value).all():
        raise ValueError(f"{row.name!r} is not finite at {real[~np.isfinite(value)][0]}")
    return np.asarray(
        np.clip(np.rint(value / output.scale + output.zero_point), output.low, output.high)
    )


def _check_hardness(name: str, hardness: float) -> None:
    if not 0 < hardness < math.inf:
        raise ValueError(f"{name!r}: the hardness must be positive and finite, got {hardness}")
