"""Limits that hold: real hangs, real growth of memory, and solvers that really die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch

from evalsuite import Property, Verdict
from pipelines.smt.counterexample import Judge
from pipelines.smt.deciding import Z3
from pipelines.smt.reading import read
from pipelines.smt.settling import Limits as QueryLimits
from pipelines.smt.solvers import End, Limits, Reply, ask_z3
from tests.pipelines.smt_networks import chain

SMALL = "(declare-const x Real)(assert (> x 0.0))(assert (< (* 3.0 x) 1.0))"
NEVER = SMALL + "(assert (> x 7.0))"
# The factors of a product of two primes of 64 bits, drawn at random: hours. (Next to 2**64 they are
# guessed at once.)
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


def ask(
    text: str, logic: str = "QF_LRA", variables: tuple[str, ...] = (), **limits: float
) -> Reply:
    return ask_z3(text, variables, Limits(**limits), logic)  # type: ignore[arg-type]


def strike(number: signal.Signals) -> threading.Thread:
    """Send a signal to the solver that this process starts next."""

    def wait() -> None:
        me = psutil.Process()
        while not (found := [each for each in me.children() if each.name() == "z3"]):
            time.sleep(0.0005)
        found[0].send_signal(number)

    made = threading.Thread(target=wait)
    made.start()
    return made


def test_answers_with_values_and_steps() -> None:
    long = f"{3**300}"  # which Z3 writes on a line of its own
    values = (
        "(declare-const y Real)(declare-const z Real)(assert (= y (- 3.0)))(assert (= z (/ y"
        f" {long}0.0)))"
    )
    reply = ask(SMALL + values, variables=("x", "y", "z"))
    assert (reply.end, reply.values, reply.reason) == (End.SAT, ("1/6", "-3", f"-1/{3**299}0"), "")
    assert ask(SMALL + values, variables=("x", "y", "z")) == reply  # the same steps
    assert ask(NEVER, variables=("x",)).end is End.UNSAT


@pytest.mark.timeout(60)
def test_a_hard_question_is_stopped_by_its_steps_and_by_the_clock() -> None:
    few = [ask(HARD, "QF_BV", steps=50_000) for _ in range(2)]
    assert few[0].end is End.OUT_OF_STEPS
    assert few[0] == few[1]
    assert ask(HARD, "QF_BV", seconds=0.5).end is End.OUT_OF_TIME
    assert not [each for each in psutil.Process().children() if each.name() == "z3"]


def test_memory_is_limited() -> None:
    assert ask(LARGE, "QF_BV", memory=32, seconds=120).end is End.OUT_OF_MEMORY
    deep = 300_000  # text that grows in the solver's own process
    assert (
        ask(f"(assert {'(not ' * deep}true{')' * deep})", memory=64, seconds=120).end
        is End.OUT_OF_MEMORY
    )


def test_what_the_solver_cannot_read_is_named() -> None:
    reply = ask("(declare-const x Real")
    assert reply.end is End.CRASHED
    assert "invalid constant declaration" in reply.reason


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_solver_that_dies_is_an_answer(number: signal.Signals) -> None:
    striker = strike(number)
    reply = ask(HARD, "QF_BV", seconds=60)
    striker.join()
    assert (reply.end, reply.reason) == (
        End.CRASHED,
        f"the solver's process ended with {number.name}",
    )


@pytest.mark.slow
def test_nothing_is_left_where_the_owner_is_killed() -> None:
    code = f"from pipelines.smt.solvers import *; ask_z3('{HARD}', [], Limits(seconds=4), 'QF_BV')"
    owner = subprocess.Popen([sys.executable, "-c", code])
    process = psutil.Process(owner.pid)
    while not (left := [each for each in process.children() if each.name() == "z3"]):
        time.sleep(0.01)
    owner.kill()
    owner.wait()
    _, alive = psutil.wait_procs(left, timeout=20)
    assert not alive


def test_an_interrupted_question_leaves_nothing_behind() -> None:
    # A shell's background jobs ignore interrupts, and so would what they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ask(HARD, "QF_BV", seconds=20)
    signal.signal(signal.SIGINT, before)
    _, alive = psutil.wait_procs(
        [each for each in psutil.Process().children() if each.name() == "z3"], timeout=5
    )
    assert not alive


@pytest.mark.parametrize(
    "options",
    [
        {"seconds": 0.0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"steps": 0},
        {"memory": 15},
    ],
)
def test_bad_limits(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Limits(**options)  # type: ignore[arg-type]


def wide(memory: int) -> tuple[Z3, Property]:
    """A property that takes a solver days and much more than 16 MiB, and its decider."""
    network = chain([16, 32, 32, 4], 0)
    exact = read(network)
    center = torch.zeros(16)
    label = int(network.module(center[None]).argmax())
    property_ = Property.robustness(center, sample=0, label=label, eps=0.5, domain=(-1.0, 1.0))
    limits = QueryLimits(120.0, time.monotonic() + 200)
    return Z3(exact, Judge(network, exact, 0), limits, memory=memory), property_


def test_a_decider_says_what_the_solver_ran_out_of() -> None:
    decider, property_ = wide(16)
    decision = decider.query(property_, None, 1.0)
    assert (decision.verdict, decision.solver_calls) == (Verdict.UNKNOWN, 1)
    assert (
        decision.reason
        == f"memory limit of 16 MiB reached with {decision.unstable_neurons} unstable neurons"
    )


def test_a_decider_goes_on_where_the_solver_crashed() -> None:
    decider, property_ = wide(1024)
    striker = strike(signal.SIGSEGV)
    decision = decider.query(property_, None, 1.0)
    striker.join()
    assert decision.verdict is Verdict.UNKNOWN
    assert decision.reason == "the solver failed: the solver's process ended with SIGSEGV"
