"""Digests of files, streamed, and the fingerprint of a source."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from evalsuite.own.data.source import Source
from evalsuite.references import OwnError
from evalsuite.sources import stamp

_CHUNK = 1 << 20


def digest(file: Path) -> bytes:
    """The SHA-256 of a file's bytes, streamed; read again only where its size or time of change is another."""
    return _digest(file, stamp(file))


@lru_cache(maxsize=1 << 18)
def _digest(file: Path, _stamp: tuple[int, int]) -> bytes:
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            found.update(chunk)
    return found.digest()


def files_in(folder: Path) -> list[Path]:
    """Every file below, hidden ones left out, in an order that does not depend on the file system."""
    found = (each for each in folder.rglob("*") if each.is_file())
    return sorted(each for each in found if not any(part.startswith(".") for part in each.relative_to(folder).parts))


def fingerprint(source: Source) -> str:
    """The SHA-256 of the data's raw content: of every file's path in its folder and bytes.

    Of a function, the file that holds it, and what it returns: tensors wholly, of a data set that is read lazily its
    length and 64 samples. A tokenizer that the source names counts, too.

    Raises:
        OwnError: the data cannot be read.
    """
    whole = hashlib.sha256()
    if source.is_function:
        from evalsuite.own.data.functions import content_of

        whole.update(content_of(source.path))
    else:
        _add(whole, source.place)
    if source.tokenizer and Path(source.tokenizer).expanduser().exists():
        _add(whole, Path(source.tokenizer).expanduser())
    return whole.hexdigest()


def _add(whole: hashlib._Hash, place: Path) -> None:
    try:
        if place.is_file():
            whole.update(digest(place))
            return
        for file in files_in(place):
            whole.update(f"{file.relative_to(place).as_posix()}\0".encode() + digest(file))
    except OSError as error:
        raise OwnError(f"{error.filename or place}: {error.strerror}; let it be read by this user") from error
