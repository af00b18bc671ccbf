"""`evalsuite.run`: a recipe from Python, in a script or a notebook."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def run(
    recipe: Path | str,
    *,
    out: Path | str = "",
    cache: Path | str = "",
    jobs: int = 0,
    executor: str = "local",
    scheduler: str = "",
    progress: str = "auto",
) -> pd.DataFrame:
    """Run a recipe, as `evalsuite run` does, and return its rows: see `evalsuite.results.read_results`.

    A script may call it at its top: jobs do not import it, unless a class that a recipe names is defined there. Dask's
    own processes do, so that with `executor="dask"` and no scheduler it belongs under `if __name__ == "__main__":`.

    Args:
        recipe: a file, or the text of a recipe, which has more than one line.
        out: the run's folder [runs/NAME].
        cache: the cache's folder.
        jobs: at a time; 0: one per core.
        executor: as `evalsuite run --executor`.
        scheduler: of Dask.
        progress: as `evalsuite run --progress`.

    Raises:
        RecipeError: the recipe is wrong.
        DataError, RunError: see `run_recipe`.

    Example: docs/reference.md#measure-a-model
    """
    from evalsuite.recipe import parse_recipe, read_recipe
    from evalsuite.results import read_results
    from evalsuite.run.console import cache_in, executor_of, workers_of
    from evalsuite.run.progress import progress_of
    from evalsuite.run.runner import RunError, run_recipe

    if multiprocessing.parent_process() is not None:
        raise RunError("a new process imports the script that calls run(): call it under `if __name__ == '__main__':`")
    text = str(recipe)
    read = parse_recipe(text) if "\n" in text else read_recipe(Path(text))
    folder = (Path(out) if out else Path("runs") / read.name).absolute()
    workers = workers_of(jobs, executor)
    made = executor_of(executor, read, folder, workers, scheduler=scheduler, options={})
    run_recipe(
        read, folder, cache_in(Path(cache) if cache else None), made, progress_of(progress), workers=workers,
        command="evalsuite.run",
    )  # fmt: skip
    return read_results(folder)
