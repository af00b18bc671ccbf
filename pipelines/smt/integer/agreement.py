"""Metrics of the question whether an integer network gives the class of the float network that it came from."""

from __future__ import annotations

import time

from evalsuite import Bench, Direction, Metric, Network, Unsupported, Verdict
from pipelines.smt.equivalence_quantized import same_class
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.methods import CRASHED, JOB_ENDS
from pipelines.smt.rows import Setting

_METHOD = "float and integer"


def agreement(
    network: Network,
    quantized: IntegerNetwork,
    bench: Bench,
    radius: int,
    samples: int,
    seconds: float,
    deadline: float,
) -> list[Metric]:
    """Verdicts and their shares, for boxes of `radius` steps of the input's grid around the first samples.

    It holds where both networks provably have one class for every real input of the box; see `same_class`.
    """
    setting: Setting = {"eps": radius * quantized.input.scale, "steps": radius, "method": _METHOD}
    found: list[tuple[Verdict, str]] = []
    for property_ in bench.properties(radius * quantized.input.scale, samples):
        left = min(seconds, deadline - time.monotonic())
        if left <= 0:
            found.append((Verdict.TIMEOUT, JOB_ENDS))
            continue
        try:
            decided = same_class(network, quantized, property_, seconds=left)
            found.append((decided.verdict, decided.reason))
        except Unsupported as error:
            found.append((Verdict.UNSUPPORTED, str(error)))
        except (ArithmeticError, ValueError, MemoryError, RecursionError) as error:
            found.append((Verdict.UNKNOWN, CRASHED.format(reason=f"{type(error).__name__}: {error}"[:200])))
    rows = [
        Metric("same_class", None, "verdict", Direction.NEUTRAL, setting, sample=sample, verdict=verdict, reason=reason)
        for sample, (verdict, reason) in enumerate(found)
    ]
    shares = {
        "same_class_fraction": ((Verdict.HOLDS,), Direction.HIGHER),
        "other_class_fraction": ((Verdict.VIOLATED,), Direction.LOWER),
        "class_undecided_fraction": ((Verdict.UNKNOWN, Verdict.TIMEOUT, Verdict.UNSUPPORTED), Direction.LOWER),
    }
    clocked = any(verdict is Verdict.TIMEOUT for verdict, _ in found)
    return rows + [
        Metric(name, sum(verdict in own for verdict, _ in found) / len(found), "fraction", direction, setting,
               timing=clocked)
        for name, (own, direction) in shares.items()
    ]  # fmt: skip
