"""The stage `swap-certificate`: its metrics, what it refuses, and that it keeps to its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from evalsuite import Bench, Metric, Network, SwapBounds, Unsupported
from evalsuite.certificate import SwapCertificate
from evalsuite.testing import check_stage
from pipelines.swap_certificate import Certificate
from pipelines.swap_certificate.measuring import Measurement

MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]
QUICK = Certificate(samples=10, sweep_samples=4, hardness=(2.0, 160.0))


def value(metrics: list[Metric], name: str, **setting: float) -> float:
    (found,) = [each for each in metrics if each.name == name and dict(each.setting) == setting and each.sample is None]
    assert found.value is not None
    return found.value


@pytest.mark.slow
def test_it_keeps_the_contract() -> None:
    check_stage(QUICK)


def test_what_it_says_of_an_annealed_network(network: MakeNetwork, bench: MakeBench) -> None:
    metrics = QUICK.run(network("digits-mlp", "annealed"), bench("digits-mlp")).metrics
    for eps in (0.0, 0.01, 0.02):
        certified, observed = (value(metrics, f"{each}_disruption", eps=eps) for each in ("certified", "observed"))
        assert 0 < observed <= certified < 0.1
        assert value(metrics, "certified_to_observed", eps=eps) == pytest.approx(certified / observed)
        assert value(metrics, "swap_kept", eps=eps) >= 0.9
        harder, softer = (value(metrics, "certified_disruption", eps=eps, hardness=each) for each in (160.0, 2.0))
        assert harder < softer / 20
    assert value(metrics, "certified_to_observed", eps=0.0) == pytest.approx(1.0, rel=1e-6)
    rows = [each for each in metrics if each.sample is not None and each.name == "prediction_kept"]
    assert len(rows) == 30
    # A verdict here would be compared with robustness verdicts of the same sample and eps.
    assert all(each.verdict is None for each in metrics)


def test_a_network_that_was_not_swapped_is_compared_with_its_direct_swap(
    network: MakeNetwork, bench: MakeBench
) -> None:
    gelu, swapped = network("digits-mlp", "gelu"), network("digits-mlp", "gelu-swap")
    stage = Certificate(eps=(0.0,), samples=10, hardness=())
    would, did = (
        value(stage.run(each, bench("digits-mlp")).metrics, "certified_disruption", eps=0.0) for each in (gelu, swapped)
    )
    assert would == did
    inputs = bench("digits-mlp").data.test.inputs[:10]
    with torch.no_grad():
        true = (gelu.module(inputs) - swapped.module(inputs)).abs().amax(1).mean().item()
    assert would == pytest.approx(true, rel=1e-5)


def test_what_has_nothing_to_swap_is_not_measured(bench: MakeBench) -> None:
    module = nn.Sequential(nn.Linear(64, 10), nn.ReLU()).eval()
    with pytest.raises(Unsupported, match="nothing to swap"):
        QUICK.run(Network("odd", module, (64,), 10), bench("digits-mlp"))


class Residual(nn.Module):
    """Attention, a norm and residual sums: no chain of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 12), nn.LayerNorm(4), nn.Linear(12, 10)
        self.wide, self.narrow = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x.flatten(1)).reshape(-1, 3, 4)
        h = h + torch.softmax(h @ h.transpose(1, 2), -1) @ h
        h = h + self.narrow(nn.functional.gelu(self.wide(self.norm(h))))
        return self.last(h.flatten(1))  # type: ignore[no-any-return]


@pytest.mark.slow
def test_what_is_no_chain_is_certified_by_its_graph(bench: MakeBench) -> None:
    torch.manual_seed(0)
    given, subject = bench("digits-mlp"), Network("residual", Residual().eval(), (64,), 10)
    metrics = Certificate(eps=(0.0, 0.001), samples=3, hardness=(2.0,)).run(subject, given).metrics
    assert 1 <= value(metrics, "certified_to_observed", eps=0.0) < 1.001
    assert 1 <= value(metrics, "certified_to_observed", eps=0.001) < 2
    harder = value(metrics, "certified_disruption", eps=0.0, hardness=2.0)
    assert 0 < harder < value(metrics, "certified_disruption", eps=0.0)
    late = Measurement(subject, replace(given, time_limit=0.0), 1).at(0.0, 1)
    assert {each.reason for each in late} == {"not within the time limit"}


def test_what_follows_the_difference_is_nearer_than_each_network_by_itself(
    network: MakeNetwork, bench: MakeBench
) -> None:
    made = network("digits-mlp", "annealed")
    assert made.unswapped is not None
    properties = bench("digits-mlp").properties(0.01, 3)
    lower, upper = (torch.stack([getattr(each, side) for each in properties]) for side in ("lower", "upper"))
    found = SwapBounds(made.unswapped, made.input_shape).certify(lower, upper)
    # Without either, a bound of what two margins differ by is twice as wide as they vary.
    center = SwapBounds(made.unswapped, made.input_shape).certify((lower + upper) / 2, (lower + upper) / 2)
    varies = (center.margin_before - found.margin_before).amax(1)
    assert bool((found.disruption < 0.1 * varies).all())


class TooNarrow(SwapBounds):
    """A certificate with a bug: half of what it may exclude."""

    def certify(self, *args: Any, **options: Any) -> SwapCertificate:
        found = super().certify(*args, **options)
        return replace(found, difference_lower=found.difference_lower / 2, difference_upper=found.difference_upper / 2)


def test_an_observation_beyond_its_certificate_is_a_bug(network: MakeNetwork, bench: MakeBench) -> None:
    made, given = network("digits-mlp", "gelu"), bench("digits-mlp")
    bounds = TooNarrow(made.module, made.input_shape)
    with pytest.raises(RuntimeError, match="excludes a difference that was observed"):
        Measurement(made, given, 3)._found([(bounds, given.properties(0.0, 3))], None)


@pytest.mark.timeout(60)
def test_without_time_it_says_so(network: MakeNetwork, bench: MakeBench) -> None:
    metrics = Certificate().run(network("digits-mlp", "annealed"), bench("digits-mlp", time_limit=1e-3)).metrics
    assert {each.reason for each in metrics if each.value is None} == {"not within the time limit"}
    # What is not measured has its row all the same.
    of_a_radius = {each.name for each in metrics if each.setting == {"eps": 0.02}}
    assert of_a_radius >= {"certified_before_swap", "swap_kept", "certified_to_observed", "certified_disruption_max"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"eps": ()}, "eps must be one or more"),
        ({"eps": (0.1, 0.1)}, "eps must not repeat"),
        ({"eps": (-0.1,)}, r"eps must be one or more finite radii >= 0, got \(-0.1,\)"),
        ({"hardness": (0.0,)}, "hardness must be finite"),
        ({"hardness": (2.0, 2.0)}, "hardness must not repeat"),
        ({"samples": 0}, "samples must be >= 1, got 0"),
        ({"sweep_samples": 0}, "sweep_samples must be >= 1, got 0"),
    ],
)
def test_bad_options(options: dict[str, tuple[float, ...]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Certificate(**options)  # type: ignore[arg-type]
