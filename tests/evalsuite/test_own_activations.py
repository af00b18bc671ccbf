"""Which activation a user's network computes, and building it with another one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from own_networks import ByHand, Convolutional, config, hugging, mixed, text
from torch import nn
from written import Written

from evalsuite import Hardenable, harden, swap
from evalsuite.activations.census import built_with, staying
from evalsuite.own.activations import OwnActivations
from evalsuite.own.adapter import adapted
from evalsuite.plugins import load
from evalsuite.references import OwnError
from evalsuite.reluize.swap import build_executing, check_executes
from evalsuite.variants.variant import Made, maker, swapped

Build = Callable[[], nn.Module]


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(40, 3))


def images(*shape: int) -> torch.Tensor:
    return torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))


BERT = "network.bert.encoder.layer.{}.intermediate.intermediate_act_fn"
CASES: dict[str, tuple[Build, Any, str, list[tuple[str, int, int]], list[str]]] = {
    "bert": (
        hugging("bert", "BertForSequenceClassification"), text(), "gelu",
        [(BERT.format(each), 32, -1) for each in range(2)], ["network.bert.pooler.activation"],
    ),
    "gpt2": (
        hugging("gpt2", "GPT2LMHeadModel"), text(), "gelu-tanh",
        [(f"network.transformer.h.{each}.mlp.act", 64, -1) for each in range(2)], [],
    ),
    "vit": (
        hugging("vit", "ViTForImageClassification"), images(3, 8, 8), "gelu",
        [(f"network.vit.layers.{each}.mlp.activation_fn", 32, -1) for each in range(2)], [],
    ),
    "distilbert, whose head has a ReLU": (
        hugging("distilbert", "DistilBertForSequenceClassification"), text(), "gelu",
        [(f"network.distilbert.transformer.layer.{each}.ffn.activation", 32, -1) for each in range(2)],
        ["network.activation_0"],
    ),
    "functions": (Convolutional, images(3, 6, 6), "gelu-tanh", [("activation_0", 4, 1)], []),
    "formulas": (ByHand, images(6), "gelu", [("formula_0", 8, 1)], []),
    "several kinds": (mixed, images(6), "silu", [("1", 8, 1), ("5", 7, 1)], ["3", "7", "9"]),
    "torch's transformer": (
        encoder, images(5, 8), "gelu", [(f"0.layers.{i}.activation", 16, -1) for i in range(2)], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_users_network_is_built_with_the_activation_that_is_asked_for(case: str) -> None:
    make, example, name, places, stay = CASES[case]

    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return adapted(make(), example)

    original = fresh().eval()
    own = OwnActivations.of(fresh(), example)
    assert own.name == name
    assert [(each.path, each.channels, each.dimension) for each in own.places] == places
    assert list(own.stay) == stay

    def built(activation: str) -> nn.Module:
        def build(put: Callable[[int], nn.Module]) -> nn.Module:
            return own.replaced(fresh(), put)

        return build_executing(build, maker(activation), activation, (example,)).eval()

    with torch.no_grad():
        same, relu = built(name), built("relu")
        assert torch.allclose(same(example), original(example), atol=1e-6)
        # An oracle of its own: the swap of the user's network, where nothing stays.
        if not stay:
            wanted = swap(original, load("activations", "relu").target, (example,))
            assert torch.allclose(relu(example), wanted(example), atol=1e-6)
        assert not torch.allclose(relu(example), original(example), atol=1e-6)
    for network in (same, relu):
        assert sorted(each.path for each in built_with(network)) == sorted(path for path, *_ in places)
        assert sorted(staying(network)) == sorted(stay)
    check_executes(swapped(Made(same)).module, "relu", (example,))
    hardening = harden(same, start=0, in_place=False)
    assert set(hardening.hardness) == {path for path, *_ in places}
    hardening(1.0)
    check_executes(hardening.swap(), "relu", (example,))


def test_a_lambda_per_channel_learns_in_the_dimension_of_the_channels() -> None:
    example = images(3, 8, 8)

    def per_channel(channels: int) -> nn.Module:
        from evalsuite import LambdaGELU

        return LambdaGELU(channels)

    for build, dimension in ((hugging("vit", "ViTForImageClassification"), -1), (Convolutional, 1)):
        module = adapted(build(), example)
        network = OwnActivations.of(module, example).replaced(module, per_channel)
        network.train()(example).sum().backward()
        found = [each for each in network.modules() if isinstance(each, Hardenable)]
        assert {each.dimension for each in found} == {dimension}
        assert all(each.s.grad is not None and bool(each.s.grad.abs().sum() > 0) for each in found)


def test_of_several_activations_the_chosen_one_is_replaced() -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.SiLU(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.SiLU())
    own = OwnActivations.of(network, images(6), chosen="gelu")
    assert (own.name, [each.path for each in own.places], own.stay) == ("gelu", ["3"], ("1", "5"))
    relu = swapped(Made(own.replaced(network, maker("gelu")))).module
    assert [type(each).__name__ for each in relu if not isinstance(each, nn.Linear)] == ["SiLU", "ReLU", "SiLU"]
    check_executes(relu, "relu", (images(6),))
    with pytest.raises(OwnError, match="activation: 'mish', but Sequential executes gelu x 1 and silu x 2"):
        OwnActivations.of(network, images(6), chosen="mish")


def test_replacing_leaves_the_module_alone() -> None:
    module = Convolutional().train()
    before = {key: each.clone() for key, each in module.state_dict().items()}
    network = OwnActivations.of(module, images(3, 6, 6)).replaced(module, maker("relu"))
    assert network.training
    assert module.training
    assert type(module) is Convolutional
    assert all(torch.equal(before[key], each) for key, each in module.state_dict().items())


def test_an_activation_in_place_stays_in_place() -> None:
    def dropping(net: Any, x: torch.Tensor) -> torch.Tensor:
        x = net.first(x)
        net.act(x)
        return net.last(x)  # type: ignore[no-any-return]

    module = Written(dropping, first=nn.Linear(6, 8), act=nn.ELU(inplace=True), last=nn.Linear(8, 3)).eval()
    example = images(6)
    network = OwnActivations.of(module, example).replaced(module, maker("relu"))
    with torch.no_grad():
        assert torch.equal(network(example), module.last(module.first(example).relu()))


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)),
            "the model: Sequential executes no activation that ReLU could replace (tanh at 1); those known are listed"
            " by `evalsuite activations`: write it as one of these, such as nn.GELU()",
        ),
        (
            nn.Linear(6, 2),
            "the model: Linear executes no activation that ReLU could replace (none at all); those known are listed by"
            " `evalsuite activations`: write it as one of these, such as nn.GELU()",
        ),
        (
            nn.Sequential(nn.Linear(6, 4), Written(lambda _, x: x * torch.sigmoid(3 * x))),
            "the model: Sequential executes no activation that ReLU could replace (silu at hardness 3 at 1); those"
            " known are listed by `evalsuite activations`: write it as one of these, such as nn.GELU()",
        ),
        (
            ByHand(drops=True),
            "the model: ByHand writes activations by hand beside dropout, whose mode a traced network cannot change;"
            " write them as modules such as nn.GELU()",
        ),
    ],
)
def test_what_has_nothing_to_replace_is_said_in_one_line(module: nn.Module, said: str) -> None:
    with pytest.raises(OwnError) as error:
        OwnActivations.of(module, images(6))
    assert str(error.value) == said


@pytest.mark.parametrize("draw", [nn.functional.dropout, lambda x: x * random.random()])
def test_a_model_that_is_random_in_evaluation_mode_is_told_so(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.GELU(), Written(lambda _, x: draw(x)), nn.Linear(4, 2))
    with pytest.raises(OwnError, match=r"its outputs change by .* from one run on a batch"):
        OwnActivations.of(module, images(6))


def test_another_architecture_is_refused() -> None:
    own = OwnActivations.of(mixed(), images(6))
    with pytest.raises(OwnError, match=r"^the model: it has no activation at 1, where it had one before: let what"):
        own.replaced(nn.Linear(6, 3), maker("relu"))


def test_a_message_names_the_users_class() -> None:
    transformers = pytest.importorskip("transformers")
    module = adapted(transformers.BertForSequenceClassification(config("bert", hidden_act="relu")), text())
    with pytest.raises(
        OwnError, match=r"^the model: BertForSequenceClassification executes ReLU already \(relu at netw"
    ):
        OwnActivations.of(module, text())
