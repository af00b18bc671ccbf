"""Norms, attention, products and moves on integers, against the same in float64 and in ONNX Runtime."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn
from torch.nn import functional

from evalsuite import Unsupported, open_onnx
from pipelines.quantize.integer.execution import Executor
from pipelines.quantize.integer.network import INPUT, Dyadic, Grid, IntegerNetwork, Island, Rounding
from pipelines.quantize.integer.onnx_graph import write_integer_onnx
from pipelines.quantize.integer.onnx_nodes import Nodes
from pipelines.quantize.integer.operations import count_operations, shapes
from pipelines.quantize.integer.oracle import apply, divided, square_root
from pipelines.quantize.integer.parts import Part, in_integers
from pipelines.quantize.integer.ranges import prove_ranges
from pipelines.quantize.integer.transformer import NORM_BITS, OCTAVE, Divide, Exponential, Normalize, powers

GIVEN = Grid(0.03, 117, 0, 255)


class Attention(nn.Module):
    """Three heads of one sequence, by hand: (batch, 5, 36) to (batch, 5, 12)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (each.reshape(-1, 5, 3, 4).transpose(1, 2) for each in x.chunk(3, dim=-1))
        scores = query @ key.transpose(-2, -1) / math.sqrt(4)
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(-2)


class Fused(Attention):
    """The same by torch's function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (each.reshape(-1, 5, 3, 4).transpose(1, 2) for each in x.chunk(3, dim=-1))
        return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(-2)


class Shares(nn.Module):
    """A softmax that no product follows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (3 * x).softmax(-1)


class Embedded(nn.Module):
    """A norm of what positions are added to, behind a place that is padded for a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(6, 36))
        self.norm = nn.LayerNorm(36)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(functional.pad(x, (0, 0, 1, 0)) + self.positions)


class RootMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(36, eps=1e-5)
        nn.init.normal_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).mean(1) - 0.5


class Gated(nn.Module):
    """Halves multiplied, one of them scaled per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(-1, 2, 18))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return first * self.scale * second


class Joined(nn.Module):
    """Pools, and what is not on one grid, side by side."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x.unflatten(-1, (6, 6))
        pooled = functional.max_pool2d(image, 2), functional.avg_pool2d(image, 2)
        return torch.cat((*pooled, -image[..., ::2, 1::2]), dim=1).sum(2, keepdim=True)


class Residual(nn.Module):
    """A difference of a tensor and its turned self, and a constant."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.flip(1) * 0.25 + 1


PARTS = (Attention, Fused, Shares, Embedded, RootMean, Gated, Joined, Residual)
SHAPE = (5, 36)


def island_of(module: nn.Module) -> Island:
    torch.manual_seed(1)
    with torch.no_grad():
        found = module(real(integers(100)).float())
    return Island("part", (INPUT,), (GIVEN,), module.eval(), Grid.over(float(found.min()), float(found.max()), 8))


def integers(count: int) -> torch.Tensor:
    """Of the grid: drawn, with each sample's spread another; and its ends."""
    spread = torch.rand(count, 1, 1) ** 3
    drawn = (117 + 138 * spread * torch.randn(count, *SHAPE)).round().clamp(0, 255)
    drawn[0], drawn[1], drawn[2] = 0, 255, 117
    return drawn.long()


def real(given: torch.Tensor) -> torch.Tensor:
    return GIVEN.scale * (given.double() - GIVEN.zero_point)


def network_of(part: Part, island: Island, rounding: Rounding = Rounding.HALF_EVEN) -> IntegerNetwork:
    return IntegerNetwork(GIVEN, SHAPE, part.operations, island.output, rounding, part.inserted)


@pytest.mark.parametrize("make", PARTS)
def test_a_part_in_integers_is_the_float_part_within_a_step(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = make()
    island = island_of(module)
    made = network_of(in_integers(island, [SHAPE]), island)
    given, output = integers(300), island.output
    found = Executor(made).run(given.numpy())
    with torch.no_grad():
        exact = module.double()(real(given)).numpy() / output.scale + output.zero_point
    off = np.abs(found - np.clip(exact, output.low, output.high))
    # Half a step is rounding itself; weights of 8 bits average values that lie 255 steps apart.
    assert off.max() < (1.5 if make in (Attention, Fused) else 1.0)
    assert (off <= 0.51).mean() > 0.97


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize("make", PARTS)
def test_executors_and_onnx_runtime_compute_the_same_bits(
    make: type[nn.Module], rounding: Rounding, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    island = island_of(make())
    made = network_of(in_integers(island, [SHAPE]), island, rounding)
    given = integers(64).numpy()
    checked = Executor(made, checked=True)
    wanted = checked.run(given)
    assert np.array_equal(Executor(made).run(given), wanted)
    write_integer_onnx(made, tmp_path / "part.onnx")
    found = open_onnx(tmp_path / "part.onnx").run(None, {"input": given.astype(np.uint8)})[0]
    assert np.array_equal(found, wanted)
    for name, values in checked.trace(given).items():
        span = checked.ranges.spans[name]
        assert (span.lower <= values).all(), name
        assert (values <= span.upper).all(), name
        assert values.shape[1:] == shapes(made)[name]
    assert all(count >= 0 for count in count_operations(made).values())


def test_what_is_no_part_of_the_fake_quantized_network_is_named() -> None:
    island = island_of(Attention())
    part = in_integers(island, [SHAPE])
    assert [type(each).__name__ for each in part.operations if each.name in part.inserted] == ["Exponential"]
    assert part.operations[-1].name == "part"
    gated = in_integers(island_of(Gated()), [SHAPE])
    assert len(gated.inserted) == 1  # the half that is scaled per channel


class Sine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class NormProduct(nn.Module):
    """A product of matrices of normalised values, which have no grid of 8 bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = functional.layer_norm(x, (36,))
        return normed @ normed.transpose(1, 2)


@pytest.mark.parametrize(("module", "reason"), [(Sine(), "Function"), (NormProduct(), "8 bits")])
def test_what_has_no_integer_form_is_said(module: nn.Module, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        in_integers(island_of(module), [SHAPE])


@pytest.mark.parametrize("greatest", [255, 65535])
def test_powers_and_shares_are_as_exact_as_they_say(greatest: int) -> None:
    generator = np.random.default_rng(0)
    scores = generator.integers(-(2**20), 2**20, (2000, 17)) >> generator.integers(0, 20, (2000, 1))
    scale = 1e-3
    factor = Dyadic.nearest(scale * math.log2(math.e) * OCTAVE)
    grid = Grid(1.0, 0, 0, greatest)
    exponential = Exponential("weights", ("scores",), factor, powers(greatest), grid)
    weights = apply(exponential, [scores], Rounding.HALF_EVEN)
    exact = greatest * np.exp(scale * (scores - scores.max(-1, keepdims=True)))
    assert (np.abs(weights - exact) <= 0.501 + 4e-4 * exact).all()
    assert (weights.max(-1) == greatest).all()
    shares = apply(Divide("shares", ("weights", "weights"), grid), [weights, weights], Rounding.HALF_EVEN)
    assert np.abs(shares / 4096 - weights / weights.sum(-1, keepdims=True)).max() <= 0.5 / 4096 + 1e-12


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("size", "grid"), [(3, GIVEN), (48, GIVEN), (768, GIVEN), (768, Grid(1e-4, 30000, 0, 65535))])
def test_normalised_values_are_as_exact_as_they_say(size: int, grid: Grid, centred: bool) -> None:
    generator = np.random.default_rng(0)
    spread = np.maximum(1, grid.high * generator.random((500, 1)) ** 4)
    x = np.clip(np.rint(grid.zero_point + spread * generator.standard_normal((500, size))), grid.low, grid.high)
    x[0], x[1, :] = grid.zero_point, grid.low
    x[1, 0] = grid.high
    operation = Normalize.of("norm", "x", grid, size, centred=centred, epsilon=1e-5)
    found = apply(operation, [x.astype(np.int64)], Rounding.HALF_EVEN) / 2**NORM_BITS
    given = grid.scale * (x - grid.zero_point)
    given = given - given.mean(-1, keepdims=True) if centred else given
    exact = given / np.sqrt((given**2).mean(-1, keepdims=True) + 1e-5)
    root = np.sqrt((given**2).mean(-1, keepdims=True)) / grid.scale * math.sqrt(size) * (size if centred else 1)
    floor = 1 / np.maximum(root * 2.0**operation.precision, 1) + 1 / operation.numerator
    assert (np.abs(found - exact) <= 0.51 / 2**NORM_BITS + 1.01 * floor * np.abs(exact)).all()
    assert np.abs(found * 2**NORM_BITS).max() <= operation.greatest


def test_a_norm_of_too_many_or_too_wide_integers_is_refused() -> None:
    with pytest.raises(ValueError, match="squares"):
        Normalize.of("norm", "x", Grid(1.0, 0, 0, 65535), 2**14, centred=True, epsilon=0.0)


def test_weights_that_do_not_reach_255_are_refused_by_the_oracle() -> None:
    with pytest.raises(ValueError, match="254"):
        apply(
            Divide("shares", ("x", "weights"), Grid(1.0, 0, 0, 255)),
            [np.ones((1, 2)), np.array([[100, 154]])],
            Rounding.HALF_EVEN,
        )


def roots() -> np.ndarray:
    generator = np.random.default_rng(0)
    near = np.concatenate([generator.integers(1, 2**31, 3000), 2 ** np.arange(31), [2**31 - 1, 1, 2, 3]]).astype(
        np.int64
    )
    squares = near * near
    return np.unique(np.clip(np.concatenate([squares - 1, squares, squares + 1, squares + 2 * near]), 1, 2**62 - 1))


def test_square_roots_and_quotients_are_exact() -> None:
    values = roots()
    assert [int(each) for each in square_root(values)] == [math.isqrt(int(each)) for each in values]
    assert divided(np.array([7, -7, 6, -6, 5]), np.array([2, 2, 4, 4, 4])).tolist() == [4, -4, 2, -2, 1]


def test_square_roots_and_quotients_are_exact_in_onnx_runtime() -> None:
    nodes, values = Nodes("test"), roots()
    wide = nodes.cast("values", np.uint64)
    root = nodes.cast(nodes.square_root(wide), np.int64)
    quotient = nodes.cast(nodes.divided(nodes.widened("numerators", 0), nodes.square_root(wide)), np.int64)
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [None, 1]) for name in ("values", "numerators")]
    results = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, None) for name in (root, quotient)]
    made = helper.make_graph(nodes.nodes, "test", ends, results, nodes.constants)
    session = open_onnx(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    )
    numerators = np.random.default_rng(1).integers(-(2**60), 2**60, len(values))
    found = session.run(None, {"values": values[:, None], "numerators": numerators[:, None]})
    assert np.array_equal(found[0].ravel(), square_root(values))
    assert np.array_equal(found[1].ravel(), divided(numerators, square_root(values)))


def test_sums_that_32_bits_may_not_hold_are_refused() -> None:
    class Long(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x.transpose(1, 2)

    island = Island("part", (INPUT,), (GIVEN,), Long(), GIVEN)
    made = in_integers(replace(island, module=Long()), [(2, 200000)])
    with pytest.raises(OverflowError, match="accumulators need"):
        prove_ranges(IntegerNetwork(GIVEN, (2, 200000), made.operations, GIVEN))
