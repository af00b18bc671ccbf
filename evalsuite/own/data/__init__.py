"""A user's data: files, folders, tables, text, or what a function makes. To name them imports
nothing heavy.
"""

from __future__ import annotations

from evalsuite.own.data.source import Source, fingerprint, source_of

__all__ = ["Source", "fingerprint", "source_of"]
