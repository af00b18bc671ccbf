"""Real networks for the tests: trained once a session, on the real data, with small budgets."""

from __future__ import annotations

import copy
import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

# The process that hands out the tests reads this file too, and the others begin after it: it
# imports nothing heavy.
if TYPE_CHECKING:
    from workshop import Workshop

    from evalsuite.contract import Bench, Data, Network
    from evalsuite.workloads import Workload

MakeNetwork = Callable[..., "Network"]
MakeBench = Callable[..., "Bench"]
_LONG = 1000.0  # seconds that a test of several minutes may take
# Where CI is set, Hypothesis takes a profile of its own, which asks no clock either.
if "CI" not in os.environ:
    settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("desk")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that at the end no process works at them while the other has nothing
    left to do.
    """

    def limit(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return float(marker.args[0]) if marker is not None and marker.args else 0.0

    items.sort(key=lambda item: -limit(item) if limit(item) >= _LONG else 0.0)
    # What libraries keep is of a million objects: looking through it for garbage took a fifteenth
    # of the tests' time.
    gc.set_threshold(5000, 20, 100)


def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest looks through all objects three times before it ends


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start, too
    # Networks of the tests need not be trained to their end.
    os.environ["EVALSUITE_SEARCH_SECONDS"] = "1"
    # Tests run beside others: what a clock says is no matter of theirs.
    os.environ["EVALSUITE_NOISY_TIMES"] = "brief"


@pytest.fixture
def by_hand() -> Iterator[None]:
    """Weights are drawn from the seed 0 and written by hand, without gradients."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        yield


@cache
def _data(name: str) -> Data:
    from evalsuite.plugins import load

    try:
        return load("workloads", name).target().data()  # type: ignore[no-any-return]
    # data that no package brings, on a machine that has not got them
    except FileNotFoundError as error:
        pytest.skip(str(error))


def _workload(name: str, epochs: int) -> tuple[Workload, Data]:
    from evalsuite.plugins import load

    workload: Workload = load("workloads", name).target(epochs=epochs)
    return workload, _data(name)


def _trained(
    workload_name: str, variant: str, seed: int, epochs: int, networks: MakeNetwork
) -> Network:
    from evalsuite.run.making import make_network
    from evalsuite.variants import standing

    workload, data = _workload(workload_name, epochs)
    treatment = standing(variant)
    base = networks(workload_name, treatment.base, seed, epochs).module if treatment.base else None
    name = f"{workload_name}/{variant}/{seed}"
    return make_network(workload, data, treatment, seed, name=name, base=copy.deepcopy(base))[0]


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> MakeNetwork:
    """network("digits-mlp", "annealed", seed=0, epochs=10): a trained Network, made once, by one
    process for all.
    """
    import torch

    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "networks"
    folder.mkdir(exist_ok=True)

    @cache
    def shared(workload: str, variant: str, seed: int, epochs: int) -> Network:
        path = folder / f"{workload}-{variant}-{seed}-{epochs}.pt"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                partial = path.with_suffix(".partial")
                torch.save(_trained(workload, variant, seed, epochs, shared), partial)
                partial.rename(path)
            made: Network = torch.load(path, weights_only=False)
            return made

    def make(workload: str, variant: str, seed: int = 0, epochs: int = 10) -> Network:
        return shared(workload, variant, seed, epochs)

    return make


@pytest.fixture
def bench(tmp_path: Path) -> MakeBench:
    """bench("digits-mlp"): its Bench, with an empty folder."""

    def make(workload: str, seed: int = 0, epochs: int = 10, time_limit: float = 60.0) -> Bench:
        from evalsuite.run.making import make_bench

        made, data = _workload(workload, epochs)
        return make_bench(
            made, data, seed=seed, folder=tmp_path / "artefacts", time_limit=time_limit
        )

    return make


@pytest.fixture(scope="session")
def demo_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a third party's package, tests/plugin_demo, is really installed into."""
    site = tmp_path_factory.mktemp("site")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run(
        [*install, "--target", site, Path(__file__).parent / "plugin_demo"],
        check=True,
        capture_output=True,
    )
    return site


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """A folder with a recipe, a cache and a run folder, and the command line to use on them."""
    from workshop import TROUBLE, Workshop

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(TROUBLE)
    return Workshop(tmp_path)
