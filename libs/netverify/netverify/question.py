"""State what `verify` asks of an engine, and what is answered.

A `Question` holds the files and the time limit; a `Verification` holds one of VNN-COMP's words
(`Answer`), the witness that shows it, and, from engines that write proofs, the text of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from netverify.properties import Verdict
from netverify.real import RealNetwork
from netverify.specification import Specification
from netverify.witness import Witness, Witnesses

Check = Callable[[], None]


class Answer(str, Enum):
    """VNN-COMP's words: `sat` is a violation of the property that the file negates, `unsat` says
    that it holds.

    Both are said of real arithmetic and of executions in float32. What is known of one of them
    alone has a word of its own: `unsat-real` holds in real arithmetic, and is not shown as
    executed; `sat-real` has a witness in real arithmetic alone, `sat-float32` one in ONNX Runtime
    alone.
    """

    SAT = "sat"
    UNSAT = "unsat"
    UNSAT_REAL = "unsat-real"
    SAT_REAL = "sat-real"
    SAT_FLOAT32 = "sat-float32"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"

    @property
    def verdict(self) -> Verdict:
        """The verdict on the property that the file negates, in real arithmetic; unknown where a
        witness lacks one half.
        """
        return _VERDICTS[self]

    @classmethod
    def of(cls, verdict: Verdict) -> Answer:
        """The word for a verdict of the property that the file negates; `unknown` for what has
        none.
        """
        whole = cls.SAT, cls.UNSAT, cls.TIMEOUT
        return next((answer for answer in whole if answer.verdict is verdict), cls.UNKNOWN)


_VERDICTS = {
    Answer.SAT: Verdict.VIOLATED,
    Answer.UNSAT: Verdict.HOLDS,
    Answer.UNSAT_REAL: Verdict.HOLDS,
    Answer.SAT_REAL: Verdict.UNKNOWN,
    Answer.SAT_FLOAT32: Verdict.UNKNOWN,
    Answer.UNKNOWN: Verdict.UNKNOWN,
    Answer.TIMEOUT: Verdict.TIMEOUT,
}


_LACKS = {
    Answer.SAT_REAL: "violated in real arithmetic, and not by ONNX Runtime at the witness",
    Answer.SAT_FLOAT32: (
        "ONNX Runtime violates it at the witness, and real arithmetic does not, or is not known to"
    ),
}


@dataclass(frozen=True, slots=True)
class Question:
    """Holds what an engine is asked: a function of this in the entry-point group
    `netverify.engines`, which gives what it finds as a `Verification`. Errors as of `verify`.

    Args:
        onnx: the network's file.
        vnnlib: the property's file.
        content: of the network's file.
        specification: what is looked for.
        deadline: on the clock of `time.perf_counter`.
        check: to be called often; what it raises beyond the deadline ends the search as `timeout`.
        seed: of the falsifier.
        real: the network in real arithmetic, for `Witnesses`; None where it is not read.
    """

    onnx: Path
    vnnlib: Path
    content: bytes = field(repr=False)
    specification: Specification
    deadline: float
    check: Check
    seed: int
    real: RealNetwork | None = field(default=None, repr=False)

    def check_sizes(self, inputs: int, outputs: int) -> None:
        """Raise ValueError where the network, which has so many inputs and outputs, is not what
        is asked about.
        """
        check_sizes(self.specification, self.vnnlib, [self.onnx], inputs, outputs)


def check_sizes(
    specification: Specification, vnnlib: Path, files: Sequence[Path], inputs: int, outputs: int
) -> None:
    """Raise ValueError where a property is of other numbers of inputs and outputs than networks
    have together.
    """
    declared = specification.inputs, specification.outputs
    for kind, asked, has in zip("XY", declared, (inputs, outputs), strict=True):
        if asked != has:
            said = (
                f"{vnnlib}: declares {asked} {kind}_i, but {' with '.join(map(str, files))} has"
                f" {has}"
            )
            cure = (
                f"; to ask for the same class, or --within, constrain no {kind}_i"
                if len(files) > 1
                else ""
            )
            raise ValueError(f"{said}{cure}")


@dataclass(frozen=True, slots=True)
class Verification:
    """Holds what was found of one instance.

    Args:
        answer: see `Answer`.
        witness: of `sat`, `sat-real` and `sat-float32`; of `unsat-real`, where ONNX Runtime
            violates the property.
        reason: which step decided, or why none could, and what half of the answer is not shown.
        boxes: how many boxes, and parts of boxes by phases, were bounded.
        prepare_seconds: spent on reading the files and comparing the network with ONNX Runtime.
        seconds: spent on deciding.
        proofs: of `unsat` by an engine that writes proofs, what makes the text of each box's proof
            file; it raises Unsupported where there is none.
        of_reals: whether proofs speak of real arithmetic; those of integer networks are of the
            execution itself.
    """

    answer: Answer
    witness: Witness | None
    reason: str
    boxes: int = 0
    prepare_seconds: float = 0.0
    seconds: float = 0.0
    proofs: tuple[Callable[[], str], ...] = field(default=(), repr=False)
    of_reals: bool = True

    def with_half(self, judge: Witnesses) -> Verification:
        """Answer what is left open, by a witness of the judge that lacks one half; else as it
        is.
        """
        if self.answer in (Answer.UNKNOWN, Answer.TIMEOUT):
            for answer, witness in (
                (Answer.SAT_REAL, judge.in_reals),
                (Answer.SAT_FLOAT32, judge.in_float32),
            ):
                if witness is not None:
                    return self.lacking(answer, witness)
        return self

    def lacking(self, answer: Answer, witness: Witness) -> Verification:
        """This verification with another answer and witness, and a reason that says what the
        witness lacks.
        """
        return replace(
            self, answer=answer, witness=witness, reason=f"{self.reason}; {_LACKS[answer]}"
        )

    def lines(self) -> str:
        """VNN-COMP's result: the answer, and the witness of a `sat`."""
        return self.answer.value + (f"\n{self.witness.text()}" if self.witness else "")

    def write(self, path: Path) -> str:
        """Write the proof of an `unsat`, and say so; or say why there is none. Raises
        Unsupported or OSError.
        """
        holds = self.answer in (Answer.UNSAT, Answer.UNSAT_REAL)
        why = "" if holds else f"the answer is {self.answer.value}"
        if not why and len(self.proofs) != 1:
            boxes = f"the property has {len(self.proofs)} boxes, and a proof file is of one"
            why = boxes if self.proofs else "what refutes it has no proof file"
        if why:
            return f"no proof was written: {why}" + (
                f"; {path} is from before" if path.exists() else ""
            )
        path.write_text(self.proofs[0]() + "\n", encoding="ascii")
        return (
            f"the proof, of real arithmetic, is in {path}"
            if self.of_reals
            else f"the proof is in {path}"
        )
