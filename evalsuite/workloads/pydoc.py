"""A language model on CPython's own documentation: help topics and docstrings, in tokens learnt
from its training text.

The text, and so the fingerprint, changes with Python's patch version; results compare within one
version.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import tokenize
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from evalsuite.contract import Data, Split
from evalsuite.tasks.language_model import LanguageModel
from evalsuite.workloads.options import Budget
from evalsuite.workloads.text import cut, distinct_paragraphs, token_windows, topics

if TYPE_CHECKING:
    import torch
    from torch import nn

_BYTES = 256
_BLOCKS, _WIDTH, _HEADS, _HIDDEN = 4, 128, 4, 512
_SIZES = (12_288, 32_768, 131_072)  # bytes for calibration, validation and test, at least
# what a distribution may leave out of the library or add to it, and texts that are no documentation
_ELSEWHERE = {
    "__pycache__",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "distutils",
    "ensurepip",
    "pydoc_data",
    "tkinter",
    "turtledemo",
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(library: Path) -> list[str]:
    """The docstrings of a library's modules, classes and functions, file by file; none is run."""
    found = []
    for file in sorted(library.rglob("*.py")):
        folders = file.relative_to(library).parts[:-1]
        if _ELSEWHERE & set(folders) or any(folder.startswith("config-") for folder in folders):
            continue
        with tokenize.open(file) as text, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings of the library
            tree = ast.parse(text.read())
        found += [
            ast.get_docstring(node) or ""
            for node in ast.walk(tree)
            if isinstance(node, _DOCUMENTED)
        ]
    return [each for each in found if each]


@cache
def corpus() -> tuple[bytes, ...]:
    """The text of training, calibration, validation and test."""
    texts = topics() + docstrings(Path(sysconfig.get_path("stdlib")))
    return cut(distinct_paragraphs(texts), _SIZES)


@cache
def tokenizer(vocabulary: int) -> Any:
    """Byte-level byte-pair encoding (arXiv 1508.07909) with that many tokens, learnt from the text
    of training. Raises ValueError: the package `tokenizers` is missing.
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ValueError(
            "pydoc-gpt needs a package more: pip install evalsuite[transformers]"
        ) from error
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(_lines(corpus()[0]), trainer)
    return made


def encoded(text: bytes, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of a text, (n,) int64, and how many bytes each stands for, (n,) int64; together
    the whole text.
    """
    import torch

    found = tokenizer(vocabulary).encode_batch(_lines(text), add_special_tokens=False)
    tokens = torch.tensor([index for line in found for index in line.ids])
    # A character of a token's name stands for one byte.
    lengths = torch.tensor([len(name) for line in found for name in line.tokens])
    return tokens, lengths


def _lines(text: bytes) -> list[str]:
    return text.decode().splitlines(keepends=True)


@dataclass(frozen=True)
class PydocGPT(Budget):
    """Python's help topics and docstrings, a GPT of 4 blocks, width 128, 4 heads; GELU
    feed-forward.

    Bits are counted by bytes, so that vocabularies and other compressors compare.

    Args:
        vocabulary: number of tokens, learnt from the text of training by byte-pair encoding.
        context: positions of a window.
        gated: whether the feed-forward parts are gated linear units (arXiv 2002.05202) with the
            activation in the gate, of as many parameters, and within 1 % as many multiplications,
            as the plain ones.
    """

    version: ClassVar[str] = "1"
    epochs: int = 5
    batch_size: int = 8
    learning_rate: float = 1e-3
    vocabulary: int = 2048
    context: int = 128
    gated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary < _BYTES:
            raise ValueError(
                f"vocabulary must be at least {_BYTES}, a token for each byte, got"
                f" {self.vocabulary}"
            )
        if self.context < 1:
            raise ValueError(f"context must be at least 1, got {self.context}")

    def fingerprint(self) -> str:
        """The SHA-256 of the text and of the tokenizer; it changes with Python's patch version."""
        digest = hashlib.sha256(b"".join(corpus()))
        digest.update(tokenizer(self.vocabulary).to_str().encode())
        return digest.hexdigest()

    def data(self) -> Data:
        """Inputs and targets of shape (context,): tokens, and the token after each."""
        train, calibration, validation, test = (self._windows(part) for part in corpus())
        size = int(tokenizer(self.vocabulary).get_vocab_size())
        return Data(
            train, calibration, validation, test, (0.0, size - 1.0), size, self.fingerprint(), size
        )

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """See `Workload`. In gated parts the activation stands in the gate."""
        from evalsuite.workloads.transformer import LanguageModel as Model
        from evalsuite.workloads.transformer import feed_forwards
        from lambda_gelu.activations.gated import GatedUnit, matched_hidden

        layers = feed_forwards(_BLOCKS, _WIDTH, _HIDDEN, activation)
        if self.gated:
            hidden = matched_hidden(_WIDTH, _HIDDEN)
            layers = [GatedUnit(_WIDTH, hidden, activation(hidden)) for _ in range(_BLOCKS)]
        size = int(tokenizer(self.vocabulary).get_vocab_size())
        return Model(size, self.context, _WIDTH, _HEADS, layers)

    def _windows(self, text: bytes) -> Split:
        tokens, lengths = encoded(text, self.vocabulary)
        count = (len(tokens) - 1) // self.context * self.context  # targets
        if not count:
            raise ValueError(
                f"context must be less than the {len(tokens)} tokens of a part, got {self.context}"
            )
        per_byte = count / int(lengths[1 : count + 1].sum())
        return token_windows(
            tokens, self.context, LanguageModel(per="byte", tokens_per_byte=per_byte)
        )
