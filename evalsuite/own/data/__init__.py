"""A user's data: files, folders, tables, text, or what a function makes."""

from __future__ import annotations

from evalsuite.own.data.digests import fingerprint
from evalsuite.own.data.reading import read_data
from evalsuite.own.data.source import Source, source_of

__all__ = ["Source", "fingerprint", "read_data", "source_of"]
