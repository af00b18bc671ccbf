"""`check`: what a person verifies by eye, which stages will run, and how long the whole takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.own.assessing import PICTURE
from evalsuite.own.budget import without_search
from evalsuite.own.duration import Pace, duration_of
from evalsuite.own.preview import draw_samples, file_tokenizer, first_score, sample_lines
from evalsuite.recipe import TRAIN, parse_recipe
from evalsuite.results import Status, read_results
from evalsuite.run.console import processes
from evalsuite.run.journal import JOURNAL, read_journal

if TYPE_CHECKING:
    import pandas as pd

    from evalsuite.own.preview import First
    from evalsuite.own.recipes import Asked
    from evalsuite.recipe import Recipe

_MINIATURE = 64  # samples of each part
Line = tuple[str, str]


def checked(asked: Asked, folder: Path, shown: Path, time_limit: float) -> Iterator[Line]:
    """(what, finding) of a look at samples and the baseline, and of a trial of every stage on a few
    samples, each in a process of its own.

    Args:
        asked: the assessment.
        folder: for the trial, to be thrown away.
        shown: where a picture of the samples goes, if they are images; its folder is made.
        time_limit: seconds of each process.
    """
    workload = asked.brought
    data = workload.data()
    # 1. Three samples, as text and as pictures, and the baseline's first score.
    for number, line in enumerate(
        sample_lines(data, file_tokenizer(workload.data_choice, workload.model_choice, data)), 1
    ):
        yield f"sample {number}", line
    if draw_samples(workload.data_choice, data, shown):
        yield "pictures", f"of these samples: {shown}"
    first = first_score(workload, data, asked.examined.floors)
    yield "first score", first.words
    # 2. The trial.
    trial = parse_recipe(asked.miniature(_MINIATURE, time_limit).text())
    yield from _tried(trial, folder)
    yield "time", f"assess takes {_durations(asked, trial, folder, first)}"


def picture_of(name: str) -> Path:
    """Where `check` draws samples: beside the folder of the run that `assess` would make."""
    return Path("runs") / f"{name}-{PICTURE}"


def _tried(recipe: Recipe, folder: Path) -> Iterator[Line]:
    """Say what became of each variant's making, and of the baseline in each stage."""
    from evalsuite.run.cache import Cache
    from evalsuite.run.progress import progress_of
    from evalsuite.run.runner import run_recipe

    # 1. Without a search for a budget, in a cache of its own.
    executor, workers = processes(recipe)
    with without_search():
        run_recipe(
            recipe,
            folder / "run",
            Cache(folder / "cache"),
            executor,
            progress_of("none"),
            workers=workers,
        )
    # 2. A line for each variant's making, and for each stage on the baseline.
    frame = read_results(folder / "run")
    for variant in recipe.variants:
        made = frame[(frame.variant == variant.name) & (frame.step == TRAIN)]
        yield variant.name, _became(made)
    for step in recipe.steps:
        rows = frame[(frame.variant == recipe.baseline) & (frame.step == step.name)]
        yield step.name, _became(rows)


def _became(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "was not tried: the network it needs was not made"
    failed = rows[rows.metric == ""]
    if failed.empty:
        return "will run"
    first = failed.iloc[0]
    if first.status == Status.TIMEOUT.value:
        return (
            f"was not seen to run: {first.reason} on {_MINIATURE} samples; `check --time-limit`"
            " gives it longer"
        )
    return f"will not: {first.reason}"


def _durations(asked: Asked, trial: Recipe, folder: Path, first: First) -> str:
    """How long the whole will take, and a first look."""
    workload = asked.brought
    entries = read_journal(folder / "run" / JOURNAL)
    searched = workload.start != "trained" and not workload.is_onnx and not asked.own.get("epochs")
    epochs = None if searched else workload.epochs
    pace = Pace.of(workload.data(), first, batch_size=workload.batch_size, epochs=epochs)
    said = []
    for quick in (False, True):
        recipe = parse_recipe(replace(asked, quick=quick).text())
        _, workers = processes(recipe)
        duration = duration_of(recipe, trial, entries, pace, workers)
        said.append(f"{duration.words}{' with --quick' if quick else ''}")
    return ", ".join(said)
