"""A job's log: all that it prints, up to a cap; of more, the beginning and the end."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

HEAD, TAIL = 4 << 20, 256 << 10  # bytes


class Log:
    """Writes to a new file at `path`; where that cannot be, nothing is kept and nothing stops for it."""

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._taken = 0
        self._tail = bytearray()

    def take(self, source: int) -> bool:
        """Move what a pipe holds to the log; False at its end."""
        part = os.read(source, 1 << 16)
        room = max(0, HEAD - self._taken)
        self._write(part[:room])
        self._tail += part[room:]
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]
        self._taken += len(part)
        return bool(part)

    def close(self) -> None:
        """Add the end of what did not fit."""
        del self._tail[:-TAIL]
        left_out = self._taken - HEAD - len(self._tail)
        if left_out > 0:
            self._write(f"\n[{left_out} bytes are left out here]\n".encode())
        self._write(self._tail)
        if self._file is not None:
            os.close(self._file)

    def _write(self, part: bytes | bytearray) -> None:
        with suppress(OSError):
            while part and self._file is not None:
                part = part[os.write(self._file, part) :]
