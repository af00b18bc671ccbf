"""The stage `swap-certificate`: its metrics, what it refuses, its time; and networks of tokens
in it and in `smt`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import slow
from torch import nn
from written import bench_of

from evalsuite import Bench, Metric, Network, Split, Unsupported, Verdict, swap_to_relu
from evalsuite.tasks import LanguageModel
from evalsuite.testing import check_stage
from netverify import SwapBounds
from netverify.certificate import SwapCertificate
from pipelines.smt import Smt
from pipelines.swap_certificate import Certificate
from pipelines.swap_certificate.measuring import Measurement

MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]
QUICK = Certificate(samples=10, sweep_samples=4, hardness=(2.0, 160.0))


def value(metrics: list[Metric], name: str, **setting: float) -> float:
    (found,) = [
        each
        for each in metrics
        if each.name == name and dict(each.setting) == setting and each.sample is None
    ]
    assert found.value is not None
    return found.value


@pytest.mark.slow
def test_it_keeps_the_contract() -> None:
    check_stage(QUICK)


def test_what_it_says_of_an_annealed_network(network: MakeNetwork, bench: MakeBench) -> None:
    metrics = QUICK.run(network("digits-mlp", "annealed"), bench("digits-mlp")).metrics
    for eps in (0.0, 0.01, 0.02):
        certified, observed = (
            value(metrics, f"{each}_disruption", eps=eps) for each in ("certified", "observed")
        )
        assert 0 < observed <= certified < 0.1
        assert value(metrics, "certified_to_observed", eps=eps) == pytest.approx(
            certified / observed
        )
        assert value(metrics, "swap_kept", eps=eps) >= 0.9
        harder, softer = (
            value(metrics, "certified_disruption", eps=eps, hardness=each) for each in (160.0, 2.0)
        )
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
        value(stage.run(each, bench("digits-mlp")).metrics, "certified_disruption", eps=0.0)
        for each in (gelu, swapped)
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
    metrics = Certificate(eps=(0.0, 0.001), samples=1, hardness=(2.0,)).run(subject, given).metrics
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
    lower, upper = (
        torch.stack([getattr(each, side) for each in properties]) for side in ("lower", "upper")
    )
    found = SwapBounds(made.unswapped, made.input_shape).certify(lower, upper)
    # Without either, a bound of what two margins differ by is twice as wide as they vary.
    center = SwapBounds(made.unswapped, made.input_shape).certify(
        (lower + upper) / 2, (lower + upper) / 2
    )
    varies = (center.margin_before - found.margin_before).amax(1)
    assert bool((found.disruption < 0.1 * varies).all())


class TooNarrow(SwapBounds):
    """A certificate with a bug: half of what it may exclude."""

    def certify(self, *args: Any, **options: Any) -> SwapCertificate:
        found = super().certify(*args, **options)
        return replace(
            found,
            difference_lower=found.difference_lower / 2,
            difference_upper=found.difference_upper / 2,
        )


def test_an_observation_beyond_its_certificate_is_a_bug(
    network: MakeNetwork, bench: MakeBench
) -> None:
    made, given = network("digits-mlp", "gelu"), bench("digits-mlp")
    bounds = TooNarrow(made.module, made.input_shape)
    with pytest.raises(RuntimeError, match="excludes a difference that was observed"):
        Measurement(made, given, 3)._found([(bounds, given.properties(0.0, 3))], None)


@pytest.mark.timeout(60)
def test_without_time_it_says_so(network: MakeNetwork, bench: MakeBench) -> None:
    metrics = (
        Certificate()
        .run(network("digits-mlp", "annealed"), bench("digits-mlp", time_limit=1e-3))
        .metrics
    )
    assert {each.reason for each in metrics if each.value is None} == {"not within the time limit"}
    # What is not measured has its row all the same.
    of_a_radius = {each.name for each in metrics if each.setting == {"eps": 0.02}}
    assert of_a_radius >= {
        "certified_before_swap",
        "swap_kept",
        "certified_to_observed",
        "certified_disruption_max",
    }


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


# Networks of tokens: what follows the embedding is verified, around what the tokens are embedded
# to.
class Tagger(nn.Module):
    """Logits of each position of tokens, by causal attention, a norm and GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.asked, self.norm = nn.Embedding(9, 6), nn.Linear(6, 18), nn.LayerNorm(6)
        self.up, self.activation, self.down = nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        query, key, value = self.asked(x).chunk(3, -1)
        x = self.norm(
            x + nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        )
        return self.down(self.activation(self.up(x)))  # type: ignore[no-any-return]


def tagged(folder: Path) -> tuple[Network, Bench]:
    """The network, and a bench of what it says."""
    torch.manual_seed(0)
    tokens, module = torch.randint(9, (6, 4)), Tagger().eval()
    with torch.no_grad():
        split = Split(tokens, module(tokens).argmax(-1), LanguageModel())
    bench = bench_of(split, 3, folder, domain=(0.0, 8.0), vocabulary=9)
    return Network("tagger", module, (4,), 3, vocabulary=9), bench


@pytest.mark.slow
@pytest.mark.parametrize("positions", [0, 2])
def test_of_tokens_what_follows_their_embedding_is_certified(
    tmp_path: Path, positions: int
) -> None:
    made, given = tagged(tmp_path)
    module, tokens = made.module, given.data.test.inputs
    told = {"positions": positions} if positions else {}
    stage = Certificate(eps=(0.0, 0.01), samples=3, hardness=(), positions=positions)
    metrics = stage.run(made, given).metrics
    assert value(metrics, "certified_to_observed", eps=0.0, **told) == pytest.approx(1, rel=1e-6)
    assert 1 <= value(metrics, "certified_to_observed", eps=0.01, **told) < 2
    swapped = swap_to_relu(module, (tokens,))
    with torch.no_grad():
        seen = (module(tokens[:3])[:, -1] - swapped(tokens[:3])[:, -1]).abs().amax(1).mean()
    assert value(metrics, "certified_disruption", eps=0.0, **told) == pytest.approx(
        float(seen), rel=1e-4
    )
    # A network that was swapped before is compared with what it was.
    again = stage.run(replace(made, module=swapped, unswapped=module), given).metrics
    assert value(again, "certified_disruption", eps=0.01, **told) == pytest.approx(
        value(metrics, "certified_disruption", eps=0.01, **told), rel=1e-5
    )


@pytest.mark.parametrize("positions", [0, slow(1)])
def test_exact_verdicts_of_tokens_replay(tmp_path: Path, positions: int) -> None:
    made, given = tagged(tmp_path)
    module, tokens = made.module, given.data.test.inputs
    stage = Smt(
        eps=(2.0**-8, 4.0), samples=2, query_time_limit=2.0, proofs=False, positions=positions
    )
    found = stage.run(made, given)
    said = {
        (each.sample, each.setting["eps"]): each.verdict
        for each in found.metrics
        if each.verdict is not None
    }
    assert {said[sample, 2.0**-8] for sample in range(2)} == {Verdict.HOLDS}
    assert {said[sample, 4.0] for sample in range(2)} == {Verdict.VIOLATED}
    for each in json.loads(found.artefacts["counterexamples"].read_text()):
        clean = module.table(tokens[each["sample"]]).detach()[-positions:]
        assert each["clean"] == clean.tolist()
        assert float((torch.tensor(each["input"]) - clean).abs().max()) <= 4.0
        assert each["class"] != each["label"]
