"""The hook that refuses a commit by its first line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[1] / ".ci" / "subject"


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        ("Inline helpers that are called once\n\nEach had one caller.\n", ""),
        ("x" * 72, ""),
        ("x" * 73, "has 73 characters, of at most 72: xxx"),
        ("# comments of git\nA subject behind them\n", ""),
        ("\nA body alone\n", "is empty"),
        ("", "is empty"),
    ],
)
def test_a_long_or_empty_first_line_is_refused(message: str, refusal: str, tmp_path: Path) -> None:
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text(message)
    hook = subprocess.run([sys.executable, HOOK, path], capture_output=True, text=True, check=False)
    assert hook.returncode == bool(refusal)
    assert refusal in hook.stderr
