"""Whether a swap to ReLU keeps all logits within delta on a box, by the sound lines of the difference network."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from evalsuite import Network, Property, SwapBounds, Unsupported, Verdict, float32_box
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.equivalence import Equivalence
from pipelines.smt.exact_network import Affine
from pipelines.smt.reduction import OutOfTimeError
from pipelines.smt.search.curved_network import read_curved
from pipelines.smt.search.intervals import IntervalSpace

_STARTS = 16
_STEPS = 30
_MOST_PARTS = 4096
_CHUNK = 32  # boxes between two looks at the clock


def swapped_within(network: Network, box: Property, *, delta: float, seconds: float = 60.0) -> Equivalence:
    """Whether no logit of the network differs by more than `delta` from the one before its swap, anywhere in the box.

    Bounds of the difference network (`SwapBounds`) are halved along the box's sides until they suffice; `violated`
    is a float32 input at which both networks' logits are enclosed, in exact arithmetic, more than delta apart.

    Raises:
        Unsupported: the network was not swapped, or a layer or an activation has no rule.
        ValueError: delta is not > 0 and finite, or seconds are not > 0.
    """
    if not (delta > 0 and np.isfinite(delta)):
        raise ValueError(f"delta must be finite and > 0, got {delta}")
    if not seconds > 0:
        raise ValueError(f"seconds must be > 0, got {seconds}")
    if network.unswapped is None:
        raise Unsupported("no activation of this network was replaced by ReLU: there is nothing to compare with")
    if box.center is not None:
        raise Unsupported("equivalence is decided on boxes, and this property is an L2 ball")
    started = time.monotonic()
    bounds = SwapBounds(network.unswapped, network.input_shape, swapped=network.module)
    found, point = _ascend(bounds, box)
    claim = f"no logit differs by more than {delta:g} from the network before the swap"

    def result(verdict: Verdict, reason: str, bound: float) -> Equivalence:
        shown = point if verdict is Verdict.VIOLATED else None
        return Equivalence(verdict, claim, reason, bound, found, shown, time.monotonic() - started)

    lower, upper = box.lower[None], box.upper[None]
    worst = bounds.certify(lower, upper).disruption
    if point is not None and _proven_apart(network, point, started + seconds) > delta:
        return result(Verdict.VIOLATED, "gradient ascent", float(worst.max()))
    proven = 0.0
    while len(worst):
        closed = worst <= delta
        proven = max(proven, float(worst[closed].max())) if bool(closed.any()) else proven
        lower, upper, worst = lower[~closed], upper[~closed], worst[~closed]
        if not len(worst):
            break
        bound = max(proven, float(worst.max()))
        if time.monotonic() - started >= seconds:
            return result(Verdict.TIMEOUT, f"time limit of {seconds:g} s reached; {len(worst)} parts are open", bound)
        if 2 * len(worst) > _MOST_PARTS or not bool((upper > lower).any()):
            return result(Verdict.UNKNOWN, f"{len(worst)} parts are open", bound)
        lower, upper = _halved(lower, upper)
        worst = _certified(bounds, lower, upper, worst.repeat(2), started + seconds)
    return result(Verdict.HOLDS, "bounds", proven)


def _certified(
    bounds: SwapBounds, lower: torch.Tensor, upper: torch.Tensor, known: torch.Tensor, deadline: float
) -> torch.Tensor:
    """What can differ in each box, at most what is `known` of it; boxes not reached before the deadline keep that."""
    found = known.clone()
    for at in range(0, len(lower), _CHUNK):
        if time.monotonic() >= deadline:
            break
        part = slice(at, at + _CHUNK)
        found[part] = torch.minimum(found[part], bounds.certify(lower[part], upper[part]).disruption)
    return found


def _proven_apart(network: Network, point: torch.Tensor, deadline: float) -> Fraction:
    """A lower bound of the greatest difference of two logits at a point: what their enclosures leave between them.

    -1 where nothing is known of an activation there, or no time is left.
    """
    exact, eye = Dyadic.of(point.double().flatten().numpy()), np.eye(network.classes)
    both_signs = Affine(Dyadic.of(np.concatenate([eye, -eye])), Dyadic.zeros(2 * network.classes))
    try:
        before, after = (
            IntervalSpace(read_curved(replace(network, module=module)), exact, exact, both_signs, deadline).least
            for module in (network.unswapped, network.module)
            if module is not None
        )
    except (Unsupported, OutOfTimeError):
        return Fraction(-1)
    # Bounds below of each logit, and then of each one's negative.
    turned = [*after[network.classes :], *after[: network.classes]]
    return max(one + other for one, other in zip(before, turned, strict=True))


def _halved(lower: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each box cut in two across its longest side."""
    low, high = lower.flatten(1), upper.flatten(1)
    rows = torch.arange(len(low))
    longest = (high - low).argmax(1)
    middle = (low[rows, longest] + high[rows, longest]) / 2
    left, right = high.clone(), low.clone()
    left[rows, longest] = middle
    right[rows, longest] = middle
    shape = (-1, *lower.shape[1:])
    return torch.cat([low, right]).reshape(shape), torch.cat([left, high]).reshape(shape)


def _ascend(bounds: SwapBounds, box: Property) -> tuple[float, torch.Tensor] | tuple[None, None]:
    """The greatest absolute difference that projected gradient ascent finds at float32 points, and where.

    None where the box holds no float32 point.
    """
    lower, upper = float32_box([box])
    if bool((lower > upper).any()):
        return None, None
    generator = torch.Generator().manual_seed(box.sample)
    share = torch.rand(_STARTS, *box.lower.shape, generator=generator)
    x = (lower + share * (upper - lower)).clamp(lower, upper)
    best, where = -1.0, x[0]
    for step in range(_STEPS + 1):
        given = x.double().requires_grad_()
        apart = bounds.difference(given).abs().amax(1)
        greatest, index = apart.detach().max(0)
        if float(greatest) > best:
            best, where = float(greatest), x[int(index)].clone()
        (gradient,) = torch.autograd.grad(apart.sum(), given)
        size = 0.25 * (1 - step / _STEPS) + 0.01
        x = (x + size * (upper - lower) * gradient.sign().float()).clamp(lower, upper)
    return best, where
