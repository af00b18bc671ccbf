"""A run's folder shows its journal, at its end or while it goes on: results.parquet, and the files
of jobs.

And which jobs of a recorded run today's code would run again as it did, by the source digest of
each job's key.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from evalsuite.plan import Job, code_of, inputs_of, jobs_of, options_of
from evalsuite.reading import unchanged
from evalsuite.recipe import RecipeError, parse_recipe
from evalsuite.results import Origin, write_parquet
from evalsuite.run.cache import Cache
from evalsuite.run.child import ARTEFACTS, NETWORK
from evalsuite.run.journal import JOURNAL, Entry, read_journal
from evalsuite.run.locks import lock_file
from evalsuite.run.outcomes import stored
from evalsuite.run.record import FILE, read_record, write_record
from evalsuite.run.state import offline
from evalsuite.sources import digest
from evalsuite.sums import add_sums, digest_of
from evalsuite.workloads.workload import DataError

RESULTS = "results.parquet"
_LOCK = ".results.lock"
_MACHINE = ("processor", "device")  # among a job's inputs


def write_results(jobs: Iterable[Job], entries: Mapping[str, Entry], path: Path) -> None:
    """Write the rows of the jobs that are shown and have an entry, in order, whole or not at
    all.
    """
    rows_read = []
    for job, entry in ((job, entries[job.id]) for job in jobs if job.shown and job.id in entries):
        source, host = entry.inputs.get("code", ""), str(entry.conditions.get("host", ""))
        parts = (job.step.part if job.step else job.variant, job.variant, job.workload)
        uses = job.workload.use, job.variant.use
        rows_read.append(
            (Origin(*uses, entry.commit, source, host, *map(options_of, parts)), entry.rows)
        )
    write_parquet(rows_read, path)


def catch_up(out: Path) -> None:
    """Where a run goes on or was killed, bring its results up to what holds of its journal;
    downloads nothing.

    Raises:
        RecipeError: there are no results yet, and the recipe names what is not there any more.
    """
    # 1. A run that has ended wrote its results itself.
    record = read_record(out)
    if record is None or record.finished or not (out / JOURNAL).is_file():
        return
    # 2. The jobs, by the recorded recipe; where it cannot be read any more, the results stay as
    # they are.
    try:
        jobs = jobs_of(parse_recipe(record.recipe_text, f"the recipe in {out / 'run.json'}"))
    except RecipeError:
        if (out / RESULTS).is_file():
            return  # what it held when it was stopped
        raise
    # 3. Write what of the journal still holds, and put it there unless the run has ended
    # meanwhile.
    with offline("a report downloads nothing"):
        entries = _holding(jobs, read_journal(out / JOURNAL))
    if not entries and (out / RESULTS).is_file():
        return
    path = out / f"results-{os.getpid()}.parquet"  # the run itself may write its own
    write_results(jobs, entries, path)
    with alone_at_results(out):
        ended = read_record(out)
        if ended is None or not ended.finished:
            path.replace(out / RESULTS)
            write_record(replace(ended or record, results=digest_of(out / RESULTS)), out)
            add_sums(out, [out / RESULTS, out / FILE])
    path.unlink(missing_ok=True)


@contextmanager
def alone_at_results(out: Path) -> Iterator[None]:
    """Inside, no other process puts results there: a report is not to replace those of a run
    that has just ended.
    """
    descriptor = lock_file(out / _LOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _holding(jobs: Iterable[Job], entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The entries that are of what is here now, as those that a run would keep; `jobs` come
    after those they need.
    """
    held: dict[str, Entry] = {}
    for job in jobs:
        entry, needed = entries.get(job.id), held.get(job.needs)
        if entry is None or (job.needs and needed is None):
            continue
        network = needed.network if needed is not None else ""
        lacks = bool(job.needs) and not network  # then it is skipped, and has no key
        if lacks != bool(entry.key) and (lacks or _same(job, entry, network)):
            held[job.id] = entry
    return held


def _same(job: Job, entry: Entry, network: str) -> bool:
    """Whether the entry's inputs are those of now; on what machine it was measured is no matter
    here.
    """
    try:
        now = inputs_of(job, network)
    except (DataError, OSError):  # what can be told without the data
        now = {**entry.inputs, "network": network, "code": digest(*code_of(job))}
    before, now = (
        {key: value for key, value in code.items() if key not in _MACHINE}
        for code in (entry.inputs, now)
    )
    return before == now and unchanged(entry.read)


def place_artefacts(out: Path, cache: Cache, entry: Entry, *, new: bool) -> None:
    """Put a job's files into the run's folder, whole, and remove those of an outcome that is no
    more.
    """
    target = out / "artefacts" / entry.job
    if not new and (target.exists() or not (entry.artefacts or entry.network)):
        return
    kept = stored(cache, entry.key) if entry.final and entry.key else None
    home = kept[0] if kept is not None else None
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name, place in ((ARTEFACTS, partial), (NETWORK, partial / NETWORK)):
        if home is not None and (home / name).is_dir() and any((home / name).iterdir()):
            shutil.copytree(home / name, place, dirs_exist_ok=True, copy_function=_linked)
    shutil.rmtree(target, ignore_errors=True)
    if partial.exists():
        partial.rename(target)


def _linked(source: str, target: str) -> None:
    """Give a file of the cache a second name, or a copy on another disk.

    Who writes into it damages the cache's, which is then found damaged, removed, and measured
    again.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run's rows stand to today's code.

    Args:
        folder: of the run.
        same: jobs whose rows name the source digest that today's code has.
        other: those whose rows name another.
        unrecorded: those whose rows name none, or which have none.
        commits: that the rows name.
        lack: why nothing can be told; empty where it can.
    """

    folder: Path
    same: int = 0
    other: int = 0
    unrecorded: int = 0
    commits: tuple[str, ...] = ()
    lack: str = ""

    @property
    def reproduced(self) -> bool:
        """Whether every job would be run by the same source; data, libraries and processor are
        further conditions.
        """
        return self.same > 0 and not (self.other or self.unrecorded)

    @property
    def text(self) -> str:
        """How many jobs would be run by the same source, in words."""
        if self.lack:
            return self.lack
        total = self.same + self.other + self.unrecorded
        counted = [f"{self.same} of {total} jobs by today's source"]
        counted += [f"{self.other} by another"] if self.other else []
        counted += [f"{self.unrecorded} without a recorded source"] if self.unrecorded else []
        return "; ".join(
            [
                ", ".join(counted),
                *([f"measured at {', '.join(self.commits)}"] if self.commits else []),
            ]
        )


def standings(folder: Path) -> Iterator[Standing]:
    """That of the run in a folder, or of each run in the folders inside it, by name."""
    if (folder / FILE).is_file():
        yield standing(folder)
        return
    inside = sorted(path.parent for path in folder.glob(f"*/{FILE}"))
    if not inside:
        yield Standing(folder, lack=f"no {FILE} here, nor in a folder of it")
    yield from map(standing, inside)


def standing(folder: Path) -> Standing:
    """Compare each job of the recorded recipe with its rows. Nothing is run, and no data are
    read.
    """
    import pyarrow.parquet as pq

    # Compare the source digest that each job's rows carry with that of the code as it is now.
    record = read_record(folder)
    if record is None:
        return Standing(folder, lack=f"{FILE} is damaged")
    columns = ["workload", "variant", "seed", "step", "commit", "source"]
    try:
        jobs = [
            job
            for job in jobs_of(parse_recipe(record.recipe_text, str(folder / FILE)))
            if job.shown
        ]
        rows = (
            pq.read_table(folder / RESULTS, columns=columns)
            .group_by(columns)
            .aggregate([])
            .to_pylist()
        )
    except (RecipeError, OSError, ValueError) as error:
        return Standing(folder, lack=f"today's code does not read it: {str(error).splitlines()[0]}")
    row_of_job = {
        f"{row['workload']}/{row['variant']}/{row['seed']}/{row['step']}": row for row in rows
    }
    sources = [
        (row_of_job.get(job.id, {}).get("source") or "", digest(*code_of(job))) for job in jobs
    ]
    return Standing(
        folder,
        sum(then == now for then, now in sources),
        sum(bool(then) and then != now for then, now in sources),
        sum(not then for then, _ in sources),
        tuple(sorted({str(row["commit"]) for row in rows if row["commit"]})),
    )
