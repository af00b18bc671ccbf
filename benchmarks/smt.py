"""Exact verification on 120 queries: how many are decided, and how long each contender takes.

python -m benchmarks.smt [--limit 60] [--plain-limit 10] [--samples 8] [--hard] [contender ...]

Bounds decide most of the 120; with --hard, the radii are those at which they leave much to a
search.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

import torch

from benchmarks.subjects import Figure, balls, trained
from evalsuite import Network, Property, Unsupported, Verdict
from netverify import falsify
from pipelines.smt.counterexample import Judge
from pipelines.smt.deciding import BEST, Z3, between, declared, defined, linear, relu
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.options import EncodingName
from pipelines.smt.reading import read
from pipelines.smt.reduction import Asked, Ends, reduce
from pipelines.smt.settling import Limits as QueryLimits
from pipelines.smt.solvers import End, Limits, Reply, ask_z3


def ask_plainly(
    exact: ExactNetwork,
    property_: Property,
    *,
    limits: Limits | None = None,
    encoding: EncodingName = "or",
    bounds: Sequence[Ends] = (),
) -> Reply:
    """Whether any margin can be <= 0 in the box, exactly; where sat, its values are the whole
    input.

    With `bounds`, one of each hidden layer that hold in the box, neurons that keep their sign there
    are not split.

    Raises:
        ValueError: an encoding with a triangle, which needs bounds.
        Unsupported: the property is an L2 ball.
    """
    names = [f"x{index}" for index in range(property_.lower.numel())]
    return ask_z3(plain_question(exact, property_, encoding, bounds), names, limits or Limits())


def plain_question(
    exact: ExactNetwork, property_: Property, encoding: EncodingName, bounds: Sequence[Ends] = ()
) -> str:
    """SMT-LIB declarations and assertions, satisfiable if the property is violated by a real
    input.
    """
    if property_.center is not None:
        raise Unsupported("the plain question is of boxes, and this property is an L2 ball")
    if encoding.endswith("-triangle"):
        raise ValueError(f"the plain question has no bounds, so no triangle: {encoding!r}")
    lower = Dyadic.of(property_.lower.numpy().ravel()).fractions()
    upper = Dyadic.of(property_.upper.numpy().ravel()).fractions()
    columns = [f"x{index}" for index in range(len(lower))]
    lines = []
    for name, low, high in zip(columns, lower, upper, strict=True):
        lines += [declared(name), between(name, low, high)]
    *hidden, last = exact.maps
    for depth, each in enumerate(hidden):
        outputs = []
        fixed = _signs(bounds[depth]) if bounds else {}
        for index, term in enumerate(_terms(each.weight, each.bias, columns)):
            outputs.append(f"a{depth}_{index}")
            if index in fixed:
                lines.append(defined(outputs[-1], term if fixed[index] else "0.0"))
                continue
            lines.append(defined(f"z{depth}_{index}", term))
            lines += relu(outputs[-1], f"z{depth}_{index}", f"z{depth}_{index}", encoding)
        columns = outputs
    logits = list(_terms(last.weight, last.bias, columns))
    others = [
        f"(<= {logits[property_.label]} {each})"
        for i, each in enumerate(logits)
        if i != property_.label
    ]
    return "\n".join([*lines, f"(assert (or {' '.join(others)} false))"])


def _signs(bounds: Ends) -> dict[int, bool]:
    """Map each neuron that keeps its sign (by index) to whether it is never negative."""
    ends = enumerate(zip(*(bound.units for bound in bounds), strict=True))
    return {index: low >= 0 for index, (low, high) in ends if low >= 0 or high <= 0}


def _terms(weight: Dyadic, bias: Dyadic, names: Sequence[str]) -> list[str]:
    factors, width = weight.fractions(), weight.shape[1]
    return [
        linear(constant, factors[row * width : (row + 1) * width], names)
        for row, constant in enumerate(bias.fractions())
    ]


# Workload, options, radii: 8 test samples of each radius make 120 queries.
Group = tuple[str, dict[str, str], tuple[float, ...]]
QUERIES: tuple[Group, ...] = (
    ("iris-mlp", {}, (0.05, 0.1, 0.15, 0.2)),
    ("moons-mlp", {}, (0.05, 0.1)),
    ("digits-tiny-mlp", {"hidden": "16"}, (0.05, 0.1, 0.15)),
    ("digits-tiny-mlp", {"hidden": "16-16"}, (0.05, 0.08)),
    ("digits-tiny-mlp", {"hidden": "32"}, (0.05, 0.1)),
    ("digits-tiny-mlp", {"hidden": "64"}, (0.08,)),
    ("digits-tiny-mlp", {"hidden": "32-32"}, (0.05,)),
)
HARD: tuple[Group, ...] = (
    ("iris-mlp", {}, (0.15, 0.25)),
    ("digits-tiny-mlp", {"hidden": "16"}, (0.1, 0.15)),
    ("digits-tiny-mlp", {"hidden": "16-16"}, (0.08, 0.1)),
    ("digits-tiny-mlp", {"hidden": "32"}, (0.1, 0.12)),
    ("digits-tiny-mlp", {"hidden": "64"}, (0.1,)),
    ("digits-tiny-mlp", {"hidden": "32-32"}, (0.07,)),
)
_DECIDED = (Verdict.HOLDS, Verdict.VIOLATED)


@dataclass(frozen=True, slots=True)
class Query:
    """One question about one network."""

    name: str
    network: Network
    exact: ExactNetwork
    judge: Judge
    property_: Property


@dataclass(slots=True)
class Tally:
    """A contender's verdicts and seconds, by query; `solved` where bounds and falsifier had not
    decided it.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    searched: list[bool] = field(default_factory=list)


Contender = Callable[[Query, float], tuple[Verdict, bool]]


def queries(
    samples: int = 8, asked: Sequence[Group] = QUERIES, variant: str = "relu"
) -> Iterator[Query]:
    """The set, with networks trained here."""
    for name, options, radii in asked:
        network, data = trained(name, variant, **options)
        exact = read(network)
        judge = Judge(network, exact, 0)
        for eps in radii:
            for property_ in balls(data, eps, range(samples)):
                yield Query(
                    f"{name} {options.get('hidden', '')} {eps}", network, exact, judge, property_
                )


def by_z3(query: Query, limit: float, encoding: EncodingName = BEST) -> tuple[Verdict, bool]:
    """Falsifier, reduction, then Z3."""
    decider = Z3(query.exact, query.judge, QueryLimits(limit, time.monotonic() + limit), encoding)
    (suspect,) = falsify(query.network.module, [query.property_], seed=0)
    decision = decider.query(query.property_, suspect, 1.0)
    return decision.verdict, decision.solver_calls > 0


def by_z3_plainly(query: Query, limit: float, *, bounded: bool = False) -> tuple[Verdict, bool]:
    """Z3 alone, or told by bounds which neurons keep their sign."""
    started = time.monotonic()
    bounds = reduce(Asked.robustness(query.exact, query.property_)).bounds if bounded else ()
    limits = Limits(seconds=max(0.01, limit - (time.monotonic() - started)))
    found = ask_plainly(query.exact, query.property_, limits=limits, bounds=bounds).end
    words = {End.UNSAT: Verdict.HOLDS, End.SAT: Verdict.VIOLATED}
    return words.get(found, Verdict.TIMEOUT), True


def by_search(query: Query, limit: float) -> tuple[Verdict, bool]:
    """Certified branch and bound."""
    from pipelines.smt.settling import Search

    (suspect,) = falsify(query.network.module, [query.property_], seed=0)
    search = Search(query.exact, query.judge, QueryLimits(limit, math.inf, 200_000))
    found = search.query(query.property_, suspect, limit)
    return found.verdict, bool(found.nodes)


CONTENDERS: dict[str, Contender] = {
    "search": by_search,
    "z3": by_z3,
    **{
        f"z3:{get_argument}": partial(by_z3, encoding=get_argument)
        for get_argument in get_args(EncodingName)
    },
    "bounded": partial(by_z3_plainly, bounded=True),
    "plain": by_z3_plainly,
}
_PLAIN = ("plain", "bounded")
_WORDS = {"z3": "exact reduction", "bounded": "neurons with a sign fixed", "plain": "plain"}


def run(
    names: list[str],
    limit: float,
    plain_limit: float,
    samples: int,
    asked: Sequence[Group] = QUERIES,
    *,
    quiet: bool = False,
) -> dict[str, Tally]:
    """Every contender on every query; disagreements are printed as they come."""
    tallies = {name: Tally() for name in names}
    for query in queries(samples, asked):
        for name, tally in tallies.items():
            started = time.perf_counter()
            verdict, searched = CONTENDERS[name](query, plain_limit if name in _PLAIN else limit)
            tally.seconds.append(time.perf_counter() - started)
            tally.verdicts.append(verdict)
            tally.searched.append(searched)
        said = {tally.verdicts[-1] for tally in tallies.values()} & set(_DECIDED)
        if len(said) > 1:
            print(f"DISAGREE {query.name} sample {query.property_.sample}")
        if quiet:
            continue
        line = "  ".join(
            f"{name} {each.verdicts[-1].value} {each.seconds[-1]:.3f}"
            for name, each in tallies.items()
        )
        print(f"{query.name} {query.property_.sample}: {line}", flush=True)
    return tallies


def report(tallies: dict[str, Tally], limits: dict[str, float]) -> None:
    """Per contender: how many are decided, and times, those without a verdict censored at the
    limit.
    """
    first = next(iter(tallies.values()))
    for name, tally in tallies.items():
        decided = [verdict in _DECIDED for verdict in tally.verdicts]
        pairs = list(zip(tally.seconds, decided, strict=True))
        censored = [seconds if done else limits[name] for seconds, done in pairs]
        par2 = statistics.fmean(seconds if done else 2 * limits[name] for seconds, done in pairs)
        hard = [each for each, searched in zip(censored, first.searched, strict=True) if searched]
        print(
            f"{name}: {sum(decided)} of {len(decided)} decided; geometric mean"
            f" {_geometric(censored):.3f} s, of the {len(hard)} that {next(iter(tallies))} searched"
            f" {_geometric(hard):.3f} s; median {statistics.median(censored):.3f} s, greatest"
            f" {max(censored):.1f} s, PAR-2 {par2:.2f} s"
        )


def _geometric(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def exact_verification() -> Iterator[Figure]:
    """Z3 over branch and bound, 10 s a query: on irises and moons, and on digits where bounds
    leave a query open.
    """
    limit = 10.0
    easy = [query for query in QUERIES if not query[0].startswith("digits")]
    tallies = run(["search", "z3", "bounded", "plain"], limit, limit, 2, easy, quiet=True)
    yield from _over_search(tallies, limit, [True] * len(tallies["z3"].searched), "queries")
    tallies = run(["search", "z3"], limit, limit, 8, [HARD[3]], quiet=True)
    yield from _over_search(
        tallies, limit, tallies["z3"].searched, "queries that bounds leave open"
    )


def _over_search(
    tallies: dict[str, Tally], limit: float, counted: list[bool], kind: str
) -> Iterator[Figure]:
    means = {
        name: _geometric(
            [min(each, limit) for each, own in zip(tally.seconds, counted, strict=True) if own]
        )
        for name, tally in tallies.items()
    }
    search = means.pop("search")
    for name, mean in means.items():
        yield f"Z3 ({_WORDS[name]}) / branch and bound, {sum(counted)} {kind}", mean / search


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contenders", nargs="*", default=["z3", "plain"], choices=[*CONTENDERS, []])
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--plain-limit", type=float, default=10.0)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--hard", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tallies = run(
        given.contenders,
        given.limit,
        given.plain_limit,
        given.samples,
        HARD if given.hard else QUERIES,
    )
    report(
        tallies, {name: given.plain_limit if name in _PLAIN else given.limit for name in tallies}
    )


if __name__ == "__main__":
    main()
