"""A workshop for tests that run recipes."""

from __future__ import annotations

from pathlib import Path

import pytest
from workshop import TROUBLE, Workshop


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(TROUBLE)
    return Workshop(tmp_path)
