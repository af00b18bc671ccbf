"""Lines of every activation: sampled soundness against numpy and mpmath, and areas against a
dense grid of slopes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from cases import slow
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from torch import nn

from lambda_gelu.activations import GELU, RELU, Activation
from lambda_gelu.activations.elu import ELU
from lambda_gelu.activations.expanded import XSILU, XSiLU
from lambda_gelu.activations.gates import HARD_SIGMOID, IDENTITY
from lambda_gelu.activations.gelu_tanh import GELU_TANH
from lambda_gelu.activations.hard_swish import HARD_SWISH
from lambda_gelu.activations.integrated import RELU2, XIELU_ROW, XIPRELU_ROW
from lambda_gelu.activations.leaky import LEAKY_RELU, PRELU
from lambda_gelu.activations.quick_gelu import QUICK_GELU
from lambda_gelu.activations.relu6 import clip
from lambda_gelu.activations.silu import SILU, SWISH
from lambda_gelu.plugins import ACTIVATIONS, load_all
from netverify.relaxations import MISH, SIGMOID, SOFTPLUS, TANH, Lines, interval, relax
from netverify.relaxations.hulls import hull_of, sound_intercept
from netverify.relaxations.intervals import normal
from netverify.relaxations.pieces import curve

Array = np.ndarray[Any, Any]
mpmath.mp.dps = 60
_P = float(XIELU_ROW.value(torch.ones((), dtype=torch.float64))) - 0.5


# What the formulas below are made of, in float64 and with many digits.
NUMPY = SimpleNamespace(
    pi=np.pi,
    sqrt=np.sqrt,
    expm1=np.expm1,
    tanh=np.tanh,
    normal=special.ndtr,
    gate=special.expit,
    max=np.maximum,
    min=np.minimum,
    softplus=lambda z: np.logaddexp(0, z),
)
DIGITS = SimpleNamespace(
    pi=mpmath.pi,
    sqrt=mpmath.sqrt,
    expm1=mpmath.expm1,
    tanh=mpmath.tanh,
    normal=mpmath.ncdf,
    gate=lambda z: 1 / (1 + mpmath.exp(-z)),
    max=lambda z, end: max(z, mpmath.mpf(end)),
    min=lambda z, end: min(z, mpmath.mpf(end)),
    softplus=lambda z: mpmath.log1p(mpmath.exp(z)),
)
SPAN = 6.0  # where lines are looked at


@dataclass(frozen=True)
class Case:
    """A row, and its function, written here once for numpy and mpmath."""

    row: Activation
    formula: Callable[[Any, Any], Any]

    def numeric(self, z: Array) -> Array:
        return np.asarray(self.formula(NUMPY, z))

    def exact(self, z: Any) -> Any:
        return self.formula(DIGITS, z)


def _elu_case(alpha: float) -> Case:
    return Case(ELU.of(nn.ELU(alpha)), lambda m, z: m.max(z, 0) + alpha * m.expm1(m.min(z, 0)))


def _line_case(row: Activation, slope: float) -> Case:
    return Case(row, lambda m, z: m.max(z, 0) + slope * m.min(z, 0))


def _leaky_case(slope: float) -> Case:
    return _line_case(LEAKY_RELU.of(nn.LeakyReLU(slope)), slope)


def _clip_case(low: float, high: float) -> Case:
    return Case(clip(low, high), lambda m, z: m.min(m.max(z, low), high))


def _expanded_case(a: float) -> Case:
    module = XSiLU()
    nn.init.constant_(module.a, a)
    return Case(XSILU.of(module), lambda m, z: z * ((1 + 2 * a) * m.gate(z) - a))


def _xielu(m: Any, z: Any) -> Any:
    return _P * m.max(z, 0) ** 2 + _P * (m.expm1(m.min(z, 0)) - m.min(z, 0)) + z / 2


def _gelu_tanh(m: Any, z: Any) -> Any:
    return z * m.gate(2 * m.sqrt(2 / m.pi) * (z + 0.044715 * z**3))


CASES = {
    "gelu": Case(GELU, lambda m, z: z * m.normal(z)),
    "gelu-tanh": Case(GELU_TANH, _gelu_tanh),
    "silu": Case(SILU, lambda m, z: z * m.gate(z)),
    "swish": Case(SWISH, lambda m, z: z * m.gate(z)),
    "elu": _elu_case(1.0),
    "elu 0.25": _elu_case(0.25),
    "elu 3": _elu_case(3.0),
    "elu -1": _elu_case(-1.0),
    "hard-swish": Case(HARD_SWISH, lambda m, z: z * m.min(m.max(z + 3, 0), 6) / 6),
    "hard-sigmoid": Case(HARD_SIGMOID, lambda m, z: m.min(m.max(z + 3, 0), 6) / 6),
    "relu6": _clip_case(0.0, 6.0),
    "clip -1 2": _clip_case(-1.0, 2.0),
    "clip 0.5": _clip_case(0.5, np.inf),
    "clip to 1": _clip_case(-np.inf, 1.0),
    "quick-gelu": Case(QUICK_GELU, lambda m, z: z * m.gate(1.702 * z)),
    "relu": _line_case(RELU, 0.0),
    "leaky-relu": _line_case(LEAKY_RELU, 0.01),
    "prelu": _line_case(PRELU, 0.25),
    "leaky 1.5": _leaky_case(1.5),
    "leaky -0.5": _leaky_case(-0.5),
    "relu2": Case(RELU2, lambda m, z: m.max(z, 0) ** 2),
    "xielu": Case(XIELU_ROW, _xielu),
    "xiprelu": Case(XIPRELU_ROW, lambda _, z: _P * z * z + z / 2),
    "xsilu": _expanded_case(0.0),
    "xsilu 0.25": _expanded_case(0.25),
    "xsilu -1": _expanded_case(-1.0),
    "identity": Case(IDENTITY, lambda _, z: z),
    "sigmoid": Case(SIGMOID, lambda m, z: m.gate(z)),
    "tanh": Case(TANH, lambda m, z: m.tanh(z)),
    "softplus": Case(SOFTPLUS, lambda m, z: m.softplus(z)),
    "mish": Case(MISH, lambda m, z: z * m.tanh(m.softplus(z))),
}


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def parts(lines: Lines) -> tuple[torch.Tensor, ...]:
    return lines.lower_slope, lines.lower_intercept, lines.upper_slope, lines.upper_intercept


def intervals(case: Case, generator: np.random.Generator, count: int) -> tuple[Array, Array]:
    """In normal coordinates: widths 1e-9 to 1e3 and 0, around 0 and around the row's inflections
    and kinks.
    """
    places = np.array([0.0, 0.0, *case.row.inflections, *case.row.kinks])
    width = 10.0 ** generator.uniform(-9, 3, count)
    width[::3] = generator.uniform(0, 8, len(width[::3]))
    width[::17] = 0
    low = generator.uniform(-SPAN, SPAN, count)
    near = generator.choice(places, count) - width * generator.uniform(0, 1, count)
    return np.where(generator.uniform(0, 1, count) < 0.5, low, near), width


def sampled(low: Array, high: Array, generator: np.random.Generator, count: int) -> Array:
    share = generator.uniform(0, 1, (len(low), count - 2))
    share[:, ::3] **= 6
    share[:, 1::3] = 1 - share[:, 1::3] ** 6
    inner = low[:, None] + share * (high - low)[:, None]
    return np.clip(
        np.concatenate([low[:, None], inner, high[:, None]], 1), low[:, None], high[:, None]
    )


def check_sampled(
    case: Case, hardness: float, dtype: torch.dtype, seed: int, count: int, points: int
) -> None:
    """Check `count` x `points` pairs of interval and point. Where float64 can't tell, 60 digits
    do.
    """
    generator = np.random.default_rng(seed)
    start, width = intervals(case, generator, count)
    low = torch.from_numpy(start / hardness).to(dtype)
    high = torch.maximum(low, torch.from_numpy((start + width) / hardness).to(dtype))
    x = sampled(low.double().numpy(), high.double().numpy(), generator, points)
    middle = (low.double() + high.double()) / 2 * hardness
    chosen = middle + torch.from_numpy(generator.uniform(-1, 1, count) * width)
    value = case.numeric(hardness * x) / hardness
    scale = (np.abs(hardness * x) + 1e-9) / hardness * (1 + np.abs(value) / (np.abs(x) + 1e-9))
    least, most = interval(case.row, low, high, hardness=hardness)
    for lines in (
        relax(case.row, low, high, hardness=hardness),
        relax(case.row, low, high, hardness=hardness, points=(chosen, -chosen)),
    ):
        assert lines.lower_slope.dtype is dtype
        a, b, c, d = (each.double().numpy()[:, None] for each in parts(lines))
        for gap, slopes, intercepts, side in (
            (value - (a * x + b), a, b, 1),
            (c * x + d - value, c, d, -1),
        ):
            assert np.isfinite(gap).all()
            close = np.argwhere(gap < 4e-15 * scale)
            order = np.argsort((gap / scale).ravel())[:4]
            for row, at in [
                *close[:: max(1, len(close) // 30)],
                *(divmod(int(each), points) for each in order),
            ]:
                point = mpmath.mpf(float(x[row, at]))
                line = mpmath.mpf(float(slopes[row, 0])) * point + mpmath.mpf(
                    float(intercepts[row, 0])
                )
                true = case.exact(mpmath.mpf(hardness) * point) / hardness
                assert side * (true - line) >= 0, (
                    case.row.name,
                    hardness,
                    dtype,
                    low[row],
                    high[row],
                    point,
                )
            assert (gap >= -4e-13 * scale).all()
    ends = least.double().numpy()[:, None], most.double().numpy()[:, None]
    units = 4e-15 * scale
    assert (ends[0] <= value + units).all()
    assert (value - units <= ends[1]).all()
    for row in range(0, count, max(1, count // 12)):
        for at in (0, -1, 1):
            true = case.exact(mpmath.mpf(hardness) * mpmath.mpf(float(x[row, at]))) / hardness
            assert float(ends[0][row, 0]) <= true <= float(ends[1][row, 0])


FEW = [(1.0, torch.float64), (1e4, torch.float64), (30.0, torch.float32)]
MANY = [*FEW, (3.7, torch.float32), (1e3, torch.float64), (1e4, torch.float32)]


@pytest.mark.parametrize(
    ("settings", "count", "points"), [(FEW, 200, 24), slow(MANY, 600, 32)], ids=["few", "many"]
)
@pytest.mark.parametrize("name", CASES)
def test_no_violation_in_sampled_points(
    name: str, settings: list[tuple[float, torch.dtype]], count: int, points: int
) -> None:
    for seed, (hardness, dtype) in enumerate(settings):
        check_sampled(CASES[name], hardness, dtype, seed, count, points)


def test_every_registered_activation_is_among_the_cases() -> None:
    rows = [
        plugin.target for plugin in load_all(*ACTIVATIONS) if isinstance(plugin.target, Activation)
    ]
    covered = (
        {case.row.name for case in CASES.values()},
        {case.row.value for case in CASES.values()},
    )
    # A row with a learnt hardness has the function of the one without.
    assert [
        row.name for row in rows if row.name not in covered[0] and row.value not in covered[1]
    ] == []


def least_areas(case: Case, low: float, high: float) -> tuple[float, float]:
    """The least areas of a lower and an upper line by convex hulls of dense samples, in units of
    the width.
    """
    z = np.unique(
        np.concatenate(
            [
                np.linspace(low, high, 4001),
                [at for at in (*case.row.inflections, *case.row.kinks, 0.0) if low <= at <= high],
            ]
        )
    )
    value = case.numeric(z)
    middle = (low + high) / 2
    mean = np.trapezoid(value, z) / (high - low)
    areas = []
    for side in (1, -1):
        hull: list[int] = []
        for index in range(len(z)):
            while (
                len(hull) > 1
                and side
                * (
                    (value[hull[-1]] - value[hull[-2]]) * (z[index] - z[hull[-1]])
                    - (value[index] - value[hull[-1]]) * (z[hull[-1]] - z[hull[-2]])
                )
                >= 0
            ):
                hull.pop()
            hull.append(index)
        areas.append(float(side * (mean - np.interp(middle, z[hull], value[hull]))))
    return areas[0], areas[1]


def check_areas(case: Case, low: Array, high: Array, slack: float) -> None:
    """Neither line's area is more than one percent above the least."""
    a, b, c, d = (
        each.numpy()
        for each in parts(relax(case.row, torch.from_numpy(low), torch.from_numpy(high)))
    )
    for row, (start, end) in enumerate(zip(low, high, strict=True)):
        middle, z = (start + end) / 2, np.linspace(start, end, 4001)
        mean = np.trapezoid(case.numeric(z), z) / (end - start)
        best = least_areas(case, start, end)
        assert mean - (a[row] * middle + b[row]) <= 1.01 * best[0] + slack, (start, end)
        assert c[row] * middle + d[row] - mean <= 1.01 * best[1] + slack, (start, end)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_area_is_more_than_one_percent_above_the_least(name: str) -> None:
    generator = np.random.default_rng(1)
    low = generator.uniform(-SPAN, SPAN - 1, 5)
    high = low + generator.uniform(0.05, 8, 5)
    low, high = (
        np.append(low, [-3.0, -1e-3, 1e-4, -40.0, -6.0]),
        np.append(high, [3.0, 2.0, 6.0, 25.0, -0.2]),
    )
    check_areas(CASES[name], low, high, 2e-6)


def test_the_mean_gap_of_gelu_is_the_least_possible() -> None:
    generator = np.random.default_rng(0)
    low, width = generator.uniform(-4, 4, 20_000), generator.uniform(0, 3, 20_000)
    lines = relax(GELU, torch.from_numpy(low), torch.from_numpy(low + width))
    a, b, c, d = (each.numpy() for each in parts(lines))
    gap = (c - a) * (low + width / 2) + d - b
    assert gap.mean() <= 0.066
    least = np.array(
        [sum(least_areas(CASES["gelu"], low[row], low[row] + width[row])) for row in range(20)]
    )
    assert (gap[:20] <= 1.0005 * least + 1e-6).all()


def _waves(heights: list[float], widths: list[float], start: float, first_slope: float) -> Case:
    """Curved pieces of alternating sign between linear ends: g'' = +-h on them, and 0 outside."""
    edges = start + np.concatenate([[0.0], np.cumsum(widths)])
    bends = np.array([(-1) ** index * height for index, height in enumerate(heights)])

    pieces = list(zip(bends.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    # The terms below are much larger than the value that they leave near 0, and a row promises
    # values that are right to some units in their own last place: lifted by more than the terms
    # can be there, the value is never smaller than what its rounding is relative to.
    lift = 1.0 + 4.0 * sum(
        abs(bend) * (high - low) * max(abs(low), abs(high), high - low)
        for bend, low, high in pieces
    )

    def slope(z: torch.Tensor) -> torch.Tensor:
        return first_slope + sum(
            (bend * (z.clamp(low, high) - low) for bend, low, high in pieces), 0 * z
        )

    def values(m: Any, z: Any) -> Any:
        total = first_slope * z + lift
        for bend, low, high in pieces:
            inside = m.min(m.max(z, low), high)
            total = total + bend * ((inside - low) ** 2 / 2 + (inside - low) * (z - inside))
        return total

    ends = SimpleNamespace(max=lambda z, end: z.clamp(min=end), min=lambda z, end: z.clamp(max=end))
    row = replace(
        RELU,
        name="artificial",
        value=lambda z: values(ends, z),
        slope=slope,
        inflections=tuple(edges.tolist()),
        shape="0" + "".join("+" if bend > 0 else "-" for bend in bends) + "0",
        kinks=(),
        limits=(first_slope, first_slope + float((bends * np.array(widths)).sum())),
    )
    return Case(row, values)


@settings(max_examples=15, deadline=None)
@given(
    heights=st.lists(st.floats(0.1, 4), min_size=1, max_size=5),
    width=st.floats(0.2, 3),
    start=st.floats(-6, 1),
    slope=st.floats(-2, 2),
    seed=st.integers(0, 10**6),
)
@pytest.mark.slow
def test_any_sequence_of_pieces(
    heights: list[float], width: float, start: float, slope: float, seed: int
) -> None:
    widths = [width * (1 + index % 2) for index in range(len(heights))]
    case = _waves(heights, widths, start, slope)
    check_sampled(case, 1.0, torch.float64, seed, 24, 24)
    generator = np.random.default_rng(seed)
    low = generator.uniform(-7, 3, 3)
    check_areas(case, low, low + generator.uniform(0.5, 8, 3), 2e-5)


ODD = [
    (0.0, 0.0),
    (5e-324, 5e-324),
    (-5e-324, 1e-310),
    (-1e-320, -1e-321),
    (1e-3, 1e-3),
    (-1e30, 1e30),
    (-1e-12, 1e12),
]


@pytest.mark.parametrize("name", CASES)
def test_degenerate_huge_and_subnormal(name: str) -> None:
    case = CASES[name]
    for low, high in ODD:
        lines, (least, most) = (
            relax(case.row, tensor(low), tensor(high)),
            interval(case.row, tensor(low), tensor(high)),
        )
        a, b, c, d = (mpmath.mpf(each.item()) for each in parts(lines))
        for share in (0, 0.25, 0.5, 1):
            x = mpmath.mpf(low) + share * (mpmath.mpf(high) - mpmath.mpf(low))
            true = case.exact(x)
            assert a * x + b <= true <= c * x + d, (low, high)
            assert least.item() <= true <= most.item(), (low, high)
        if high - low < 1e-9:
            assert c * low + d - (a * low + b) < 1e-12, (low, high)


@pytest.mark.parametrize(
    "name",
    [
        "hard-swish",
        "elu 0.25",
        "elu 3",
        "elu -1",
        "relu2",
        "tanh",
        "silu",
        "leaky 1.5",
        "relu6",
        "clip to 1",
    ],
)
def test_intervals_that_end_at_kinks_and_points_there(name: str) -> None:
    # At a kink the row gives the slope of one side only; on the other side's piece that is no
    # tangent.
    case = CASES[name]
    places = sorted({0.0, *case.row.inflections, *case.row.kinks})
    others = np.concatenate(
        [np.linspace(-5, 5, 21), np.array(places)[:, None].repeat(8, 1).ravel()]
    )
    others[-8 * len(places) :] += np.tile(
        [-1e-9, 1e-9, -1e-3, 1e-3, -0.05, 0.05, -0.5, 0.5], len(places)
    )
    pairs = [(min(place, at), max(place, at)) for place in places for at in others]
    low, high = (np.array(ends) for ends in zip(*pairs, strict=True))
    x = np.linspace(0, 1, 201)[:, None] * (high - low) + low
    value, noise = case.numeric(x), 4e-15 * (np.abs(x) + np.abs(case.numeric(x)))
    for point in (None, *places, -50.0, 50.0):
        chosen = (
            None if point is None else (torch.full((len(low),), point, dtype=torch.float64),) * 2
        )
        lines = relax(case.row, torch.from_numpy(low), torch.from_numpy(high), points=chosen)
        a, b, c, d = (each.numpy() for each in parts(lines))
        assert (a * x + b <= value + noise).all()
        assert (value - noise <= c * x + d).all()


@pytest.mark.parametrize("name", CASES)
def test_intercepts_are_sound_for_any_slope_and_any_guess(name: str) -> None:
    case, generator = CASES[name], np.random.default_rng(5)
    places = [0.0, *case.row.inflections, *case.row.kinks]
    ends = np.sort(
        np.where(
            generator.uniform(0, 1, (2, 400)) < 0.3,
            generator.choice(places, (2, 400)),
            generator.uniform(-5, 5, (2, 400)),
        ),
        0,
    )
    slope = generator.uniform(-2.5, 2.5, 400)
    guesses = np.where(
        generator.uniform(0, 1, (2, 400)) < 0.5, ends, generator.choice(places, (2, 400))
    )
    z = np.linspace(0, 1, 101)[:, None] * (ends[1] - ends[0]) + ends[0]
    each = normal(torch.from_numpy(ends[0]), torch.from_numpy(ends[1]), 1.0)
    for sign, shape in ((1, curve(case.row)), (-1, curve(case.row).negated())):
        found, _ = sound_intercept(
            hull_of(shape, each), *map(torch.from_numpy, (slope, guesses[0], guesses[1]))
        )
        assert (found.numpy() <= sign * case.numeric(z) - slope * z).all()


def test_the_triangle_of_relu_is_exact() -> None:
    lines = relax(
        RELU, tensor(-1.0, -3.0, 0.5, -2.0, -1.0), tensor(3.0, 1.0, 2.0, -1.0, 0.0), hardness=160.0
    )
    assert lines.lower_slope.tolist() == [1, 0, 1, 0, 0]
    assert lines.lower_intercept.tolist() == [0] * 5
    assert lines.upper_slope.tolist() == [0.75, 0.25, 1, 0, 0]
    assert lines.upper_intercept.tolist() == pytest.approx([0.75, 0.75, 0, 0, 0], abs=1e-14)
    assert lines.upper_intercept.tolist()[2:] == [0, 0, 0]
    assert [each.tolist() for each in interval(RELU, tensor(-1.0, 0.3), tensor(3.0, 2.0))] == [
        [0, 0.3],
        [3, 2],
    ]


def test_points_of_relu_are_its_lower_slope() -> None:
    alpha = tensor(0.3, 0.3, 1.7).requires_grad_()
    lines = relax(RELU, tensor(-1.0, 1.0, -2.0), tensor(3.0, 2.0, 1.0), points=(alpha, alpha))
    assert lines.lower_slope.tolist() == [0.3, 1, 1]
    assert lines.lower_intercept.tolist() == [0, 0, 0]
    (gradient,) = torch.autograd.grad(
        (lines.lower_slope * -0.5 + lines.lower_intercept).sum(), alpha
    )
    assert gradient.tolist() == [-0.5, 0, 0]


@pytest.mark.parametrize(
    "name", ["gelu", "tanh", "sigmoid", "softplus", "hard-swish", "silu", "xielu", "clip -1 2"]
)
def test_points_move_the_lines_and_are_differentiable(name: str) -> None:
    row, low, high = CASES[name].row, tensor(-1.0), tensor(1.5)

    def height(point: torch.Tensor) -> torch.Tensor:
        lines = relax(row, low, high, points=(point, point))
        return (
            (lines.lower_slope + lines.upper_slope) * 0.3
            + lines.lower_intercept
            + lines.upper_intercept
        )

    for start in (-0.7, 0.2, 1.2):
        point = tensor(start).requires_grad_()
        (gradient,) = torch.autograd.grad(height(point).sum(), point)
        ahead, behind = height(tensor(start + 1e-5)), height(tensor(start - 1e-5))
        assert gradient.item() == pytest.approx(((ahead - behind) / 2e-5).item(), abs=1e-5)


def test_points_of_what_is_piecewise_linear_are_slopes() -> None:
    row, low, high = CASES["relu6"].row, tensor(-1.0, 1.0, -2.0, 5.0), tensor(7.0, 2.0, 1.0, 9.0)
    lines = relax(row, low, high, points=(tensor(0.3, 0.3, 1.7, 0.3), tensor(0.9, -5.0, 0.5, 2.0)))
    assert lines.lower_slope.tolist() == [0.3, 1, 1, 0.3]
    assert lines.upper_slope.tolist() == [0.9, 1, 0.5, 1]
    # By the points that the lines touch: (0, 0), f itself, (0, 0), (9, 6); and (-1, 0), f itself,
    # (-2, 0), (5, 5).
    assert lines.lower_intercept.tolist() == pytest.approx([0, 0, 0, 3.3], abs=1e-12)
    assert lines.upper_intercept.tolist() == pytest.approx([0.9, 0, 1, 0], abs=1e-12)


def test_bad_rows_and_intervals_are_refused() -> None:
    with pytest.raises(ValueError, match="'bent': shape"):
        relax(replace(SILU, name="bent", shape="-+"), tensor(0.0), tensor(1.0))
    with pytest.raises(ValueError, match="ascending"):
        relax(replace(SILU, name="bent", inflections=(1.0, -1.0)), tensor(0.0), tensor(1.0))
    for row in (RELU, GELU, TANH, SOFTPLUS, SILU):
        for low, high, hardness, message in (
            (float("nan"), 1.0, 1.0, "finite"),
            (0.0, float("inf"), 1.0, "finite"),
            (1.0, 0.5, 1.0, r"reversed: \[1, 0.5\]"),
            (0.0, 1.0, -1.0, "hardness"),
            (0.0, 1.0, 0.0, "hardness"),
            (0.0, 1.0, float("nan"), "hardness"),
            (0.0, 1e101, 1.0, "1e\\+100"),
        ):
            for call in (relax, interval):
                with pytest.raises(ValueError, match=message):
                    call(row, tensor(low), tensor(high), hardness=hardness)
    with pytest.raises(ValueError, match="overflow float32"):
        relax(XIELU_ROW, torch.tensor([1e30]), torch.tensor([1e31]))
