"""From a recipe to jobs, and the content keys by which finished work is found again."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evalsuite.recipe import TRAIN, Part, Recipe, Step
from evalsuite.reluize.variants import VARIANTS

# What training and every stage build on: a change in it changes what they measure.
_TRAIN_CODE = (
    "evalsuite.activations", "evalsuite.contract", "evalsuite.networks", "evalsuite.reluize", "evalsuite.results",
    "evalsuite.run.child", "evalsuite.run.making", "evalsuite.workloads",
)  # fmt: skip
_STAGE_CODE = (
    *_TRAIN_CODE, "evalsuite.certificate", "evalsuite.deployment", "evalsuite.relaxations", "evalsuite.verification",
)  # fmt: skip
_TRAIN_LIBRARIES = ("torch", "numpy", "scikit-learn", "numba")  # numba: a compiled kernel, where it is installed
_STAGE_LIBRARIES = ("torch", "numpy", "onnx", "onnxruntime")


class DataError(Exception):
    """A workload's data cannot be read; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Job:
    """One unit of work: making one network, or one step on one network.

    `needs` is the id of the job whose network it takes; empty for training from scratch. `shown` is False for a
    base network that no variant of the recipe is.
    """

    workload: Part
    variant: Part
    seed: int
    step: Step | None
    needs: str
    time_limit: float
    shown: bool = True

    @property
    def step_name(self) -> str:
        """The step's name; "train" for the making of the network."""
        return self.step.name if self.step else TRAIN

    @property
    def id(self) -> str:
        """workload/variant/seed/step."""
        return f"{self.workload.name}/{self.variant.name}/{self.seed}/{self.step_name}"

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
    """The jobs in the order of rows: by workload, variant and seed; each job after the one it needs."""
    jobs: list[Job] = []
    for workload in recipe.workloads:
        for seed in recipe.seeds:
            jobs += _hidden_bases(recipe, workload, seed)
        for variant in recipe.variants:
            for seed in recipe.seeds:
                jobs += _jobs_of_network(recipe, workload, variant, seed)
    ordered: dict[str, Job] = {}
    while len(ordered) < len(jobs):  # a variant may stand before its base in the recipe
        before = len(ordered)
        for job in jobs:
            if not job.needs or job.needs in ordered:
                ordered.setdefault(job.id, job)
        if len(ordered) == before:
            raise ValueError(f"jobs need each other, or share an id: {sorted({job.id for job in jobs} - set(ordered))}")
    return list(ordered.values())


def _base_name(recipe: Recipe, variant: Part) -> str:
    """The name of the recipe's variant that is `variant`'s base as it comes, else the base's own name."""
    use = variant.target.base
    return next((part.name for part in recipe.variants if part.use == use and not part.options), use)


def _hidden_bases(recipe: Recipe, workload: Part, seed: int) -> list[Job]:
    named = {part.name for part in recipe.variants}
    bases = {part.target.base: _base_name(recipe, part) for part in recipe.variants if part.target.base}
    return [
        Job(workload, Part(name, use, {}, VARIANTS[use]()), seed, None, "", recipe.time_limit, shown=False)
        for use, name in bases.items()
        if name not in named
    ]


def _jobs_of_network(recipe: Recipe, workload: Part, variant: Part, seed: int) -> list[Job]:
    prefix = f"{workload.name}/{variant.name}/{seed}/"
    base = variant.target.base
    needs = f"{workload.name}/{_base_name(recipe, variant)}/{seed}/{TRAIN}" if base else ""
    jobs = [Job(workload, variant, seed, None, needs, recipe.time_limit)]
    jobs += [
        Job(workload, variant, seed, step, prefix + (step.after or TRAIN), step.time_limit) for step in recipe.steps
    ]
    return jobs


def inputs_of(job: Job, network: str) -> dict[str, str]:
    """All that the job's result depends on, flat, as text; its digest is the job's key.

    Args:
        network: the digest of the network it takes; empty for training from scratch.
    """
    inputs = {
        "network": network,
        "seed": str(job.seed),
        "data": fingerprint_of(job.workload),
        "workload": f"{_origin(job.workload)}:{job.workload.use} {job.workload.target.version}",
        "processor": processor(),
        **{f"workload option {key}": repr(value) for key, value in options_of(job.workload).items()},
    }
    if job.step is None:
        inputs["variant"] = f"{job.variant.use} {job.variant.target.version}"
        inputs |= {f"option {key}": repr(value) for key, value in options_of(job.variant).items()}
        inputs |= {f"library {name}": _version(name) for name in _TRAIN_LIBRARIES}
        inputs["code"] = code_digest(*_TRAIN_CODE, _code_of(job.workload))
        return inputs
    stage = job.step.stage
    inputs["stage"] = f"{_origin(job.step.part)}:{job.step.part.use} {stage.version}"
    inputs["time limit"] = repr(job.time_limit)
    inputs |= {f"option {key}": repr(value) for key, value in options_of(job.step.part).items()}
    inputs |= {f"library {name}": _version(name) for name in sorted({*_STAGE_LIBRARIES, *stage.libraries})}
    inputs["code"] = code_digest(*_STAGE_CODE, _code_of(job.workload), _code_of(job.step.part))
    return inputs


def key_of(inputs: Mapping[str, str]) -> str:
    """The content key: SHA-256 of the inputs."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What differs between two sets of inputs, in words."""
    short = {key: (before.get(key, "none")[:12], now.get(key, "none")[:12]) for key in sorted({*before, *now})}
    said = [f"{key} {old} -> {new}" for key, (old, new) in short.items() if before.get(key) != now.get(key)]
    return "; ".join(said)


def options_of(part: Part) -> dict[str, Any]:
    """The options of a workload, variant or stage as they stand, defaults included."""
    return {each.name: getattr(part.target, each.name) for each in fields(part.target)}


def _origin(part: Part) -> str:
    """The distribution a part comes from; a third party's with its version, our own by the digest of its code."""
    return part.origin if part.origin == "evalsuite" else f"{part.origin} {part.plugin_version}"


def _code_of(part: Part) -> str:
    """The module whose source a part's results depend on: a third party's whole package, of ours the part's own."""
    module = type(part.target).__module__
    return module if part.origin == "evalsuite" else module.split(".")[0]


@cache
def processor() -> str:
    """The processor's type: other vector units sum in another order, and timings are of one machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()} {model}".strip()


def fingerprint_of(workload: Part) -> str:
    """The fingerprint of the workload's data, taken once.

    Raises:
        DataError: it cannot be taken, as where a file is missing.
    """
    try:
        return _fingerprint(workload.target)
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise DataError(f"workload {workload.name!r}: its data cannot be read: {unreadable(error)}") from error


def unreadable(error: BaseException) -> str:
    """Why data cannot be read, in one line: a text of one's own gives the cure, the file system's does not."""
    if isinstance(error, OSError) and error.errno is not None:
        cure = "put it there, or name another place in the workload's options"
        return f"{error.filename or 'a file'}: {error.strerror}; {cure}"
    text = " ".join(str(error).split())
    return text if text and isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {text}"


@cache
def _fingerprint(workload: Any) -> str:
    return str(workload.fingerprint())


@cache
def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


@cache
def code_digest(*modules: str) -> str:
    """The digest of the source of modules and whole packages, found without importing them.

    A declared version alone would let a changed verifier answer with its old verdicts.
    """
    digest = hashlib.sha256(f"python {sys.version_info.major}.{sys.version_info.minor}".encode())
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        files = sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]
        for file in files:
            digest.update(f"{name}:{file.name}".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
