"""What README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from evalsuite import RELU, census, harden, swap_to_relu

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
