"""What `evalsuite verify` asks of an engine, and what is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from evalsuite.contract import Verdict
from evalsuite.verification.specification import Specification
from evalsuite.verification.witness import Witness

Check = Callable[[], None]


class Answer(str, Enum):
    """VNN-COMP's words: `sat` is a violation of the property that the file negates, `unsat` says that it holds.

    Example: docs/reference.md#verify-a-property
    """

    SAT = "sat"
    UNSAT = "unsat"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"

    @property
    def verdict(self) -> Verdict:
        """Of the property that the file negates."""
        return _VERDICTS[self]

    @classmethod
    def of(cls, verdict: Verdict) -> Answer:
        """The word for a verdict of the property that the file negates; `unknown` for what has none."""
        return next((each for each, other in _VERDICTS.items() if other is verdict), cls.UNKNOWN)


_VERDICTS = {
    Answer.SAT: Verdict.VIOLATED, Answer.UNSAT: Verdict.HOLDS, Answer.UNKNOWN: Verdict.UNKNOWN,
    Answer.TIMEOUT: Verdict.TIMEOUT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """What an engine is asked: a function of this in the entry-point group `evalsuite.engines`, which gives what it
    finds as a `Verification`. Errors as of `verify`.

    Args:
        onnx: the network's file.
        vnnlib: the property's file.
        content: of the network's file.
        specification: what is looked for.
        deadline: on the clock of `time.perf_counter`.
        check: to be called often; what it raises beyond the deadline ends the search as `timeout`.
        seed: of the falsifier.

    Example: docs/reference.md#verify-a-property
    """

    onnx: Path
    vnnlib: Path
    content: bytes = field(repr=False)
    specification: Specification
    deadline: float
    check: Check
    seed: int

    def check_sizes(self, inputs: int, outputs: int) -> None:
        """Raise ValueError where the network, which has so many inputs and outputs, is not what is asked about."""
        check_sizes(self.specification, self.vnnlib, [self.onnx], inputs, outputs)


def check_sizes(specification: Specification, vnnlib: Path, files: Sequence[Path], inputs: int, outputs: int) -> None:
    """Raise ValueError where a property is of other numbers of inputs and outputs than networks have together."""
    declared = specification.inputs, specification.outputs
    for kind, asked, has in zip("XY", declared, (inputs, outputs), strict=True):
        if asked != has:
            said = f"{vnnlib}: declares {asked} {kind}_i, but {' with '.join(map(str, files))} has {has}"
            cure = f"; to ask for the same class, or --within, constrain no {kind}_i" if len(files) > 1 else ""
            raise ValueError(f"{said}{cure}")


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of one instance.

    Args:
        answer: see `Answer`.
        witness: of `sat`.
        reason: which step decided, or why none could; and where boxes hold no float32 point, so that none is `sat`.
        boxes: how many boxes, and parts of boxes by phases, were bounded.
        prepare_seconds: spent on reading the files and comparing the network with ONNX Runtime.
        seconds: spent on deciding.
        proofs: of `unsat` by an engine that writes proofs, what makes the text of each box's proof file; it raises
            Unsupported where there is none.

    Example: docs/reference.md#verify-a-property
    """

    answer: Answer
    witness: Witness | None
    reason: str
    boxes: int = 0
    prepare_seconds: float = 0.0
    seconds: float = 0.0
    proofs: tuple[Callable[[], str], ...] = field(default=(), repr=False)

    def lines(self) -> str:
        """VNN-COMP's result: the answer, and the witness of a `sat`."""
        return self.answer.value + (f"\n{self.witness.text()}" if self.witness else "")

    def write(self, path: Path) -> str:
        """Write the proof of an `unsat`, and say so; or say why there is none. Raises Unsupported or OSError."""
        why = "" if self.answer is Answer.UNSAT else f"the answer is {self.answer.value}"
        if not why and len(self.proofs) != 1:
            boxes = f"the property has {len(self.proofs)} boxes, and a proof file is of one"
            why = boxes if self.proofs else "what refutes it has no proof file"
        if why:
            return f"no proof was written: {why}" + (f"; {path} is from before" if path.exists() else "")
        path.write_text(self.proofs[0]() + "\n", encoding="ascii")
        return f"the proof is in {path}"
