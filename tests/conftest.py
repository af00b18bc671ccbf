"""Real networks for the tests: trained once a session, on the real data, with small budgets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from evalsuite.contract import Bench, Data, Network
from evalsuite.plugins import load
from evalsuite.run.making import make_bench, make_network
from evalsuite.variants import standing
from evalsuite.workloads import Workload

MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@cache
def _workload(name: str, epochs: int) -> tuple[Workload, Data]:
    workload: Workload = load("workloads", name).target(epochs=epochs)
    return workload, workload.data()


@cache
def _network(workload_name: str, variant: str, seed: int, epochs: int) -> Network:
    workload, data = _workload(workload_name, epochs)
    name = f"{workload_name}/{variant}/{seed}"
    return make_network(workload, data, standing(variant), seed, name=name)[0]


@pytest.fixture(scope="session")
def network() -> MakeNetwork:
    """network("digits-mlp", "annealed", seed=0, epochs=10): a trained Network, made once."""

    def make(workload: str, variant: str, seed: int = 0, epochs: int = 10) -> Network:
        return _network(workload, variant, seed, epochs)

    return make


@pytest.fixture
def bench(tmp_path: Path) -> MakeBench:
    """bench("digits-mlp"): its Bench, with an empty folder."""

    def make(workload: str, seed: int = 0, epochs: int = 10, time_limit: float = 60.0) -> Bench:
        made, data = _workload(workload, epochs)
        return make_bench(made, data, seed=seed, folder=tmp_path / "artefacts", time_limit=time_limit)

    return make


@pytest.fixture(scope="session")
def demo_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a third party's package, tests/plugin_demo, is really installed into."""
    site = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", site, Path(__file__).parent / "plugin_demo"], check=True, capture_output=True)
    return site
