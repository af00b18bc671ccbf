"""Texts as tokens: with a class, labels, a value or a vector, with a tag for each word, or as
running text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evalsuite.contract import IGNORED
from evalsuite.data.arrays import where_in
from evalsuite.data.classes import Naming
from evalsuite.data.parts import Part, Raw, part_named
from evalsuite.data.source import Source, files_in
from evalsuite.data.tables import (
    Table,
    class_names,
    column,
    holds_text,
    not_text,
    targets_in,
)
from evalsuite.data.targets import Kind, numbered
from evalsuite.data.tokenizers import Bytes, Tokenizer
from evalsuite.samples import Several
from opgraph.errors import OwnError
from opgraph.inputs import Inputs, mapped

_TEXTS = ("text", "sentence", "content", "review")
_WORDS = ("tokens", "words")


class Tokens(Several):
    """Named inputs in half the memory, int32, and int64 when they are read."""

    def __init__(self, parts: Mapping[str, torch.Tensor]) -> None:
        super().__init__({name: tokens.int() for name, tokens in parts.items()})

    def read(self, indices: Sequence[int]) -> Inputs:
        return mapped(super().read(indices), lambda tokens: tokens.long())


def text_columns(table: Table, source: Source) -> tuple[str, ...]:
    """The columns of text: those that the source names, else one of a usual name; none where
    features are named.
    """
    usual = next((text for text in _TEXTS if holds_text(table, text)), "")
    return source.text or ((usual,) if usual and not source.features else ())


def read_texts(
    tables: Mapping[str, Table], source: Source, kind: Kind, tokenizer: Tokenizer
) -> Raw:
    """`input_ids` and `attention_mask`, and of pairs `token_type_ids`, each (samples, length).
    Raises OwnError where a text is none, or there are no targets.
    """
    # 1. Tokenize one text a sample, or two.
    names = text_columns(tables["train"], source)
    if len(names) > 2:
        raise OwnError(f"data.text: at most two columns, a pair, got {list(names)}")
    encoded = {}
    for part, table in tables.items():
        texts = [texts_in(table, name) for name in names]
        rows = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
        encoded[part] = tokenizer.samples(rows, source.length)
    # 2. Pad to the longest text of any part: all parts are inputs of one shape.
    longest = max(len(ids) for rows in encoded.values() for ids, _ in rows)
    if not longest:
        raise OwnError(
            f"{tables['train'].file}: every text of column {names[0]!r} is empty; name another with"
            " `text`"
        )
    parts = {}
    for part, rows in encoded.items():
        inputs = _padded([ids for ids, _ in rows], longest, tokenizer.padding)
        if len(names) == 2:
            inputs["token_type_ids"] = _table([types for _, types in rows], longest, 0)
        parts[part] = Part(
            Tokens(inputs), targets_in(tables[part], source, kind), tables[part].where
        )
    labels = class_names(tables["train"], source, kind)
    notes = _cut([ids for rows in encoded.values() for ids, _ in rows], source.length)
    said = str(tables["train"].file)
    return Raw(parts, None, tokenizer.vocabulary, labels, notes=notes, said=said)


def _cut(rows: Sequence[Sequence[int]], length: int) -> tuple[tuple[str, str], ...]:
    """Tell the user which texts are not given as a whole, or are empty."""
    long, empty = sum(len(row) >= length for row in rows), sum(not len(row) for row in rows)
    count = f"of {len(rows):,} have"
    said = f"{length} tokens or more, of which the first {length} are given; see `data.length`"
    return (
        *((("texts", f"{long:,} {count} {said}"),) if long else ()),
        *((("texts", f"{empty:,} {count} no token"),) if empty else ()),
    )


def read_tags(tables: Mapping[str, Table], source: Source, tokenizer: Tokenizer) -> Raw:
    """Read lists of words and their tags; a word's tag stands at its first token, and -100
    elsewhere. Raises OwnError where words or tags are no lists, or of different lengths.
    """
    train = tables["train"]
    name = (source.text or tuple(word for word in _WORDS if word in train.columns))[:1]
    if not name:
        raise OwnError(
            f"{train.file}: no column of words; name one with `text`, a list of words in each row"
        )
    # 1. Check words against tags, tokenize, and list the tags of all words of each part.
    tags, rows, flat = {}, {}, {}
    for part, table in tables.items():
        words = column(table, name[0])
        tags[part] = targets_in(table, source, "tags") or []
        for i, (one, two) in enumerate(zip(words, tags[part], strict=True)):
            _check_aligned(one, two, table.where(i))
        rows[part] = tokenizer.words(words, source.length)
        places = [i for i, tags_of_text in enumerate(tags[part]) for _ in tags_of_text]
        flat[part] = Part(
            torch.empty(0),
            [tag for tags_of_text in tags[part] for tag in tags_of_text],
            partial(_at, table, places),
        )
    # 2. Number the classes over all words, in one list for all parts.
    labels = class_names(tables["train"], source, "tags")
    tags_found = numbered(flat, "classes", Naming(source.labels), labels)
    numbers = tags_found.targets
    # 3. Pad the rows to the longest of any part, and set each word's number at its first token.
    longest = max(len(ids) for row in rows.values() for ids, _ in row)
    parts = {}
    for part, table in tables.items():
        aligned = _aligned([words for _, words in rows[part]], tags[part], numbers[part].tolist())
        inputs = Tokens(_padded([ids for ids, _ in rows[part]], longest, tokenizer.padding))
        parts[part] = Part(inputs, _table(aligned, longest, IGNORED), table.where)
    known = tags_found.classes.names if tags_found.classes is not None else ()
    notes = _cut([ids for row in rows.values() for ids, _ in row], source.length)
    return Raw(parts, None, tokenizer.vocabulary, known, notes=notes, said=str(train.file))


def _at(table: Table, places: Sequence[int], index: int) -> str:
    return table.where(places[index] if index >= 0 else index)


def texts_in(table: Table, name: str) -> list[str]:
    """A column's texts. Raises OwnError where one is none, or holds half of a surrogate pair."""
    texts = column(table, name)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            said = f"{str(text)[:40]!r}" if text is not None else "missing"
            raise OwnError(
                f"{table.where(i)}: the text of column {name!r} is {said}; give text, or leave"
                " it out"
            )
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise OwnError(
                f"{table.where(i)}: the text of column {name!r} holds half of a surrogate pair;"
                " write it anew"
            )
    return texts


def _check_aligned(words: Any, tags: Any, where: str) -> None:
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise OwnError(f'{where}: the words are no list of texts; write ["a", "b"]')
    if not isinstance(tags, (list, tuple)):
        raise OwnError(
            f"{where}: the tags {str(tags)[:40]!r} are no list; give one tag for each word"
        )
    if len(words) != len(tags):
        raise OwnError(f"{where}: {len(words)} words but {len(tags)} tags; give each word one")


def _aligned(
    words: Sequence[Sequence[int | None]], tags: Sequence[Any], numbers: list[int]
) -> list[list[int]]:
    """The number of a word's tag at its first token."""
    labels, start = [], 0
    for row, tags_of_words in zip(words, tags, strict=True):
        before = [None, *row[:-1]]
        labels.append(
            [
                IGNORED if word is None or word == last else numbers[start + word]
                for word, last in zip(row, before, strict=False)
            ]
        )
        start += len(tags_of_words)
    return labels


def _padded(rows: Sequence[Sequence[int]], length: int, padding: int) -> dict[str, torch.Tensor]:
    mask = _table([[1] * len(row) for row in rows], length, 0)
    return {"input_ids": _table(rows, length, padding), "attention_mask": mask}


def _table(rows: Sequence[Sequence[int]], length: int, padding: int) -> torch.Tensor:
    return torch.tensor([[*row, *[padding] * (length - len(row))] for row in rows])


SUFFIXES = (".txt", ".text", ".tokens", ".raw", ".md")
_PIECE = 1 << 16  # characters that are turned into tokens at once


def is_corpus(place: Path) -> bool:
    """Whether the path is a file of text, or a folder of such."""
    return place.suffix.lower() in SUFFIXES if place.is_file() else bool(_files(place))


def read_corpus(source: Source, tokenizer: Tokenizer) -> Raw:
    """The text of a file, or of a folder: of WikiText's layout, files named train, valid and test,
    or all as one. Raises OwnError where it is not UTF-8, some files name a part and others none, or
    it is shorter than a window.
    """
    place = source.place
    # 1. Files name a part, or none of them does.
    files = [place] if place.is_file() else _files(place)
    named = {
        file: part_named(file.relative_to(place).as_posix()) if place.is_dir() else ""
        for file in files
    }
    if any(named.values()) and not all(named.values()):
        odd = next(file for file, part in named.items() if not part)
        known = ", ".join(file.name for file, part in named.items() if part)
        raise OwnError(
            f"{odd}: names no part, beside {known}; call it train, validation or test, or move it"
            " away"
        )
    # 2. The text of each part, its files in their order, cut into windows.
    texts: dict[str, list[str]] = {}
    for file, part in named.items():
        texts.setdefault(part or "train", []).append(_text(file))
    return windows(
        {part: "\n".join(lines) for part, lines in texts.items()}, source, tokenizer, str(place)
    )


def read_rows(tables: Mapping[str, Table], source: Source, tokenizer: Tokenizer) -> Raw:
    """The text of a table's rows, one after the other. Raises OwnError where there is no column
    of text.
    """
    train = tables["train"]
    names = text_columns(train, source)
    if not names:
        raise OwnError(f"{train.file}: no column of text; name one with `text`")
    texts = {part: "\n".join(texts_in(table, names[0])) for part, table in tables.items()}
    return windows(texts, source, tokenizer, str(train.file))


def windows(texts: Mapping[str, str], source: Source, tokenizer: Tokenizer, said: str) -> Raw:
    """Windows (samples, length) that do not overlap, views of one tensor of tokens; a rest is left
    out. Raises OwnError where a part has fewer tokens than a window and the next one.
    """
    parts = {}
    for part, text in texts.items():
        tokens = _tokens(text, tokenizer)
        count = (len(tokens) - 1) // source.length
        if count < 1:
            short = (
                f"the part {part} has {len(tokens)} tokens: fewer than a window of {source.length}"
                " and the next"
            )
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
        end = (
            text.rfind("\n", start, start + _PIECE) + 1 if start + _PIECE < len(text) else len(text)
        )
        end = end if end > start else start + _PIECE
        pieces.append(text[start:end])
        start = end
    tokens = [np.array(tokenizer.plain([piece])[0], np.int64) for piece in pieces]
    return torch.from_numpy(np.concatenate(tokens) if tokens else np.zeros(0, np.int64))


def _files(folder: Path) -> list[Path]:
    texts = [path for path in files_in(folder) if path.suffix.lower() in SUFFIXES]
    return [text for text in texts if text.stem.lower() not in ("readme", "license")]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise not_text(file, error) from error
