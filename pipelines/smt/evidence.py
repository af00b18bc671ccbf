"""The proof files of what holds: written, re-checked at once by the independent checker, and kept in one archive."""

from __future__ import annotations

import json
import statistics
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from torch import nn

from evalsuite import (
    Direction,
    Metric,
    Network,
    ProofError,
    Property,
    SmoothProofError,
    Unsupported,
    Verdict,
    check_proof,
    check_smooth_proof,
    export_onnx,
)
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.methods import Settled
from pipelines.smt.search import CurvedDecided, Decided, curved_proof_of, proof_of
from pipelines.smt.search.proof import OtherNetworkError, canonical

ARCHIVE, NETWORK = "proofs.zip", "network.onnx"
LATE = "the job's time limit was near"
REFUSED = "the search says it holds, but the checker refuses its proof: {error}"
_PEER = "a peer's word has no proof"
# Zip files know no time before; the same proofs give the same file.
_DATE = (1980, 1, 1, 0, 0, 0)
Setting = dict[str, str | int | float | bool]


class Evidence:
    """`proofs.zip` in `folder`, if anything holds: the ONNX file, and each property's proof that was checked.

    evalsuite check-proof eps-0.03125/sample-3.json --onnx network.onnx, after unpacking, checks one again.

    Args:
        folder: where the archive goes.
        network: what is proven about.
        exact: its exact weights, where it is a ReLU network.
        deadline: no proof is written after it, on the clock of `time.monotonic`.
    """

    def __init__(self, folder: Path, network: Network, exact: ExactNetwork | None, deadline: float) -> None:
        self.path = folder / ARCHIVE
        self._network, self._exact, self._deadline = network, exact, deadline
        self._sizes: list[int] = []
        self._missing: list[str] = []

    def check(self, property_: Property, settled: Settled) -> Settled:
        """The same, where it does not hold, or its proof is accepted, or there can be none; else unknown.

        What is found counts for the next `metrics`.
        """
        if settled.verdict is not Verdict.HOLDS:
            return settled
        if settled.decided is None or time.monotonic() >= self._deadline:
            self._missing.append(_PEER if settled.decided is None else LATE)
            return settled
        try:
            text = self._checked(settled.decided)
        except Unsupported as error:
            self._missing.append(str(error))
            refused = isinstance(error, OtherNetworkError) and not self._normalised
            return self._refused(settled, error) if refused else settled
        except (ProofError, SmoothProofError) as error:
            self._missing.append(str(error))
            return self._refused(settled, error)
        self._sizes.append(len(text))
        with zipfile.ZipFile(self.path, "a") as archive:
            put(archive, f"eps-{property_.eps!r}/sample-{property_.sample}.json", text)
        return settled

    @staticmethod
    def _refused(settled: Settled, error: Exception) -> Settled:
        return replace(settled, verdict=Verdict.UNKNOWN, reason=REFUSED.format(error=str(error)[:300]))

    @property
    def _normalised(self) -> bool:
        """Whether the file's numbers differ for a good reason: the exporter folds a batch normalisation in float32."""
        return any(isinstance(each, nn.BatchNorm1d) for each in self._network.module.modules())

    def metrics(self, setting: Setting) -> list[Metric]:
        """How many proofs were accepted since the last call, and their mean size."""
        sizes, missing = self._sizes, self._missing
        self._sizes, self._missing = [], []
        return proof_metrics(sizes, missing, setting)

    @cached_property
    def _content(self) -> bytes:
        """The ONNX file, put into a new archive: exporting takes a second, and where nothing holds nobody needs it."""
        onnx = self.path.with_name(NETWORK)
        export_onnx(self._network.module, self._network.input_shape, onnx)
        content = onnx.read_bytes()
        onnx.unlink()
        with zipfile.ZipFile(self.path, "w") as archive:
            put(archive, NETWORK, content)
        return content

    def _checked(self, decided: Decided | CurvedDecided) -> bytes:
        if isinstance(decided, CurvedDecided):
            text = canonical(curved_proof_of(decided, self._content)).encode("ascii")
            check_smooth_proof(json.loads(text), self._content)
            return text
        assert self._exact is not None
        text = canonical(proof_of(decided, self._exact, self._content)).encode("ascii")
        check_proof(json.loads(text), self._content)
        return text


def without_proofs(method: str, setting: Setting) -> list[Metric]:
    """The rows of a method that writes no proof files, which say why."""
    peers = {
        "z3": "Z3's verdicts come without a proof file",
        "marabou": "Marabou's word comes without a proof file",
        "bisection": "bounds in float64, rounded outward, come without a proof file",
    }
    reason = peers[method]
    return [
        Metric("proofs_checked", None, "count", Direction.HIGHER, setting, reason=reason),
        Metric("proof_bytes", None, "bytes", Direction.LOWER, setting, reason=reason),
    ]


def proof_metrics(sizes: Sequence[int], missing: Sequence[str], setting: Setting) -> list[Metric]:
    """How many proofs there are and their mean size in bytes; `missing` says why others that hold have none."""
    holds = len(sizes) + len(missing)
    reason = f"{len(missing)} of {holds} without: {'; '.join(sorted(set(missing)))}" if missing else ""
    mean = statistics.fmean(sizes) if sizes else None
    none = "" if sizes else reason or "nothing holds"
    return [
        Metric("proofs_checked", len(sizes), "count", Direction.HIGHER, setting, reason=reason),
        Metric("proof_bytes", mean, "bytes", Direction.LOWER, setting, reason=none),
    ]


def put(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file, with the same bytes each time."""
    archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
