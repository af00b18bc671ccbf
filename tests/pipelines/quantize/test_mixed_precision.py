"""Mixed precision: the knapsack against all assignments, the plan against what is measured apart from it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from evalsuite import Unsupported, fold_hardness
from pipelines.quantize.mixed_precision import WIDTHS, Plan, cheapest, metrics_of_plan, search
from pipelines.quantize.placement import Bits, Scheme
from pipelines.quantize.sensitivity import LayerSize, layers_of
from pipelines.quantize.tracing import trace
from tests.pipelines.quantize.test_sensitivity import chain, chain_inputs, divergence, maker

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

# Multiples of 1/8, so that sums are exact and equal sums are equal.
COST = st.integers(0, 40).map(lambda eighths: eighths / 8)
LAYERS = st.lists(
    st.tuples(st.integers(1, 50), st.tuples(COST, COST, COST)), min_size=1, max_size=5
)  # weights, costs at 2, 4 and 8 bits


def knapsack(drawn: list[tuple[int, tuple[float, float, float]]]) -> tuple[list[LayerSize], list[dict[int, float]]]:
    layers = [LayerSize(f"layer_{i}", weights, 0) for i, (weights, _) in enumerate(drawn)]
    return layers, [dict(zip((2, 4, 8), costs, strict=True)) for _, costs in drawn]


def value_of(
    widths: tuple[int, ...] | list[int], layers: list[LayerSize], costs: list[dict[int, float]]
) -> tuple[float, int]:
    """The sum of costs, and the bits of all weights."""
    size = sum(each.weights * width for each, width in zip(layers, widths, strict=True))
    return sum(cost[width] for cost, width in zip(costs, widths, strict=True)), size


@settings(max_examples=150, deadline=None)
@given(LAYERS, st.integers(25, 100))
def test_the_knapsack_is_solved_exactly(drawn: list[tuple[int, tuple[float, float, float]]], percent: int) -> None:
    layers, costs = knapsack(drawn)
    full = 8 * sum(each.weights for each in layers)
    found = value_of(cheapest(layers, costs, percent / 100), layers, costs)
    every = [value_of(widths, layers, costs) for widths in itertools.product((2, 4, 8), repeat=len(layers))]
    assert found == min(each for each in every if 100 * each[1] <= percent * full)


@settings(max_examples=50, deadline=None)
@given(LAYERS)
def test_more_budget_costs_no_more(drawn: list[tuple[int, tuple[float, float, float]]]) -> None:
    layers, costs = knapsack(drawn)
    sums = [value_of(cheapest(layers, costs, budget / 20), layers, costs)[0] for budget in range(5, 21)]
    assert sums == sorted(sums, reverse=True)


def test_the_budget_is_the_decimal_that_was_written() -> None:
    """10 weights at 8 bits are 80: 0.3 of that are 24, but the float 0.3 is a little less than 3/10."""
    layers = [LayerSize("two", 8, 0), LayerSize("four", 2, 0)]
    assert cheapest(layers, [{2: 0.0, 4: 9.0}, {2: 1.0, 4: 0.0}], 0.3) == [2, 4]


def test_many_layers_of_uneven_sizes() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1000, 600_000, (60,), generator=generator).tolist()
    layers = [LayerSize(f"layer_{i}", size, 0) for i, size in enumerate(sizes)]
    costs = [
        dict(
            zip((8, 6, 4, 3, 2), (4.0 ** torch.arange(5.0) * torch.rand((), generator=generator)).tolist(), strict=True)
        )
        for _ in layers
    ]
    found = cheapest(layers, costs, 0.5)
    total, size = value_of(found, layers, costs)
    assert 2 * size <= 8 * sum(sizes)
    assert total < value_of([4] * 60, layers, costs)[0]


def two_layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 5)).eval()


def test_two_layers_against_all_assignments() -> None:
    module, inputs, widths = two_layers(), chain_inputs(), (8, 4, 3, 2)
    traced = trace(module, (8,))
    make = maker(traced, inputs)

    def measured(first: int, second: int) -> float:
        layers = {"layer_0": Bits(first, 8), "layer_2": Bits(second, 8)}
        return divergence(module, make(Scheme(Bits(max(first, second), 8), layers=layers)), inputs)

    base = measured(8, 8)
    predicted = {
        (a, b): base + max(0.0, measured(a, 8) - base) + max(0.0, measured(8, b) - base)
        for a, b in itertools.product(widths, widths)
    }
    for budget in (0.3, 0.4, 0.55):
        plan = search(make, traced, inputs, 8, budget, widths)
        best = min((each for each in predicted if 160 * each[0] + 100 * each[1] <= budget * 2080), key=predicted.get)
        uniform = max(width for width in widths if width <= 8 * budget)
        assert plan.uniform_bits == uniform
        assert plan.uniform_loss == pytest.approx(measured(uniform, uniform), rel=1e-3)
        expected = best if measured(*best) <= measured(uniform, uniform) else (uniform, uniform)
        assert tuple(plan.weight_bits.values()) == expected
        assert plan.predicted_loss == pytest.approx(predicted[expected], rel=1e-3)
        assert plan.loss == pytest.approx(measured(*expected), rel=1e-3)
        assert plan.weight_bytes == -(-(160 * expected[0] + 100 * expected[1]) // 8)
        assert plan.share == (160 * expected[0] + 100 * expected[1]) / 2080


def test_bits_go_to_the_layer_with_outliers() -> None:
    module, inputs = chain(outlier_in=2), chain_inputs()
    traced = trace(module, (8,))
    plan = search(maker(traced, inputs), traced, inputs, 8, 0.6)
    bits = plan.weight_bits
    assert bits["layer_4"] == 8
    assert max(bits["layer_0"], bits["layer_2"]) < 8
    assert plan.loss < 0.5 * plan.uniform_loss


def offset_by(losses: Mapping[tuple[int, ...], float], names: tuple[str, ...]) -> nn.Module:
    """For `search`: networks that differ from the float one by an offset of a logit, given by assignment."""

    def make(scheme: Scheme) -> fx.GraphModule:
        key = tuple(bits.weight for name in names if (bits := scheme.of(name)))
        module = two_layers()
        with torch.no_grad():
            module[2].bias[0] += losses[key]
        return trace(module, (8,))

    return make


@pytest.mark.slow
def test_where_costs_do_not_add_up_one_width_for_all_is_taken() -> None:
    names = ("layer_0", "layer_2")
    inputs, traced = chain_inputs(), trace(two_layers(), (8,))
    # Each layer alone at 2 bits costs nothing, and at 4 something; but 8 and 2 within half the size is impossible, and
    # what is predicted to cost nothing, 2 and 2, costs much.
    offsets = {(8, 8): 0.0, (8, 4): 0.1, (4, 8): 0.1, (8, 2): 0.0, (2, 8): 0.0, (2, 2): 5.0, (4, 4): 0.5}
    plan = search(offset_by(offsets, names), traced, inputs, 8, 0.5, (8, 4, 2))
    assert dict(plan.weight_bits) == dict.fromkeys(names, 4)
    assert plan.loss == plan.uniform_loss
    assert "the predicted best widths lose" in plan.reason
    offsets[2, 2] = 0.2
    plan = search(offset_by(offsets, names), traced, inputs, 8, 0.5, (8, 4, 2))
    assert dict(plan.weight_bits) == dict.fromkeys(names, 2)
    assert plan.loss < plan.uniform_loss
    assert plan.share == 0.25


def test_a_narrower_width_that_loses_less_is_not_predicted_to_gain() -> None:
    inputs, traced = chain_inputs(), trace(two_layers(), (8,))
    make = offset_by({(8, 8): 0.3, (8, 4): 0.1, (4, 8): 0.1, (4, 4): 0.1}, ("layer_0", "layer_2"))
    plan = search(make, traced, inputs, 8, 0.5, (8, 4))
    widest = search(make, traced, inputs, 8, 1.0, (8,))
    assert plan.predicted_loss == widest.loss > plan.loss > 0


@pytest.mark.parametrize(
    ("workload", "variant", "budget"),
    [("digits-mlp", "gelu", 0.5), ("digits-mlp", "annealed", 0.3)],
)
@pytest.mark.slow
def test_never_worse_than_one_width_on_trained_networks(
    network: MakeNetwork, bench: MakeBench, workload: str, variant: str, budget: float
) -> None:
    made = network(workload, variant)
    inputs = bench(workload).data.calibration.inputs
    traced = trace(fold_hardness(made.module), made.input_shape)
    make = maker(traced, inputs)
    before = {name: each.clone() for name, each in traced.state_dict().items()}
    plan = search(make, traced, inputs, 4, budget)
    uniform = divergence(made.module, make(Scheme(Bits(plan.uniform_bits, 4))), inputs)
    mixed = make(plan.scheme)
    real = divergence(made.module, mixed, inputs)
    assert real <= uniform * (1 + 1e-3)
    assert plan.loss == pytest.approx(real, rel=1e-3)
    assert plan.uniform_loss == pytest.approx(uniform, rel=1e-3)
    assert plan.share <= budget
    assert plan.uniform_bits == {0.5: 4, 0.3: 2}[budget]
    assert list(plan.weight_bits) == [each.name for each in layers_of(traced)]
    for name, bits in plan.weight_bits.items():
        assert int(mixed.get_submodule(name).quant_weight().bit_width) == bits
    if budget == 0.3:  # 2 bits everywhere ruin the network, and there is room for more in some layers
        assert plan.loss < 0.5 * plan.uniform_loss
    assert all(torch.equal(each, before[name]) for name, each in traced.state_dict().items())


def test_the_same_plan_every_time_for_any_number_of_threads() -> None:
    inputs = chain_inputs()
    traced = trace(two_layers(), (8,))
    first = search(maker(traced, inputs), traced, inputs, 4, 0.4)
    torch.set_num_threads(2)
    try:
        second = search(maker(traced, inputs), traced, inputs, 4, 0.4)
    finally:
        torch.set_num_threads(1)
    assert first == second


def test_all_of_the_size_is_the_widest() -> None:
    inputs = chain_inputs()
    traced = trace(chain(), (8,))
    plan = search(maker(traced, inputs), traced, inputs, 8, 1.0)
    assert plan.uniform_bits == 8
    assert plan.loss <= plan.uniform_loss


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"size_budget": 0.2}, r"size_budget must be at least 0\.25, .*, got 0\.2"),
        ({"size_budget": 0.4, "widths": (8, 4)}, r"size_budget must be at least 0\.5"),
        ({"size_budget": 0.0}, r"size_budget must be in \(0, 1\], got 0"),
        ({"size_budget": 1.5}, r"size_budget must be in \(0, 1\], got 1\.5"),
        ({"size_budget": float("nan")}, r"size_budget must be in \(0, 1\], got nan"),
        ({"act_bits": 9}, r"act_bits must be in \[2, 8\], got 9"),
        ({"widths": (8, 1)}, r"widths must be .*\[2, 8\], got \(8, 1\)"),
        ({"widths": ()}, r"widths must be"),
    ],
)
def test_errors_name_option_and_bound(options: dict[str, object], told: str) -> None:
    inputs, traced = chain_inputs(10), trace(two_layers(), (8,))
    known: dict[str, object] = {"act_bits": 8, "size_budget": 0.5, "widths": WIDTHS, **options}
    with pytest.raises(ValueError, match=told):
        search(maker(traced, inputs), traced, inputs, **known)  # type: ignore[arg-type]


def test_nothing_to_assign_is_unsupported() -> None:
    traced = trace(nn.Sequential(nn.ReLU()), (8,))
    with pytest.raises(Unsupported, match="no linear or convolutional layer"):
        search(maker(traced, chain_inputs(5)), traced, chain_inputs(5), 8, 0.5)


def test_the_knapsack_names_the_least_share() -> None:
    with pytest.raises(ValueError, match=r"at least 0\.5"):
        cheapest([LayerSize("layer", 10, 0)], [{4: 0.0, 8: 0.0}], 0.4)


def test_metrics() -> None:
    plan = Plan({"a": 4, "b": 2}, 8, 0.5, 30, 0.4, 0.1, 0.2, 3, 0.3, "3 bits in every layer lose 0.3 nats, not less")
    found = {(each.name, each.setting.get("layer")): each for each in metrics_of_plan(plan)}
    assert {key: each.value for key, each in found.items()} == {
        ("chosen_weight_bits", "a"): 4, ("chosen_weight_bits", "b"): 2, ("weight_bytes", None): 30,
        ("weight_bytes_share", None): 0.4, ("mixed_loss", None): 0.2, ("mixed_predicted_loss", None): 0.1,
        ("uniform_loss", None): 0.3,
    }  # fmt: skip
    assert found["weight_bytes_share", None].unit == "share"
    assert found["mixed_loss", None].unit == "nats"
    assert found["mixed_loss", None].reason == plan.reason
