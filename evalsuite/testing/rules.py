"""The rules that every plugin keeps: how it is declared, what its outcome is like, and what it
leaves as it was.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from evalsuite.contract import (
    Bench,
    Metric,
    Network,
    Outcome,
    Split,
    Stage,
    capabilities_of,
)
from evalsuite.samples import Samples
from opgraph.inputs import leaves


def require(
    holds: object, rule: str, culprit: str, cure: str, error: BaseException | None = None
) -> None:
    """Raise AssertionError with rule, culprit and cure, by that error if there is one, unless
    the rule holds.
    """
    if not holds:
        raise AssertionError(f"{rule}. Culprit: {culprit}. Cure: {cure}.") from error


def check_declaration(plugin: object, kind: str) -> None:
    """A frozen dataclass with version and one line of help; `kind` is "stage", "variant" or
    "workload".
    """
    mine = f"My{kind.title()}"
    require(
        not isinstance(plugin, type),
        f"a {kind} is an instance",
        str(plugin),
        f"pass {mine}(), not {mine}",
    )
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
    """Check what every plugin declares, and a stage's libraries."""
    check_declaration(stage, "stage")
    name = type(stage).__name__
    _check_libraries(name, getattr(type(stage), "libraries", None))
    try:
        capabilities_of(stage)
    except TypeError as error:
        require(
            False,
            "what a stage can measure is a Capabilities",
            str(error),
            "write `capabilities: ClassVar[Capabilities] = Capabilities(tokens=True)`",
        )


def _check_libraries(name: str, libraries: object) -> None:
    require(
        isinstance(libraries, tuple) and all(isinstance(library, str) for library in libraries),
        "a stage has `libraries`: their versions enter the cache key",
        f"{name}.libraries is {libraries!r}",
        'write `libraries: ClassVar[tuple[str, ...]] = ("torch",)`, names of distributions',
    )
    assert isinstance(libraries, tuple)
    for library in libraries:
        try:
            importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            require(
                False,
                "each of `libraries` is an installed distribution",
                repr(library),
                "install or rename it",
            )


def check_outcome(stage: Stage, outcome: Outcome, bench: Bench) -> None:
    """Metrics that a table can show, and artefacts where they belong."""
    name = type(stage).__name__
    require(
        isinstance(outcome, Outcome),
        "run returns an Outcome",
        f"{name}: {outcome!r}",
        "return Outcome([...])",
    )
    require(
        not outcome.timed or capabilities_of(stage).timed,
        "a stage that takes times says so",
        f"{name} gave a function in the place of a metric",
        "write `capabilities: ClassVar[Capabilities] = Capabilities(timed=True)`",
    )
    require(
        len(outcome.metrics) > 0,
        "a stage measures something",
        f"{name}: no metric",
        "raise Unsupported(reason)",
    )
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
    """Return the key that tells a metric from the others of its outcome; sample -1 where it is of
    no single sample.
    """
    setting = ", ".join(f"{name}={value!r}" for name, value in sorted(metric.setting.items()))
    return metric.name, setting, -1 if metric.sample is None else metric.sample


def _check_metric(stage: str, metric: Metric) -> None:
    require(
        isinstance(metric, Metric),
        "metrics are of type Metric",
        f"{stage}: {metric!r}",
        "return Metric(...)",
    )
    culprit = (
        f"{stage}: metric {metric.name!r} (setting {dict(metric.setting)}, sample {metric.sample})"
    )
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


_BATCH = 256


@contextmanager
def torch_state_kept(plugin: object, kind: str) -> Iterator[None]:
    """Restores torch's global state, and says so where the plugin had changed it."""
    readers: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
        "thread count": (torch.get_num_threads, torch.set_num_threads),
    }
    before = {name: read() for name, (read, _) in readers.items()}
    changed: dict[str, Any] = {}
    try:
        yield
    finally:
        changed = {name: read() for name, (read, _) in readers.items() if read() != before[name]}
        for name in changed:
            readers[name][1](before[name])
    require(
        not changed,
        f"a {kind} leaves torch's global state as it was",
        f"{type(plugin).__name__} left"
        f" {', '.join(f'{name} {value}' for name, value in changed.items())}",
        "use context managers such as torch.no_grad(), or restore in `finally`",
    )


def disturb(number: int) -> None:
    """A plugin that draws from a global generator without seeding it must not pass by luck."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def fingerprint(
    modules: Mapping[str, nn.Module | None], splits: Mapping[str, Split]
) -> dict[str, object]:
    """All of some networks and data that a plugin might change, by name."""
    digests: dict[str, object] = {}
    for role, root in modules.items():
        if root is None:
            continue
        for path, module in root.named_modules(prefix=role):
            hooks = (
                len(module._forward_hooks)
                + len(module._forward_pre_hooks)
                + len(module._backward_hooks)
            )
            digests[f"type, mode or hooks of {path}"] = (type(module), module.training, hooks)
        for path, tensor in root.state_dict(prefix=f"{role}.").items():
            digests[f"weights {path}"] = content(tensor)
        for path, parameter in root.named_parameters(prefix=role):
            digests[f"requires_grad of {path}"] = parameter.requires_grad
            digests[f"gradient of {path}"] = (
                None if parameter.grad is None else content(parameter.grad)
            )
    for part, split in splits.items():
        digests[f"data.{part}.inputs"], digests[f"data.{part}.targets"] = (
            content(split.inputs),
            content(split.targets),
        )
    return digests


def check_unchanged(
    before: dict[str, object], after: dict[str, object], plugin: object, kind: str, given: str
) -> None:
    """The fingerprints are the same; `given` names the network that is to be copied."""
    changed = sorted(
        key for key in before.keys() | after.keys() if before.get(key) != after.get(key)
    )
    require(
        not changed,
        f"a {kind} copies; it never changes what it was given",
        f"{type(plugin).__name__} changed {', '.join(changed[:5])}",
        f"work on copy.deepcopy({given}), and on clones of the data",
    )


def content(tensor: torch.Tensor | Samples) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes, to compare; of samples that are read when asked for a digest of the
    bytes.
    """
    if isinstance(tensor, Samples):
        digest = sha256()
        for start in range(0, len(tensor), _BATCH):
            for leaf in leaves(tensor[start : start + _BATCH]):
                digest.update(leaf.contiguous().numpy().tobytes())
        return str(tensor.dtype), tuple(tensor.shape), digest.digest()
    return str(tensor.dtype), tuple(tensor.shape), tensor.detach().contiguous().numpy().tobytes()
