from __future__ import annotations

from typing import Any

import pytest
import torch
from activation_forms import ALL_FORMS, SQRT2, Calls, erf_gelu
from networks_by_hand import Written
from torch import nn
from torch.nn import functional

from lambda_gelu import GELU, census
from lambda_gelu.activations.recognition import recognise, recognise_module
from lambda_gelu.activations.runs import Use, census_of_operators, census_of_run

transformers = pytest.importorskip("transformers")


def brief(uses: list[Use]) -> list[tuple[str, str, str, int]]:
    return sorted((use.path, use.kind, use.function, use.calls) for use in uses)


@pytest.mark.parametrize(("name", "form"), ALL_FORMS)
def test_every_way_to_write_a_formula_is_found_once_where_it_is_written(name, form) -> None:
    uses = census_of_run(nn.Sequential(nn.Identity(), Calls(form)), torch.randn(5, 4))
    assert brief(uses) == [("1", "formula", name, 1)]
    assert uses[0].hardness == 1


def test_a_constant_may_be_off_by_a_millionth_and_not_by_a_hundred_thousandth() -> None:
    assert recognise(lambda x: erf_gelu(x, SQRT2 * (1 + 5e-7))).traits is GELU
    assert recognise(lambda x: erf_gelu(x, SQRT2 * (1 + 1e-5))) is None
    assert recognise(lambda x: 0.5 * x * (1 + torch.erf(x / 1.5))) is None
    assert recognise(lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3)))) is None


@pytest.mark.parametrize("beta", [1.25, 1.5, 3.0, 20.0])
def test_the_fixed_hardness_of_a_formula_is_measured(beta: float) -> None:
    (use,) = census_of_run(Calls(lambda x: x * torch.sigmoid(beta * x)), torch.randn(5, 4))
    assert (use.kind, use.traits.name) == ("formula", "silu")
    assert use.hardness == pytest.approx(beta, rel=1e-6)


GATES = [nn.Tanh(), nn.Sigmoid(), nn.Hardsigmoid(), nn.Softplus(), nn.Softplus(threshold=50)]


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_gates_are_counted_on_request_alone(gate: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), gate)
    assert [found.path for found in census(module)] == ["1"]
    # 2e-9 from the row
    by_type = ["1"] if str(gate) == "Softplus(beta=1.0, threshold=20.0)" else ["1", "3"]
    assert [found.path for found in census(module, gates=True)] == by_type
    kinds = {use.kind for use in census_of_run(module, torch.randn(2, 4)) if use.path == "3"}
    assert "module" not in kinds


FUSED = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True).eval()
HIDDEN = Written(
    lambda net, x: net.acts[0](net.linear(x)), linear=nn.Linear(4, 4), acts=[nn.GELU()]
)
LEARNT = Written(lambda net, x: x * torch.sigmoid(net.beta * x), beta=nn.Parameter(torch.ones(6)))
GATE = Calls(
    lambda x: (
        x.softmax(-1) * torch.sigmoid(x.sum(-1, keepdim=True)) + functional.layer_norm(x, (6,))
    )
)


@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (Calls(lambda x: x * torch.atan(torch.sigmoid(x))), (5, 4), ("", "formula", "x g(x)", 1)),
        (nn.Sequential(nn.Linear(4, 6), LEARNT), (5, 4), ("1", "formula", "x g(x)", 1)),
        # the census of modules does not see it
        (nn.Sequential(HIDDEN), (2, 4), ("0", "functional", "gelu", 1)),
        (FUSED, (2, 3, 8), ("", "functional", "gelu", 1)),
        (nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (2, 4), ("1", "kept", "tanh", 1)),
        (GATE, (5, 4), ("", "kept", "sigmoid", 1)),
        (nn.LSTM(4, 3, batch_first=True), (2, 5, 4), None),
        (nn.LSTMCell(4, 3), (2, 4), None),
    ],
    ids=[
        "unknown gate",
        "learnt beta",
        "plain list",
        "fused layer",
        "pooler",
        "gate",
        "LSTM",
        "LSTM cell",
    ],
)
def test_one_thing_is_reported_and_what_is_no_activation_is_kept(
    module: nn.Module, shape: tuple[int, ...], expected: tuple[str, str, str, int] | None
) -> None:
    uses = brief(census_of_run(module, torch.randn(shape)))
    told = [use for use in uses if use[1] != "kept"]
    if expected is None:
        assert told == []
    else:
        assert (uses if expected[1] == "kept" else told) == [expected]


def test_modules_miss_what_a_plain_list_holds_and_functions_miss_fused_operators() -> None:
    assert not census(HIDDEN)
    found = brief(census_of_operators(FUSED, torch.randn(2, 3, 8)))
    assert found == [("", "operator", "gelu in torch._transformer_encoder_layer_fwd", 1)]


def test_calls_are_reported_at_the_innermost_module_with_their_number() -> None:
    inner = Calls(
        lambda x: functional.silu(functional.gelu(functional.gelu(x), approximate="tanh"))
    )
    outer = nn.Sequential(
        nn.Linear(4, 4), nn.ModuleDict({"x": inner})["x"], nn.ReLU(), nn.Linear(3, 4), inner
    )
    uses = census_of_run(outer, torch.randn(5, 4))
    assert brief(uses) == [
        ("1", "functional", "gelu", 2),
        ("1", "functional", "gelu", 2),
        ("1", "functional", "silu", 2),
        ("2", "module", "ReLU", 1),
    ]
    assert {use.traits.name for use in uses} == {"gelu", "gelu-tanh", "silu", "relu"}


@pytest.mark.parametrize(
    ("name", "row", "hardness"),
    [
        ("gelu", "gelu", 1.0),
        ("gelu_python", "gelu", 1.0),
        ("gelu_new", "gelu-tanh", 1.0),
        ("gelu_pytorch_tanh", "gelu-tanh", 1.0),
        ("gelu_fast", "gelu-tanh", 1.0),
        ("quick_gelu", "quick-gelu", 1.0),
        ("mish", "mish", 1.0),
        ("silu", "silu", 1.0),
        ("relu2", "relu2", 1.0),
        ("relu6", "relu6", 1.0),
    ],
)
def test_modules_of_hugging_face_are_known_by_their_values(
    name: str, row: str, hardness: float
) -> None:
    module = transformers.activations.ACT2FN[name]
    found = recognise_module(module)
    if type(module).__module__.startswith("torch"):
        assert [each.traits.name for each in census(module)] == [row]
        return
    assert found.traits.name == row
    assert found.hardness == pytest.approx(hardness, rel=1e-6)
    assert [each.traits.name for each in census(nn.Sequential(module))] == (
        [row] if hardness == 1 else []
    )


def test_other_modules_are_not_taken_for_activations_and_asking_changes_nothing() -> None:
    def counting(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.calls += 1
        return functional.gelu(x) + torch.rand(())

    module = Written(counting, calls=0)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert recognise_module(module) is None
    assert torch.equal(torch.rand(3), expected)
    assert module.calls == 0
    assert recognise_module(transformers.activations.ACT2FN["gelu_10"]) is None
    for name in ("laplace", "sigmoid", "tanh"):  # a gate is not told by its values
        assert recognise_module(transformers.activations.ACT2FN[name]) is None


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: functional.gelu(x + 1 if x.sum() > 0 else x),
        lambda self, x: functional.gelu(x - x.sum(-1, keepdim=True) * 1e-9),
        lambda self, x: functional.dropout(functional.gelu(x), 0.1, self.training),
        lambda self, x: functional.gelu(x) if self.training else functional.silu(x),
        lambda self, x: functional.gelu(x.clamp(max=9e3)),
    ],
)
def test_what_is_gelu_only_for_some_inputs_or_in_one_mode_is_not_taken_for_gelu(forward) -> None:
    module = type("Almost", (nn.Module,), {"forward": forward})()
    assert not census(nn.Sequential(module))


def test_the_census_of_a_run_leaves_the_network_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU()).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    census_of_run(module, torch.randn(8, 4))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert module.training
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())
