"""The idx format of MNIST and of the data sets made after it: reading it, finding its four
files, fetching them.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Images and labels for training, then those for testing.
NAMES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def content(file: Path) -> bytes:
    """The bytes of a file, decompressed where its name ends in .gz. Raises ValueError: a damaged
    gzip file; the text names it.
    """
    if file.suffix != ".gz":
        return file.read_bytes()
    try:
        return gzip.decompress(file.read_bytes())
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{file}: damaged gzip file ({error}); download it again") from error


def read_idx(file: Path) -> np.ndarray:
    """An array from an idx file, gzipped or not. Raises ValueError as `content` and `parse_idx`
    do.
    """
    return parse_idx(content(file), file)


def parse_idx(whole: bytes, file: Path) -> np.ndarray:
    """An array from the bytes of the idx file `file` (LeCun's format: magic, sizes, bytes). Raises
    ValueError: not an idx file of unsigned bytes, or truncated; the text names the file.
    """
    import numpy as np

    if len(whole) < 4 or whole[:3] != b"\x00\x00\x08":
        raise ValueError(f"{file}: not an idx file of unsigned bytes")
    dimensions = whole[3]
    sizes = [int.from_bytes(whole[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    values = np.frombuffer(whole, np.uint8, offset=4 + 4 * dimensions)
    if values.size != np.prod(sizes):
        raise ValueError(
            f"{file}: truncated: {values.size} values, {sizes} declared; download it again"
        )
    return values.reshape(sizes)


def idx_files(folder: Path) -> list[Path]:
    """The four files in the order of `NAMES`, plain or gzipped. Raises FileNotFoundError: the
    first that is missing.
    """
    files = []
    for name in NAMES:
        present = [file for file in (folder / name, folder / f"{name}.gz") if file.is_file()]
        if not present:
            raise FileNotFoundError(f"{folder / name}[.gz] is missing")
        files.append(present[0])
    return files


def fetch_idx(url: str, folder: Path, digests: Mapping[str, str], *, timeout: float = 60.0) -> None:
    """Download the four gzipped files from below `url` into `folder`, which is made; present ones
    are kept.

    Args:
        digests: for each of `NAMES`, the SHA-256 of its decompressed bytes: mirrors compress
            differently.

    Raises:
        OSError: no connection, or nothing there.
        ValueError: other bytes than expected. The file is then not kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if (folder / f"{name}.gz").is_file():
            continue
        address = f"{url.rstrip('/')}/{name}.gz"
        try:
            with urllib.request.urlopen(address, timeout=timeout) as reply:
                received = reply.read()
        except urllib.error.URLError as error:
            raise OSError(f"{address}: not downloaded: {error.reason}") from error
        _keep(received, folder / f"{name}.gz", digests[name], address)


def _keep(received: bytes, file: Path, digest: str, address: str) -> None:
    """Check the download, and put it in its place in one step, so that a reader never sees half
    of it.
    """
    partial = file.with_name(f"{os.getpid()}-{file.name}")
    try:
        partial.write_bytes(received)
        found = hashlib.sha256(content(partial)).hexdigest()
        if found != digest:
            raise ValueError(
                f"{address}: SHA-256 of the decompressed bytes is {found}, expected {digest}"
            )
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
