"""What README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from evalsuite import RELU, census, harden, open_onnx, swap_to_relu

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

README = (Path(__file__).parent.parent / "README.md").read_text()


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
    for name, imported in re.findall(r"`(?:from )?(?:pipelines\.quantize)?(\.[a-z_.]+) import ([A-Za-z_, ]+)`", README):
        exec(f"from pipelines.quantize{name} import {imported}", scope)
    exec(code.group(1), scope)
    assert (scope["logits"] == scope["same_logits"]).all()
    accuracy = (scope["logits"].argmax(1) == data.test.targets.numpy()).mean()
    assert accuracy > 0.9
    assert scope["agreement"].unexplained == 0
