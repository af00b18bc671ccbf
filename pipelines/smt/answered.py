"""The answer to a property in a VNN-LIB file, with its witness or its proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from evalsuite import Specification, Verdict, Witness
from pipelines.smt.proving import Proof, write_proof

_WORDS = {Verdict.HOLDS: "unsat", Verdict.VIOLATED: "sat", Verdict.TIMEOUT: "timeout"}


@dataclass(frozen=True, slots=True)
class Answered:
    """What was found of one property.

    Args:
        verdict: of the property's negation: that nothing in its boxes satisfies it.
        reason: which step decided, or why none could.
        nodes: parts of the boxes that were searched.
        seconds: of everything.
        witness: where violated.
        proofs: where it holds, what makes each box's proof for the bytes of the ONNX file.
        content: these bytes.
    """

    verdict: Verdict
    reason: str
    nodes: int
    seconds: float
    witness: Witness | None = None
    proofs: tuple[Callable[[bytes], Proof], ...] = ()
    content: bytes = field(default=b"", repr=False)

    @property
    def answer(self) -> str:
        """The verdict in VNN-COMP's words: sat, unsat, unknown or timeout."""
        return _WORDS.get(self.verdict, "unknown")

    def lines(self) -> str:
        """VNN-COMP's result: the answer, and the witness of a sat in decimals that are exactly its numbers."""
        return self.answer + (f"\n{self.witness.text()}" if self.witness else "")

    def write(self, path: Path) -> str:
        """Write the proof of an unsat, and say so; or say why there is none."""
        why = "" if self.verdict is Verdict.HOLDS else f"the answer is {self.answer}"
        if not why and len(self.proofs) != 1:
            why = f"the property has {len(self.proofs)} boxes, and a proof file is of one"
        if why:
            return f"no proof was written: {why}" + (f"; {path} is from before" if path.exists() else "")
        write_proof(self.proofs[0](self.content), self.content, path)
        return f"the proof is in {path}"


def check_sizes(specification: Specification, vnnlib: Path, path: Path, inputs: int, outputs: int) -> None:
    """Raise ValueError where a property is of other numbers of inputs and outputs than its network has."""
    if (specification.inputs, specification.outputs) != (inputs, outputs):
        asked = f"{specification.inputs} X_i and {specification.outputs} Y_i"
        raise ValueError(f"{vnnlib}: declares {asked}, but {path} has {inputs} inputs and {outputs} outputs")
