"""Networks of others, tokens and several inputs: quantized as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from measured import values
from torch import nn
from written import Written

from evalsuite import Bench, Data, Network, Split, Unsupported, open_onnx
from evalsuite.own.adapter import adapted
from evalsuite.samples import Several
from evalsuite.tasks import LanguageModel
from intnet.layers import Linear
from opgraph import Inputs, run_onnx
from pipelines.quantize import Quantize
from pipelines.quantize.integer_agreement import compare
from pipelines.quantize.lowering import lower
from pipelines.quantize.placement import Bits, Scheme
from pipelines.quantize.tracing import Add, at_a_time, trace
from pipelines.quantize.treatment import Treatment, treat

pytestmark = pytest.mark.filterwarnings("ignore:Computing zero point of output accumulator")
_CLASSES, _SIZES = 3, {"num_hidden_layers": 1, "num_attention_heads": 2}
_WIDTHS = {"hidden_size": 16, "intermediate_size": 32}


def images(count: int) -> torch.Tensor:
    return torch.rand(count, 3, 8, 8)


def texts(count: int) -> dict[str, torch.Tensor]:
    """The later of eight positions are padding, for some."""
    lengths = torch.randint(3, 9, (count, 1))
    return {
        "input_ids": torch.randint(1, 50, (count, 8)),
        "attention_mask": (torch.arange(8) < lengths).long(),
    }


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(image_size=8, patch_size=4, num_labels=_CLASSES, **_SIZES, **_WIDTHS)
    )


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, max_position_embeddings=16, num_labels=_CLASSES, **_SIZES, **_WIDTHS
    )
    return BertForSequenceClassification(config)


def spread(module: nn.Module) -> nn.Module:
    """With weights that make logits differ more than those that are drawn."""
    for each in module.modules():
        if isinstance(each, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(each.weight, std=0.3)
    return module.eval()


def subject(module: nn.Module, parts: list[Any], folder: Path) -> tuple[Network, Bench]:
    """The untrained network, and data whose targets are its own classes; folder is its bench's."""
    several = isinstance(parts[0], dict)
    example: Inputs = (
        {name: each[:4] for name, each in parts[0].items()} if several else parts[0][:4]
    )
    own = adapted(module, example)
    with torch.no_grad():
        splits = [Split(Several(each) if several else each, own(each).argmax(-1)) for each in parts]
    data = Data(
        *splits,
        domain=(0.0, 1.0),
        classes=_CLASSES,
        fingerprint="",
        vocabulary=50 if several else None,
    )
    given = example if several else None
    network = Network(
        "made", own, data.input_shape, _CLASSES, vocabulary=data.vocabulary, given=given
    )
    return network, Bench(data, 0, folder, 60.0, lambda *_, **__: None)


@pytest.mark.slow
def test_a_vision_transformer_of_hugging_face_is_quantized(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, bench = subject(spread(vit()), [images(each) for each in (4, 40, 4, 32)], tmp_path)
    outcome = Quantize().run(network, bench)
    found = values(outcome)
    assert found["accuracy"] >= 0.9
    assert found["runtime_agreement"] >= 0.95
    assert found["integer_accuracy"] >= 0.9
    assert (found["integer_islands"], found["integer_onnx_agreement"]) == (0, 1.0)
    errors = {
        each.setting["layer"]: each.value
        for each in outcome.metrics
        if "layer" in each.setting and each.name == "integer_part_error"
    }
    assert any("layernorm_after" in name for name in errors)
    assert any("attention_reshape" in name for name in errors)
    assert max(errors.values()) == found["integer_part_error"] <= 3
    assert outcome.network is not None
    assert outcome.network.deployed == outcome.artefacts["quantized"]


@pytest.mark.slow
def test_a_bert_with_a_mask_is_quantized_and_its_integer_form_has_a_reason(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, bench = subject(spread(bert()), [texts(each) for each in (4, 40, 4, 32)], tmp_path)
    outcome = Quantize(qonnx=True).run(network, bench)
    found = values(outcome)
    assert found["accuracy"] >= 0.9
    assert found["runtime_agreement"] >= 0.95
    reasons = {each.name: each.reason for each in outcome.metrics if each.value is None}
    assert "is on no grid: several inputs" in reasons["integer_accuracy"]
    assert "one input of real numbers" in reasons["qonnx"]


@pytest.mark.slow
def test_a_gpt_is_quantized_and_each_position_counts(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_inner": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
    module = GPT2LMHeadModel(GPT2Config(vocab_size=50, bos_token_id=0, eos_token_id=0, **sizes))
    tokens = [torch.randint(50, (each, 8)) for each in (4, 40, 4, 32)]
    own = adapted(spread(module), tokens[0])
    with torch.no_grad():
        splits = [Split(each, own(each).argmax(-1), LanguageModel()) for each in tokens]
    bench = Bench(Data(*splits, (0.0, 1.0), 50, "", 50), 0, tmp_path, 60.0, lambda *_, **__: None)
    outcome = Quantize().run(Network("made", own, (8,), 50, vocabulary=50), bench)
    found = values(outcome)
    assert found["runtime_bits_per_token"] == pytest.approx(found["bits_per_token"], abs=0.01)
    assert abs(found["bits_per_token_increase"]) < 0.1
    session = open_onnx(outcome.artefacts["quantized"])
    with torch.no_grad():
        same = (
            (run_onnx(session, tokens[3]).argmax(-1) == own(tokens[3]).argmax(-1))
            .double()
            .mean()
            .item()
        )
    assert same >= 0.9
    assert found["runtime_agreement"] >= 0.95
    assert 0.9 <= found["integer_agreement"] <= 1
    assert all(
        (found[name] * 32 * 8) % 1 == pytest.approx(0, abs=1e-9)
        for name in ("runtime_agreement", "integer_agreement")
    )
    assert (found["integer_islands"], found["integer_onnx_agreement"]) == (0, 1.0)
    assert found["integer_bits_per_token"] == pytest.approx(found["bits_per_token"], abs=0.05)
    assert found["integer_part_error"] <= 3
    session = open_onnx(outcome.artefacts["integer"])
    assert session.get_inputs()[0].type == "tensor(uint8)"
    assert session.run(None, {"input": tokens[3].numpy().astype("uint8")})[0].shape == (32, 8, 50)


def _classifier_of_tokens() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(50, 8), nn.Flatten(), nn.Linear(64, 16), nn.GELU(), nn.Linear(16, _CLASSES)
    )


def test_a_classifier_of_tokens_is_quantized(tmp_path: Path) -> None:
    torch.manual_seed(0)
    parts = [torch.randint(50, (each, 8)) for each in (4, 40, 4, 200)]
    own = spread(_classifier_of_tokens())
    with torch.no_grad():
        splits = [Split(each, own(each).argmax(-1)) for each in parts]
    bench = Bench(
        Data(*splits, (0.0, 49.0), _CLASSES, "", 50), 0, tmp_path, 60.0, lambda *_, **__: None
    )
    outcome = Quantize().run(Network("made", own, (8,), _CLASSES, vocabulary=50), bench)
    found = values(outcome)
    assert (found["integer_islands"], found["integer_onnx_agreement"]) == (0, 1.0)
    assert found["integer_accuracy"] >= 0.9


def test_differences_behind_tokens_are_found() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(50, (40, 8))
    traced = trace(spread(_classifier_of_tokens()), (8,), tokens)
    quantized = treat(traced, Scheme(Bits(8, 8)), tokens, Treatment()).network
    network = lower(quantized, (8,), tokens=50)
    *before, last, rounding = network.operations
    assert isinstance(last, Linear)
    off = replace(network, operations=(*before, replace(last, bias=last.bias + 10_000), rounding))
    for precision in (torch.float32, torch.float64):
        found = compare(quantized, off, tokens, precision=precision)
        assert found.differing > 0
        assert found.unexplained > 0


def test_a_row_of_classes_for_each_position_needs_no_text(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = spread(
        nn.Sequential(
            nn.Conv1d(2, 8, 3, padding=1),
            nn.GELU(),
            Written(lambda _, x: x.transpose(1, 2)),
            nn.Linear(8, _CLASSES),
        )
    )
    with torch.no_grad():
        splits = [
            Split(each, module(each).argmax(-1))
            for each in (torch.rand(n, 2, 6) for n in (4, 40, 4, 32))
        ]
    bench = Bench(Data(*splits, (0.0, 1.0), _CLASSES, ""), 0, tmp_path, 60.0, lambda *_, **__: None)
    found = values(Quantize().run(Network("made", module, (2, 6), _CLASSES), bench))
    assert found["accuracy"] >= 0.9
    assert (found["runtime_agreement"] * 32 * 6) % 1 == pytest.approx(0, abs=1e-9)
    with pytest.raises(Unsupported, match=r"logits of shape \(1, 2, 1, 6\) are not measured"):
        Quantize().run(Network("made", nn.Unflatten(1, (2, 1)), (2, 6), _CLASSES), bench)


def test_few_samples_at_a_time_where_a_network_makes_large_tensors() -> None:
    wide = trace(nn.Sequential(nn.Linear(4, 2**20), nn.ReLU(), nn.Linear(2**20, 1)), (4,))
    assert at_a_time(wide, 500) == 127  # of 2^28 values
    assert at_a_time(trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), (4,)), 500) == 500


@pytest.mark.parametrize("tokens", [False, True], ids=["rows", "attention"])
def test_layers_are_given_samples_and_positions_apart(tokens: bool) -> None:
    def flattening(net: Written, x: torch.Tensor) -> torch.Tensor:
        made = net.up(x.reshape(-1, 6)).reshape(-1, 5, 8).relu()
        made = net.down(made.reshape(-1, 8)).reshape(-1, 5, 6) + x
        return net.head(made.reshape(-1, 6)).reshape(-1, 15)

    def attending(net: Written, given: torch.Tensor) -> torch.Tensor:
        x = net.table(given)
        return net.head(net.attention(x, x, x)[0])

    torch.manual_seed(0)
    if tokens:
        layers = {
            "table": nn.Embedding(20, 8),
            "attention": nn.MultiheadAttention(8, 2, batch_first=True),
        }
        module, inputs = (
            Written(attending, **layers, head=nn.Linear(8, 3)),
            torch.randint(20, (4, 5)),
        )
        wanted = {
            "attention_linear": (1, 5, 24),
            "attention_out_proj": (1, 5, 8),
            "head": (1, 5, 3),
        }
    else:
        linear = {"up": nn.Linear(6, 8), "down": nn.Linear(8, 6), "head": nn.Linear(6, 3)}
        module, inputs = Written(flattening, **linear), torch.randn(4, 5, 6)
        # What makes logits of all places is no tensor of places any more.
        wanted = {"up": (1, 5, 8), "down": (1, 5, 6), "head": (5, 3)}
    graph = trace(module.eval(), tuple(inputs.shape[1:]), inputs)
    torch.testing.assert_close(graph(inputs), module(inputs))
    linear_nodes = (
        node for node in graph.graph.nodes if node.op == "call_module" and node.target in wanted
    )
    assert {str(node.target): node.meta["shape"] for node in linear_nodes} == wanted


def test_a_forward_that_asks_for_shapes_has_its_functions_as_layers() -> None:
    def checked(net: Written, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != 3 or len(x) < 0:
            raise ValueError("three channels")
        x = net.norm(net.stem(x))
        x = x + 0.5 * x * (1 + torch.erf(x / 2**0.5))
        return net.head(x.mean((2, 3)))

    torch.manual_seed(0)
    layers = {
        "stem": nn.Conv2d(3, 8, 3, padding=1),
        "norm": nn.BatchNorm2d(8),
        "head": nn.Linear(8, 3),
    }
    module, inputs = Written(checked, **layers).eval(), images(5)
    graph = trace(module, (3, 8, 8))
    torch.testing.assert_close(graph(inputs), module(inputs), rtol=1e-4, atol=1e-5)
    found = [
        type(graph.get_submodule(str(node.target))).__name__
        for node in graph.graph.nodes
        if node.op == "call_module"
    ]
    assert found == ["Conv2d", "GELU", "Add", "AdaptiveAvgPool2d", "Reshape", "Linear"]
    assert Add in {type(each) for each in graph.modules()}
