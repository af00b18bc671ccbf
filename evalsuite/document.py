"""YAML as recipes use it: text, numbers, lists, and mappings whose keys are text; no tags, no
aliases without end.

Aliases multiply: ten lines can stand for a billion. So the events are looked at before anything is
built of them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

LONGEST = 16 << 20  # bytes of a file
_EXPANDED = 100_000  # nodes that aliases may add


class DocumentError(Exception):
    """A document that is not read; the text is for the user, line and column count from 1."""

    def __init__(self, text: str, line: int = 1, column: int = 1) -> None:
        super().__init__(text)
        self.line, self.column = line, column


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        DocumentError: it is none, or a pipe or device, which may have no end.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DocumentError("a pipe or a device, not a file")
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise DocumentError(f"has more than {LONGEST >> 20} MiB")
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DocumentError("not UTF-8 text; save it as UTF-8", line) from error
    except OSError as error:
        raise DocumentError(str(error.strerror)) from error


def read_tree(text: str) -> Any:
    """The document's tree, in which every node knows its place.

    Raises:
        DocumentError: it is not valid YAML, or none that a recipe uses.
    """
    try:
        _look(text)
        tree = YAML(typ="rt").load(text)
        _check_keys(tree)
    except DocumentError:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = (error.problem or error.context or "unreadable").split("\n")[0]
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise DocumentError(f"not valid YAML: {said}", *place) from error
    except RecursionError as error:
        raise DocumentError("not a recipe: nested too deeply") from error
    except Exception as error:  # ruamel.yaml's own, as its IndexError for 0x_
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DocumentError(f"not valid YAML: {said}") from error
    return tree


def written(tree: Any) -> str:
    """The text of a tree, with the comments of the text that it was read from."""
    text = io.StringIO()
    YAML(typ="rt").dump(tree, text)
    return text.getvalue()


def _look(text: str) -> None:
    """Refuse tags, nodes that contain themselves, and aliases that stand for more than a recipe
    can mean.
    """
    # no anchor, so no alias, and no tag: long lists need not be read twice
    if "&" not in text and "!" not in text:
        return
    sizes: dict[str, int] = {}  # of the nodes with anchors, aliases expanded
    opened: list[tuple[str | None, int]] = []
    total = 0
    for event in YAML(typ="rt").parse(io.StringIO(text)):
        kind, anchor = type(event).__name__, getattr(event, "anchor", None)
        place = (event.start_mark.line + 1, event.start_mark.column + 1)
        if getattr(event, "tag", None) is not None:
            raise DocumentError(
                f"a tag ({event.tag}): recipes have none; quote it if it is meant as text", *place
            )
        before = total
        # An alias counts as all that it stands for. Its anchor may be still open: then the node
        # contains itself.
        if kind == "AliasEvent":
            if anchor in (name for name, _ in opened):
                raise DocumentError(f"*{anchor} stands inside what it stands for", *place)
            total += sizes.get(str(anchor), 0)
            if total > _EXPANDED + len(text):
                raise DocumentError(
                    "aliases that expand to too much: write out what is meant", *place
                )
        elif kind == "ScalarEvent":
            total += 1
        # Beginnings of lists and mappings, remembered with the count before them, so that their
        # end knows their size.
        elif kind.endswith("StartEvent") and kind[0] in "MS" and kind != "StreamStartEvent":
            opened.append((anchor, total))
            total += 1
            continue
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            anchor, before = opened.pop()
        else:
            continue
        if anchor is not None and kind != "AliasEvent":
            sizes[anchor] = total - before


def _check_keys(tree: Any) -> None:
    """Every key is text: YAML makes others of `on:`, `3:` and `null:`."""
    waiting, seen = [tree], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            for key in node:
                if not isinstance(key, str):
                    line, column = node.lc.key(key)  # type: ignore[attr-defined]
                    raise DocumentError(
                        f"a key is text, and {key!r} is none: quote it", line + 1, column + 1
                    )
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def position(tree: Any, place: Sequence[str | int]) -> tuple[int, int]:
    """Line and column, from 1, of the node at that place, or of the last before it that there
    is.
    """
    node, found = tree, (0, 0)
    for part in place:
        try:
            found = node.lc.item(part) if isinstance(part, int) else node.lc.key(part)
            node = node[part]
        except (AttributeError, KeyError, IndexError, TypeError):
            break
    return found[0] + 1, found[1] + 1


def plain(node: Any) -> Any:
    """The tree without places: dictionaries, lists, text, numbers, truth values and None."""
    if isinstance(node, Mapping):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [plain(value) for value in node]
    if isinstance(node, bool) or node is None:
        return node
    if isinstance(node, (int, float)):
        return int(node) if isinstance(node, int) else float(node)
    return str(node).encode("utf-8", "replace").decode()  # half of a surrogate pair is no text
