"""Bound propagation: what GELU costs beside ReLU, and how tight our bounds are beside
auto_LiRPA's own.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.subjects import Figure, balls, box, fresh, trained
from evalsuite import Network, Property
from evalsuite.latency import compare_latency
from evalsuite.plugins import load
from lambda_gelu import replace
from pipelines.bounds.adapter import _FIXED, _Module
from pipelines.bounds.margins import rows_of
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.surroundings import LEGACY, at_home

_BATCH = 100
_SEEDS = 5
_RADII = (0.1, 0.5)
_TRAINED_RADII = (1 / 64, 1 / 16, 1 / 8)
# Of alpha-CROWN; so wide that nothing is proven: what is proven ends our optimizer early.
_WIDE = (("digits-mlp", 0.3, 20), ("digits-cnn", 0.1, 2))
# Release 0.3 manages convolutions by whole matrices alone; later ones are given their own defaults.
_DENSE = {
    "conv_mode": "matrix",
    "sparse_features_alpha": False,
    "sparse_spec_alpha": False,
    "sparse_intermediate_bounds": False,
}


def speed() -> Iterator[Figure]:
    """CROWN on a GELU network over CROWN on the same network with ReLU, 100 boxes of eps 1/64,
    median.
    """
    for name in ("digits-mlp", "digits-cnn"):
        workload = load("workloads", name).target()
        data = workload.data()
        boxes = balls(data, 1 / 64, range(_BATCH))
        runs = []
        for activation in ("gelu", "relu"):
            network = Network(
                activation, fresh(workload, activation), data.input_shape, data.classes
            )
            runs.append(partial(Propagation(network).bounds, boxes, "crown"))
        yield (
            f"GELU / ReLU, CROWN on {name}, {_BATCH} boxes",
            compare_latency(*runs, pairs=7, seconds=20).ratio,
        )


def _random(seed: int) -> Network:
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5)
    )
    return Network("random", module.eval(), (16,), 5)


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
                bounded_tensor = BoundedTensor(
                    (low + high) / 2, PerturbationLpNorm(norm=np.inf, x_L=low, x_U=high)
                )
                found = self._bounded.compute_bounds(x=(bounded_tensor,), method="crown")
                widths.append(found[1] - found[0])
        return float(torch.cat(widths).mean())


def _widths(network: Network, inputs: torch.Tensor, radii: tuple[float, ...]) -> list[float]:
    """The mean width of the logits' bounds for each radius, ours over auto_LiRPA's."""
    ours, theirs, ratios = Propagation(network), _Upstream(network), []
    for eps in radii:
        boxes = [
            Property.robustness(each, sample=i, label=0, eps=eps, domain=(-4.0, 4.0))
            for i, each in enumerate(inputs)
        ]
        found = ours.bounds(boxes, "crown")
        ratios.append(float((found.upper - found.lower).mean()) / theirs.width(*box(boxes)))
    return ratios


def tightness() -> Iterator[Figure]:
    """CROWN's widths of logits on GELU networks: our lines over those of auto_LiRPA 0.7, on the
    same weights.

    Its own lines are not sound on every interval, so the width that it ought to have can be
    greater. Release 0.3 has none.
    """
    if LEGACY:
        yield (
            "width of CROWN, our GELU / auto_LiRPA's own: not measured, release 0.3 has no GELU",
            float("nan"),
        )
        return
    cases: dict[str, tuple[tuple[float, ...], list[list[float]]]] = {}
    random = [_widths(_random(seed), torch.randn(20, 16), _RADII) for seed in range(_SEEDS)]
    cases["random 16-32-32-5"] = _RADII, random
    for name in ("digits-mlp", "digits-cnn"):
        network, data = trained(name, "gelu")
        cases[f"trained {name}"] = (
            _TRAINED_RADII,
            [_widths(network, data.test.inputs[:20], _TRAINED_RADII)],
        )
    told = "width of CROWN, our GELU / auto_LiRPA's own"
    means = []
    for name, (radii, found) in cases.items():
        for eps, ratios in zip(radii, zip(*found, strict=True), strict=True):
            means.append(sum(ratios) / len(ratios))
            yield f"{told}, {name}, eps {eps:g}", means[-1]
    yield f"{told}, geometric mean of these", float(np.exp(np.mean(np.log(means))))


def upstream(network: Network, properties: list[Property], iterations: int = 20) -> torch.Tensor:
    """Lower bounds of the margins (properties, classes - 1) by auto_LiRPA's optimizer of all
    lines, in float64.
    """
    lower, upper = box(properties)
    rows = rows_of(properties, network.classes)[:, : network.classes - 1]
    with at_home():
        from auto_LiRPA import BoundedTensor, PerturbationLpNorm

        options = {
            **(_DENSE if LEGACY else {}),
            "optimize_bound_args": {"iteration": iterations, _FIXED: False},
        }
        example = torch.zeros(1, *network.input_shape)
        bounded = _Module(
            copy.deepcopy(network.module).double().eval(), example, bound_opts=options
        )
        bounded.tightest = {}  # nothing of ours
        bounded_tensor = BoundedTensor(
            (lower + upper) / 2, PerturbationLpNorm(norm=np.inf, x_L=lower, x_U=upper)
        )
        tensor: torch.Tensor = bounded.compute_bounds(
            x=(bounded_tensor,), C=rows, method="CROWN-Optimized", bound_upper=False
        )[0]
    return tensor.detach()


def optimised() -> Iterator[Figure]:
    """Processor time, and the mean of what the optimizer adds to CROWN's lower bounds: ours over
    auto_LiRPA's.
    """
    for name, eps, count in _WIDE:
        network, data = trained(name, "relu")
        properties = balls(data, eps, range(count))
        propagation = Propagation(network)
        crown = propagation.bounds(properties, "crown")
        began = time.process_time()
        ours = propagation.bounds(properties, "alpha-crown", crown).margins
        between = time.process_time()
        theirs = upstream(network, properties)
        seconds = between - began, time.process_time() - between
        what = f"{name}, eps {eps:g}, {count} boxes"
        yield f"alpha-CROWN, ours / auto_LiRPA's, seconds, {what}", seconds[0] / seconds[1]
        gains = [float((each - crown.margins).mean()) for each in (ours, theirs)]
        yield f"alpha-CROWN, ours / auto_LiRPA's, gain over CROWN, {what}", gains[0] / gains[1]
        worst = ((ours - theirs) / theirs.abs()).min()
        yield (
            f"alpha-CROWN, ours - auto_LiRPA's, the least of all bounds, relative, {what}",
            float(worst),
        )


def bounds() -> Iterator[Figure]:
    """All of the above."""
    from benchmarks.crown import crown  # imports every stage

    yield from speed()
    yield from tightness()
    yield from crown()
    yield from optimised()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for told, ratio in bounds():
        print(f"{ratio:8.3f}  {told}", flush=True)
