"""From the entries of a run's journal to its results.parquet, at its end or while it goes on."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from evalsuite.plan import Job, code_of, inputs_of, jobs_of, options_of
from evalsuite.reading import unchanged
from evalsuite.recipe import RecipeError, parse_recipe
from evalsuite.results import Origin, write_parquet
from evalsuite.run.journal import Entry, read_journal
from evalsuite.run.offline import offline
from evalsuite.run.record import read_record
from evalsuite.sources import digest
from evalsuite.workloads.workload import DataError

JOURNAL = "journal.jsonl"
RESULTS = "results.parquet"
_MACHINE = ("processor", "device")  # among a job's inputs


def write_results(jobs: Iterable[Job], entries: Mapping[str, Entry], path: Path) -> None:
    """Write the rows of the jobs that are shown and have an entry, in order, whole or not at all."""
    shown = [(job, entries[job.id]) for job in jobs if job.shown and job.id in entries]
    write_parquet([(_origin(job, entry), entry.rows) for job, entry in shown], path)


def _origin(job: Job, entry: Entry) -> Origin:
    return Origin(
        job.workload.use,
        job.variant.use,
        entry.commit,
        entry.inputs.get("code", ""),
        str(entry.conditions.get("host", "")),
        options_of(job.step.part if job.step else job.variant),
        options_of(job.variant),
        options_of(job.workload),
    )


def catch_up(out: Path) -> None:
    """Where a run goes on or was killed, bring its results up to what holds of its journal; downloads nothing.

    Raises:
        RecipeError: there are no results yet, and the recipe names what is not there any more.
    """
    record = read_record(out)
    if record is None or record.finished or not (out / JOURNAL).is_file():
        return
    try:
        jobs = jobs_of(parse_recipe(record.recipe_text, f"the recipe in {out / 'run.json'}"))
    except RecipeError:
        if (out / RESULTS).is_file():
            return  # what it held when it was stopped
        raise
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
    path.unlink(missing_ok=True)


@contextmanager
def alone_at_results(out: Path) -> Iterator[None]:
    """Inside, no other process puts results there: a report is not to replace those of a run that has just ended."""
    with (out / JOURNAL).open("rb+") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        yield


def _holding(jobs: Iterable[Job], entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The entries that are of what is here now, as those that a run would keep; `jobs` come after those they need."""
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
    """Whether the entry's inputs are those of now; on what machine it was measured is no matter here."""
    try:
        now = inputs_of(job, network)
    except (DataError, OSError):  # what can be told without the data
        now = {**entry.inputs, "network": network, "code": digest(*code_of(job))}
    before, now = ({key: value for key, value in each.items() if key not in _MACHINE} for each in (entry.inputs, now))
    return before == now and unchanged(entry.read)
