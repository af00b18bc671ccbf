"""The steps that all commands share which run something: running a recipe with progress on the
terminal, ending with a message.

Importing this module imports no heavy library.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from evalsuite.commands import show_traceback
from evalsuite.terminal import say

if TYPE_CHECKING:
    import pandas as pd

    from evalsuite.recipe import Recipe
    from evalsuite.run.cache import Cache
    from evalsuite.run.executor import Executor
    from evalsuite.run.state import Choice


CacheFolder = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="The cache [$EVALSUITE_CACHE, else the user's]."),
]


def stop(message: object) -> NoReturn:
    """End the command: bad input, exit code 2."""
    show_traceback()
    say(f"evalsuite: {message}", file=sys.stderr)
    raise typer.Exit(2)


@contextmanager
def refusing(
    *errors: type[Exception], unreadable: Callable[[OSError], str] | None = None
) -> Iterator[None]:
    """Inside, these errors and those of the file system end the command, each with one message:
    see `stop`.
    """
    try:
        yield
    except errors as error:
        stop(error)
    except OSError as error:
        stop((unreadable or described)(error))


def described(error: OSError) -> str:
    """An error of the file system in one line; those we raise ourselves carry their own text."""
    if error.errno is None:
        return str(error)
    return (
        f"{error.filename or 'a file'}: {error.strerror}; make it usable, or choose other folders"
        " with --out, --cache"
    )


def cache_in(folder: Path | None) -> Cache:
    """The cache in that folder, or the user's."""
    from evalsuite.run.cache import Cache
    from evalsuite.sources import default_folder

    return Cache((folder or default_folder()).absolute())


def execute(
    recipe: Recipe,
    folder: Path,
    cache: Cache,
    *,
    jobs: int = 0,
    kind: str = "local",
    scheduler: str = "",
    insecure: bool = False,
    options: Mapping[str, str] = MappingProxyType({}),
    progress: str = "auto",
    choice: Choice | None = None,
    command: str,
) -> bool:
    """Run the recipe in `folder` and print what became of it; whether every job gave what it was to
    give.

    Ends the command where the run cannot begin or go on. The arguments `kind`, `scheduler`,
    `insecure` and `options` are those of `executor_of`.
    """
    from evalsuite.results import Status
    from evalsuite.run.doubts import note_doubts
    from evalsuite.run.progress import STYLES, progress_of
    from evalsuite.run.runner import RunError, run_recipe
    from evalsuite.signals import Stopped, stoppable
    from evalsuite.workloads.workload import DataError

    if progress not in STYLES:
        stop(f"--progress is one of {', '.join(STYLES)}; got {progress!r}")
    # 1. Where jobs run, and how progress is shown.
    workers = workers_of(jobs, kind)
    shown = progress_of(progress)
    try:
        executor = executor_of(
            kind,
            recipe,
            folder.absolute(),
            workers,
            scheduler=scheduler,
            insecure=insecure,
            options=options,
        )
        # 2. Run it. What ends the run ends the command with a message and the exit code of its
        # kind.
        with stoppable(executor.pause, executor.resume):
            record = run_recipe(
                recipe,
                folder.absolute(),
                cache,
                executor,
                shown,
                workers=workers,
                command=command,
                choice=choice,
            )
        note_doubts(recipe, folder.absolute())
    except (RunError, DataError) as error:
        stop(error)
    except OSError as error:
        stop(described(error))
    except KeyboardInterrupt as error:
        name = error.name if isinstance(error, Stopped) else signal.SIGINT
        how = "interrupted" if name == signal.SIGINT else f"ended by {name.name}"
        with suppress(OSError):  # the terminal is gone
            say(
                f"evalsuite: {how}; what was measured is in {folder}, and the same command"
                " continues",
                file=sys.stderr,
            )
        raise typer.Exit(128 + name) from None
    # 3. Say what became of the jobs.
    counts = record.jobs
    left = counts["total"] - sum(counts.get(status.value, 0) for status in Status)
    failed = sum(
        counts.get(key, 0) for key in ("failed", "crashed", "timeout", "oom", "measurement_failed")
    )
    skipped = counts.get("skipped", 0)
    whole = counts.get("ok", 0) - counts.get("measurement_failed", 0)
    say(
        f"{counts['total']} jobs: {whole} ok, {counts.get('unsupported', 0)} unsupported, {failed}"
        f" failed{f', {skipped} skipped' if skipped else ''}{f', {left} left out' if left else ''}"
        f" ({counts.get('cached', 0)} from the cache). Rows: {folder / 'results.parquet'}"
    )
    return not (failed or skipped)


EXECUTORS = ("serial", "local", "dask", "slurm")


def executor_of(
    kind: str,
    recipe: Recipe,
    folder: Path,
    workers: int,
    *,
    scheduler: str = "",
    insecure: bool = False,
    options: Mapping[str, str],
) -> Executor:
    """The executor of that name for the run in `folder`; ends the command where it cannot be had.

    Args:
        kind: of `EXECUTORS`.
        recipe: what is to be run.
        folder: the run's, absolute.
        workers: how many jobs at a time.
        scheduler: of Dask; without one, its workers are processes of this machine.
        insecure: take a scheduler of Dask without TLS.
        options: of sbatch.
    """
    from evalsuite.run.executor import Serial

    # 1. Options that belong to another executor are refused, for they would silently do nothing.
    if kind == "workers":
        stop(
            "--executor workers is no more: several machines work by --executor dask or slurm; see"
            " docs/recipes.md"
        )
    if kind not in EXECUTORS:
        stop(f"--executor is one of {', '.join(EXECUTORS)}; got {kind!r}")
    if scheduler and kind != "dask":
        stop(f"--scheduler is Dask's: add --executor dask, or leave it out with {kind}")
    if insecure and kind != "dask":
        stop(
            "--insecure is for a --scheduler of Dask: add --executor dask, or leave it out with"
            f" {kind}"
        )
    if options and kind != "slurm":
        stop(f"--slurm is for --executor slurm; got {kind!r}")
    # 2. Clusters' libraries are imported only where they are asked for.
    if kind == "serial":
        return Serial()
    if kind == "local":
        return processes(recipe, workers)[0]
    from evalsuite.run.clusters import Dask, Slurm

    try:
        if kind == "dask":
            return Dask(recipe, folder, workers, scheduler, insecure=insecure)
        return Slurm(recipe, folder, workers, options)
    except ValueError as error:
        stop(error)
    except ImportError as error:
        stop(
            f"--executor {kind} needs {error.name}, which is not installed: pip install"
            f" 'evalsuite[{kind}]'"
        )


def processes(recipe: Recipe, jobs: int = 0) -> tuple[Executor, int]:
    """The executor of a recipe's jobs in processes of this machine, and how many run at a time;
    0: one per core.
    """
    from evalsuite.run.local import local_executor

    workers = workers_of(jobs)
    return local_executor(recipe, workers), workers


def workers_of(asked: int, kind: str = "local") -> int:
    """How many jobs run at a time; 0: one per core of this machine."""
    if asked < 0:
        stop(f"--jobs is a number of processes >= 1, or 0 for one per core; got {asked}")
    if kind == "serial":
        return 1
    return asked or len(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )


def run(
    recipe: Path | str,
    *,
    out: Path | str = "",
    cache: Path | str = "",
    jobs: int = 0,
    executor: str = "local",
    scheduler: str = "",
    insecure: bool = False,
    progress: str = "auto",
) -> pd.DataFrame:
    """Run a recipe, as `evalsuite run` does, and return its rows: see
    `evalsuite.results.read_results`.

    A script may call it at its top: jobs do not import it, unless a class that a recipe names is
    defined there. Dask's own processes do, so that with `executor="dask"` and no scheduler it
    belongs under `if __name__ == "__main__":`.

    Args:
        recipe: a file, or the text of a recipe, which has more than one line.
        out: the run's folder [runs/NAME].
        cache: the cache's folder.
        jobs: at a time; 0: one per core.
        executor: as `evalsuite run --executor`.
        scheduler: of Dask, as tls://host:8786.
        insecure: take a scheduler without TLS; whoever reaches it can run code as its users.
        progress: as `evalsuite run --progress`.

    Raises:
        RecipeError: the recipe is wrong.
        DataError, RunError: see `run_recipe`.
    """
    import multiprocessing

    from evalsuite.recipe import parse_recipe, read_recipe
    from evalsuite.results import read_results
    from evalsuite.run.progress import progress_of
    from evalsuite.run.runner import RunError, run_recipe

    if multiprocessing.parent_process() is not None:
        raise RunError(
            "a new process imports the script that calls run(): call it under `if __name__ =="
            " '__main__':`"
        )
    # A text of more than one line is a recipe, any other the name of a file.
    text = str(recipe)
    read = parse_recipe(text) if "\n" in text else read_recipe(Path(text))
    folder = (Path(out) if out else Path("runs") / read.name).absolute()
    workers = workers_of(jobs, executor)
    executor_chosen = executor_of(
        executor, read, folder, workers, scheduler=scheduler, insecure=insecure, options={}
    )
    run_recipe(
        read,
        folder,
        cache_in(Path(cache) if cache else None),
        executor_chosen,
        progress_of(progress),
        workers=workers,
        command="evalsuite.run",
    )
    return read_results(folder)
