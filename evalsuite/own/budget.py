"""How long to train, and at which rate: a search with the baseline on the validation data, before
anything is measured.

All arms then have the epochs and the learning rate that it finds: schedules of hardness need to
know the number of steps, and a budget of its own for each arm would be a difference between them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import TypeAdapter

from evalsuite.contract import Data
from evalsuite.own.brought import Brought
from evalsuite.reluize.keeping import improves, mean_loss
from evalsuite.reluize.training import fit
from evalsuite.run.validation import errors_of
from evalsuite.sources import default_folder
from evalsuite.workloads.options import Budget

if TYPE_CHECKING:
    from torch import nn

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
GENTLE_RATES = (2e-5, 5e-5, 2e-4, 1e-3)  # from pretrained weights, which a great rate destroys
_RATES_OF = {"scratch": RATES, "pretrained": GENTLE_RATES}
_VERSION = "2"  # of the search: what was found by another is not used
SHORTEST = 100  # optimizer steps of the first training
LONGEST = 20_000  # optimizer steps of the last
_PATIENCE = 2  # doublings of the budget without a gain
# of the processor, for the whole search: other work beside it changes nothing
_SECONDS = "EVALSUITE_SEARCH_SECONDS"
_USUAL_SECONDS = 120.0
_SOONEST = 5  # steps that tell how long a step takes


@dataclass(frozen=True)
class Found:
    """The budget that a search has found.

    Args:
        epochs: after which more did not help.
        learning_rate: the best of a short range test, or the given one.
        words: how it was found, for the user.
        doubt: why this budget may not train the network to its end; "" where it does.
    """

    epochs: int
    learning_rate: float
    words: str
    doubt: str = ""


def budget_of(own: Brought, data: Data, *, rate: float = 0.0, epochs: int = 0) -> Found:
    """The budget of a network that is trained or fine-tuned, from the cache where the same was
    searched before.

    Args:
        own: the workload, whose other options stay as they are.
        data: its data; of them training and validation are used.
        rate: the learning rate; 0 searches one.
        epochs: the given epochs, which are then only tested; 0 searches them.
    """
    if not _searching.get():
        return Found(epochs or own.epochs, rate or own.learning_rate, "not tested")
    # 1. The cache, which a run of many seeds asks again and again.
    rate = rate or (own.learning_rate if epochs else 0.0)
    file = _file(own, rate, epochs)
    if (known := _kept(file)) is not None:
        return known
    # 2. Search with the workload's threads, since the time of an epoch decides how long it goes
    # on.
    threads = torch.get_num_threads()
    torch.set_num_threads(own.threads)
    try:
        search = _Search(own, data)
        budget = search.tested(epochs, rate or own.learning_rate) if epochs else search.found(rate)
    # a user's forward may raise anything; the run's rows say so too
    except (Exception, SystemExit) as error:
        said = (
            f"no budget was searched, since a training failed: {type(error).__name__}:"
            f" {' '.join(str(error).split())}"
        )
        return Found(epochs or own.epochs, rate or own.learning_rate, said[:300])
    finally:
        torch.set_num_threads(threads)
    # 3. Keep what was found.
    _keep(budget, file)
    # Who gives what was found has it tested already.
    _keep(budget, _file(own, budget.learning_rate, budget.epochs))
    return budget


_searching = ContextVar("_searching", default=True)


@contextmanager
def without_search() -> Iterator[None]:
    """Inside, no budget is searched or tested: networks are made to see whether they can be."""
    token = _searching.set(False)
    try:
        yield
    finally:
        _searching.reset(token)


def _file(own: Brought, rate: float, epochs: int) -> Path:
    """Where the budget of these options is kept, whatever epochs and rate the workload has."""
    options = {
        field.name: getattr(own, field.name)
        for field in fields(own)
        if field.name not in ("epochs", "learning_rate")
    }
    whole = f"{_VERSION} {search_seconds()} {torch.__version__} {own.fingerprint()} {options}"
    key = hashlib.sha256(f"{whole} {rate} {epochs}".encode()).hexdigest()
    return default_folder() / "budgets" / f"{key}.json"


def _kept(file: Path) -> Found | None:
    """Read the budget of an earlier search; None where there was none, or the file is damaged."""
    try:
        return TypeAdapter(Found).validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None


def _keep(budget: Found, file: Path) -> None:
    """Write it whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(budget)))
    partial.replace(file)


class _Search:
    """Trainings of the baseline from the same initial weights, each with a whole schedule."""

    def __init__(self, own: Brought, data: Data) -> None:
        self._own, self._data = own, data
        options = {field.name: getattr(own, field.name) for field in fields(Budget)}
        self._budget = Budget(**options)
        self._per_epoch = max(1, len(range(0, int(data.train.labelled.sum()) - 1, own.batch_size)))
        self._shortest = max(1, math.ceil(SHORTEST / self._per_epoch))
        self._began = time.process_time()
        self._step = self._seconds_of_a_step()

    def found(self, rate: float) -> Found:
        """Epochs by doubling the budget until `_PATIENCE` doublings bring no gain, at the best
        rate of a short test.
        """
        epochs = self._shortest
        rates = [rate] if rate else [*_RATES_OF[self._own.start]]
        trials = len(rates)
        if not self._affordable((trials + 2) * epochs):
            default = rate or self._own.learning_rate
            if self._own.start == "pretrained":
                usual = f"{self._own.epochs} epochs at a learning rate of {default:g}, as is usual"
                return Found(self._own.epochs, default, f"{usual}; others take too long to try")
            return Found(
                self._own.epochs, default, "no budget was searched", self._too_long(epochs)
            )
        # 1. The rate: the lowest validation loss after the shortest training.
        errors = {candidate: self._errors(epochs, candidate) for candidate in rates}
        rate = min(errors, key=lambda candidate: mean_loss(errors[candidate]))
        best, at = errors[rate], epochs
        # 2. The epochs: doubled while that helps. What did not help is trained for nothing, and not
        # kept.
        without = 0
        while (
            without < _PATIENCE
            and 2 * epochs * self._per_epoch <= LONGEST
            and self._affordable(2 * epochs)
        ):
            epochs *= 2
            errors_now = self._errors(epochs, rate)
            if improves(best, errors_now):
                best, at, without = errors_now, epochs, 0
            else:
                without += 1
        words = (
            f"{at} epochs at a learning rate of {rate:g}: with {epochs} epochs validation is no"
            " better"
        )
        if not math.isfinite(mean_loss(best)):
            return Found(
                at,
                rate,
                "no budget was found",
                "the validation loss is not finite; give a lower learning_rate",
            )
        if without:
            return Found(at, rate, words)
        doubt = (
            f"validation still improves after {at} epochs, where the search ended; give more by"
            " --set epochs=N"
        )
        return Found(
            at, rate, f"{at} epochs at a learning rate of {rate:g}, where the search ended", doubt
        )

    def tested(self, epochs: int, rate: float) -> Found:
        """The given epochs, and whether more are better: twice as many and, since a network may
        stand still at first, as many as its first steps may take.
        """
        budget = f"{epochs} epochs at a learning rate of {rate:g}"
        # Twice as many, and at least four times the shortest training: a network may stand still
        # at first.
        longer = sorted({2 * epochs, max(2 * epochs, 4 * self._shortest)})
        if not self._affordable(epochs + sum(longer)):
            return Found(
                epochs,
                rate,
                f"{budget}, as given; whether they are enough was not tried: it takes too long",
            )
        errors = self._errors(epochs, rate)
        if any(improves(errors, self._errors(more, rate)) for more in longer):
            doubt = (
                f"validation still improves after {epochs} epochs; give more, or leave epochs out"
                " to search them"
            )
            return Found(epochs, rate, f"{budget}, as given", doubt)
        return Found(
            epochs, rate, f"{budget}, as given: with {longer[-1]} epochs validation is no better"
        )

    def _errors(self, epochs: int, rate: float) -> list[torch.Tensor]:
        """Train a network and return its errors on the validation data, see `errors_of`."""
        module = self._initial()
        budget: Any = replace(self._budget, epochs=epochs, learning_rate=rate)
        fit(module, self._data.train, budget, seed=0)
        return errors_of(module, self._data.validation)

    def _initial(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self._own.given()

    def _seconds_of_a_step(self) -> float:
        """Measure the mean CPU seconds of a training step over a few steps, without the first,
        which is slower.
        """
        share = _SOONEST / self._per_epoch
        budget = replace(self._budget, epochs=1)
        times: list[float] = []
        note: Callable[[float], None] = lambda _: times.append(time.process_time())  # noqa: E731
        fit(self._initial(), self._data.train, budget, seed=0, share=share, after_step=note)  # type: ignore[arg-type]
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0

    def _affordable(self, epochs: int) -> bool:
        """Whether so many epochs more fit into the search's time."""
        return (
            time.process_time() - self._began + epochs * self._per_epoch * self._step
            <= search_seconds()
        )

    def _too_long(self, epochs: int) -> str:
        seconds = epochs * self._per_epoch * self._step
        return (
            f"whether validation still improves is not known: {epochs} epochs take about"
            f" {seconds:.2g} s of the processor, and the search has {search_seconds():.3g} s in"
            " all; give epochs that suffice by --set epochs=N"
        )


def search_seconds() -> float:
    """Seconds of the processor that a search may take: 120, or what the variable says where that
    is a number.
    """
    try:
        return float(os.environ[_SECONDS])
    except (KeyError, ValueError):
        return _USUAL_SECONDS
