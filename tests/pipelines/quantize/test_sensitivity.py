"""Losses of single layers, and widths chosen by them: on made networks whose most sensitive
layer is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from written import Written

from evalsuite import Direction, Metric, Unsupported
from pipelines.quantize.calibration import calibrate
from pipelines.quantize.mixed_precision import WIDTHS, Plan, cheapest, search
from pipelines.quantize.placement import Bits, Scheme, place
from pipelines.quantize.sensitivity import Make, Reference, layers_of, sensitivity
from pipelines.quantize.tracing import trace

# Multiples of 1/8, so that sums are exact and equal sums are equal.
COST = st.integers(0, 40).map(lambda eighths: eighths / 8)
# Weights, costs at 2, 4 and 8 bits.
LAYERS = st.lists(
    st.tuples(st.integers(1, 50), st.tuples(COST, COST, COST)), min_size=1, max_size=5
)


def maker(traced: fx.GraphModule, inputs: torch.Tensor) -> Make:
    """Quantizes each scheme once: that it is always the same network is for other tests to hold."""
    known: dict[str, fx.GraphModule] = {}

    def make(scheme: Scheme) -> fx.GraphModule:
        if str(scheme) not in known:
            known[str(scheme)] = place(traced, scheme)
            calibrate(known[str(scheme)], inputs)
        return known[str(scheme)]

    return make


def chain(*, outlier_in: int | None = None) -> nn.Sequential:
    """Three layers. An outlier in each channel of one of them meets only inputs that are 0: it
    changes no logit.

    The first input of each layer is 0 on `chain_inputs`.
    """
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 10)]
    with torch.no_grad():
        for layer in layers[:-1]:
            layer.weight[0], layer.bias[0] = 0.0, 0.0
        for layer in layers:
            layer.weight.mul_(2.0)
        if outlier_in is not None:
            layers[outlier_in].weight[:, 0] = 10.0
            if outlier_in < 2:
                layers[outlier_in].weight[0] = 0.0
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).eval()


def chain_inputs(samples: int = 200) -> torch.Tensor:
    inputs = torch.rand(samples, 8, generator=torch.Generator().manual_seed(1))
    inputs[:, 0] = 0.0
    return inputs


@torch.no_grad()
def divergence(network: nn.Module, quantized: nn.Module, inputs: torch.Tensor) -> float:
    p, q = (each(inputs).double().softmax(1) for each in (network, quantized))
    return float((p * (p / q).log()).sum() / len(inputs))


def told(rows: list[Metric]) -> dict[tuple[str, object], float | None]:
    return {(each.name, each.setting.get("layer")): each.value for each in rows}


@cache
def losses_of(outlier_in: int | None) -> dict[tuple[str, object], float | None]:
    inputs, traced = chain_inputs(), trace(chain(outlier_in=outlier_in), (8,))
    return told(sensitivity(maker(traced, inputs), traced, inputs, Bits(4, 8)))


@pytest.mark.parametrize("place_of_outlier", [0, 1, 2])
def test_the_layer_with_outliers_is_the_most_sensitive(place_of_outlier: int) -> None:
    inputs, names = chain_inputs(), ("layer_0", "layer_2", "layer_4")
    assert torch.equal(chain()(inputs), chain(outlier_in=place_of_outlier)(inputs))
    losses, even, worst = losses_of(place_of_outlier), losses_of(None), names[place_of_outlier]
    # At 4 bits a step is 10 / 7, so that every other weight of the layer becomes 0.
    for other in {*names} - {worst}:
        assert losses["layer_alone_loss", worst] > 10 * losses["layer_alone_loss", other]
        assert losses["layer_spared_loss", worst] < 0.1 * losses["layer_spared_loss", other]
    assert even["layer_alone_loss", worst] < 0.1 * losses["layer_alone_loss", worst]


def test_rows_are_the_losses_of_the_networks_so_quantized() -> None:
    inputs, module, bits = chain_inputs(), chain(), Bits(3, 5)
    traced = trace(module, (8,))
    make = maker(traced, inputs)
    rows = sensitivity(make, traced, inputs, bits)
    schemes: dict[tuple[str, str | None], Scheme] = {("quantization", None): Scheme(bits)}
    for name in ("layer_0", "layer_2", "layer_4"):
        schemes["layer_alone", name] = Scheme(None, layers={name: bits})
        schemes["layer_spared", name] = Scheme(bits, layers={name: None})
    assert list(told(rows)) == [
        (f"{of}_{what}", layer) for of, layer in schemes for what in ("loss", "changes")
    ]
    for (of, layer), scheme in schemes.items():
        made = make(scheme)
        assert told(rows)[f"{of}_loss", layer] == pytest.approx(
            divergence(module, made, inputs), rel=1e-3
        )
        changed = (module(inputs).argmax(1) != made(inputs).argmax(1)).double().mean().item()
        assert told(rows)[f"{of}_changes", layer] == changed
    assert {each.direction for each in rows} == {Direction.LOWER}
    assert {each.unit for each in rows} == {"nats", "fraction"}
    assert all("3-bit weights, 5-bit activations" in each.reason for each in rows)


def test_layers_with_groups_strides_and_a_residual_sum() -> None:
    module = Written(
        lambda net, x: net.head(net.strided(x + net.depthwise(x)).flatten(1)),
        depthwise=nn.Conv2d(4, 4, 3, padding=1, groups=4),
        strided=nn.Conv2d(4, 6, 3, stride=2, bias=False),
        head=nn.Linear(6 * 9, 3),
    )
    assert layers_of(trace(module, (4, 8, 8))) == {
        "depthwise": 4 * 9,
        "strided": 6 * 4 * 9,
        "head": 54 * 3,
    }


def test_the_same_every_time_for_any_number_of_threads_and_nothing_is_touched() -> None:
    inputs = chain_inputs()
    traced = trace(chain(), (8,))
    before = {name: each.clone() for name, each in traced.state_dict().items()}
    drawn, found = torch.get_rng_state(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            make = maker(traced, inputs)
            found.append(
                (
                    sensitivity(make, traced, inputs, Bits(3, 3)),
                    search(make, traced, inputs, 4, 0.4, (4, 2)),
                )
            )
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)
    assert found[0] == found[1]
    assert all(torch.equal(each, before[name]) for name, each in traced.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_sparing_the_only_layer_loses_nothing() -> None:
    inputs = chain_inputs()
    traced = trace(nn.Linear(8, 3), (8,))
    found = {
        each.name: each.value
        for each in sensitivity(maker(traced, inputs), traced, inputs, Bits(2, 2))
    }
    assert (
        found["layer_spared_loss"] == found["layer_spared_changes"] == 0 < found["layer_alone_loss"]
    )


def test_errors_name_their_cause() -> None:
    with pytest.raises(ValueError, match="no inputs"):
        Reference(chain(), torch.zeros(0, 8))
    broken = nn.Linear(8, 3)
    with torch.no_grad():
        broken.bias[0] = float("nan")
    with pytest.raises(ValueError, match="4 of 12 logits of the float network"):
        Reference(broken, torch.zeros(4, 8))
    with pytest.raises(Unsupported, match="no linear or convolutional layer"):
        layers_of(trace(nn.Sequential(nn.ReLU(), nn.Flatten()), (2, 2)))


def value_of(widths: Any, weights: list[int], costs: list[dict[int, float]]) -> tuple[float, int]:
    """The sum of costs, and the bits of all weights."""
    size = sum(count * width for count, width in zip(weights, widths, strict=True))
    return sum(cost[width] for cost, width in zip(costs, widths, strict=True)), size


@settings(max_examples=150, deadline=None)
@given(LAYERS, st.integers(25, 100))
def test_the_knapsack_is_solved_exactly(
    drawn: list[tuple[int, tuple[float, float, float]]], percent: int
) -> None:
    weights, costs = (
        [each for each, _ in drawn],
        [dict(zip((2, 4, 8), each, strict=True)) for _, each in drawn],
    )
    found = value_of(cheapest(weights, costs, percent / 100), weights, costs)
    every = [
        value_of(widths, weights, costs)
        for widths in itertools.product((2, 4, 8), repeat=len(weights))
    ]
    assert found == min(each for each in every if 100 * each[1] <= percent * 8 * sum(weights))


def test_the_budget_is_the_decimal_that_was_written() -> None:
    """10 weights at 8 bits are 80: 0.3 of that are 24, but the float 0.3 is a little less than
    3/10.
    """
    assert cheapest([8, 2], [{2: 0.0, 4: 9.0}, {2: 1.0, 4: 0.0}], 0.3) == [2, 4]
    with pytest.raises(ValueError, match=r"at least 0\.5"):
        cheapest([10], [{4: 0.0, 8: 0.0}], 0.4)


def test_many_layers_of_uneven_sizes() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1000, 600_000, (60,), generator=generator).tolist()
    falling = 4.0 ** torch.arange(5.0)
    costs = [
        dict(
            zip(
                (8, 6, 4, 3, 2),
                (falling * torch.rand((), generator=generator)).tolist(),
                strict=True,
            )
        )
        for _ in sizes
    ]
    total, size = value_of(cheapest(sizes, costs, 0.5), sizes, costs)
    assert 2 * size <= 8 * sum(sizes)
    assert total < value_of([4] * 60, sizes, costs)[0]


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
        best = min(
            (each for each in predicted if 160 * each[0] + 100 * each[1] <= budget * 2080),
            key=predicted.get,
        )
        uniform = max(width for width in widths if width <= 8 * budget)
        assert plan.uniform_bits == uniform
        assert plan.uniform_loss == pytest.approx(measured(uniform, uniform), rel=1e-3)
        expected = best if measured(*best) <= measured(uniform, uniform) else (uniform, uniform)
        assert tuple(plan.weight_bits.values()) == expected
        assert plan.predicted_loss == pytest.approx(predicted[expected], rel=1e-3)
        assert plan.loss == pytest.approx(measured(*expected), rel=1e-3)
        made = make(plan.scheme)
        widths_made = [
            int(made.get_submodule(name).quant_weight().bit_width)
            for name in ("layer_0", "layer_2")
        ]
        assert widths_made == list(expected)
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
    """For `search`: networks that differ from the float one by an offset of a logit, given by
    assignment.
    """

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
    # Each layer alone at 2 bits costs nothing, and at 4 something; but 8 and 2 within half the size
    # is impossible, and what is predicted to cost nothing, 2 and 2, costs much.
    offsets = {
        (8, 8): 0.0,
        (8, 4): 0.1,
        (4, 8): 0.1,
        (8, 2): 0.0,
        (2, 8): 0.0,
        (2, 2): 5.0,
        (4, 4): 0.5,
    }
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
    ("options", "text"),
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
def test_errors_name_option_and_bound(options: dict[str, object], text: str) -> None:
    inputs, traced = chain_inputs(10), trace(two_layers(), (8,))
    known: dict[str, object] = {"act_bits": 8, "size_budget": 0.5, "widths": WIDTHS, **options}
    with pytest.raises(ValueError, match=text):
        search(maker(traced, inputs), traced, inputs, **known)


def test_metrics() -> None:
    plan = Plan(
        {"a": 4, "b": 2},
        8,
        30,
        0.4,
        0.1,
        0.2,
        3,
        0.3,
        "3 bits in every layer lose 0.3 nats, not less",
    )
    found = {(each.name, each.setting.get("layer")): each for each in plan.metrics()}
    assert {key: each.value for key, each in found.items()} == {
        ("chosen_weight_bits", "a"): 4,
        ("chosen_weight_bits", "b"): 2,
        ("weight_bytes", None): 30,
        ("weight_bytes_share", None): 0.4,
        ("mixed_loss", None): 0.2,
        ("mixed_predicted_loss", None): 0.1,
        ("uniform_loss", None): 0.3,
    }
    assert found["weight_bytes_share", None].unit == "share"
    assert found["mixed_loss", None].unit == "nats"
    assert found["mixed_loss", None].reason == plan.reason
