"""Where data files lie that no package ships."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """The folder in which workloads look for data files, which need not exist: $EVALSUITE_DATA, else the user's own.

    Example: docs/reference.md#measure-a-model
    """
    named = os.environ.get("EVALSUITE_DATA")
    return Path(named).expanduser() if named else Path.home() / ".local" / "share" / "evalsuite"
