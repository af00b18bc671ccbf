"""The doctor: what is installed, what is missing, and the cure."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from evalsuite.plugins import GROUPS, load_all, options_of

_ROOM_MIB = 500


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at; `cure` says what to do where it is not ok."""

    name: str
    ok: bool
    finding: str
    cure: str = ""


def examine(cache: Path) -> Iterator[Check]:
    """Every check, in the order of what depends on what."""
    python_ok = sys.version_info >= (3, 10)
    yield Check("python", python_ok, platform.python_version(), "install Python 3.10 or later")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("cores", True, str(cores))
    yield from _libraries()
    yield from _plugins()
    yield _cache(cache)


def _libraries() -> Iterator[Check]:
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in requires("evalsuite") or [] if "extra ==" not in text]
    for requirement in sorted([*wanted, Requirement("auto-LiRPA")], key=lambda each: each.name.lower()):
        cure = f'pip install "{requirement}"'
        if requirement.name == "auto-LiRPA":
            cure = "pip install --no-deps auto-LiRPA==0.3"
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield Check(requirement.name, False, "not installed", cure)
            continue
        fits = requirement.specifier.contains(found, prereleases=True)
        yield Check(requirement.name, fits, found if fits else f"{found}, needed {requirement.specifier}", cure)


def _plugins() -> Iterator[Check]:
    for group in GROUPS:
        for plugin in load_all(group):
            name = f"{group.removesuffix('s')} {plugin.name}"
            cure = f"reinstall or remove {plugin.origin}"
            finding = plugin.error or f"{plugin.origin} {plugin.version}{_absent_data(group, plugin.target)}"
            yield Check(name, not plugin.error, finding, cure)


def _absent_data(group: str, target: Any) -> str:
    """Why a workload's data is not at hand: some must be fetched, and not everyone needs them."""
    if group != "workloads":
        return ""
    if any(default == "required" for _, _, default in options_of(target)):
        return ""  # its data are named in a recipe
    try:
        target().fingerprint()
    except OSError as error:
        return f", without its data: {error}"
    return ""


def _cache(folder: Path) -> Check:
    parent = next(each for each in (folder, *folder.parents) if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        return Check(
            "cache", False, f"{folder} is not a folder that can be written", "set EVALSUITE_CACHE to a folder of yours"
        )
    free = shutil.disk_usage(parent).free / 2**20
    return Check("cache", free > _ROOM_MIB, f"{folder}, {free / 1024:.1f} GiB free", "make room on that disk")
