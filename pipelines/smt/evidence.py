"""The proof files of what holds: written, re-checked at once by the independent checker, and kept in one archive."""

from __future__ import annotations

import statistics
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from torch import nn

from evalsuite import Direction, Metric, Network, Unsupported, Verdict, export_onnx
from pipelines.smt.methods import Settled
from pipelines.smt.proving import REFUSALS, checked_text
from pipelines.smt.rows import Setting
from pipelines.smt.search.proof import OtherNetworkError

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


class Evidence:
    """`proofs.zip` in `folder`, if anything holds: the ONNX file, and each property's proof that was checked.

    evalsuite check-proof eps-0.03125/sample-3.json --onnx network.onnx, after unpacking, checks one again.

    Args:
        folder: where the archive goes.
        network: what is proven about: an ONNX file, which is made where there is anything to prove, as that takes time.
        deadline: no proof is written after it, on the clock of `time.monotonic`.
        folded: whether the file's numbers may differ from the network's for a good reason.
    """

    def __init__(self, folder: Path, network: Callable[[], bytes], deadline: float, *, folded: bool = False) -> None:
        self.path = folder / ARCHIVE
        self.path.unlink(missing_ok=True)
        self._network, self._deadline, self._folded = network, deadline, folded
        self._sizes: list[int] = []
        self._missing: list[str] = []

    @classmethod
    def of_module(cls, folder: Path, network: Network, deadline: float) -> Evidence:
        """Of a module, which is exported. The exporter folds a batch normalisation in float32."""

        def exported() -> bytes:
            onnx = folder / NETWORK
            export_onnx(network.module, network.input_shape, onnx)
            content = onnx.read_bytes()
            onnx.unlink()
            return content

        folded = any(isinstance(each, nn.BatchNorm1d) for each in network.module.modules())
        return cls(folder, exported, deadline, folded=folded)

    def check(self, name: str, settled: Settled) -> Settled:
        """The same, where it does not hold, or its proof is accepted, or there can be none; else unknown.

        The proof goes to the archive by that name. What is found counts for the next `metrics`.
        """
        if settled.verdict is not Verdict.HOLDS:
            return settled
        if settled.proof is None or time.monotonic() >= self._deadline:
            self._missing.append(_PEER if settled.proof is None else LATE)
            return settled
        try:
            text = checked_text(settled.proof(self._content), self._content)
        except (Unsupported, *REFUSALS) as error:
            self._missing.append(str(error))
            stands = isinstance(error, Unsupported) and (self._folded or not isinstance(error, OtherNetworkError))
            refused = REFUSED.format(error=str(error)[:300])
            return settled if stands else replace(settled, verdict=Verdict.UNKNOWN, reason=refused)
        self._sizes.append(len(text))
        self._put(f"{name}.json", text.encode("ascii"))
        return settled

    def metrics(self, setting: Setting) -> list[Metric]:
        """How many proofs were accepted since the last call, and their mean size in bytes; why others have none."""
        sizes, missing = self._sizes, self._missing
        self._sizes, self._missing = [], []
        without = f"{len(missing)} of {len(sizes) + len(missing)} without: {'; '.join(sorted(set(missing)))}"
        reason = without if missing else ""
        mean = statistics.fmean(sizes) if sizes else None
        return _metrics(len(sizes), mean, setting, reason, "" if sizes else reason or "nothing holds")

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


def _metrics(count: int | None, mean: float | None, setting: Setting, *reasons: str) -> list[Metric]:
    return [
        Metric("proofs_checked", count, "count", Direction.HIGHER, setting, reason=reasons[0]),
        Metric("proof_bytes", mean, "bytes", Direction.LOWER, setting, reason=reasons[1]),
    ]
