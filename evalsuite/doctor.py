"""The doctor: what is installed, what is missing, and the cure."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.plugins import GROUPS, cure_of, load_all, options_of

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_ROOM_MIB = 500
_OF_DEVELOPERS = ("dev", "docs")
_USES = {
    "fast": "a faster λ-GELU",
    "sql": "evalsuite query",
    "lightning": "Lightning modules",
    "transformers": "Hugging Face models",
    "timm": "timm models",
    "peers": "python -m benchmarks.peers",
    "dask": "--executor dask",
    "slurm": "--executor slurm",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    Args:
        name: of it.
        ok: whether all is well with it.
        finding: what was found.
        cure: what to do where it is not ok.
        optional: whether evalsuite works without it, and the finding says what is left out.
    """

    name: str
    ok: bool
    finding: str
    cure: str = ""
    optional: bool = False

    @property
    def word(self) -> str:
        """ "ok", "MISSING", or "absent" of what is optional."""
        return "ok" if self.ok else "absent" if self.optional else "MISSING"


def examine(cache: Path) -> Iterator[Check]:
    """Every check, in the order of what depends on what."""
    python_ok = sys.version_info >= (3, 10)
    yield Check("python", python_ok, platform.python_version(), "install Python 3.10 or later")
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    yield Check("cores", True, str(cores))
    yield from _libraries()
    yield from _extras()
    yield from _plugins()
    yield _cache(cache)


def _libraries() -> Iterator[Check]:
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in requires("evalsuite") or [] if "extra ==" not in text]
    for requirement in sorted(wanted, key=lambda each: each.name.lower()):
        yield _installed(requirement)
    yield _installed(Requirement("auto-LiRPA"), "without it alpha-CROWN is left out")


def _extras() -> Iterator[Check]:
    """List the distributions that the extras of evalsuite bring, but for those of its developers;
    extras that name other extras are these.
    """
    from packaging.requirements import Requirement

    for text in requires("evalsuite") or []:
        requirement, found = Requirement(text), re.search(r"extra == ['\"](\w+)['\"]", text)
        if found and found[1] not in _OF_DEVELOPERS and requirement.name.lower() != "evalsuite":
            yield _installed(requirement, f"for {_USES.get(found[1], found[1])}: extra {found[1]}")


def _installed(requirement: Requirement, use: str = "") -> Check:
    """Whether a distribution is here in a version that will do; `use` says what it is for where
    it is optional.
    """
    optional = bool(use)
    needed = f"{requirement.name}{requirement.specifier}"
    cure = cure_of(requirement.name if requirement.name.lower() == "auto-lirpa" else needed)
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        finding = f"not installed ({use})" if use else "not installed"
        return Check(requirement.name, False, finding, cure, optional)
    fits = requirement.specifier.contains(found, prereleases=True)
    return Check(
        requirement.name,
        fits,
        found if fits else f"{found}, needed {requirement.specifier}",
        cure,
        optional,
    )


def _plugins() -> Iterator[Check]:
    for group in GROUPS:
        for plugin in load_all(group):
            name = f"{group.removesuffix('s')} {plugin.name}"
            cure = f"reinstall or remove {plugin.origin}"
            finding = (
                plugin.error
                or f"{plugin.origin} {plugin.version}{_absent_data(group, plugin.target)}"
            )
            yield Check(name, not plugin.error, finding, cure)


def _absent_data(group: str, target: Any) -> str:
    """Why a workload's data is not at hand: some must be fetched, and not everyone needs them."""
    if group != "workloads":
        return ""
    if any(default == "required" for _, _, default in options_of(target)):
        return ""  # its data are named in a recipe
    try:
        target().fingerprint()
    # a plugin may raise anything; a library that it needs may be missing
    except (Exception, SystemExit) as error:
        return f", without its data: {' '.join(str(error).split()) or type(error).__name__}"
    return ""


def _cache(folder: Path) -> Check:
    parent = next(each for each in (folder, *folder.parents) if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        return Check(
            "cache",
            False,
            f"{folder} is not a folder that can be written",
            "set EVALSUITE_CACHE to a folder of yours",
        )
    free = shutil.disk_usage(parent).free / 2**20
    return Check(
        "cache", free > _ROOM_MIB, f"{folder}, {free / 1024:.1f} GiB free", "make room on that disk"
    )
