"""Sound lines of GELU, envelopes, planes of products and of gated units: closed forms, and points
that are drawn.

The rows' file samples every activation.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from lambda_gelu.activations import GELU, RELU
from lambda_gelu.activations.expanded import XSILU, XSiLU
from lambda_gelu.activations.hard_swish import HARD_SWISH
from lambda_gelu.activations.silu import SILU
from netverify.relaxations import SIGMOID, TANH, Planes, envelope, gated, interval, product, relax
from netverify.relaxations.pieces import curve
from netverify.relaxations.waves import wave

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
    assert lower.tolist() == pytest.approx(
        [-0.16997120747990369, float(exact(-0.5, 1)), float(exact(1, 1))], abs=1e-12
    )
    assert upper.tolist() == pytest.approx([float(exact(at, 1)) for at in (1, -0.1, 2)], abs=1e-12)


def test_the_interval_that_a_table_of_upper_tangents_gets_wrong() -> None:
    low, high = 1e-4, 6.0
    x = np.linspace(low, high, 100_001)
    greatest = (reference(x, 1.0) - 1.01 * x).max()
    lines = relax(GELU, tensor(low), tensor(high))
    bound = max(
        (lines.upper_slope.item() - 1.01) * at + lines.upper_intercept.item() for at in (low, high)
    )
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
    assert torch.equal(
        relax(GELU, low, high).upper_slope, relax(GELU, low, high, points=(low, high)).upper_slope
    )


def test_hardness_per_channel_and_leading_dimensions_of_points() -> None:
    low, high = (
        torch.full((2, 3), -0.4, dtype=torch.float64),
        torch.full((2, 3), 0.7, dtype=torch.float64),
    )
    hardness = tensor(*HARDNESS[:3])
    whole = relax(GELU, low, high, hardness=hardness)
    for channel, each in enumerate(HARDNESS[:3]):
        part = relax(GELU, low[:, channel], high[:, channel], hardness=each)
        assert torch.equal(whole.upper_intercept[:, channel], part.upper_intercept)
    points = torch.zeros(5, 2, 3, dtype=torch.float64)
    assert relax(
        GELU, low, high, hardness=hardness, points=(points, points)
    ).lower_intercept.shape == (5, 2, 3)


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
            assert (
                mpmath.mpf(float(lines.lower_slope[i])) * x
                + mpmath.mpf(float(lines.lower_intercept[i]))
                <= true
            )
            assert (
                mpmath.mpf(float(lines.upper_slope[i])) * x
                + mpmath.mpf(float(lines.upper_intercept[i]))
                >= true
            )


REFERENCES = {
    "gelu": (GELU, lambda z: z * special.ndtr(z)),
    "silu": (SILU, lambda z: z * special.expit(z)),
    "tanh": (TANH, np.tanh),
    "sigmoid": (SIGMOID, special.expit),
    "hard-swish": (HARD_SWISH, lambda z: z * np.clip(z + 3, 0, 6) / 6),
    "relu": (RELU, lambda z: np.maximum(z, 0)),
}


def boxes(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(count, dtype=torch.float64, generator=generator) * 10 - 6
    return low, low + torch.rand(count, dtype=torch.float64, generator=generator) ** 2 * 8


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(("hardness", "dtype"), [(1.0, torch.float64), (30.0, torch.float32)])
def test_envelopes_are_sound_nested_and_cover_the_interval(
    name: str, hardness: float, dtype: torch.dtype
) -> None:
    row, reference = REFERENCES[name]
    low, high = ((end / hardness).to(dtype) for end in boxes(0, 40))
    before = earlier = None
    for segments in (1, 2, 3, 5, 9):
        found = envelope(row, low, high, segments, hardness=hardness)
        assert found.breaks.shape == (40, segments + 1)
        assert torch.equal(found.breaks[:, 0], low)
        assert torch.equal(found.breaks[:, -1], high)
        assert bool((found.breaks.diff(dim=-1) >= 0).all())
        start, end = found.breaks[:, :-1].double().numpy(), found.breaks[:, 1:].double().numpy()
        lines = found.lines
        a, b, c, d = (
            each.double().numpy()
            for each in (
                lines.lower_slope,
                lines.lower_intercept,
                lines.upper_slope,
                lines.upper_intercept,
            )
        )
        for share in np.linspace(0, 1, 33):
            x = start + share * (end - start)
            value, noise = reference(hardness * x) / hardness, 1e-15 * np.abs(x)
            assert (a * x + b <= value + noise).all()
            assert (value - noise <= c * x + d).all()
        area = found.area()
        if before is not None and earlier is not None:
            assert bool((area <= before + 1e-6 / hardness).all())
            # The breaks of fewer segments are among those of more.
            gaps = (found.breaks.unsqueeze(-1) - earlier.unsqueeze(-2)).abs().amin(-2)
            assert float(gaps.max()) == 0
        before, earlier = area, found.breaks
    assert float(before.sum()) < 0.1 * float(
        envelope(row, low, high, 1, hardness=hardness).area().sum()
    )


def test_two_segments_of_relu_are_relu() -> None:
    found = envelope(RELU, tensor(-1.0), tensor(3.0), 2)
    assert found.breaks.tolist() == [[-1, 0, 3]]
    assert found.lines.lower_slope.tolist() == found.lines.upper_slope.tolist() == [[0, 1]]
    assert found.lines.upper_intercept.abs().max() == 0


def test_one_segment_is_relax_and_a_point_has_none_of_any_width() -> None:
    low, high = boxes(1, 30)
    whole, lines = envelope(GELU, low, high, 1).lines, relax(GELU, low, high)
    assert torch.equal(whole.lower_intercept[:, 0], lines.lower_intercept)
    assert torch.equal(whole.upper_slope[:, 0], lines.upper_slope)
    assert envelope(GELU, tensor(0.5, -1.0), tensor(0.5, 1.0), 3).breaks[0].tolist() == [0.5] * 4


def test_planes_of_mccormick_by_hand() -> None:
    planes = product(tensor(1.0), tensor(3.0), tensor(-1.0), tensor(2.0))
    assert [planes.lower_x.item(), planes.lower_y.item()] == [-1, 1]
    assert planes.lower_intercept.item() == pytest.approx(1, abs=1e-12)
    assert [planes.upper_x.item(), planes.upper_y.item()] == [2, 1]
    assert planes.upper_intercept.item() == pytest.approx(-2, abs=1e-12)
    other = product(tensor(1.0), tensor(3.0), tensor(-1.0), tensor(2.0), shares=(1.0, 1.0))
    assert [other.lower_x.item(), other.lower_y.item()] == [2, 3]
    assert other.lower_intercept.item() == pytest.approx(-6, abs=1e-12)
    assert [other.upper_x.item(), other.upper_y.item()] == [-1, 3]
    assert other.upper_intercept.item() == pytest.approx(3, abs=1e-12)


def heights(planes: Planes, x: float, y: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    exact = [mpmath.mpf(getattr(planes, name).item()) for name in Planes.__slots__]
    return exact[0] * x + exact[1] * y + exact[2], exact[3] * x + exact[4] * y + exact[5]


@settings(max_examples=60, deadline=None)
@given(
    ends=st.tuples(
        *[st.floats(-1e6, 1e6)] * 2,
        *[st.one_of(st.just(0.0), st.floats(0, 1e3), st.floats(0, 1e-9))] * 2,
    ),
    share=st.floats(0, 1),
    at=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    single=st.booleans(),
)
def test_planes_of_products_hold_exactly(
    ends: tuple[float, float, float, float], share: float, at: tuple[float, float], single: bool
) -> None:
    dtype = torch.float32 if single else torch.float64
    x, y = (torch.tensor([ends[i], ends[i] + ends[i + 2]], dtype=dtype) for i in (0, 1))
    planes = product(x[:1], x[1:], y[:1], y[1:], shares=(share, 1 - share))
    assert planes.lower_x.dtype is dtype
    points = [
        mpmath.mpf(each[0].item())
        + part * (mpmath.mpf(each[1].item()) - mpmath.mpf(each[0].item()))
        for each, part in zip((x, y), at, strict=True)
    ]
    low, high = heights(planes, *points)
    assert low <= points[0] * points[1] <= high


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(("hardness", "dtype"), [(1.0, torch.float64), (30.0, torch.float32)])
def test_planes_of_gated_units_are_sound(name: str, hardness: float, dtype: torch.dtype) -> None:
    row, reference = REFERENCES[name]
    x_low, x_high = ((end / hardness).to(dtype) for end in boxes(2, 300))
    y_low, y_high = (end.to(dtype) for end in boxes(3, 300))
    planes = gated(row, x_low, x_high, y_low, y_high, hardness=hardness)
    generator = np.random.default_rng(0)
    a, b, c, p, q, r = (getattr(planes, name).double().numpy() for name in Planes.__slots__)
    shares = np.concatenate(
        [generator.uniform(0, 1, (2, 100, 300)), generator.integers(0, 2, (2, 20, 300))], 1
    )
    x, y = (
        low.double().numpy() + share * (high.double() - low.double()).numpy()
        for share, low, high in zip(shares, (x_low, y_low), (x_high, y_high), strict=True)
    )
    value = reference(hardness * x) / hardness * y
    noise = 1e-14 * (np.abs(x * y) + np.abs(value))
    assert (a * x + b * y + c <= value + noise).all()
    assert (value - noise <= p * x + q * y + r).all()


def test_planes_that_overflow_float32_are_refused() -> None:
    wide = torch.tensor([-1e30]), torch.tensor([1e30])
    with pytest.raises(ValueError, match="overflow float32; give float64 ends"):
        product(*wide, *wide)
    with pytest.raises(ValueError, match="overflow float32; give float64 ends"):
        gated(GELU, *wide, *wide)
    double = wide[0].double(), wide[1].double()
    for planes in (product(*double, *double), gated(GELU, *double, *double)):
        assert bool(planes.lower_intercept.isfinite() & planes.upper_intercept.isfinite())


def test_gated_planes_are_tight_where_one_half_is_a_point() -> None:
    low, high, y = tensor(-1.0), tensor(2.0), tensor(-3.0)
    planes, lines = gated(GELU, low, high, y, y), relax(GELU, low, high)
    for x in (-1.0, 0.3, 2.0):
        lower, upper = heights(planes, x, -3.0)
        assert float(lower) == pytest.approx(
            -3 * (lines.upper_slope * x + lines.upper_intercept).item(), abs=1e-10
        )
        assert float(upper) == pytest.approx(
            -3 * (lines.lower_slope * x + lines.lower_intercept).item(), abs=1e-10
        )


ONE = tensor(1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: product(ONE, 0 * ONE, ONE, ONE), "reversed"),
        (lambda: product(ONE, ONE, ONE, ONE / 0), "finite"),
        (lambda: product(ONE * 1e101, ONE * 1e101, ONE, ONE), "within"),
        (
            lambda: product(ONE, ONE, ONE, ONE, shares=(2.0, 0.0)),
            r"shares must be in \[0, 1\], got 2",
        ),
        (lambda: gated(GELU, ONE, ONE, tensor(0.0, 1.0), tensor(1.0, 2.0)), "one shape and dtype"),
        (lambda: relax(GELU, ONE.half(), ONE.half()), "float16"),
        (lambda: relax(GELU, ONE, tensor(1.0, 2.0)), "one shape"),
        (lambda: envelope(GELU, ONE, ONE, 0), "segments must be >= 1, got 0"),
        (lambda: envelope(GELU, ONE, 0 * ONE, 2), "reversed"),
    ],
)
def test_bad_boxes_shares_and_numbers_of_segments_are_refused(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()
