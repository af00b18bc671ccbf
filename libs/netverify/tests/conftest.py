"""One thread for each test process, and those that tests start; and no clock for drawn examples."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Where CI is set, Hypothesis takes a profile of its own, which asks no clock either.
if "CI" not in os.environ:
    settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("desk")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
