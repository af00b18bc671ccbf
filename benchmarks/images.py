"""Networks of two layers of 256 ReLU neurons on MNIST: questions about robustness, ours and
Marabou's answers.

python -m benchmarks.images [--queries 200] [--first 0] [--limit 60] [--solvers evalsuite marabou]

The questions are asked in turn of images that the network tells right and of radii from .02 to .05.
A solver has so many seconds for a question. Marabou is given all classes, one by one; its answer
counts whether it is believed or not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from benchmarks.pairs import write_property
from benchmarks.subjects import balls, fitted
from evalsuite import Network, Property, Verdict, export_onnx, verify
from evalsuite.plugins import load
from evalsuite.workloads.workload import Data
from pipelines.smt.counterexample import Judge
from pipelines.smt.marabou import Peer
from pipelines.smt.reading import read
from pipelines.smt.reduction import Asked

_RADII = (0.02, 0.03, 0.04, 0.05)
_WIDTH, _EPOCHS = 256, 10
_SAID = {"sat": Verdict.VIOLATED, "unsat": Verdict.HOLDS}
Solver = Callable[[Property], Verdict | None]


def _trained(data: Data) -> Network:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, 10),
    )
    fitted(module, data.train.inputs, data.train.targets, rate=1e-3, epochs=_EPOCHS, batch=64)
    return Network("mnist", module, data.input_shape, 10)


def _evalsuite(network: Network, folder: Path, limit: float) -> Solver:
    model, file = folder / "network.onnx", folder / "property.vnnlib"
    export_onnx(network.module, network.input_shape, model)

    def ask(asked: Property) -> Verdict | None:
        others = " ".join(
            f"(and (>= Y_{i} Y_{asked.label}))" for i in range(10) if i != asked.label
        )
        write_property(asked.lower, asked.upper, file, 10, f"(or {others})")
        return _SAID.get(verify(model, file, timeout=limit).answer.value)

    return ask


def _marabou(network: Network, _: Path, limit: float) -> Solver:
    exact = read(network)
    peer, judge = Peer(exact), Judge(network, exact, 0)

    def says(property_: Property) -> Verdict | None:
        asked = Asked.robustness(exact, property_)
        return peer.opinion(asked, asked.singly, judge.at(property_), limit)[1]

    return says


_SOLVERS: Mapping[str, Callable[[Network, Path, float], Solver]] = {
    "evalsuite": _evalsuite,
    "marabou": _marabou,
}


def main() -> None:
    """Ask each question of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--solvers", nargs="+", default=[*_SOLVERS], choices=[*_SOLVERS])
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = load("workloads", "mnist-cnn").target().data()
    network = _trained(data)
    with torch.no_grad():
        right = (
            (network.module(data.test.inputs).argmax(1) == data.test.targets)
            .nonzero()
            .flatten()
            .tolist()
        )
    print(
        f"{len(right) / len(data.test.inputs):.1%} of {len(data.test.inputs)} test images are told"
        " right"
    )
    said: dict[str, list[Verdict | None]] = {solver: [] for solver in given.solvers}
    taken: dict[str, list[float]] = {solver: [] for solver in given.solvers}
    with TemporaryDirectory() as name:
        solvers = {
            solver: _SOLVERS[solver](network, Path(name), given.limit) for solver in given.solvers
        }
        for number in range(given.first, given.first + given.queries):
            sample, radius = right[number], _RADII[number % len(_RADII)]
            (asked,) = balls(data, radius, [sample])
            for each, ask in solvers.items():
                began = time.monotonic()
                said[each].append(ask(asked))
                taken[each].append(time.monotonic() - began)
            told = "; ".join(
                f"{each} {verdict[-1].value if verdict[-1] else 'nothing'}, {taken[each][-1]:.1f} s"
                for each, verdict in said.items()
            )
            print(f"{number}: image {sample}, radius {radius}: {told}", flush=True)
    _report(said, taken)


def _report(said: Mapping[str, list[Verdict | None]], taken: Mapping[str, list[float]]) -> None:
    for each, verdicts in said.items():
        decided = [verdict for verdict in verdicts if verdict]
        print(
            f"{each}: {len(decided)} of {len(verdicts)} decided, {decided.count(Verdict.HOLDS)} of"
            f" them hold; seconds: median {statistics.median(taken[each]):.1f}, greatest"
            f" {max(taken[each]):.1f}"
        )
    pairs = zip(*said.values(), strict=True)
    print(
        f"{sum(len({each for each in pair if each}) > 1 for pair in pairs)} questions answered"
        " differently"
    )


if __name__ == "__main__":
    main()
