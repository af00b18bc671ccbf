from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evalsuite import RELU, census, replace
from evalsuite.activations import GATED, GatedUnit, LambdaGELU, matched_hidden

GATES: dict[str, Callable[[float], float]] = {
    "glu": lambda x: 1 / (1 + math.exp(-x)),
    "bilinear": lambda x: x,
    "reglu": lambda x: max(x, 0.0),
    "geglu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "swiglu": lambda x: x / (1 + math.exp(-x)),
    "lambda-geglu": lambda x: x * math.erfc(-(1 + math.log(2)) * x / math.sqrt(2)) / 2,
}


def _count(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def _by_hand(unit: GatedUnit, x: list[float], gate: Callable[[float], float]) -> list[float]:
    def affine(layer: nn.Linear, inputs: list[float]) -> list[float]:
        bias = layer.bias.tolist() if layer.bias is not None else [0.0] * layer.out_features
        return [b + sum(w * i for w, i in zip(row, inputs, strict=True)) for row, b in zip(layer.weight.tolist(), bias, strict=True)]  # fmt: skip # noqa: E501

    gates, ups = affine(unit.gate_proj, x), affine(unit.up, x)
    return affine(unit.down, [gate(g) * u for g, u in zip(gates, ups, strict=True)])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", GATES)
def test_a_unit_is_down_of_gate_times_up(name: str, bias: bool) -> None:
    torch.manual_seed(0)
    unit = GATED[name].make(3, 5, bias=bias, out_width=2).double()
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    found = unit(x)
    assert found.shape == (2, 4, 2)
    for at in ((0, 0), (1, 3)):
        assert found[at].tolist() == pytest.approx(_by_hand(unit, x[at].tolist(), GATES[name]), rel=1e-9, abs=1e-12)


def test_the_table_has_the_units_of_the_literature_under_their_names() -> None:
    assert set(GATED) == set(GATES)
    assert all(unit.name == name and unit.formula and unit.source for name, unit in GATED.items())


@given(width=st.integers(1, 400), hidden=st.integers(75, 2000), out=st.integers(1, 400), bias=st.booleans())
@settings(max_examples=60, deadline=None)
def test_parameters_match_the_plain_layer_within_one_percent(width: int, hidden: int, out: int, bias: bool) -> None:
    matched = matched_hidden(width, hidden, bias=bias, out_width=out)
    with torch.device("meta"):
        plain = nn.Sequential(nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, out, bias=bias))
        counts = [_count(GatedUnit(width, each, nn.ReLU(), bias, out)) for each in (matched, matched - 1, matched + 1)]
    target = _count(plain)
    assert abs(counts[0] / target - 1) < (0.01 if matched > 50 else 0.5 / (matched - 0.5) + 1e-9)
    assert abs(counts[0] - target) <= min(abs(count - target) for count in counts[1:])


def test_without_biases_the_hidden_width_is_two_thirds() -> None:
    assert matched_hidden(128, 512, bias=False) == 341
    assert matched_hidden(768, 3072, bias=False) == 2048
    assert matched_hidden(128, 512, bias=False, multiple_of=64) == 320
    assert matched_hidden(128, 3, bias=False, multiple_of=64) == 64
    assert GATED["geglu"].make(48, bias=False).up.out_features == 128
    assert not any("bias" in name for name, _ in GATED["geglu"].make(48, bias=False).named_parameters())


def test_the_gate_is_found_by_the_census_and_geglu_swaps_to_reglu() -> None:
    torch.manual_seed(0)
    unit = GATED["geglu"].make(6, 9)
    assert [(found.path, found.traits.name) for found in census(nn.Sequential(unit))] == [("0.gate", "gelu")]
    assert isinstance(GATED["lambda-geglu"].make(6, 9).gate, LambdaGELU)
    swapped = replace(unit, lambda found: RELU.make(9))
    reglu = GATED["reglu"].make(6, 9)
    reglu.load_state_dict(unit.state_dict())
    x = torch.randn(5, 6)
    assert torch.equal(swapped(x), reglu(x))
    assert not torch.allclose(unit(x), reglu(x))


@pytest.mark.parametrize(("sizes", "culprit"), [((0, 4, 4), "width"), ((4, -1, 4), "hidden"), ((4, 4, 0), "out_width")])
def test_sizes_below_one_are_refused(sizes: tuple[int, int, int], culprit: str) -> None:
    width, hidden, out = sizes
    with pytest.raises(ValueError, match=f"{culprit} must be >= 1, got"):
        GatedUnit(width, hidden, nn.ReLU(), out_width=out)
    with pytest.raises(ValueError, match=f"{culprit} must be >= 1, got"):
        matched_hidden(width, hidden, out_width=out)
    with pytest.raises(ValueError, match="multiple_of must be >= 1, got 0"):
        matched_hidden(4, 4, multiple_of=0)
