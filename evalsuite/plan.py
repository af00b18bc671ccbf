"""From a recipe to jobs, and the content keys by which finished work is found again."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

from evalsuite import sources
from evalsuite.contract import capabilities_of
from evalsuite.plugins import entries
from evalsuite.recipe import TRAIN, Part, Recipe, Step, option_names
from evalsuite.workloads.workload import DataError, unreadable

_HARNESS = ("evalsuite.run.child", "evalsuite.run.making", "evalsuite.networks")
# numba: a compiled kernel, where it is installed
_TRAIN_LIBRARIES = ("torch", "numpy", "scikit-learn", "numba")
_STAGE_LIBRARIES = ("torch", "numpy", "onnx", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Job:
    """One unit of work: making one network, or one step on one network.

    `needs` is the id of the job whose network it takes; empty for training from scratch. `shown` is
    False for a base network that no variant of the recipe is. `memory_limit` is in GiB; 0 is what
    the machine allows. `exported` says of the making of a network that steps need its float32 ONNX
    file, which is then written with it, once for all.
    """

    workload: Part
    variant: Part
    seed: int
    step: Step | None
    needs: str
    time_limit: float
    shown: bool = True
    memory_limit: float = 0.0
    exported: bool = False

    @property
    def step_name(self) -> str:
        """The step's name; "train" for the making of the network."""
        return self.step.name if self.step else TRAIN

    @property
    def id(self) -> str:
        """The name of the job in this run: workload/variant/seed/step."""
        return f"{self.workload.name}/{self.variant.name}/{self.seed}/{self.step_name}"

    @property
    def exclusive(self) -> bool:
        """Whether no other job may run beside it, which its stage declares."""
        return bool(self.step and capabilities_of(self.step.stage).exclusive)

    @property
    def timed(self) -> bool:
        """Whether its stage takes times, alone or in all of its job."""
        return self.exclusive or bool(self.step and capabilities_of(self.step.stage).timed)

    @property
    def plugins(self) -> set[str]:
        """The top-level packages of its workload, variant and stage."""
        parts = (self.workload, self.variant, *([self.step.part] if self.step else []))
        return {type(part.target).__module__.partition(".")[0] for part in parts}

    @property
    def coordinates(self) -> dict[str, Any]:
        """The job's columns of a row, without the key."""
        return {
            "workload": self.workload.name,
            "variant": self.variant.name,
            "seed": self.seed,
            "step": self.step_name,
            "stage": self.step.part.use if self.step else TRAIN,
        }


def jobs_of(recipe: Recipe) -> list[Job]:
    """The jobs in the order of rows: by workload, variant and seed; each job after the one it
    needs. Raises ValueError where jobs need each other, or share an id.
    """
    jobs: list[Job] = []
    # 1. In the order of rows: the making of each network, then each step on it, or on the network
    # that an earlier step hands over.
    parts, limit = [*recipe.hidden, *recipe.variants], recipe.memory_limit
    bases = {part.name: recipe.base_of(part) for part in parts}
    treated = _Treated(recipe, bases)
    exports = any(capabilities_of(step.stage).exports and not step.after for step in recipe.steps)
    for workload, part, seed in product(recipe.workloads, parts, recipe.seeds):
        own, base, shown = treated(workload, part, seed), bases[part.name], part in recipe.variants
        needs = f"{workload.name}/{base.name}/{seed}/{TRAIN}" if base else ""
        made = Job(own, part, seed, None, needs, recipe.time_limit, shown, limit, shown and exports)
        jobs.append(made)
        for step in recipe.steps if shown else ():
            taken = made.id.removesuffix(TRAIN) + (step.after or TRAIN)
            jobs.append(Job(own, part, seed, step, taken, step.time_limit, memory_limit=limit))
    # 2. In the order of needs, which otherwise keeps that of the rows. A round that adds nothing
    # has met a circle, or a second job of one id.
    ordered: dict[str, Job] = {}
    while len(ordered) < len(jobs):  # a variant may stand before its base in the recipe
        before = len(ordered)
        for job in jobs:
            if not job.needs or job.needs in ordered:
                ordered.setdefault(job.id, job)
        if len(ordered) == before:
            raise ValueError(
                "jobs need each other, or share an id:"
                f" {sorted({job.id for job in jobs} - set(ordered))}"
            )
    return list(ordered.values())


class _Treated:
    """A recipe's workloads as its variants and seeds meet them: with the learning rate of the one,
    the other's split.

    A network that is made from another's has that one's rate, so that a fine-tuning takes its share
    of it. Equal ones are one object, since what is described of a part is kept by its identity.
    """

    def __init__(self, recipe: Recipe, bases: Mapping[str, Part | None]) -> None:
        self._recipe, self._bases = recipe, bases
        self._made: dict[tuple[str, float | None, int | None], Part] = {}

    def __call__(self, workload: Part, variant: Part, seed: int) -> Part:
        trainer = variant
        while base := self._bases[trainer.name]:
            trainer = base
        rate = self._recipe.learning_rates.get(workload.name, {}).get(trainer.name)
        cut = seed if self._recipe.split_by_seed and workload.cut else None
        options = {"learning_rate": rate, "split": cut}
        changed = {option: value for option, value in options.items() if value is not None}
        if not changed:
            return workload
        place = (workload.name, rate, cut)
        return self._made.get(place) or self._made.setdefault(place, workload.having(changed))


def inputs_of(job: Job, network: str) -> dict[str, str]:
    """All that the job's result depends on, flat, as text; its digest is the job's key.

    Args:
        network: the digest of the network it takes; empty for training from scratch.
    """
    # 1. What every job depends on: network, seed, data, workload, machine and code.
    inputs = {
        "network": network,
        "seed": str(job.seed),
        "data": fingerprint_of(job.workload),
        "workload": _kind(job.workload),
        "processor": f"{processor()}, flags {_flags()}",
        **_device(getattr(job.workload.target, "device", "cpu")),
        **{f"workload {key}": value for key, value in _described(job.workload).items()},
        "code": sources.digest(*code_of(job)),
    }
    inputs |= {
        f"library {name}": _version(name) for name in getattr(job.workload.target, "libraries", ())
    }
    # 2. Training depends on the variant, and on the libraries that train.
    if job.step is None:
        inputs["variant"] = _kind(job.variant)
        inputs |= _described(job.variant)
        inputs |= {f"library {name}": _version(name) for name in _TRAIN_LIBRARIES}
        return inputs
    # 3. A measurement depends on the stage and its options; on the time limit too, since
    # verifiers answer by it.
    stage = job.step.stage
    inputs["stage"] = _kind(job.step.part)
    inputs["time limit"] = repr(job.time_limit)
    inputs |= _described(job.step.part)
    used = {*_STAGE_LIBRARIES, *stage.libraries, *getattr(stage, "optional_libraries", ())}
    inputs |= {f"library {name}": _version(name) for name in sorted(used)}
    return inputs


def code_of(job: Job) -> tuple[str, ...]:
    """The modules that the job begins with; with all that these import they are the source that it
    runs.

    All activations are among them, since a census compares what a network computes with each of
    them.
    """
    treated = job.variant if job.step is None else job.step.part
    own = (type(part.target).__module__ for part in (job.workload, treated))
    return *_HARNESS, *_activations(tuple(sys.path)), *own


@cache
def _activations(_path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(entry.module for entry in entries("activations"))


def key_of(inputs: Mapping[str, str]) -> str:
    """The content key: SHA-256 of the inputs."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say in words where two sets of inputs differ."""
    short = {
        key: (before.get(key, "none")[:12], now.get(key, "none")[:12])
        for key in sorted({*before, *now})
    }
    said = [
        f"{key} {old} -> {new}"
        for key, (old, new) in short.items()
        if before.get(key) != now.get(key)
    ]
    return "; ".join(said)


def options_of(part: Part) -> dict[str, Any]:
    """The options of a workload, variant or stage as they stand, defaults included."""
    named = {
        option: getattr(part.target, name) for option, name in option_names(part.target).items()
    }
    return {option: _plain(value) for option, value in named.items()}


def _plain(value: Any) -> Any:
    """An option that is a dataclass as the mapping that a recipe has: what differs from its
    defaults.
    """
    if not is_dataclass(value) or isinstance(value, type):
        return value
    made = {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }
    return {name: dict(each) if isinstance(each, Mapping) else each for name, each in made.items()}


# By identity, since a part cannot be hashed.
_DESCRIBED: dict[int, tuple[Part, dict[str, str]]] = {}


def _described(part: Part) -> dict[str, str]:
    """The options as text; of one that names files, such as a checkpoint or a folder of them, their
    contents too.

    What names none is described once: a plan of 100,000 jobs has few parts.
    """
    if id(part) in _DESCRIBED:
        return _DESCRIBED[id(part)][1]
    options = options_of(part)
    described = {f"option {key}": repr(value) for key, value in options.items()}
    named = [
        (key, each)
        for key, value in options.items()
        for each in _each(value)
        if _may_name_files(each)
    ]
    for key, each in named:
        described |= {f"option {key}: {file}": sources.content(file) for file in _files(each)}
    if not named:
        _DESCRIBED[id(part)] = (part, described)
    return described


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _may_name_files(value: object) -> bool:
    """Whether it is a path, or a text that looks like one."""
    return isinstance(value, Path) or (isinstance(value, str) and ("/" in value or "." in value))


def _files(value: Path | str) -> list[Path]:
    """The files that an option names."""
    try:
        place = Path(value)
        return (
            [place]
            if place.is_file()
            else sorted(file for file in place.rglob("*") if file.is_file())
        )
    except (OSError, ValueError):  # no path after all: too long, say
        return []


def _kind(part: Part) -> str:
    """The class of a part and its version, and a third party's distribution. Not its name: one
    class may have two.
    """
    kind = type(part.target)
    origin = "" if part.origin == "evalsuite" else f"{part.origin} {part.plugin_version}: "
    return f"{origin}{kind.__module__}.{kind.__qualname__} {kind.version}"


@cache
def processor() -> str:
    """The processor's model: timings are of one machine. Of several with one brand, the numbers
    tell which.
    """
    numbers = " ".join(
        filter(None, (_cpuinfo(name) for name in ("cpu family", "model", "stepping")))
    )
    return (
        f"{platform.machine()} {_cpuinfo('model name')} {f'({numbers})' if numbers else ''}".strip()
    )


@cache
def _flags() -> str:
    """The digest of what the processor can do: other vector units sum in another order."""
    told = _cpuinfo("flags") or _cpuinfo("Features")
    return hashlib.sha256(" ".join(sorted(told.split())).encode()).hexdigest()[:12]


def _cpuinfo(name: str) -> str:
    """An entry of the first processor; empty where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.partition(":")[0].strip() == name),
        "",
    )


@cache
def _device(asked: str) -> dict[str, str]:
    """The GPU that a workload asks for, or that "auto" finds: it sums in another order than the
    processor.
    """
    if asked == "cpu":
        return {}
    import torch

    index = int(asked.partition(":")[2] or 0)
    return (
        {"device": torch.cuda.get_device_name(index)} if torch.cuda.device_count() > index else {}
    )


def fingerprint_of(workload: Part) -> str:
    """The fingerprint of the workload's data, taken once.

    Raises:
        DataError: it cannot be taken, as where a file is missing.
    """
    try:
        return _fingerprint(workload.target)
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise DataError(
            f"workload {workload.name!r}: its data cannot be read: {unreadable(error)}"
        ) from error


def take_fingerprints_anew() -> None:
    """Forget those that were taken: between two runs of one process, as in a notebook, data may
    change.
    """
    _fingerprint.cache_clear()


@cache
def _fingerprint(workload: Any) -> str:
    return str(workload.fingerprint())


@cache
def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"
