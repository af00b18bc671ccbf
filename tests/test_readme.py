"""What README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from evalsuite import RELU, census, harden, load_module, open_onnx, save_module, swap_to_relu
from evalsuite.results import read_results

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

README = (Path(__file__).parent.parent / "README.md").read_text()


def imported_from(package: str) -> dict[str, Any]:
    """The names that README says to import, in the sentence that begins with that package."""
    sentence = re.search(rf"\(`from {re.escape(package)}\..*?\)", README, re.S)
    assert sentence is not None
    scope: dict[str, Any] = {}
    for place, names in re.findall(r"`(?:from [a-z]+\.[a-z]+)?(\.[a-z_.]+) import ([A-Za-z_, ]+)`", sentence.group()):
        exec(f"from {package}{place} import {names}", scope)
    return scope


def test_a_hugging_face_bert_is_hardened_and_swapped_in_at_most_ten_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="pip install evalsuite[transformers]")
    code = re.search(r"```python\n(model = Bert.*?)```", README, re.S)
    assert code is not None
    assert len(code.group(1).strip().splitlines()) <= 10
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    tokens = torch.randint(50, (12, 4, 16))
    batches = [{"input_ids": each, "labels": (each[:, 0] > 24).long()} for each in tokens]
    scope: dict[str, Any] = {
        "BertForSequenceClassification": transformers.BertForSequenceClassification,
        "batches": batches, "config": config, "harden": harden, "swap_to_relu": swap_to_relu, "torch": torch,
    }  # fmt: skip
    exec(code.group(1), scope)
    model, swapped = scope["model"].eval(), scope["relu_model"]
    assert {found.traits.name for found in census(swapped)} == {RELU.name}
    assert [found.traits.name for found in census(model)] == ["lambda-gelu"] * 2
    with torch.no_grad():
        before, after = (each(input_ids=tokens[0]).logits for each in (model, swapped))
    assert (before - after).abs().max() < 1e-3
    assert (
        before - transformers.BertForSequenceClassification(config).eval()(input_ids=tokens[0]).logits
    ).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:Computing zero point of output accumulator")
def test_a_network_runs_in_integers(
    network: MakeNetwork, bench: MakeBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(quantized = quantize.*?)```", README, re.S)
    assert code is not None
    made, data = network("digits-cnn", "relu"), bench("digits-cnn").data
    scope: dict[str, Any] = {
        "network": made.module, "calibration": data.calibration.inputs, "images": data.test.inputs, "Path": Path,
        "open_onnx": open_onnx,
    }  # fmt: skip
    scope |= imported_from("pipelines.quantize")
    exec(code.group(1), scope)
    assert (scope["logits"] == scope["same_logits"]).all()
    accuracy = (scope["logits"].argmax(1) == data.test.targets.numpy()).mean()
    assert accuracy > 0.9
    assert scope["agreement"].unexplained == 0


def test_a_hugging_face_bert_is_pruned_and_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    transformers = pytest.importorskip("transformers", reason="pip install evalsuite[transformers]")
    code = re.search(r"```python\n(probe = Probe.*?)```", README, re.S)
    assert code is not None
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )

    def make_model() -> torch.nn.Module:
        return transformers.BertForSequenceClassification(config).eval()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    scope: dict[str, Any] = {
        **imported_from("pipelines.prune"), "model": make_model(), "make_model": make_model, "Path": Path,
        "save_module": save_module, "load_module": load_module, "batch": {"input_ids": torch.randint(50, (4, 16))},
    }  # fmt: skip
    exec(code.group(1), scope)
    assert scope["error"] <= 1e-6
    with torch.no_grad():
        pruned, restored = (module(**scope["batch"]).logits for module in (scope["pruned"].module, scope["restored"]))
    assert torch.equal(pruned, restored)
    layer = scope["restored"].bert.encoder.layer[0]
    assert (layer.attention.self.num_attention_heads, layer.intermediate.dense.out_features) == (2, 32)


def test_accuracy_over_sparsity_is_read_from_the_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent)
    code = re.search(r"```python\n(frame = read_results.*?)```", README, re.S)
    assert code is not None
    scope: dict[str, Any] = {"Path": Path, "read_results": read_results}
    exec(code.group(1), scope)
    curves = scope["curves"].loc["mnist-cnn"]
    assert curves.index.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert curves.notna().all(axis=None)
    assert (curves.loc[0.1] > curves.loc[0.9]).all()
