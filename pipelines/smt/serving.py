"""The solver's own processes: a small server without torch, and a fresh child of it for each question.

The server is forked for each question, so that no question meets what another one left behind: Z3's step counts are the
same ones again only in a fresh process. The child's limits are the kernel's; the server waits for it, and kills it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

# Above what the child has mapped when it starts. Z3 says so itself where it can, a little before the kernel does.
_OWN_SHARE = 0.9
_MIB = 2**20
# Memory failures that solvers cannot report show as a death near the limit, or as Z3's exit code for them.
_NEAR = 0.8
_EXIT_NO_MEMORY = 101
# The kernel's limit of processor time, beyond the clock's: it holds even where the server is gone.
_GRACE = 2


def serve(connection: Connection) -> None:
    """Answer questions until the other end is closed. A question is JSON: see `pipelines.smt.limits.Solver.ask`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner's affair
    while True:
        try:
            question = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        reply = _supervise(question, connection)
        if reply is None:
            return
        connection.send_bytes(json.dumps(reply).encode())


def _supervise(question: dict[str, Any], connection: Connection) -> dict[str, Any] | None:
    """The child's answer, or how it ended; None where nobody is there any more to be told."""
    reader, writer = Pipe(duplex=False)
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        connection.close()
        reader.close()
        _child(question, writer)
    writer.close()
    deserted = False
    text = b""
    try:
        ready = wait([reader, connection], max(0.0, question["seconds"] - (time.monotonic() - started)))
        deserted = connection in ready  # nothing is asked before the answer: this is the end of the connection
        if reader in ready:
            with suppress(EOFError, OSError):
                text = reader.recv_bytes()
        late = not ready
    finally:
        os.kill(pid, signal.SIGKILL)  # what has ended cannot be hurt before it is waited for
        _, status, used = os.wait4(pid, 0)
        reader.close()
    if deserted:
        return None
    if text:
        found: dict[str, Any] = json.loads(text)
        return found
    if late:
        return {"outcome": "out of time"}
    return _death(status, used.ru_maxrss, question["memory"])


def _death(status: int, resident: int, memory: int) -> dict[str, Any]:
    """What a death without an answer means. `resident` is in KiB (bytes on macOS), `memory` in MiB."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return {"outcome": "out of time"}
    own = resident - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used = own * (1 if sys.platform == "darwin" else 1024)
    if used >= _NEAR * memory * _MIB or os.waitstatus_to_exitcode(status) == _EXIT_NO_MEMORY:
        return {"outcome": "out of memory"}
    how = signal.Signals(number).name if number else f"exit code {os.waitstatus_to_exitcode(status)}"
    return {"outcome": "crashed", "reason": f"the solver's process ended with {how}"}


def _child(question: dict[str, Any], writer: Connection) -> None:
    """Solve, answer, and end without any clean-up, which would take its time."""
    reply: dict[str, Any] = {"outcome": "out of memory"}
    try:
        _restrict(question)
        reply = _SOLVERS[question["solver"]](question)
    except MemoryError:
        pass
    except Exception as error:
        # Both libraries report an exhausted memory as an error of their own, in words only.
        if "memory" not in str(error).lower():
            reply = {"outcome": "crashed", "reason": f"{type(error).__name__}: {error}"[:500]}
    with suppress(OSError, MemoryError):
        writer.send_bytes(json.dumps(reply).encode())
    os._exit(0)


def _restrict(question: dict[str, Any]) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    seconds = int(question["seconds"]) + _GRACE
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _mapped() + question["memory"] * _MIB
    with suppress(ValueError, OSError):  # macOS knows the limit, and takes none
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _mapped() -> int:
    """The bytes of address space that this process has, 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 (pathlib would be one more import for each start)
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _z3(question: dict[str, Any]) -> dict[str, Any]:
    """SMT-LIB declarations and assertions to Z3's solver for the logic: the answer, steps, and values of variables."""
    import z3

    z3.set_param("memory_max_size", int(question["memory"] * _OWN_SHARE))  # 0 is none
    solver = z3.SolverFor(question["logic"])
    solver.set("random_seed", 0)
    solver.set("rlimit", question["steps"])
    solver.from_string(question["text"])
    result = solver.check()
    steps = int(solver.statistics().get_key_value("rlimit count"))
    if result == z3.unknown:
        why = solver.reason_unknown()
        # "canceled" is what some parts of Z3 make of its step limit; nothing else cancels here.
        stopped = "resource" in why or why == "canceled"
        outcome = "out of memory" if "memory" in why else "out of steps" if stopped else "crashed"
        return {"outcome": outcome, "steps": steps, "reason": why}
    reply = {"outcome": str(result), "steps": steps}
    if result == z3.sat:
        model = solver.model()
        by_name = {each.name(): each for each in model.decls()}
        reply["values"] = [_value(model, by_name[name]) if name in by_name else "0" for name in question["variables"]]
    return reply


def _value(model: Any, declaration: Any) -> str:
    """A number as text: "3", "-1/3"."""
    value = model[declaration]
    return (
        str(value.as_long()) if hasattr(value, "as_long") and not hasattr(value, "as_fraction") else value.as_string()
    )


def _marabou(question: dict[str, Any]) -> dict[str, Any]:
    """Equations, ReLUs and bounds in floats to Marabou: the answer, and values of variables."""
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
    known = {"sat": "sat", "unsat": "unsat", "TIMEOUT": "out of time"}
    reply: dict[str, Any] = {"outcome": known.get(answer, "crashed"), "reason": f"Marabou says {answer}"}
    if answer == "sat":
        reply["values"] = [values[index] for index in range(len(question["box"]))]
    return reply


_SOLVERS = {"z3": _z3, "marabou": _marabou}


def _main() -> None:
    # Z3 sets itself up once, for all children. They begin in the same state, so that steps count alike.
    _z3(
        {
            "memory": 0,
            "logic": "QF_LRA",
            "text": "(declare-const x Real)(assert (> x 0.0))",
            "variables": ["x"],
            "steps": 0,
        }
    )
    connection = Connection(int(sys.argv[1]))
    connection.send_bytes(b"ready")
    serve(connection)


if __name__ == "__main__":
    _main()
