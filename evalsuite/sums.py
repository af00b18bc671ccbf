"""SHA256SUMS: the digests of all files of a folder, as `sha256sum --check` reads them.

A run writes it when it ends, and a report adds its own files: what was changed or lost since is
told by `evalsuite doctor RUN`, or without evalsuite by `sha256sum --check SHA256SUMS`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_BLOCK = 1 << 20


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_sums(folder: Path) -> None:
    """Write the sums of all files of a folder but hidden ones; links are not followed."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    hidden = [
        path
        for path in files
        if any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    _write(folder, _sums(folder, set(files) - {*hidden, folder / FILE}))


def _sums(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """File -> digest, but for names with a line's end: no line can hold them."""
    names = {path.relative_to(folder).as_posix(): path for path in files}
    return {name: digest_of(path) for name, path in names.items() if "\n" not in name}


def _write(folder: Path, sums: Mapping[str, str]) -> None:
    """Write sums, whole or not at all."""
    partial = folder / f".{FILE}.partial"
    partial.write_text(
        "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())), encoding="utf-8"
    )
    partial.replace(folder / FILE)


def read_sums(folder: Path) -> dict[str, str]:
    """File -> digest; empty where there are no sums, or none that can be read. A line that is
    none is left out.
    """
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return {}
    return {match[2]: match[1] for line in lines if (match := _LINE.fullmatch(line))}


def add_sums(folder: Path, files: Iterable[Path]) -> None:
    """Write the sums of files that were made in a folder which has sums; where it has none,
    nothing is written.
    """
    if (folder / FILE).is_file():
        _write(folder, read_sums(folder) | _sums(folder, files))


def changed(folder: Path) -> Iterator[str]:
    """List the files that are not as they were written, a line each: one that is missing, or that
    is another.
    """
    sums = read_sums(folder)
    if (folder / FILE).is_file() and not sums:
        yield f"{folder / FILE}: has no line that says the digest of a file"
    for name, digest in sums.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            yield f"{path}: is missing"
        elif digest_of(path) != digest:
            yield f"{path}: is not the file that was written"
