"""A job reads more than import statements tell: modules by computed names, checkpoints,
configurations.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import safetensors

from evalsuite.sources import ADDED, OURS, content, is_installed, source_file, stamp

CHANGED = "changed while it was read"  # No digest: what is noted with it never counts as unchanged.
_SYSTEM = tuple(
    Path(each)
    for each in ("/proc", "/sys", "/dev", "/etc", "/lib", "/lib64", "/usr/lib", "/usr/share")
)
_METADATA = (".dist-info", ".egg-info")
_COMPILED = "__pycache__"  # of what is compiled into it, the source counts
_WRITING = os.O_WRONLY | os.O_RDWR


class Reading(AbstractContextManager["Reading"]):
    """Notes the modules and files that the code inside reads, with the digests of their contents.

    Python announces each file that it opens (sys.addaudithook), and safetensors is made to; another
    library that opens files by itself, as Arrow does, is not heard: name such files in an option,
    whose content enters the key. What belongs to the system, to installed distributions or to
    evalsuite is left out, and so is what the code has opened to write.

    Args:
        plugins: top-level packages of those who brought the code: files beside them are noted
            relative to them, so that another checkout of the same code is held against its own
            files.
        own: folders that the job is given; what is in them is known otherwise.
    """

    def __init__(self, plugins: Iterable[str], *own: Path) -> None:
        self._plugins = sorted(set(plugins))
        self._known = _with_separators([*_SYSTEM, *(path.resolve() for path in own)])
        self._opened: dict[str, tuple[int, int]] = {}
        self._written: set[str] = set()

    def __enter__(self) -> Reading:
        _listen()
        _LISTENING.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _LISTENING.remove(self)

    def hear(self, path: str, *, writes: bool) -> None:
        """Note that a file is opened, with its size and time; what is opened to write is left
        out of `digests`.
        """
        if writes:
            self._written.add(path)
        elif path not in self._opened:
            with suppress(OSError):
                self._opened[path] = stamp(Path(path))

    def digests(self) -> dict[str, str]:
        """The digests by "module NAME", "file PACKAGE:PATH", "file :PATH" of the present folder,
        or "file PATH".
        """
        # 1. Modules that import statements did not tell. A module counts by its source; of one
        # whose file is another, as a compiled one, the file counts below.
        loaded = _brought_in()
        modules = {name: file for name, file in loaded if source_file(name) == file}
        modules = {
            name: file for name, file in modules.items() if not any(map(file.is_relative_to, ADDED))
        }
        found = {
            f"module {name}": content(file)
            for name, file in modules.items()
            if self._counts(name, file)
        }
        known, compiled = (
            set(modules.values()),
            {str(file) for name, file in loaded if name not in modules},
        )
        # 2. Files that were opened, but for those that the job wrote itself.
        for path in sorted({*self._opened, *compiled} - self._written):
            with suppress(OSError, RuntimeError):  # it is gone, or a loop of links
                file = _brought(path)
                if file is not None and file not in known and self._counts("", file):
                    # A file that changed while the job ran may have been read in either state, so
                    # no digest speaks for it.
                    same = path not in self._opened or self._opened[path] == stamp(file)
                    found[f"file {self._place(file)}"] = content(file) if same else CHANGED
        return found

    def _counts(self, module: str, file: Path) -> bool:
        """Whether a file is the user's: neither ours nor the system's, the job's or compiled."""
        if module.partition(".")[0] in OURS:
            return False
        if file.suffix == ".pyc" or any(
            part == _COMPILED or part.endswith(_METADATA) for part in file.parts
        ):
            return False
        known = self._known + (_our_folders() if file.suffix == ".py" else ())
        return not f"{file}{os.sep}".startswith(known) and file.is_file()

    def _place(self, file: Path) -> str:
        for plugin in self._plugins:
            root = _root(plugin)
            if root is not None and file.is_relative_to(root):
                return f"{plugin}:{file.relative_to(root)}"
        here = Path.cwd()
        return f":{file.relative_to(here)}" if file.is_relative_to(here) else str(file)


def _with_separators(places: Iterable[Path]) -> tuple[str, ...]:
    """The paths as texts that end with a separator, so that `startswith` tells what lies in them:
    paths are slow to compare, and a process has hundreds of modules.
    """
    return tuple(f"{place}{os.sep}" for place in places)


@cache
def _our_folders() -> tuple[str, ...]:
    """The folders of the suite's own packages."""
    files = [source_file(name) for name in OURS]
    return _with_separators(file.parent for file in files if file is not None)


def unchanged(read: Mapping[str, str]) -> bool:
    """Whether all that `Reading` noted has the contents of then."""
    return all(_now(name) == expected for name, expected in read.items())


def _now(name: str) -> str | None:
    kind, _, what = name.partition(" ")
    if kind == "module":
        file = source_file(what)
    elif what.startswith("/"):
        file = Path(what)
    else:
        plugin, _, relative = what.partition(":")
        root = _root(plugin) if plugin else Path.cwd()
        file = None if root is None else root / relative
    try:
        return content(file) if file is not None else None
    except OSError:
        return None


def _root(package: str) -> Path | None:
    """The folder that holds a top-level package or module."""
    file = source_file(package)
    if file is None:
        return None
    return file.parent.parent if file.name == "__init__.py" else file.parent


def look() -> None:
    """Look at what is loaded, and begin to listen: processes that are forked from this one then
    need not.
    """
    _listen()
    _LOOKED[:] = _brought_in()
    for name, _ in _LOOKED:
        source_file(name)
    _SEEN[0] = next(reversed(sys.modules))


def _brought_in() -> list[tuple[str, Path]]:
    """The modules that are loaded, with their files; those that are installed are left out.

    Those before the last `look` are not touched again: for a job of tenths of a second, that would
    take long.
    """
    # in one step, so that no thread imports beside it
    names = list(takewhile(_SEEN[0].__ne__, reversed(sys.modules)))
    known = dict(_LOOKED)
    for name in reversed(names):
        path = getattr(sys.modules.get(name), "__file__", None)
        file = _home(path) if path and name not in ("__main__", "__mp_main__") else None
        if file is not None:
            known[name] = file
    return list(known.items())


@cache
def _home(module_file: str) -> Path | None:
    """Find the file of a loaded module as `_brought` does, and remember it as it was when first
    asked for: a link may lead elsewhere by now.
    """
    return _brought(module_file)


def _brought(path: str) -> Path | None:
    """A file without links; None for what is installed, which is most of what a process has
    loaded.
    """
    given = Path(path)
    if given.is_symlink():
        file = given.resolve()
        return None if is_installed(file) else file
    folder, installed = _folder(given.parent)
    return None if installed else folder / given.name


@cache
def _folder(given: Path) -> tuple[Path, bool]:
    """The folder without links, and whether what is in it is installed: a process has few
    folders of many files.
    """
    folder = given.resolve()
    return folder, is_installed(folder / "any.py")


_LISTENING: list[Reading] = []
_LOOKED: list[tuple[str, Path]] = []  # what `look` found
_SEEN = [""]  # the module that was loaded last before it
_INSTALLED: list[bool] = []


def _listen() -> None:
    if not _INSTALLED:  # once in a process: a hook cannot be removed
        sys.addaudithook(_hear)
        _announce_safetensors()
        _INSTALLED.append(True)


def _announce_safetensors() -> None:
    """Let safetensors, the usual format of checkpoints, announce the files that it opens itself."""
    opens = safetensors.safe_open
    if opens.__module__ == __name__:
        return

    def safe_open(filename: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        sys.audit("open", os.fspath(filename), "rb", 0)
        return opens(filename, *args, **kwargs)

    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names.get("safe_open") is opens:
            names["safe_open"] = safe_open


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open" or not _LISTENING or not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return
    _, mode, flags = arguments
    writes = (
        any(each in mode for each in "wax+")
        if isinstance(mode, str)
        else bool(int(str(flags or 0)) & _WRITING)
    )
    with suppress(ValueError, OSError):
        path = str(Path(os.fsdecode(arguments[0])).absolute())
        for each in _LISTENING:
            each.hear(path, writes=writes)
