"""The question to Z3, over integers or over bit-vectors: can one class reach the label's logit in the box?

A requantization is floor((p z + r) / q), clipped: with the smallest p, r and q = 2^k that give all its values in the
box, found by trying them on the ends of its runs. What has no such form, as a table of GELU, is written run by run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np
import z3

from pipelines.smt.integer.bounds import Region
from pipelines.smt.integer.network import IntegerNetwork, Integers, Query, Runs

Theory = Literal["integers", "bit-vectors"]
_MOST_BITS = 48
_GREATEST = 2**32 - 1
_NEIGHBOURS = 4


class Finding(Enum):
    """Z3's answer to one question: that no input does it, that one does, or that a limit was reached first."""

    IMPOSSIBLE = "impossible"
    POSSIBLE = "possible"
    OUT_OF_STEPS = "out of steps"


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A finding, Z3's steps, and, where possible, the input, (inputs,)."""

    finding: Finding
    steps: int
    point: Integers | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """floor((factor z + start) / 2^bits)."""

    factor: int
    start: int
    bits: int


def line_of(runs: Runs) -> Line | None:
    """The shortest line whose floor, clipped to the runs' least and greatest value, is the function; or None."""
    values, firsts = runs.values, runs.firsts[1:]
    if len(values) < 2 or (np.diff(values) != 1).any():
        return None
    # Inside the clip every step counts; with one step any slope serves.
    width = int(firsts[-1] - firsts[0]) or (runs.upper - runs.lower + 1)
    slope = max(len(firsts) - 1, 1) / width
    for bits in range(_MOST_BITS):
        nearest = round(slope * 2**bits)
        for factor in sorted(
            range(max(nearest - _NEIGHBOURS, 1), nearest + _NEIGHBOURS + 1), key=lambda p: abs(p - nearest)
        ):
            steps = [(int(v) << bits, factor * int(first)) for v, first in zip(values[1:], firsts, strict=True)]
            least = max(v - reached for v, reached in steps)
            if least <= min(v - (reached - factor) for v, reached in steps) - 1:
                return Line(factor, least, bits)
    return None


def ask(
    network: IntegerNetwork, query: Query, region: Region, other: int, *, theory: Theory, steps: int, seconds: float
) -> Answer:
    """Whether class `other` can reach the label. `steps` is Z3's deterministic limit, `seconds` that of the clock."""
    context = z3.Context()
    writer = _Integers(context) if theory == "integers" else _Vectors(context, _width(network, region))
    solver = z3.SolverFor("QF_LIA" if theory == "integers" else "QF_BV", ctx=context)
    for name, value in (("rlimit", steps), ("timeout", int(seconds * 1000))):
        solver.set(name, min(max(1, value), _GREATEST))
    inputs = [
        writer.variable(solver, f"t{i}", int(low), int(high))
        for i, (low, high) in enumerate(zip(region.lower, region.upper, strict=True))
    ]
    values = inputs
    for depth, layer in enumerate(network.layers):
        last = depth == len(network.layers) - 1
        made = []
        for neuron, runs in enumerate(region.runs[depth]):
            if runs.constant or (last and neuron not in (query.label, other)):
                made.append(writer.number(int(runs.values[0])))
                continue
            z = writer.variable(solver, f"z{depth}_{neuron}", runs.lower, runs.upper)
            solver.add(z == writer.sum(layer.weight[neuron].tolist(), values, int(layer.bias[neuron])))
            a = writer.variable(solver, f"a{depth}_{neuron}", *runs.range)
            writer.add_function(solver, runs, z, a)
            made.append(a)
        values = made
    solver.add(values[query.label] - values[other] <= query.needed(other) - 1)
    result = solver.check()
    taken = int(solver.statistics().get_key_value("rlimit count"))
    if result == z3.unsat:
        return Answer(Finding.IMPOSSIBLE, taken)
    if result != z3.sat:
        return Answer(Finding.OUT_OF_STEPS, taken)
    model = solver.model()
    point = [writer.read(model.eval(each, model_completion=True)) for each in inputs]
    return Answer(Finding.POSSIBLE, taken, np.array(point, dtype=np.int64))


class _Integers:
    """An encoding in linear integer arithmetic."""

    def __init__(self, context: z3.Context) -> None:
        self.context = context

    def number(self, value: int) -> z3.ExprRef:
        return z3.IntVal(value, self.context)

    def variable(self, solver: z3.Solver, name: str, low: int, high: int) -> z3.ExprRef:
        if low == high:
            return self.number(low)
        made = z3.Int(name, self.context)
        solver.add(made >= low, made <= high)
        return made

    def sum(self, factors: list[int], values: list[z3.ExprRef], start: int) -> z3.ExprRef:
        return z3.Sum([self.number(start), *(f * v for f, v in zip(factors, values, strict=True) if f)])

    def add_function(self, solver: z3.Solver, runs: Runs, z: z3.ExprRef, a: z3.ExprRef) -> None:
        line, (low, high) = line_of(runs), runs.range
        if line is None:
            solver.add(_by_runs(runs, z, a))
            return
        rest = line.factor * z + line.start - (1 << line.bits) * a
        reaches, stays = rest >= 0, rest < 1 << line.bits
        solver.add(z3.Or(a == low, reaches) if _clips(runs, line, 0) else reaches)
        solver.add(z3.Or(a == high, stays) if _clips(runs, line, -1) else stays)

    def read(self, value: z3.ExprRef) -> int:
        return int(value.as_long())


class _Vectors(_Integers):
    """Bit-vectors so wide that nothing overflows."""

    def __init__(self, context: z3.Context, width: int) -> None:
        super().__init__(context)
        self.width = width

    def number(self, value: int) -> z3.ExprRef:
        return z3.BitVecVal(value, self.width, self.context)

    def variable(self, solver: z3.Solver, name: str, low: int, high: int) -> z3.ExprRef:
        if low == high:
            return self.number(low)
        made = z3.BitVec(name, self.width, self.context)
        solver.add(made >= low, made <= high)
        return made

    def add_function(self, solver: z3.Solver, runs: Runs, z: z3.ExprRef, a: z3.ExprRef) -> None:
        line, (low, high) = line_of(runs), runs.range
        if line is None:
            solver.add(_by_runs(runs, z, a))
            return
        floor = (line.factor * z + line.start) >> line.bits
        solver.add(a == z3.If(floor < low, self.number(low), z3.If(floor > high, self.number(high), floor)))

    def read(self, value: z3.ExprRef) -> int:
        return int(value.as_signed_long())


def _clips(runs: Runs, line: Line, end: int) -> bool:
    """Whether the line leaves the values at the first or the last argument."""
    argument = runs.lower if end == 0 else runs.upper
    return (line.factor * argument + line.start) >> line.bits != int(runs.values[end])


def _by_runs(runs: Runs, z: z3.ExprRef, a: z3.ExprRef) -> z3.BoolRef:
    triples = zip(runs.firsts.tolist(), runs.lasts.tolist(), runs.values.tolist(), strict=True)
    return z3.Or([z3.And(z >= first, z <= last, a == value) for first, last, value in triples])


def _width(network: IntegerNetwork, region: Region) -> int:
    """Bits that hold every partial sum, and every line's product, with a sign."""
    greatest = 2.0
    size = np.maximum(np.abs(region.lower), np.abs(region.upper)).astype(float)
    for layer, row in zip(network.layers, region.runs, strict=True):
        greatest = max(greatest, float((np.abs(layer.weight) @ size + np.abs(layer.bias)).max()))
        for runs in row:
            line = line_of(runs)
            if line is not None:
                size_of = max(abs(runs.lower), abs(runs.upper)) * line.factor + abs(line.start)
                greatest = max(greatest, float(size_of))
        size = np.array([max(map(abs, runs.range)) for runs in row], dtype=float)
    return math.ceil(math.log2(greatest + 1)) + 3
