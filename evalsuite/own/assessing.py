"""From a user's model on the command line, or in Python, to a recipe, a run and a report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.own.budget import budget_of
from evalsuite.own.examining import examine
from evalsuite.own.floors import doubts_of
from evalsuite.own.options import own_of
from evalsuite.own.recipes import Asked
from evalsuite.recipe import TRAIN, Recipe
from evalsuite.results import parse_setting, read_results
from evalsuite.run.record import keep_doubts
from opgraph.errors import OwnError

if TYPE_CHECKING:
    import pandas as pd

    from evalsuite.own.goals import Goals


_VALIDATED = "validation_"  # before the name of a task's metric
PICTURE = "samples.png"  # of three samples, beside the report
_BEGUN = {
    "scratch": "trained from its initial weights",
    "pretrained": "fine-tuned from the given weights",
}


def asked_of(options: Mapping[str, Any], *, search: bool = True, **how: Any) -> Asked:
    """The assessment of a model with these options, after a look at model and data; with `search`,
    of a model that is trained or fine-tuned with the budget that a search finds. Raises OwnError:
    see `examine`.
    """
    workload = own_of(options)
    examined = examine(workload)
    path = options["model"] if isinstance(options["model"], str) else str(options["model"]["path"])
    # Of the model's name: net of my.py:net, my-bert of hf:./my-bert.
    last = re.split(r"[:/\\]", path.rstrip("/"))[-1].removesuffix(".onnx")
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", last).strip("-.") or "own"
    asked = Asked(name, dict(options), examined, workload, **how)
    if asked.against:
        try:
            examine(own_of({**options, "model": asked.against}))
        except OwnError as error:
            raise OwnError(f"--against {asked.against}: {error}") from error
    trained = workload.start != "trained" and not workload.is_onnx
    return _budgeted(asked, search=search) if trained else asked


def _budgeted(asked: Asked, *, search: bool) -> Asked:
    """The assessment with the epochs and the learning rate that a search finds, or as given;
    without a search, as in `check`, it only says how they would be found.
    """
    said = (
        "trained until validation stops improving, which assess finds out; --set epochs=N for a"
        " budget of your own"
    )
    if not search:
        return (
            asked
            if "epochs" in asked.own
            else replace(asked, examined=asked.examined.told("start", said))
        )
    # What the user gave is tested, and what is missing is searched.
    rate, epochs = (asked.own.get(name) or 0 for name in ("learning_rate", "epochs"))
    workload = asked.brought
    budget = budget_of(workload, workload.data(), rate=rate, epochs=epochs)
    options = {**asked.own, "epochs": budget.epochs, "learning_rate": budget.learning_rate}
    begun = _BEGUN[workload.start]
    examined = asked.examined.told("start", f"each variant is {begun}, {budget.words}")
    return replace(asked, own=options, examined=examined, budget=budget)


def kept_recipe(asked: Asked, folder: Path) -> Recipe:
    """The assessment's recipe, written into the run's folder; what another run has there is left as
    it is. Raises OwnError: a recipe.yaml that no run has written is there.
    """
    from evalsuite.recipe import parse_recipe
    from evalsuite.run.record import read_record

    file, text = folder / "recipe.yaml", asked.text()
    recipe, known = parse_recipe(text, str(file)), read_record(folder)
    if (
        known is None
        and file.exists()
        and file.read_text(encoding="utf-8", errors="replace") != text
    ):
        raise OwnError(
            f"{file}: is there already, and of no run; choose another folder with --out, or move it"
            " away"
        )
    if known is None or known.holds(recipe):  # else the run is refused
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        keep_picture(asked, folder)
    return recipe


def keep_picture(asked: Asked, folder: Path) -> None:
    """Draw three training samples into the run's folder, where they are images."""
    from evalsuite.own.preview import draw_samples

    workload = asked.brought
    draw_samples(workload.data_choice, workload.data(), folder / PICTURE)


def report_of(folder: Path) -> Iterator[str]:
    """Write the report of a run; a table of each step's headline by variant, the answer, and
    where the report lies.
    """
    from evalsuite.report import write_report
    from evalsuite.report.opening import terminal_lines
    from evalsuite.report.run import Run

    page = write_report(folder)[0]
    yield from _table(read_results(folder))
    yield from terminal_lines(Run.of(folder))
    if (folder / PICTURE).is_file():
        yield f"Three training samples: {folder / PICTURE}"
    yield f"Report: {page}"


def warnings_of(lines: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each warning of the look at model and data."""
    return [f"Warning: {finding}" for what, finding in lines if what == "warning"]


def doubted(asked: Asked, folder: Path) -> list[str]:
    """Why a run's baseline is no trained network, so that nothing is concluded from it; kept in the
    run's record, where every report of it finds that.
    """
    # What a user brings trained is what it is, though a linear model may be better.
    floors = tuple(
        floor for floor in asked.examined.floors if floor.least or asked.start != "trained"
    )
    sentences = doubts_of(read_results(folder), asked.examined.activation or "given", floors)
    if asked.budget is not None and asked.budget.doubt:
        sentences = [asked.budget.doubt, *sentences]
    doubts = [
        f"not trained: {sentence}" if asked.start != "trained" else sentence
        for sentence in sentences
    ]
    keep_doubts(folder, asked.name, doubts)
    return doubts


def _table(frame: pd.DataFrame) -> list[str]:
    """Format a table of means over seeds: for each step, the metric that its section shows first,
    or else the first with a direction.
    """
    variants = list(dict.fromkeys(frame.variant))
    task = next(
        (
            metric.removeprefix(_VALIDATED)
            for metric in frame.metric
            if metric.startswith(_VALIDATED)
        ),
        "",
    )
    lines = [["", *variants]]
    for step in dict.fromkeys(frame.step[frame.step != TRAIN]):
        rows = frame[(frame.step == step) & frame["sample"].isna()]
        # Rows that can be averaged and compared: with a value and a direction, and no clock.
        comparable = rows[rows.value.notna() & (rows.direction != "neutral") & ~rows.timing]
        if comparable.empty:
            lines.append([step, *["-" for _ in variants]])
            continue
        name, setting = _headline(comparable, task)
        headline_rows = comparable[(comparable.metric == name) & (comparable.setting == setting)]
        means = headline_rows.groupby("variant").value.mean()
        shown = f"{step}: {name}{f' ({setting})' if setting else ''}"
        lines.append(
            [
                shown,
                *[
                    _number(means[variant], headline_rows) if variant in means else "-"
                    for variant in variants
                ],
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(variants) + 1)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _number(mean: float, rows: pd.DataFrame) -> str:
    """A mean over seeds; of one network and few test samples a count of them: "4 of 5"."""
    from evalsuite.report.numerals import of_few
    from evalsuite.report.section import sections

    stage, options = rows["stage"].iloc[0], rows["options"].iloc[0]
    options_of_samples = [
        section.sampled_by for section in sections().values() if stage in section.stages
    ]
    samples = next((options[option] for option in options_of_samples if options.get(option)), 0)
    if samples and rows["seed"].nunique() == 1 and rows["unit"].iloc[0] == "fraction":
        return of_few(mean, int(samples)) or f"{mean:.4g}"
    return f"{mean:.4g}"


def _headline(rows: pd.DataFrame, task: str) -> tuple[str, str]:
    """The metric and the setting by which a step's section wants it to be known; of another
    task, the task's own.
    """
    from evalsuite.report.section import Headline, sections

    # What the stage's section draws goes first, and then the task's own metric.
    stage = rows.stage.iloc[0]
    headlines = [
        headline
        for section in sections().values()
        for headline in section.headlines
        if headline.stage == stage
    ]
    for headline in (
        *(headline for headline in headlines if headline.figure),
        *([Headline(stage, task)] if headlines else []),
    ):
        rows_of_metric, (key, values) = rows[rows.metric == headline.metric], headline.wanted
        if not rows_of_metric.empty:
            there = {parse_setting(text).get(key): text for text in rows_of_metric.setting[::-1]}
            return headline.metric, next(
                (there[value] for value in values if value in there), rows_of_metric.setting.iloc[0]
            )
    return tuple(rows.iloc[0][["metric", "setting"]])


def goals_met(goals: Goals, asked: Asked, folder: Path) -> Iterator[str]:
    """Which treatment of an assessment meets the goals, and what it does on the test data."""
    from evalsuite.networks import load_network
    from evalsuite.own.goals import goal_lines

    workload = asked.brought
    data, network = workload.data(), None
    kept = folder / "artefacts" / asked.name / asked.examined.activation / "0" / TRAIN / "network"
    if asked.examined.activation and kept.is_dir():
        network = load_network(kept, workload, data).module
    yield from goal_lines(goals, folder, asked.name, data, network=network)
