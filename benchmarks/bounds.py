"""Bound propagation: what GELU costs beside ReLU, and how tight our bounds are beside auto_LiRPA's own."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from benchmarks.crown import crown
from benchmarks.optimised import optimised
from evalsuite import Network, Property, compare_latency, replace
from evalsuite.plugins import load
from evalsuite.run.making import make_network
from evalsuite.variants import standing
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.surroundings import LEGACY, at_home

Ratio = tuple[str, float]
_BATCH = 100
_SEEDS = 5
_RADII = (0.1, 0.5)
_TRAINED_RADII = (1 / 64, 1 / 16, 1 / 8)


def speed() -> Iterator[Ratio]:
    """CROWN on a GELU network over CROWN on the same network with ReLU, 100 boxes of eps 1/64, median."""
    for name in ("digits-mlp", "digits-cnn"):
        workload = load("workloads", name).target()
        data = workload.data()
        runs = []
        for activation in ("gelu", "relu"):
            torch.manual_seed(0)
            module = workload.build(load("activations", activation).target.make).eval()
            propagation = Propagation(Network(activation, module, data.input_shape, data.classes))
            boxes = [
                Property.robustness(data.test.inputs[i], sample=i, label=0, eps=1 / 64, domain=data.domain)
                for i in range(_BATCH)
            ]
            runs.append(lambda each=propagation, boxes=boxes: each.bounds(boxes, "crown"))
        yield f"GELU / ReLU, CROWN on {name}, {_BATCH} boxes", compare_latency(*runs, pairs=7, seconds=20).ratio


def _random(seed: int) -> Network:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5))
    return Network("random", module.eval(), (16,), 5)


def _trained(name: str) -> tuple[Network, torch.Tensor]:
    workload = load("workloads", name).target()
    data = workload.data()
    network = make_network(workload, data, standing("gelu"), 0, name=name)[0]
    return network, data.test.inputs[:20]


class _Upstream:
    """auto_LiRPA's CROWN with its own operator for GELU, in float64."""

    def __init__(self, network: Network) -> None:
        with at_home():
            from auto_LiRPA import BoundedModule
            from auto_LiRPA.operators.gelu import GELU as OwnGelu

            module = replace(copy.deepcopy(network.module).double(), lambda _: OwnGelu())
            example = torch.zeros(1, *network.input_shape, dtype=torch.float64)
            self._bounded = BoundedModule(module, example, bound_opts={"conv_mode": "matrix"})

    @torch.no_grad()
    def width(self, lower: torch.Tensor, upper: torch.Tensor) -> float:
        """The mean width of the logits' bounds."""
        with at_home():
            from auto_LiRPA import BoundedTensor, PerturbationLpNorm

            widths = []
            for low, high in zip(lower.split(4), upper.split(4), strict=True):
                box = BoundedTensor((low + high) / 2, PerturbationLpNorm(norm=np.inf, x_L=low, x_U=high))
                found = self._bounded.compute_bounds(x=(box,), method="crown")
                widths.append(found[1] - found[0])
        return float(torch.cat(widths).mean())


def _widths(network: Network, inputs: torch.Tensor, radii: tuple[float, ...]) -> list[float]:
    """The mean width of the logits' bounds for each radius, ours over auto_LiRPA's."""
    ours, theirs, ratios = Propagation(network), _Upstream(network), []
    for eps in radii:
        boxes = [
            Property.robustness(each, sample=i, label=0, eps=eps, domain=(-4.0, 4.0)) for i, each in enumerate(inputs)
        ]
        found = ours.bounds(boxes, "crown")
        lower, upper = torch.stack([each.lower for each in boxes]), torch.stack([each.upper for each in boxes])
        ratios.append(float((found.upper - found.lower).mean()) / theirs.width(lower, upper))
    return ratios


def tightness() -> Iterator[Ratio]:
    """CROWN's widths of logits on GELU networks: our lines over those of auto_LiRPA 0.7, on the same weights.

    Its own lines are not sound on every interval, so the width that it ought to have can be greater. Release 0.3 has
    none.
    """
    if LEGACY:
        yield "width of CROWN, our GELU / auto_LiRPA's own: not measured, release 0.3 has no GELU", float("nan")
        return
    cases: dict[str, tuple[tuple[float, ...], list[list[float]]]] = {}
    random = [_widths(_random(seed), torch.randn(20, 16), _RADII) for seed in range(_SEEDS)]
    cases["random 16-32-32-5"] = _RADII, random
    for name in ("digits-mlp", "digits-cnn"):
        network, inputs = _trained(name)
        cases[f"trained {name}"] = _TRAINED_RADII, [_widths(network, inputs, _TRAINED_RADII)]
    told = "width of CROWN, our GELU / auto_LiRPA's own"
    means = []
    for name, (radii, found) in cases.items():
        for eps, ratios in zip(radii, zip(*found, strict=True), strict=True):
            means.append(sum(ratios) / len(ratios))
            yield f"{told}, {name}, eps {eps:g}", means[-1]
    yield f"{told}, geometric mean of these", float(np.exp(np.mean(np.log(means))))


def bounds() -> Iterator[Ratio]:
    """All of the above."""
    yield from speed()
    yield from tightness()
    yield from crown()
    yield from optimised()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for told, ratio in bounds():
        print(f"{ratio:8.3f}  {told}", flush=True)
