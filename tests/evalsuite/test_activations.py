from __future__ import annotations

from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import nn

from evalsuite import LambdaGELU, census, networks, replace
from evalsuite.plugins import load


def reference(z: float) -> mpmath.mpf:
    with mpmath.workdps(50):
        return mpmath.mpf(z) * mpmath.ncdf(z)


@pytest.mark.parametrize("hardness", [1.001, 1.7, 20.0, 160.0, 1e6])
def test_hardness_can_be_set_and_read_back(hardness: float) -> None:
    assert LambdaGELU(hardness=hardness).hardness.item() == pytest.approx(hardness, rel=1e-4)


@pytest.mark.parametrize("hardness", [1.0, 0.5, float("nan")])
def test_a_hardness_that_softplus_cannot_reach_is_refused(hardness: float) -> None:
    with pytest.raises(ValueError, match="hardness must be > 1"):
        LambdaGELU(hardness=hardness)


def test_per_channel_hardness_acts_on_dimension_one() -> None:
    layer = LambdaGELU(channels=2)
    layer.set_hardness(torch.tensor([2.0, 50.0]))
    x = torch.full((1, 2, 1, 1), -0.5)
    first, second = layer(x).flatten().tolist()
    assert first == pytest.approx(float(reference(-1.0)) / 2, rel=1e-5)
    assert second == pytest.approx(0.0, abs=1e-8)


def test_census_names_paths_and_replace_keeps_the_original() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Sequential(LambdaGELU(), nn.ReLU()), nn.Tanh())
    assert [(found.path, found.traits.name) for found in census(module)] == [
        ("1", "gelu"), ("2.0", "lambda-gelu"), ("2.1", "relu"),
    ]  # fmt: skip
    changed = replace(module, lambda found: nn.Identity())
    assert not census(changed)
    assert isinstance(changed[3], nn.Tanh)
    assert len(census(module)) == 3


class _Build:
    """A workload whose architecture has a clip and a gate beside the activation that it is asked for."""

    def build(self, make: Callable[[int], nn.Module]) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), make(4), nn.Linear(4, 4), nn.ReLU6(), nn.Linear(4, 4), nn.Sigmoid())


@pytest.mark.parametrize("name", ["gelu", "mish", "quick-gelu", "relu"])
def test_what_a_saved_network_says_of_its_activations(name: str) -> None:
    module = _Build().build(load("activations", name).target.make)
    assert networks._activation(module) == {"activation": name}
    alone = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    assert networks._activation(alone) == {"activation": "tanh"}
    assert networks._activation(nn.Sequential(nn.ReLU6(), nn.Sigmoid())) == {"activation": "relu6"}


def test_replacing_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no known activation"):
        replace(nn.Linear(1, 1), lambda found: nn.ReLU())
