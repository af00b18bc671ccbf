"""A language model of GPT-2 small's sizes on text files, as those of WikiText, byte by byte or
by a tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from evalsuite.contract import Data, Split
from evalsuite.tasks.language_model import LanguageModel
from evalsuite.workloads.options import Budget, check_heads
from evalsuite.workloads.text import token_windows
from evalsuite.workloads.workload import data_folder, sha256

if TYPE_CHECKING:
    import torch
    from torch import nn

_BYTES = 256
_SUFFIXES = (".txt", ".tokens", ".raw")
_PARTS = (("train",), ("valid", "validation", "val"), ("test",))
_SHARES = (0.8, 0.9)  # of one file: where training and validation end
_CALIBRATION = 32  # windows, from the end of the training text
_FOLDERS = ("wikitext-2", "wikitext", "text")


def text_files(folder: Path) -> list[list[Path]]:
    """The files of training, validation and test, which have train, valid or test as a word in
    their names. Raises FileNotFoundError: a part has none.
    """
    # A part's name must be a word of the file's name: "test" in "latest.txt" is none.
    files = (
        sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
        if folder.is_dir()
        else []
    )
    found = [
        [file for file in files if set(words) & set(re.split(r"[^a-z]+", file.name.lower()))]
        for words in _PARTS
    ]
    missing = [words[0] for words, named in zip(_PARTS, found, strict=True) if not named]
    if missing:
        there = ", ".join(file.name for file in files) or "no text files"
        raise FileNotFoundError(
            f"{folder}: no text for {' and '.join(missing)}, but {there}; put {missing[0]}.txt or"
            f" wiki.{missing[0]}.tokens there, or set the option `folder` to another folder, or to"
            " one file to be split"
        )
    return found


@dataclass(frozen=True)
class GPT2Small(Budget):
    """Text files byte by byte, GPT-2 small: 12 pre-norm blocks of width 768, 12 heads, 1,024
    positions. A GPU's work.

    The output layer has weights of its own: with 256 bytes for a vocabulary they are a hundredth of
    a block's.

    Args:
        folder: where train.txt, valid.txt and test.txt lie, or wiki.{train,valid,test}.tokens; or
            one text file, of which the first 80 % are for training, and 10 % each for validation
            and test. Empty: wikitext-2, wikitext or text in the data folder.
        tokenizer: a tokenizer.json, as Hugging Face's `tokenizers` writes it; empty: bytes.
        context: positions of a window.
        width: of a token; the feed-forward parts have four times as many units.
        heads: of each attention.
        blocks: their number.
    """

    version: ClassVar[str] = "1"
    epochs: int = 3
    batch_size: int = 8
    learning_rate: float = 6e-4
    weight_decay: float = 0.1
    device: str = "auto"
    precision: str = "bfloat16"
    warm_up: float = 0.05
    folder: str = ""
    tokenizer: str = ""
    context: int = 1024
    width: int = 768
    heads: int = 12
    blocks: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("context", "blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        check_heads(self.width, self.heads)

    def fingerprint(self) -> str:
        """The SHA-256 of each file, the tokenizer's included."""
        place = self._place()
        files = (
            [place] if place.is_file() else [file for part in text_files(place) for file in part]
        )
        return "+".join(
            sha256(file) for file in [*files, *([Path(self.tokenizer)] if self.tokenizer else [])]
        )

    def data(self) -> Data:
        """Inputs and targets of shape (context,): tokens, and the token after each.

        Raises:
            FileNotFoundError: a part of the text is missing.
            ValueError: a part is shorter than a window, or the tokenizer cannot be read.
        """
        task = LanguageModel(per="token" if self.tokenizer else "byte")
        train, validation, test = (
            token_windows(token, self.context, task) for token in self._tokens()
        )
        count = min(_CALIBRATION, len(train) // 2)
        taught, calibration = (
            Split(train.inputs[part], train.targets[part], task)
            for part in (slice(-count), slice(-count, None))
        )
        size = self._vocabulary()
        domain = (0.0, size - 1.0)
        return Data(taught, calibration, validation, test, domain, size, self.fingerprint(), size)

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        from evalsuite.workloads.transformer import LanguageModel as Model
        from evalsuite.workloads.transformer import feed_forwards

        layers = feed_forwards(self.blocks, self.width, 4 * self.width, activation)
        return Model(self._vocabulary(), self.context, self.width, self.heads, layers)

    def _place(self) -> Path:
        if self.folder:
            return Path(self.folder).expanduser()
        places = [data_folder() / name for name in _FOLDERS]
        return next((place for place in places if place.is_dir()), places[0])

    def _tokens(self) -> list[torch.Tensor]:
        """The tokens of training, validation and test, each (n,), int64."""
        # 1. One file is split; a folder has a file, or several, for each part.
        place = self._place()
        if place.is_file():
            texts, names = _split(place.read_bytes()), [str(place)] * 3
        else:
            parts = text_files(place)
            texts = [b"".join(file.read_bytes() for file in files) for files in parts]
            names = [str(files[0]) for files in parts]
        # 2. Encode each part, and refuse what is too short: training needs two windows.
        encode = self._encoder()
        found = [encode(text, name) for text, name in zip(texts, names, strict=True)]
        for tokens, name, least in zip(found, names, (2, 1, 1), strict=True):
            if len(tokens) <= least * self.context:
                need = f"{least} of {self.context} positions and the token after"
                raise ValueError(
                    f"{name}: {len(tokens)} tokens, but {need} are needed; take more text, or set"
                    " `context`"
                )
        return found

    def _encoder(self) -> Callable[[bytes, str], torch.Tensor]:
        import torch

        # Without a tokenizer each byte is a token.
        if not self.tokenizer:
            return lambda text, _: torch.frombuffer(
                bytearray(text or b"\0"), dtype=torch.uint8
            ).long()
        tokenizer = _tokenizer(self.tokenizer)

        def encode(text: bytes, name: str) -> torch.Tensor:
            # Line by line, which a tokenizer encodes in parallel.
            try:
                lines = text.decode().splitlines(keepends=True)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{name}: no UTF-8 ({error}); convert it, or leave `tokenizer` out"
                ) from error
            encoded = tokenizer.encode_batch(lines, add_special_tokens=False)
            return torch.tensor(
                [index for line in encoded for index in line.ids], dtype=torch.int64
            )

        return encode

    def _vocabulary(self) -> int:
        return int(_tokenizer(self.tokenizer).get_vocab_size()) if self.tokenizer else _BYTES


def _tokenizer(file: str) -> Any:
    if not Path(file).is_file():
        raise FileNotFoundError(
            f"tokenizer: {file} is missing; name a tokenizer.json, or leave it out for bytes"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            "tokenizer: needs a package more: pip install evalsuite[transformers]"
        ) from error
    try:
        return Tokenizer.from_file(file)
    except Exception as error:  # tokenizers raises nothing more particular
        raise ValueError(
            f"tokenizer: {file} is no tokenizer.json ({error!s:.80}); name another"
        ) from error


def _split(text: bytes) -> list[bytes]:
    first, second = (
        text.find(b"\n", int(share * len(text))) + 1 or int(share * len(text)) for share in _SHARES
    )
    return [text[:first], text[first:second], text[second:]]
