"""The source that a job runs: what a cached result depends on besides options, data and library versions.

Before a job runs, `closure` finds by their import statements the modules that it can reach: those of evalsuite, of the
plugins concerned, and all others outside the standard library and site-packages. While it runs, `Reading` notes
the modules and files that no import statement names, such as a checkpoint. Installed distributions count by version.
"""

from __future__ import annotations

import ast
import hashlib
import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

OURS = ("evalsuite", "pipelines")


def digest(*modules: str) -> str:
    """The SHA-256 of the source that importing and calling these modules may run, and of the Python version.

    A declared version alone would let a changed verifier answer with its old verdicts.
    """
    whole = hashlib.sha256(f"python {sys.version_info.major}.{sys.version_info.minor}".encode())
    for name, file in sorted(closure(*modules).items()):
        whole.update(f"{name}:{content(file)}".encode())
    return whole.hexdigest()


@cache
def closure(*modules: str) -> dict[str, Path]:
    """The modules reached from these by `import` statements anywhere in their source, with their files.

    Statements for type checkers alone (`if TYPE_CHECKING:`) are not followed. A public name that a package loads on
    first use (`_MODULE_OF`, as evalsuite has it) leads to its module. A module whose name is only known when it is
    imported is not found here, see `Reading`.
    """
    tops = {*OURS, *(name.partition(".")[0] for name in modules)}
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        file = None if name in found else _file(name)
        if file is not None and (name.partition(".")[0] in tops or not is_installed(file)):
            found[name] = file
            waiting += _imported(name, file)
    return found


def is_installed(file: Path) -> bool:
    """Whether a file belongs to Python or to an installed distribution, whose version tells what it holds."""
    return any(file.is_relative_to(place) for place in _places())


@cache
def _places() -> tuple[Path, ...]:
    named = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    packages = [*named, *site.getsitepackages(), site.getusersitepackages()]
    return tuple({Path(each).resolve() for each in packages})


@cache
def _file(name: str) -> Path | None:
    """The source of a module, and None for one that has none or is nowhere; its packages are not imported."""
    first, *rest = name.split(".")
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        return None
    full = first
    for part in rest:
        places = spec.submodule_search_locations if spec is not None else None
        full = f"{full}.{part}"
        spec = PathFinder.find_spec(full, places) if places else None
    return _source(spec)


def _source(spec: ModuleSpec | None) -> Path | None:
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).resolve()


@cache
def _imported(name: str, file: Path) -> tuple[str, ...]:
    """The full names of what a module imports, its own packages included: importing it runs them first."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    names = {name.rpartition(".")[0]} if "." in name else set()
    for node in _statements(ast.parse(file.read_bytes(), file)):
        if isinstance(node, ast.Import):  # then any of its names may be used
            names.update(each for alias in node.names for each in (alias.name, *_lazy(alias.name).values()))
            continue
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        names.update({source}, *(_behind(source, alias.name) for alias in node.names))
    return tuple(sorted({each for name in names for each in _with_parents(name)}))


def _statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    blocks = ["body", "orelse", "finalbody", "handlers", "cases"]  # where statements stand; expressions hold none
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        blocks = ["orelse"]
    inner = [getattr(node, name, []) for name in blocks]
    for child in (each for block in inner for each in block):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        else:
            yield from _statements(child)


def _behind(source: str, name: str) -> set[str]:
    """The module that `from source import name` leads to besides `source`: a submodule, or the home of a lazy name."""
    home = _lazy(source).get(name)
    return {f"{source}.{name}", *([home] if home else [])}


def _lazy(package: str) -> Mapping[str, str]:
    found: Mapping[str, str] = getattr(sys.modules.get(package), "_MODULE_OF", {})
    return found


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))


class Reading(AbstractContextManager["Reading"]):
    """Notes what a job reads that no import statement told: modules by computed names, checkpoints, configurations.

    Python announces each file that it opens (sys.addaudithook); a library that opens files by itself, as safetensors
    does, is not heard: name such files in an option, whose content enters the key. What belongs to the system, to
    installed distributions or to evalsuite is left out, and so is what the job has written itself.
    """

    def __init__(self, *own: Path) -> None:
        self._own = [each.resolve() for each in own]
        self._opened: set[str] = set()
        self._started = time.time_ns()

    def __enter__(self) -> Reading:
        if not _LISTENING:
            sys.addaudithook(_hear)  # for good: it cannot be removed, but hears nothing without a listener
        _LISTENING.append(self._opened)
        return self

    def __exit__(self, *_: object) -> None:
        _LISTENING.remove(self._opened)

    def digests(self) -> dict[str, str]:
        """What was read, "module NAME" or "file PATH", and the digests of the contents."""
        modules = {
            name: Path(file).resolve()
            for name, module in list(sys.modules.items())
            if (file := getattr(module, "__file__", None)) and name not in ("__main__", "__mp_main__")
        }
        counted = {name: file for name, file in modules.items() if self._counts(name, file) and file == _file(name)}
        files = {Path(each).resolve() for each in self._opened} - set(modules.values())
        named = {f"module {name}": file for name, file in counted.items()}
        named |= {f"file {file}": file for file in files if self._counts("", file)}
        return {name: content(file) for name, file in sorted(named.items())}

    def _counts(self, module: str, file: Path) -> bool:
        if module.partition(".")[0] in OURS or is_installed(file) or not file.is_file() or "__pycache__" in file.parts:
            return False
        if any(file.is_relative_to(place) for place in (*_SYSTEM, *self._own)):
            return False
        return file.stat().st_mtime_ns < self._started


def unchanged(read: Mapping[str, str]) -> bool:
    """Whether all that `Reading` noted has the contents of then."""
    for name, expected in read.items():
        kind, _, what = name.partition(" ")
        file = _file(what) if kind == "module" else Path(what)
        if file is None or not file.is_file() or content(file) != expected:
            return False
    return True


_SYSTEM = tuple(Path(each) for each in ("/usr", "/etc", "/proc", "/sys", "/dev", "/run", "/lib", "/var"))
_LISTENING: list[set[str]] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _LISTENING and isinstance(arguments[0], (str, bytes, os.PathLike)):
        with suppress(ValueError, OSError):
            for each in _LISTENING:
                each.add(str(Path(os.fsdecode(arguments[0])).absolute()))


@cache
def _content_of(file: Path, _stamp: tuple[int, int]) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def content(file: Path) -> str:
    """The digest of a file, read again only where its size or time of change is another."""
    found = file.stat()
    return _content_of(file, (found.st_size, found.st_mtime_ns))
