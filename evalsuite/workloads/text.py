"""A byte-level language model on CPython's documentation text: the help topics that ship with every
Python.

The text, and so the fingerprint, changes with Python's patch version; results compare within one
version.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data, Split
from evalsuite.tasks.language_model import LanguageModel
from evalsuite.workloads.options import Budget
from evalsuite.workloads.workload import SPLIT_SEED

if TYPE_CHECKING:
    import torch
    from torch import nn

CONTEXT = 64
_VOCABULARY = 256
_BLOCKS, _WIDTH, _HEADS, _HIDDEN = 4, 128, 4, 512
# characters: topics quote each other at length, and a quoted test text would have been seen in
# training
_RUN = 64
# consecutive paragraphs stay together, so that a window's text mostly belongs together
_BLOCK_BYTES = 2048
_SIZES = (12_288, 12_288, 61_440)  # bytes for calibration, validation and test, at least


def topics() -> list[str]:
    """The help topics of Python, read without running their file.

    Raises:
        FileNotFoundError: this Python has no such file.
        ValueError: the file holds no dictionary.
    """
    spec = importlib.util.find_spec("pydoc_data")
    places = spec.submodule_search_locations if spec else None
    file = Path(next(iter(places or [""]))) / "topics.py"
    if not file.is_file():
        raise FileNotFoundError(
            "this Python lacks its documentation text, pydoc_data/topics.py: use one with its whole"
            " standard library"
        )
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            topics: dict[str, str] = ast.literal_eval(node.value)
            return [topics[name] for name in sorted(topics)]
    raise ValueError(f"{file}: no dictionary of topics in it")


def distinct_paragraphs(texts: Iterable[str], run: int = _RUN) -> list[str]:
    """The paragraphs that share no `run` characters with an earlier one (and, if shorter, are
    none of them).
    """
    seen: set[str] = set()
    kept = []
    for text in texts:
        for paragraph in re.split(r"\n\s*\n", text):
            words = " ".join(paragraph.split())
            runs = {words[start : start + run] for start in range(max(1, len(words) - run + 1))}
            if words and seen.isdisjoint(runs):
                seen |= runs
                kept.append(paragraph.strip("\n"))
    return kept


def cut(paragraphs: Iterable[str], sizes: Iterable[int]) -> tuple[bytes, ...]:
    """The text of training, and a part of at least each size in bytes; no paragraph stands in
    two.
    """
    blocks = [b""]
    for paragraph in paragraphs:
        if len(blocks[-1]) >= _BLOCK_BYTES:
            blocks.append(b"")
        blocks[-1] += paragraph.encode() + b"\n\n"
    random.Random(SPLIT_SEED).shuffle(blocks)
    parts = []
    for size in sizes:
        part = b""
        while len(part) < size:
            part += blocks.pop()
        parts.append(part)
    return (b"".join(blocks), *parts)


@cache
def corpus() -> tuple[bytes, ...]:
    """The text of training, calibration, validation and test."""
    return cut(distinct_paragraphs(topics()), _SIZES)


def windows(text: bytes, context: int) -> Split:
    """Windows that do not overlap, (windows, context) bytes, and for each byte the next: the
    target. A rest is left.
    """
    import torch

    values = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return token_windows(values, context, LanguageModel(per="byte"))


def token_windows(tokens: torch.Tensor, context: int, task: LanguageModel) -> Split:
    """Cut tokens (n,), int64, into windows that do not overlap, (windows, context), and for each
    token the next: the target. Inputs and targets share their memory.
    """
    count = (len(tokens) - 1) // context
    inputs, targets = tokens[: count * context], tokens[1 : count * context + 1]
    return Split(inputs.reshape(count, context), targets.reshape(count, context), task)


@dataclass(frozen=True)
class TextGPT(Budget):
    """Python's help topics byte by byte, a GPT of 4 blocks, width 128, 4 heads, 64 positions;
    GELU feed-forward.
    """

    version: ClassVar[str] = "1"
    epochs: int = 3
    batch_size: int = 4
    learning_rate: float = 1e-3

    def fingerprint(self) -> str:
        """The SHA-256 of the text used; it changes with Python's patch version."""
        return hashlib.sha256(b"".join(corpus())).hexdigest()

    def data(self) -> Data:
        """Inputs and targets of shape (64,): bytes, and the byte after each."""
        train, calibration, validation, test = (windows(part, CONTEXT) for part in corpus())
        domain = (0.0, _VOCABULARY - 1.0)
        return Data(
            train,
            calibration,
            validation,
            test,
            domain,
            _VOCABULARY,
            self.fingerprint(),
            _VOCABULARY,
        )

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        from evalsuite.workloads.transformer import LanguageModel, feed_forwards

        layers = feed_forwards(_BLOCKS, _WIDTH, _HIDDEN, activation)
        return LanguageModel(_VOCABULARY, CONTEXT, _WIDTH, _HEADS, layers)


@dataclass(frozen=True)
class TextGPTGeglu(TextGPT):
    """text-gpt with gated feed-forward parts, GEGLU (arXiv 2002.05202), of as many parameters."""

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """See `Workload`. The activation stands in the gate."""
        from evalsuite.workloads.transformer import LanguageModel
        from lambda_gelu.activations.gated import GatedUnit, matched_hidden

        hidden = matched_hidden(_WIDTH, _HIDDEN)
        layers: list[nn.Module] = [
            GatedUnit(_WIDTH, hidden, activation(hidden)) for _ in range(_BLOCKS)
        ]
        return LanguageModel(_VOCABULARY, CONTEXT, _WIDTH, _HEADS, layers)
