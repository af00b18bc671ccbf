"""The treatment of a network whose tensors are quantized by reader, chosen by its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import fx

from evalsuite import Unsupported
from intnet.threads import one_thread
from opgraph.inputs import Inputs
from pipelines.quantize.calibration import Calibration, check_inputs
from pipelines.quantize.migration import migratable
from pipelines.quantize.placement import Scheme, place
from pipelines.quantize.sensitivity import Reference
from pipelines.quantize.treatment import Treatment, Trial, Tuned, attempt, halves, treat

STRENGTHS = (0.5, 0.65, 0.8, 0.9)
RANGES: tuple[Calibration, ...] = ("percentile", "max", "mse")
# A step is taken where it lessens the distance to this share: on half of the calibration samples
# lesser gains are often luck, and a migration puts multiplications before some quantizers.
CLEARLY = 0.8


def choose(
    traced: fx.GraphModule,
    scheme: Scheme,
    inputs: Inputs,
    candidates: Sequence[Treatment],
    ranges: Sequence[Calibration] = RANGES,
    *,
    classes: bool = True,
) -> Tuned:
    """Choose in four steps, each from the best treatment so far, and treat `traced` with the last.

    1. The best of `candidates`.
    2. Migration, of the best of `STRENGTHS`.
    3. The best of `ranges`.
    4. Bias correction.

    Steps 2 to 4 are taken only where the outputs come clearly nearer.
    Every treatment is fitted to every other calibration input and judged on the rest, by how far
    the outputs are from the float network's (see `Reference`): no label and no test sample is seen.

    Raises:
        ValueError: no candidate, no input, or one that is not finite.
        Unsupported: no candidate can be applied, or the float network's outputs are not finite.
    """
    if not candidates:
        raise ValueError("there is no candidate treatment")
    check_inputs(inputs)
    place(traced, scheme)  # raises what no treatment can cure
    with one_thread(), torch.no_grad():
        search = _Search(traced, scheme, inputs, classes, alone=len(candidates) == 1)
        search.take(candidates)
        if migratable(traced, scheme.readers(traced)):
            search.take([replace(search.best, migration=strength) for strength in STRENGTHS])
        search.take([replace(search.best, calibration=range_) for range_ in ranges])
        search.take([replace(search.best, bias_correction=True)])
    best = search.best
    return Tuned(best, treat(traced, scheme, inputs, best), tuple(search.trials))


class _Search:
    """Tries treatments on halves of the calibration inputs, and remembers the best one."""

    def __init__(
        self,
        traced: fx.GraphModule,
        scheme: Scheme,
        inputs: Inputs,
        classes: bool,
        *,
        alone: bool,
    ) -> None:
        self._traced, self._scheme, self._alone = traced, scheme, alone
        self._fitted, judged = halves(inputs)
        try:
            self._reference = Reference(traced, judged, classes=classes)
        except ValueError as error:  # the inputs are finite: the network is at fault
            raise Unsupported(str(error)) from error
        self._best: tuple[float, Treatment] | None = None
        self.trials: list[Trial] = []

    @property
    def best(self) -> Treatment:
        """The treatment of the least distance. Raises Unsupported where none could be applied."""
        if self._best is None:
            raise Unsupported(f"no treatment can be applied: {self.trials[0].reason}")
        return self._best[1]

    def take(self, treatments: Iterable[Treatment]) -> None:
        """Try what was not tried yet; the nearest is the best from now on, if it is clearly nearer
        than the best so far.
        """
        distances = []
        for treatment in treatments:
            if any(trial.treatment == treatment for trial in self.trials):
                continue
            trial = attempt(
                self._traced,
                self._scheme,
                self._fitted,
                self._reference,
                treatment,
                alone=self._alone,
            )
            self.trials.append(trial)
            if trial.loss is not None:
                distances.append((trial.loss, treatment))
        nearest = min(distances, key=lambda pair: pair[0], default=None)
        if nearest and (self._best is None or nearest[0] < CLEARLY * self._best[0]):
            self._best = nearest
