"""The table of networks and stages says what the stages do."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType


@cache
def networks() -> ModuleType:
    """The script that writes the table."""
    import importlib.util
    from pathlib import Path

    path = Path(__file__).parent.parent / "docs" / "making" / "networks.py"
    spec = importlib.util.spec_from_file_location("networks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_every_network_and_stage_and_counts_its_cells() -> None:
    made = networks()
    text = made.PAGE.read_text(encoding="utf-8")
    found = made.rows(text)
    assert list(found) == list(made.NETWORKS.values())
    assert all(len(cells) == len(made.STAGES) for cells in found.values())
    words = (made.WORKS, made.PARTLY, made.NO)
    assert all(
        cell.startswith(tuple(f"{word}: " for word in words))
        for cells in found.values()
        for cell in cells
    )
    assert made.written(text, {}) == text


def without_numbers(cell: str) -> str:
    """Another processor rounds otherwise."""
    return re.sub(r"\d[\d.e+-]*", "#", cell)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["distilbert", "hand-written"])
def test_the_table_says_what_the_stages_do(name: str) -> None:
    made = networks()
    told = made.rows(made.PAGE.read_text(encoding="utf-8"))[made.NETWORKS[name]]
    assert [without_numbers(cell) for cell in made.row(name)] == [
        without_numbers(cell) for cell in told
    ]
