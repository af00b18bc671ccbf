"""From a source to `Data`: which reader reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Data, Task
from evalsuite.own.data.digests import fingerprint
from evalsuite.own.data.source import Source
from evalsuite.references import OwnError

if TYPE_CHECKING:
    from evalsuite.own.data.assembling import TargetsOf
    from evalsuite.own.data.raw import Raw
    from evalsuite.own.data.tables import Table
    from evalsuite.own.data.targets import Kind

_KNOWN = "known are .npz, .csv, .tsv, .parquet, .jsonl, .txt, folders of images or of these, and my.py:make_data"


def read_data(source: Source, task: Task, *, tokenizer: str | None = None, targets_of: TargetsOf | None = None) -> Data:
    """A user's data in four disjoint parts; those that are not given are cut from the training part.

    Args:
        source: where they are, and how to read them.
        task: what the model is for; it says what targets are.
        tokenizer: the model's own, used where the source names none.
        targets_of: gives the targets of a batch of inputs, as the original model's outputs are those of an embedding
            without targets of its own: float32 (samples, width).

    Raises:
        OwnError: something of the data cannot be; the text names the culprit, the value and the cure.
    """
    from evalsuite.own.data.assembling import assemble
    from evalsuite.own.data.targets import kind_of

    raw = _read(source, kind_of(task), source.tokenizer or tokenizer)
    if isinstance(raw, Data):
        return _with_task(raw, task, fingerprint(source))
    return assemble(raw, source, task, fingerprint(source), targets_of)


def _read(source: Source, kind: Kind, tokenizer: str | None) -> Raw | Data:
    if source.is_function:
        from evalsuite.own.data.functions import read_made

        return read_made(source)
    try:
        return _read_place(source, source.place, kind, tokenizer)
    except OSError as error:
        raise OwnError(f"{error.filename or source.path}: {error.strerror}; let it be read by this user") from error


def _read_place(source: Source, place: Path, kind: Kind, tokenizer: str | None) -> Raw:
    from evalsuite.own.data import corpora, tables

    if place.is_file():
        if not place.stat().st_size:
            raise OwnError(f"{source.path}: is empty; give it samples")
        if place.suffix in (".npz", ".npy"):
            from evalsuite.own.data.arrays import read_npz

            return read_npz(source)
    elif not any(place.iterdir()):
        raise OwnError(f"{source.path}: the folder is empty; give it samples")
    else:
        from evalsuite.own.data.folders import has_images, read_folder

        if not (place / "state.json").is_file() and has_images(place):
            return read_folder(source)
    if tables.is_table(place):
        return _of_tables(tables.read_tables(source), source, kind, tokenizer)
    if corpora.is_corpus(place):
        if kind != "tokens":
            cure = "choose task language-model, or write texts and targets as .jsonl"
            raise OwnError(f"{source.path}: running text has no targets for this task; {cure}")
        return corpora.read_corpus(source, _tokenizer(tokenizer or "bytes", source))
    what = f"a file {place.suffix or 'without an ending'}" if place.is_file() else "a folder with none of them"
    raise OwnError(f"{source.path}: unknown kind of data, {what}; {_KNOWN}")


def _of_tables(found: Mapping[str, Table], source: Source, kind: Kind, tokenizer: str | None) -> Raw:
    from evalsuite.own.data import corpora, features, texts

    train = found.get("train")
    if train is None:
        raise OwnError(f"{source.path}: there is no training part, only {', '.join(found)}; name one 'train'")
    if kind == "tokens":
        return corpora.read_rows(found, source, _tokenizer(tokenizer or "bytes", source))
    if kind == "tags":
        return texts.read_tags(found, source, _tokenizer(tokenizer, source))
    image = source.image or next((name for name, each in train.columns.items() if _holds_images(each)), "")
    if image:
        return _images(found, source, kind, image)
    if texts.text_columns(train, source):
        return texts.read_texts(found, source, kind, _tokenizer(tokenizer, source))
    return features.read_features(found, source, kind)


def _tokenizer(name: str | None, source: Source) -> Any:
    from evalsuite.own.data.tokenizers import tokenizer_of

    return tokenizer_of(name, source.path)


def _holds_images(column: Any) -> bool:
    kind = str(getattr(column, "type", ""))
    return kind in ("binary", "large_binary") or (kind.startswith("struct<") and "bytes: " in kind)


def _images(found: Mapping[str, Table], source: Source, kind: Kind, name: str) -> Raw:
    from evalsuite.own.data.images import Column, domain_of, pictures
    from evalsuite.own.data.raw import Part, Raw
    from evalsuite.own.data.tables import class_names, column, targets_in

    for table in found.values():
        if name not in table.columns or isinstance(table.columns[name], list):
            column(table, name)
            raise OwnError(f"{table.file}: the column {name!r} holds no images; give the bytes of their files")
    named = {part: (Column(table.columns[name], table.file.parent), table.where) for part, table in found.items()}
    images = pictures(named, source, source.path)
    labels = class_names(found["train"], source)
    parts = {
        part: Part(images[part], targets_in(table, source, kind), table.where, images[part].identities())
        for part, table in found.items()
    }
    return Raw(parts, domain_of(source), labels=labels, said=source.path)


def _with_task(data: Data, task: Task, digest: str) -> Data:
    """The user's own `Data`, for this task, under the fingerprint that the source has."""
    from evalsuite.own.data.raw import PARTS

    train, calibration, validation, test = (replace(getattr(data, name), task=task) for name in PARTS)
    return replace(data, train=train, calibration=calibration, validation=validation, test=test, fingerprint=digest)
