"""Entry points are read of every distribution on the path, and anew only where another comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lambda_gelu import plugins


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    plugins._entries.cache_clear()
    plugins._holds_distributions.cache_clear()


def distribution(folder: Path, group: str) -> str:
    """A folder in which a distribution brings one entry point of the group."""
    metadata = folder / "brings-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brings\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\nsquare = squares:square\n")
    return str(folder)


def test_a_distribution_that_comes_on_the_path_is_found(tmp_path: Path) -> None:
    assert plugins.entries("lambda_gelu.test_group") == []
    sys.path.insert(0, distribution(tmp_path, "lambda_gelu.test_group"))
    assert [entry.name for entry in plugins.entries("lambda_gelu.test_group")] == ["square"]
    sys.path.remove(str(tmp_path))
    assert plugins.entries("lambda_gelu.test_group") == []


def test_a_folder_without_distributions_asks_for_nothing_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = plugins.entries("lambda_gelu.test_group")
    read: list[str] = []
    monkeypatch.setattr(plugins, "entry_points", lambda group: read.append(group) or [])
    (tmp_path / "my.py").write_text("")
    sys.path.insert(0, str(tmp_path))
    assert plugins.entries("lambda_gelu.test_group") is known
    assert read == []
    sys.path.insert(0, distribution(tmp_path / "installed", "lambda_gelu.test_group"))
    plugins.entries("lambda_gelu.test_group")
    assert read == ["lambda_gelu.test_group"]
