"""Users' networks: what they take and give, which activation they compute, and building them
with another one.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import ByHand, Convolutional, TwoInputs, hugging, mixed, text
from torch import fx, nn
from written import Written

from evalsuite import LambdaGELU, census, export_onnx, fold_hardness, harden, open_onnx, swap
from evalsuite.own.activations import OwnActivations
from evalsuite.own.adapter import adapted, own_network
from evalsuite.plugins import load
from evalsuite.tasks import Embedding
from evalsuite.variants.variant import Made, maker, swapped
from lambda_gelu import Hardenable
from lambda_gelu.activations.census import built_with, staying
from lambda_gelu.swapping import build_executing, check_executes
from opgraph import run_onnx
from opgraph.errors import OwnError

Build = Callable[[], nn.Module]


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(40, 3))


def images(*shape: int) -> torch.Tensor:
    return torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))


BERT = "network.bert.encoder.layer.{}.intermediate.intermediate_act_fn"
CASES: dict[str, tuple[Build, Any, str, list[tuple[str, int, int]], list[str]]] = {
    "bert": (
        hugging("bert", "BertForSequenceClassification"),
        text(),
        "gelu",
        [(BERT.format(each), 32, -1) for each in range(2)],
        ["network.bert.pooler.activation"],
    ),
    "gpt2": (
        hugging("gpt2", "GPT2LMHeadModel"),
        text(),
        "gelu-tanh",
        [(f"network.transformer.h.{each}.mlp.act", 64, -1) for each in range(2)],
        [],
    ),
    "distilbert, whose head has a ReLU": (
        hugging("distilbert", "DistilBertForSequenceClassification"),
        text(),
        "gelu",
        [
            (f"network.distilbert.transformer.layer.{each}.ffn.activation", 32, -1)
            for each in range(2)
        ],
        ["network.activation_0"],
    ),
    "functions": (Convolutional, images(3, 6, 6), "gelu-tanh", [("activation_0", 4, 1)], []),
    "formulas": (ByHand, images(6), "gelu", [("formula_0", 8, 1)], []),
    "several kinds": (mixed, images(6), "silu", [("1", 8, 1), ("5", 7, 1)], ["3", "7", "9"]),
    "torch's transformer": (
        encoder,
        images(5, 8),
        "gelu",
        [(f"0.layers.{i}.activation", 16, -1) for i in range(2)],
        [],
    ),
}


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
        assert sorted(each.path for each in built_with(network)) == sorted(
            path for path, *_ in places
        )
        assert sorted(staying(network)) == sorted(stay)
    check_executes(swapped(Made(same)).module, "relu", (example,))
    hardening = harden(same, start=0, in_place=False)
    assert set(hardening.hardness) == {path for path, *_ in places}
    hardening(1.0)
    check_executes(hardening.swap(), "relu", (example,))


def test_a_lambda_per_channel_learns_in_the_dimension_of_the_channels() -> None:
    example = images(3, 8, 8)
    for build, dimension in ((hugging("vit", "ViTForImageClassification"), -1), (Convolutional, 1)):
        module = adapted(build(), example)
        network = OwnActivations.of(module, example).replaced(module, LambdaGELU)
        network.train()(example).sum().backward()
        found = [each for each in network.modules() if isinstance(each, Hardenable)]
        assert {each.dimension for each in found} == {dimension}
        assert all(each.s.grad is not None and bool(each.s.grad.abs().sum() > 0) for each in found)


def test_of_several_activations_the_chosen_one_is_replaced() -> None:
    network = nn.Sequential(
        nn.Linear(6, 4), nn.SiLU(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.SiLU()
    )
    own = OwnActivations.of(network, images(6), chosen="gelu")
    assert (own.name, [each.path for each in own.places], own.stay) == ("gelu", ["3"], ("1", "5"))
    relu = swapped(Made(own.replaced(network, maker("gelu")))).module
    assert [type(each).__name__ for each in relu if not isinstance(each, nn.Linear)] == [
        "SiLU",
        "ReLU",
        "SiLU",
    ]
    check_executes(relu, "relu", (images(6),))
    with pytest.raises(
        OwnError, match="activation: 'mish', but Sequential executes gelu x 1 and silu x 2"
    ):
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

    module = Written(
        dropping, first=nn.Linear(6, 8), act=nn.ELU(inplace=True), last=nn.Linear(8, 3)
    ).eval()
    example = images(6)
    network = OwnActivations.of(module, example).replaced(module, maker("relu"))
    with torch.no_grad():
        assert torch.equal(network(example), module.last(module.first(example).relu()))


KNOWN = "; those known are listed by `evalsuite activations`: write it as one of these, such as nn.GELU()"


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)),
            f"Sequential executes no activation that ReLU could replace (tanh at 1){KNOWN}",
        ),
        (
            nn.Linear(6, 2),
            f"Linear executes no activation that ReLU could replace (none at all){KNOWN}",
        ),
        (
            nn.Sequential(nn.Linear(6, 4), Written(lambda _, x: x * torch.sigmoid(3 * x))),
            f"Sequential executes no activation that ReLU could replace (silu at hardness 3 at 1){KNOWN}",
        ),
        (
            ByHand(drops=True),
            "ByHand writes activations by hand beside dropout, whose mode a traced network cannot change; write them as"
            " modules such as nn.GELU()",
        ),
    ],
)
def test_what_has_nothing_to_replace_is_said_in_one_line(module: nn.Module, said: str) -> None:
    with pytest.raises(OwnError) as error:
        OwnActivations.of(module, images(6))
    assert str(error.value) == f"the model: {said}"


@pytest.mark.parametrize("draw", [nn.functional.dropout, lambda x: x * random.random()])
def test_a_model_that_is_random_in_evaluation_mode_is_told_so(
    draw: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    module = nn.Sequential(
        nn.Linear(6, 4), nn.GELU(), Written(lambda _, x: draw(x)), nn.Linear(4, 2)
    )
    with pytest.raises(OwnError, match=r"its outputs change by .* from one run on a batch"):
        OwnActivations.of(module, images(6))


def test_another_architecture_is_refused() -> None:
    own = OwnActivations.of(mixed(), images(6))
    with pytest.raises(
        OwnError, match=r"^the model: it has no activation at 1, where it had one before: let what"
    ):
        own.replaced(nn.Linear(6, 3), maker("relu"))


def test_a_message_names_the_users_class() -> None:
    module = adapted(hugging("bert", "BertForSequenceClassification", hidden_act="relu")(), text())
    with pytest.raises(
        OwnError,
        match=r"^the model: BertForSequenceClassification executes ReLU already \(relu at n",
    ):
        OwnActivations.of(module, text())


# ruff: noqa: E501 (a table of messages reads better unbroken)


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(5, 4, generator=generator), torch.rand(5, 3, generator=generator)


def test_a_plain_module_stays_itself() -> None:
    module = Convolutional().train()
    assert adapted(module, torch.rand(2, 3, 8, 8)) is module
    assert module.training
    assert int(module.norm.num_batches_tracked) == 0  # looking at it changes nothing


def test_a_mapping_becomes_named_arguments_and_logits_are_taken() -> None:
    bert = hugging("bert", "BertForSequenceClassification")().eval()
    module = adapted(bert, text())
    assert own_network(module) is bert
    assert {f"network.{key}" for key in bert.state_dict()} == set(module.state_dict())
    with torch.no_grad():
        assert torch.equal(module(text()), bert(**text()).logits)
        masked = adapted(bert, text(), inputs=("input_ids",))
        assert torch.equal(masked(text()), bert(input_ids=text()["input_ids"]).logits)
        assert torch.equal(copy.deepcopy(module)(text()), module(text()))


def test_a_tuple_becomes_positional_arguments_and_an_index_picks() -> None:
    network = TwoInputs().eval()
    left, right = pair()
    module = adapted(network, (left, right), output="0")
    assert torch.equal(module((left, right)), network(left, right)[0])
    named = adapted(network, (right, left), inputs=("right", "left"), output="1")
    assert torch.equal(named((right, left)), network(left, right)[1])
    assert torch.equal(fx.symbolic_trace(module)((left, right)), network(left, right)[0])


def test_an_embedding_is_the_mean_over_the_mask() -> None:
    bert = hugging("bert", "BertModel")().eval()
    module = adapted(bert, text(), task=Embedding())
    with torch.no_grad():
        states, found = bert(**text()).last_hidden_state, module(text())
        # the second text has five tokens
        assert torch.allclose(found[1], states[1, :5].mean(0), atol=1e-6)
        assert torch.allclose(found[0], states[0].mean(0), atol=1e-6)
        pooled = adapted(bert, text(), output="pooler_output", task=Embedding())
        assert torch.equal(pooled(text()), bert(**text()).pooler_output)


@pytest.mark.parametrize("several", ["mapping", "tuple"])
def test_several_inputs_go_to_onnx_under_their_names(several: str, tmp_path: Path) -> None:
    left, right = pair()
    inputs = {"left": left, "right": right} if several == "mapping" else (left, right)
    module = adapted(TwoInputs().eval(), inputs, output="0")
    export_onnx(module, (4,), tmp_path / "net.onnx", example=inputs)
    session = open_onnx(tmp_path / "net.onnx")
    assert [each.name for each in session.get_inputs()] == (
        ["left", "right"] if several == "mapping" else ["input_0", "input_1"]
    )
    # five samples, traced with two
    assert torch.allclose(run_onnx(session, inputs), module(inputs), atol=1e-6)
    other = {"right": right, "left": left} if several == "mapping" else inputs
    # by name, not by place
    assert torch.allclose(run_onnx(session, other), module(inputs), atol=1e-6)


def test_lambda_is_folded_inside_an_adapter() -> None:
    network = TwoInputs().eval()
    network.act = LambdaGELU(hardness=3.0)
    module = adapted(network, pair(), output="0")
    folded = fold_hardness(module, (pair(),))
    # a sum of two layers: no place to go
    assert [each.traits.name for each in census(folded)] == ["lambda-gelu"]
    sequential = nn.Sequential(nn.Linear(4, 8), LambdaGELU(hardness=3.0), nn.Linear(8, 2)).eval()
    named = adapted(sequential, {"input": pair()[0]})
    folded = fold_hardness(named, ({"input": pair()[0]},))
    assert [each.traits.name for each in census(folded)] == ["gelu"]
    assert torch.allclose(folded({"input": pair()[0]}), sequential(pair()[0]), atol=1e-6)


class Raising(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such\nshape")


def test_what_cannot_be_adapted_is_said_in_one_line() -> None:
    bert = hugging("bert", "BertModel")()
    file, here = Path(__file__), Path.cwd()
    line = inspect.getsourcelines(Raising.forward)[1] + 1
    raising = f"{file.relative_to(here) if file.is_relative_to(here) else file}:{line}"
    listing = Written(lambda _, x: x.flatten().tolist())
    cases = [
        (
            TwoInputs(),
            pair(),
            (),
            "",
            "the model: it returns a tuple, not a tensor; choose one by `output:` (0 (5, 2), 1 (5, 8))",
        ),
        (
            TwoInputs(),
            pair(),
            (),
            "2",
            "output: the model returns a tuple without '2'; choose one by `output:` (0 (5, 2), 1 (5, 8))",
        ),
        (
            TwoInputs(),
            pair(),
            ("left",),
            "",
            "inputs: 1 names (left) for a batch of 2; name each part",
        ),
        (
            TwoInputs(),
            pair()[0],
            (),
            "",
            "the model: TwoInputs.forward takes left, right, but the data give 1 positional (missing a required argument: 'right'); choose by `inputs: [...]`, or name the data's fields as forward does",
        ),
        (
            bert,
            text(),
            (),
            "",
            "the model: it returns a BaseModelOutputWithPoolingAndCrossAttentions, not a tensor; choose one by `output:` (last_hidden_state (4, 8, 16), pooler_output (4, 16), mean)",
        ),
        (
            bert,
            text(),
            (),
            "logits",
            "output: the model returns a BaseModelOutputWithPoolingAndCrossAttentions without 'logits'; choose one by `output:` (last_hidden_state (4, 8, 16), pooler_output (4, 16), mean)",
        ),
        (
            bert,
            text(),
            ("input_idz",),
            "",
            "inputs: the data have no 'input_idz'; did you mean 'input_ids'?",
        ),
        (
            nn.Linear(4, 2),
            {"x": pair()[0]},
            (),
            "",
            "the model: Linear.forward takes input, but the data give x (missing a required argument: 'input'); choose by `inputs: [...]`, or name the data's fields as forward does",
        ),
        (
            Raising(),
            torch.rand(2, 3),
            (),
            "",
            f"{raising}: the model: Raising.forward raises RuntimeError on a batch of the data ([2, 3]): no such shape",
        ),
        (
            listing,
            torch.rand(2, 3),
            (),
            "",
            "the model: it returns a list, not a tensor; choose one by `output:`, an index below 6",
        ),
        (
            listing,
            torch.rand(2, 3),
            (),
            "1",
            "the model: its output '1' is a float, not a tensor; choose one by `output:`, an index below 6",
        ),
    ]
    for module, example, inputs, output, said in cases:
        with pytest.raises(OwnError) as error:
            adapted(module, example, inputs, output)
        assert str(error.value) == said
