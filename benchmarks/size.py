"""`python -m benchmarks.size [ROOT]`: how large the source is, and how densely it is written,
without its tests.

It counts what a reader meets, not lines: NAME, OP, NUMBER and STRING tokens as Python's own
tokenizer gives them.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

COUNTED = frozenset({tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING})
SOURCE_FOLDERS = ("libs", "evalsuite", "pipelines")
# Names that say of nothing what it is.
EMPTY_NAMES = frozenset({"each", "found", "made", "told", "given", "own"})
# Docstrings that begin so have no subject and no verb.
WEAK_BEGINNINGS = ("Of ", "By ", "Those ", "The same ")


@dataclass(slots=True)
class Size:
    """The counts of some source files; two of them add up."""

    files: int = 0
    tokens: int = 0
    code_lines: int = 0
    comments: int = 0
    unformatted: int = 0
    bindings: int = 0
    empty_names: int = 0
    weak_docstrings: int = 0
    classes: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Size) -> Size:
        return Size(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def tokens_a_line(self) -> float:
        """Tokens on a line that holds any."""
        return self.tokens / max(self.code_lines, 1)

    @property
    def comment_share(self) -> float:
        """Lines with a comment over lines with code."""
        return self.comments / max(self.code_lines, 1)

    @property
    def empty_name_share(self) -> float:
        """Bindings whose name has at most two letters, or is one of `EMPTY_NAMES`."""
        return self.empty_names / max(self.bindings, 1)


def _bound_names(tree: ast.AST) -> Iterator[str]:
    """Every name that the source gives to a value: targets and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg) and node.arg not in {"self", "cls"}:
            yield node.arg


def _is_empty(name: str) -> bool:
    return name in EMPTY_NAMES or (len(name) <= 2 and name != "_")


def _docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def size_of(text: str) -> Size:
    """The counts of one file.

    >>> size_of("total = 1 + 2  # three").tokens
    5
    """
    tree = ast.parse(text)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    counted = [token for token in tokens if token.type in COUNTED]
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    names = list(_bound_names(tree))
    return Size(
        files=1,
        tokens=len(counted),
        code_lines=len({token.start[0] for token in counted}),
        comments=len(comments),
        unformatted=sum("fmt: skip" in token.string for token in comments),
        bindings=len(names),
        empty_names=sum(map(_is_empty, names)),
        weak_docstrings=sum(
            docstring.startswith(WEAK_BEGINNINGS) for docstring in _docstrings(tree)
        ),
        classes=Counter(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)),
    )


def rooms_of(root: Path) -> dict[str, Size]:
    """The sizes of a checkout's rooms: each folder below one of `SOURCE_FOLDERS`, and the
    modules beside them.
    """
    rooms: dict[str, Size] = {}
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).parts
            if folder == "libs" and "tests" in parts:
                continue
            room = "/".join(parts[: min(2, len(parts) - 1)])
            rooms[room] = rooms.get(room, Size()) + size_of(path.read_text())
    return rooms


def main(root: Path) -> None:
    """Print a line for each room, and the whole."""
    rooms = rooms_of(root)
    if not rooms:
        raise SystemExit(
            f"{root} holds no {', '.join(SOURCE_FOLDERS)}: name the root of a checkout"
        )
    whole = sum(rooms.values(), Size())
    print(
        f"{'room':32}{'files':>6}{'tokens':>9}{'a line':>8}{'comments':>10}"
        f"{'empty names':>13}{'fmt: skip':>11}"
    )
    for room, size in [*rooms.items(), ("the whole", whole)]:
        print(
            f"{room:32}{size.files:6}{size.tokens:9,}{size.tokens_a_line:8.1f}{size.comment_share:10.1%}"
            f"{size.empty_name_share:13.1%}{size.unformatted:11}"
        )
    twice = sum(count > 1 for count in whole.classes.values())
    print(
        f"docstrings that begin with {' '.join(map(str.strip, WEAK_BEGINNINGS))}:"
        f" {whole.weak_docstrings}"
    )
    print(f"class names that stand in two or more places: {twice}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
