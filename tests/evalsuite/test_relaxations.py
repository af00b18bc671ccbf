"""Sound lines: closed forms, a million sampled points against scipy and mpmath, tightness against dense grids."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special

from evalsuite import GELU, RELU
from evalsuite.activations.expanded import XSILU, XSiLU
from evalsuite.relaxations import Lines, interval, relax, windows

HARDNESS = (1.0, 2.0, 10.0, 160.0)
mpmath.mp.dps = 60


def reference(x: np.ndarray, hardness: float) -> np.ndarray:
    """x Phi(hardness x), through the logarithm so that the left tail is accurate."""
    return x * np.exp(special.log_ndtr(hardness * x))


def exact(x: float, hardness: float) -> mpmath.mpf:
    return mpmath.mpf(x) * mpmath.ncdf(mpmath.mpf(hardness) * mpmath.mpf(x))


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_intervals(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """In normal coordinates: ordinary, narrow, point-like, huge, barely crossing zero, and around the inflections."""
    share = count // 8
    magnitude = 10.0 ** generator.uniform(-12, 3, (4, share))
    start = np.concatenate(
        [
            generator.uniform(-5, 5, 2 * share),
            generator.uniform(-3, 3, share),
            -magnitude[0],
            magnitude[1],
            -magnitude[2],
            generator.choice([-(2**0.5), 0.0, 2**0.5], share) + generator.normal(0, 1e-3, share),
            generator.uniform(-3, 3, share),
        ]
    )
    width = np.concatenate(
        [
            generator.uniform(0, 8, 2 * share),
            10.0 ** generator.uniform(-12, -3, share),
            magnitude[0] + 10.0 ** generator.uniform(-12, 3, share),
            magnitude[3],
            10.0 ** generator.uniform(-9, 2, share) * generator.integers(0, 2, share),
            10.0 ** generator.uniform(-6, 1, share),
            np.zeros(share),
        ]
    )
    return start, start + width


def points_in(lower: np.ndarray, upper: np.ndarray, generator: np.random.Generator, count: int) -> np.ndarray:
    """(intervals, count): the ends, their neighbours, and points drawn evenly and near the ends."""
    even = generator.uniform(0, 1, (len(lower), count - 4))
    even[:, ::4] **= 8
    even[:, 1::4] = 1 - even[:, 1::4] ** 8
    inner = lower[:, None] + even * (upper - lower)[:, None]
    ends = np.stack([lower, upper, np.nextafter(lower, np.inf), np.nextafter(upper, -np.inf)], 1)
    return np.clip(np.concatenate([ends, inner], 1), lower[:, None], upper[:, None])


def gaps(lines: Lines, x: np.ndarray, hardness: float) -> tuple[np.ndarray, np.ndarray]:
    value = reference(x, hardness)
    a, b, c, d = (each.double().numpy()[:, None] for each in (
        lines.lower_slope, lines.lower_intercept, lines.upper_slope, lines.upper_intercept))  # fmt: skip
    return value - (a * x + b), (c * x + d) - value


def row_of(lines: Lines, row: int) -> Lines:
    parts = (lines.lower_slope, lines.lower_intercept, lines.upper_slope, lines.upper_intercept)
    return Lines(*(each[row : row + 1] for each in parts))


def test_lines_on_the_convex_piece_by_hand() -> None:
    lines = relax(GELU, tensor(-1.0), tensor(1.0))
    assert lines.lower_slope.item() == pytest.approx(0.5, abs=1e-15)
    assert lines.lower_intercept.item() == pytest.approx(0, abs=1e-13)
    assert lines.upper_slope.item() == pytest.approx(0.5, abs=1e-15)
    assert lines.upper_intercept.item() == pytest.approx(0.3413447460685429, abs=1e-13)


def test_lines_on_a_concave_piece_by_hand() -> None:
    lines = relax(GELU, tensor(2.0), tensor(4.0))
    phi = float(mpmath.npdf(3))
    slope = float(mpmath.ncdf(3)) + 3 * phi
    assert lines.upper_slope.item() == pytest.approx(slope, abs=1e-14)
    assert lines.upper_intercept.item() == pytest.approx(-9 * phi, abs=1e-12)
    chord = (float(exact(4, 1)) - float(exact(2, 1))) / 2
    assert lines.lower_slope.item() == pytest.approx(chord, abs=1e-14)


def test_interval_finds_the_minimum() -> None:
    lower, upper = interval(GELU, tensor(-3.0, -0.5, 1.0), tensor(1.0, -0.1, 2.0))
    # The least value of gelu; the others are at ends.
    assert lower.tolist() == pytest.approx([-0.16997120747990369, float(exact(-0.5, 1)), float(exact(1, 1))], abs=1e-12)
    assert upper.tolist() == pytest.approx([float(exact(at, 1)) for at in (1, -0.1, 2)], abs=1e-12)


@pytest.mark.parametrize("hardness", HARDNESS)
def test_no_violation_in_sampled_points(hardness: float) -> None:
    generator = np.random.default_rng(int(hardness))
    low, high = random_intervals(generator, 8000)
    low, high = low / hardness, high / hardness
    x = points_in(low, high, generator, 48)
    lines = relax(GELU, torch.from_numpy(low), torch.from_numpy(high), hardness=hardness)
    below, above = gaps(lines, x, hardness)
    assert x.size >= 375_000
    assert below.min() >= 0
    assert above.min() >= 0
    least, most = (each.numpy()[:, None] for each in interval(
        GELU, torch.from_numpy(low), torch.from_numpy(high), hardness=hardness))  # fmt: skip
    assert (least <= reference(x, hardness)).all()
    assert (reference(x, hardness) <= most).all()
    # Where the gap is least, float64 proves least: evaluate there, and the lines too, with 60 digits.
    scale = np.abs(low) + np.abs(high) + 1e-300
    for gap, slopes, intercepts, sign in (
        (below, lines.lower_slope, lines.lower_intercept, 1),
        (above, lines.upper_slope, lines.upper_intercept, -1),
    ):
        for flat in np.argsort((gap / scale[:, None]).ravel())[:60]:
            row, at = divmod(int(flat), x.shape[1])
            point = mpmath.mpf(float(x[row, at]))
            line = mpmath.mpf(slopes[row].item()) * point + mpmath.mpf(intercepts[row].item())
            assert sign * (exact(float(x[row, at]), hardness) - line) >= 0


@given(
    start=st.floats(-1e3, 1e3, allow_subnormal=False),
    width=st.one_of(st.just(0.0), st.floats(0, 1e3), st.floats(0, 1e-6)),
    at=st.floats(0, 1),
    hardness=st.sampled_from(HARDNESS),
    point=st.floats(-5, 5),
    single=st.booleans(),
)
def test_lines_hold_exactly(start: float, width: float, at: float, hardness: float, point: float, single: bool) -> None:
    dtype = torch.float32 if single else torch.float64
    low = torch.tensor([start], dtype=dtype)
    high = torch.maximum(low, torch.tensor([start + width], dtype=dtype))
    x = min(max(low.item() + at * (high.item() - low.item()), low.item()), high.item())
    chosen = (tensor(point), tensor(-point))
    least, most = interval(GELU, low, high, hardness=hardness)
    assert least.item() <= exact(x, hardness) <= most.item()
    for lines in (relax(GELU, low, high, hardness=hardness), relax(GELU, low, high, hardness=hardness, points=chosen)):
        assert lines.lower_slope.dtype is dtype
        lower = mpmath.mpf(lines.lower_slope.item()) * x + mpmath.mpf(lines.lower_intercept.item())
        upper = mpmath.mpf(lines.upper_slope.item()) * x + mpmath.mpf(lines.upper_intercept.item())
        assert lower <= exact(x, hardness) <= upper


def best_area(low: float, high: float) -> tuple[float, float]:
    """Least area of a lower and of an upper line, over a dense grid of slopes, each supporting g on a dense grid."""
    z = np.linspace(low, high, 2001)
    value = reference(z, 1.0)
    slopes = np.linspace(-0.15, 1.15, 1301)
    rest = value[None] - slopes[:, None] * z[None]
    middle = slopes * (low + high) / 2
    area = integrate.simpson(value, x=z)
    width = high - low
    return area - (rest.min(1) + middle).max() * width, (rest.max(1) + middle).min() * width - area


@pytest.mark.slow
def test_lines_have_almost_the_least_area() -> None:
    generator = np.random.default_rng(3)
    low = generator.uniform(-5, 4, 100)
    high = low + generator.uniform(0.05, 8, 100)
    # Where both tangents of the envelope matter, and where the upper line starts next to zero.
    low, high = np.append(low, [-3, -6, 1e-4, 1e-9, 0.3, -6]), np.append(high, [3, 6, 6, 4, 5, -0.2])
    lines = relax(GELU, torch.from_numpy(low), torch.from_numpy(high))
    for row, (a, b) in enumerate(zip(low, high, strict=True)):
        z = np.linspace(a, b, 4001)
        below, above = gaps(row_of(lines, row), z[None], 1.0)
        best_below, best_above = best_area(a, b)
        assert integrate.simpson(below[0], x=z) <= 1.01 * best_below + 1e-6 * (b - a)
        assert integrate.simpson(above[0], x=z) <= 1.01 * best_above + 1e-6 * (b - a)


def test_the_interval_that_a_table_of_upper_tangents_gets_wrong() -> None:
    low, high = 1e-4, 6.0
    x = np.linspace(low, high, 100_001)
    greatest = (reference(x, 1.0) - 1.01 * x).max()
    lines = relax(GELU, tensor(low), tensor(high))
    bound = max((lines.upper_slope.item() - 1.01) * at + lines.upper_intercept.item() for at in (low, high))
    assert greatest == pytest.approx(-0.00005, abs=2e-6)
    assert greatest <= bound <= greatest + 1e-4


def test_tangent_points_are_differentiable() -> None:
    low, high = tensor(-1.2, 1.6, -4.0, 0.5), tensor(1.1, 4.0, -1.5, 6.0)
    start = (tensor(0.3, 0.0, 0.0, 1.0), tensor(0.0, 2.5, -2.5, 3.5))

    def value(below: torch.Tensor, above: torch.Tensor) -> torch.Tensor:
        lines = relax(GELU, low, high, points=(below, above))
        lower, upper = lines.lower_slope * 0.7 + lines.lower_intercept, lines.upper_slope * 0.7 + lines.upper_intercept
        return torch.cat([lower, upper])

    points = tuple(each.clone().requires_grad_() for each in start)
    gradients = torch.autograd.grad(value(*points).sum(), points)
    step = 1e-6
    for side in (0, 1):
        for index in range(len(low)):
            shift = [torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)]
            shift[side][index] = step
            ahead = value(start[0] + shift[0], start[1] + shift[1]).sum()
            behind = value(start[0] - shift[0], start[1] - shift[1]).sum()
            assert gradients[side][index].item() == pytest.approx(((ahead - behind) / (2 * step)).item(), abs=1e-6)
    assert gradients[0][0] != 0
    assert gradients[1][1] != 0


def test_points_outside_their_windows_are_moved_in() -> None:
    low, high = tensor(-3.0), tensor(3.0)
    window = windows(GELU, low, high)
    inside = relax(GELU, low, high, points=(window.lower_last, tensor(0.0)))
    outside = relax(GELU, low, high, points=(tensor(9.0), tensor(0.0)))
    assert torch.equal(inside.lower_slope, outside.lower_slope)
    assert -(2**0.5) < window.lower_first.item() < -0.75179 < 0.75179 < window.lower_last.item() < 2**0.5
    # The upper envelope is the chord: no tangent has an effect.
    assert torch.equal(relax(GELU, low, high).upper_slope, relax(GELU, low, high, points=(low, high)).upper_slope)


def test_hardness_per_channel_and_leading_dimensions_of_points() -> None:
    low, high = torch.full((2, 3), -0.4, dtype=torch.float64), torch.full((2, 3), 0.7, dtype=torch.float64)
    hardness = tensor(*HARDNESS[:3])
    whole = relax(GELU, low, high, hardness=hardness)
    for channel, each in enumerate(HARDNESS[:3]):
        part = relax(GELU, low[:, channel], high[:, channel], hardness=each)
        assert torch.equal(whole.upper_intercept[:, channel], part.upper_intercept)
    points = torch.zeros(5, 2, 3, dtype=torch.float64)
    assert relax(GELU, low, high, hardness=hardness, points=(points, points)).lower_intercept.shape == (5, 2, 3)


@pytest.mark.parametrize(
    ("low", "high", "hardness", "message"),
    [
        (float("nan"), 1.0, 1.0, "finite"),
        (0.0, float("inf"), 1.0, "finite"),
        (1.0, 0.5, 1.0, r"reversed: \[1, 0.5\]"),
        (0.0, 1.0, 0.0, "hardness"),
        (0.0, 1.0, float("nan"), "hardness"),
    ],
)
def test_bad_intervals_are_refused(low: float, high: float, hardness: float, message: str) -> None:
    for call in (relax, interval):
        with pytest.raises(ValueError, match=message):
            call(GELU, tensor(low), tensor(high), hardness=hardness)


def test_other_dtypes_and_windows_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="relu"):
        windows(RELU, tensor(0.0), tensor(1.0))
    with pytest.raises(ValueError, match="float16"):
        relax(GELU, tensor(0.0).half(), tensor(1.0).half())
    with pytest.raises(ValueError, match="one shape"):
        relax(GELU, tensor(0.0), tensor(1.0, 2.0))


@pytest.mark.parametrize("a", [1e3, 1e6])
def test_a_steep_row_is_relaxed_soundly_too(a: float) -> None:
    module = XSiLU()
    with torch.no_grad():
        module.a.fill_(a)
    row, generator = XSILU.of(module), torch.Generator().manual_seed(0)
    a = module.a.item()
    lower = torch.randn(300, dtype=torch.float64, generator=generator) * 6
    upper = lower + torch.rand(300, dtype=torch.float64, generator=generator) * 8
    lines = relax(row, lower, upper)
    for share in (0.0, 0.5, 1.0):
        points = (lower + share * (upper - lower)).clamp(lower, upper)
        for i, point in enumerate(points.tolist()):
            x = mpmath.mpf(point)
            true = x * ((1 + 2 * mpmath.mpf(a)) / (1 + mpmath.exp(-x)) - mpmath.mpf(a))
            assert mpmath.mpf(float(lines.lower_slope[i])) * x + mpmath.mpf(float(lines.lower_intercept[i])) <= true
            assert mpmath.mpf(float(lines.upper_slope[i])) * x + mpmath.mpf(float(lines.upper_intercept[i])) >= true
