"""Goals: the cheapest treatment that loses no more and is so much faster, by validation data.

What is chosen is then measured on the test data, which had no part in the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.contract import Direction, Metric
from evalsuite.exporting import export_network
from evalsuite.networks import network_of
from evalsuite.own.partial_swap import PartialSwap, partial_swap
from evalsuite.own.treated import FILE, RUNTIME, Timed, time_files
from evalsuite.report.numerals import scale_of
from evalsuite.report.paired import interval_text
from evalsuite.report.paired_samples import paired_samples, sample_estimate
from evalsuite.results import read_results
from opgraph.errors import OwnError

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.contract import Data, Split
    from evalsuite.report.numerals import Scale

TARGETS = ("onnxruntime",)
_POINT = 0.01  # of a fraction: goals count in points, as reports do
_FORMS = (("float", FILE, "model.onnx"), ("8 bits", "quantize-w8", "quantized.onnx"))
_BATCH = 1


@dataclass(frozen=True)
class Goals:
    """The goals that a treatment has to reach.

    Args:
        max_loss: of the task's first metric, in points where it is a fraction, else in its unit;
            None: any.
        min_speedup: how many times as fast the file is as the original's, one sample at a time;
            None: any.
        target: what executes it.
    """

    max_loss: float | None = None
    min_speedup: float | None = None
    target: str = TARGETS[0]

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise OwnError(f"--target: {self.target!r} is not timed yet; {', '.join(TARGETS)} is")
        if self.max_loss is not None and not self.max_loss >= 0:
            raise OwnError(f"--max-loss is how much may be lost, 0 or more; got {self.max_loss}")
        if self.min_speedup is not None and not self.min_speedup > 0:
            raise OwnError(f"--min-speedup is a factor above 0, as 1.5; got {self.min_speedup}")

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return self.max_loss is not None or self.min_speedup is not None


@dataclass(frozen=True)
class Candidate:
    """A treatment in one form, by its file."""

    variant: str
    form: str
    file: Path

    @property
    def name(self) -> str:
        return f"{self.variant} in {self.form}"


Clock = Callable[[Path, Path, "Data", Sequence[int]], Iterator[Timed]]


def goal_lines(
    goals: Goals,
    folder: Path,
    name: str,
    data: Data,
    clock: Clock = time_files,
    network: nn.Module | None = None,
) -> Iterator[str]:
    """Tell what became of each candidate of a run, the cheapest first, until one meets the goals;
    and what that one does on the test data.

    Args:
        goals: that are to be met.
        folder: of the run, which has the candidates' files.
        name: of its workload.
        data: of it.
        clock: times two files in turn.
        network: the original, of which then some layers may keep their activation; None where it
            cannot be treated.

    Raises:
        OwnError: the run wrote no file of the original.
    """
    candidates = candidates_of(folder, name)
    original = candidates[0]
    search = _Search(goals, original.file, data, clock)
    yield search.asked
    for candidate in _with_partial(candidates, network, folder, search):
        reason = search.reason(candidate)
        if not reason:
            yield f"  {candidate.name}: meets them. {search.words(candidate)}"
            yield f"On the test data {search.tested(candidate)}. Its file: {candidate.file}"
            return
        yield f"  {candidate.name}: {reason}"
    if search.unread:
        yield "None is known to meet them: call it again when the machine is quiet."
        return
    yield "No treatment that was made meets them: keep the original, or ask for less."


def candidates_of(folder: Path, name: str) -> list[Candidate]:
    """The files of a run: the original's first, then the others in the order of their cost, which
    is that of the variants, and of each its float file before the one in 8 bits. Raises OwnError:
    the original has no file.
    """
    variants = list(dict.fromkeys(read_results(folder).variant))
    candidates = [
        Candidate(variant, form, folder / "artefacts" / name / variant / "0" / step / file)
        for variant in variants
        for form, step, file in _FORMS
    ]
    there = [candidate for candidate in candidates if candidate.file.is_file()]
    if not there or there[0] != candidates[0]:
        raise OwnError(
            "goals need the original's ONNX file: ask for the stages export and quantize"
        )
    return there


def _with_partial(
    candidates: Sequence[Candidate], network: nn.Module | None, folder: Path, search: _Search
) -> Iterator[Candidate]:
    """The candidates but the original, and behind the direct swap the one that keeps the activation
    in some layers, which needs no training either.
    """
    original, *others = candidates
    direct = [
        place for place, candidate in enumerate(others) if candidate.variant.endswith("-swap")
    ]
    behind = direct[-1] + 1 if direct else 0
    yield from others[:behind]
    # Made only when it is asked for: the direct swap is cheaper still.
    partial = None if network is None or not direct else search.partial(network)
    if partial is not None:
        file = folder / "goals" / f"{original.variant}-partly-swapped.onnx"
        file.parent.mkdir(parents=True, exist_ok=True)
        export_network(network_of("partly-swapped", partial.module, search.data), file)
        yield Candidate(partial.name, "float", file)
    yield from others[behind:]


class _Search:
    """Candidates beside the original, each measured when it is asked for."""

    def __init__(self, goals: Goals, original: Path, data: Data, clock: Clock) -> None:
        self._goals, self._original, self._clock = goals, original, clock
        self.data = data
        self._times: dict[Path, Timed] = {}
        self._known: dict[tuple[Path, str], Metric] = {}

    @property
    def unread(self) -> bool:
        """Whether a speed could not be measured."""
        return any(timed.latency is None or timed.reason for timed in self._times.values())

    @property
    def asked(self) -> str:
        """The goals in words."""
        headline, parts = self._scored(self._original, "validation"), []
        if self._goals.max_loss is not None:
            unit = "points" if headline.unit == "fraction" else headline.unit
            parts.append(f"a loss of at most {self._goals.max_loss:g} {unit} of {headline.name}")
        if self._goals.min_speedup is not None:
            parts.append(f"{self._goals.min_speedup:g} x the speed in {RUNTIME}")
        return f"Goals: {' and '.join(parts)}, by the validation data:"

    @property
    def _allowed(self) -> float | None:
        """The greatest loss in the headline's unit."""
        limit, headline = self._goals.max_loss, self._scored(self._original, "validation")
        return None if limit is None else limit * (_POINT if headline.unit == "fraction" else 1)

    def partial(self, network: nn.Module) -> PartialSwap | None:
        """The swap of as many layers as may be lost; None where no loss is limited."""
        allowed = self._allowed
        return None if allowed is None else partial_swap(network, self.data.validation, allowed)

    def reason(self, candidate: Candidate) -> str:
        """Why a candidate does not meet the goals; "" where it does."""
        allowed = self._allowed
        if allowed is not None:
            loss = self._loss(candidate)
            if not loss <= allowed + 1e-12:
                return f"loses too much, {self._scale(allowed).number(loss)} {self._unit}"
        if self._goals.min_speedup is not None:
            timed = self._timed(candidate)
            if timed.latency is None or timed.reason:
                return f"its speed was not measured: {timed.reason}"
            # The slow end of the interval has to be fast enough.
            if 1 / timed.latency.intervals["ratio"][1] < self._goals.min_speedup:
                return f"is too slow, {1 / timed.latency.ratio:.2f} x the speed"
        return ""

    def words(self, candidate: Candidate) -> str:
        """Its loss on the validation data, and its speed."""
        loss = self._loss(candidate)
        said = f"Loss {self._scale(abs(loss)).number(loss)} {self._unit}"
        timed = self._times.get(candidate.file)
        if timed is None or timed.latency is None or timed.reason:
            return said
        return f"{said}, {1 / timed.latency.ratio:.2f} x the speed"

    def tested(self, candidate: Candidate) -> str:
        """The chosen one's quality on the test data beside the original's, with its interval."""
        before, after = (self._scored(file, "test") for file in (self._original, candidate.file))
        if before.value is None or after.value is None:
            return f"{after.name} has no value: {after.reason}"
        scale = self._scale(abs(after.value - before.value))
        sentence = f"{after.name} is {scale.number(after.value)} {scale.unit}".rstrip()
        sentence = f"{sentence}, and {scale.number(before.value)} {scale.unit}".rstrip() + " before"
        if before.scores is None or after.scores is None:
            return sentence
        values, other = (
            metric_of_arm.scores.values().numpy()
            for metric_of_arm in (after, before)
            if metric_of_arm.scores
        )
        blocks = after.scores.blocks
        paired = paired_samples(values, other, None if blocks is None else blocks.numpy())
        if paired is None:
            return sentence
        number = interval_text(sample_estimate(paired), scale)
        return f"{sentence}: {number}, over {paired.n:,} samples like these"

    @property
    def _unit(self) -> str:
        headline = self._scored(self._original, "validation")
        return "points" if headline.unit == "fraction" else headline.unit

    def _scale(self, fine: float) -> Scale:
        headline = self._scored(self._original, "validation")
        return scale_of(headline.unit, [headline.value or 0.0], [fine or _POINT])

    def _loss(self, candidate: Candidate) -> float:
        before, after = (
            self._scored(file, "validation") for file in (self._original, candidate.file)
        )
        if before.value is None or after.value is None:
            return float("nan")
        falls = after.direction is Direction.HIGHER
        return before.value - after.value if falls else after.value - before.value

    def _scored(self, file: Path, part: str) -> Metric:
        """The task's first metric of a file on a part of the data."""
        from evalsuite.tasks import score
        from opgraph.onnx_network import OnnxNetwork

        if (file, part) not in self._known:
            split: Split = getattr(self.data, part)
            self._known[file, part] = score(OnnxNetwork(file), split).headline
        return self._known[file, part]

    def _timed(self, candidate: Candidate) -> Timed:
        if candidate.file not in self._times:
            readings = self._clock(candidate.file, self._original, self.data, (_BATCH,))
            self._times[candidate.file] = next(readings)
        return self._times[candidate.file]


def with_stages(stages: Sequence[str]) -> tuple[str, ...]:
    """The stages with those that goals need."""
    return tuple(stages) if "all" in stages else tuple(dict.fromkeys([*stages, FILE, "quantize"]))
