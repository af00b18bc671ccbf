"""Write what was found at one radius as metrics and as proof files, which are re-checked and kept
in one archive.
"""

from __future__ import annotations

import statistics
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from torch import nn

from evalsuite import Direction, Metric, Network, Unsupported, Verdict
from opgraph.deployment import export_onnx
from pipelines.smt.proving import REFUSALS, OtherNetworkError, checked_text
from pipelines.smt.settling import BY_BOUNDS, JOB_ENDS, Settled

Setting = dict[str, str | int | float | bool]
_DECIDED = (Verdict.HOLDS, Verdict.VIOLATED)
UNDECIDED = (Verdict.UNKNOWN, Verdict.TIMEOUT, Verdict.UNSUPPORTED)
_SHARES = {
    "verified_accuracy": ((Verdict.HOLDS,), Direction.HIGHER),
    "violated_fraction": ((Verdict.VIOLATED,), Direction.LOWER),
    "undecided_fraction": (UNDECIDED, Direction.LOWER),
}
_NOT_REACHED = "no query got as far as the bounds"
ARCHIVE, NETWORK = "proofs.zip", "network.onnx"
LATE = "the job's time limit was near"
REFUSED = "the search says it holds, but the checker refuses its proof: {error}"
_PEER = "a peer's word has no proof"
# Zip files know no time before; the same proofs give the same file.
_DATE = (1980, 1, 1, 0, 0, 0)
_NONE_BY = {
    "z3": "Z3's verdicts come without a proof file",
    "marabou": "Marabou's word comes without a proof file",
    "bisection": "bounds in float64, rounded outward, come without a proof file",
}


def setting_of(eps: float, method: str) -> Setting:
    """Return the setting of the rows of one radius and method."""
    return {"eps": eps, "method": method}


def rows(
    samples: Sequence[int],
    settled: Sequence[Settled],
    limit: float,
    setting: Setting,
    *,
    counted: bool = False,
) -> list[Metric]:
    """Verdicts and seconds of each sample, their shares, and the cost.

    `limit` is that of a query, in seconds. `counted`: a count of nodes is the limit instead, and a
    query that it ends has no seconds but its own.

    What rests on a query that the clock ended is marked `timing`: another machine may answer it.
    """
    seconds, metrics = (
        [_seconds(result, limit, counted=counted) for result in settled],
        list[Metric](),
    )
    # 1. Each sample's verdict and seconds.
    for sample, decision, second in zip(samples, settled, seconds, strict=True):
        censored = "" if decision.verdict in _DECIDED else f"censored: {decision.reason}"
        metrics += [
            Metric(
                "robustness",
                None,
                "verdict",
                Direction.NEUTRAL,
                setting,
                sample=sample,
                verdict=decision.verdict,
                reason=decision.reason,
                timing=decision.clocked,
            ),
            Metric(
                "query_seconds",
                second,
                "s",
                Direction.LOWER,
                setting,
                sample=sample,
                timing=True,
                reason=censored,
            ),
        ]
    # 2. The shares of verdicts, and what exact search verifies beyond what bounds do.
    verified, *others = shares(settled, _SHARES, setting)
    by_bounds = sum(
        result.verdict is Verdict.HOLDS and result.reason == BY_BOUNDS for result in settled
    ) / len(settled)
    gap = (verified.value or 0.0) - by_bounds
    return [
        *metrics,
        verified,
        *others,
        # No direction: it is small where bounds suffice, and also where nothing holds.
        Metric(
            "exactness_gap", gap, "fraction", Direction.NEUTRAL, setting, timing=verified.timing
        ),
        Metric("bounds_accuracy", by_bounds, "fraction", Direction.HIGHER, setting),
        *_cost(settled, seconds, setting),
    ]


def effort(settled: Sequence[Settled], setting: Setting) -> list[Metric]:
    """Report what the solvers of real arithmetic had to do."""
    neurons = [result.unstable_neurons for result in settled if result.unstable_neurons is not None]
    unstable = statistics.fmean(neurons) if neurons else None
    unreached = "" if neurons else _NOT_REACHED
    clocked = any(result.clocked for result in settled)
    calls = sum(result.solver_calls for result in settled)
    return [
        Metric("unstable_neurons", unstable, "count", Direction.LOWER, setting, reason=unreached),
        Metric("solver_calls", calls, "count", Direction.LOWER, setting, timing=clocked),
    ]


def shares(
    settled: Sequence[Settled],
    meanings: Mapping[str, tuple[Sequence[Verdict], Direction]],
    setting: Setting,
) -> list[Metric]:
    """The share of some verdicts, by the metric's name."""
    clocked = any(result.clocked for result in settled)
    shares_by_name = {
        name: sum(result.verdict in verdicts for result in settled) / len(settled)
        for name, (verdicts, _) in meanings.items()
    }
    return [
        Metric(name, value, "fraction", meanings[name][1], setting, timing=clocked)
        for name, value in shares_by_name.items()
    ]


def _seconds(settled: Settled, limit: float, *, counted: bool) -> float:
    """Return the seconds that a query counts for: its own where it is decided, or ended by a count;
    the limit for the rest, such as what was not asked.
    """
    ended = counted and settled.verdict is Verdict.TIMEOUT and not settled.clocked
    return min(settled.seconds, limit) if settled.verdict in _DECIDED or ended else limit


def _cost(settled: Sequence[Settled], seconds: Sequence[float], setting: Setting) -> list[Metric]:
    """PAR-2 counts what is undecided twice."""
    clocked, nodes = (
        any(result.clocked for result in settled),
        [result.nodes for result in settled if result.nodes is not None],
    )
    par2 = statistics.fmean(
        (1 + (result.verdict not in _DECIDED)) * second
        for result, second in zip(settled, seconds, strict=True)
    )
    asked = [result.seconds for result in settled if result.reason != JOB_ENDS]
    late = (
        ""
        if len(asked) == len(settled)
        else f"{len(settled) - len(asked)} of {len(settled)} not asked: {JOB_ENDS}"
    )
    mean, counts = (
        statistics.fmean(asked) if asked else None,
        [statistics.fmean(nodes)] if nodes else [],
    )
    return [
        *(
            Metric("nodes", count, "count", Direction.LOWER, setting, timing=clocked)
            for count in counts
        ),
        Metric("solve_time", mean, "s", Direction.LOWER, setting, timing=True, reason=late),
        Metric("par2", par2, "s", Direction.LOWER, setting, timing=True),
    ]


class Evidence:
    """`proofs.zip` in `folder`, if anything holds: the ONNX file, and each property's proof that
    was checked.

    evalsuite check-proof eps-0.03125/sample-3.json --onnx network.onnx, after unpacking, checks one
    again.

    Args:
        folder: where the archive goes.
        network: what is proven about: an ONNX file, which is made where there is anything to prove,
            as that takes time.
        deadline: no proof is written after it, on the clock of `time.monotonic`.
        folded: whether the file's numbers may differ from the network's for a good reason.
    """

    def __init__(
        self, folder: Path, network: Callable[[], bytes], deadline: float, *, folded: bool = False
    ) -> None:
        self.path = folder / ARCHIVE
        self.path.unlink(missing_ok=True)
        self._network, self._deadline, self._folded = network, deadline, folded
        self._sizes: list[int] = []
        self._missing: list[str] = []
        self._clocked = False

    @classmethod
    def of_module(cls, folder: Path, network: Network, deadline: float) -> Evidence:
        """Return the evidence for a module, which is exported. The exporter folds a batch
        normalisation in float32.
        """

        def exported() -> bytes:
            onnx = folder / NETWORK
            export_onnx(network.module, network.input_shape, onnx)
            content = onnx.read_bytes()
            onnx.unlink()
            return content

        folded = any(isinstance(module, nn.BatchNorm1d) for module in network.module.modules())
        return cls(folder, exported, deadline, folded=folded)

    def check(self, name: str, settled: Settled) -> Settled:
        """Return `settled` as it is where it does not hold, or its proof is accepted, or there can
        be none; else as unknown.

        The proof goes to the archive by that name. What is found counts for the next `metrics`.
        """
        self._clocked |= settled.clocked
        if settled.verdict is not Verdict.HOLDS:
            return settled
        if settled.proof is None or time.monotonic() >= self._deadline:
            self._missing.append(_PEER if settled.proof is None else LATE)
            self._clocked |= settled.proof is not None
            return settled
        try:
            text = checked_text(settled.proof(self._content), self._content)
        except (Unsupported, *REFUSALS) as error:
            self._missing.append(str(error))
            # That no proof can be written says nothing of the verdict, if a folded network is the
            # reason or none is. A proof that its checker refuses does.
            stands = isinstance(error, Unsupported) and (
                self._folded or not isinstance(error, OtherNetworkError)
            )
            refused = REFUSED.format(error=str(error)[:300])
            return settled if stands else replace(settled, verdict=Verdict.UNKNOWN, reason=refused)
        self._sizes.append(len(text))
        self._put(f"{name}.json", text.encode("ascii"))
        return settled

    def metrics(self, setting: Setting) -> list[Metric]:
        """How many proofs were accepted since the last call, and their mean size in bytes; why
        others have none.

        Both depend on the clock where it ended a question or left no time for a proof: another
        machine has others.
        """
        sizes, missing, clocked = self._sizes, self._missing, self._clocked
        self._sizes, self._missing, self._clocked = [], [], False
        without = (
            f"{len(missing)} of {len(sizes) + len(missing)} without:"
            f" {'; '.join(sorted(set(missing)))}"
        )
        reason = without if missing else ""
        mean = statistics.fmean(sizes) if sizes else None
        lack = "" if sizes else reason or "nothing holds"
        return _metrics(len(sizes), mean, setting, reason, lack, clocked=clocked)

    @cached_property
    def _content(self) -> bytes:
        content = self._network()
        self._put(NETWORK, content)
        return content

    def _put(self, name: str, content: bytes) -> None:
        """Add a file, with the same bytes each time."""
        with zipfile.ZipFile(self.path, "a") as archive:
            archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)


def without_proofs(method: str, setting: Setting) -> list[Metric]:
    """The rows of a method that writes no proof files, which say why."""
    return _metrics(None, None, setting, _NONE_BY[method], _NONE_BY[method])


def _metrics(
    count: int | None, mean: float | None, setting: Setting, *reasons: str, clocked: bool = False
) -> list[Metric]:
    return [
        Metric(
            "proofs_checked",
            count,
            "count",
            Direction.HIGHER,
            setting,
            timing=clocked,
            reason=reasons[0],
        ),
        Metric(
            "proof_bytes",
            mean,
            "bytes",
            Direction.LOWER,
            setting,
            timing=clocked,
            reason=reasons[1],
        ),
    ]
