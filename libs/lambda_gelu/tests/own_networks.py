"""Small networks as users write them, for the tests of what users bring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

WORDS = 50
_WIDTHS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
_TEXTS = {"vocab_size": WORDS, "max_position_embeddings": 16}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {**_WIDTHS, **_TEXTS, "num_labels": 3}),
    "distilbert": (
        "DistilBertConfig",
        {**_TEXTS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "num_labels": 3},
    ),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": WORDS,
            "n_positions": 16,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    ),
    "llama": ("LlamaConfig", {**_WIDTHS, **_TEXTS, "num_key_value_heads": 2, "pad_token_id": 0}),
    "vit": ("ViTConfig", {**_WIDTHS, "image_size": 8, "patch_size": 4, "num_labels": 3}),
}


class Convolutional(nn.Module):
    """F.gelu in its tanh form, called in forward; BatchNorm and dropout beside."""

    def __init__(self, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = functional.gelu(self.norm(self.conv(x)), approximate="tanh")
        return self.head(self.drop(features.mean((2, 3))))  # type: ignore[no-any-return]


class ByHand(nn.Module):
    """GELU written out."""

    def __init__(self, drops: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.1 if drops else 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.first(x))
        return self.last(0.5 * x * (1 + torch.erf(x / 2**0.5)))  # type: ignore[no-any-return]


def mixed() -> nn.Module:
    """SiLU twice, once in place; beside it ReLU, a leaky one and a tanh."""
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.SiLU(inplace=True),
        nn.Linear(8, 8),
        nn.ReLU(),
        nn.Linear(8, 7),
        nn.SiLU(),
        nn.Linear(7, 5),
        nn.LeakyReLU(),
        nn.Linear(5, 3),
        nn.Tanh(),
    )


class TwoInputs(nn.Module):
    """Takes two tensors and gives a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.act = nn.Linear(4, 8), nn.Linear(3, 8), nn.GELU()
        self.head = nn.Linear(8, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.act(self.left(left) + self.right(right))
        return self.head(hidden), hidden


def text() -> dict[str, torch.Tensor]:
    """Token indices (4, 8) and their mask; the second text is shorter."""
    ids = torch.randint(WORDS, (4, 8), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(4, 8, dtype=torch.int64)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def config(kind: str, **changes: Any) -> Any:
    """A small configuration of Hugging Face's: one of CONFIGS."""
    transformers = pytest.importorskip("transformers")
    name, given = CONFIGS[kind]
    return getattr(transformers, name)(**given | changes)


def hugging(kind: str, head: str, **changes: Any) -> Callable[[], nn.Module]:
    """What makes a model of Hugging Face with that head."""

    def make() -> nn.Module:
        made = config(kind, **changes)
        module: nn.Module = getattr(pytest.importorskip("transformers"), head)(made)
        return module

    return make
