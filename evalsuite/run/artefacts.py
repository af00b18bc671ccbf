"""The files of jobs where a user looks for them: networks, ONNX files, counterexamples, in a run's folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from evalsuite.run.cache import Cache
from evalsuite.run.child import ARTEFACTS, NETWORK
from evalsuite.run.journal import Entry


def place_artefacts(out: Path, cache: Cache, entry: Entry, *, new: bool) -> None:
    """Put a job's files into the run's folder, whole, and remove those of an outcome that is no more."""
    target = out / "artefacts" / entry.job
    if not new and (target.exists() or not (entry.artefacts or entry.network)):
        return
    home = cache.find(entry.key) if entry.final and entry.key else None
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name, place in ((ARTEFACTS, partial), (NETWORK, partial / NETWORK)):
        if home is not None and (home / name).is_dir() and any((home / name).iterdir()):
            shutil.copytree(home / name, place, dirs_exist_ok=True, copy_function=_linked)
    shutil.rmtree(target, ignore_errors=True)
    if partial.exists():
        partial.rename(target)


def _linked(source: str, target: str) -> None:
    """Give a file of the cache a second name, or a copy on another disk.

    Who writes into it damages the cache's, which is then found damaged, removed, and measured again.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
