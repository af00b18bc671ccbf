"""`python -m benchmarks.size` counts what a reader meets."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.size import Size, main, rooms_of, size_of

DENSE = '''"""Of a module."""
def double(x, each):  # twice
    found = [x, 2 * x]  # fmt: skip
    return found
class Part: "Those of a class."
'''


def test_tokens_lines_comments_and_names_of_a_file() -> None:
    size = size_of(DENSE)
    assert size.tokens == 24
    assert size.code_lines == 5
    assert (size.comments, size.unformatted) == (2, 1)
    assert (size.bindings, size.empty_names) == (3, 3)
    assert size.weak_docstrings == 2
    assert size.tokens_a_line == 24 / 5
    assert size + Size() == size
    assert (size + size).classes == {"Part": 2}


def test_rooms_are_folders_of_the_source_and_libraries_leave_their_tests_out(
    tmp_path: Path,
) -> None:
    for name in (
        "evalsuite/run/a.py",
        "evalsuite/run/deep/b.py",
        "evalsuite/cli.py",
        "libs/net/net/c.py",
        "libs/net/tests/d.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one = 1\n")
    rooms = rooms_of(tmp_path)
    assert {room: size.files for room, size in rooms.items()} == {
        "libs/net": 1,
        "evalsuite": 1,
        "evalsuite/run": 2,
    }


def test_a_folder_without_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=str(tmp_path)):
        main(tmp_path)
