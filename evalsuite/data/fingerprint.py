"""The digest of a user's data, whichever way they are named."""

from __future__ import annotations

import hashlib
from pathlib import Path

from evalsuite.data.source import Source, digest, files_in
from opgraph.errors import OwnError


def fingerprint(source: Source) -> str:
    """The SHA-256 of the data's raw content: of every file's path in its folder and bytes.

    Of a function, the file that holds it, and what it returns: tensors wholly, of a data set that
    is read lazily its length and 64 samples. A tokenizer that the source names counts, too. Raises
    OwnError: the data cannot be read.
    """
    whole = hashlib.sha256()
    if source.is_function:
        # a function makes tensors; of files nothing heavy is imported
        from evalsuite.data.functions import content_of

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
        raise OwnError(
            f"{error.filename or place}: {error.strerror}; let it be read by this user"
        ) from error
