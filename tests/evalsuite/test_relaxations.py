"""Sound lines of GELU: closed forms, and points drawn by hypothesis; the rows' file samples every activation."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from evalsuite import GELU
from evalsuite.activations.expanded import XSILU, XSiLU
from evalsuite.relaxations import interval, relax
from evalsuite.relaxations.pieces import curve
from evalsuite.relaxations.waves import wave

HARDNESS = (1.0, 2.0, 10.0, 160.0)
mpmath.mp.dps = 60


def reference(x: np.ndarray, hardness: float) -> np.ndarray:
    """x Phi(hardness x), through the logarithm so that the left tail is accurate."""
    return x * np.exp(special.log_ndtr(hardness * x))


def exact(x: float, hardness: float) -> mpmath.mpf:
    return mpmath.mpf(x) * mpmath.ncdf(mpmath.mpf(hardness) * mpmath.mpf(x))


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


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


def test_the_interval_that_a_table_of_upper_tangents_gets_wrong() -> None:
    low, high = 1e-4, 6.0
    x = np.linspace(low, high, 100_001)
    greatest = (reference(x, 1.0) - 1.01 * x).max()
    lines = relax(GELU, tensor(low), tensor(high))
    bound = max((lines.upper_slope.item() - 1.01) * at + lines.upper_intercept.item() for at in (low, high))
    assert greatest == pytest.approx(-0.00005, abs=2e-6)
    assert greatest <= bound <= greatest + 1e-4


def test_points_outside_their_windows_are_moved_in() -> None:
    low, high = tensor(-3.0), tensor(3.0)
    found = wave(curve(GELU), GELU.limits)
    assert found is not None
    last = found.last_below(high)
    inside = relax(GELU, low, high, points=(last, tensor(0.0)))
    outside = relax(GELU, low, high, points=(tensor(9.0), tensor(0.0)))
    assert torch.equal(inside.lower_slope, outside.lower_slope)
    assert 0.75179 < last.item() < 2**0.5
    assert torch.equal(found.last_below(-low), last)
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


def test_other_dtypes_and_shapes_are_refused() -> None:
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
