"""No stage runs a whole test set as one batch: data that are read as they are asked for, a
thousand at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from conftest import MakeBench, MakeNetwork

from evalsuite import Metric, Split
from evalsuite.plugins import load
from evalsuite.samples import Samples

SAMPLES = 1100  # more than are given at once
STAGES = {
    "accuracy": {},
    "export": {},
    "quantize": {},
    "prune": {"fine_tune_epochs": 1},
    "exact-prune": {"max_neurons": 0},
    "swap-certificate": {"samples": 3, "hardness": (1.0,), "sweep_samples": 2},
    "bounds": {"samples": 1050, "eps": (0.01,), "methods": ("ibp",), "restarts": 0},
    "smt": {"samples": 3, "proofs": False},
}


class Read(Samples):
    """Inputs repeated, which are refused where too many are asked for at once."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs[torch.arange(SAMPLES) % len(inputs)]

    def __len__(self) -> int:
        return SAMPLES

    def read(self, indices: Sequence[int]) -> torch.Tensor:
        assert len(indices) <= 1024, f"{len(indices)} samples at once"
        return self.inputs[list(indices)]


def read(split: Split) -> Split:
    targets = split.targets[torch.arange(SAMPLES) % len(split)]
    return Split(Read(split.inputs), targets)


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.slow
def test_no_stage_asks_for_more_than_a_batch(
    name: str, network: MakeNetwork, bench: MakeBench
) -> None:
    trained, there = network("iris-mlp", "annealed"), bench("iris-mlp")
    stage = load("stages", name).target(**STAGES[name])
    parts = {
        part: read(getattr(there.data, part))
        for part in ("train", "calibration", "validation", "test")
    }
    metrics: list[Metric] = stage.run(
        trained, replace(there, data=replace(there.data, **parts))
    ).metrics
    # The same numbers as of the same samples in memory.
    held = {part: Split(each.inputs.inputs, each.targets) for part, each in parts.items()}
    expected = stage.run(trained, replace(there, data=replace(there.data, **held))).metrics
    wanted = {
        (each.name, *each.setting.items(), each.sample): each
        for each in expected
        if not each.timing
    }
    found = {
        (each.name, *each.setting.items(), each.sample): each for each in metrics if not each.timing
    }
    assert {key: each.value for key, each in found.items()} == {
        key: each.value for key, each in wanted.items()
    }
