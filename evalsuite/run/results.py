"""From the entries of a run's journal to its results.parquet, at its end or while it goes on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from evalsuite.plan import Job, jobs_of, options_of
from evalsuite.recipe import RecipeError, parse_recipe
from evalsuite.results import Origin, write_parquet
from evalsuite.run.journal import Entry, read_journal
from evalsuite.run.record import read_record

JOURNAL = "journal.jsonl"
RESULTS = "results.parquet"


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
        options_of(job.step.part if job.step else job.variant),
        options_of(job.variant),
        options_of(job.workload),
    )


def catch_up(out: Path) -> None:
    """Where a run goes on or was killed, bring its results up to what its journal holds.

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
    path = out / f"results-{os.getpid()}.parquet"  # the run itself may write its own
    write_results(jobs, read_journal(out / JOURNAL), path)
    path.replace(out / RESULTS)
