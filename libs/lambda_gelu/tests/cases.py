"""Which cases of a test are run by the quick tests, and which by the slow ones alone."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*case: object) -> Any:
    return pytest.param(*case, marks=pytest.mark.slow)


def seeds(quick: int, every: int) -> list[Any]:
    """Of random networks: the first few are quick, and `every` one is slow or quick."""
    return [seed if seed < quick else slow(seed) for seed in range(every)]
