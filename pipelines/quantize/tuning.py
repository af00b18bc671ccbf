"""Choosing a treatment by calibration data alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from evalsuite import Inputs, Unsupported, leaves, mapped
from pipelines.quantize.calibration import check_inputs
from pipelines.quantize.divergence import Reference
from pipelines.quantize.placement import Scheme
from pipelines.quantize.processor import one_thread
from pipelines.quantize.treatment import Treated, Treatment, treat

# The same for every network. Simpler ones first: of equally good ones the first is taken.
CANDIDATES = (
    Treatment(),
    Treatment("mse", "mse"),
    Treatment("mse", "mse", bias_correction=True),
    Treatment("mse", "mse", "gptq"),
    Treatment("mse", "mse", "gptq", bias_correction=True),
    Treatment("mse", "mse", "gpfq", bias_correction=True),
    Treatment("percentile", "mse", "gptq", bias_correction=True),
    Treatment("mse", "mse", "gptq", bias_correction=True, equalization=True),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate: its loss in nats, or None and the reason why it has none."""

    treatment: Treatment
    loss: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The chosen treatment, the network that it gives on the whole calibration set, and all trials."""

    treatment: Treatment
    treated: Treated
    trials: tuple[Trial, ...]


def tune(traced: fx.GraphModule, scheme: Scheme, inputs: Inputs, candidates: Sequence[Treatment] = CANDIDATES) -> Tuned:
    """Try each candidate, and treat `traced` with the best.

    Every candidate is fitted to every other calibration input and judged on the rest, by the mean Kullback-Leibler
    divergence of the quantized network's class probabilities from the float network's: no label and no test sample is
    seen. Fewer than two inputs serve as both. The best one is then fitted to all.

    Raises:
        ValueError: no candidate, no input, or one that is not finite.
        Unsupported: no candidate can be applied.
    """
    if not candidates:
        raise ValueError("there is no candidate treatment")
    check_inputs(inputs)
    fitted = mapped(inputs, lambda each: each[::2])
    judged = mapped(inputs, lambda each: each[1::2]) if len(leaves(inputs)[0]) > 1 else inputs
    with one_thread(), torch.no_grad():
        reference = Reference(traced, judged)
        trials = [_try(traced, scheme, fitted, reference, each) for each in candidates]
    losses = [(trial.loss, trial.treatment) for trial in trials if trial.loss is not None]
    if not losses:
        raise Unsupported(f"no treatment can be applied: {trials[0].reason}")
    _, best = min(losses, key=lambda each: each[0])
    return Tuned(best, treat(traced, scheme, inputs, best), tuple(trials))


def _try(traced: fx.GraphModule, scheme: Scheme, fitted: Inputs, reference: Reference, treatment: Treatment) -> Trial:
    try:
        treated = treat(traced, scheme, fitted, treatment)
    except Unsupported as error:
        return Trial(treatment, None, str(error))
    if treatment.equalization and not treated.equalized:
        return Trial(treatment, None, "; ".join(treated.notes))
    return Trial(treatment, reference.loss(treated.network).divergence, "; ".join(treated.notes))
