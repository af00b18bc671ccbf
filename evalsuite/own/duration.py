"""How long an assessment will take, by what its stages took on a few samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from evalsuite.own.budget import LONGEST, SHORTEST, search_seconds
from evalsuite.plan import jobs_of
from evalsuite.recipe import TRAIN
from evalsuite.results import Status

if TYPE_CHECKING:
    from evalsuite.contract import Data
    from evalsuite.own.preview import First
    from evalsuite.plan import Job
    from evalsuite.recipe import Recipe
    from evalsuite.run.journal import Entry

_PASSES = 3  # over the test samples, that a stage takes about
# How far jobs may be off: the trial's ran beside others, and where each network was new.
_UNSURE = (0.35, 1.6)
_TRIALS = 6  # trainings of a search: four rates, and two doublings at least


@dataclass(frozen=True)
class Duration:
    """The shortest and the longest time, in seconds.

    Args:
        shortest: where a short training is enough, and jobs take less than expected.
        longest: where the search ends at its limit, and they take more.
        cut: whether a stage took longer than it may in a trial, so that it may take longer still.
    """

    shortest: float
    longest: float
    cut: bool

    @property
    def words(self) -> str:
        low, high = (max(1, round(seconds / 60)) for seconds in (self.shortest, self.longest))
        span = f"{low} min" if low == high else f"{low} to {high} min"
        return f"about {span}{', or longer: a stage was cut short here' if self.cut else ''}"


def duration_of(
    recipe: Recipe, trial: Recipe, entries: Mapping[str, Entry], pace: Pace, workers: int
) -> Duration:
    """How long a recipe of an assessment takes.

    Args:
        recipe: the whole one.
        trial: the one of few samples, that was run.
        entries: its jobs as the trial's journal has them.
        pace: what training and testing take.
        workers: jobs at a time.
    """
    # 1. What jobs took in the trial: of the same step, else of another step of its stage.
    known = _known(trial, entries)
    begin = min((entry.seconds for entry in entries.values()), default=0.0)
    # 2. The sum of all jobs; those that take times run alone.
    jobs = jobs_of(recipe)
    ends = []
    for training, search, factor in zip(pace.training, pace.search, _UNSURE, strict=True):
        taken = {job.id: _seconds(job, known, begin, pace, training) for job in jobs}
        alone = sum(taken[job.id] for job in jobs if job.exclusive)
        beside = sum(taken.values()) - alone
        ends.append(search + factor * (alone + beside / min(workers, max(1, len(jobs)))))
    cut = any(entry.status is Status.TIMEOUT for entry in entries.values())
    return Duration(ends[0], ends[1], cut)


@dataclass(frozen=True)
class Pace:
    """The seconds that the parts of jobs take.

    Args:
        epoch: of training.
        test: passes over the test samples, as many as a stage takes about.
        training: the shortest and the longest training of a network.
        search: the shortest and the longest search of epochs.
    """

    epoch: float
    test: float
    training: tuple[float, float]
    search: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, data: Data, first: First, *, batch_size: int, epochs: int | None) -> Pace:
        """Compute the pace from a training step and a test sample.

        Args:
            data: of the user's workload.
            first: what the step and the sample took, in seconds.
            batch_size: samples of a training step.
            epochs: of each training; None where their number is searched.
        """
        per_epoch = max(1, len(range(0, int(data.train.labelled.sum()) - 1, batch_size)))
        epoch, test = per_epoch * first.step_seconds, len(data.test) * first.sample_seconds
        if epochs is not None:
            whole = epochs * epoch
            return cls(epoch, _PASSES * test, (whole, whole))
        # A search tries twice the epochs that it finds, within its time.
        limit = search_seconds()
        longest = min(LONGEST * first.step_seconds, limit / 2)
        shortest = min(SHORTEST * first.step_seconds, longest)
        return cls(
            epoch,
            _PASSES * test,
            (shortest, longest),
            (min(_TRIALS * shortest, limit), limit),
        )


@dataclass(frozen=True)
class _Known:
    seconds: float
    size: float  # samples times radii of a stage that has such options


def _known(trial: Recipe, entries: Mapping[str, Entry]) -> dict[str, _Known]:
    """Mean seconds of a job by step, and by stage."""
    steps: dict[str, tuple[list[float], float]] = {}
    for job in jobs_of(trial):
        entry = entries.get(job.id)
        if entry is None:
            continue
        for name in dict.fromkeys((job.step_name, _stage(job))):
            steps.setdefault(name, ([], _size(job)))[0].append(entry.seconds)
    return {name: _Known(mean(seconds), size) for name, (seconds, size) in steps.items()}


def _stage(job: Job) -> str:
    return job.step.part.use if job.step else TRAIN


def _size(job: Job) -> float:
    """How much a stage of bounds or searches does, by its options; 1 of others."""
    options: Any = job.step.stage if job.step else None
    samples, radii = getattr(options, "samples", 1), getattr(options, "eps", (0.0,))
    count = len(radii) if isinstance(radii, Sequence) else 1
    return float(samples or 1) * max(1, count) if isinstance(samples, int) else 1.0


def _seconds(
    job: Job, known: Mapping[str, _Known], begin: float, pace: Pace, training: float
) -> float:
    """Estimate the time of a job: its beginning, its share of the trial's time, and what more
    samples take.
    """
    before = known.get(job.step_name) or known.get(_stage(job))
    seconds = begin if before is None else before.seconds
    if job.step is None:
        share = 1.0 if not job.needs else float(getattr(job.variant.target, "share", 0.0))
        return seconds + share * training
    grown = max(1.0, _size(job) / before.size) if before is not None else 1.0
    tuned = float(getattr(job.step.stage, "fine_tune_epochs", 0)) * pace.epoch
    whole = begin + max(0.0, seconds - begin) * grown + pace.test + tuned
    return min(whole, job.time_limit)
