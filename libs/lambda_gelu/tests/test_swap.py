from __future__ import annotations

import copy
import dataclasses
import io
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from activation_forms import ALL_FORMS, Calls
from networks_by_hand import Written
from own_networks import hugging, text
from torch import fx, nn
from torch.nn import functional

from lambda_gelu import LambdaGELU, census, replace, swap_to_relu
from lambda_gelu.activations.gates import SOFTPLUS
from lambda_gelu.activations.gelu import GELU
from lambda_gelu.activations.recognition import known
from lambda_gelu.harden_network import harden
from lambda_gelu.swapping import check_executes, check_swapped, expose, swap

transformers = pytest.importorskip("transformers")


class Twice(nn.Module):
    """Calls gelu twice and silu once in its forward, and has an activation module besides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """By hand: a linear layer, gelu, the module, a linear layer, gelu, silu."""
        hidden = self.act(functional.gelu(self.first(x)) * scale)
        return functional.silu(functional.gelu(self.last(hidden)))


class Nested(nn.Module):
    """Modules in lists and dictionaries, of which some call functions and some are activations;
    one is shared.
    """

    def __init__(self) -> None:
        super().__init__()
        shared = nn.GELU()
        self.blocks = nn.ModuleList([Twice(), Twice()])
        self.acts = nn.ModuleDict({"a": shared, "b": shared, "c": nn.SiLU()})
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.acts["a"](x) + functional.gelu(block(x))
        return self.last(self.acts["c"](self.acts["b"](x)))


bert = hugging("bert", "BertForSequenceClassification")


def relu_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own functions replaced by ReLU: what a swap must compute, independently of it."""
    monkeypatch.setattr(functional, "gelu", lambda x, approximate="none": torch.relu(x))
    monkeypatch.setattr(functional, "silu", lambda x, inplace=False: torch.relu(x))
    monkeypatch.setattr(nn.GELU, "forward", lambda self, x: torch.relu(x))


def names(module: nn.Module) -> list[tuple[str, str]]:
    return [(found.path, found.traits.name) for found in census(module)]


def test_functional_calls_become_modules_of_the_module_that_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    module, x = Nested(), torch.randn(5, 4)
    exposed = expose(module, x)
    assert torch.equal(exposed(x), module(x))
    assert {path for path, _ in names(exposed)} == {
        "activation_0",
        "activation_1",
        "acts.a",
        "acts.c",
        *(
            f"blocks.{i}.{name}"
            for i in (0, 1)
            for name in ("act", "activation_0", "activation_1", "activation_2")
        ),
    }
    assert dict(names(exposed))["blocks.1.activation_2"] == "silu"
    assert isinstance(exposed, Nested)
    output = swap_to_relu(module, x)(x)
    relu_everywhere(monkeypatch)
    torch.testing.assert_close(output, module(x), rtol=0, atol=0)


def test_a_redirected_network_learns_lambda_copies_pickles_exports_and_takes_named_arguments() -> (
    None
):
    torch.manual_seed(0)
    module, x = Twice(), torch.randn(5, 4)
    hard = replace(
        expose(module, (x,)),
        lambda found: LambdaGELU(hardness=50.0) if found.path != "act" else nn.GELU(),
    )
    assert {"activation_0.s", "activation_1.s", "activation_2.s"} <= set(hard.state_dict())
    hard(x, scale=0.5).square().sum().backward()
    assert all(hard.get_parameter(f"activation_{i}.s").grad.abs() > 0 for i in range(3))
    expected = hard(x)
    assert torch.equal(copy.deepcopy(hard)(x), expected)
    file = io.BytesIO()
    torch.save(hard, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), expected)
    assert torch.equal(copy.deepcopy(hard).double().float()(x), expected)
    exported = torch.export.export(hard, (x,))
    torch.testing.assert_close(exported.module()(x), expected)
    assert copy.deepcopy(hard).activation_0 is not hard.activation_0
    copied = copy.deepcopy(hard)
    copied.activation_0.set_hardness(1.5)
    assert not torch.equal(copied(x), expected)


def dropped(act: Any) -> Any:
    """A forward that calls this for what it does to its input."""

    def call(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        act(net, y)
        return y

    return call


def test_what_is_done_in_place_stays_in_place() -> None:
    x = torch.randn(4, 5)
    function = Written(dropped(lambda _, y: functional.silu(y, inplace=True)))
    assert torch.equal(expose(function, x)(x), functional.silu(2 * x))
    assert torch.equal(swap_to_relu(function, x)(x), torch.relu(2 * x))
    module = Written(dropped(lambda net, y: net.act(y)), act=nn.SiLU(inplace=True))
    assert torch.equal(swap_to_relu(module)(x), torch.relu(2 * x))


def test_an_in_place_function_hardens_in_training() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    module = Written(
        lambda net, x: functional.silu(net.first(x), inplace=True), first=nn.Linear(4, 4)
    )
    module(x).sum().backward()
    expected, x.grad = x.grad, None
    harden(module, in_place=False, example=x, hardness=1 + 1e-6).module(x).sum().backward()
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-5)


def test_another_path_than_the_examples_is_an_error_and_never_another_activation() -> None:
    class Either(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(x) if x.shape[0] < 3 else functional.silu(functional.silu(x))

    exposed = expose(Either(), torch.randn(2, 2))
    with pytest.raises(
        RuntimeError, match=r"Either: call 1 of an activation in forward is silu.*example.*gelu"
    ):
        exposed(torch.randn(5, 2))
    longer = expose(Either(), torch.randn(5, 2))
    with pytest.raises(RuntimeError, match="call 1"):
        longer(torch.randn(2, 2))


@pytest.mark.parametrize(("name", "form"), ALL_FORMS)
def test_every_way_to_write_a_formula_is_rewritten_and_computes_the_same(name, form) -> None:
    torch.manual_seed(0)
    module, x = Calls(form), torch.randn(5, 4)
    exposed = expose(module, x)
    assert isinstance(exposed, fx.GraphModule)
    assert names(exposed) == [("formula_0", name)]
    torch.testing.assert_close(exposed(x), module(x), rtol=1e-5, atol=1e-6)
    swapped = replace(exposed, lambda found: nn.ReLU())
    check_swapped(swapped, x)
    other = torch.randn(9, 4)  # another batch size
    torch.testing.assert_close(swapped(other), module.last(torch.relu(module.linear(other))))
    assert set(swapped.state_dict()) == set(module.state_dict())


def test_a_formula_beside_modules_functions_and_a_learnt_lambda() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.acts = Twice(), nn.ModuleList([LambdaGELU(hardness=3.0), nn.GELU()])
            self.drop = nn.Dropout(0.5)

        def forward(self, x: torch.Tensor, *, bias: torch.Tensor) -> torch.Tensor:
            x = self.acts[0](self.block(x)) + bias
            x = x + 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
            return self.acts[0](self.drop(self.acts[1](x)))

    torch.manual_seed(0)
    module, example = Mixed().eval(), {"x": torch.randn(5, 4), "bias": torch.randn(4)}
    exposed = expose(module, example)
    assert set(names(exposed)) == {
        ("block.act", "gelu"),
        ("block.activation_0", "gelu"),
        ("block.activation_1", "gelu"),
        ("block.activation_2", "silu"),
        ("acts.0", "lambda-gelu"),
        ("acts.1", "gelu"),
        ("formula_0", "gelu"),
    }
    torch.testing.assert_close(exposed(**example), module(**example), rtol=1e-5, atol=1e-6)
    exposed(**example).sum().backward()
    assert exposed.get_parameter("acts.0.s").grad.abs() > 0
    assert {row for _, row in names(swap_to_relu(module, example))} == {"relu"}


def test_a_formula_in_higher_precision_than_its_input_keeps_both() -> None:
    def upcast(net: Any, x: torch.Tensor) -> torch.Tensor:
        x = net.linear(x)
        return (0.5 * x.float() * (1 + torch.erf(x.float() / math.sqrt(2)))).to(x.dtype)

    torch.manual_seed(0)
    module, x = (
        Written(upcast, linear=nn.Linear(4, 4)).bfloat16(),
        torch.randn(5, 4, dtype=torch.bfloat16),
    )
    exposed = expose(module, x)
    assert names(exposed) == [("formula_0", "gelu")]
    assert exposed(x).dtype == torch.bfloat16
    assert torch.equal(exposed(x), module(x))


def test_a_formula_in_training_keeps_dropout_and_batch_statistics() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(4, 4), nn.BatchNorm1d(4), Calls(ALL_FORMS[0][1]), nn.Dropout(0.5)
    module, x = nn.Sequential(*layers).train(), torch.randn(64, 4)
    exposed = expose(module, x)
    outputs = []
    for each in (module, exposed):
        torch.manual_seed(1)
        outputs.append(each(x))
    torch.testing.assert_close(*outputs)
    assert 0.3 < (outputs[1] == 0).float().mean() < 0.7
    torch.testing.assert_close(exposed.get_buffer("1.running_mean"), module[1].running_mean)
    assert not (swap_to_relu(module, x)(x) == 0).any()


QUICK = transformers.activations.ACT2FN["quick_gelu"]


@pytest.mark.parametrize(
    ("module", "row", "hardness"),
    [
        (nn.Sequential(nn.Identity(), QUICK), "quick-gelu", 1.702),
        (Calls(lambda x: x * torch.sigmoid(1.702 * x)), "quick-gelu", 1.702),
        (Calls(lambda x: x * torch.sigmoid(3 * x)), "swish", 3.0),
    ],
    ids=["module", "by hand", "another hardness"],
)
def test_the_quick_gelu_of_clip_and_its_like_are_found_hardened_as_swish_and_swapped(
    module: nn.Module, row: str, hardness: float
) -> None:
    x = torch.randn(5, 4)
    exposed = expose(module, x)
    assert [name for _, name in names(exposed)] == [row]
    torch.testing.assert_close(exposed(x), module(x), rtol=1e-5, atol=1e-6)
    hardening = harden(module, example=x, in_place=False, steps=1)
    (found,) = census(hardening.module)
    assert found.traits.name == "swish"
    assert found.module.hardness.item() == pytest.approx(hardness, rel=1e-6)
    torch.testing.assert_close(hardening.module(x), module(x), rtol=1e-5, atol=1e-6)
    assert [name for _, name in names(swap_to_relu(module, x))] == ["relu"]


class Gated(nn.Module):
    """A GELU network with each kind of gate and pooler, and clipped ReLUs, called in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act, self.clipped = (
            nn.Linear(4, 6),
            nn.Linear(6, 6),
            nn.GELU(),
            nn.ReLU6(),
        )
        self.squeeze = nn.Sequential(nn.Linear(6, 6), nn.Sigmoid())
        self.excite = nn.Sequential(nn.Linear(6, 6), nn.Hardsigmoid())
        self.pooler = nn.Sequential(nn.Linear(6, 3), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.clipped(self.second(self.act(self.first(x))))
        h = h * self.squeeze(h) + h * self.excite(h)
        h = (
            h * (functional.relu6(h + 3) / 6)
            + h * torch.sigmoid(h.mean(-1, keepdim=True))
            + functional.hardsigmoid(h)
        )
        return self.pooler(h)


def test_gates_poolers_and_clipped_relus_stay_as_they_are() -> None:
    torch.manual_seed(0)
    module, x = Gated().eval(), torch.randn(5, 4)
    expected = copy.deepcopy(module)
    expected.act = nn.ReLU()
    for swapped in (swap_to_relu(module), swap_to_relu(module, x)):
        assert torch.equal(swapped(x), expected(x))
        assert [name for _, name in names(swapped) if name != "relu6"] == ["relu"]
    hardened = harden(module, in_place=False, steps=1)
    kinds = [type(each).__name__ for each in hardened.module.modules() if not list(each.children())]
    assert kinds.count("LambdaGELU") == 1
    assert {"Sigmoid", "Hardsigmoid", "Tanh", "ReLU6"} <= set(kinds)
    hardened(1.0)
    assert names(hardened.swap()) == [("act", "relu"), ("clipped", "relu6")]


def by_hand(layer: nn.TransformerEncoderLayer, x: torch.Tensor, activation) -> torch.Tensor:
    """A post-norm encoder layer from its weights."""
    # weights wanted: never the fused path
    attended = layer.self_attn(x, x, x, need_weights=True)[0]
    x = functional.layer_norm(x + attended, x.shape[-1:], layer.norm1.weight, layer.norm1.bias)
    hidden = activation(x @ layer.linear1.weight.T + layer.linear1.bias)
    x = x + hidden @ layer.linear2.weight.T + layer.linear2.bias
    return functional.layer_norm(x, x.shape[-1:], layer.norm2.weight, layer.norm2.bias)


@pytest.mark.parametrize(
    "activation", ["gelu", functional.gelu, nn.GELU(), functional.silu, nn.GELU("tanh")]
)
def test_the_fused_transformer_layer_computes_the_activation_that_it_was_given(activation) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    swapped = swap_to_relu(layer, x)
    assert swapped.activation_relu_or_gelu == 1
    hard = replace(expose(layer), lambda found: LambdaGELU(hardness=7.0))
    assert hard.activation_relu_or_gelu == 0
    with torch.no_grad():
        torch.testing.assert_close(swapped(x), by_hand(layer, x, torch.relu), rtol=1e-5, atol=1e-5)
        expected = by_hand(layer, x, lambda z: z * torch.special.ndtr(7 * z))
        torch.testing.assert_close(hard(x), expected, rtol=1e-5, atol=1e-5)
        given = layer.activation if callable(layer.activation) else functional.gelu
        torch.testing.assert_close(expose(layer)(x), by_hand(layer, x, given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", nn.GELU()])
def test_the_fused_layers_gelu_is_gelu(activation) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    check_executes(layer, "gelu", x)
    back = swap(swap_to_relu(layer, x), GELU, x)
    assert torch.equal(back(x), layer(x))
    # the trap: the module says GELU, the fused layer computes ReLU
    layer.activation_relu_or_gelu = 1
    with pytest.raises(ValueError, match=r"executes relu in torch\._transformer_encoder_layer_fwd"):
        check_executes(layer, "gelu", x)


def test_an_encoder_with_padding_packs_its_batch_only_for_the_fused_layer() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for made, activation in (
        (
            replace(expose(encoder), lambda found: LambdaGELU(hardness=7.0)),
            lambda z: z * torch.special.ndtr(7 * z),
        ),
        (swap_to_relu(encoder, {"src": x, "src_key_padding_mask": padding}), torch.relu),
    ):
        with torch.no_grad():
            output = made(x, src_key_padding_mask=padding)
            alone = x[1:, :3]
            for each in encoder.layers:
                alone = by_hand(each, alone, activation)
        torch.testing.assert_close(output[1:, :3], alone, rtol=1e-5, atol=1e-5)


def test_a_decoder_layer_is_swapped_with_and_without_an_example() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(8, 2, 16, activation="gelu", batch_first=True).eval()
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    swapped = swap_to_relu(layer, (x, memory))
    assert names(swapped) == names(swap_to_relu(layer)) == [("activation", "relu")]
    reference = copy.deepcopy(layer)
    reference.activation = functional.relu
    assert torch.equal(swapped(x, memory), reference(x, memory))
    given = nn.TransformerDecoderLayer(8, 2, 16, activation=nn.GELU(), batch_first=True).eval()
    given.load_state_dict(layer.state_dict())
    # a plain deepcopy of `given` computes ReLU
    assert torch.equal(expose(given)(x, memory), layer(x, memory))
    hard = replace(given, lambda found: LambdaGELU(hardness=1.5))
    assert torch.equal(copy.deepcopy(hard)(x, memory), hard(x, memory))
    assert not torch.equal(hard(x, memory), reference(x, memory))


def branch(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x + 1 if x.sum() > 0 else x
    return x * torch.sigmoid(x)


def overwriting(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    return x.mul_(torch.sigmoid(x))


X, LINEAR = torch.ones(2, 4), nn.Linear(4, 4)
FUNCTION = nn.Sequential(nn.Module())
FUNCTION.forward = lambda x: functional.gelu(x)  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: swap_to_relu(LINEAR),
            r"no GELU-like activation found in Linear: looked at modules; pass example=",
        ),
        (lambda: swap_to_relu(LINEAR, X), "looked at modules, functional calls and formulas"),
        (
            lambda: swap_to_relu(nn.Sequential(LINEAR, nn.Softplus())),
            "cannot be swapped: Softplus at 1",
        ),
        (
            lambda: swap_to_relu(
                nn.Sequential(nn.ReLU(), nn.ModuleDict({"x": nn.Softplus()})["x"]), X
            ),
            "softplus at 1",
        ),
        (
            lambda: swap_to_relu(nn.Sequential(nn.GELU(), nn.Sequential(nn.SELU())), X),
            r"elu at 1\.0 .*keep=",
        ),
        (
            lambda: swap_to_relu(nn.Sequential(nn.GELU(), nn.Sequential(nn.SELU()))),
            r"swapped: SELU at 1\.0; keep=",
        ),
        (
            lambda: swap_to_relu(nn.Sequential(LINEAR, nn.ReLU6(), nn.Sigmoid())),
            "no GELU-like .*cannot be swapped: Sigmoid",
        ),
        (
            lambda: swap_to_relu(
                nn.Sequential(nn.GELU(), Calls(lambda x: x * torch.tanh(functional.softplus(x)))), X
            ),
            r"mish at 1 \(formula\)",
        ),
        (
            lambda: swap_to_relu(Twice(), keep=["lats"]),
            "'lats', which is no module of Twice; did you mean 'last'",
        ),
        (lambda: harden(Twice(), example=X), r"pass in_place=False, and train hardening\.module"),
        (
            lambda: expose(nn.Sequential(LINEAR, Written(branch)), X),
            r"Sequential: torch\.export cannot trace it.*write them as modules",
        ),
        (
            lambda: expose(nn.Sequential(LINEAR, Written(overwriting)), X),
            "overwrites its own input in place",
        ),
        (lambda: expose(FUNCTION, X), "its forward is an attribute of the instance"),
    ],
)
def test_what_cannot_be_swapped_is_named_with_its_path_and_a_cure(
    make: Callable[[], object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_what_is_to_be_kept_is_kept() -> None:
    module, x = nn.Sequential(nn.GELU(), nn.Sequential(nn.SELU()), nn.GELU()), torch.randn(2, 4)
    swapped = swap_to_relu(module, x, keep=["1", "2"])
    assert names(swapped) == [("0", "relu"), ("2", "gelu")]
    torch.testing.assert_close(swapped(x), functional.gelu(functional.selu(torch.relu(x))))


def test_the_gate_sees_an_activation_that_the_census_of_modules_does_not() -> None:
    fused = nn.TransformerEncoderLayer(8, 2, 16, activation="relu", batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    check_swapped(fused, x)
    # the trap: the module says ReLU, the fused layer computes GELU
    fused.activation_relu_or_gelu = 2
    with pytest.raises(ValueError, match=r"gelu in torch\._transformer_encoder_layer_fwd"):
        check_swapped(fused, x)
    with pytest.raises(ValueError, match=r"gelu at blocks\.0"):
        check_swapped(Nested(), torch.randn(2, 4))


@pytest.mark.parametrize(
    "make",
    [
        Twice,
        lambda: nn.Sequential(Twice(), nn.Dropout(0.5)),
        lambda: nn.Sequential(nn.Linear(4, 4), Calls(ALL_FORMS[0][1]), nn.Dropout(0.0)),
        bert,
    ],
)
def test_a_hardened_copy_of_an_example_is_the_swap_that_it_leads_to(make) -> None:
    """The network given stays as it is; its copy learns, hardens, and in evaluation mode nearly
    is its own swap.
    """
    torch.manual_seed(0)
    module = make().train()
    example = text() if make is bert else torch.randn(200, 4)
    kept, kinds = copy.deepcopy(module.state_dict()), [type(each) for each in module.modules()]
    hardening = harden(module, steps=6, start=0.3, hardness=1.7, in_place=False, example=example)
    assert hardening.module is not module
    assert hardening.module.training
    optimizer = torch.optim.SGD(
        hardening.module.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1
    )
    for _ in range(6):
        optimizer.zero_grad()
        out = (
            hardening.module(**example).logits
            if isinstance(example, dict)
            else hardening.module(example)
        )
        out.square().mean().backward()
        hardening.step()
        optimizer.step()
    assert all(
        value.item() == pytest.approx(160.0, rel=1e-5) for value in hardening.hardness.values()
    )
    assert all(torch.equal(value, kept[name]) for name, value in module.state_dict().items())
    assert [type(each) for each in module.modules()] == kinds
    assert any(
        not torch.equal(value, kept[name])
        for name, value in hardening.module.state_dict().items()
        if name in kept
    )
    swapped, hard = hardening.swap(), hardening.module.eval()
    with torch.no_grad():
        outputs = [
            each(**example).logits if isinstance(example, dict) else each(example)
            for each in (swapped, hard)
        ]
        again = swapped(**example).logits if isinstance(example, dict) else swapped(example)
    assert torch.equal(outputs[0], again)
    assert 0 < (outputs[0] - outputs[1]).abs().max() < 0.05
    check_swapped(swapped, example)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(4)])
def test_formulas_beside_what_has_a_mode_are_not_hardened(layer: nn.Module, training: bool) -> None:
    module = nn.Sequential(nn.Linear(4, 4), layer, Calls(ALL_FORMS[0][1])).train(training)
    x = torch.randn(6, 4)
    name = "dropout" if isinstance(layer, nn.Dropout) else "batch_norm"
    with pytest.raises(
        ValueError, match=rf"Sequential: .*torch\.export, which fixes {name} in one mode.*nn\.GELU"
    ):
        harden(module, in_place=False, example=x)
    exposed = expose(module, x)
    if training:
        with pytest.raises(
            ValueError, match=rf"{name} was exported in training mode, which eval\(\) cannot change"
        ):
            swap_to_relu(exposed)
    else:
        assert torch.equal(swap_to_relu(exposed)(x), swap_to_relu(module, x)(x))


def test_functions_as_attributes_are_hardened_in_place_and_given_back_if_refused() -> None:
    def layer() -> nn.Module:
        torch.manual_seed(0)
        encoder = nn.TransformerEncoderLayer(
            8, 2, 16, activation="gelu", batch_first=True, dropout=0.0
        )
        return nn.Sequential(nn.TransformerEncoder(encoder, 2), nn.Linear(8, 8), nn.GELU())

    x = torch.randn(3, 5, 8)
    module = layer()
    with pytest.raises(ValueError, match="target must be > 1"):
        harden(module, target=0.5)
    encoder = module[0]
    assert encoder.layers[0].activation is functional.gelu
    assert (encoder.layers[0].activation_relu_or_gelu, encoder.use_nested_tensor) == (2, True)
    assert torch.equal(module.eval()(x), layer().eval()(x))
    hardening = harden(module, steps=2, start=0.0)
    assert list(hardening.hardness) == ["0.layers.0.activation", "0.layers.1.activation", "2"]
    hardening.step()
    hardening.step()
    swapped = hardening.swap()
    with torch.no_grad():
        assert 0 < (swapped(x) - module(x)).abs().max() < 0.02


def test_a_hardened_network_is_not_swapped_where_it_was_not_hardened() -> None:
    module = nn.Sequential(
        nn.Linear(4, 4), nn.GELU(), nn.Sequential(nn.ELU(0.5), nn.LeakyReLU(0.3))
    )
    hardening = harden(module, steps=1, start=0.0)
    hardening.step()
    with pytest.raises(ValueError, match=r"not hardened.*elu at 2\.0, leaky-relu at 2\.1; .*keep="):
        hardening.swap()
    kept = swap_to_relu(hardening.module, keep=["2"])
    assert names(kept) == [("1", "relu"), ("2.0", "elu"), ("2.1", "leaky-relu")]


@pytest.mark.parametrize("example", [None, torch.randn(3, 4)], ids=["modules", "a run"])
def test_softplus_may_be_put_in_but_another_that_was_there_is_left_over(example) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(3, 4)
    swapped = swap(module, SOFTPLUS, example)
    torch.testing.assert_close(swapped(x), functional.softplus(module[0](x)))
    with pytest.raises(
        ValueError, match="elu at 2" if example is not None else "cannot be swapped: SELU at 2"
    ):
        swap(nn.Sequential(*module, nn.SELU()), SOFTPLUS, example)


class Scaled(nn.Module):
    """2 GELU(x) by a module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.inner(x)


SCALED = dataclasses.replace(
    GELU, name="scaled", make=lambda _: Scaled(), matches=lambda module: isinstance(module, Scaled)
)


def test_an_activation_may_compute_by_another_that_is_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), Scaled()), torch.randn(3, 4)
    rows = (SCALED, *known())
    monkeypatch.setattr(sys.modules[census.__module__], "known", lambda: rows)
    check_executes(module, "scaled", x)
    check_swapped(swap(nn.Sequential(module[0], nn.ReLU()), SCALED, x), x, to=SCALED)
    with pytest.raises(ValueError, match="executes GELU at 2 "):
        check_executes(nn.Sequential(*module, nn.GELU()), "scaled", x)
