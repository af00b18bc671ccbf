"""A job's own process makes or loads the network, runs the stage, and leaves the outcome in a
folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import TypeAdapter

from evalsuite.contract import (
    Data,
    Direction,
    Metric,
    Network,
    Outcome,
    Stage,
    Task,
    Unsupported,
    capabilities_of,
)
from evalsuite.plugins import missing
from evalsuite.reading import Reading
from evalsuite.results import Row, Status, failure_row, row_of
from evalsuite.run.tree import machine_limit
from evalsuite.variants import Made

if TYPE_CHECKING:
    from evalsuite.plan import Job  # what is planned changes no result, so its source enters no key
    from evalsuite.workloads import Workload

OUTCOME = "outcome.json"
NETWORK = "network"
ARTEFACTS = "artefacts"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM = 1 << 20  # bytes that a disk with room takes
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class Assignment:
    """A job with all that its process needs: the key, the folder it writes and that of the network
    it takes.

    `commit` is that of the code that runs it, `cache` the folder of the cache, where a workload may
    keep things; `conditions` say under which it is measured: see `Found`. `host` is the machine
    that must run it; empty for any.
    """

    job: Job
    key: str
    scratch: Path
    network: Path | None
    log: Path
    commit: str = ""
    cache: Path | None = None
    conditions: dict[str, Any] = field(default_factory=dict)
    host: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The remains of a job's process.

    `network` is the digest of the network it hands on, `handover` why it hands on none; `samples`
    the sizes of the parts of the data, where a network was made; `artefacts` the stage's files by
    name, relative to its folder; `read` what it read that its key does not know (see `Reading`);
    `commit` that of the code that ran; `conditions` the machine, how many jobs ran at a time, and
    the date, which a timing needs to be understood.
    """

    status: Status
    rows: tuple[Row, ...]
    network: str = ""
    handover: str = ""
    seconds: float = 0.0
    peak_mib: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)
    artefacts: dict[str, str] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    conditions: dict[str, Any] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        """Whether the outcome may be kept: failures are tried again."""
        settled = (Status.OK, Status.UNSUPPORTED)
        return self.status in settled and all(
            row.status != Status.FAILED.value for row in self.rows
        )


def read_outcome(folder: Path) -> Found:
    """The outcome in a job's folder.

    Raises:
        OSError, ValueError: there is none, or not a whole one.
    """
    return validated(Found, (folder / OUTCOME).read_bytes())


def validated(kind: type[_Kind], text: str | bytes) -> _Kind:
    """Read a dataclass of that kind from JSON. Raises ValueError where it is none."""
    value: _Kind = _adapter(cast("Any", kind)).validate_json(text, strict=True)
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def perform(assignment: Assignment, alone: Callable[[], float] = lambda: 0.0) -> None:
    """Run the job in this process and write its outcome; what a stage raises becomes a row.

    `alone` waits until no other job of this machine runs, and gives the seconds that it took.
    """
    import torch

    # By default one: jobs run side by side, and one thread gives one order of summation.
    torch.set_num_threads(getattr(assignment.job.workload.target, "threads", 1))
    # Where a step would take more, it refuses by its estimate.
    from opgraph.estimates import allow

    asked = assignment.job.memory_limit
    allow(int(asked * 2**30) if asked else machine_limit())
    started, waited = time.perf_counter(), 0.0
    labels = {**assignment.job.coordinates, "key": assignment.key}

    def turn() -> None:
        nonlocal waited
        waited = alone()

    def text(found: Found) -> str:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        seconds = round(time.perf_counter() - started - waited, 3)
        record: dict[str, Any] = {"commit": assignment.commit, "conditions": assignment.conditions}
        whole = replace(found, seconds=seconds, peak_mib=round(peak, 1), **record)
        # What is no Unicode, as half of a surrogate pair in a file's name, becomes "?": no reader
        # takes it.
        written = json.dumps(asdict(whole), allow_nan=False, ensure_ascii=False)
        return written.encode("utf-8", "replace").decode()

    # 1. What the job reads besides its inputs is noted as it runs: it belongs to what its result
    # depends on.
    files = [
        assignment.scratch,
        assignment.log.parent,
        *([assignment.network] if assignment.network else []),
    ]
    files += getattr(assignment.job.workload.target, "covered", [])
    reading = Reading(assignment.job.plugins, *files)
    # 2. Run it. A refusal and an error are outcomes too, each a row with its reason; only a full
    # disk is none of the job's.
    try:
        with reading:
            found = (
                _train(assignment, labels)
                if assignment.job.step is None
                else _measure(assignment, labels, turn)
            )
        outcome = text(replace(found, read=reading.digests()))
    except Unsupported as reason:
        outcome = text(_failure(labels, Status.UNSUPPORTED, str(reason) or "no reason given"))
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM and _is_full(assignment.scratch):
            raise
        traceback.print_exc()
        starved = isinstance(
            error, (MemoryError, torch.OutOfMemoryError)
        ) or "can't allocate memory" in str(error)
        status = Status.OOM if starved else Status.FAILED
        outcome = text(_failure(labels, status, _describe(error)))
    # 3. The outcome appears whole, by a rename, or not at all.
    partial = assignment.scratch / f"{OUTCOME}.partial"
    partial.write_text(outcome, encoding="utf-8")
    partial.replace(assignment.scratch / OUTCOME)


def _is_full(folder: Path) -> bool:
    """Whether it is the run's own disk that has no room: a stage may have filled another, or its
    own quota.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_ROOM))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in NO_ROOM
    return False


def _failure(labels: dict[str, Any], status: Status, reason: str) -> Found:
    return Found(status, (failure_row(labels, status, reason),))


def _describe(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if isinstance(error, SystemExit):
        text = (
            f"sys.exit({error.code!r}) was called; raise an error instead, or Unsupported with the"
            " reason"
        )
    return f"{text} ({Path(last.filename).name}:{last.lineno})"


def _train(assignment: Assignment, labels: dict[str, Any]) -> Found:
    from evalsuite.exporting import keep_exported
    from evalsuite.networks import load_network, save_network
    from evalsuite.reluize.profile import learnt_parameters
    from evalsuite.run.making import data_of, make_network

    # 1. The data, and the network that the variant treats, where it treats one.
    job = assignment.job
    workload = job.workload.target
    data = data_of(workload)
    base = None
    if assignment.network is not None:
        base = load_network(assignment.network, workload, data).module
    name = f"{job.workload.name}/{job.variant.name}/{job.seed}"
    started = time.perf_counter()
    # 2. Train or treat it, and save it for the steps that take it.
    network, made_network = make_network(
        workload, data, job.variant.target, job.seed, name=name, base=base
    )
    seconds = time.perf_counter() - started
    folder = assignment.scratch / NETWORK
    save_network(network, folder, workload)
    # The network as it is read again is exported, which is what the steps will see.
    if job.exported:
        keep_exported(load_network(folder, workload, data), folder)
    # 3. Rows about the making: the validation data, and what was learnt; test data are for the
    # steps.
    metrics = [
        *_training(made_network, seconds, workload, data.task),
        *learnt_parameters(network.module),
    ]
    rows = _rows([*_validation(network, data), *metrics], labels)
    parts = ("train", "calibration", "validation", "test")
    samples = {part: len(getattr(data, part)) for part in parts}
    return Found(Status.OK, rows, network=digest_network(folder), samples=samples)


def _validation(network: Network, data: Data) -> list[Metric]:
    from evalsuite.tasks import score

    validation_score = score(network.module, data.validation)
    return [
        replace(metric, name=f"validation_{metric.name}") for metric in validation_score.metrics
    ]


def _training(made: Made, seconds: float, workload: Workload, task: Task) -> list[Metric]:
    from evalsuite.tasks import Classification, MultiLabel, Segmentation

    untrained = f"not trained: {made.untrained}" if made.train_loss is None else ""
    trained_in = None if untrained else seconds
    in_nats = isinstance(task, (Classification, MultiLabel, Segmentation))
    in_nats = in_nats and not getattr(workload, "loss", "")
    unit = "nats" if in_nats else "loss"
    metrics = [
        Metric("train_loss", made.train_loss, unit, Direction.LOWER, reason=untrained),
        Metric("train_time", trained_in, "s", Direction.LOWER, timing=True, reason=untrained),
        Metric("training_budget", made.budget, "ratio", Direction.LOWER),
    ]
    if made.kept is not None:
        metrics.append(Metric("kept_at", made.kept, "ratio", Direction.NEUTRAL))
    for layer in made.profile:
        metrics += layer.metrics()
    return metrics


def _measure(assignment: Assignment, labels: dict[str, Any], turn: Callable[[], None]) -> Found:
    import torch

    from evalsuite.exporting import remember_exported
    from evalsuite.networks import load_network
    from evalsuite.run.making import data_of, make_bench
    from evalsuite.scores_file import ARTEFACT, write_scores

    job = assignment.job
    if job.step is None or assignment.network is None:
        raise ValueError(f"{job.id} has no stage or no network")
    # 1. What the stage receives, and whether it declares that it can measure that.
    workload = job.workload.target
    data = data_of(workload)
    network = load_network(assignment.network, workload, data)
    remember_exported(network, assignment.network)
    check_takes(job.step.stage, network, data, job.workload.name, job.step.after)
    folder = assignment.scratch / ARTEFACTS
    bench = make_bench(workload, data, seed=job.seed, folder=folder, time_limit=job.time_limit)
    torch.manual_seed(job.seed)
    if lacking := missing(job.step.stage.libraries):
        raise Unsupported(f"stage {job.step.part.use!r} is left out: {lacking}")
    # 2. Run the stage, and store the network that it hands on.
    outcome, who = job.step.stage.run(network, bench), f"stage {job.step.part.use!r}"
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{who} returned {type(outcome).__name__}, no Outcome")
    digest, handover = _hand_over(outcome.network, assignment)
    # 3. Numbers from clocks are taken now, when the machine's other jobs are done or wait.
    if outcome.timed:
        if not job.timed:
            raise TypeError(
                f"{who} takes times: it must say so, by capabilities = Capabilities(timed=True)"
            )
        turn()
    if not outcome.metrics:
        raise TypeError(f"{who} returned an Outcome without a metric")
    # 4. Rows, the files that the stage wrote, and the scores of single samples.
    rows = _rows(outcome.metrics, labels)
    artefacts = _artefacts(outcome, folder)
    if (path := write_scores(outcome.metrics, folder)) is not None:
        artefacts[ARTEFACT] = path.name
    return Found(Status.OK, rows, network=digest, handover=handover, artefacts=artefacts)


def check_takes(stage: Stage, network: Network, data: Data, name: str, after: str = "") -> None:
    """Raise Unsupported where the stage does not declare that it can measure such a network: see
    `Stage`.

    `name` is the workload's; `after` the step's whose network it is.
    """
    file = "an ONNX file has no layers to change or remove: give the model as my.py:make"
    lacking = {
        "tokens": (
            network.vocabulary is not None,
            f"real-valued inputs; those of {name} are tokens",
        ),
        "several": (network.several, f"one input; {name} has several"),
        "any_task": (
            data.task.asks != "margin",
            f"classifiers; the task of {name} is {_called(data.task)}",
        ),
        "deployed": (
            network.deployed is not None,
            (
                f"torch modules; after {after!r} the network is an ONNX file"
                if after
                else f"torch modules; {file}"
            ),
        ),
    }
    # A stage declares what it can take beyond the usual; what it does not declare, it is not
    # given.
    capabilities = capabilities_of(stage)
    for declared, (needed, what) in lacking.items():
        if needed and not getattr(capabilities, declared):
            raise Unsupported(f"takes {what}")


def _called(task: Task) -> str:
    """The class of a task as lower-case words: "token classification" for TokenClassification."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(task).__name__).lower()


def _artefacts(outcome: Outcome, folder: Path) -> dict[str, str]:
    """The stage's files, relative to its folder: real files, all inside it."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"artefact {path.relative_to(folder)} is neither a file nor a folder")
    named = {}
    for name, path in outcome.artefacts.items():
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"artefact {name!r} is no file inside bench.folder: {path}")
        named[name] = str(path.resolve().relative_to(folder.resolve()))
    return named


def _rows(metrics: list[Metric], labels: dict[str, Any]) -> tuple[Row, ...]:
    seen: set[tuple[str, str, int | None]] = set()
    rows = []
    for metric in metrics:
        row = row_of(metric, labels)
        identity = (row.metric, row.setting, row.sample)
        if identity in seen:
            raise ValueError(
                f"metric {row.metric!r} [{row.setting}] is given twice for sample {row.sample}"
            )
        seen.add(identity)
        rows.append(row)
    return tuple(rows)


def _hand_over(network: Network | None, assignment: Assignment) -> tuple[str, str]:
    """Save a changed network for the steps that follow; why that failed is their reason."""
    from evalsuite.networks import save_network

    stage: Stage | None = assignment.job.step.stage if assignment.job.step else None
    if network is None:
        return "", f"{type(stage).__name__} hands on no network"
    folder = assignment.scratch / NETWORK
    try:
        save_network(network, folder, assignment.job.workload.target)
    except (ValueError, RuntimeError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        return "", f"the changed network cannot be saved: {error}"
    return digest_network(folder), ""


def digest_network(folder: Path) -> str:
    """The digest of a saved network: each tensor's name, type, shape and bytes in order of names,
    and the activations.

    The network's name is left out, and the checksum with it: equal weights are the same network.
    """
    import torch
    from safetensors.torch import load_file

    from evalsuite.networks import FILES

    described = json.loads((folder / "network.json").read_text())
    described = {key: value for key, value in described.items() if key not in ("name", "checksum")}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in sorted(load_file(file).items()):
            digest.update(f"{file.name}|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            # As bytes: numpy has no bfloat16, nor floats of 8 bits.
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    for path in (folder / f"{name}.onnx" for name in FILES):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()
