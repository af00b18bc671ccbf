"""run.json: what a run was: recipe, data, versions, machine, and how its jobs ended."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from evalsuite.plan import Job, code_of, options_of, processor
from evalsuite.plugins import first_paragraph
from evalsuite.recipe import Part, Recipe
from evalsuite.results import DamagedResults, Status, check_sealed, sealed
from evalsuite.run.journal import Entry
from evalsuite.sources import digest
from evalsuite.sums import add_sums

FILE = "run.json"
MEASURED = "measured"  # when, among the conditions
DOUBT = "doubt"  # the note that says why nothing is concluded from a workload's baseline
_ATTEMPTS = 3  # of git, where it is killed
_LIBRARIES = ("evalsuite", "torch", "numpy", "onnx", "onnxruntime", "scikit-learn")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The content of run.json. Times are ISO 8601, UTC; `finished` is empty for a run that was
    interrupted.

    `commit` is that of the checkout which measured, `dirty` whether tracked files of it were
    changed, and `source` the digest of all source digests of its jobs; of jobs from the cache those
    of when they were measured. `machine` is what the jobs were measured on, when, and how many at a
    time: a run that finds them all in the cache has measured nothing, and leaves that as it was.
    `results` is the SHA-256 of the file of rows beside it.
    """

    name: str
    digest: str
    baseline: str
    workloads: list[str]
    variants: list[str]
    seeds: list[int]
    steps: list[dict[str, Any]]
    recipe_text: str
    data: dict[str, dict[str, Any]]
    variants_help: dict[str, str]
    versions: dict[str, str]
    machine: dict[str, Any]
    command: str
    started: str
    finished: str = ""
    jobs: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    peak_mib: float = 0.0
    commit: str = ""
    dirty: bool = False
    source: str = ""
    results: str = ""

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        jobs: list[Job],
        workers: int,
        command: str,
        unread: Collection[str] = (),
    ) -> RunRecord:
        """The record of a run that begins now; the data of the workloads `unread` cannot be
        read.
        """
        # Everything by which the run could be made again, or told from another: recipe, data,
        # versions, machine and source.
        stages = [step.stage for step in recipe.steps]
        used = ((*stage.libraries, *getattr(stage, "optional_libraries", ())) for stage in stages)
        libraries = {*_LIBRARIES, *(name for names in used for name in names)}
        return cls(
            name=recipe.name,
            digest=recipe.digest,
            baseline=recipe.baseline,
            workloads=[part.name for part in recipe.workloads],
            variants=[part.name for part in recipe.variants],
            seeds=list(recipe.seeds),
            steps=[
                {
                    "name": step.name,
                    "stage": step.part.use,
                    "origin": step.part.origin,
                    "version": step.part.plugin_version,
                    "help": _help(step.part),
                    "after": step.after,
                }
                for step in recipe.steps
            ],
            recipe_text=recipe.text,
            data={
                part.name: {
                    **({} if part.name in unread else {"fingerprint": part.target.fingerprint()}),
                    "help": _help(part, _treated(part, jobs)),
                }
                for part in recipe.workloads
            },
            variants_help={part.name: _help(part) for part in recipe.variants},
            versions={
                "python": platform.python_version(),
                **{name: _version(name) for name in sorted(libraries)},
            },
            machine=conditions(workers),
            command=command,
            started=now(),
            jobs={"total": len(jobs)},
            source=source_of(digest(*code_of(job)) for job in jobs),
            **commit_of([checkout()]),
        )

    def holds(self, recipe: Recipe, *, grown: bool = False) -> bool:
        """Whether it is of that recipe with as many seeds or fewer; with `grown`, of that recipe
        with more.
        """
        seeds, other = set(self.seeds), set(recipe.seeds)
        nested = seeds > other if grown else seeds <= other
        return nested and replace(recipe, seeds=tuple(self.seeds)).digest == self.digest

    def again(self, known: RunRecord) -> RunRecord:
        """The record of a run that goes on where an earlier call of it has left off."""
        noted = {
            name: {"notes": entry["notes"]}
            for name, entry in known.data.items()
            if "notes" in entry
        }
        data = {name: {**noted.get(name, {}), **entry} for name, entry in self.data.items()}
        return replace(self, started=known.started, machine=known.machine, data=data)

    def end(
        self, entries: Iterable[Entry], known: RunRecord | None, *, finished: bool
    ) -> RunRecord:
        """The record of the run after its last job; `known` is that of an earlier call."""
        # 1. Where nothing ran that was not known already, the moment and the command of the
        # former call stay.
        entries = list(entries)
        ran = any(not entry.cached and entry.status is not Status.SKIPPED for entry in entries)
        same = known if known is not None and known.finished and not ran else None
        sizes = {entry.job.split("/")[0]: entry.samples for entry in entries if entry.samples}
        counted = Counter(entry.status.value for entry in entries)
        counted["cached"] = sum(entry.cached for entry in entries)
        counted["measurement_failed"] = sum(
            entry.status is Status.OK and not entry.final for entry in entries
        )
        # 2. Conditions, source and commit are those of the jobs, as their rows carry them: some
        # may be older than this call.
        return replace(
            self,
            finished=(same.finished if same else now()) if finished else "",
            command=same.command if same else self.command,
            machine=merged_conditions([entry.conditions for entry in entries if entry.conditions])
            or self.machine,
            jobs={**self.jobs, **counted},
            data={name: {**known, **sizes.get(name, {})} for name, known in self.data.items()},
            seconds=round(sum(entry.seconds for entry in entries), 1),
            peak_mib=max((entry.peak_mib for entry in entries), default=0.0),
            source=source_of(codes)
            if (codes := [code for entry in entries if (code := entry.inputs.get("code"))])
            else self.source,
            **(
                commit_of(commits)
                if (commits := [entry.commit for entry in entries if entry.commit])
                else {}
            ),
        )


def source_of(digests: Iterable[str]) -> str:
    """One digest of the source digests of jobs."""
    return hashlib.sha256("\n".join(sorted(set(digests))).encode()).hexdigest()


def commit_of(commits: Iterable[str]) -> dict[str, Any]:
    """The entries `commit` and `dirty` of checkouts: of several, all of their commits."""
    every = sorted(set(commits))
    names = dict.fromkeys(commit.removesuffix("-dirty") for commit in every)
    return {"commit": ", ".join(names), "dirty": any(commit.endswith("-dirty") for commit in every)}


def _help(part: Part, treated: Mapping[str, str] = MappingProxyType({})) -> str:
    said = first_paragraph(type(part.target).__doc__ or "")
    options = ", ".join(
        f"{name}={treated.get(name, value)}" for name, value in options_of(part).items()
    )
    return f"{said} [{options}]" if options else said


def _treated(workload: Part, jobs: Iterable[Job]) -> dict[str, str]:
    """The options whose values are not the same in all of its jobs, and what they go by."""
    met = [options_of(job.workload) for job in jobs if job.workload.name == workload.name]
    by = {"learning_rate": "by variant", "split": "by seed"}
    return {
        name: text for name, text in by.items() if len({options.get(name) for options in met}) > 1
    }


def now() -> str:
    """The present date and time in UTC, to the second: "2026-01-31T12:00:00Z"."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def checkout() -> str:
    """The commit that evalsuite is imported from, with "-dirty" where tracked files are changed,
    else "release 0.1.0".

    A repository that merely surrounds an installed evalsuite, as that of a project with a `.venv`,
    does not count.
    """
    try:
        _git("ls-files", "--error-unmatch", __file__)
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return f"release {_version('evalsuite')}"


def changed_since(commit: str, files: Iterable[Path]) -> list[str]:
    """Which of these files of the repository are others than at that commit; none where it is
    not known here.
    """
    try:
        root = Path(_git("rev-parse", "--show-toplevel"))
        inside = [str(file) for file in files if file.is_relative_to(root)]
        return (
            _git("diff", "--name-only", commit.removesuffix("-dirty"), "--", *inside).splitlines()
            if inside
            else []
        )
    except (OSError, subprocess.CalledProcessError):
        return []


def _git(*words: str) -> str:
    # A hook's GIT_DIR and GIT_INDEX_FILE would name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Without the lock of the index: a run that is killed, or has no room, must leave none behind.
    command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *words]
    for _ in range(_ATTEMPTS):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode >= 0:
            break  # else a signal ended it, which says nothing of the repository
    done.check_returncode()
    return done.stdout.strip()


def conditions(workers: int) -> dict[str, Any]:
    """Describe on what a job is measured here, with so many at a time."""
    import psutil

    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "jobs_at_a_time": workers,
    }


def merged_conditions(conditions: list[dict[str, Any]]) -> dict[str, Any]:
    """The conditions of all jobs: where they differ, every value; of the dates the first and the
    last.
    """
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for condition in conditions for name in condition):
        values = sorted({condition[name] for condition in conditions if name in condition}, key=str)
        kept = [values[0], values[-1]] if name == MEASURED else values
        merged[name] = (
            values[0]
            if len(values) == 1
            else (" to " if name == MEASURED else ", ").join(map(str, kept))
        )
    return merged


def write_record(record: RunRecord, out: Path) -> None:
    """Write run.json, whole or not at all."""
    partial = out / f"{FILE}.partial"
    partial.write_text(json.dumps(sealed(asdict(record)), indent=1) + "\n")
    partial.replace(out / FILE)


def keep_doubts(out: Path, workload: str, doubts: Iterable[str]) -> None:
    """Note in a run's record why nothing is concluded from the workload's baseline, instead of
    older doubts.
    """
    record = read_record(out)
    if record is None or workload not in record.data:
        return
    known = [note for note in record.data[workload].get("notes", []) if note[0] != DOUBT]
    notes = [*([DOUBT, sentence] for sentence in doubts), *known]
    if notes == record.data[workload].get("notes", []):
        return
    data = {**record.data, workload: {**record.data[workload], "notes": notes}}
    write_record(replace(record, data=data), out)
    add_sums(out, [out / FILE])


def read_record(out: Path) -> RunRecord | None:
    """The record in a folder, or None where there is none, or it is not one or not the one
    written.
    """
    try:
        entries = json.loads((out / FILE).read_bytes())
        record = TypeAdapter(RunRecord).validate_python(entries)
        check_sealed(entries, out / FILE)
    except (FileNotFoundError, NotADirectoryError, ValueError, DamagedResults):
        return None
    return record
