"""Models, functions, tensors and data sets that a script or a notebook has in memory: jobs read
them from a file that cloudpickle writes.

Jobs are processes of their own. To import the script that called `assess` there would run it again;
a function of a notebook's cell, a lambda and a module that is built already have no file at all.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.references import is_reference
from opgraph.errors import OwnError

if TYPE_CHECKING:
    from torch import nn

_FOLDER = "given"
_MAIN = "__main__"
_TEXT = '''"""`{name}` as a script had it in memory that called evalsuite.assess, by cloudpickle."""

import hashlib
import pickle
import sys
from pathlib import Path

sys.path += [each for each in {paths!r} if each not in sys.path]
_pickled = Path(__file__).with_suffix(".pickle").read_bytes()
if hashlib.sha256(_pickled).hexdigest() != "{digest}":
    raise ValueError(f"{{__file__}}: the pickle beside it is another; run assess again")
{name} = pickle.loads(_pickled)
'''


class Built:
    """Makes a network that is built already: a copy each time, since it is trained and changed."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self._module)


class Held:
    """Gives data that are in memory already."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __call__(self) -> Any:
        return self._data


def is_module(argument: Any) -> bool:
    """Whether a network is given that is built already."""
    from torch import nn

    return isinstance(argument, nn.Module)


def model_in_memory(model: Any) -> Callable[..., Any] | None:
    """Return a function that makes the model, where no file does: for a module, a lambda, a
    function of the running script or of a notebook's cell; None for what has a name in another
    file.
    """
    if is_module(model):
        return Built(model)
    model = _of_this_script(model) if isinstance(model, str) else model
    return model if callable(model) and not _is_in_a_file(model) else None


def data_in_memory(data: Any) -> Callable[[], Any] | None:
    """Return a function that gives the data, likewise: for tensors, arrays, data sets, loaders, and
    mappings and tuples of them; None for a path, a reference, and a mapping with a path.
    """
    if isinstance(data, Mapping) and isinstance(data.get("path"), str):
        return None
    if isinstance(data, str):
        function = _of_this_script(data)
        return function if callable(function) else None
    if inspect.isroutine(data) or inspect.isclass(data):
        return None if _is_in_a_file(data) else data
    return Held(data)


def write_in_memory(function: Callable[..., Any], name: str, folder: Path) -> str:
    """Write it into a run's folder; the reference by which jobs find it. Raises OwnError: it cannot
    be pickled, as an open file cannot.
    """
    # 1. Pickle it by value, with all that it refers to.
    try:
        import cloudpickle
    except ModuleNotFoundError as error:
        cure = "install cloudpickle, or define it by `def` in a file beside the script"
        raise OwnError(
            f"{name} is in memory alone, and jobs are other processes: {cure}"
        ) from error
    try:
        pickled: bytes = cloudpickle.dumps(function)
    except Exception as error:  # what a user's function refers to may be anything
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        cure = "define it by `def` in a file beside the script, and give `file.py:name`"
        raise OwnError(f"{name} cannot be sent to the jobs' processes ({said}): {cure}") from error
    # 2. A small module beside it unpickles it: so jobs name it by a reference as they name any
    # file, and its digest stands in the module's text.
    place = folder / _FOLDER
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.pickle").write_bytes(pickled)
    paths = [
        folder_on_path
        for folder_on_path in sys.path
        if folder_on_path
        and Path(folder_on_path).is_dir()
        and "site-packages" not in folder_on_path
    ]
    digest = hashlib.sha256(pickled).hexdigest()
    file = place / f"{name}.py"
    file.write_text(_TEXT.format(name=name, paths=paths, digest=digest), encoding="utf-8")
    # Python takes compiled code for that of a file of the same size and second: an older file's
    # would look for the older pickle.
    Path(cache_from_source(str(file))).unlink(missing_ok=True)
    here = Path.cwd()
    shown = file.resolve()
    return f"{shown.relative_to(here) if shown.is_relative_to(here) else shown}:{name}"


def name_of(function: Any) -> str:
    """Name a model in memory: by its function's name, or its module's class."""
    name = str(getattr(function, "__name__", type(function).__name__))
    kept = "".join(
        character if character.isalnum() or character == "_" else "" for character in name
    ).strip("_")
    return kept if kept.isidentifier() and kept != "lambda" else "model"


def _of_this_script(reference: str) -> Any:
    """Find the object that a reference to the running script names, which is in memory already;
    else None.
    """
    place, _, name = reference.rpartition(":")
    main = sys.modules.get(_MAIN)
    file = getattr(main, "__file__", None)
    if not is_reference(reference) or file is None or not place.endswith(".py"):
        return None
    same = Path(place).expanduser().resolve() == Path(file).resolve()
    return getattr(main, name, None) if same else None


def _is_in_a_file(function: Any) -> bool:
    """Whether jobs can import it by its name without running the script that called."""
    name = str(getattr(function, "__qualname__", ""))
    module = str(getattr(function, "__module__", _MAIN))
    try:
        file = inspect.getsourcefile(function)
    except TypeError:  # an object that is called has none
        return False
    return name.isidentifier() and module != _MAIN and file is not None and Path(file).is_file()
