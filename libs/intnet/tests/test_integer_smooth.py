"""Tables and polynomials for smooth activations, against mpmath and exact integers."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch

from intnet.grids import Grid, Rounding
from intnet.pointwise import Polynomial
from intnet.smooth import make_polynomial, make_table, smooth_input_grid
from lambda_gelu.activations import GELU, LAMBDA_GELU
from lambda_gelu.activations.elu import ELU
from lambda_gelu.activations.gates import HARD_SIGMOID, SIGMOID, TANH
from lambda_gelu.activations.leaky import LEAKY_RELU
from lambda_gelu.activations.relu6 import RELU6
from lambda_gelu.activations.silu import SILU
from opgraph.errors import Unsupported

# an odd numerator: no multiple of the inputs' scales below is a tie
OUTPUT = Grid(0.0217, 9, 0, 255)


def gelu(x: float, hardness: float = 1.0) -> float:
    """x Phi(lambda x)."""
    return float(x * mpmath.ncdf(mpmath.mpf(hardness) * x))


def silu(x: float, _: float = 1.0) -> float:
    return float(x / (1 + mpmath.exp(-mpmath.mpf(x))))


def run(polynomial: Polynomial) -> tuple[np.ndarray, np.ndarray]:
    """Every real input of the polynomial, and its real results."""
    grid, out = polynomial.input, polynomial.output
    integers = np.arange(grid.low, grid.high + 1)
    made = polynomial.apply([integers], Rounding.HALF_EVEN)
    return grid.scale * (integers - grid.zero_point), out.scale * (made - out.zero_point)


@pytest.mark.parametrize(
    ("row", "hardness", "exact"), [(GELU, 1.0, gelu), (LAMBDA_GELU, 7.3, gelu), (SILU, 1.0, silu)]
)
@pytest.mark.parametrize(
    "grid", [Grid(0.0311, 100, 0, 255), Grid(0.0713, -128, -128, 127), Grid(0.4, 15, 0, 15)]
)
def test_an_entry_is_the_rounded_value_of_the_activation(row, hardness, exact, grid):
    table = make_table("act", ("x",), row, hardness, grid, OUTPUT)
    assert table.table.dtype == np.uint8
    expected = []
    for integer in range(grid.low, grid.high + 1):
        steps = exact(grid.scale * (integer - grid.zero_point), hardness) / OUTPUT.scale
        assert abs(steps - math.floor(steps) - 0.5) > 1e-9, (
            "a tie cannot be judged in another arithmetic"
        )
        expected.append(min(max(math.floor(steps + 0.5) + OUTPUT.zero_point, 0), 255))
    assert table.table.tolist() == expected


def test_ties_of_a_table_go_to_the_even_integer():
    """ReLU-like exact values: far out GELU is x itself, and x = 100.5, 101.5 steps are ties."""
    table = make_table("act", ("x",), GELU, 1.0, Grid(0.5, 0, 0, 255), Grid(1.0, 0, 0, 255))
    assert table.table[[201, 203]].tolist() == [100, 102]
    shifted = make_table("act", ("x",), GELU, 1.0, Grid(0.5, 0, 0, 255), Grid(1.0, 1, 0, 255))
    assert shifted.table[[201, 203]].tolist() == [102, 102], "even together with the zero point"


def test_what_no_table_can_hold_is_refused():
    grid = Grid(0.1, 0, 0, 255)
    with pytest.raises(ValueError, match=r"'ffn.act'.*hardness.*positive"):
        make_table("ffn.act", ("x",), GELU, 0.0, grid, OUTPUT)
    with pytest.raises(ValueError, match=r"'ffn.act'.*\[-128, 127\]"):
        make_table("ffn.act", ("x",), GELU, 1.0, grid, Grid(0.1, 0, -128, 127))


@pytest.mark.parametrize("hardness", [1.0, 3.0, 40.0])
def test_the_polynomial_is_as_near_to_gelu_as_published(hardness):
    """I-BERT states a greatest error of 0.018 (table 1); that of x Phi(lambda x) is 1 / lambda
    of it.
    """
    # so fine that its own rounding does not matter
    output = Grid(0.0005 / hardness, 1000, 0, 65535)
    real, made = run(
        make_polynomial(
            "act", ("x",), hardness, Grid(8 / 65536 / hardness, 32768, 0, 65535), output
        )
    )
    exact = real * torch.special.ndtr(torch.from_numpy(hardness * real)).numpy()
    error = np.abs(made - exact).max()
    assert 0.015 / hardness < error < 0.02 / hardness + output.scale


@pytest.mark.parametrize(
    ("bits", "scale"), [(8, 0.04), (8, 0.5), (8, 3.0), (16, 1e-4), (16, 0.01), (16, 2.0)]
)
@pytest.mark.parametrize("where", [0.0, 0.4, 1.0])
def test_the_polynomial_is_right_on_coarse_and_on_skewed_grids(bits, scale, where):
    high = 2**bits - 1
    output = Grid(scale, round(where * high), 0, high)
    grid = Grid(scale, round(where * high), 0, high)
    real, made = run(make_polynomial("act", ("x",), 1.0, grid, output))
    exact = real * torch.special.ndtr(torch.from_numpy(real)).numpy()
    # Half a step of output, half a step for the rounded limit of the polynomial, and its own error.
    assert np.abs(made - exact).max() <= 0.02 + scale


@pytest.mark.parametrize("bits", [8, 16])
def test_the_tails_of_the_polynomial_are_exact(bits):
    grid = Grid(24 / 2**bits, 2 ** (bits - 1), 0, 2**bits - 1)
    real, made = run(
        make_polynomial("act", ("x",), 1.0, grid, Grid(grid.scale, grid.zero_point, 0, grid.high))
    )
    tail = 1.769 * math.sqrt(2) + grid.scale
    assert np.array_equal(made[real > tail], real[real > tail])
    assert not made[real < -tail].any()
    assert made[real < -tail].size > 50
    assert (np.diff(made[real > 0]) >= 0).all()


def exact_steps(polynomial: Polynomial, integer: int) -> list[int]:
    """All intermediate values for one input, in Python's unbounded integers."""
    q = integer - polynomial.input.zero_point
    t = min(abs(q), polynomial.limit) - polynomial.limit
    e = (1 if q > 0 else -1 if q < 0 else 0) * (polynomial.constant - t * t)
    product = q * ((e >> polynomial.shift) + polynomial.one)
    return [t * t, e, product, product * int(polynomial.factor.multiplier[0])]


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("scale", [1e-6, 1e-4, 0.01, 1.0, 10.0])
@pytest.mark.parametrize("hardness", [1.0, 160.0])
def test_all_products_fit_and_no_precision_is_given_away(bits, scale, hardness):
    for zero_point in (0, 2 ** (bits - 1), 2**bits - 1):
        grid = Grid(scale, zero_point, 0, 2**bits - 1)
        polynomial = make_polynomial("act", ("x",), hardness, grid, OUTPUT)
        assert polynomial.constant == polynomial.one << polynomial.shift < 2**63
        for integer in range(0, 2**bits, 1 if bits == 8 else 97):
            squared, e, product, rescaled = exact_steps(polynomial, integer)
            assert squared < 2**63
            assert abs(e) < 2**63
            assert abs(product) < 2**31
            assert abs(rescaled) < 2**62
        greatest = max(zero_point, grid.high - zero_point)
        assert polynomial.shift == 0 or 4 * (polynomial.one + 1) * greatest >= 2**31


def test_grids_that_the_polynomial_cannot_take_are_refused():
    with pytest.raises(ValueError, match=r"'act'.*scale 1e-10.*at least 1.16e-09"):
        make_polynomial("act", ("x",), 1.0, Grid(1e-10, 0, 0, 65535), OUTPUT)
    with pytest.raises(ValueError, match=r"'act'.*exceed"):
        make_polynomial("act", ("x",), 1.0, Grid(1.0, 0, 0, 2**30), OUTPUT)
    with pytest.raises(ValueError, match="rescaling factor"):
        make_polynomial("act", ("x",), 1.0, Grid(10.0, 0, 0, 255), Grid(1e-9, 0, 0, 255))


COARSE, FINE = Grid(10.0, 3, 0, 255), Grid(1e-6, 0, 0, 255)
LEVEL = (OUTPUT, Grid(0.004, 255, 0, 255), Grid(0.9, 0, 0, 15))  # for what tends to two values
RISING = (Grid(0.02, 9, 0, 255), FINE, COARSE, Grid(0.3, 15, 0, 15))


@pytest.mark.parametrize(
    ("row", "hardness", "outputs"),
    [
        *((row, 1.0, LEVEL) for row in (RELU6, TANH, SIGMOID, HARD_SIGMOID)),
        *((row, hardness, RISING) for row, hardness in ((GELU, 1.0), (GELU, 160.0), (SILU, 1.0))),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_outside_the_derived_grid_every_result_is_constant(row, hardness, outputs):
    for output, bits in itertools.product(outputs, (8, 16)):
        grid = smooth_input_grid(hardness, output, bits, row)
        ends = grid.scale * (np.array([grid.low, grid.high]) - grid.zero_point)
        away = np.geomspace(1e-6, 1e4, 500)
        beyond = np.concatenate([ends[0] - away, ends[1] + away])
        real = row.value(torch.from_numpy(hardness * np.append(ends, beyond))).numpy() / hardness
        entries = np.clip(np.rint(real / output.scale + output.zero_point), output.low, output.high)
        assert (entries[2:] == np.repeat(entries[:2], 500)).all()
        assert ends[0] <= 0 <= ends[1]
        assert outputs is RISING or ends[1] - ends[0] < 40


@pytest.mark.parametrize(
    "output", [Grid(0.02, 9, 0, 255), Grid(0.3, 9, 0, 15), Grid(0.001, 100, 0, 255)]
)
@pytest.mark.parametrize("hardness", [1.0, 5.0])
def test_clipping_changes_no_result_of_the_polynomial_either(output, hardness):
    polynomial = make_polynomial(
        "act", ("x",), hardness, smooth_input_grid(hardness, output, 16), output
    )
    made = polynomial.apply([np.array([0, polynomial.input.zero_point, 65535])], Rounding.HALF_EVEN)
    assert made.tolist() == [output.zero_point, output.zero_point, output.high]


def test_the_derived_grid_is_no_wider_than_needed():
    grid = smooth_input_grid(1.0, OUTPUT, 8)
    low, high = (grid.scale * (end - grid.zero_point) for end in (0, 255))
    # f is half a step below 0, or half a step below the greatest output, where x Phi(x) is x
    half = OUTPUT.scale / 2
    assert low == pytest.approx(
        float(mpmath.findroot(lambda x: x * mpmath.ncdf(x) + half, -2.6)), abs=grid.scale
    )
    assert high == pytest.approx(OUTPUT.scale * (255 - 9) - half, abs=grid.scale)
    # An output grid without negative numbers needs no negative input.
    assert smooth_input_grid(1.0, Grid(0.02, 0, 0, 255), 8).zero_point == 0


def test_a_grid_is_derived_only_where_the_activation_ends_like_relu():
    for row in (LEAKY_RELU, ELU):
        with pytest.raises(Unsupported, match=rf"'{row.name}'.*calibrated"):
            smooth_input_grid(1.0, OUTPUT, 8, row=row)
    with pytest.raises(ValueError, match=r"bits must be in \[2, 16\], got 17"):
        smooth_input_grid(1.0, OUTPUT, 17)
    # Where every input gives the same integer, some grid is returned.
    assert smooth_input_grid(1.0, Grid(1.0, 255, 0, 255), 8).high == 255
