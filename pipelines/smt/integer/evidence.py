"""The proof files of what holds of an integer network: checked at once, and kept in one archive."""

from __future__ import annotations

import json
import time
import zipfile
from dataclasses import replace
from pathlib import Path

from evalsuite import IntegerProofError, Metric, Verdict, check_integer_proof
from pipelines.smt.evidence import ARCHIVE, LATE, NETWORK, REFUSED, Setting, proof_metrics, put
from pipelines.smt.integer.deciding import Decision


class IntegerEvidence:
    """`proofs.zip` in `folder`, if anything holds: the ONNX file, and `steps-R/sample-N.json` of each proof.

    evalsuite check-proof steps-2/sample-3.json --onnx network.onnx, after unpacking, checks one again.

    Args:
        folder: where the archive goes.
        content: the ONNX file of integers.
        deadline: no proof is written after it, on the clock of `time.monotonic`.
    """

    def __init__(self, folder: Path, content: bytes, deadline: float) -> None:
        self._path, self._content, self._deadline = folder / ARCHIVE, content, deadline
        self._path.unlink(missing_ok=True)
        self._sizes: list[int] = []
        self._missing: list[str] = []

    def check(self, decision: Decision, name: str) -> Decision:
        """The same, where it does not hold or its proof is accepted, which then is in the archive; else unknown.

        What is found counts for the next `metrics`.
        """
        if decision.proof is None:
            return decision
        if time.monotonic() >= self._deadline:
            self._missing.append(LATE)
            return decision
        text = json.dumps(decision.proof(self._content), separators=(",", ":"))
        try:
            check_integer_proof(json.loads(text), self._content)
        except IntegerProofError as error:
            self._missing.append(str(error))
            return replace(decision, verdict=Verdict.UNKNOWN, reason=REFUSED.format(error=str(error)[:300]))
        self._sizes.append(len(text))
        new = not self._path.exists()
        with zipfile.ZipFile(self._path, "a") as archive:
            if new:
                put(archive, NETWORK, self._content)
            put(archive, f"{name}.json", text.encode())
        return decision

    def metrics(self, setting: Setting) -> list[Metric]:
        """How many proofs were accepted since the last call, and their mean size."""
        sizes, missing = self._sizes, self._missing
        self._sizes, self._missing = [], []
        return proof_metrics(sizes, missing, setting)
