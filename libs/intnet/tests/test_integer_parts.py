"""Norms, attention, products and moves on integers, against the same in float64 and in ONNX
Runtime.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from integer_layers import run_nodes
from networks_by_hand import Written
from torch import nn
from torch.nn import functional

from intnet.execution import Executor
from intnet.grids import INPUT, Dyadic, Grid, Rounding, divided, square_root
from intnet.islands import Island
from intnet.network import (
    IntegerNetwork,
    count_operations,
    prove_ranges,
    shapes,
    write_integer_onnx,
)
from intnet.onnx_nodes import Nodes
from intnet.parts import Part, in_integers
from intnet.pointwise import Affine
from intnet.transformer import (
    NORM_BITS,
    OCTAVE,
    Divide,
    Exponential,
    Normalize,
    powers,
)
from opgraph.errors import Unsupported
from opgraph.onnx_network import open_onnx

GIVEN = Grid(0.03, 117, 0, 255)


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(-1) @ value


def attention(call: Callable[..., torch.Tensor]) -> nn.Module:
    """Three heads of one sequence: (batch, 5, 36) to (batch, 5, 12)."""

    def heads(_: Written, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            each.reshape(-1, 5, 3, 4).transpose(1, 2) for each in x.chunk(3, dim=-1)
        )
        return call(query, key, value).transpose(1, 2).flatten(-2)

    return Written(heads)


def causal(_: Written, x: torch.Tensor) -> torch.Tensor:
    """Two heads that see nothing behind them, as timm writes them: the heads of all three in one
    permutation.
    """
    query, key, value = x.reshape(-1, 5, 3, 2, 6).permute(2, 0, 3, 1, 4).unbind(0)
    return (
        functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        .transpose(1, 2)
        .flatten(-2)
    )


def joined(_: Written, x: torch.Tensor) -> torch.Tensor:
    """Pools, and what is not on one grid, side by side."""
    image = x.unflatten(-1, (6, 6))
    pooled = functional.max_pool2d(image, 2), functional.avg_pool2d(image, 2)
    return torch.cat((*pooled, -image[..., ::2, 1::2]), dim=1).sum(2, keepdim=True)


def filled(net: Written, x: torch.Tensor) -> torch.Tensor:
    """Scores that are replaced where they shall not count, and what is replaced by 0."""
    return x.masked_fill(net.mask, torch.finfo(torch.float32).min).softmax(-1) + x.masked_fill(
        net.mask, 0.0
    )


def class_token(net: Written, x: torch.Tensor) -> torch.Tensor:
    """A small constant in front, another value behind, and a norm."""
    joined = torch.cat([net.token.expand(len(x), -1, -1), x], dim=1)
    return net.norm(functional.pad(joined, (0, 0, 0, 1), value=0.3))


def centred(net: Written, x: torch.Tensor) -> torch.Tensor:
    """What broadcasts: a mean that is taken away, a factor on it, and every second of it."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean)[..., ::2] + (mean * net.weight + net.weight)[..., 1::2]


def grouped(net: Written, x: torch.Tensor) -> torch.Tensor:
    """Two heads that share keys and values, whose ranges are others than the queries'; a bias
    for each head.
    """
    query, key, value = x.split([16, 8, 12], dim=-1)
    query = (query * 3).reshape(-1, 5, 2, 8).transpose(1, 2)
    key, value = (each.unsqueeze(1).expand(-1, 2, -1, -1) for each in (key, value))
    return (
        functional.scaled_dot_product_attention(query, key, value, attn_mask=net.bias)
        .transpose(1, 2)
        .flatten(2)
    )


def widened(net: Written, x: torch.Tensor) -> torch.Tensor:
    """What only a constant of no effect makes wider, in a sum, a choice, a mask and side by
    side.
    """
    one = x[..., :1] + torch.zeros(36)
    chosen = torch.where(torch.ones(36) > 0, x[..., 1:2], -1e9)
    masked = x[:, :1, :36].masked_fill(~net.keep, -1e9).softmax(-1)
    return torch.cat([one, chosen, masked], dim=1)


def far(_: Written, x: torch.Tensor) -> torch.Tensor:
    """A norm of what lies far from 0, which it does not see; read twice."""
    shifted = functional.layer_norm(x + 1e4, (36,))
    return shifted + shifted.square()


def but_first(mask: torch.Tensor, value: Any) -> torch.Tensor:
    """A mask or bias that leaves the first column."""
    mask[..., 0] = value
    return mask


def drawn(norm: nn.Module) -> nn.Module:
    """A norm with drawn weights."""
    for each in norm.parameters():
        nn.init.normal_(each)
    return norm


PARTS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: attention(by_hand),
    "fused": lambda: attention(functional.scaled_dot_product_attention),
    "causal": lambda: Written(causal),
    "biased": lambda: Written(  # for each pair of places, and -1e9 where they shall not count
        lambda net, x: (x @ x.transpose(1, 2) / 36 + net.bias).softmax(-1) @ x,
        bias=torch.randn(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -1e9),
    ),
    "grouped": lambda: Written(
        grouped,
        bias=but_first(
            torch.randn(2, 5, 5).masked_fill(torch.rand(2, 5, 5) < 0.2, -torch.inf), 0.0
        ),
    ),
    "shares": lambda: Written(lambda _, x: (3 * x).softmax(-1)),  # that no product follows
    "embedded": lambda: Written(  # behind a place that is padded for a class token
        lambda net, x: net.norm(functional.pad(x, (0, 0, 1, 0)) + net.positions),
        positions=torch.randn(6, 36),
        norm=drawn(nn.LayerNorm(36)),
    ),
    "root-mean": lambda: Written(
        lambda net, x: net.norm(x).mean(1) - 0.5, norm=drawn(nn.RMSNorm(36, eps=1e-5))
    ),
    "gated": lambda: Written(
        lambda net, x: x.chunk(2, dim=-1)[0] * net.scale * x.chunk(2, dim=-1)[1],
        scale=torch.linspace(-1, 2, 18),
    ),
    "joined": lambda: Written(joined),
    "residual": lambda: Written(lambda _, x: x - x.flip(1) * 0.25 + 1),
    "filled": lambda: Written(filled, mask=torch.rand(5, 36) < 0.3),
    "class token": lambda: Written(
        class_token, token=torch.randn(1, 1, 36) * 0.02, norm=nn.LayerNorm(36)
    ),
    "centred": lambda: Written(centred, weight=torch.randn(36)),
    "widened": lambda: Written(widened, keep=but_first(torch.rand(3, 36) < 0.7, True)),
    "far": lambda: Written(far),
    "constant": lambda: Written(
        lambda net, x: net.rows.expand(len(x), -1, -1), rows=torch.randn(1, 5, 36)
    ),
}
SHAPE = (5, 36)


def island_of(module: nn.Module) -> Island:
    torch.manual_seed(1)
    with torch.no_grad():
        found = module(real(integers(100)).float())
    return Island(
        "part",
        (INPUT,),
        (GIVEN,),
        module.eval(),
        Grid.over(float(found.min()), float(found.max()), 8),
    )


def integers(count: int) -> torch.Tensor:
    """Of the grid: drawn, with each sample's spread another; and its ends."""
    spread = torch.rand(count, 1, 1) ** 3
    drawn = (117 + 138 * spread * torch.randn(count, *SHAPE)).round().clamp(0, 255)
    drawn[0], drawn[1], drawn[2] = 0, 255, 117
    return drawn.long()


def real(given: torch.Tensor) -> torch.Tensor:
    return GIVEN.scale * (given.double() - GIVEN.zero_point)


def network_of(
    part: Part, island: Island, rounding: Rounding = Rounding.HALF_EVEN
) -> IntegerNetwork:
    return IntegerNetwork(GIVEN, SHAPE, part.operations, island.output, rounding, part.inserted)


@cache
def part_of(kind: str) -> tuple[Part, Island]:
    torch.manual_seed(0)
    island = island_of(PARTS[kind]())
    return in_integers(island, [SHAPE]), island


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_in_integers_is_the_float_part_within_a_step(kind: str) -> None:
    part, island = part_of(kind)
    torch.manual_seed(0)
    given, output = integers(300), island.output
    found = Executor(network_of(part, island)).run_integers(given.numpy())
    with torch.no_grad():
        exact = (
            copy.deepcopy(island.module).double()(real(given)).numpy() / output.scale
            + output.zero_point
        )
    off = np.abs(found - np.clip(exact, output.low, output.high))
    # Half a step is rounding itself; weights of 8 bits average values that lie 255 steps apart.
    assert off.max() < (
        1.5 if kind in ("attention", "fused", "causal", "biased", "grouped") else 1.0
    )
    assert (off <= 0.51).mean() > 0.97


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize("kind", PARTS)
def test_executors_and_onnx_runtime_compute_the_same_bits(
    kind: str, rounding: Rounding, tmp_path: Path
) -> None:
    made = network_of(*part_of(kind), rounding)
    torch.manual_seed(0)
    given = integers(64).numpy()
    checked = Executor(made)
    wanted = checked.run_integers(given)
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
    part, _ = part_of("attention")
    assert [type(each).__name__ for each in part.operations if each.name in part.inserted] == [
        "Exponential"
    ]
    assert part.operations[-1].name == "part"
    assert len(part_of("gated")[0].inserted) == 1  # the half that is scaled per channel


def normed(_: Written, x: torch.Tensor) -> torch.Tensor:
    """A product of matrices of normalised values, which have no grid of 8 bits."""
    found = functional.layer_norm(x, (36,))
    return found @ found.transpose(1, 2)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Written(lambda _, x: x.sin()), "Function"),
        (Written(normed), "normalised numbers"),
        (Written(lambda net, x: net.matrix @ x, matrix=torch.randn(5, 5)), "mask or a constant"),
        (Written(lambda _, x: x * 1e12), "rescaling factor"),
        (Written(lambda _, x: x / torch.zeros(36)), "not finite"),
        (Written(lambda _, x: x + torch.full((36,), -torch.inf)), "not finite"),
        (Written(lambda _, x: functional.avg_pool2d(x, 2)), "no integer form"),
        (Written(lambda _, x: functional.avg_pool1d(x - 0.9 * x.flip(1), 2)), "no grid of 8 bits"),
        (
            Written(lambda _, x: x.transpose(0, 1).contiguous() * 1.5),
            "first dimension does not count",
        ),
        (Written(lambda _, x: x.cumsum(1)), "CumulativeSum"),
        (
            Written(lambda _, x: x + torch.arange(len(x)).reshape(-1, 1, 1)),
            "differs between the samples",
        ),
        (Written(lambda _, x: torch.where(x > 0, x, x * 2)), "no integer form"),
        (
            Written(lambda _, x: functional.rms_norm((x * x.flip(1)).square(), (36,), eps=1e-9)),
            "of its range",
        ),
    ],
)
def test_what_has_no_integer_form_is_said(module: nn.Module, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        in_integers(replace(part_of("attention")[1], module=module, output=GIVEN), [SHAPE])


def test_values_that_a_grid_of_16_bits_is_too_coarse_for_stay_in_float() -> None:
    """Differences of large numbers, seen by running both."""
    near = Written(lambda _, x: x + 10 * x.flip(2).square() - 10 * x.flip(2).square())
    assert in_integers(island_of(near), [SHAPE]).operations
    far = Written(lambda _, x: x + 1e4 * x.flip(2).square() - 1e4 * x.flip(2).square())
    for bits in (8, 2):  # a step of two bits hides nothing
        output = Grid.over(-4, 4, bits)
        with pytest.raises(Unsupported, match="of its range from what it is in float"):
            in_integers(replace(island_of(near), module=far, output=output), [SHAPE])


def test_two_inputs_on_other_grids_and_four_bits() -> None:
    class Both(nn.Module):
        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return functional.layer_norm(first + second, (36,)) * second

    grids = GIVEN, Grid(0.5, 3, 0, 15)
    island = Island("part", ("first", "second"), grids, Both().eval(), Grid.over(-20, 20, 8))
    part = in_integers(island, [SHAPE, SHAPE])
    generator = np.random.default_rng(0)
    tensors = {
        name: generator.integers(grid.low, grid.high + 1, (200, *SHAPE))
        for name, grid in zip(island.inputs, grids, strict=True)
    }
    given = [tensors[name] for name in island.inputs]
    for each in part.operations:
        tensors[each.name] = each.apply([tensors[name] for name in each.inputs], Rounding.HALF_EVEN)
    real_inputs = [
        torch.from_numpy(grid.scale * (x - grid.zero_point))
        for x, grid in zip(given, grids, strict=True)
    ]
    exact = Both()(*real_inputs).numpy() / island.output.scale + island.output.zero_point
    assert np.abs(tensors["part"] - np.clip(exact, 0, 255)).max() < 1


def test_tokens_are_looked_up_as_they_are() -> None:
    def looking(change: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
        return Written(
            lambda net, tokens: net.table(change(tokens)), table=nn.Embedding(40, 6)
        ).eval()

    torch.manual_seed(0)
    grid, output = Grid(1.0, 0, 0, 19), Grid.over(-4, 4, 8)
    plain, moved, twice = map(looking, (lambda t: t, lambda t: t[:, 1:].flip(1), lambda t: t * 2))
    for module in (plain, moved):
        island = Island("part", (INPUT,), (grid,), module, output, (0,))
        part = in_integers(island, [(5,)])
        network = IntegerNetwork(grid, (5,), part.operations, output, tokens=True)
        tokens = torch.randint(20, (30, 5))
        found = Executor(network).run_reals(tokens.numpy())
        assert (
            np.abs(
                output.scale * (found - output.zero_point) - module(tokens).detach().numpy()
            ).max()
            < output.scale
        )
        with pytest.raises(ValueError, match="outside the input's grid"):
            Executor(network).run_reals(np.full((1, 5), 20))
    with pytest.raises(Unsupported, match="no tokens"):
        in_integers(Island("part", (INPUT,), (grid,), twice, output, (0,)), [(5,)])


def test_proofs_do_not_believe_what_an_operation_is_given() -> None:
    nibble, weights = Grid(1.0, 0, 0, 15), Grid(1.0, 0, 0, 255)
    norm = Normalize.of("norm", INPUT, nibble, 36, centred=True, epsilon=1e-5)
    exponential = Exponential("weights", (INPUT,), Dyadic.nearest(1.0), powers(255), weights)
    shares = (exponential, Divide("shares", (INPUT, "weights"), weights))
    affine = Affine(
        "sum", (INPUT,), 0, np.array(2**30), np.array([np.iinfo(np.int64).min]), 30, GIVEN
    )
    for grid, shape, operations, error, text in (
        (GIVEN, SHAPE, (norm,), ValueError, "norms 36 integers"),
        (nibble, (5, 35), (norm,), ValueError, "norms 36 integers"),
        (
            GIVEN,
            SHAPE,
            (Divide("shares", (INPUT, INPUT), weights),),
            ValueError,
            "no weights of a softmax",
        ),
        (GIVEN, SHAPE, shares, ValueError, "did not weigh"),
        (GIVEN, SHAPE, (affine,), OverflowError, "65 bits"),
    ):
        with pytest.raises(error, match=text):
            prove_ranges(IntegerNetwork(grid, shape, operations, GIVEN))
    with pytest.raises(ValueError, match="squares"):
        Normalize.of("norm", "x", Grid(1.0, 0, 0, 65535), 2**14, centred=True, epsilon=0.0)
    with pytest.raises(ValueError, match="254"):  # by the oracle
        shares[1].apply([np.ones((1, 2)), np.array([[100, 154]])], Rounding.HALF_EVEN)
    long, unsigned = Written(lambda _, x: x @ x.transpose(1, 2)), Grid(0.03, 0, 0, 255)
    with pytest.raises(Unsupported, match="accumulators need"):
        in_integers(Island("part", (INPUT,), (unsigned,), long, GIVEN), [(2, 40_000)])


@pytest.mark.parametrize("greatest", [255, 65535])
def test_powers_and_shares_are_as_exact_as_they_say(greatest: int) -> None:
    generator = np.random.default_rng(0)
    scores = generator.integers(-(2**20), 2**20, (2000, 17)) >> generator.integers(0, 20, (2000, 1))
    scale = 1e-3
    factor = Dyadic.nearest(scale * math.log2(math.e) * OCTAVE)
    grid = Grid(1.0, 0, 0, greatest)
    exponential = Exponential("weights", ("scores",), factor, powers(greatest), grid)
    weights = exponential.apply([scores], Rounding.HALF_EVEN)
    exact = greatest * np.exp(scale * (scores - scores.max(-1, keepdims=True)))
    assert (np.abs(weights - exact) <= 0.501 + 4e-4 * exact).all()
    assert (weights.max(-1) == greatest).all()
    shares = Divide("shares", ("weights", "weights"), grid).apply(
        [weights, weights], Rounding.HALF_EVEN
    )
    assert (
        np.abs(shares / 4096 - weights / weights.sum(-1, keepdims=True)).max() <= 0.5 / 4096 + 1e-12
    )


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    ("size", "grid"), [(3, GIVEN), (48, GIVEN), (768, GIVEN), (768, Grid(1e-4, 30000, 0, 65535))]
)
def test_normalised_values_are_as_exact_as_they_say(size: int, grid: Grid, centred: bool) -> None:
    generator = np.random.default_rng(0)
    spread = np.maximum(1, grid.high * generator.random((500, 1)) ** 4)
    x = np.clip(
        np.rint(grid.zero_point + spread * generator.standard_normal((500, size))),
        grid.low,
        grid.high,
    )
    x[0], x[1, :] = grid.zero_point, grid.low
    x[1, 0] = grid.high
    operation = Normalize.of("norm", "x", grid, size, centred=centred, epsilon=1e-5)
    found = operation.apply([x.astype(np.int64)], Rounding.HALF_EVEN) / 2**NORM_BITS
    given = grid.scale * (x - grid.zero_point)
    given = given - given.mean(-1, keepdims=True) if centred else given
    exact = given / np.sqrt((given**2).mean(-1, keepdims=True) + 1e-5)
    root = (
        np.sqrt((given**2).mean(-1, keepdims=True))
        / grid.scale
        * math.sqrt(size)
        * (size if centred else 1)
    )
    floor = 1 / np.maximum(root * 2.0**operation.precision, 1) + 1 / operation.numerator
    assert (np.abs(found - exact) <= 0.51 / 2**NORM_BITS + 1.01 * floor * np.abs(exact)).all()
    assert np.abs(found * 2**NORM_BITS).max() <= operation.greatest


def roots() -> np.ndarray:
    generator = np.random.default_rng(0)
    drawn = generator.integers(1, 2**31, 3000)
    near = np.concatenate([drawn, 2 ** np.arange(31), [2**31 - 1, 1, 2, 3]]).astype(np.int64)
    squares = near * near
    return np.unique(
        np.clip(
            np.concatenate([squares - 1, squares, squares + 1, squares + 2 * near]), 1, 2**62 - 1
        )
    )


def test_square_roots_and_quotients_are_exact_in_onnx_runtime_too() -> None:
    nodes, values = Nodes("test"), roots()
    assert [int(each) for each in square_root(values)] == [math.isqrt(int(each)) for each in values]
    assert divided(np.array([7, -7, 6, -6, 5]), np.array([2, 2, 4, 4, 4])).tolist() == [
        4,
        -4,
        2,
        -2,
        1,
    ]
    wide = nodes.cast("values", np.uint64)
    root = nodes.cast(nodes.square_root(wide), np.int64)
    quotient = nodes.cast(
        nodes.divided(nodes.widened("numerators", 0), nodes.square_root(wide)), np.int64
    )
    numerators = np.random.default_rng(1).integers(-(2**60), 2**60, len(values))
    found = run_nodes(
        nodes, [root, quotient], values=values[:, None], numerators=numerators[:, None]
    )
    assert np.array_equal(found[0].ravel(), square_root(values))
    assert np.array_equal(found[1].ravel(), divided(numerators, square_root(values)))
