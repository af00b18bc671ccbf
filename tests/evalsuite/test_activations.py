from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from evalsuite import GELU, LAMBDA_GELU, RELU, LambdaGELU, census, networks, replace
from evalsuite.activations import Activation
from evalsuite.plugins import load

POINTS = [-40.0, -9.0, -3.0, -math.sqrt(2), -0.75, -1e-8, 0.0, 1e-8, 0.3, math.sqrt(2), 5.0, 40.0]


def reference(z: float) -> mpmath.mpf:
    with mpmath.workdps(50):
        return mpmath.mpf(z) * mpmath.ncdf(z)


@pytest.mark.parametrize("z", POINTS)
def test_gelu_agrees_with_fifty_digits(z: float) -> None:
    point = torch.tensor(z, dtype=torch.float64)
    assert float(GELU.value(point)) == pytest.approx(float(reference(z)), rel=1e-12, abs=1e-300)
    with mpmath.workdps(50):
        slope = float(mpmath.ncdf(z) + z * mpmath.npdf(z))
    assert float(GELU.slope(point)) == pytest.approx(slope, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("traits", [GELU, LAMBDA_GELU])
def test_declared_inflections_are_where_the_second_derivative_changes_sign(traits: Activation) -> None:
    step = 1e-3
    for inflection, (before, after) in zip(traits.inflections, [("-", "+"), ("+", "-")], strict=True):
        at = torch.tensor([inflection - 0.05, inflection + 0.05], dtype=torch.float64)
        bend = (traits.slope(at + step) - traits.slope(at - step)).sign().tolist()
        assert ["-" if each < 0 else "+" for each in bend] == [before, after]


@pytest.mark.parametrize("traits", [GELU, RELU])
def test_declared_distance_to_relu_is_attained_and_never_exceeded(traits: Activation) -> None:
    z = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    worst = (traits.value(z) - torch.relu(z)).abs().max().item()
    assert worst <= traits.relu_distance
    assert worst == pytest.approx(traits.relu_distance, abs=1e-8)


@given(hardness=st.floats(1.0001, 1e6), x=st.floats(-100, 100))
def test_lambda_gelu_is_x_phi_of_lambda_x(hardness: float, x: float) -> None:
    layer = LambdaGELU(hardness=hardness).double()
    layer.set_hardness(hardness)
    with mpmath.workdps(40):
        expected = float(mpmath.mpf(x) * mpmath.ncdf(mpmath.mpf(layer.hardness.item()) * x))
    # The fused kernel forms 1 + erf, so its left tail has an absolute, not a relative, error.
    assert layer(torch.tensor([x], dtype=torch.float64)).item() == pytest.approx(
        expected, rel=1e-12, abs=1e-13 * abs(x) + 1e-300
    )


@pytest.mark.parametrize("hardness", [1.001, 1.7, 20.0, 160.0, 1e6])
def test_hardness_can_be_set_and_read_back(hardness: float) -> None:
    assert LambdaGELU(hardness=hardness).hardness.item() == pytest.approx(hardness, rel=1e-4)


def test_hardness_starts_at_one_plus_log_two() -> None:
    assert LambdaGELU().hardness.item() == pytest.approx(1 + math.log(2), rel=1e-6)


@pytest.mark.parametrize("hardness", [1.0, 0.5, float("nan")])
def test_a_hardness_that_softplus_cannot_reach_is_refused(hardness: float) -> None:
    with pytest.raises(ValueError, match="hardness must be > 1"):
        LambdaGELU(hardness=hardness)


def test_gradients_of_input_and_raw_hardness() -> None:
    layer = LambdaGELU(channels=3, hardness=2.5).double()
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(layer, (x,))
    assert torch.autograd.gradcheck(
        lambda s: torch.func.functional_call(layer, {"s": s}, (x.detach(),)), (layer.s.detach().requires_grad_(),)
    )


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


def test_a_shared_activation_is_replaced_everywhere() -> None:
    shared = nn.GELU()
    changed = replace(nn.Sequential(shared, nn.Linear(1, 1), shared), lambda found: nn.ReLU())
    assert isinstance(changed[0], nn.ReLU)
    assert isinstance(changed[2], nn.ReLU)


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


def test_tanh_gelu_is_not_taken_for_the_exact_one() -> None:
    (found,) = census(nn.Sequential(nn.GELU(approximate="tanh")))
    assert found.traits.name == "gelu-tanh"


def test_replacing_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no known activation"):
        replace(nn.Linear(1, 1), lambda found: nn.ReLU())
