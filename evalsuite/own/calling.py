"""`evalsuite.assess(...)`, the command in Python; and `@evalsuite.workload(...)`, which declares
a model's workload.
"""

from __future__ import annotations

import inspect
import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evalsuite.references import DECLARED, OwnError

if TYPE_CHECKING:
    import pandas as pd


Make = TypeVar("Make", bound=Callable[..., Any])


def workload(**options: Any) -> Callable[[Make], Make]:
    """Declare a function that makes a model as a workload, with the options of `own`: data, task,
    epochs, ...

        @evalsuite.workload(data="reviews.jsonl", task="text-classification")
        def net(): ...

    Then `evalsuite assess my.py:net`, and `use: my.py:net` in a recipe. A function may stand where
    a reference does.

    Example: docs/own-models.md#in-a-recipe-and-in-python
    """

    def mark(make: Make) -> Make:
        setattr(make, DECLARED, {name: reference_of(each) for name, each in options.items()})
        return make

    return mark


def reference_of(given: Any) -> Any:
    """A function or class as the reference `file.py:name`; anything else as it is. Raises OwnError:
    it cannot be found by its name, as a lambda cannot: networks are made in processes of their own.
    """
    if not callable(given):
        return given
    name, file = getattr(given, "__qualname__", ""), inspect.getsourcefile(given)
    if not name.isidentifier() or file is None:
        raise OwnError(
            f"{name or given!r} has no name in a file: define it by `def` or `class` at the top of"
            " a module"
        )
    path = Path(file).resolve()
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{name}"


@dataclass(frozen=True)
class Assessment:
    """What came of an assessment: its folder, its rows as `read_results` gives them, and the
    page of its report.
    """

    folder: Path
    results: pd.DataFrame
    report: Path


def assess(
    model: str | Callable[..., Any],
    data: str | Callable[..., Any] | dict[str, Any] = "",
    *,
    out: Path | str | None = None,
    stages: Sequence[str] = ("all",),
    seeds: int = 3,
    quick: bool = False,
    cache: Path | str | None = None,
    jobs: int = 0,
    progress: str = "none",
    **options: Any,
) -> Assessment:
    """Measure a model against its ReLU variants: `evalsuite assess` in Python.

    Jobs run in processes of their own, which import the script that calls this: call it under
    `if __name__ == "__main__":`, or in a notebook with functions from a file.

    Args:
        model: a function of a file that makes the model, or a reference as on the command line.
        data: a function that gives the data, or a reference, a path, or a mapping with a path and
            options.
        out: the run's folder; by default runs/NAME.
        stages: names of stages, or "all".
        seeds: networks of each variant, where they are trained.
        quick: a first look: fewer variants, one seed, small options.
        cache: the cache's folder.
        jobs: processes at a time; 0: one per core.
        progress: as `evalsuite run --progress`.
        options: of the workload `own`: task, weights, start, epochs, inputs, output, ...

    Raises:
        OwnError: something is wrong with the model, the data or an option; nothing was trained.
        DataError, RunError: see `run_recipe`.

    Example: docs/own-models.md#in-a-recipe-and-in-python
    """
    from evalsuite.own.assessing import asked_of, doubted, options_of
    from evalsuite.recipe import parse_recipe
    from evalsuite.report import write_report
    from evalsuite.results import read_results
    from evalsuite.run.console import cache_in, processes
    from evalsuite.run.progress import progress_of
    from evalsuite.run.runner import run_recipe

    if multiprocessing.parent_process() is not None:
        raise OwnError(
            "a job imports the script that calls assess(): call it under `if __name__ =="
            " '__main__':`"
        )
    named = {name: options.pop(name, "") for name in ("task", "weights", "start")}
    given = options_of(reference_of(model), reference_of(data), **named, settings=[])
    asked = asked_of({**given, **options}, stages=stages, seeds=seeds, quick=quick)
    folder = Path(out) if out is not None else Path("runs") / asked.name
    recipe = parse_recipe(asked.text())
    executor, workers = processes(recipe, jobs)
    store = cache_in(Path(cache) if cache else None)
    run_recipe(recipe, folder.absolute(), store, executor, progress_of(progress), workers=workers)
    doubted(asked, folder)
    return Assessment(folder, read_results(folder), write_report(folder)[0])
