"""Bounds of graphs over boxes: against closed forms, and where numbers are extreme."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_gelu.activations import RELU
from netverify.bisection import Demand
from netverify.graph import Affine, Graph, Maximum, Node, Operation, Pointwise
from netverify.linear import Convolution, Dense, Linear, Same, Scale, Select
from netverify.propagation import Propagation, _dot
from netverify.scalar_lines import Middle
from netverify.specification import Box, Case, Constraint
from opgraph.errors import Unsupported


def dense(*rows: list[float]) -> Dense:
    return Dense(torch.tensor(rows, dtype=torch.float64))


Step = tuple[Operation, tuple[int, ...]]


def graph_from(inputs: int, *steps: Step) -> Graph:
    values = [torch.zeros(1, inputs, dtype=torch.float64)]
    for operation, sources in steps:
        values.append(operation(*(values[each] for each in sources)).reshape(1, -1))
    sizes = [value.shape[1] for value in values[1:]]
    nodes = [
        Node(f"n{at}", *step, size)
        for at, (step, size) in enumerate(zip(steps, sizes, strict=True))
    ]
    return Graph(tuple(nodes), len(nodes), (inputs,), (sizes[-1],), "x")


def affine(source: int, map_: Linear, bias: list[float]) -> Step:
    return Affine((map_,), torch.tensor(bias, dtype=torch.float64)), (source,)


def box(*ends: tuple[float, float]) -> tuple[torch.Tensor, torch.Tensor]:
    lower, upper = torch.tensor(ends, dtype=torch.float64).T
    return lower[None], upper[None]


def bounds(
    graph: Graph, lower: torch.Tensor, upper: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    eye = torch.eye(graph.outputs, dtype=torch.float64)
    propagation = Propagation(graph, lower, upper)
    return propagation.lower_bounds(eye).value, -propagation.lower_bounds(-eye).value


def exact(weight: torch.Tensor, bias: torch.Tensor, x: list[Fraction]) -> list[Fraction]:
    terms = [[Fraction(w) for w in row] for row in weight.tolist()]
    shifts = [Fraction(b) for b in bias.tolist()]
    return [
        sum((w * v for w, v in zip(row, x, strict=True)), b)
        for row, b in zip(terms, shifts, strict=True)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_bounds_at_a_point_enclose_the_exact_rational_value(seed: int) -> None:
    # Large weights that cancel: float64 alone is off by much more than the last place of the
    # result.
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(20, 20, generator=generator).double() * 1e6 for _ in range(2))
    shifts = torch.randn(2, 20, generator=generator).double()
    last, none = torch.cat([second, -second], 1), [-1] * 20
    maps = tuple(
        Select(torch.tensor(index), 20) for index in ([*range(20), *none], [*none, *range(20)])
    )
    concat = Affine(maps, torch.zeros(40, dtype=torch.float64)), (2, 2)
    graph = graph_from(
        20,
        affine(0, Dense(first), shifts[0].tolist()),
        (Pointwise(RELU), (1,)),
        concat,
        affine(3, Dense(last), [0.1] * 20),
    )
    point = torch.randn(1, 20, generator=generator).double()
    low, high = bounds(graph, point, point)
    hidden = [
        max(each, Fraction(0))
        for each in exact(first, shifts[0], [Fraction(v) for v in point[0].tolist()])
    ]
    truth = exact(last, torch.full((20,), 0.1).double(), hidden * 2)
    assert all(
        Fraction(a) <= b <= Fraction(c)
        for a, b, c in zip(low[0].tolist(), truth, high[0].tolist(), strict=True)
    )
    assert (high - low).max() < 1e3  # of terms around 1e13


# How many sums a matrix product runs at the same time, each of every so-manieth term.
LANES = [1, 4, 16, 64]


def lost_in_sums(lanes: int, count: int = 2**18) -> torch.Tensor:
    """Numbers with a sum just above 1, which in so many running sums is 1: each adds less than
    half a unit.
    """
    numbers = torch.full((count,), 2.0**-54 / lanes, dtype=torch.float64)
    numbers[:lanes] = 1 / lanes
    return numbers


@pytest.mark.parametrize("lanes", LANES)
def test_sums_of_many_biases_are_bounded(lanes: int) -> None:
    bias = lost_in_sums(lanes)
    graph = graph_from(len(bias), (Affine((Same(),), bias), (0,)))
    zero, ones = (
        torch.zeros(1, len(bias), dtype=torch.float64),
        torch.ones(1, len(bias), dtype=torch.float64),
    )
    propagation, exact = Propagation(graph, zero, zero), math.fsum(bias.tolist())
    assert exact - 1 > 2**-43
    assert (
        propagation.lower_bounds(ones).value.item()
        <= exact
        <= -propagation.lower_bounds(-ones).value.item()
    )


@pytest.mark.parametrize("lanes", LANES)
def test_sums_of_many_intercepts_are_bounded(lanes: int) -> None:
    constant = lost_in_sums(lanes)[None]
    flat = torch.zeros_like(constant)
    lines = Middle.between((flat, constant), (flat, constant), flat)
    for sign in (1.0, -1.0):
        rows = torch.full_like(constant, sign)[None]
        found = (_dot(rows, lines.constant) - _dot(rows.abs(), lines.loss)).item()
        assert found <= sign * math.fsum(constant[0].tolist())


def test_the_loss_of_adding_rows_grows_with_their_length() -> None:
    ones = torch.ones(1, 2**12, dtype=torch.float64)
    propagation = Propagation(graph_from(2**12, (Pointwise(RELU), (0,))), ones, ones)
    # Of n products of magnitude 2 in all, half a unit in the last place for each of the n.
    lost = propagation._collect({0: ones[None] / 2**12}, 0, ones[None] / 2**12).item()
    assert lost <= -2 * 2**12 * 2.0**-53


def test_a_relu_network_by_hand() -> None:
    # a = relu(x0 + x1), b = relu(x0 - x1), y = a + b over [-1, 1]^2. Both lie below (z + 2) / 2, so
    # that y <= x0 + 2 <= 3, where intervals give 4. The lower slope is 0 for |l| >= u: y >= 0.
    graph = graph_from(
        2,
        affine(0, dense([1, 1], [1, -1]), [0, 0]),
        (Pointwise(RELU), (1,)),
        affine(2, dense([1, 1]), [0]),
    )
    low, high = bounds(graph, *box((-1, 1), (-1, 1)))
    assert low.item() == pytest.approx(0, abs=1e-10)
    assert high.item() == pytest.approx(3, abs=1e-10)
    assert Propagation(graph, *box((-1, 1), (-1, 1)), backward=False).outputs[
        1
    ].item() == pytest.approx(4, abs=1e-10)


def test_the_lower_slope_of_relu_adapts() -> None:
    # y = relu(x) - x over [-1, 3]: below by slope 1 it is >= 0; over [-3, 1] slope 0 gives -x >=
    # -1.
    graph = graph_from(
        1,
        (Pointwise(RELU), (0,)),
        (Affine((Same(), Same(-1)), torch.zeros(1, dtype=torch.float64)), (1, 0)),
    )
    assert bounds(graph, *box((-1, 3)))[0].item() == pytest.approx(0, abs=1e-10)
    assert bounds(graph, *box((-3, 1)))[0].item() == pytest.approx(-1, abs=1e-10)


def test_rows_of_the_output_end_where_they_are_greatest() -> None:
    # y = relu(x0) + relu(x1) over [-1, 2]^2: the lines y >= x0 + x1 end in -2 at the input, and in
    # 0 at the relus.
    graph = graph_from(2, (Pointwise(RELU), (0,)), affine(1, dense([1, 1]), [0]))
    low, high = bounds(graph, *box((-1, 2), (-1, 2)))
    assert low.item() == pytest.approx(0, abs=1e-10)
    assert high.item() == pytest.approx(4, abs=1e-10)


def test_maxima_by_hand() -> None:
    windows = torch.tensor([[0, 1], [2, -1], [1, 2]])
    graph = graph_from(3, (Maximum(windows), (0,)))
    low, high = bounds(graph, *box((0, 1), (2, 3), (-5, 4)))
    torch.testing.assert_close(low, torch.tensor([[2.0, -5.0, 2.0]]).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(high, torch.tensor([[3.0, 4.0, 4.0]]).double(), rtol=0, atol=1e-9)


def test_a_maximum_is_below_a_chord() -> None:
    # y = max(x0, x1) - x1 over [0, 2] x [1, 3]: max <= (x1 + 3) / 2, so that y <= 1, which (2, 1)
    # has. Of x1 in [-3, -1] max <= x0, which dominates.
    windows = torch.tensor([[0, 1]])
    map_ = dense([0, -1])
    less = Affine((Same(), map_), torch.zeros(1, dtype=torch.float64)), (1, 0)
    graph = graph_from(2, (Maximum(windows), (0,)), less)
    assert bounds(graph, *box((0, 2), (1, 3)))[1].item() == pytest.approx(1, abs=1e-9)
    low, high = bounds(graph, *box((0, 2), (-3, -1)))
    assert (low.item(), high.item()) == pytest.approx((1, 5), abs=1e-9)


@given(st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_maxima_lie_between_their_lines(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    windows = torch.randint(-1, 6, (5, 4), generator=generator)
    windows[:, 0] = torch.randint(0, 6, (5,), generator=generator)
    center, radius = (
        torch.randn(1, 6, generator=generator).double(),
        torch.rand(1, 6, generator=generator).double(),
    )
    radius = radius * (torch.rand(1, 6, generator=generator) > 0.2)
    mixed = (
        torch.randn(3, 5, generator=generator).double(),
        torch.randn(3, 6, generator=generator).double(),
    )
    both = Affine((Dense(mixed[0]), Dense(mixed[1])), torch.zeros(3, dtype=torch.float64)), (1, 0)
    graph = graph_from(6, (Maximum(windows), (0,)), both)
    low, high = bounds(graph, center - radius, center + radius)
    share = torch.rand(200, 6, generator=generator, dtype=torch.float64)
    share[::2] = share[::2].round()
    values = graph(center + (2 * share - 1) * radius)
    assert bool(((low - 1e-12 <= values) & (values <= high + 1e-12)).all())


@pytest.mark.parametrize(
    ("map_", "inputs"),
    [
        (Same(-1), 4),
        (Scale(torch.randn(4).double()), 4),
        (Dense(torch.randn(3, 4).double()), 4),
        (Dense(torch.randn(3, 2).double(), blocks=2), 4),
        (Select(torch.tensor([2, 2, -1, 0, 3]), 4), 4),
        (
            Convolution(
                torch.randn(4, 1, 2, 2).double(),
                (1, 2, 5, 4),
                (1, 4, 2, 2),
                {"stride": (2, 1), "dilation": (1, 2), "groups": 2, "padding": 0},
            ),
            40,
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_transpose_of_a_map(map_: Linear, inputs: int) -> None:
    x = torch.randn(7, inputs, dtype=torch.float64)
    image = map_(x)
    rows = torch.randn(2, 7, image.shape[1], dtype=torch.float64)
    pulled = map_.pull(rows)
    torch.testing.assert_close((pulled * x).sum(-1), (rows * image).sum(-1))
    absolute = map_.absolute()
    assert (absolute(x.abs()) >= image.abs() - 1e-12).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-12, 1e6), st.floats(1e-6, 1e6))
def test_relu_networks_against_brute_force(seed: int, radius: float, scale: float) -> None:
    # With one hidden layer and one input, y is piecewise linear: its extrema lie at the ends and at
    # the kinks.
    generator = torch.Generator().manual_seed(seed)
    inner, outer = (
        torch.randn(5, generator=generator).double() * scale,
        torch.randn(5, generator=generator).double(),
    )
    shift, center = (
        torch.randn(5, generator=generator).double(),
        torch.randn(1, generator=generator).double(),
    )
    graph = graph_from(
        1,
        affine(0, Dense(inner[:, None]), shift.tolist()),
        (Pointwise(RELU), (1,)),
        affine(2, Dense(outer[None]), [0.0]),
    )
    lower, upper = (center - radius)[None], (center + radius)[None]
    low, high = bounds(graph, lower, upper)
    points = torch.cat([-shift / inner, lower[0], upper[0]]).clamp(lower.item(), upper.item())
    values = graph(points[:, None])
    rounded = 1e-13 * (outer.abs() @ (inner.abs() * points.abs().max() + shift.abs())).item()
    assert low.item() <= values.min().item() + rounded
    assert high.item() >= values.max().item() - rounded


def test_boxes_that_are_none_and_values_beyond_bounds_are_refused() -> None:
    graph = graph_from(1, affine(0, dense([1e80]), [0]), affine(1, dense([1e80]), [0]))
    for ends in ((math.nan, 1.0), (0.0, math.inf), (-math.inf, 0.0)):
        with pytest.raises(ValueError, match="NaN or infinite"):
            Propagation(graph, *box(ends))
    with pytest.raises(ValueError, match="reversed"):
        Propagation(graph, *box((1.0, 0.0)))
    with pytest.raises(Unsupported, match="node 'n1': values beyond 1e"):
        Propagation(graph, *box((0.0, 1.0)))


def test_a_bound_that_is_nan_proves_nothing() -> None:
    one = Constraint(((0, Fraction(1)),), Fraction(0))
    two = Constraint(((0, Fraction(1)),), Fraction(1))
    case = Case(Box((Fraction(0),), (Fraction(1),)), (one, two))
    demand = Demand.of([case], 1)
    gaps = torch.tensor(
        [[math.nan, 1.0], [math.nan, math.nan], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64
    )
    assert (demand.best(gaps)[0] > 0)[:, 0].tolist() == [False, False, True, False]


def test_the_check_ends_a_propagation() -> None:
    def stop() -> None:
        raise TimeoutError

    graph = graph_from(2, (Pointwise(RELU), (0,)))
    zero = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(TimeoutError):
        Propagation(graph, zero, zero, check=stop)


def test_rows_over_a_ball_are_bounded_by_its_norm() -> None:
    # y = |a| + |b| as relu(a) + relu(-a) + ...; z = 3 a + 4 b in the ball of radius 1 is at most 5.
    def within(rows: torch.Tensor) -> torch.Tensor:
        return -rows.norm(dim=2).expand(1, -1)

    graph = graph_from(
        2,
        affine(0, dense([3.0, 4.0]), [0.0]),
        (Pointwise(RELU), (1,)),
        affine(2, dense([1.0], [-1.0]), [0.0, 0.0]),
    )
    ends = box((-1.0, 1.0), (-1.0, 1.0))
    eye = torch.eye(2, dtype=torch.float64)
    for backward in (False, True):
        boxed = Propagation(graph, *ends, backward=backward)
        balled = Propagation(graph, *ends, backward=backward, within=within)
        # The least of -relu(z) is -7 in the box, -5 in the ball.
        assert boxed.interval_bounds(eye)[0].tolist() == pytest.approx([0.0, -7.0], abs=1e-9)
        assert balled.interval_bounds(eye)[0].tolist() == pytest.approx([0.0, -5.0], abs=1e-9)
        assert balled.lower_bounds(eye).value[0, 1].item() == pytest.approx(-5.0, abs=1e-9)


def test_rows_by_intervals_go_back_through_the_last_affine_nodes_alone() -> None:
    # relu(a) - relu(a) = 0 is seen behind the last ReLU: by intervals of the sums it is not.
    graph = graph_from(
        1,
        (Pointwise(RELU), (0,)),
        affine(1, dense([1.0], [2.0]), [0.0, 0.0]),
        affine(2, dense([2.0, -1.0], [1.0, 1.0]), [0.5, 0.0]),
    )
    propagation = Propagation(graph, *box((-1.0, 2.0)), backward=False)
    eye = torch.eye(2, dtype=torch.float64)
    assert propagation.outputs[0][0].tolist() == pytest.approx([-3.5, 0.0], abs=1e-9)
    assert propagation.interval_bounds(eye)[0].tolist() == pytest.approx([0.5, 0.0], abs=1e-9)
    assert propagation.interval_bounds(-eye)[0].tolist() == pytest.approx([-0.5, -6.0], abs=1e-9)


def test_stable_units_are_sharpened_where_they_are_looked_at() -> None:
    # b = relu(a) - a + 3 is 3 where a > 0; by intervals it lies in [1, 5].
    graph = graph_from(
        1,
        affine(0, dense([1.0]), [0.0]),
        (Pointwise(RELU), (1,)),
        (Affine((Same(), Same(-1)), torch.tensor([3.0], dtype=torch.float64)), (2, 1)),
        (Pointwise(RELU), (3,)),
    )
    ends = box((0.5, 2.5))
    plain, every = (Propagation(graph, *ends, everywhere=each) for each in (False, True))
    assert plain.intervals[3][1].item() == pytest.approx(5.0, abs=1e-9)
    assert every.intervals[3][1].item() == pytest.approx(3.0, abs=1e-9)


def test_rows_that_are_carried_in_parts_have_the_bounds_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    first, last = (torch.randn(shape, dtype=torch.float64) for shape in ((6, 3), (7, 6)))
    graph = graph_from(
        3,
        affine(0, Dense(first), [0.1] * 6),
        (Pointwise(RELU), (1,)),
        affine(2, Dense(last), [0.2] * 7),
    )
    lower, upper = -torch.rand(2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
    propagation = Propagation(graph, lower, upper)
    eye = torch.eye(7, dtype=torch.float64)
    for rows in (eye, torch.stack([eye, -eye])):
        monkeypatch.undo()
        whole = propagation.lower_bounds(rows)
        monkeypatch.setattr("netverify.propagation._ROOM", 3 * 2 * 7)  # three rows of two boxes
        parts = propagation.lower_bounds(rows)
        assert torch.allclose(parts.value, whole.value, rtol=1e-12)
        assert torch.allclose(parts.coefficients, whole.coefficients, rtol=1e-12)
        assert torch.allclose(parts.rounding.expand_as(whole.value), whole.rounding, rtol=1e-12)
