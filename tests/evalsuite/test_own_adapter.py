"""The adapter: users' models with several inputs and other outputs than a tensor."""

# ruff: noqa: E501 (a table of messages reads better unbroken)
from __future__ import annotations

import copy
import inspect
from pathlib import Path

import pytest
import torch
from own_networks import Convolutional, TwoInputs, config, text
from torch import fx, nn
from written import Written

from evalsuite import Embedding, LambdaGELU, census, export_onnx, fold_hardness, open_onnx, run_onnx
from evalsuite.own.adapter import adapted, own_network
from evalsuite.references import OwnError

transformers = pytest.importorskip("transformers")


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(5, 4, generator=generator), torch.rand(5, 3, generator=generator)


def test_a_plain_module_stays_itself() -> None:
    module = Convolutional().train()
    assert adapted(module, torch.rand(2, 3, 8, 8)) is module
    assert module.training
    assert int(module.norm.num_batches_tracked) == 0  # looking at it changes nothing


def test_a_mapping_becomes_named_arguments_and_logits_are_taken() -> None:
    bert = transformers.BertForSequenceClassification(config("bert")).eval()
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
    bert = transformers.BertModel(config("bert")).eval()
    module = adapted(bert, text(), task=Embedding())
    with torch.no_grad():
        states, found = bert(**text()).last_hidden_state, module(text())
        assert torch.allclose(found[1], states[1, :5].mean(0), atol=1e-6)  # the second text has five tokens
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
    assert torch.allclose(run_onnx(session, inputs), module(inputs), atol=1e-6)  # five samples, traced with two
    other = {"right": right, "left": left} if several == "mapping" else inputs
    assert torch.allclose(run_onnx(session, other), module(inputs), atol=1e-6)  # by name, not by place


def test_lambda_is_folded_inside_an_adapter() -> None:
    network = TwoInputs().eval()
    network.act = LambdaGELU(hardness=3.0)
    module = adapted(network, pair(), output="0")
    folded = fold_hardness(module, (pair(),))
    assert [each.traits.name for each in census(folded)] == ["lambda-gelu"]  # a sum of two layers: no place to go
    sequential = nn.Sequential(nn.Linear(4, 8), LambdaGELU(hardness=3.0), nn.Linear(8, 2)).eval()
    named = adapted(sequential, {"input": pair()[0]})
    folded = fold_hardness(named, ({"input": pair()[0]},))
    assert [each.traits.name for each in census(folded)] == ["gelu"]
    assert torch.allclose(folded({"input": pair()[0]}), sequential(pair()[0]), atol=1e-6)


class Raising(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such\nshape")


def test_what_cannot_be_adapted_is_said_in_one_line() -> None:
    bert = transformers.BertModel(config("bert"))
    file, here = Path(__file__), Path.cwd()
    line = inspect.getsourcelines(Raising.forward)[1] + 1
    raising = f"{file.relative_to(here) if file.is_relative_to(here) else file}:{line}"
    listing = Written(lambda _, x: x.flatten().tolist())
    cases = [
        (TwoInputs(), pair(), (), "", "the model: it returns a tuple, not a tensor; choose one by `output:`, an index below 2"),
        (TwoInputs(), pair(), (), "2", "output: the model returns a tuple without '2'; choose one by `output:`, an index below 2"),
        (TwoInputs(), pair(), ("left",), "", "inputs: 1 names (left) for a batch of 2; name each part"),
        (TwoInputs(), pair()[0], (), "", "the model: TwoInputs.forward takes left, right, but the data give 1 positional (missing a required argument: 'right'); choose by `inputs: [...]`, or name the data's fields as forward does"),
        (bert, text(), (), "", "the model: it returns a BaseModelOutputWithPoolingAndCrossAttentions, not a tensor; choose one by `output:` (last_hidden_state, pooler_output, mean)"),
        (bert, text(), (), "logits", "output: the model returns a BaseModelOutputWithPoolingAndCrossAttentions without 'logits'; choose one by `output:` (last_hidden_state, pooler_output, mean)"),
        (bert, text(), ("input_idz",), "", "inputs: the data have no 'input_idz'; did you mean 'input_ids'?"),
        (nn.Linear(4, 2), {"x": pair()[0]}, (), "", "the model: Linear.forward takes input, but the data give x (missing a required argument: 'input'); choose by `inputs: [...]`, or name the data's fields as forward does"),
        (Raising(), torch.rand(2, 3), (), "", f"{raising}: the model: Raising.forward raises RuntimeError on a batch of the data ([2, 3]): no such shape"),
        (listing, torch.rand(2, 3), (), "", "the model: it returns a list, not a tensor; choose one by `output:`, an index below 6"),
        (listing, torch.rand(2, 3), (), "1", "the model: its output '1' is a float, not a tensor; choose one by `output:`, an index below 6"),
    ]  # fmt: skip
    for module, example, inputs, output, said in cases:
        with pytest.raises(OwnError) as error:
            adapted(module, example, inputs, output)
        assert str(error.value) == said
