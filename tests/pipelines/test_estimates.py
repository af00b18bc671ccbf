"""Steps that refuse, or take less, by an estimate of what they would take."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from evalsuite import Bench, Data, Metric, Network, Split, Unsupported
from evalsuite.tasks import score
from evalsuite.yardstick import untimed_batches
from opgraph import estimates
from opgraph.estimates import Work, work_of
from opgraph.limits import held
from pipelines.bounds import Bounds
from pipelines.export_onnx import Export
from pipelines.prune import Prune
from pipelines.prune.exact import ExactPrune
from pipelines.quantize import Quantize
from pipelines.smt import Smt
from pipelines.swap_certificate import Certificate


@pytest.fixture
def limit() -> Any:
    """Let a limit of the process's memory hold for the test alone."""
    yield
    estimates.allow(0)


def rows_of(metrics: Any) -> list[Metric]:
    """All metrics, with what the functions among them give."""
    return [row for each in metrics for row in (each() if callable(each) else [each])]


def test_a_batch_is_timed_unless_it_takes_too_much(limit: None) -> None:
    small, large = Work(1e6, 1000, 10, 1000, 2000), Work(1e6, 2**27, 10, 1000, 2**28)
    assert untimed_batches(small, 60.0) == {}
    slow = untimed_batches(replace(small, multiplications=1e10), 60.0)
    assert list(slow) == [64]
    assert "timing a batch of 64 would take about" in slow[64]
    estimates.allow(held() + 2**30)
    assert "a batch of 64 would take about" in untimed_batches(large, 1e9)[64]


def test_export_times_one_input_where_a_batch_takes_too_long(
    network: Any, bench: Any, limit: None
) -> None:
    given = network("digits-mlp", "gelu")
    place = bench("digits-mlp")
    work = work_of(given.module, given.example(1))
    # A limit between what one input and 64 of them take, so that nothing depends on the machine.
    short = replace(place, time_limit=2 * 20 * work.seconds(8))
    rows = rows_of(Export().run(given, short).metrics)
    for name in ("latency", "relative_latency"):
        by_batch = {row.setting["batch"]: row for row in rows if row.name == name}
        assert "not timed: timing a batch of 64" in by_batch[64].reason
        assert by_batch[64].value is None
        assert "not timed" not in by_batch[1].reason


class _Never(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a network that is too large was run")


def test_smt_refuses_by_size_before_the_network_is_run(bench: Any) -> None:
    place: Bench = bench("digits-mlp")
    large = Network("large", _Never(), (3, 64, 64), 10)
    with pytest.raises(Unsupported, match="12288 inputs; max_inputs is 128"):
        Smt(eps=(0.01,), samples=1).run(large, place)


class _Words(_Never):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 384)


# The tokenizer's tokens, of a table of 1,000 rows: models are often given more rows than it has.
@pytest.mark.parametrize("vocabulary", [1000, 990])
def test_smt_counts_what_tokens_are_embedded_to_before_the_network_is_run(
    vocabulary: int, bench: Any
) -> None:
    large = Network("large", _Words(), (64,), 10, None, vocabulary)
    with pytest.raises(Unsupported, match="384 inputs; max_inputs is 128"):
        Smt(eps=(0.01,), samples=1, positions=2).run(large, bench("digits-mlp"))


def test_the_outputs_of_a_text_that_do_not_fit_are_refused(limit: None) -> None:
    from evalsuite.tasks import LanguageModel

    targets = torch.full((2, 1000), 49_999)
    split = Split(torch.zeros(2, 1000, dtype=torch.long), targets, LanguageModel())
    estimates.allow(held() + 2**29)
    with pytest.raises(
        Unsupported, match=r"outputs of one sample, 50000000 numbers.*shorter windows"
    ):
        score(_Never(), split)


def test_integers_are_run_on_fewer_samples_where_all_take_too_long(
    network: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.quantize.measurement._PARAMETER_SECONDS", 0.0)
    given, place = network("digits-mlp", "relu"), bench("digits-mlp")
    work = work_of(given.module, given.example(1))
    short = replace(place, time_limit=20 * 3 * 400 * work.seconds(1) / 0.5 * 1.01)
    rows = rows_of(Quantize(calibration_samples=20).run(given, short).metrics)
    (row,) = [row for row in rows if row.name == "integer_accuracy" and not row.setting]
    # The file in ONNX Runtime is scored on all of them, and is the definition on the first ones.
    assert "first" not in row.reason
    (same,) = [row for row in rows if row.name == "integer_onnx_agreement"]
    assert same.value == 1.0
    said = "bit-equal logits, of the first 20; running 450 samples by the definition of integers"
    assert said in same.reason
    (accuracy,) = [row for row in rows if row.name == "runtime_accuracy"]
    assert accuracy.value is not None
    assert "first 20" not in accuracy.reason


class _Wide(nn.Sequential):
    """A convolution to a million values, of which each has two bounds: minutes for a box."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.GELU(),
            nn.AvgPool2d(64),
            nn.Flatten(),
            nn.Linear(64, 2),
        )


def wide(folder: Any) -> tuple[Network, Bench]:
    """A network that is quick at a point, and takes minutes in a box, with a bench of 100 s."""
    shape = (1, 128, 128)
    split = Split(torch.rand(4, *shape), torch.tensor([0, 1, 0, 1]))
    data = Data(split, split, split, split, (0.0, 1.0), 2, "0" * 64, None)
    network = Network("wide", _Wide().eval(), shape, 2, given=split.inputs[:2])
    return network, Bench(data, 0, folder, 100.0, lambda *_, **__: None)


def test_swap_certificates_of_boxes_that_take_too_long_are_not_begun(tmp_path: Path) -> None:
    stage = Certificate(eps=(0.0, 0.01), samples=1, hardness=())
    rows = rows_of(stage.run(*wide(tmp_path)).metrics)
    by_eps = {
        row.setting["eps"]: row
        for row in rows
        if row.name == "certified_disruption" and row.sample is None
    }
    assert by_eps[0.0].value is not None
    assert by_eps[0.01].value is None
    assert "not bounded: linear bounds of a box" in by_eps[0.01].reason
    with pytest.raises(Unsupported, match=r"a box .* by estimate"):
        Certificate(eps=(0.01,), samples=1, hardness=()).run(*wide(tmp_path))


def test_lines_that_take_too_long_are_not_begun_beside_intervals(tmp_path: Path) -> None:
    attacks = {"restarts": 0, "attack_steps": 1, "attack_queries": 1, "attack_targets": 1}
    stage = Bounds(eps=(0.001,), samples=1, methods=("ibp", "crown", "alpha-crown"), **attacks)
    rows = rows_of(stage.run(*wide(tmp_path)).metrics)
    certified = {row.setting["method"]: row for row in rows if row.name == "certified_accuracy"}
    assert certified["ibp"].value is not None
    for method in ("crown", "alpha-crown"):
        assert certified[method].value == 0.0
        assert "1 of 1 properties not tried in time" in certified[method].reason
        assert "crown of one box would take about" in certified[method].reason


def test_exact_prune_compares_fewer_inputs_where_all_take_too_long(
    network: Any, bench: Any
) -> None:
    given, place = network("digits-mlp", "relu"), bench("digits-mlp")
    module = copy.deepcopy(given.module)
    with torch.no_grad():  # a unit that nothing reads, so that something is removed
        linear = [each for each in module.modules() if isinstance(each, nn.Linear)][-1]
        linear.weight[:, 0] = 0.0
    seconds = 4 * work_of(given.module, given.example(1)).seconds(1)
    short = replace(place, time_limit=200 * seconds / 0.1)
    rows = rows_of(ExactPrune().run(replace(given, module=module), short).metrics)
    (error,) = [row for row in rows if row.name == "equality_error"]
    assert "the greatest on 100 test inputs and 100 random ones" in error.reason
    assert error.value is not None


def test_exact_prune_refuses_networks_that_do_not_fit_twice(
    network: Any, bench: Any, limit: None
) -> None:
    given, place = network("digits-mlp", "relu"), bench("digits-mlp")
    estimates.allow(held() + 1)
    with pytest.raises(Unsupported, match="comparing the networks on one sample would take"):
        ExactPrune().run(given, place)


def test_quantize_calibrates_on_as_many_samples_as_fit(
    network: Any, bench: Any, limit: None
) -> None:
    given, place = network("digits-mlp", "relu"), bench("digits-mlp")
    estimates.allow(held() + 1)
    rows = rows_of(Quantize(calibration_samples=20, compared_samples=2).run(given, place).metrics)
    (count,) = [row for row in rows if row.name == "calibration_samples"]
    assert count.value == 2
    assert "2 of 20: the outputs of 20 samples" in count.reason


def test_integers_of_which_one_sample_takes_too_long_are_left_out(
    network: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.quantize.measurement._PARAMETER_SECONDS", 0.0)
    given, place = network("digits-mlp", "relu"), bench("digits-mlp")
    # Of 50 test samples, the float network has time for what is done to them in any case.
    some = replace(
        place.data.test, inputs=place.data.test.inputs[:50], targets=place.data.test.targets[:50]
    )
    limit = 400 * work_of(given.module, given.example(1)).seconds(1)
    short = replace(place, data=replace(place.data, test=some), time_limit=limit)
    rows = rows_of(Quantize(calibration_samples=20).run(given, short).metrics)
    (row,) = [row for row in rows if row.name == "integer_accuracy"]
    assert row.value is None
    assert not any(row.name == "integer_onnx_agreement" for row in rows)
    assert "not run: running 50 samples by the definition of integers" in row.reason
    # What the file does is known all the same.
    (accuracy,) = [row for row in rows if row.name == "runtime_accuracy"]
    assert accuracy.value is not None


def test_calibration_takes_fewer_samples_where_all_take_too_long(
    network: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.quantize.measurement._PARAMETER_SECONDS", 0.0)
    given, place = network("digits-mlp", "relu"), bench("digits-mlp")
    single = work_of(given.module, given.example(1)).seconds(1)
    # A quarter of the time is for the 65 passes of each calibration sample.
    short = replace(place, time_limit=4 * 65 * 10.5 * single)
    rows = rows_of(Quantize(calibration_samples=20).run(given, short).metrics)
    (row,) = [row for row in rows if row.name == "calibration_samples"]
    assert row.value == 10
    assert row.reason.startswith("10 of 20: choosing a treatment by 20 samples would take about")


def test_quantizing_that_takes_too_long_is_refused_before_anything_is_quantized(
    network: Any, bench: Any
) -> None:
    given, place = network("digits-mlp", "relu"), bench("digits-mlp")
    single = work_of(given.module, given.example(1)).seconds(1)
    short = replace(place, time_limit=65 * single)
    with pytest.raises(Unsupported, match=r"scoring 450 test samples would take .* more time"):
        Quantize(calibration_samples=20).run(given, short)
    assert not list(short.folder.glob("*"))


def test_pruned_networks_are_compared_on_fewer_inputs_where_all_do_not_fit(
    network: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, place = network("digits-mlp", "relu"), bench("digits-mlp")
    whole = Prune(sparsity=0.5, fine_tune_epochs=0)
    work = work_of(given.module, given.example(1))
    size = 4 * work.made + 8 * 8 * work.outputs
    monkeypatch.setattr("pipelines.prune.narrowing.allowed", lambda: 2 * 3.5 * size)
    rows = rows_of(whole.run(given, place).metrics)
    (row,) = [row for row in rows if row.name == "equality_error"]
    assert row.value is not None
    assert row.value < 1e-9
    assert "on the first 3 calibration inputs: 64 would take about" in row.reason


# Rows of 50,257 numbers, held four times: of each word its margin and itself; of a swap five rows
# of three times as many numbers.
@pytest.mark.parametrize(
    ("stage", "held_rows"), [(Bounds(samples=1), 4 * 2), (Certificate(samples=1), 4 * 5 * 3)]
)
def test_margins_of_all_words_are_refused_before_the_network_is_run(
    stage: Any, held_rows: int, bench: Any, limit: None
) -> None:
    large = Network("large", _Words(), (64,), 50_257, None, 1000)
    estimates.allow(held() + 2**30)
    size = re.escape(f"{held_rows * 8 * 50_257**2 / 2**30:.3g}")
    with pytest.raises(Unsupported, match=rf"margins of 50257 outputs.*{size} GiB.*take fewer"):
        stage.run(large, bench("digits-mlp"))


class _Attending(nn.Module):
    """Attention of 64 positions, each of 160 numbers: a layer of 10,240 values."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 160)
        self.head = nn.Linear(160, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x.flatten(1)[..., None])
        mixed = (tokens @ tokens.transpose(1, 2) / 160**0.5).softmax(-1) @ tokens
        return self.head(mixed.mean(1))


def test_wide_attention_is_refused_before_it_is_read_for_another_engine(
    bench: Any, limit: None
) -> None:
    torch.manual_seed(0)
    wide = Network("wide", _Attending().eval(), (1, 8, 8), 10, None)
    place = bench("digits-mlp")  # which loads libraries
    # A quarter of what the scores take: more than what the process grows by until then.
    estimates.allow(held() + 2**26)
    with pytest.raises(Unsupported, match=r"scores or pairs of them.*GiB") as refusal:
        Bounds(samples=1).run(wide, place)
    assert "nor in real arithmetic" not in str(refusal.value)
