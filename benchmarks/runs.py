"""What a run costs beside its stages: planning, driving, starting jobs, a second worker, and a large report.

`python -m benchmarks.runs [PART ...]` prints these alone. Times of a process are of its processor where it says so; where
it does not, the machine should be quiet.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.idle import installed
from evalsuite.plan import jobs_of
from evalsuite.recipe import Recipe, parse_recipe
from evalsuite.results import Row, Status
from evalsuite.run import tree
from evalsuite.run.cache import Cache
from evalsuite.run.child import NETWORK, OUTCOME, Assignment, Found, read_outcome
from evalsuite.run.executor import Serial
from evalsuite.run.journal import Entry, read_journal
from evalsuite.run.progress import Silent
from evalsuite.run.results import JOURNAL
from evalsuite.run.runner import run_recipe
from evalsuite.run.state import plan_run

Figure = tuple[str, float]
_SAMPLE = Path(__file__).parents[1] / "reports" / "sample"
_TENTHS = 10


def _recipe_text(seeds: int) -> str:
    """Eight jobs a seed."""
    listed = ", ".join(map(str, range(seeds)))
    steps = "accuracy, {use: accuracy, name: second}, {use: accuracy, name: third}"
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
    told = f"s of the processor to plan {len(planned):,} jobs, {read:.2f} of them to read the recipe ({wall:.1f} by the clock)"
    yield told, whole


class _AtOnce(Serial):
    """Leaves what a job would leave, without doing it."""

    def start(self, assignment: Assignment) -> None:
        labels = {**assignment.job.coordinates, "key": assignment.key}
        row = Row(
            **labels, metric="m", setting="", sample=None, value=1.0, unit="count", direction="higher", timing=False,
            status="ok", verdict="", reason="",
        )  # fmt: skip
        found = Found(Status.OK, (row,), conditions=assignment.conditions)
        if assignment.job.step is None:
            found = replace(found, network=f"network of {assignment.job.id}")
            (assignment.scratch / NETWORK).mkdir()
            (assignment.scratch / NETWORK / "file").write_text(found.network)
        (assignment.scratch / OUTCOME).write_text(json.dumps(asdict(found)))
        self._done.append((assignment, read_outcome(assignment.scratch)))


class _Clocks(Silent):
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
                told = f"ms of the driver a job, {which} tenth of {count:,} jobs {how} ({processor:.1f} of the processor)"
                yield told, wall
            for journal in (Path(folder) / "out").glob("*"):
                journal.unlink() if journal.is_file() else None


@dataclass(frozen=True)
class _Run:
    """Seconds of a whole run, and of the processor for all its processes."""

    wall: float
    processor: float


def _run(folder: Path, steps: int, workers: int, compute: float) -> _Run:
    """A run of so many steps of one network with `local`, each of which computes for so many seconds."""
    name = f"{steps}-{workers}-{compute}"
    recipe = folder / f"{name}.yaml"
    listed = ", ".join(f"{{use: idle, name: idle-{each}, compute: {compute}}}" for each in range(steps))
    head = "name: idle\nworkloads: [{use: digits-mlp, epochs: 1}]\nvariants: [gelu]\nseeds: [0]\n"
    recipe.write_text(f"{head}steps: [{listed}]\n")
    words = ["run", recipe, "--out", folder / name, "--cache", folder / f"cache-{name}", "--jobs", workers]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    _call(folder, words)
    wall = time.perf_counter() - begun
    try:
        while True:
            os.wait()  # for the server that jobs are forked from, which has become ours
    except ChildProcessError:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Run(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _call(folder: Path, words: list[object]) -> None:
    command = [sys.executable, "-c", "from evalsuite.cli import main; main()", *map(str, words), "--progress", "none"]
    done = subprocess.run(command, env=installed(folder), cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode > 1:  # 1: a job failed, as is meant where it takes too much
        raise RuntimeError(done.stderr)


def starting(few: int = 10, many: int = 50) -> Iterator[Figure]:
    """What a job of a stage that does nothing costs, over a run of fewer of them: the start of a run is in both."""
    tree.adopt()
    with tempfile.TemporaryDirectory() as folder:
        first, second = (_run(Path(folder), steps, 1, 0.0) for steps in (few, many))
    yield "s of the processor for a job that does nothing", (second.processor - first.processor) / (many - few)
    yield "s of a run before and after its jobs", first.wall - few * (second.wall - first.wall) / (many - few)


def working(few: int = 8, many: int = 32, compute: float = 1.0) -> Iterator[Figure]:
    """The share of a run that is not spent in its stages, and what a second worker gains, of stages that compute."""
    with tempfile.TemporaryDirectory() as folder:
        walls = {}
        for workers in (1, 2):
            first, second = (_run(Path(folder), steps, workers, compute).wall for steps in (few, many))
            walls[workers] = second - first
    outside = 1 - (many - few) * compute / walls[1]
    yield f"of the time is spent outside stages of {compute:g} s of processor time each", outside
    yield "times as fast with two workers as with one", walls[1] / walls[2]


def limiting(limit: float = 1.0) -> Iterator[Figure]:
    """How long a job lives that holds twice the memory that it may."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        head = "name: greedy\nworkloads: [{use: digits-mlp, epochs: 1}]\nvariants: [gelu]\nseeds: [0]\n"
        (folder / "greedy.yaml").write_text(f"{head}memory_limit: {limit}\nsteps: [{{use: idle, hold: {2 * limit}}}]\n")
        words = ["run", folder / "greedy.yaml", "--out", folder / "out", "--cache", folder / "cache"]
        _call(folder, words)
        (entry,) = (each for each in read_journal(folder / "out" / JOURNAL).values() if each.status is Status.OOM)
        began = float((folder / "out" / "logs" / f"{entry.job}.log").read_text())
        yield "s from when a job begins to take twice its memory limit to the row that says so", (folder / "out" / JOURNAL).stat().st_mtime - began


_REPORT = """\
import resource, sys, time
from pathlib import Path
from evalsuite.report import write_report
begun = time.perf_counter()
files = write_report(Path(sys.argv[1]))
size = next(each for each in files if each.suffix == ".html").stat().st_size
print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, size / 1e6)
"""


def write_large(folder: Path, rows: int) -> int:
    """A run of at least so many rows, which is the sample's with more seeds; how many rows it has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = pq.read_table(_SAMPLE / "results.parquet")
    place = whole.schema.get_field_index("seed")
    seeds = len(set(whole["seed"].to_pylist()))
    parts = []
    while sum(map(len, parts)) < rows:
        shifted = pa.compute.add(whole["seed"], len(parts) * seeds).cast(whole.schema.field(place).type)
        parts.append(whole.set_column(place, whole.schema.field(place), shifted))
    pq.write_table(pa.concat_tables(parts), folder / "results.parquet")
    record = json.loads((_SAMPLE / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "seeds": list(range(seeds * len(parts)))}))
    return sum(map(len, parts))


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


PARTS: tuple[Callable[[], Iterator[Figure]], ...] = (planning, driving, starting, working, limiting, reporting)


def runs() -> Iterator[Figure]:
    """All of it."""
    for part in PARTS:
        yield from part()


if __name__ == "__main__":
    for each in PARTS:
        if each.__name__ in sys.argv[1:] or len(sys.argv) == 1:
            for what, value in each():
                print(f"{value:8.2f}  {what}", flush=True)
