"""What the driver of a run does: planning, dealing with jobs that take no time, and finding that all is done."""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.idle import call, processor
from evalsuite.plan import jobs_of
from evalsuite.recipe import Recipe, parse_recipe, read_recipe
from evalsuite.results import Row, Status
from evalsuite.run.cache import Cache
from evalsuite.run.child import NETWORK, OUTCOME, Assignment, Found, read_outcome
from evalsuite.run.executor import Serial
from evalsuite.run.journal import Entry
from evalsuite.run.progress import Progress
from evalsuite.run.runner import run_recipe
from evalsuite.run.state import plan_run

Figure = tuple[str, float]
SAMPLE = Path(__file__).parents[1] / "reports" / "sample"
_TENTHS = 10


def _recipe_text(seeds: int) -> str:
    """Eight jobs a seed, of which no two have one key."""
    listed = ", ".join(map(str, range(seeds)))
    steps = ", ".join(f"{{use: accuracy, name: step-{each}, time_limit: {each}}}" for each in (1, 2, 3))
    return f"name: many\nworkloads: [digits-mlp]\nvariants: [gelu, relu]\nseeds: [{listed}]\nsteps: [{steps}]\n"


def planning(seeds: int = 12_500) -> Iterator[Figure]:
    """Reading a recipe of 100,000 jobs, and telling what would become of each."""
    text = _recipe_text(seeds)
    with tempfile.TemporaryDirectory() as folder:
        wall, begun = time.perf_counter(), time.process_time()
        recipe = parse_recipe(text)
        read = time.process_time() - begun
        planned = plan_run(recipe, Path(folder) / "out", Cache(Path(folder) / "cache"))
        whole, wall = time.process_time() - begun, time.perf_counter() - wall
    told = f"{len(planned):,} jobs, {read:.2f} of them to read the recipe ({wall:.1f} by the clock)"
    yield f"s of the processor to plan {told}", whole


_ROW = {
    "metric": "m", "setting": "", "sample": None, "value": 1.0, "unit": "count", "direction": "higher",
    "timing": False, "status": "ok", "verdict": "", "reason": "",
}  # fmt: skip


class _AtOnce(Serial):
    """Leaves what a job would leave, without doing it: `rows` of some jobs by their ids, and one row of the others."""

    def __init__(self, rows: Mapping[str, Sequence[dict[str, Any]]] = MappingProxyType({})) -> None:
        super().__init__()
        self._rows = rows

    def start(self, assignment: Assignment) -> None:
        labels = {**assignment.job.coordinates, "key": assignment.key}
        told = self._rows.get(assignment.job.id, [_ROW])
        found = Found(Status.OK, tuple(Row(**labels, **each) for each in told), conditions=assignment.conditions)
        if assignment.job.step is None:
            found = replace(found, network=f"network of {assignment.job.id}")
            (assignment.scratch / NETWORK).mkdir()
            (assignment.scratch / NETWORK / "file").write_text(found.network)
        (assignment.scratch / OUTCOME).write_text(json.dumps(asdict(found)))
        self._done.append((assignment, read_outcome(assignment.scratch)))


class _Clocks(Progress):
    """Notes the time, and the processor's, at each tenth of the jobs."""

    def __init__(self) -> None:
        self.at: list[tuple[float, float]] = []

    def begin(self, total: int) -> None:
        self.at.append((time.perf_counter(), time.process_time()))

    def update(self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int) -> None:
        if done % (total // _TENTHS) == 0:
            self.at.append((time.perf_counter(), time.process_time()))


def _driven(recipe: Recipe, folder: Path) -> list[tuple[float, float]]:
    clocks = _Clocks()
    run_recipe(recipe, folder / "out", Cache(folder / "cache"), _AtOnce(), clocks, workers=2)
    return clocks.at


def driving(seeds: int = 2_500) -> Iterator[Figure]:
    """What the driver does for a job, with jobs that take no time: of the first and of the last tenth of them."""
    recipe = parse_recipe(_recipe_text(seeds))
    count = len(jobs_of(recipe))
    with tempfile.TemporaryDirectory() as folder:
        for how in ("run", "found in the cache"):
            at = _driven(recipe, Path(folder))
            for which, (before, after) in {"first": (at[0], at[1]), "last": (at[-2], at[-1])}.items():
                wall, processor = ((b - a) * 1000 / (count // _TENTHS) for a, b in zip(before, after, strict=True))
                told = (
                    f"ms of the driver a job, {which} tenth of {count:,} jobs {how} ({processor:.1f} of the processor)"
                )
                yield told, wall
            for journal in (Path(folder) / "out").glob("*"):
                journal.unlink() if journal.is_file() else None


def again() -> Iterator[Figure]:
    """`make demo` where all is in the cache: the quickstart, of the sample's rows, and its report."""
    import pyarrow.parquet as pq

    rows = defaultdict(list)
    for each in pq.read_table(SAMPLE / "results.parquet").to_pylist():
        job = "/".join(str(each[name]) for name in ("workload", "variant", "seed", "step"))
        rows[job].append({name: each[name] for name in _ROW})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = Path(__file__).parents[1] / "pipelines" / "recipes" / "quickstart.yaml"
        run_recipe(read_recipe(recipe), folder / "out", Cache(folder / "cache"), _AtOnce(rows), Progress(), workers=2)
        words = ["run", recipe, "--out", folder / "out", "--cache", folder / "cache"]
        for what, asked in {"the quickstart": words, "its report": ["report", folder / "out"]}.items():
            before, begun = processor(), time.perf_counter()
            call(folder, asked)
            wall = time.perf_counter() - begun
            yield f"s of the processor for {what} again ({wall:.1f} by the clock)", processor() - before
