"""Limits that hold: real hangs, real growth of memory, and solvers that really die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import psutil
import pytest
import torch
from torch import nn

from evalsuite import Network, Property, Verdict
from pipelines.smt.counterexample import Judge
from pipelines.smt.deciding import Z3
from pipelines.smt.limits import End, Limits, Reply, Solver, shared
from pipelines.smt.methods import Limits as QueryLimits
from pipelines.smt.reading import read

SMALL = "(declare-const x Real)(assert (> x 0.0))(assert (< (* 3.0 x) 1.0))"
NEVER = SMALL + "(assert (> x 7.0))"
# The factors of a product of two primes of 64 bits, drawn at random: hours. (Next to 2**64 they are guessed at once.)
HARD = (
    "(declare-const a (_ BitVec 64))(declare-const b (_ BitVec 64))"
    "(assert (bvugt a b))(assert (bvugt b #x0000000000000001))"
    "(assert (= (bvmul ((_ zero_extend 64) a) ((_ zero_extend 64) b)) "
    f"#x{17324573639174612641 * 16789950873655392269:032x}))"
)
# A multiplier of 3,000 bits: millions of gates.
LARGE = (
    "(declare-const a (_ BitVec 3000))(declare-const b (_ BitVec 3000))"
    "(assert (= (bvmul a b) (bvadd (bvmul b b) a)))(assert (distinct a b))"
)


@pytest.fixture(scope="module")
def solver() -> Iterator[Solver]:
    made = Solver()
    assert ask(made, NEVER).end is End.UNSAT
    yield made
    made.close()


def ask(solver: Solver, text: str, logic: str = "QF_LRA", variables: tuple[str, ...] = (), **limits: float) -> Reply:
    question = {"solver": "z3", "logic": logic, "text": text, "variables": list(variables)}
    return solver.ask(question, Limits(**limits))  # type: ignore[arg-type]


def server_of(solver: Solver) -> psutil.Process:
    assert solver._process is not None
    return psutil.Process(solver._process.pid)


def test_answers_with_values_and_steps(solver: Solver) -> None:
    reply = ask(solver, SMALL, variables=("x", "not_there"))
    assert (reply.end, reply.values, reply.reason) == (End.SAT, ("1/6", "0"), "")
    assert [ask(solver, SMALL, variables=("x", "not_there")) for _ in range(3)] == [reply] * 3
    other = Solver()
    assert ask(solver, NEVER) == ask(other, NEVER)  # the same steps in another server's child
    other.close()


@pytest.mark.timeout(60)
def test_a_hard_question_is_stopped_by_its_steps_and_by_the_clock(solver: Solver) -> None:
    few = [ask(solver, HARD, "QF_BV", steps=50_000) for _ in range(2)]
    assert few[0].end is End.OUT_OF_STEPS
    assert few[0] == few[1]
    assert ask(solver, HARD, "QF_BV", seconds=0.5).end is End.OUT_OF_TIME
    assert not server_of(solver).children()
    assert ask(solver, NEVER).end is End.UNSAT


@pytest.mark.parametrize("memory", [32, 256])
def test_memory_is_limited(solver: Solver, memory: int) -> None:
    reply = ask(solver, LARGE, "QF_BV", memory=memory, seconds=120)
    assert reply.end is End.OUT_OF_MEMORY
    assert ask(solver, NEVER).end is End.UNSAT


def test_text_that_grows_in_the_solvers_own_process_is_limited_too(solver: Solver) -> None:
    deep = 300_000
    reply = ask(solver, f"(assert {'(not ' * deep}true{')' * deep})", memory=64, seconds=120)
    assert reply.end is End.OUT_OF_MEMORY


def test_what_the_solver_cannot_read_is_named(solver: Solver) -> None:
    reply = ask(solver, "(declare-const x Real")
    assert reply.end is End.CRASHED
    assert "invalid constant declaration" in reply.reason


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM])
def test_a_solver_that_dies_is_an_answer(solver: Solver, number: signal.Signals) -> None:
    server = server_of(solver)

    def kill() -> None:
        while not server.children():
            time.sleep(0.01)
        server.children()[0].send_signal(number)

    killer = threading.Thread(target=kill)
    killer.start()
    reply = ask(solver, HARD, "QF_BV", seconds=60)
    killer.join()
    assert (reply.end, reply.reason) == (End.CRASHED, f"the solver's process ended with {number.name}")
    assert ask(solver, NEVER).end is End.UNSAT
    assert server_of(solver) == server


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "end"), [(signal.SIGKILL, End.CRASHED), (signal.SIGSTOP, End.OUT_OF_TIME)])
@pytest.mark.slow
def test_a_server_that_dies_or_hangs_is_replaced(number: signal.Signals, end: End) -> None:
    solver = Solver()
    ask(solver, NEVER)
    server = server_of(solver)
    orphans: list[psutil.Process] = []

    def strike() -> None:
        while not server.children():
            time.sleep(0.01)
        orphans.extend(server.children())
        server.send_signal(number)

    striker = threading.Thread(target=strike)
    striker.start()
    reply = ask(solver, HARD, "QF_BV", seconds=2)
    striker.join()
    assert reply.end is end
    assert "server" in reply.reason
    assert ask(solver, NEVER).end is End.UNSAT
    assert server_of(solver) != server
    _, alive = psutil.wait_procs(orphans, timeout=20)
    assert not alive
    solver.close()


@pytest.mark.slow
def test_nothing_is_left_where_the_owner_is_killed() -> None:
    code = (
        "import sys; from pipelines.smt.limits import Limits, Solver; s = Solver();"
        "q = {'solver': 'z3', 'variables': []};"
        f"s.ask({{**q, 'logic': 'QF_LRA', 'text': '{NEVER}'}}, Limits());"
        "print(s._process.pid, flush=True);"
        f"s.ask({{**q, 'logic': 'QF_BV', 'text': '{HARD}'}}, Limits(seconds=250))"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    server = psutil.Process(int(owner.stdout.readline()))
    while not server.children():
        time.sleep(0.01)
    left = [server, *server.children()]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    _, alive = psutil.wait_procs(left, timeout=20)
    assert not alive


def test_an_interrupted_question_leaves_no_answer_for_the_next_one() -> None:
    solver = Solver()
    ask(solver, NEVER)
    # A shell's background jobs ignore interrupts, and so would what they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ask(solver, HARD, "QF_BV", seconds=20)
    signal.signal(signal.SIGINT, before)
    assert ask(solver, SMALL, variables=("x",)).values == ("1/6",)
    solver.close()


def test_threads_and_forks_ask_in_turn(solver: Solver) -> None:
    ends: list[End] = []
    threads = [
        threading.Thread(target=lambda text=text: ends.append(ask(solver, text).end)) for text in [NEVER, SMALL] * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == [End.SAT] * 4 + [End.UNSAT] * 4
    code = (
        "import os; from pipelines.smt.limits import Limits, Solver; s = Solver();"
        f"ask = lambda t: s.ask({{'solver': 'z3', 'variables': [], 'logic': 'QF_LRA', 'text': t}}, Limits()).end.value;"
        f"ask('{NEVER}'); pid = os.fork(); print(ask('{NEVER}' if pid else '{SMALL}'), flush=True);"
        "pid and os.waitpid(pid, 0); s.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert sorted(done.stdout.split()) == ["sat", "unsat"]


@pytest.mark.parametrize(
    "options", [{"seconds": 0.0}, {"seconds": float("nan")}, {"seconds": float("inf")}, {"steps": 0}, {"memory": 15}]
)
def test_bad_limits(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Limits(**options)  # type: ignore[arg-type]


def wide(memory: int) -> tuple[Z3, Property]:
    """A property that takes a solver days and much more than 16 MiB, and its decider."""
    torch.manual_seed(0)
    widths = [16, 32, 32, 4]
    layers = [part for each in pairwise(widths) for part in (nn.Linear(*each), nn.ReLU())]
    network = Network("wide", nn.Sequential(*layers[:-1]).eval(), (16,), 4)
    exact = read(network)
    center = torch.zeros(16)
    label = int(network.module(center[None]).argmax())
    property_ = Property.robustness(center, sample=0, label=label, eps=0.5, domain=(-1.0, 1.0))
    judge = Judge(network, exact, 0)
    return Z3(exact, judge, QueryLimits(120.0, time.monotonic() + 200), memory=memory), property_


def test_a_decider_says_what_the_solver_ran_out_of() -> None:
    decider, property_ = wide(16)
    decision = decider.query(property_, None, 1.0)
    assert (decision.verdict, decision.solver_calls) == (Verdict.UNKNOWN, 1)
    assert decision.reason == f"memory limit of 16 MiB reached with {decision.unstable_neurons} unstable neurons"


def test_a_decider_goes_on_where_the_solver_crashed() -> None:
    decider, property_ = wide(1024)
    ask(shared(), NEVER)
    server = server_of(shared())

    def kill() -> None:
        while not server.children():
            time.sleep(0.0005)
        server.children()[0].send_signal(signal.SIGSEGV)

    killer = threading.Thread(target=kill)
    killer.start()
    decision = decider.query(property_, None, 1.0)
    killer.join()
    assert decision.verdict is Verdict.UNKNOWN
    assert decision.reason == "the solver failed: the solver's process ended with SIGSEGV"
    assert ask(shared(), NEVER).end is End.UNSAT
