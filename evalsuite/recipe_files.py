"""The files that a recipe or a model's function names: a relative path is one in that file's
folder, or in the present one, and never both.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from evalsuite.references import declared, is_reference
from opgraph.errors import OwnError

Place = tuple[str | int, ...]

_KEYS = ("path", "model", "data", "weights", "tokenizer", "file", "folder", "data_home", "depends")
_SECTIONS = ("workloads", "variants", "steps")
_LIBRARY = "hf:"


def declared_options(reference: str, without: Collection[str] = ()) -> dict[str, Any]:
    """The options that @evalsuite.workload declared a function with, relative paths of which are
    looked for beside the function's file too, but for those that are given otherwise; none where
    it did not declare any.

    Raises:
        OwnError: see `resolve`; or a path is in both folders.
    """
    options = copy.deepcopy(declared(reference))
    options = {name: value for name, value in options.items() if name not in without}
    file = Path(reference.rpartition(":")[0]).expanduser()
    if file.suffix == ".py":
        _, problems = rooted({"workloads": [options]}, file.parent, f"the folder of {file.name}")
        for place, said in problems:
            raise OwnError(f"{'.'.join(map(str, place[2:]))}: {said}")
    return options


def rooted(
    tree: Any, folder: Path, whose: str = "the recipe's folder"
) -> tuple[bool, list[tuple[Place, str]]]:
    """Write into a recipe's tree where the files are that lie in the recipe's folder alone, as
    absolute paths.

    Args:
        tree: the recipe's, changed in place.
        folder: the recipe's.
        whose: what it is called in messages.

    Returns:
        Whether something was changed; and each place of a path that is in both folders, with what
        is wrong.
    """
    changed, problems = False, list[tuple[Place, str]]()
    if not isinstance(tree, Mapping) or folder.resolve() == Path.cwd():
        return changed, problems
    # A relative path is looked for in both folders: the recipe's is written out where it is there
    # alone, and where two different files have the name, the user must say which.
    for section in _SECTIONS:
        for place, parent, key in _texts(tree.get(section), (section,), tree, section):
            prefix, path, suffix = _divided(parent[key], place)
            beside = folder / path
            if (
                not path
                or Path(path).expanduser().is_absolute()
                or path.startswith("~")
                or not _is_there(beside)
            ):
                continue
            if not _is_there(Path(path)):
                parent[key], changed = f"{prefix}{beside.resolve()}{suffix}", True
            elif not beside.samefile(path):
                cure = f"call the command in {folder}, or write an absolute path"
                said = f"{path!r} is in {whose} and, another one, in the present: {cure}"
                problems.append((place, said))
    return changed, problems


def _texts(
    node: Any, place: Place, parent: Any, key: str | int
) -> Iterator[tuple[Place, Any, Any]]:
    """Each text below a node, with its place, and what holds it under which key."""
    if isinstance(node, Mapping):
        for inner in node:
            yield from _texts(node[inner], (*place, inner), node, inner)
    elif isinstance(node, list):
        for index, inner in enumerate(node):
            yield from _texts(inner, (*place, index), node, index)
    elif isinstance(node, str):
        yield place, parent, key


def _divided(text: str, place: Place) -> tuple[str, str, str]:
    """A text as what stands before a path, the path, and what stands behind it; no path where
    none is meant.
    """
    file, colon, name = text.rpartition(":")
    if is_reference(text):
        return ("", file, colon + name) if file.endswith(".py") else (text, "", "")
    if text.startswith(_LIBRARY):
        return _LIBRARY, text.removeprefix(_LIBRARY), ""
    named = next((part for part in reversed(place) if isinstance(part, str)), "")
    return ("", text, "") if named in _KEYS else (text, "", "")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, and so no path
        return False
