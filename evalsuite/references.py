"""References to what a user wrote: `my.py:make_model`, or `package.module:name`. Naming one runs
that file.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from evalsuite.plugins import did_you_mean
from evalsuite.sources import ADDED, OURS, is_installed, source_file
from opgraph.errors import OwnError

DECLARED = "__evalsuite_workload__"  # What @evalsuite.workload writes on a function.
# Before a colon they say whose model is named: no module of that name is meant.
LIBRARIES = ("hf", "timm")


def is_reference(text: str) -> bool:
    """Whether the text has the form of a reference: a Python file or module, a colon, a name."""
    place, colon, name = text.rpartition(":")
    ours = place.endswith(".py") or (
        place not in LIBRARIES and all(part.isidentifier() for part in place.split("."))
    )
    return bool(colon) and name.isidentifier() and ours


def resolve(reference: str, *, what: str) -> Any:
    """Find the object that `reference` names.

    A file is imported once in a process, and again where its text has changed since, as in a
    notebook; its folder is on the path, so that it finds the modules beside it.

    Args:
        reference: `path/to/file.py:name`, relative to the present folder, or `package.module:name`.
        what: what it is to be, for messages, as "the model".

    Raises:
        OwnError: there is no such file, importing it raises, or it has no such name.
    """
    place, _, name = reference.rpartition(":")
    if not is_reference(reference):
        raise OwnError(f"{what}: {reference!r} names no function; write it as my.py:name")
    path = Path(place).expanduser()
    # 1. The module, from a file or by its name.
    if place.endswith(".py") and not path.is_file():
        beside = (
            [str(each) for each in path.parent.glob("*.py") if each.is_file()]
            if path.parent.is_dir()
            else []
        )
        raise OwnError(
            f"{what}: there is no file {place}{did_you_mean(place, beside) if beside else ''}"
        )
    if place.endswith(".py"):
        file = path.resolve()
        try:
            digest = sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise OwnError(f"{what}: {place}: cannot be read ({error.strerror})") from error
        module = _file_module(file, digest)
    else:
        module = _module(place, what)
    # 2. The name in it.
    if not hasattr(module, name):
        public = [
            variable
            for variable in vars(module)
            if not variable.startswith("_") and callable(getattr(module, variable))
        ]
        raise OwnError(f"{what}: {place} has no {name!r}{did_you_mean(name, public)}")
    return getattr(module, name)


def declared(reference: str) -> dict[str, Any]:
    """The options that @evalsuite.workload declared the function of that reference with; none where
    it did not. Raises OwnError: see `resolve`.
    """
    if not is_reference(reference):
        return {}
    found: dict[str, Any] = getattr(resolve(reference, what="the model"), DECLARED, {})
    return dict(found)


def blame(error: BaseException, what: str, reference: str) -> OwnError:
    """The error that a user's function raised, with the line of the user's file that it came
    from.
    """
    place = reference.rpartition(":")[0]
    file = (
        str(Path(place).resolve())
        if place.endswith(".py")
        else getattr(sys.modules.get(place), "__file__", "")
    )
    folder = str(Path(file or ".").parent)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if frame.filename == file] or [
        frame
        for frame in frames
        if frame.filename.startswith(folder) and "site-packages" not in frame.filename
    ]
    where = f"{_shown(theirs[-1].filename)}:{theirs[-1].lineno}" if theirs else reference
    said = " ".join(str(error).split())[:300]
    cure = f"; {fitting_torchvision()}" if said.startswith(WITHOUT_TORCHVISION) else ""
    raised = f"{type(error).__name__}{f': {said}' if said else ''}"
    return OwnError(f"{where}: {what} raises {raised}{cure}")


WITHOUT_TORCHVISION = "operator torchvision::"
"""How torch's error begins where the compiled operators of torchvision do not fit it."""


def fitting_torchvision() -> str:
    """How to install the torchvision that belongs to this torch: 0.15 to 2.0, 0.16 to 2.1, ..."""
    from torch import __version__

    major, minor = __version__.split(".")[:2]
    wanted = f'"torchvision==0.{int(minor) + 15}.*"' if major == "2" else "torchvision"
    return (
        f"it needs the torchvision of torch {__version__}: pip install {wanted}, from the index"
        " that torch is from"
    )


def line_of(error: BaseException) -> str:
    """The last line of a user's own file that the error came through, as "my.py:12: "; empty
    where there is none.
    """
    ours = [source_file(each) for each in OURS]
    frames = [
        each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).is_file()
    ]
    for frame in reversed(frames):
        file = Path(frame.filename).resolve()
        if not is_installed(file) and not any(
            file.is_relative_to(our.parent) for our in ours if our is not None
        ):
            return f"{_shown(frame.filename)}:{frame.lineno}: "
    return ""


def _module(name: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise OwnError(
                f"{what}: there is no module {name!r}; install it, or give a file as my.py:name"
            ) from error
        raise blame(error, f"importing {name}", f"{name}:x") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise blame(error, f"importing {name}", f"{name}:x") from error


@cache
def _file_module(file: Path, _digest: str) -> ModuleType:
    """The module of a file whose contents have that digest."""
    # A name of its own: two users' files called model.py are two modules, and neither hides an
    # installed one.
    name = f"{file.stem}_{sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Its folder is on the path, as for a script, so that it finds its neighbours.
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    ADDED.add(file.parent)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise OwnError(
            f"{_shown(error.filename or str(file))}:{error.lineno}: {error.msg}"
        ) from error
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        del sys.modules[name]
        raise blame(error, f"importing {_shown(str(file))}", f"{file}:x") from error
    return module


def _shown(file: str) -> str:
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
