"""What commands that run something share: running a recipe with progress on the terminal, ending with a message.

Importing this module imports no heavy library.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from evalsuite.recipe import Recipe
    from evalsuite.run.cache import Cache
    from evalsuite.run.executor import Executor


def stop(message: object) -> NoReturn:
    """End the command: bad input, exit code 2."""
    from evalsuite.document import printable

    print(printable(f"evalsuite: {message}"), file=sys.stderr)
    raise typer.Exit(2)


def described(error: OSError) -> str:
    """An error of the file system in one line; those we raise ourselves carry their own text."""
    if error.errno is None:
        return str(error)
    return (
        f"{error.filename or 'a file'}: {error.strerror}; make it usable, or choose other folders with --out, --cache"
    )


def cache_in(folder: Path | None) -> Cache:
    """The cache in that folder, or the user's."""
    from evalsuite.run.cache import Cache, default_folder

    return Cache((folder or default_folder()).absolute())


def execute(
    recipe: Recipe,
    folder: Path,
    cache: Cache,
    *,
    jobs: int = 0,
    serial: bool = False,
    progress: str = "auto",
    command: str,
) -> bool:
    """Run the recipe in `folder` and print what became of it; whether every job gave what it was to give.

    Ends the command where the run cannot begin or go on.
    """
    from evalsuite.run.executor import Serial
    from evalsuite.run.progress import STYLES, progress_of
    from evalsuite.run.runner import RunError, run_recipe
    from evalsuite.run.stopping import Stopped, stoppable
    from evalsuite.workloads.workload import DataError

    if progress not in STYLES:
        stop(f"--progress is one of {', '.join(STYLES)}; got {progress!r}")
    executor, workers = (Serial(), 1) if serial else processes(recipe, jobs)
    shown = progress_of(progress)
    try:
        with stoppable(executor):
            record = run_recipe(recipe, folder.absolute(), cache, executor, shown, workers=workers, command=command)
    except (RunError, DataError) as error:
        stop(error)
    except OSError as error:
        stop(described(error))
    except KeyboardInterrupt as error:
        name = error.name if isinstance(error, Stopped) else signal.SIGINT
        how = "interrupted" if name == signal.SIGINT else f"ended by {name.name}"
        with suppress(OSError):  # the terminal is gone
            print(
                f"evalsuite: {how}; what was measured is in {folder}, and the same command continues", file=sys.stderr
            )
        raise typer.Exit(128 + name) from None
    counts = record.jobs
    failed = sum(counts.get(key, 0) for key in ("failed", "crashed", "timeout", "oom", "measurement_failed"))
    skipped = counts.get("skipped", 0)
    print(
        f"{counts['total']} jobs: {counts.get('ok', 0)} ok, {counts.get('unsupported', 0)} unsupported, {failed} failed"
        f"{f', {skipped} skipped' if skipped else ''}"
        f" ({counts.get('cached', 0)} from the cache). Rows: {folder / 'results.parquet'}"
    )
    return not (failed or skipped)


def processes(recipe: Recipe, jobs: int = 0) -> tuple[Executor, int]:
    """The executor of a recipe's jobs in processes of their own, and how many run at a time; 0: one per core."""
    from evalsuite.plan import jobs_of
    from evalsuite.run.local import Processes

    workers = _workers(jobs)
    modules = [type(step.stage).__module__ for step in recipe.steps]
    libraries = [name for part in recipe.workloads for name in getattr(part.target, "preloaded", ())]
    return Processes(workers, modules, jobs=len(jobs_of(recipe)), libraries=libraries), workers


def _workers(asked: int) -> int:
    if asked < 0:
        stop(f"--jobs is a number of processes >= 1, or 0 for one per core; got {asked}")
    return asked or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
