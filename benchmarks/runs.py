"""Measure what a run costs beside its stages: planning, driving, starting jobs, a second worker,
limits, and a large report.

`python -m benchmarks.runs [PART ...]` prints these parts alone. Where a line says "of the
processor", other work on the machine matters little; where it does not, the machine should be
quiet.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.idle import call, processor, started
from benchmarks.subjects import Figure
from evalsuite.plan import jobs_of
from evalsuite.recipe import Recipe, parse_recipe, read_recipe
from evalsuite.results import Row, Status
from evalsuite.run import tree
from evalsuite.run.cache import Cache
from evalsuite.run.child import NETWORK, OUTCOME, Assignment, Found, read_outcome
from evalsuite.run.executor import Serial
from evalsuite.run.journal import JOURNAL, Entry, read_journal
from evalsuite.run.progress import Progress
from evalsuite.run.runner import run_recipe
from evalsuite.run.state import plan_run

SAMPLE = Path(__file__).parents[1] / "reports" / "sample"
_TENTHS = 10


def _recipe_text(seeds: int) -> str:
    """Eight jobs a seed, of which no two have one key."""
    listed = ", ".join(map(str, range(seeds)))
    steps = ", ".join(
        f"{{use: accuracy, name: step-{each}, time_limit: {each}}}" for each in (1, 2, 3)
    )
    return (
        f"name: many\nworkloads: [digits-mlp]\nvariants: [gelu, relu]\nseeds: [{listed}]\nsteps:"
        f" [{steps}]\n"
    )


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
    "metric": "m",
    "setting": "",
    "sample": None,
    "value": 1.0,
    "unit": "count",
    "direction": "higher",
    "timing": False,
    "status": "ok",
    "verdict": "",
    "reason": "",
}


class AtOnce(Serial):
    """Leaves what a job would leave, without doing it: `rows` of some jobs by their ids, and one
    row of the others.
    """

    def __init__(self, rows: Mapping[str, Sequence[dict[str, Any]]] = MappingProxyType({})) -> None:
        super().__init__()
        self._rows = rows

    def found(self, assignment: Assignment) -> Found:
        """Return the outcome that a job would leave, without running it."""
        job, labels = assignment.job, {**assignment.job.coordinates, "key": assignment.key}
        rows = tuple(Row(**labels, **each) for each in self._rows.get(job.id, [_ROW]))
        network = "" if job.step else f"network of {job.id}"
        return Found(Status.OK, rows, network=network, conditions=assignment.conditions)

    def start(self, assignment: Assignment) -> None:
        found = self.found(assignment)
        if found.network:
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

    def update(
        self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int
    ) -> None:
        if done % (total // _TENTHS) == 0:
            self.at.append((time.perf_counter(), time.process_time()))


def _driven(recipe: Recipe, folder: Path) -> list[tuple[float, float]]:
    clocks = _Clocks()
    run_recipe(recipe, folder / "out", Cache(folder / "cache"), AtOnce(), clocks, workers=2)
    return clocks.at


def driving(seeds: int = 2_500) -> Iterator[Figure]:
    """Time the driver's work for a job, with jobs that take no time: for the first and for the
    last tenth of them.
    """
    recipe = parse_recipe(_recipe_text(seeds))
    count = len(jobs_of(recipe))
    with tempfile.TemporaryDirectory() as folder:
        for how in ("run", "found in the cache"):
            at = _driven(recipe, Path(folder))
            for which, (before, after) in {
                "first": (at[0], at[1]),
                "last": (at[-2], at[-1]),
            }.items():
                wall, processor = (
                    (b - a) * 1000 / (count // _TENTHS) for a, b in zip(before, after, strict=True)
                )
                told = (
                    f"ms of the driver a job, {which} tenth of {count:,} jobs {how}"
                    f" ({processor:.1f} of the processor)"
                )
                yield told, wall
            for journal in (Path(folder) / "out").glob("*"):
                journal.unlink() if journal.is_file() else None


def again() -> Iterator[Figure]:
    """`make demo` where all is in the cache: the quickstart, of the sample's rows, and its
    report.
    """
    import pyarrow.parquet as pq

    rows = defaultdict(list)
    for each in pq.read_table(SAMPLE / "results.parquet").to_pylist():
        job = "/".join(str(each[name]) for name in ("workload", "variant", "seed", "step"))
        rows[job].append({name: each[name] for name in _ROW})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = Path(__file__).parents[1] / "pipelines" / "recipes" / "quickstart.yaml"
        run_recipe(
            read_recipe(recipe),
            folder / "out",
            Cache(folder / "cache"),
            AtOnce(rows),
            Progress(),
            workers=2,
        )
        words = ["run", recipe, "--out", folder / "out", "--cache", folder / "cache"]
        for what, asked in {
            "the quickstart": words,
            "its report": ["report", folder / "out"],
        }.items():
            before, begun = processor(), time.perf_counter()
            call(folder, asked)
            wall = time.perf_counter() - begun
            yield (
                f"s of the processor for {what} again ({wall:.1f} by the clock)",
                processor() - before,
            )


_ONE = "name: one\nworkloads: [{use: digits-mlp, epochs: 1}]\nvariants: [gelu]\nseeds: [0]\n"


@dataclass(frozen=True)
class _Run:
    """Seconds of a whole run, and of the processor for all its processes."""

    wall: float
    processor: float


def _run(folder: Path, steps: int, workers: int, compute: float) -> _Run:
    """A run of so many steps of one network with `local`, each of which computes for so many
    seconds.
    """
    name = f"{steps}-{workers}-{compute}"
    recipe = folder / f"{name}.yaml"
    listed = ", ".join(
        f"{{use: idle, name: idle-{each}, number: {each}, compute: {compute}}}"
        for each in range(steps)
    )
    recipe.write_text(f"{_ONE}steps: [{listed}]\n")
    words = [
        "run",
        recipe,
        "--out",
        folder / name,
        "--cache",
        folder / f"cache-{name}",
        "--jobs",
        workers,
    ]
    before, begun = processor(), time.perf_counter()
    call(folder, words)
    wall = time.perf_counter() - begun
    try:
        while True:
            os.wait()  # for the server that jobs are forked from, which has become ours
    except ChildProcessError:
        return _Run(wall, processor() - before)


def starting(few: int = 10, many: int = 50) -> Iterator[Figure]:
    """Time a job of a stage that does nothing: two runs with few and with many such jobs differ by
    the jobs alone, since the start of a run is in both.
    """
    tree.adopt()
    with tempfile.TemporaryDirectory() as folder:
        first, second = (_run(Path(folder), steps, 1, 0.0) for steps in (few, many))
    yield (
        "s of the processor for a job that does nothing",
        (second.processor - first.processor) / (many - few),
    )
    yield (
        "s of a run before and after its jobs",
        first.wall - few * (second.wall - first.wall) / (many - few),
    )


def working(few: int = 8, many: int = 32, compute: float = 1.0) -> Iterator[Figure]:
    """The share of a run that is not spent in its stages, and what a second worker gains, of
    stages that compute.
    """
    with tempfile.TemporaryDirectory() as folder:
        walls = {}
        for workers in (1, 2):
            first, second = (
                _run(Path(folder), steps, workers, compute).wall for steps in (few, many)
            )
            walls[workers] = second - first
    outside = 1 - (many - few) * compute / walls[1]
    yield f"of the time is spent outside stages of {compute:g} s of processor time each", outside
    yield "times as fast with two workers as with one", walls[1] / walls[2]


def limiting(limit: float = 1.0) -> Iterator[Figure]:
    """How long a job lives that holds twice the memory that it may."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = f"memory_limit: {limit}\nsteps: [{{use: idle, hold: {2 * limit}}}]\n"
        (folder / "greedy.yaml").write_text(_ONE + steps)
        words = [
            "run",
            folder / "greedy.yaml",
            "--out",
            folder / "out",
            "--cache",
            folder / "cache",
        ]
        call(folder, words)
        (entry,) = (
            each
            for each in read_journal(folder / "out" / JOURNAL).values()
            if each.status is Status.OOM
        )
        began = float((folder / "out" / "logs" / f"{entry.job}.log").read_text())
        yield (
            "s from when a job begins to take twice its memory limit to the row that says so",
            (folder / "out" / JOURNAL).stat().st_mtime - began,
        )


def interrupting() -> Iterator[Figure]:
    """How long a run with two jobs under way takes to end after Ctrl-C."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = "{use: idle, sleep: 600}, {use: idle, name: second, number: 1, sleep: 600}"
        (folder / "long.yaml").write_text(f"{_ONE}time_limit: 900\nsteps: [{steps}]\n")
        driver = started(
            folder,
            ["run", folder / "long.yaml", "--out", folder / "out", "--cache", folder / "cache"],
        )
        logs = [
            folder / "out" / "logs" / "digits-mlp" / "gelu" / "0" / f"{step}.log"
            for step in ("idle", "second")
        ]
        while driver.poll() is None and not all(log.exists() for log in logs):
            time.sleep(0.05)
        begun = time.perf_counter()
        driver.send_signal(signal.SIGINT)
        driver.communicate()
        yield (
            "s from Ctrl-C to the end of a run with two jobs under way",
            time.perf_counter() - begun,
        )


_REPORT = """\
import resource, sys, time
from pathlib import Path
from evalsuite.report import write_report
begun = time.perf_counter()
files = write_report(Path(sys.argv[1]))
size = next(each for each in files if each.suffix == ".html").stat().st_size
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(time.perf_counter() - begun, peak, size / 1e6)
"""


def write_large(folder: Path, rows: int) -> int:
    """A run of at least so many rows, which is the sample's with more seeds; how many rows it
    has.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = pq.read_table(SAMPLE / "results.parquet")
    place = whole.schema.get_field_index("seed")
    seeds = len(set(whole["seed"].to_pylist()))
    parts: list[pa.Table] = []
    while sum(len(part) for part in parts) < rows:
        shifted = pa.compute.add(whole["seed"], len(parts) * seeds).cast(
            whole.schema.field(place).type
        )
        parts.append(whole.set_column(place, whole.schema.field(place), shifted))
    pq.write_table(pa.concat_tables(parts), folder / "results.parquet")
    record = json.loads((SAMPLE / "run.json").read_text())
    (folder / "run.json").write_text(
        json.dumps({**record, "seeds": list(range(seeds * len(parts)))})
    )
    return sum(len(part) for part in parts)


def reporting(rows: int = 10**6) -> Iterator[Figure]:
    """A report of a million rows."""
    with tempfile.TemporaryDirectory() as folder:
        count = write_large(Path(folder), rows)
        command = [sys.executable, "-c", _REPORT, folder]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    seconds, gib, megabytes = map(float, told)
    yield f"s to report {count:,} rows", seconds
    yield f"GiB at most to report {count:,} rows", gib
    yield f"MB has the page of {count:,} rows", megabytes


PARTS: tuple[Callable[[], Iterator[Figure]], ...] = (
    planning,
    driving,
    again,
    starting,
    working,
    limiting,
    interrupting,
    reporting,
)


def runs() -> Iterator[Figure]:
    """All of it."""
    for part in PARTS:
        yield from part()


if __name__ == "__main__":
    for each in PARTS:
        if each.__name__ in sys.argv[1:] or len(sys.argv) == 1:
            for what, value in each():
                print(f"{value:8.2f}  {what}", flush=True)
