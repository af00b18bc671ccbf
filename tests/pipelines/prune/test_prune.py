"""`prune`: narrower networks that equal the zeroed one, and what torch-pruning would get
silently wrong.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from written import Written, bench_of, mlp

from evalsuite import Bench, Network, Outcome, Split, Unsupported, export_onnx
from evalsuite.networks import load_network, save_network
from evalsuite.samples import Several
from evalsuite.tasks import Regression
from evalsuite.testing import check_stage
from evalsuite.workloads.digits import DigitsCNN, DigitsMLP
from evalsuite.workloads.transformer import Attention
from evalsuite.workloads.vit import DigitsViT
from opgraph.estimates import peak_bytes
from pipelines.prune import Prune
from pipelines.prune.narrowing import narrow, probe_of
from pipelines.prune.size import macs_of, parameters_of

MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]
VARIANTS = ("gelu", "gelu-swap", "lambda-gelu")


def values(outcome: Outcome) -> dict[str, float | None]:
    return {metric.name: metric.value for metric in outcome.metrics if not metric.setting}


@pytest.mark.parametrize(
    ("workload", "kind", "variant"),
    [
        ("digits-mlp", DigitsMLP, "gelu"),
        *(("digits-cnn", DigitsCNN, variant) for variant in VARIANTS),
    ],
)
@pytest.mark.slow
def test_every_variant(
    network: MakeNetwork, bench: MakeBench, tmp_path: Path, workload: str, kind: type, variant: str
) -> None:
    trained, there = network(workload, variant), bench(workload)
    outcome = Prune(fine_tune_epochs=1).run(trained, there)
    found = values(outcome)
    assert found["equality_error"] <= 1e-6
    handed_on = outcome.network
    assert handed_on.unswapped is None
    assert not handed_on.module.training
    assert found["parameters"] == parameters_of(handed_on.module)
    whole = parameters_of(kind().build(lambda _: nn.GELU()))
    assert found["parameter_fraction"] == found["parameters"] / whole
    with torch.no_grad():
        right = handed_on.module(there.data.test.inputs).argmax(1) == there.data.test.targets
        unpruned = trained.module(there.data.test.inputs).argmax(1) == there.data.test.targets
    assert found["accuracy"] == right.double().mean().item()
    assert found["accuracy_drop"] == pytest.approx(
        (unpruned.double().mean() - right.double().mean()).item()
    )
    save_network(handed_on, tmp_path / "saved", kind())
    restored = load_network(tmp_path / "saved", kind(), there.data)
    difference = restored.module(there.data.test.inputs) - handed_on.module(there.data.test.inputs)
    assert difference.abs().max().item() == 0.0


def test_half_of_the_mlp_by_hand(network: MakeNetwork, bench: MakeBench) -> None:
    # 64-32-32-10 becomes 64-16-16-10.
    outcome = Prune(fine_tune_epochs=0).run(network("digits-mlp", "gelu"), bench("digits-mlp"))
    found = values(outcome)
    assert found["parameters"] == 65 * 16 + 17 * 16 + 17 * 10
    assert found["macs"] == 64 * 16 + 16 * 16 + 16 * 10
    assert found["mac_fraction"] == pytest.approx(
        (64 * 16 + 16 * 16 + 16 * 10) / (64 * 32 + 32 * 32 + 32 * 10)
    )
    assert found["accuracy"] == found["accuracy_before_tuning"]
    for name in ("latency_ratio", "relative_latency"):
        ratios = {
            metric.setting["batch"]: metric for metric in outcome.metrics if metric.name == name
        }
        assert set(ratios) == {1, 64}
        assert all(metric.timing and metric.value is not None for metric in ratios.values())


@pytest.mark.slow
def test_the_control_is_only_fine_tuned(network: MakeNetwork, bench: MakeBench) -> None:
    trained, there = network("digits-mlp", "relu"), bench("digits-mlp")
    outcome = Prune(control=True, fine_tune_epochs=1).run(trained, there)
    found = values(outcome)
    assert found["parameter_fraction"] == 1.0
    assert found["removed_channels"] == found["equality_error"] == 0.0
    assert found["accuracy_before_tuning"] == found["accuracy"] + found["accuracy_drop"]
    by_hand = copy.deepcopy(trained.module)
    there.fine_tune(by_hand, 1)
    assert torch.equal(outcome.network.module[0].weight, by_hand[0].weight)
    assert not torch.equal(by_hand[0].weight, trained.module[0].weight)


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["local", "global"])
def test_rounds_end_at_the_widths_of_one_round(
    network: MakeNetwork, bench: MakeBench, scope: str
) -> None:
    trained, there = network("digits-cnn", "gelu"), bench("digits-cnn")
    one, several = (
        narrow(
            trained.module,
            probe_of(there),
            there,
            Prune(0.3, scope=scope, rounds=rounds, fine_tune_epochs=3),
        )
        for rounds in (1, 3)
    )
    assert one.channels == several.channels > 0
    assert several.equality_error <= 1e-6
    if scope == "local":
        assert parameters_of(one.module) == parameters_of(several.module)
    assert not torch.equal(one.module[-1].bias, several.module[-1].bias)


def test_a_round_that_is_too_small_for_a_channel_waits_for_the_next(bench: MakeBench) -> None:
    there = bench("digits-mlp")
    made = narrow(mlp(64, 8, 10), probe_of(there), there, Prune(0.25, rounds=4, fine_tune_epochs=4))
    assert made.module[0].out_features == 6


def test_the_teacher_is_the_unpruned_network(network: MakeNetwork, bench: MakeBench) -> None:
    trained, there = network("digits-mlp", "relu"), bench("digits-mlp")
    taught, untaught = (
        narrow(
            trained.module, probe_of(there), there, Prune(0.6, fine_tune_epochs=5, distill=distill)
        )
        for distill in (True, False)
    )

    def divergence(module: nn.Module) -> float:
        with torch.no_grad():
            mine, whole = (
                each(there.data.train.inputs).log_softmax(1) for each in (module, trained.module)
            )
        return nn.functional.kl_div(mine, whole, log_target=True, reduction="batchmean").item()

    assert torch.equal(taught.untuned[0].weight, untaught.untuned[0].weight)
    assert divergence(taught.module) < divergence(untaught.module)


@pytest.mark.slow
def test_units_and_heads_of_a_transformer(
    network: MakeNetwork, bench: MakeBench, tmp_path: Path
) -> None:
    trained, there = network("digits-vit", "gelu", epochs=1), bench("digits-vit", epochs=1)
    outcome = Prune(sparsity=0.5, heads=0.5, importance="taylor", fine_tune_epochs=0).run(
        trained, there
    )
    found = values(outcome)
    # Of each of two blocks 48 of 96 units, and 2 of 4 heads of 12.
    assert (found["removed_channels"], found["removed_heads"]) == (96, 4)
    lost = 2 * (48 * (48 + 1) + 48 * 48 + 3 * 24 * (48 + 1) + 24 * 48)
    assert parameters_of(trained.module) - found["parameters"] == lost
    assert found["equality_error"] <= 1e-6
    save_network(outcome.network, tmp_path / "saved", DigitsViT())
    restored = load_network(tmp_path / "saved", DigitsViT(), there.data)
    inputs = there.data.test.inputs
    assert torch.equal(restored.module(inputs), outcome.network.module(inputs))
    assert not [each for each in outcome.metrics if each.value is None]


def test_heads_alone(network: MakeNetwork, bench: MakeBench) -> None:
    trained, there = network("digits-vit", "gelu", epochs=1), bench("digits-vit", epochs=1)
    made = narrow(
        trained.module, probe_of(there), there, Prune(sparsity=0, heads=0.25, fine_tune_epochs=0)
    )
    assert (made.channels, made.heads) == (0, 2)


def layers(call: Callable[[Any, torch.Tensor], torch.Tensor]) -> nn.Module:
    torch.manual_seed(0)
    return Written(
        call, hidden=nn.Linear(64, 8), activation=nn.ReLU(), head=nn.Linear(8, 10)
    ).eval()


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (lambda: mlp(64, 8, 10).requires_grad_(False), {}, "every parameter is frozen"),
        (
            lambda: nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool1d(10)),
            {},
            "cannot follow the network|no prunable layer",
        ),
        # Sorting gives the channels new places, which torch-pruning does not see.
        (
            lambda: layers(
                lambda net, x: net.head(net.activation(net.hidden(x)).sort(dim=1).values)
            ),
            {},
            "changed what the network computes",
        ),
        (
            lambda: mlp(64, 8, 10),
            {"sparsity": 0.1},
            "removes no channel: layers are at most 8 wide",
        ),
    ],
)
def test_networks_that_cannot_be_pruned_say_why(
    bench: MakeBench, make: Callable[[], nn.Module], options: dict[str, float], reason: str
) -> None:
    network = Network("odd", make().eval(), (64,), 10)
    with pytest.raises(Unsupported, match=reason):
        Prune(fine_tune_epochs=0, **options).run(network, bench("digits-mlp"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"sparsity": 0},
            (
                r"sparsity must be in \(0, 1\), got 0; to remove nothing and only fine-tune, set"
                r" control"
            ),
        ),
        ({"sparsity": 1.0}, r"sparsity must be in \(0, 1\), got 1.0"),
        ({"sparsity": -0.1}, r"sparsity must be in \(0, 1\), got -0.1"),
        ({"sparsity": math.nan}, r"sparsity must be in \(0, 1\), got nan"),
        ({"heads": 1.0}, r"heads must be in \[0, 1\), got 1.0"),
        ({"heads": math.nan}, r"heads must be in \[0, 1\), got nan"),
        ({"importance": "talyor"}, "importance must be one of l2, l1, .*random, got 'talyor'"),
        ({"scope": "layer"}, "scope must be one of local, global, got 'layer'"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"round_to": 2.5}, "round_to must be a whole number of at least 1, got 2.5"),
        ({"distill": True, "fine_tune_epochs": 0}, "distill teaches during fine-tuning"),
        ({"rounds": 4}, "rounds must be at most fine_tune_epochs = 3, got 4"),
        ({"fine_tune_epochs": -1}, "fine_tune_epochs must be a whole number of at least 0, got -1"),
        ({"round_to": 0}, "round_to must be a whole number of at least 1, got 0"),
    ],
)
def test_options_are_validated(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Prune(**options)  # type: ignore[arg-type]


def test_a_network_that_onnx_cannot_express_is_still_pruned(bench: MakeBench) -> None:
    module = layers(lambda net, x: torch.cumprod(net.head(net.activation(net.hidden(x))), dim=1))
    outcome = Prune(fine_tune_epochs=0).run(
        Network("product", module, (64,), 10), bench("digits-mlp")
    )
    size = next(metric for metric in outcome.metrics if metric.name == "model_bytes")
    assert size.value is None
    assert "cannot be exported" in size.reason
    assert outcome.artefacts == {}
    assert outcome.network.module.hidden.out_features == 4


def test_activations_that_are_functions_are_read_as_modules(bench: MakeBench) -> None:
    torch.manual_seed(0)
    module = Written(
        lambda net, x: net.head(net.hidden(x).relu()),
        hidden=nn.Linear(64, 8),
        head=nn.Linear(8, 10),
    )
    outcome = Prune(fine_tune_epochs=0).run(
        Network("called", module.eval(), (64,), 10), bench("digits-mlp")
    )
    assert outcome.network.module.hidden.out_features == 4
    assert values(outcome)["equality_error"] <= 1e-6


@pytest.mark.slow
def test_dropout_draws_from_the_seed(bench: MakeBench) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10)).eval()
    tuned = []
    for state in (1, 2):
        torch.manual_seed(state)
        outcome = Prune(fine_tune_epochs=1).run(
            Network("dropout", copy.deepcopy(module), (64,), 10), bench("digits-mlp")
        )
        tuned.append(outcome.network.module[0].weight)
    assert torch.equal(tuned[0], tuned[1])


@pytest.mark.slow
def test_conformance(network: MakeNetwork, bench: MakeBench) -> None:
    stage, trained = (
        Prune(fine_tune_epochs=1, importance="random"),
        network("digits-cnn", "lambda-gelu"),
    )
    assert "handed_on_network" in check_stage(stage, network=trained, bench=bench("digits-cnn"))


@pytest.mark.slow
def test_a_regression_of_several_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Written(
        lambda net, x: net.head(net.act(net.left(x["left"]) + net.right(x["right"]))),
        left=nn.Linear(4, 12),
        right=nn.Linear(3, 12),
        act=nn.GELU(),
        head=nn.Linear(12, 2),
    ).eval()
    inputs = {"left": torch.randn(70, 4), "right": torch.randn(70, 3)}
    targets = module(inputs).detach() + 0.25
    targets[3, 0] = math.nan
    part = Split(Several(inputs), targets, Regression(unit="m"))
    there = bench_of(part, 2, tmp_path, domain=(-9.0, 9.0))
    network = Network("pair", module, (4,), 2, given=there.data.example)
    outcome = Prune(0.25, importance="taylor", fine_tune_epochs=0).run(network, there)
    found = values(outcome)
    assert found["removed_channels"] == 6  # three units, of both layers that make them
    assert found["rmse_increase"] == pytest.approx(found["rmse"] - 0.25, abs=1e-6)
    assert found["rmse_before_tuning"] == found["rmse"] > 0.25
    assert {"mae", "r2", "r2_drop"} <= set(found)
    assert not {"accuracy", "nll"} & set(found)
    units = {each.name: each.unit for each in outcome.metrics}
    assert units["rmse_increase"] == "m"
    assert [each.name for each in onnx.load(str(outcome.artefacts["onnx"])).graph.input] == [
        "left",
        "right",
    ]
    assert outcome.network.module(inputs).shape == (70, 2)


def test_peaks_by_hand(tmp_path: Path) -> None:
    module = mlp(6, 20, 3)
    model, weights = export_onnx(module, (6,), tmp_path / "chain.onnx"), 4 * parameters_of(module)
    for batch in (1, 64):  # at the activation, its input and its output of 20 each
        assert peak_bytes(model, batch) == weights + batch * 4 * 40
    block = Written(
        lambda net, x: x + net.down(net.act(net.up(x))),
        up=nn.Linear(8, 24),
        act=nn.ReLU(),
        down=nn.Linear(24, 8),
    ).eval()
    model = export_onnx(block, (8,), tmp_path / "block.onnx")
    # What a residual block adds stays alive.
    assert peak_bytes(model, 2) == 4 * parameters_of(block) + 2 * 4 * (8 + 24 + 24)


def test_sizes_by_hand() -> None:
    heads, positions, size = 2, 5, 4
    attention = 2 * heads * positions**2 * size + positions * 4 * 8 * 8
    fused = nn.TransformerEncoderLayer(8, heads, 16, dropout=0.0, batch_first=True)
    convolution = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )
    for module, shape, macs in (
        (fused, (1, positions, 8), attention + positions * 2 * 8 * 16),
        (Attention(8, heads, causal=False), (1, positions, 8), attention),
        (convolution, (1, 1, 8, 8), 8 * 8 * 4 * 9 + 2560),
    ):
        assert macs_of(module.eval(), torch.zeros(shape)) == macs
        assert torch.backends.mha.get_fastpath_enabled()
    layer = nn.Linear(5, 5)
    assert parameters_of(nn.Sequential(layer, nn.ReLU(), layer)) == 30  # shared weights count once
