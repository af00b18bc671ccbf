"""A folder of images: CLASS/*.png, the same below train and test, or files that a .csv gives targets to."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from evalsuite.own.data.images import SUFFIXES, Files, domain_of, pictures
from evalsuite.own.data.raw import Part, Raw, part_named
from evalsuite.own.data.source import Source
from evalsuite.own.data.tables import column, read_csv, targets_in
from evalsuite.references import OwnError

_FILES = ("file", "file_name", "filename", "path", "image", "name", "id")
Found = tuple[list[str], list[Any]]  # files relative to the folder, and their targets


def has_images(folder: Path) -> bool:
    """Whether an image lies in the folder, or up to two folders below."""
    return any(_is_image(name) for _, _, names in _walk(folder, 2) for name in names)


def read_folder(source: Source) -> Raw:
    """The images below the folder, with the names of their folders, or what a table says, as targets.

    Raises:
        OwnError: there are none, a class has none, or the table does not fit them.
    """
    folder = source.place
    below = _folders(folder)
    parts = {part_named(each): each for each in below if part_named(each)}
    if parts and len(parts) < len(below):
        others = ", ".join(each for each in below if not part_named(each))
        raise OwnError(f"{source.path}: {others} beside {', '.join(parts.values())}; keep the parts' folders alone")
    found = {name: _part(folder, each, source) for name, each in parts.items()} or {"train": _part(folder, "", source)}
    named = {name: (Files(folder, files), partial(_where, folder, files)) for name, (files, _) in found.items()}
    images = pictures(named, source, source.path)
    made = {
        name: Part(images[name], targets or None, named[name][1], images[name].identities())
        for name, (_, targets) in found.items()
    }
    return Raw(made, domain_of(source), said=source.path)


def _where(folder: Path, files: list[str], index: int) -> str:
    return str(folder if index < 0 else folder / files[index])


def _part(folder: Path, inside: str, source: Source) -> Found:
    here = folder / inside
    tables = sorted(each.name for each in here.glob("*.csv"))
    loose = [name for name in _names(here) if _is_image(name)]
    classes = _folders(here)
    if tables and (loose or classes):
        return _told_by(here / tables[0], folder, inside, source)
    if classes:
        files: list[str] = []
        targets: list[Any] = []
        for each in classes:
            names = [name for name in _names(here / each) if _is_image(name)]
            if not names:
                raise OwnError(f"{here / each}: no image in it; put some there, or remove the folder")
            files += [str(Path(inside) / each / name) for name in names]
            targets += [each] * len(names)
        return files, targets
    if not loose:
        raise OwnError(f"{here}: no image in it; known are {', '.join(SUFFIXES)}")
    return [str(Path(inside) / name) for name in loose], []


def _told_by(table: Path, folder: Path, inside: str, source: Source) -> Found:
    found = read_csv(table)
    name = next((each for each in _FILES if each in found.columns), "")
    if not name:
        raise OwnError(f"{table}: no column of file names; call it 'file' (there are {', '.join(found.columns)})")
    files = [str(Path(inside) / str(each)) for each in column(found, name)]
    missing = next((i for i, each in enumerate(files) if not (folder / each).is_file()), None)
    if missing is not None:
        raise OwnError(f"{found.where(missing)}: there is no file {folder / files[missing]}; give it with its ending")
    targets = targets_in(found, source if source.target else replace(source, target=_only(found.columns, name)))
    return files, list(targets or [])


def _only(columns: Any, name: str) -> tuple[str, ...]:
    """The one column besides the files' names, if it is one."""
    others = [each for each in columns if each != name]
    return (others[0],) if len(others) == 1 else ()


def _names(folder: Path) -> list[str]:
    return sorted(each.name for each in os.scandir(folder) if each.is_file() and not each.name.startswith("."))


def _folders(folder: Path) -> list[str]:
    return sorted(each.name for each in os.scandir(folder) if each.is_dir() and not each.name.startswith((".", "__")))


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _walk(folder: Path, depth: int) -> Any:
    yield folder, [], _names(folder)
    if depth:
        for each in _folders(folder):
            yield from _walk(folder / each, depth - 1)
