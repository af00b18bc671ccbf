"""`evalsuite.assess(...)`, the command in Python; and `@evalsuite.workload(...)`, which declares
a model's workload.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evalsuite.own.frames import from_frames, is_frame
from evalsuite.references import DECLARED
from opgraph.errors import OwnError

if TYPE_CHECKING:
    import pandas as pd

    from evalsuite.recipe import Recipe
    from evalsuite.report.run import Run

# What a file of such a name holds, in a run's folder.
_SAVED = {".html": "report.html", ".md": "report.md", ".parquet": "results.parquet"}

Make = TypeVar("Make", bound=Callable[..., Any])


def workload(**options: Any) -> Callable[[Make], Make]:
    """Declare a function that makes a model as a workload, with the options of `own`: data, task,
    epochs, ...

        @evalsuite.workload(data="reviews.jsonl", task="text-classification")
        def net(): ...

    Then `evalsuite assess my.py:net`, and `use: my.py:net` in a recipe. A function may stand where
    a reference does.
    """

    def mark(make: Make) -> Make:
        setattr(make, DECLARED, {name: reference_of(option) for name, option in options.items()})
        return make

    return mark


def reference_of(option: Any) -> Any:
    """A function or class as the reference `file.py:name`; anything else as it is. Raises OwnError:
    it cannot be found by its name, as a lambda cannot: networks are made in processes of their own.
    """
    if not callable(option):
        return option
    name, file = getattr(option, "__qualname__", ""), inspect.getsourcefile(option)
    if not name.isidentifier() or file is None:
        raise OwnError(
            f"{name or option!r} has no name in a file: define it by `def` or `class` at the top of"
            " a module"
        )
    path = Path(file).resolve()
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{name}"


@dataclass(frozen=True, repr=False)
class Assessment:
    """Holds what came of an assessment. A notebook shows its answer and the picture of it.

    Args:
        folder: the run's folder.
        results: its rows, as `read_results` gives them.
        report: the page of its report.
    """

    folder: Path
    results: pd.DataFrame
    report: Path

    @property
    def frame(self) -> pd.DataFrame:
        """The rows of the run: one for each metric of each network."""
        return self.results

    @cached_property
    def _run(self) -> Run:
        from evalsuite.report.run import Run

        return Run.of(self.folder)

    @cached_property
    def answer(self) -> dict[str, Any]:
        """Return what is bought, what it costs, what makes no difference and what cannot be told,
        of each variant, with exact numbers: the contents of `tables/answer.json`.
        """
        from evalsuite.report.opening import answers_json

        record: dict[str, Any] = json.loads(answers_json(self._run))
        return record

    @property
    def best(self) -> str | None:
        """The variant of the best mean quality after deployment, the baseline among them. This is
        no test: see `answer`. None where nothing is compared, or concluded from the baseline.
        """
        from evalsuite.report.opening import ranking_of

        ranking = None if self._run.doubts else ranking_of(self._run)
        return ranking.rows[0].variant if ranking else None

    def save(self, path: Path | str) -> Path:
        """Copy what the file's name asks for: the page (.html), the report as text (.md), the
        rows (.parquet or .csv) or the answer (.json).

        Raises:
            ValueError: the name has another ending.
        """
        path = Path(path)
        if path.suffix == ".csv":
            self.results.to_csv(path, index=False)
        elif path.suffix == ".json":
            text = json.dumps(self.answer, indent=1, ensure_ascii=False)
            path.write_text(text + "\n", encoding="utf-8")
        elif path.suffix in _SAVED:
            shutil.copyfile(self.folder / _SAVED[path.suffix], path)
        else:
            endings = ", ".join([*_SAVED, ".csv"])
            raise ValueError(f"cannot save into {path}: its name must end in {endings} or .json")
        return path

    def __repr__(self) -> str:
        from evalsuite.report.opening import terminal_lines

        return "\n".join([*terminal_lines(self._run), f"The report: {self.report}"])

    def _repr_html_(self) -> str:
        from evalsuite.report.notebook import notebook_html

        return notebook_html(self._run)


def assess(
    model: str | Callable[..., Any],
    data: Any = "",
    targets: Any = None,
    *,
    train: Any = None,
    validation: Any = None,
    test: Any = None,
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

    Jobs run in processes of their own. What is in memory alone is written for them by cloudpickle,
    into the folder `given` of the run: a module that is built, lambdas, functions of a notebook's
    cell or of the script that calls this, which is not run again, and tensors.

    Args:
        model: a module that is built, which is measured as it is unless `start` says otherwise; a
            function that makes the model; or a reference as on the command line.
        data: inputs, with their `targets`; a frame of pandas; a data set or loader; a function that
            gives the data; a reference, a path, or a mapping with a path and options.
        targets: of the inputs, or the name of a frame's column.
        train: instead of data, the training part: (inputs, targets), a data set or a loader.
        validation: likewise; without it a part of the training samples.
        test: likewise.
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
    """
    from evalsuite.own.assessing import asked_of, doubted, keep_picture
    from evalsuite.own.memory import name_of
    from evalsuite.recipe import parse_recipe
    from evalsuite.report import write_report
    from evalsuite.results import read_results

    parts = {"train": train, "validation": validation, "test": test}
    home = Path(out) if out is not None else Path("runs") / name_of(model)
    workload_options = sent_options(model, data, targets, parts, home, options)
    # From here on as the command: a recipe, a run, a report.
    asked = asked_of(workload_options, stages=stages, seeds=seeds, quick=quick)
    folder = Path(out) if out is not None else Path("runs") / asked.name
    run_in_python(parse_recipe(asked.text()), folder, cache, jobs, progress)
    keep_picture(asked, folder)
    doubted(asked, folder)
    return Assessment(folder, read_results(folder), write_report(folder)[0])


def sent_options(
    model: Any, data: Any, targets: Any, parts: dict[str, Any], home: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """The options of `own` for a model and data in Python: what is in memory alone is written into
    `home` for the jobs, and named by a reference.

    Args:
        model: as `assess` takes it.
        data: likewise, with `targets`.
        targets: likewise.
        parts: train, validation and test; None where they are not given.
        home: the run's folder.
        options: further options of `own`.

    Raises:
        OwnError: see `assess`; or a job imports the script that calls.
    """
    from evalsuite.own.memory import is_module
    from evalsuite.own.options import Given

    # 1. A job that imports this script must not begin the assessment anew.
    if multiprocessing.parent_process() is not None:
        raise OwnError(
            "a job imports the script that calls evalsuite: call it under `if __name__ =="
            " '__main__':`"
        )
    # 2. What is in memory alone is written for the jobs, and named by a reference.
    options = dict(options)
    named = {name: options.pop(name, "") for name in ("task", "weights", "start")}
    if is_module(model):
        named["start"] = named["start"] or "trained"
    text = str(model) if isinstance(model, str) else ""
    ready = bool(named["weights"]) or text.startswith(("hf:", "timm:")) or text.endswith(".onnx")
    trained = (named["start"] or ("trained" if ready else "")) == "trained"
    parts = {name: part for name, part in parts.items() if part is not None}
    samples = _samples(data, targets, parts, home, trained=trained)
    named_model = Given(_sent_model(model, home), _sent_data(samples, home), **named)
    return _sent({**named_model.options(), **options}, home)


def run_in_python(
    recipe: Recipe, folder: Path, cache: Path | str | None, jobs: int, progress: str
) -> None:
    """Run a recipe in processes of this machine, as a function of Python does: errors are raised.
    Raises DataError, RunError: see `run_recipe`.
    """
    from evalsuite.run.console import cache_in, processes
    from evalsuite.run.progress import progress_of
    from evalsuite.run.runner import run_recipe

    executor, workers = processes(recipe, jobs)
    store = cache_in(Path(cache) if cache else None)
    run_recipe(recipe, folder.absolute(), store, executor, progress_of(progress), workers=workers)


def _samples(data: Any, targets: Any, parts: dict[str, Any], home: Path, *, trained: bool) -> Any:
    """The data as a function of a file would return them, or as the options of a table. Raises
    OwnError: they are given twice, or without a training part.
    """
    whole = not (isinstance(data, str) and data == "")
    column = targets if isinstance(targets, str) else ""
    if parts and (whole or not (targets is None or column)):
        raise OwnError("data: give either data, or train and test")
    if parts and "train" not in parts:
        raise OwnError(f"data: {' and '.join(parts)} without train; give train=(inputs, targets)")
    samples = parts or (data if targets is None or column else (data, targets))
    if any(is_frame(part) for part in (parts.values() if parts else [samples])):
        return from_frames(samples, column, home, trained=trained)
    if column:
        raise OwnError(f"targets={column!r} names a column, but the data are no frame")
    return samples


def _sent_model(model: Any, home: Path) -> str:
    """The model as a reference, written into the run's folder where it is in memory alone."""
    from evalsuite.own.memory import model_in_memory, name_of, write_in_memory

    kept = model_in_memory(model)
    if kept is not None:
        name = model.rpartition(":")[2] if isinstance(model, str) else name_of(model)
        return write_in_memory(kept, name, home)
    return str(reference_of(model))


def _sent_data(data: Any, home: Path) -> Any:
    """The data as a path, a reference or a mapping of options, likewise."""
    from evalsuite.own.memory import data_in_memory, write_in_memory

    kept = data_in_memory(data)
    return reference_of(data) if kept is None else write_in_memory(kept, "data", home)


def _sent(options: dict[str, Any], home: Path) -> dict[str, Any]:
    """The options with references in the place of functions, likewise."""
    from evalsuite.own.memory import model_in_memory, name_of, write_in_memory

    def reference(function: Any) -> Any:
        kept = model_in_memory(function)
        if kept is None:
            return reference_of(function)
        name = function.rpartition(":")[2] if isinstance(function, str) else name_of(function)
        return write_in_memory(kept, name, home)

    sent = {**options, "data": _sent_data(options["data"], home)}
    for name in ("task", "loss"):
        if name in sent:
            sent[name] = reference(sent[name])
    if not isinstance(sent.get("metrics", ""), str):
        sent["metrics"] = tuple(reference(metric) for metric in sent["metrics"])
    return sent
