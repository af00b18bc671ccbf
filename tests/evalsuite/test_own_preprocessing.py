"""Images of a trained model are given as its own files say that it wants them, or it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from evalsuite.data.reading import read_data
from evalsuite.data.source import source_of
from evalsuite.own.asked_model import Model
from evalsuite.own.brought import forget
from evalsuite.own.examining import examine
from evalsuite.own.own import Own
from evalsuite.own.preprocessing import misprepared
from evalsuite.tasks import Classification

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    forget()
    random = np.random.default_rng(0)
    for label in "ab":
        Path("i", label).mkdir(parents=True)
        for i in range(20):
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(f"i/{label}/{i}.png")
    pixels = random.random((40, 3, 8, 8)).astype(np.float32)
    np.savez("plain.npz", x=pixels, y=np.arange(40) % 2)
    np.savez("normal.npz", x=(pixels - 0.5) / 0.5, y=np.arange(40) % 2)
    return tmp_path


def told(described: Any, source: Any) -> list[str]:
    Path("m").mkdir(exist_ok=True)
    Path("m/preprocessor_config.json").write_text(
        described if isinstance(described, str) else json.dumps(described)
    )
    given = source_of(source)
    data = read_data(given, Classification())
    return misprepared(Model("hf:m"), nn.Identity(), given, data)


GIVEN = {"path": "i", "mean": [0.5], "std": [0.5]}
WRITE = "write `data.mean: [0.5, 0.5, 0.5]` and `data.std: [0.5, 0.5, 0.5]`"


@pytest.mark.parametrize(
    ("described", "source", "said"),
    [
        (HALF, "i", WRITE),
        ({"image_processor": HALF}, "i", WRITE),
        ({**HALF, "do_normalize": True}, "i", WRITE),
        ({"image_mean": 0.5, "image_std": 0.5}, "i", "write `data.mean: [0.5]`"),
        (IMAGENET, "i", "write `data.mean: [0.485, 0.456, 0.406]`"),
        (IMAGENET, GIVEN, "but they are given by others"),
        (HALF, {"path": "i", "mean": [0.5], "std": [1.0]}, "but they are given by others"),
        (HALF, "plain.npz", "normalise them where they are made"),
    ],
)
def test_images_in_another_scale_than_the_model_wants_are_told(
    described: Any, source: Any, said: str
) -> None:
    (sentence,) = told(described, source)
    assert sentence.startswith("m/preprocessor_config.json wants images normalised by mean [0.")
    assert said in sentence


@pytest.mark.parametrize(
    ("described", "source"),
    [
        (HALF, GIVEN),
        (HALF, {"path": "i", "mean": [0.5] * 3, "std": [0.5] * 3}),
        (HALF, "normal.npz"),
        ({**HALF, "do_normalize": False}, "i"),
        ({"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}, "i"),
        ({"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}, "plain.npz"),
        ({}, "i"),
        ({"image_mean": "imagenet", "image_std": None}, "i"),
        ([], "i"),
        ("{", "i"),
    ],
)
def test_images_as_the_model_wants_them_need_no_word(described: Any, source: Any) -> None:
    assert told(described, source) == []


def test_timms_own_configuration_is_asked() -> None:
    module = nn.Identity()
    module.pretrained_cfg = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    source = source_of("i")
    data = read_data(source, Classification())
    (sentence,) = misprepared(Model("timm:some"), module, source, data)
    assert sentence.startswith("timm's configuration wants images normalised by mean [0.485")
    assert misprepared(Model("my.py:make"), module, source, data) == []


def test_check_warns_of_a_trained_vision_transformer() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
        num_labels=2,
    )
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained("m")
    Path("m/preprocessor_config.json").write_text(json.dumps(HALF))
    for source, count in (("i", 1), (GIVEN, 0)):
        lines = examine(Own(model="hf:m", source=source, start="trained")).lines
        assert sum("wants images normalised" in text for _, text in lines) == count
    lines = examine(Own(model="hf:m", source="i", start="scratch")).lines
    assert not any("wants images normalised" in text for _, text in lines)
