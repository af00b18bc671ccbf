"""A million points: no logit and no activation's input outside of its bounds, on every workload and variant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bounds_sampled import Sampled

from evalsuite import Bench, Network, Unsupported
from evalsuite.plugins import entries
from pipelines.bounds.propagation import Propagation

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


# Those that train or swap with other activations than the default's are the recipe's to parametrise.
REGISTERED = [each.name for each in entries("variants") if each.name not in ("trained", "swapped", "given")]
VARIANTS = ["gelu", "relu", "prelu", *REGISTERED]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_no_point_lies_outside(name: str, network: MakeNetwork, bench: MakeBench) -> None:
    epochs, boxes, points = WORKLOADS[name]
    tried = networks = 0
    for variant in VARIANTS:
        try:
            subject = network(name, variant, epochs=epochs)
        except Unsupported:
            continue  # swap-recalibrated, of a network without BatchNorm
        networks, propagation = networks + 1, Propagation(subject)
        for eps in EPS:
            properties = bench(name, epochs=epochs).properties(eps, boxes)
            sampled = Sampled(subject, properties, points, climbing=8)
            sampled.check(propagation.bounds(properties, "crown"), propagation.layers)
            tried += sum(map(len, sampled.points))
    print(f"{name}: {networks} networks, {tried} points")
    assert networks >= len(VARIANTS) - 1
    assert tried >= networks * len(EPS) * boxes * points
