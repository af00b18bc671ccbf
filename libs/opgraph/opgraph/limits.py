"""Limits within which users' files are read: plain files only, and what one may take by its size.

A small file can stand for much more: zeros that are packed, a shape that promises terabytes, a pipe
that never ends. So what reads a file says so by `reading`. A process that watches `board` can end
the one that reads where the file takes more than its share; and what nobody foresaw in a file is
told with its name.
"""

from __future__ import annotations

import gzip
import mmap
import os
import stat
import struct
import time
import traceback
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from opgraph.errors import OwnError

MEMORY, SECONDS = "EVALSUITE_READING_GIB", "EVALSUITE_READING_SECONDS"
_GIB, _MIB = 1 << 30, 1 << 20
_LEAST_GIB = 1.0
# bytes of memory for each byte of a file: text as Python's objects, columns that are packed
_RATIO = 64
_LEAST_SECONDS = 15.0
_PACE = 1e-5  # seconds of the processor for each byte
_COUNTED = 100_000  # files of a folder whose sizes are added
_HEAD = struct.Struct("<Qqdd")
_PAGE = 4096
_KINDS = {
    stat.S_ISFIFO: "a pipe",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISSOCK: "a socket",
}
# Packages whose errors name the culprit already.
_OURS = ("evalsuite", "pipelines", "lambda_gelu", "opgraph", "netverify", "intnet")
# What a library raises on input that its author did not think of. Other errors have a text for the
# user already.
UNFORESEEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
    TypeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class Share:
    """Limits what reading a file may take: bytes of memory beyond those held before, and seconds of
    the processor.
    """

    memory: int
    seconds: float

    @classmethod
    def of(cls, size: int) -> Share:
        """The share of a file, or folder, of so many bytes. Raises OwnError: a setting in the
        environment is none.
        """
        return cls(
            max(_RATIO * size, int(_setting(MEMORY, _LEAST_GIB) * _GIB)),
            max(_PACE * size, _setting(SECONDS, _LEAST_SECONDS)),
        )


def _setting(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise OwnError(f"{name} is a number > 0, got {text!r}")
    return number


class Board:
    """Shows what is read now, for the process that watches: a page of memory that both see.

    The number in front is odd while the rest is written, so that no reader takes half of it.
    """

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _PAGE)
        self._owner = 0
        self._number = 0

    def own(self) -> None:
        """From now on this process writes; those that it forks do not."""
        self._owner = os.getpid()

    def write(self, name: str, memory: int, seconds: float) -> None:
        """Write what is read, and how much memory and time of the processor this process may hold,
        and have had, until then. Without a name nothing is read.
        """
        if self._owner != os.getpid():
            return
        text = name.encode("utf-8", "replace")[: _PAGE - _HEAD.size]
        text = text.ljust(_PAGE - _HEAD.size, b"\0")
        self._number += 2
        self._page[:8] = struct.pack("<Q", self._number - 1)
        self._page[_HEAD.size :] = text
        self._page[8 : _HEAD.size] = _HEAD.pack(0, memory, seconds, time.monotonic())[8:]
        self._page[:8] = struct.pack("<Q", self._number)

    def read(self) -> tuple[str, int, float, int] | None:
        """Name, memory, seconds, and a number that is another for each thing read; None where
        nothing is, or half.
        """
        number, memory, seconds, _ = _HEAD.unpack(self._page[: _HEAD.size])
        text = self._page[_HEAD.size :].rstrip(b"\0")
        if number % 2 or number != struct.unpack("<Q", self._page[:8])[0] or not text:
            return None
        return text.decode("utf-8", "replace"), memory, seconds, number


board = Board()
_open: list[tuple[str, int, float]] = []  # what is being read, the outermost first
_failed: list[str] = []  # what was being read when the last error rose


def held() -> int:
    """Bytes that this process holds and the system cannot drop; 0 where the system does not
    tell.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_bytes().split(b"\n"):
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


@contextmanager
def reading(place: Path | str, seconds: float | None = None) -> Iterator[None]:
    """Inside, this file or folder is read, within its share of memory and time.

    Args:
        place: its path.
        seconds: of the processor, instead of its share.

    Raises:
        OwnError: it is a pipe, a device or a socket; or what was raised inside is an error that
            nobody foresaw, or has no word of which file it is about.
    """
    path = Path(place).expanduser()
    check_plain(path)
    # The share goes by the file's size: who watches the command ends it beyond that.
    share = Share.of(_size(path))
    _failed.clear()
    try:
        with within(share if seconds is None else replace(share, seconds=seconds), str(place)):
            yield
    except OwnError:
        raise
    except UNFORESEEN as error:
        _failed.append(str(place))
        # such as the command's own end
        if type(error).__module__.startswith((*_OURS, "typer", "click")):
            raise
        raise OwnError(f"{place}: cannot be read: {unforeseen(error)}") from error
    # An error that does not name the file is told with its name; ours do.
    except ValueError as error:
        if type(error).__module__.startswith(_OURS) or str(place) in str(error):
            raise
        raise OwnError(f"{place}: cannot be read: {said(error)}") from error


@contextmanager
def within(share: Share, name: str) -> Iterator[None]:
    """Inside, the command takes no more than this share beyond what it has taken; else it is
    ended, with this name.
    """
    _open.append((name, held() + share.memory, time.process_time() + share.seconds))
    board.write(*_open[-1])
    try:
        yield
    finally:
        _open.pop()
        board.write(*(_open[-1] if _open else ("", 0, 0.0)))


@contextmanager
def computing() -> Iterator[None]:
    """Inside `reading`, the user's own model computes, as long and with as much memory as it
    wants.
    """
    before, spent = held(), time.process_time()
    board.write("", 0, 0.0)
    try:
        yield
    finally:
        grown, more = held() - before, time.process_time() - spent
        _open[:] = [(name, memory + grown, seconds + more) for name, memory, seconds in _open]
        board.write(*(_open[-1] if _open else ("", 0, 0.0)))


def check_plain(path: Path) -> None:
    """Raise OwnError where a path leads to a pipe, a device or a socket: such may have no end,
    or never begin.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # whoever opens it says what is wrong
        return
    kind = next((name for is_kind, name in _KINDS.items() if is_kind(mode)), "")
    if kind:
        raise OwnError(f"{path}: is {kind}, not a file; copy what it gives into a file")


def check_size(path: Path | str, size: int, what: str = "what is packed in it") -> None:
    """Raise OwnError where what a file unpacks to, by its own words, is more than its share."""
    share = Share.of(_size(Path(path)))
    if size > share.memory:
        raise OwnError(
            f"{path}: {what} takes {gib(size)}, and {gib(share.memory)} is the most of such a file;"
            f" {cure(size)}"
        )


def content(path: Path) -> bytes:
    """The bytes of a file; of one that is named *.gz what it unpacks to.

    Raises:
        OwnError: it is a pipe, a device or a socket, or unpacks to more than its share.
        OSError: it cannot be read.
        EOFError, zlib.error: it is packed, and damaged; gzip's own error is an OSError.
    """
    check_plain(path)
    if path.suffix != ".gz":
        return path.read_bytes()
    most = Share.of(_size(path)).memory // 2  # what is made of the content needs room too
    pieces, size = [], 0
    with gzip.open(path) as file:
        while piece := file.read(_MIB):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise OwnError(
                    f"{path}: unpacks to more than {gib(most)}, the most of such a file;"
                    f" {cure(4 * size)}"
                )
    return b"".join(pieces)


def check_archive(path: Path | str) -> None:
    """Raise OwnError where a zip archive unpacks to more than its share; what is none is left to
    its reader.
    """
    with suppress(zipfile.BadZipFile, OSError), zipfile.ZipFile(path) as archive:
        check_size(path, sum(entry.file_size for entry in archive.infolist()))


def cure(size: int) -> str:
    """How the user allows more memory, for messages."""
    return f"if it is as it should be, set {MEMORY}={max(2, -(-size // _GIB))}"


def gib(size: int) -> str:
    """A size for messages: "1.5 GiB"."""
    return f"{size / _GIB:.3g} GiB"


def unforeseen(error: BaseException) -> str:
    """An error that nobody foresaw, in one line: its kind, its text, the place, and how to see
    more.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return (
        f"{said(error)}{place}; nobody foresaw this: EVALSUITE_DEBUG=1 shows the traceback, for a"
        " report of a defect"
    )


def said(error: BaseException) -> str:
    """The kind and the text of an error in one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}{f': {text}' if text else ''}"


def failed() -> str:
    """Return what was being read when the last error rose that nobody foresaw; "" where nothing
    was.
    """
    return _failed[0] if _failed else ""


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; 0 where it is not there."""
    if not path.is_dir():
        with suppress(OSError):
            return path.stat().st_size
        return 0
    total = 0
    for number, file in enumerate(path.rglob("*")):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
        if number >= _COUNTED:
            break
    return total
