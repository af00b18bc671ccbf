"""Running text for a language model: windows of tokens, and at each position the next token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from evalsuite.own.data.arrays import where_in
from evalsuite.own.data.digests import files_in
from evalsuite.own.data.raw import Part, Raw, part_named
from evalsuite.own.data.source import Source
from evalsuite.own.data.tables import Table, not_text
from evalsuite.own.data.texts import text_columns, texts_in
from evalsuite.own.data.tokenizers import Bytes, Tokenizer
from evalsuite.references import OwnError

SUFFIXES = (".txt", ".text", ".tokens", ".raw", ".md")
_PIECE = 1 << 16  # characters that are turned into tokens at once


def is_corpus(place: Path) -> bool:
    """Whether the path is a file of text, or a folder of such."""
    return place.suffix.lower() in SUFFIXES if place.is_file() else bool(_files(place))


def read_corpus(source: Source, tokenizer: Tokenizer) -> Raw:
    """The text of a file, or of a folder: of WikiText's layout, files named train, valid and test, or all as one.

    Raises:
        OwnError: it is not UTF-8, some files name a part and others none, or it is shorter than a window.
    """
    place = source.place
    files = [place] if place.is_file() else _files(place)
    named = {each: part_named(each.relative_to(place).as_posix()) if place.is_dir() else "" for each in files}
    if any(named.values()) and not all(named.values()):
        odd = next(each for each, part in named.items() if not part)
        known = ", ".join(each.name for each, part in named.items() if part)
        raise OwnError(f"{odd}: names no part, beside {known}; call it train, validation or test, or move it away")
    texts: dict[str, list[str]] = {}
    for file, part in named.items():
        texts.setdefault(part or "train", []).append(_text(file))
    return windows({part: "\n".join(each) for part, each in texts.items()}, source, tokenizer, str(place))


def read_rows(tables: Mapping[str, Table], source: Source, tokenizer: Tokenizer) -> Raw:
    """The text of a table's rows, one after the other.

    Raises:
        OwnError: there is no column of text.
    """
    train = tables["train"]
    names = text_columns(train, source)
    if not names:
        raise OwnError(f"{train.file}: no column of text; name one with `text`")
    texts = {part: "\n".join(texts_in(table, names[0])) for part, table in tables.items()}
    return windows(texts, source, tokenizer, str(train.file))


def windows(texts: Mapping[str, str], source: Source, tokenizer: Tokenizer, said: str) -> Raw:
    """Windows (samples, length) that do not overlap, views of one tensor of tokens; a rest is left out. Raises OwnError
    where a part has fewer tokens than a window and the next one.
    """
    parts = {}
    for part, text in texts.items():
        tokens = _tokens(text, tokenizer)
        count = (len(tokens) - 1) // source.length
        if count < 1:
            short = f"the part {part} has {len(tokens)} tokens: fewer than a window of {source.length} and the next"
            raise OwnError(f"{said}: {short}; give more text, or a smaller `length`")
        inputs = tokens[: count * source.length].reshape(count, source.length)
        targets = tokens[1 : count * source.length + 1].reshape(count, source.length)
        parts[part] = Part(inputs, targets, where_in(f"{said}, part {part}", ", window "))
    return Raw(parts, None, tokenizer.vocabulary, consecutive=True, said=said)


def _tokens(text: str, tokenizer: Tokenizer) -> torch.Tensor:
    if isinstance(tokenizer, Bytes):
        return torch.from_numpy(np.frombuffer(text.encode(), np.uint8).astype(np.int64))
    pieces, start = [], 0
    while start < len(text):
        end = text.rfind("\n", start, start + _PIECE) + 1 if start + _PIECE < len(text) else len(text)
        end = end if end > start else start + _PIECE
        pieces.append(text[start:end])
        start = end
    found = [np.array(tokenizer.plain([each])[0], np.int64) for each in pieces]
    return torch.from_numpy(np.concatenate(found) if found else np.zeros(0, np.int64))


def _files(folder: Path) -> list[Path]:
    texts = [each for each in files_in(folder) if each.suffix.lower() in SUFFIXES]
    return [each for each in texts if each.stem.lower() not in ("readme", "license")]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise not_text(file, error) from error
