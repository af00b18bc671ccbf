"""The source that a job runs: what a cached result depends on besides options, data and library
versions.

Before a job runs, `closure` finds by their import statements the modules that it can reach: those
of evalsuite, of the plugins concerned, and all others outside the standard library and
site-packages. Of installed distributions those count, by their versions, that training and stages
declare. What no import statement names, `evalsuite.reading` notes.
"""

from __future__ import annotations

import ast
import hashlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from evalsuite.moved import NEW_PLACES

OURS = ("evalsuite", "pipelines", "lambda_gelu", "opgraph", "netverify", "intnet")
# folders that a user's file put on the path: only a process that has loaded it finds them
ADDED: set[Path] = set()


@cache
def digest(*modules: str) -> str:
    """The SHA-256 of the source that importing and calling these modules may run, and of the Python
    version.

    A declared version alone would let a changed verifier answer with its old verdicts. It is taken
    once in a process, which goes on running what it has loaded: see `edited`.
    """
    whole = hashlib.sha256(f"python {sys.version_info.major}.{sys.version_info.minor}".encode())
    for name, file in sorted(closure(*modules).items()):
        whole.update(f"{name}:{content(file)}".encode())
    return whole.hexdigest()


def edited(*modules: str) -> bool:
    """Whether that source is another now than when its digest was taken."""
    return digest.__wrapped__(*modules) != digest(*modules)


@cache
def closure(*modules: str) -> dict[str, Path]:
    """The modules reached from these by `import` statements anywhere in their source, with their
    files.

    Statements for type checkers alone (`if TYPE_CHECKING:`) are not followed. A public name that a
    package loads on first use leads to its module, as the package's __init__.pyi declares. A module
    whose name is only known when it is imported is not found here, see `evalsuite.reading`.
    """
    tops = {*OURS, *(name.partition(".")[0] for name in modules)}
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        file = None if name in found else source_file(name)
        if file is not None and (name.partition(".")[0] in tops or not is_installed(file)):
            found[name] = file
            if _lazy(name):  # what its names lead to is in the stub
                found[f"{name} by name"] = file.with_suffix(".pyi")
            waiting += _imported(name, file)
    return found


@cache
def is_installed(file: Path) -> bool:
    """Whether a file belongs to Python or to an installed distribution, whose version tells what
    it holds.
    """
    packages = {"site-packages", "dist-packages"}
    return not packages.isdisjoint(file.parts) or any(
        file.is_relative_to(place) for place in _places()
    )


@cache
def _places() -> tuple[Path, ...]:
    named = [
        sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    ]
    packages = [*named, *site.getsitepackages(), site.getusersitepackages()]
    return tuple({Path(package).resolve() for package in packages})


@cache
def source_file(name: str) -> Path | None:
    """The source of a module, and None for one that has none or is nowhere; its packages are not
    imported.
    """
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
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).resolve()


@cache
def _imported(name: str, file: Path) -> tuple[str, ...]:
    """The full names of what a module imports, its own packages included: importing it runs them
    first.
    """
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    names = {name.rpartition(".")[0]} if "." in name else set()
    try:
        tree = ast.parse(file.read_bytes(), file)
    # of another Python, say; it counts, and imports nothing here
    except (SyntaxError, ValueError, RecursionError):
        tree = ast.Module([], [])
    for node in _statements(tree):
        # `import a.b`: the module, and whatever its package loads on first use.
        if isinstance(node, ast.Import):  # then any name of what it binds may be used
            bound = [
                each.name if each.asname else each.name.partition(".")[0] for each in node.names
            ]
            names.update(each.name for each in node.names)
            names.update(home for package in bound for home in _behind(package, "*"))
            continue
        # `from x import y`: leading dots count from the package upwards; y may be a module
        # itself, or a name that the package loads lazily.
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        names.update({source}, *(_behind(source, alias.name) for alias in node.names))
    return tuple(sorted({with_parent for name in names for with_parent in _with_parents(name)}))


def _statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    # where statements stand; expressions hold none
    blocks = ["body", "orelse", "finalbody", "handlers", "cases"]
    if isinstance(node, ast.If) and _is_for_type_checkers(node.test):
        blocks = ["orelse"]
    inner = [getattr(node, name, []) for name in blocks]
    for child in (each for block in inner for each in block):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        else:
            yield from _statements(child)


def _is_for_type_checkers(test: ast.expr) -> bool:
    # most tests are comparisons: to write them out takes time
    named = isinstance(test, (ast.Name, ast.Attribute))
    return named and ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@cache
def _behind(source: str, name: str) -> frozenset[str]:
    """The modules that `from source import name` leads to besides `source`: a submodule, and the
    homes of lazy names, of which one may be a package that loads the name lazily in turn.
    """
    homes = {(lazy, home) for lazy, home in _lazy(source).items() if name in (lazy, "*")}
    inner = (_behind(home, lazy) for lazy, home in homes if home != source)
    return frozenset({f"{source}.{name}", *(home for _, home in homes)}.union(*inner))


@cache
def _lazy(package: str) -> Mapping[str, str]:
    """The modules of the names that a package loads on first use, as its __init__.pyi has them;
    of evalsuite also those of the names that have moved.
    """
    file = source_file(package)
    if (
        file is None
        or file.name != "__init__.py"
        or (package.partition(".")[0] not in OURS and is_installed(file))
    ):
        return {}
    stub = file.with_suffix(".pyi")
    nodes = ast.parse(stub.read_bytes(), stub).body if stub.is_file() else []
    homes = {
        alias.name: f"{package}.{node.module}" if node.level else node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return NEW_PLACES | homes if package == "evalsuite" else homes


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))


@cache
def _content_of(file: Path, _stamp: tuple[int, int]) -> str:
    whole = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(1 << 20):
            whole.update(part)
    return whole.hexdigest()


def content(file: Path) -> str:
    """The digest of a file, read again only where its size or time of change is another."""
    return _content_of(file, stamp(file))


def stamp(file: Path) -> tuple[int, int]:
    """Stamp a file with what tells cheaply that it was changed."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def default_folder() -> Path:
    """$EVALSUITE_CACHE, else evalsuite in the user's cache folder: where finished jobs are kept."""
    if named := os.environ.get("EVALSUITE_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evalsuite"
