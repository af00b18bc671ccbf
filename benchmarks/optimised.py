"""alpha-CROWN: ours over auto_LiRPA's own on the same trained ReLU networks, at equal iterations."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

import numpy as np
import torch

from evalsuite import Network, Property
from evalsuite.plugins import load
from evalsuite.run.making import make_network
from evalsuite.variants import standing
from pipelines.bounds.adapter import _FIXED, _Module
from pipelines.bounds.margins import rows_of
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.surroundings import LEGACY, at_home

Ratio = tuple[str, float]
# So wide that nothing is proven: what is proven ends our optimizer early.
_CASES = (("digits-mlp", 0.3, 20), ("digits-cnn", 0.1, 2))
# Release 0.3 manages convolutions by whole matrices alone; later ones are given their own defaults.
_DENSE = {
    "conv_mode": "matrix", "sparse_features_alpha": False, "sparse_spec_alpha": False,
    "sparse_intermediate_bounds": False,
}  # fmt: skip


def upstream(network: Network, properties: list[Property], iterations: int = 20) -> torch.Tensor:
    """Lower bounds of the margins (properties, classes - 1) by auto_LiRPA's optimizer of all lines, in float64."""
    lower, upper = (torch.stack([getattr(each, name) for each in properties]) for name in ("lower", "upper"))
    rows = rows_of(properties, network.classes)[:, : network.classes - 1]
    with at_home():
        from auto_LiRPA import BoundedTensor, PerturbationLpNorm

        options = {**(_DENSE if LEGACY else {}), "optimize_bound_args": {"iteration": iterations, _FIXED: False}}
        example = torch.zeros(1, *network.input_shape)
        bounded = _Module(copy.deepcopy(network.module).double().eval(), example, bound_opts=options)
        bounded.known, bounded.tightest = {}, {}  # nothing of ours
        box = BoundedTensor((lower + upper) / 2, PerturbationLpNorm(norm=np.inf, x_L=lower, x_U=upper))
        found: torch.Tensor = bounded.compute_bounds(x=(box,), C=rows, method="CROWN-Optimized", bound_upper=False)[0]
    return found.detach()


def optimised() -> Iterator[Ratio]:
    """Processor time, and the mean of what the optimizer adds to CROWN's lower bounds: ours over auto_LiRPA's."""
    for name, eps, count in _CASES:
        workload = load("workloads", name).target()
        data = workload.data()
        network = make_network(workload, data, standing("relu"), 0, name=name)[0]
        labels = data.test.targets[:count].tolist()
        properties = [
            Property.robustness(data.test.inputs[i], sample=i, label=label, eps=eps, domain=data.domain)
            for i, label in enumerate(labels)
        ]
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
        yield f"alpha-CROWN, ours - auto_LiRPA's, the least of all bounds, relative, {what}", float(worst)
