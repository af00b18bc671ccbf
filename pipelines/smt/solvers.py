"""Z3 and Marabou as programs of their own: a question can neither hang, nor exhaust or bring down
what asks it.

`python -m pipelines.smt.solvers` is Marabou's: a question from standard input, its answer to
standard output, as JSON.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

# Z3's counter is an unsigned number of 32 bits: a greater limit would wrap around, and 0 would mean
# none.
_GREATEST = 2**32 - 1
# What the system calls for waiting take at most is a few weeks.
_LONGEST = 1e6
# A question ends by itself so many seconds after its limit where whoever asked it is gone.
_GRACE = 2
_NO_MEMORY = 101  # Z3's exit code for it
_ANSWER = re.compile(r'(\w+)\n\(:rlimit (\d+)\)\n\(:reason-unknown "([^"]*)"\)\n(.*)', re.DOTALL)
_VALUE = re.compile(r"\((\w+) (\(- )?(?:\(/ )?(\d+)\.0(?: (\d+)\.0\))?\)?\)")


class End(str, Enum):
    """How a question to a solver ended."""

    SAT = "sat"
    UNSAT = "unsat"
    OUT_OF_STEPS = "out of steps"
    OUT_OF_TIME = "out of time"
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits what one question may take.

    Args:
        seconds: of the clock. The solver is killed then.
        steps: Z3's deterministic count of its own work, the same on every machine.
        memory: MiB that the solver may take.
    """

    seconds: float = 60.0
    steps: int = _GREATEST
    memory: int = 2048

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be > 0 and finite, got {self.seconds}")
        if self.steps < 1:
            raise ValueError(f"steps must be >= 1, got {self.steps}")
        if self.memory < 16:
            raise ValueError(f"memory must be >= 16 MiB, got {self.memory}")


@dataclass(frozen=True, slots=True)
class Reply:
    """How it ended, the steps it took (0 where nobody could tell), why, and values of variables
    where it is sat.
    """

    end: End
    steps: int = 0
    reason: str = ""
    values: tuple[str | float, ...] = ()


def ask_z3(text: str, variables: Sequence[str], limits: Limits, logic: str = "QF_LRA") -> Reply:
    """Z3's answer to declarations and assertions in SMT-LIB; where sat, with the values of
    `variables`, as "-1/3".
    """
    # 1. Z3's own program, with limits of steps and memory that are the same on every machine.
    held = (
        file.locate() for file in metadata.files("z3-solver") or () if file.name in ("z3", "z3.exe")
    )
    program = next(held, "z3")  # else where the system looks for programs
    options = {"rlimit": min(limits.steps, _GREATEST), "memory_max_size": limits.memory}
    ends = math.ceil(min(limits.seconds, _LONGEST)) + _GRACE
    command = [
        str(program),
        "-in",
        f"-T:{ends}",
        *(f"{name}={value}" for name, value in options.items()),
    ]
    # 2. The question; behind it come the steps that were spent, why nothing is known, and the
    # values.
    wanted = f"(get-value ({' '.join(variables)}))" if variables else ""
    asked = (
        f"(set-logic {logic})\n{text}\n(check-sat)\n(get-info :rlimit)\n(get-info"
        f" :reason-unknown)\n{wanted}"
    )
    said = _told(command, asked, limits)
    match = said if isinstance(said, Reply) else _ANSWER.match(said)
    if not isinstance(match, re.Match):
        return match or Reply(End.CRASHED, reason=str(said).strip()[:500])
    answer, steps, why, values = match.groups()
    # 3. Without an answer the reason tells in words which limit was reached.
    if answer == "unknown":
        # "canceled" is what some parts of Z3 make of its step limit; nothing else cancels here.
        stopped = "resource" in why or why == "canceled"
        end = End.OUT_OF_MEMORY if "memory" in why else End.OUT_OF_STEPS if stopped else End.CRASHED
        return Reply(end, int(steps), why)
    # 4. Values become fractions: SMT-LIB writes -1/3 in prefix form.
    known = {
        name: f"{'-' * bool(sign)}{top}" + (f"/{bottom}" if bottom else "")
        for name, sign, top, bottom in _VALUE.findall(" ".join(values.split()))
    }
    return Reply(
        End(answer),
        int(steps),
        values=tuple(known[variable] for variable in variables) if answer == "sat" else (),
    )


def ask_marabou(question: Mapping[str, Any], limits: Limits) -> Reply:
    """Marabou's answer to equations, ReLUs and bounds in floats: see `pipelines.smt.marabou`."""
    asked = {**question, "seconds": min(limits.seconds, _LONGEST), "memory": limits.memory}
    said = _told([sys.executable, "-m", __name__], json.dumps(asked), limits)
    if isinstance(said, Reply):
        return said
    reply = json.loads(said)
    return Reply(End(reply["end"]), reason=reply["reason"], values=tuple(reply["values"]))


def _told(command: Sequence[str], asked: str, limits: Limits) -> str | Reply:
    """Return what the program says; or how it ended, where it was killed, died, or has no memory
    left.
    """
    path = os.pathsep.join(folder or os.curdir for folder in sys.path)
    try:
        done = subprocess.run(
            command,
            input=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=min(limits.seconds, _LONGEST),
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return Reply(End.OUT_OF_TIME)
    if done.returncode == _NO_MEMORY:
        return Reply(End.OUT_OF_MEMORY)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return Reply(End.CRASHED, reason=f"the solver's process ended with {name}")
    return done.stdout


def _marabou(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer, and the values of the first variables, which the box is of."""
    from maraboupy import MarabouCore

    query = MarabouCore.InputQuery()
    query.setNumberOfVariables(question["count"])
    for index, (low, high) in enumerate(question["box"]):
        query.setLowerBound(index, low)
        query.setUpperBound(index, high)
        query.markInputVariable(index, index)
    for kind, terms, scalar in question["equations"]:
        equation = MarabouCore.Equation(getattr(MarabouCore.Equation, kind))
        for factor, variable in terms:
            equation.addAddend(factor, variable)
        equation.setScalar(scalar)
        query.addEquation(equation)
    for before, after in question["relus"]:
        MarabouCore.addReluConstraint(query, before, after)
    options = MarabouCore.Options()
    options._verbosity = 0
    options._numWorkers = 1
    answer, values, _ = MarabouCore.solve(query, options, "")
    end = {"sat": End.SAT, "unsat": End.UNSAT, "TIMEOUT": End.OUT_OF_TIME}.get(answer, End.CRASHED)
    inputs = [values[index] for index in range(len(question["box"]))] if end is End.SAT else []
    return {"end": end, "reason": f"Marabou says {answer}", "values": inputs}


def _answer_marabou() -> None:
    """The kernel's limits hold even where whoever asked is gone."""
    question = json.load(sys.stdin)
    spoken, silent = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)  # Marabou writes there
    seconds = int(question["seconds"]) + _GRACE
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    with suppress(ValueError, OSError):  # macOS tells no size, and takes no limit
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + question["memory"] * 2**20,) * 2)
    try:
        reply = _marabou(question)
    except MemoryError:
        reply = {"end": End.OUT_OF_MEMORY, "reason": "", "values": []}
    except Exception as error:  # of a library that documents none
        end = End.OUT_OF_MEMORY if "memory" in str(error).lower() else End.CRASHED
        reply = {"end": end, "reason": f"{type(error).__name__}: {error}"[:500], "values": []}
    os.write(spoken, json.dumps(reply).encode())


if __name__ == "__main__":
    _answer_marabou()
