"""`accuracy`: values computed by hand, then really trained networks."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import MakeBench, MakeNetwork
from torch import nn
from written import Written, affine, bench_of

from evalsuite import Bench, Data, LambdaGELU, Network, Outcome, Split
from evalsuite.samples import Samples, Several
from evalsuite.tasks import LanguageModel, Regression
from evalsuite.testing import check_stage
from pipelines.accuracy import Accuracy


def values(outcome: Outcome) -> dict[str, float | None]:
    return {metric.name: metric.value for metric in outcome.metrics}


def outcome_of(
    module: nn.Module,
    inputs: list[float] | torch.Tensor,
    targets: list[int],
    folder: Path,
    before: nn.Module | None = None,
) -> Outcome:
    """Of a network with two classes, whose inputs are single numbers or a tensor, and which was
    `before` its swap.
    """
    given = torch.tensor(inputs)[:, None] if isinstance(inputs, list) else inputs
    bench = bench_of(Split(given, torch.tensor(targets)), 2, folder, domain=(-1.0, 1.0))
    return Accuracy().run(Network("hand", module, (*given.shape[1:],), 2, unswapped=before), bench)


def test_accuracy_and_nll_by_hand(tmp_path: Path) -> None:
    # Logits (x, 0): class 0 where x > 0. Losses: log(1 + e^-x) for target 0, log(1 + e^x) for
    # target 1.
    found = values(
        outcome_of(affine([[1.0], [0.0]]), [2.0, 1.0, -1.0, -3.0], [0, 1, 1, 1], tmp_path)
    )
    assert found["accuracy"] == 0.75
    losses = [
        math.log1p(math.exp(-2)),
        math.log1p(math.exp(1)),
        math.log1p(math.exp(-1)),
        math.log1p(math.exp(-3)),
    ]
    assert found["nll"] == pytest.approx(sum(losses) / 4, abs=1e-9)
    assert found["parameters"] == 2


def test_scores_of_samples_are_of_their_own_network(tmp_path: Path) -> None:
    before, after = affine([[1.0], [0.0]]), affine([[0.0], [1.0]])
    outcome = outcome_of(
        after, [1.0, 2.0, -1.0, -2.0, 3.0, -3.0], [0, 1, 0, 1, 1, 0], tmp_path, before
    )
    kept = {each.name: each.scores.values() for each in outcome.metrics if each.scores is not None}
    assert kept["accuracy"].tolist() == [0, 1, 1, 0, 1, 1]
    assert kept["accuracy_before_swap"].tolist() == [1, 0, 0, 1, 0, 0]
    assert kept["nll_before_swap"].mean().item() == pytest.approx(
        values(outcome)["nll_before_swap"]
    )
    assert not {"swap_drop", "nll_swap_increase", "prediction_changes"} & kept.keys()


def test_the_cost_of_the_swap_by_hand(tmp_path: Path) -> None:
    # Before the swap logits (x, 0), after it (-x, 0): each of three predictions changes; two were
    # right, then one is.
    before = affine([[1.0], [0.0]])
    found = values(
        outcome_of(affine([[-1.0], [0.0]]), [1.0, 1.0, -1.0], [0, 0, 0], tmp_path, before)
    )
    assert found["accuracy_before_swap"] == pytest.approx(2 / 3)
    assert found["swap_drop"] == pytest.approx(1 / 3)
    assert found["prediction_changes"] == 1.0
    before = (2 * math.log1p(math.exp(-1)) + math.log1p(math.exp(1))) / 3
    after = (2 * math.log1p(math.exp(1)) + math.log1p(math.exp(-1))) / 3
    assert found["nll_swap_increase"] == pytest.approx(after - before, abs=1e-9)


def logits_of(table: list[list[float]]) -> nn.Module:
    """Logits of two classes at each of two positions, from a table by token."""
    return nn.Embedding.from_pretrained(torch.tensor(table))


def test_a_language_model_by_hand(tmp_path: Path) -> None:
    # Token 0 gives even odds, token 1 odds of 1 : 3 for class 1; before the swap all odds are even.
    module, before = (
        logits_of([[0.0, 0.0], [0.0, math.log(3)]]),
        logits_of([[0.0, 0.0], [0.0, 0.0]]),
    )
    part = Split(
        torch.tensor([[0, 1], [1, 1]]), torch.tensor([[0, 1], [1, 0]]), LanguageModel(per="byte")
    )
    bench = bench_of(part, 2, tmp_path, domain=(0.0, 255.0), vocabulary=256)
    found = values(Accuracy().run(Network("hand", module, (2,), 2, before, vocabulary=256), bench))
    # Bits: 1 for the even odds, -log2(3/4) twice, -log2(1/4) once.
    bits = (1 - 2 * math.log2(3 / 4) + 2) / 4
    assert found["bits_per_byte"] == pytest.approx(bits, abs=1e-6)
    assert found["bits_per_byte_before_swap"] == pytest.approx(1, abs=1e-6)
    assert found["bits_per_byte_swap_increase"] == pytest.approx(bits - 1, abs=1e-6)
    assert found["perplexity"] == pytest.approx(2**bits, abs=1e-6)
    assert found["accuracy"] == 0.75
    assert found["nll"] == pytest.approx(bits * math.log(2), abs=1e-6)
    per_token = replace(part, task=LanguageModel())
    other = bench_of(per_token, 2, tmp_path, domain=(0.0, 255.0), vocabulary=256)
    assert "bits_per_token" in values(
        Accuracy().run(Network("hand", module, (2,), 2, vocabulary=256), other)
    )


def test_a_classifier_of_texts_is_no_language_model(tmp_path: Path) -> None:
    # One class for each text of three tokens: token inputs alone do not make it a language model.
    module = nn.Sequential(
        logits_of([[0.0, 1.0]] * 8),
        nn.Flatten(),
        affine([[1.0, 0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0, 0]]),
    )
    part = Split(torch.zeros(4, 3, dtype=torch.int64), torch.tensor([1, 1, 1, 0]))
    bench = bench_of(part, 2, tmp_path, domain=(0.0, 7.0), vocabulary=8)
    found = values(Accuracy().run(Network("hand", module, (3,), 2, vocabulary=8), bench))
    assert found["accuracy"] == 0.75
    assert not [name for name in found if "bits" in name or "perplexity" in name]


def several_bench(folder: Path) -> Bench:
    inputs = Several(
        {"a": torch.tensor([[1.0], [2.0], [3.0]]), "b": torch.tensor([[1.0], [1.0], [-5.0]])}
    )
    part = Split(inputs, torch.tensor([[2.0], [4.0], [math.nan]]), Regression(unit="m"))
    return bench_of(part, 1, folder, domain=(-9.0, 9.0))


def total(scale: float) -> nn.Module:
    """The sum of two named inputs, through a ReLU."""
    return Written(
        lambda net, inputs: scale * net.activation(inputs["a"] + inputs["b"]), activation=nn.ReLU()
    )


def test_a_regression_of_several_inputs_by_hand(tmp_path: Path) -> None:
    # Outputs 2, 3 for targets 2, 4, and twice that before the swap; the third target is NaN and
    # counts nowhere.
    bench = several_bench(tmp_path)
    network = Network("hand", total(1.0), (1,), 1, total(2.0), given=bench.data.example)
    outcome = Accuracy().run(network, bench)
    found, units = (
        values(outcome),
        {each.name: (each.unit, each.direction.value) for each in outcome.metrics},
    )
    assert found["rmse"] == pytest.approx(math.sqrt(1 / 2))
    assert found["rmse_before_swap"] == pytest.approx(math.sqrt((4 + 4) / 2))
    assert found["rmse_swap_change"] == pytest.approx(math.sqrt(1 / 2) - 2)
    assert found["mae"] == 0.5
    assert units["rmse_swap_change"] == ("m", "lower")
    assert units["r2_swap_change"] == ("share", "higher")
    assert not {"prediction_changes", "accuracy", "nll"} & set(found)
    assert found["zero_activations"] == pytest.approx(1 / 3)  # of the third sample, 3 - 5


class Counted(Samples):
    """4,100 samples that count how often each is read, and refuse large batches."""

    def __init__(self, samples: int) -> None:
        self.reads = torch.zeros(samples, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.reads)

    def read(self, indices: Sequence[int]) -> torch.Tensor:
        assert len(indices) <= 1024, f"{len(indices)} samples at once"
        self.reads[list(indices)] += 1
        return torch.ones(len(indices), 1)


def test_of_data_that_are_read_some_are_looked_at_for_dead_units(tmp_path: Path) -> None:
    train, test = Counted(3 * 4096), Counted(2000)
    parts = [Split(each, torch.zeros(len(each), dtype=torch.int64)) for each in (train, test)]
    data = Data(parts[0], parts[0], parts[0], parts[1], (-1.0, 1.0), 2, "by hand")
    network = Network("hand", nn.Sequential(affine([[1.0], [0.0]]), nn.ReLU()), (1,), 2)
    found = values(Accuracy().run(network, Bench(data, 0, tmp_path, 60.0, lambda *_: None)))
    assert found["dead_units"] == 1
    assert int((train.reads > 0).sum()) == 4096
    # spread evenly, none read twice; the first is the example
    assert bool((train.reads[3::3] == 1).all())
    assert int(test.reads[1:].max()) == 1


def test_padding_counts_nowhere(tmp_path: Path) -> None:
    # Even odds of 27 classes wherever a target counts: a perplexity of 27, however much is padding.
    table = torch.zeros(256, 27)
    table[1] = torch.linspace(0, 5, 27)
    module, before = logits_of(table.tolist()), logits_of([[0.0] * 26 + [1.0], *[[0.0] * 27] * 255])
    targets = torch.tensor([[0, -100, -100], [0, 3, -100]])
    part = Split(torch.tensor([[0, 1, 1], [0, 0, 1]]), targets, LanguageModel(per="byte"))
    bench = bench_of(part, 27, tmp_path, domain=(0.0, 255.0), vocabulary=256)
    found = values(Accuracy().run(Network("hand", module, (3,), 27, before, vocabulary=256), bench))
    assert found["perplexity"] == pytest.approx(27, abs=1e-6)
    assert found["bits_per_byte"] == pytest.approx(math.log2(27), abs=1e-6)
    assert found["nll"] == pytest.approx(math.log(27), abs=1e-6)
    assert found["accuracy"] == pytest.approx(2 / 3)
    # Before the swap each 0 was read as class 26: three predictions that count changed, and so did
    # none of padding.
    assert found["accuracy_before_swap"] == 0.0
    assert found["prediction_changes"] == 1.0


def test_without_a_swap_the_row_says_so(tmp_path: Path) -> None:
    outcome = outcome_of(affine([[1.0], [0.0]]), [1.0], [0], tmp_path)
    swap = {
        metric.name: metric
        for metric in outcome.metrics
        if "swap" in metric.name or "changes" in metric.name
    }
    assert len(swap) == 5
    assert all(metric.value is None and metric.reason == "not swapped" for metric in swap.values())
    dead = next(metric for metric in outcome.metrics if metric.name == "dead_units")
    assert dead.value is None
    assert "no known activation" in dead.reason


@pytest.mark.parametrize(("activation", "zeros"), [(nn.ReLU(), 4 / 8), (nn.GELU(), 3 / 8)])
def test_idle_activations_by_hand(activation: nn.Module, zeros: float, tmp_path: Path) -> None:
    # Pre-activations for the inputs 1 and -1, unit by unit: (100, -100), (-1000, -1000), (0.07,
    # 0.03), (2, -2).
    body = affine([[100.0], [0.0], [0.02], [2.0]], [0.0, -1000.0, 0.05, 0.0])
    module = nn.Sequential(body, activation, affine([[1.0] * 4, [0.0] * 4]))
    found = values(outcome_of(module, [1.0, -1.0], [0, 0], tmp_path))
    # The layer's peak is 100, so near zero is at most 0.1: units 1 and 2 always, which makes them
    # dead.
    assert found["dead_units"] == 2
    # Exactly zero: unit 0 at -100 and unit 1 twice for both (GELU underflows); unit 3 at -2 for
    # ReLU alone.
    assert found["zero_activations"] == zeros
    # Near zero besides units 1 and 2: unit 0 at -100, and unit 3 at -2, where GELU is -0.0455.
    assert found["near_zero_activations"] == 6 / 8


def test_negative_outputs_by_hand(tmp_path: Path) -> None:
    module = nn.Sequential(
        affine([[1.0], [-1.0]]), nn.GELU(), affine([[1.0, 1.0]]), nn.ReLU(), affine([[1.0], [0.0]])
    )
    outcome = outcome_of(module, [1.0, -1.0], [0, 0], tmp_path)
    found = [
        (each.setting, each.value) for each in outcome.metrics if each.name == "negative_output"
    ]
    below, above = (float(nn.functional.gelu(torch.tensor(x))) for x in (-1.0, 1.0))
    share = below**2 / (below**2 + above**2)
    assert found == [
        ({}, pytest.approx(share)),
        ({"layer": "1"}, pytest.approx(share)),
        ({"layer": "3"}, 0.0),
    ]


def test_a_layer_that_puts_out_nothing_has_no_share_of_it(tmp_path: Path) -> None:
    module = nn.Sequential(affine([[-1.0]]), nn.ReLU(), affine([[1.0], [0.0]]))
    outcome = outcome_of(module, [1.0], [0], tmp_path)
    (row,) = (each for each in outcome.metrics if each.name == "negative_output")
    assert (row.value, row.reason) == (None, "the activations put out nothing but 0")


def test_dead_units_do_not_depend_on_the_scale_of_the_weights(tmp_path: Path) -> None:
    counts = []
    for scale in (1e-4, 1.0, 1e4):
        body = affine([[scale], [0.0]], [0.0, -scale])
        module = nn.Sequential(body, nn.ReLU(), affine([[1.0, 1.0], [0.0, 0.0]]))
        counts.append(values(outcome_of(module, [1.0, -1.0], [0, 0], tmp_path))["dead_units"])
    assert counts == [1, 1, 1]


def test_channels_are_the_units_of_a_convolution(tmp_path: Path) -> None:
    convolution = nn.Conv2d(1, 3, 1)
    weight, bias = (
        torch.tensor([1.0, 0.0, 0.0]).reshape(3, 1, 1, 1),
        torch.tensor([0.0, -1.0, -1.0]),
    )
    convolution.load_state_dict({"weight": weight, "bias": bias})
    module = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    found = values(outcome_of(module, torch.ones(2, 1, 2, 2), [0, 1], tmp_path))
    assert found["dead_units"] == 2
    assert found["zero_activations"] == pytest.approx(2 / 3)


def test_an_activation_module_used_twice_counts_twice(tmp_path: Path) -> None:
    layers = {"first": affine([[1.0]]), "second": affine([[-1.0], [-1.0]]), "act": nn.ReLU()}
    module = Written(lambda net, x: net.act(net.second(net.act(net.first(x)))), **layers)
    found = values(outcome_of(module, [1.0], [0], tmp_path))
    assert found["dead_units"] == 2
    assert found["zero_activations"] == pytest.approx(2 / 3)


def test_a_batch_larger_than_one_pass_gives_the_same(
    network: MakeNetwork, bench: MakeBench
) -> None:
    # 1,047 training inputs are three passes: the peaks must be those of all of them at once.
    trained, there = network("digits-mlp", "relu"), bench("digits-mlp")
    hidden = trained.module[0](there.data.train.inputs).relu()
    second = trained.module[2](hidden).relu()
    expected = sum(int((h.amax(0) <= 1e-3 * h.max()).sum()) for h in (hidden, second))
    assert values(Accuracy().run(trained, there))["dead_units"] == expected


def test_lambda_gelu_and_its_swap(network: MakeNetwork, bench: MakeBench) -> None:
    annealed, there = network("digits-mlp", "annealed"), bench("digits-mlp")
    assert any(isinstance(layer, LambdaGELU) for layer in annealed.unswapped.modules())
    found = values(Accuracy().run(annealed, there))
    alone = values(
        Accuracy().run(replace(annealed, module=annealed.unswapped, unswapped=None), there)
    )
    assert found["accuracy_before_swap"] == alone["accuracy"]
    assert found["swap_drop"] == pytest.approx(alone["accuracy"] - found["accuracy"], abs=1e-12)
    assert found["nll_swap_increase"] == pytest.approx(found["nll"] - alone["nll"], abs=1e-12)
    assert found["zero_activations"] > alone["zero_activations"]


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, math.nan])
def test_options_are_validated(value: float) -> None:
    with pytest.raises(ValueError, match=r"near_zero must be in \(0, 1\), got"):
        Accuracy(near_zero=value)


def test_conformance() -> None:
    assert "odd_network" in check_stage(Accuracy())


def test_importing_a_stage_imports_nothing_heavy() -> None:
    heavy = (
        "{'torch', 'onnx', 'onnxruntime', 'torch_pruning', 'numpy', 'sklearn', 'z3', 'auto_LiRPA'}"
    )
    stages = (
        "pipelines.accuracy, pipelines.export_onnx, pipelines.prune, pipelines.bounds,"
        " pipelines.smt"
    )
    code = f"import sys, {stages}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
