"""A million points: no logit and no activation's input outside of its bounds, on every workload and variant."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from evalsuite import Bench, Network, Property, Unsupported
from evalsuite.plugins import entries
from pipelines.bounds.preparing import activations
from pipelines.bounds.propagation import Margins, Propagation

MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]
# Epochs of training, boxes and points in each: what bounds of a workload cost decides.
WORKLOADS = {
    "digits-mlp": (3, 24, 800),
    "fashion-mlp": (1, 8, 600),
    "adult-mlp": (1, 10, 600),
    "digits-cnn": (2, 6, 600),
    "digits-resnet": (1, 2, 600),
    "mnist-cnn": (1, 2, 600),
}
EPS = (0.01, 0.1)


def points_of(module: nn.Module, property_: Property, count: int) -> torch.Tensor:
    """Uniform points and corners of the box, and as many after steps against the margin from either."""
    generator = torch.Generator().manual_seed(property_.sample)
    share = torch.rand(count // 2, *property_.lower.shape, generator=generator, dtype=torch.float64)
    share[::2] = share[::2].round()
    random = property_.lower + share * (property_.upper - property_.lower)
    found, size = random.clone(), (property_.upper - property_.lower) / 4
    for _ in range(3):
        found = found.requires_grad_()
        logits = module(found)
        others = logits.clone()
        others[:, property_.label] = -torch.inf
        (gradient,) = torch.autograd.grad((logits[:, property_.label] - others.amax(1)).sum(), found)
        found = (found.detach() - size * gradient.sign()).clamp(property_.lower, property_.upper)
    return torch.cat([random, found.detach()])


@torch.no_grad()
def violations(module: nn.Module, propagation: Propagation, property_: Property, found: Margins, row: int,
               points: torch.Tensor) -> int:  # fmt: skip
    """How many points' logits, margins or activation inputs lie outside."""
    seen: dict[str, torch.Tensor] = {}
    hooks = [
        each.module.register_forward_pre_hook(lambda _, given, path=each.path: seen.setdefault(path, given[0]))
        for each in activations(module)
    ]
    logits = module(points)
    for hook in hooks:
        hook.remove()
    others = [j for j in range(logits.shape[1]) if j != property_.label]
    wrong = ((logits < found.lower[row]) | (logits > found.upper[row])).any(1)
    wrong |= (logits[:, [property_.label]] - logits[:, others] < found.margins[row]).any(1)
    for path, (low, high) in zip(propagation.layers, found.inputs, strict=True):
        # Bounds of inputs are those of real arithmetic, up to float64's rounding.
        slack = 1e-9 * (1 + seen[path].abs())
        wrong |= ((seen[path] < low[row] - slack) | (seen[path] > high[row] + slack)).flatten(1).any(1)
    return int(wrong.sum())


# Those that train or swap with other activations than the default's are the recipe's to parametrise.
REGISTERED = [each.name for each in entries("variants") if each.name not in ("trained", "swapped", "given")]
VARIANTS = ["gelu", "relu", "prelu", *REGISTERED]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_no_point_lies_outside(name: str, network: MakeNetwork, bench: MakeBench) -> None:
    epochs, boxes, points = WORKLOADS[name]
    tried = wrong = networks = 0
    for variant in VARIANTS:
        try:
            subject = network(name, variant, epochs=epochs)
        except Unsupported:
            continue  # swap-recalibrated, of a network without BatchNorm
        networks += 1
        exact, propagation = copy.deepcopy(subject.module).double(), Propagation(subject)
        for eps in EPS:
            properties = bench(name, epochs=epochs).properties(eps, boxes)
            found = propagation.bounds(properties, "crown")
            for row, each in enumerate(properties):
                at = points_of(exact, each, points)
                wrong += violations(exact, propagation, each, found, row, at)
                tried += len(at)
    print(f"{name}: {networks} networks, {tried} points, {wrong} outside")
    assert wrong == 0
    assert networks >= len(VARIANTS) - 1
    assert tried == networks * len(EPS) * boxes * points
