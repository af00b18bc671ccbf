"""The rules of the contract that can be seen in a value: a plugin's declaration, and the outcome of a stage's run."""

from __future__ import annotations

import importlib.metadata
import inspect
import math
from pathlib import Path

import torch

from evalsuite.contract import Bench, Metric, Network, Outcome, Stage


def require(holds: bool, rule: str, culprit: str, cure: str) -> None:
    """Raise AssertionError with rule, culprit and cure, unless the rule holds."""
    if not holds:
        raise AssertionError(f"{rule}. Culprit: {culprit}. Cure: {cure}.")


def check_declaration(plugin: object, kind: str) -> None:
    """A frozen dataclass with version and one line of help; `kind` is "stage", "variant" or "workload"."""
    mine = f"My{kind.title()}"
    require(not isinstance(plugin, type), f"a {kind} is an instance", str(plugin), f"pass {mine}(), not {mine}")
    name = type(plugin).__name__
    parameters = getattr(type(plugin), "__dataclass_params__", None)
    require(
        parameters is not None and parameters.frozen,
        f"a {kind} is a frozen dataclass, whose fields are its options",
        name,
        "decorate the class with @dataclass(frozen=True)",
    )
    version = getattr(type(plugin), "version", None)
    require(
        isinstance(version, str) and version != "",
        f"a {kind} has a `version`: it enters the cache key",
        f"{name}.version is {version!r}",
        'write `version: ClassVar[str] = "1"`',
    )
    help_ = inspect.getdoc(type(plugin)) or ""
    # Without a docstring, dataclass writes the signature in its place.
    require(
        help_.strip() != "" and not help_.startswith(f"{name}("),
        f"a {kind}'s docstring begins with one line of help",
        f"{name} has no docstring",
        f"write one: `evalsuite {kind}s` shows its first line",
    )


def check_stage_declaration(stage: Stage) -> None:
    """What every plugin declares, and a stage's libraries."""
    check_declaration(stage, "stage")
    name = type(stage).__name__
    _check_libraries(name, getattr(type(stage), "libraries", None))
    for field in ("takes_tokens", "takes_several", "takes_any_task", "takes_deployed", "timed", "exclusive"):
        given = getattr(type(stage), field, False)
        require(
            isinstance(given, bool),
            f"`{field}` is True or False, where a stage has it",
            f"{name}.{field} is {given!r}",
            f"write `{field}: ClassVar[bool] = True`, or leave it out",
        )


def _check_libraries(name: str, libraries: object) -> None:
    require(
        isinstance(libraries, tuple) and all(isinstance(each, str) for each in libraries),
        "a stage has `libraries`: their versions enter the cache key",
        f"{name}.libraries is {libraries!r}",
        'write `libraries: ClassVar[tuple[str, ...]] = ("torch",)`, names of distributions',
    )
    assert isinstance(libraries, tuple)
    for library in libraries:
        try:
            importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            require(False, "each of `libraries` is an installed distribution", repr(library), "install or rename it")


def check_outcome(stage: Stage, outcome: Outcome, bench: Bench) -> None:
    """Metrics that a table can show, and artefacts where they belong."""
    name = type(stage).__name__
    require(isinstance(outcome, Outcome), "run returns an Outcome", f"{name}: {outcome!r}", "return Outcome([...])")
    require(
        not outcome.timed or getattr(stage, "timed", False),
        "a stage that takes times says so",
        f"{name} gave a function in the place of a metric",
        "write `timed: ClassVar[bool] = True`",
    )
    require(len(outcome.metrics) > 0, "a stage measures something", f"{name}: no metric", "raise Unsupported(reason)")
    for metric in outcome.metrics:
        _check_metric(name, metric)
    keys = [key_of(metric) for metric in outcome.metrics]
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    require(
        not twice,
        "no two metrics have the same name, setting and sample",
        f"{name} returned twice: {', '.join(twice)}",
        "tell them apart by `setting`",
    )
    for label, path in outcome.artefacts.items():
        require(
            Path(path).exists() and Path(path).resolve().is_relative_to(bench.folder.resolve()),
            "artefacts exist, inside bench.folder",
            f"{name}: artefact {label!r} is {path}",
            "write it to bench.folder / 'some-name'",
        )
    if outcome.network is not None:
        _check_handed_on(name, outcome.network, bench)


def key_of(metric: Metric) -> tuple[str, str, int]:
    """What tells a metric from the others of its outcome; sample -1 where it is of no single sample."""
    setting = ", ".join(f"{name}={value!r}" for name, value in sorted(metric.setting.items()))
    return metric.name, setting, -1 if metric.sample is None else metric.sample


def _check_metric(stage: str, metric: Metric) -> None:
    require(isinstance(metric, Metric), "metrics are of type Metric", f"{stage}: {metric!r}", "return Metric(...)")
    culprit = f"{stage}: metric {metric.name!r} (setting {dict(metric.setting)}, sample {metric.sample})"
    value = metric.value
    if value is None:
        return
    require(
        math.isfinite(value),
        "a value is finite",
        f"{culprit} is {value}",
        "give value None and the reason why there is none",
    )
    require(
        metric.unit != "fraction" or abs(value) <= 1,
        "a fraction is in [0, 1], a difference of fractions in [-1, 1]",
        f"{culprit} is {value}",
        "do not multiply by 100; a quotient that may exceed 1 has the unit 'ratio'",
    )


def _check_handed_on(stage: str, network: Network, bench: Bench) -> None:
    require(
        not network.module.training,
        "a network is handed on in eval mode",
        stage,
        "call module.eval() before returning it",
    )
    inputs = bench.data.test.inputs[:2]
    with torch.no_grad():
        logits = network.module(inputs)
    require(
        logits.shape == (len(inputs), network.classes) and bool(logits.isfinite().all()),
        "a network handed on computes finite logits (batch, classes)",
        f"{stage}: {len(inputs)} inputs gave shape {tuple(logits.shape)}",
        "leave the last layer's width as it is",
    )
