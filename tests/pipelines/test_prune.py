"""`prune`: narrower networks that equal the zeroed one, and what torch-pruning would get silently wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from evalsuite import Bench, LambdaGELU, Network, Outcome, Unsupported
from evalsuite.networks import load_network, save_network
from evalsuite.testing import check_stage
from evalsuite.workloads.digits import DigitsCNN, DigitsMLP
from pipelines.prune import Prune
from pipelines.prune.channels import Choice, prune
from pipelines.prune.equality import equality_error
from pipelines.prune.measuring import _macs

MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]
VARIANTS = ("gelu", "gelu-swap", "lambda-gelu", "annealed", "relu")
HALF = Choice(0.5, "l2", 1, 0)


def values(outcome: Outcome) -> dict[str, float | None]:
    return {metric.name: metric.value for metric in outcome.metrics if not metric.setting}


def parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def mlp(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("workload", "kind"), [("digits-mlp", DigitsMLP), ("digits-cnn", DigitsCNN)])
def test_every_variant(
    network: MakeNetwork, bench: MakeBench, tmp_path: Path, workload: str, kind: type, variant: str
) -> None:
    trained, there = network(workload, variant, epochs=4), bench(workload, epochs=4)
    outcome = Prune(fine_tune_epochs=1).run(trained, there)
    found = values(outcome)
    assert found["equality_error"] <= 1e-6
    handed_on = outcome.network
    assert handed_on.unswapped is None
    assert not handed_on.module.training
    assert found["parameters"] == parameters(handed_on.module)
    whole = parameters(kind().build(lambda _: nn.GELU()))
    assert found["parameter_fraction"] == found["parameters"] / whole
    with torch.no_grad():
        right = handed_on.module(there.data.test.inputs).argmax(1) == there.data.test.targets
        unpruned = trained.module(there.data.test.inputs).argmax(1) == there.data.test.targets
    assert found["accuracy"] == right.double().mean().item()
    assert found["accuracy_drop"] == pytest.approx((unpruned.double().mean() - right.double().mean()).item())
    save_network(handed_on, tmp_path / "saved", kind())
    restored = load_network(tmp_path / "saved", kind(), there.data)
    difference = restored.module(there.data.test.inputs) - handed_on.module(there.data.test.inputs)
    assert difference.abs().max().item() == 0.0


def test_half_of_the_mlp_by_hand(network: MakeNetwork, bench: MakeBench) -> None:
    # 64-32-32-10 becomes 64-16-16-10.
    found = values(Prune(fine_tune_epochs=0).run(network("digits-mlp", "gelu"), bench("digits-mlp")))
    assert found["parameters"] == 65 * 16 + 17 * 16 + 17 * 10
    assert found["macs"] == 64 * 16 + 16 * 16 + 16 * 10
    assert found["mac_fraction"] == pytest.approx((64 * 16 + 16 * 16 + 16 * 10) / (64 * 32 + 32 * 32 + 32 * 10))
    assert found["accuracy"] == found["accuracy_before_tuning"]


def test_multiply_accumulates_of_a_convolution_by_hand() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    assert _macs(module, (1, 8, 8)) == 8 * 8 * 4 * 9 + 2560


@pytest.mark.parametrize("importance", ["l2", "l1"])
def test_the_least_important_channels_go(importance: str) -> None:
    module = mlp(2, 4, 2)
    with torch.no_grad():
        for unit, size in enumerate((3.0, 0.1, 2.0, 0.2)):
            module[0].weight[unit] = size
            module[2].weight[:, unit] = size
    pruned = prune(module, (2,), Choice(0.5, importance, 1, 0))
    assert pruned.removed == {"0": [1, 3]}
    assert torch.equal(pruned.module[0].weight, module[0].weight[[0, 2]])
    assert torch.equal(pruned.module[2].weight, module[2].weight[:, [0, 2]])


def test_l1_and_l2_rank_differently() -> None:
    # Unit 0: one weight of 3 (l1 3, squares 9); unit 1: four of 1 (l1 4, squares 4).
    module = mlp(4, 2, 2)
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[3.0, 0, 0, 0], [1.0, 1, 1, 1]]))
        module[2].weight.zero_()
    assert prune(module, (4,), Choice(0.5, "l2", 1, 0)).removed == {"0": [1]}
    assert prune(module, (4,), Choice(0.5, "l1", 1, 0)).removed == {"0": [0]}


def test_random_pruning_follows_its_seed() -> None:
    module = mlp(8, 64, 4)
    removed = [prune(module, (8,), Choice(0.5, "random", 1, seed)).removed["0"] for seed in (0, 0, 1)]
    assert removed[0] == removed[1]
    assert removed[0] != removed[2]


@pytest.mark.parametrize(
    ("sparsity", "round_to", "channels", "kept"),
    [
        (0.5, 1, 32, 16), (0.5, 8, 30, 16), (0.9, 8, 32, 8), (0.29, 1, 100, 71), (0.5, 64, 32, 32),
        (0.99, 1, 4, 1), (0.0, 1, 5, 5), (0.5, 1, 5, 3),
    ],
)  # fmt: skip
def test_how_many_channels_stay(sparsity: float, round_to: int, channels: int, kept: int) -> None:
    assert Choice(sparsity, "l2", round_to, 0).kept(channels) == kept


def test_sparsity_0_is_the_fine_tuned_control(network: MakeNetwork, bench: MakeBench) -> None:
    trained, there = network("digits-mlp", "relu"), bench("digits-mlp")
    outcome = Prune(sparsity=0.0, fine_tune_epochs=1).run(trained, there)
    found = values(outcome)
    assert found["parameter_fraction"] == 1.0
    assert found["equality_error"] == 0.0
    assert found["accuracy_before_tuning"] == found["accuracy"] + found["accuracy_drop"]
    assert not torch.equal(outcome.network.module[0].weight, trained.module[0].weight)


def test_latency_is_a_ratio_per_batch(network: MakeNetwork, bench: MakeBench) -> None:
    outcome = Prune(sparsity=0.75, fine_tune_epochs=0).run(network("digits-cnn", "relu", epochs=4), bench("digits-cnn"))
    ratios = {metric.setting["batch"]: metric for metric in outcome.metrics if metric.name == "latency_ratio"}
    assert set(ratios) == {1, 64}
    assert all(metric.timing for metric in ratios.values())
    # 0.08 of the multiply-accumulates: a network that is not narrower could not come near this.
    assert ratios[64].value > 1.3


class Residual(nn.Module):
    """x + f(x) couples the stem with the block's last convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 12, 3, padding=1), nn.Conv2d(12, 8, 1)
        self.norm, self.activation = nn.BatchNorm2d(12), nn.GELU()
        self.head = nn.Linear(8 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.stem(x))
        x = x + self.second(self.activation(self.norm(self.first(x))))
        return self.head(self.activation(x).flatten(1))


def test_a_residual_network_keeps_its_function() -> None:
    module = Residual().eval()
    with torch.no_grad():
        module.norm.bias.add_(0.7)
        module.norm.running_mean.add_(0.3)
    pruned = prune(module, (1, 8, 8), HALF)
    assert pruned.module.stem.out_channels == pruned.module.second.out_channels == 4
    assert pruned.module.first.out_channels == 6
    assert equality_error(module, pruned, torch.rand(9, 1, 8, 8), 10) < 1e-12


def test_the_oracle_sees_a_wrong_channel() -> None:
    module = mlp(8, 16, 4)
    pruned = prune(module, (8,), HALF)
    with torch.no_grad():
        pruned.module[2].weight.copy_(pruned.module[2].weight.flip(1))
    with pytest.raises(Unsupported, match="changed what the network computes"):
        equality_error(module, pruned, torch.rand(5, 8), 4)


class LambdaBlock(nn.Module):
    """LambdaGELU per channel that cannot be folded, as the layers are no nn.Sequential."""

    def __init__(self, channels: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(64, 16), nn.Linear(16, 10)
        self.activation = LambdaGELU(channels)
        with torch.no_grad():
            self.activation.s.copy_(torch.linspace(-0.1, 0.3, channels) if channels else torch.tensor(0.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.activation(self.hidden(x)))


@pytest.mark.parametrize("channels", [None, 16])
@pytest.mark.parametrize("frozen", [False, True])
def test_an_unfolded_lambda_is_pruned_with_its_channels(channels: int | None, frozen: bool) -> None:
    module = LambdaBlock(channels).eval()
    module.activation.s.requires_grad_(not frozen)
    pruned = prune(module, (64,), HALF)
    assert pruned.module.hidden.out_features == 8
    assert pruned.module.activation.s.shape == (() if channels is None else (8,))
    assert pruned.module.activation.s.requires_grad is not frozen
    assert equality_error(module, pruned, torch.rand(9, 64), 10) < 1e-12


def test_a_frozen_layer_is_pruned_and_stays_frozen() -> None:
    module = mlp(8, 16, 16, 4)
    module[0].requires_grad_(False)
    pruned = prune(module, (8,), HALF)
    assert pruned.module[0].out_features == 8
    assert not pruned.module[0].weight.requires_grad
    assert pruned.module[2].weight.requires_grad
    assert equality_error(module, pruned, torch.rand(5, 8), 4) < 1e-12


def test_what_mixes_channels_is_left_alone() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)
    ).eval()
    pruned = prune(module, (8,), HALF)
    assert pruned.removed.keys() == {"3"}
    assert (pruned.module[0].out_features, pruned.module[3].out_features) == (16, 6)


def test_grouped_convolutions_are_left_alone_and_depthwise_ones_follow() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(),
        nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4),
    ).eval()  # fmt: skip
    pruned = prune(module, (1, 8, 8), HALF)
    assert pruned.removed.keys() == {"4", "5"}
    assert pruned.module[5].groups == 4
    assert equality_error(module, pruned, torch.rand(5, 1, 8, 8), 4) < 1e-12


def frozen() -> nn.Module:
    return mlp(64, 8, 10).requires_grad_(False)


class Functional(nn.Module):
    """Its activation is a function, not a module."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(x).relu())


class Sorted(nn.Module):
    """Sorting gives the channels new places, which torch-pruning does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.activation, self.head = nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.activation(self.hidden(x)).sort(dim=1).values)


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (frozen, {}, "every parameter is frozen"),
        (lambda: nn.Sequential(nn.Linear(64, 10)), {}, "no activation module"),
        (lambda: nn.Sequential(nn.Linear(64, 10), nn.ReLU()), {}, "no prunable layer"),
        (lambda: nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool1d(10)), {}, "cannot follow the network|no prunable layer"),
        (Functional, {}, "no activation module"),
        (Sorted, {}, "changed what the network computes"),
        (lambda: mlp(64, 8, 10), {"sparsity": 0.1}, "removes no channel: layers are at most 8 wide"),
        (lambda: mlp(64, 8, 10), {"round_to": 8}, "removes no channel.*round_to"),
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
        ({"sparsity": 1.0}, r"sparsity must be in \[0, 1\), got 1.0"),
        ({"sparsity": -0.1}, r"sparsity must be in \[0, 1\), got -0.1"),
        ({"sparsity": math.nan}, r"sparsity must be in \[0, 1\), got nan"),
        ({"importance": "taylor"}, "importance must be one of l2, l1, random, got 'taylor'"),
        ({"fine_tune_epochs": -1}, "fine_tune_epochs must be at least 0, got -1"),
        ({"round_to": 0}, "round_to must be at least 1, got 0"),
    ],
)
def test_options_are_validated(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Prune(**options)  # type: ignore[arg-type]


def test_a_network_that_onnx_cannot_express_is_still_pruned(bench: MakeBench) -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.hidden, self.activation, self.head = nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cumprod(self.head(self.activation(self.hidden(x))), dim=1)

    outcome = Prune(fine_tune_epochs=0).run(Network("product", Product().eval(), (64,), 10), bench("digits-mlp"))
    size = next(metric for metric in outcome.metrics if metric.name == "model_bytes")
    assert size.value is None
    assert "cannot be exported" in size.reason
    assert outcome.artefacts == {}
    assert outcome.network.module.hidden.out_features == 4


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


def test_conformance() -> None:
    assert "handed_on_network" in check_stage(Prune(fine_tune_epochs=1))


def test_conformance_on_a_convolutional_network(network: MakeNetwork, bench: MakeBench) -> None:
    trained = network("digits-cnn", "lambda-gelu", epochs=2)
    check_stage(Prune(fine_tune_epochs=1, importance="random"), network=trained, bench=bench("digits-cnn", epochs=2))
