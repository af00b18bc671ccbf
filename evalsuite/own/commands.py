"""The commands for a model of one's own: check, assess, init and relu-ize."""

from __future__ import annotations

import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalsuite.terminal import say

if TYPE_CHECKING:
    from evalsuite.own.options import Given

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="my.py:make_model, hf:FOLDER, timm:NAME or net.onnx.")
]
DataOption = Annotated[
    str, typer.Option("--data", metavar="DATA", help="A file, a folder, or my.py:make_data.")
]
TaskOption = Annotated[
    str,
    typer.Option(
        "--task", help="As classification or regression, my.py:MyTask, or NAME=TASK,NAME=TASK."
    ),
]
Weights = Annotated[
    str, typer.Option(metavar="FILE", help="Weights to load: .safetensors, or a state dict in .pt.")
]
Start = Annotated[
    str, typer.Option(help="trained, pretrained or scratch [trained with weights, else scratch].")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="OPTION=VALUE", help="Any option of `own`, as data.target=price."
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The run's folder [runs/NAME].")
]
CacheFolder = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="The cache [$EVALSUITE_CACHE, else the user's]."),
]
Stages = Annotated[str, typer.Option(help="all, or names with commas between.")]
Seeds = Annotated[int, typer.Option(help="Networks of each variant, where they are trained.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="A first look: fewer variants, one seed, small options.")
]
Jobs = Annotated[int, typer.Option(help="Processes at a time; 0: one per core.")]
MaxLoss = Annotated[
    float | None,
    typer.Option(help="Goal: find the cheapest treatment that loses no more, in points."),
]
MinSpeedup = Annotated[float | None, typer.Option(help="Goal: and that is so many times as fast.")]
Target = Annotated[str, typer.Option(help="What executes it: onnxruntime.")]
_WIDTH = 28  # of what a line of `check` is about
Progress = Annotated[str, typer.Option(help="auto, rich, plain, json or none; on stderr.")]


def check(
    model: Model,
    data: DataOption = "",
    task: TaskOption = "",
    weights: Weights = "",
    start: Start = "",
    set_: Set = None,
    stages: Stages = "all",
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="For each stage on the few samples.")
    ] = 60.0,
) -> None:
    """Look at your model and data, and say stage by stage: will run, or why not and the cure.

    The model is loaded, its activations are found, one training step is taken; three samples and
    a first score are shown, to be verified by eye. Then every stage is tried on a few samples, each
    in a process of its own. Nothing is kept but a picture of the samples, where they are images.
    """
    from evalsuite.own.checking import checked, picture_of
    from evalsuite.own.options import Given

    if not time_limit > 0:
        raise typer.BadParameter(
            f"must be > 0 seconds, got {time_limit}", param_hint="--time-limit"
        )
    named = Given(model, data, task, weights, start, set_ or [])
    asked = _asked(named, stages, search=False)
    _print_examined(asked.examined.lines)
    with tempfile.TemporaryDirectory() as folder:
        lines = checked(asked, Path(folder), picture_of(asked.name), time_limit)
        while (line := _told(lambda: next(lines, None))) is not None:
            say(f"{line[0]:<{_WIDTH}} {line[1]}")


def assess(
    model: Model,
    data: DataOption = "",
    task: TaskOption = "",
    weights: Weights = "",
    start: Start = "",
    set_: Set = None,
    stages: Stages = "all",
    seeds: Seeds = 3,
    quick: Quick = False,
    against: Annotated[
        str, typer.Option(metavar="FILE", help="Of net.onnx: the ONNX file to compare with.")
    ] = "",
    max_loss: MaxLoss = None,
    min_speedup: MinSpeedup = None,
    target: Target = "onnxruntime",
    out: Out = None,
    cache: CacheFolder = None,
    jobs: Jobs = 0,
    progress: Progress = "auto",
) -> None:
    """Your model through every stage, against its ReLU variants: a recipe, a run and a report.

    The exit code is 1 if a job failed, or if the baseline is no trained network.
    """
    from evalsuite.own.assessing import doubted, goals_met, kept_recipe, report_of, warnings_of
    from evalsuite.own.goals import Goals, with_stages
    from evalsuite.own.options import Given
    from evalsuite.run.console import cache_in, execute

    named = Given(model, data, task, weights, start, set_ or [])
    # 1. Goals need stages of their own, whichever are asked for.
    goals = _told(lambda: Goals(max_loss, min_speedup, target))
    stages = ",".join(with_stages(stages.split(","))) if goals.given else stages
    asked = _asked(named, stages, against=against, seeds=seeds, quick=quick)
    # 2. Say what was found, run, and report.
    _print_examined(asked.examined.lines)
    folder = out or Path("runs") / asked.name
    read = _told(lambda: kept_recipe(asked, folder))
    complete = execute(
        read,
        folder,
        cache_in(cache),
        jobs=jobs,
        progress=progress,
        command=f"evalsuite assess {model}",
    )
    doubts = _told(lambda: doubted(asked, folder))
    for line in (*_no_verdict(doubts), *report_of(folder)):
        say(line)
    for line in warnings_of(asked.examined.lines):
        say(line)
    # 3. Goals are judged only where the baseline is a trained network.
    if goals.given and not doubts:
        for line in _told(lambda: [*goals_met(goals, asked, folder)]):
            say(line)
    if doubts or not complete:
        raise typer.Exit(1)


def init(
    model: Model,
    data: DataOption = "",
    task: TaskOption = "",
    weights: Weights = "",
    start: Start = "",
    set_: Set = None,
    stages: Stages = "all",
    seeds: Seeds = 3,
    quick: Quick = False,
) -> None:
    """Print the recipe that `assess` would run, to be kept and changed."""
    with redirect_stdout(sys.stderr):  # what the model prints is no part of the recipe
        from evalsuite.own.options import Given

        named = Given(model, data, task, weights, start, set_ or [])
        asked = _asked(named, stages, seeds=seeds, quick=quick)
    print(asked.text(), end="")


def relu_ize(
    model: Model,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the ReLU network and the report go.")
    ],
    data: DataOption = "",
    task: TaskOption = "",
    weights: Weights = "",
    start: Start = "",
    set_: Set = None,
    cache: CacheFolder = None,
    jobs: Jobs = 0,
    progress: Progress = "auto",
) -> None:
    """Put ReLU into a trained model: the best of refit, fine-tuning and post-hoc hardening by
    the validation data.
    """
    from evalsuite.own.options import Given
    from evalsuite.own.reluizing import relu_ized

    named = Given(model, data, task, weights, start or "trained", set_ or [])
    options = _told(named.options)
    for line in _told(lambda: [*relu_ized(options, out, cache, jobs=jobs, progress=progress)]):
        say(line)


def _asked(named: Given, stages: str, **how: Any) -> Any:
    """The assessment that a command asks for."""
    from evalsuite.own.assessing import asked_of

    return _told(lambda: asked_of(named.options(), stages=stages.split(","), **how))


def _print_examined(lines: tuple[tuple[str, str], ...]) -> None:
    width = max(len(what) for what, _ in lines)
    for what, finding in lines:
        say(f"{what:<{width}}  {finding}")


def _no_verdict(doubts: list[str]) -> list[str]:
    """The doubts about a baseline, and what follows from them."""
    return [*doubts, "So nothing is concluded from the differences to it."] if doubts else []


def _told(work: Any) -> Any:
    """Do `work`; an error in the user's model or data ends the command with its one message."""
    from evalsuite.recipe import RecipeError
    from evalsuite.run.console import described, stop
    from evalsuite.workloads.workload import DataError
    from opgraph.errors import OwnError

    try:
        return work()
    except (OwnError, RecipeError, DataError, ValueError) as error:
        stop(error)
    except OSError as error:
        stop(described(error))
