"""Bounds against points: whether any of ten million points of a box has a margin below its bound, in float64.

python -m benchmarks.soundness [--points 10000000]

Of ReLU and GELU networks on digits, trained here, by auto_LiRPA with our operators (CROWN and alpha-CROWN) and by the
bounds of the graph. A third of the points are corners, a third uniform, and a third end a descent of the margins.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator

import torch
from torch import nn

from evalsuite import Network, Property, graph_of_network
from evalsuite import Propagation as GraphPropagation
from evalsuite.plugins import load
from evalsuite.run.making import make_network
from evalsuite.variants import standing
from evalsuite.workloads.workload import Data
from pipelines.bounds.margins import rows_of
from pipelines.bounds.propagation import Propagation

_CASES = {"digits-mlp": (8, (1 / 32, 0.3)), "digits-cnn": (2, (1 / 32, 0.1))}
_BATCH, _DESCENTS = 10_000, 4
# What the sums of a float64 forward pass may be off by, of outputs of about 1 to 100.
_ROUNDING = 1e-9


def _points(
    module: nn.Module, asked: Property, rows: torch.Tensor, kind: int, generator: torch.Generator
) -> torch.Tensor:
    """A batch of the box: corners, uniform points, or where a descent of some margin ends."""
    share = torch.rand(_BATCH, *asked.lower.shape, generator=generator, dtype=torch.float64)
    points = asked.lower + (share.round() if kind == 0 else share) * (asked.upper - asked.lower)
    if kind == 2:
        chosen = rows[torch.randint(len(rows), (_BATCH,), generator=generator)]
        for step in range(_DESCENTS):
            points = points.requires_grad_()
            (slope,) = torch.autograd.grad((module(points) * chosen).sum(), points)
            size = (asked.upper - asked.lower) / 2**step
            points = (points.detach() - size * slope.sign()).clamp(asked.lower, asked.upper)
    return points


def _bounds(network: Network, properties: list[Property], rows: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Each engine's lower bounds of the margins, (properties, rows)."""
    propagation = Propagation(network)
    for method in ("crown", "alpha-crown"):
        yield method, propagation.bounds(properties, method).margins
    _, graph = graph_of_network(network)
    lower, upper = (torch.stack([getattr(each, end).flatten() for each in properties]) for end in ("lower", "upper"))
    own = GraphPropagation(graph, lower.double(), upper.double())
    # The rows are of each property's own label.
    yield "graph-crown", torch.stack([own.lower_bounds(row).value[i] for i, row in enumerate(rows)])


def _below(network: Network, data: Data, eps: float, count: int, points: int) -> Iterator[str]:
    properties = [
        Property.robustness(data.test.inputs[i], sample=i, label=int(data.test.targets[i]), eps=eps, domain=data.domain)
        for i in range(count)
    ]
    rows = rows_of(properties, network.classes)[:, : network.classes - 1]
    found = dict(_bounds(network, properties, rows))
    module, generator = copy.deepcopy(network.module).double().eval(), torch.Generator().manual_seed(0)
    module.requires_grad_(False)
    least = torch.full_like(next(iter(found.values())), torch.inf)
    batches = max(3 * count, points // _BATCH)
    for number in range(batches):
        place, kind = number // 3 % count, number % 3
        drawn = _points(module, properties[place], rows[place], kind, generator)
        with torch.no_grad():
            least[place] = torch.minimum(least[place], (module(drawn) @ rows[place].T).amin(0))
    for method, bounds in found.items():
        wrong = int((bounds > least + _ROUNDING).sum())
        gap = (least - bounds).mean().item()
        yield (
            f"{batches * _BATCH} points; {method}: {wrong} of {bounds.numel()} bounds above a point's margin, "
            f"on average {gap:.4g} below the least"
        )


def main() -> None:
    """Print a line for each network, radius and engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10_000_000)
    each = parser.parse_args().points // sum(2 * len(radii) for _, radii in _CASES.values())
    for name, (count, radii) in _CASES.items():
        workload = load("workloads", name).target()
        data = workload.data()
        for variant in ("relu", "gelu"):
            network = make_network(workload, data, standing(variant), 0, name=name)[0]
            for eps in radii:
                for line in _below(network, data, eps, count, each):
                    print(f"{name}, {variant}, eps {eps:g}: {line}", flush=True)


if __name__ == "__main__":
    main()
