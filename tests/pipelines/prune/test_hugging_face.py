"""Hugging Face models from local configurations: GPT-2's transposed layers, feed-forward units
and whole heads.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from written import Written, bench_of

from evalsuite import Network, Split, Unsupported
from evalsuite.samples import Several
from pipelines.prune import Prune
from pipelines.prune.attention import find_attentions, unknown_attentions
from pipelines.prune.channels import prune
from pipelines.prune.conv1d import conv1d_to_linear
from pipelines.prune.equality import equality_error
from pipelines.prune.heads import prune_heads
from pipelines.prune.narrowing import narrow, probe_of
from pipelines.prune.selection import Probe, Pruned, Selection
from pipelines.prune.size import parameters_of

transformers = pytest.importorskip("transformers")
Conv1D = transformers.pytorch_utils.Conv1D

WIDTH, HIDDEN, HEADS, SIZE, VOCABULARY = 32, 40, 4, 8, 50
SHAPE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
}
IMPLEMENTATIONS = ("eager", "sdpa")
Run = Callable[[nn.Module], torch.Tensor]


def tokens() -> dict[str, torch.Tensor]:
    """Three sequences, the second padded."""
    indices = torch.randint(0, VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(indices)
    mask[1, 4:] = 0
    return {"input_ids": indices, "attention_mask": mask}


def pixels() -> torch.Tensor:
    return torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def text(module: nn.Module) -> torch.Tensor:
    return module(**tokens()).logits  # type: ignore[no-any-return]


def causal(module: nn.Module) -> torch.Tensor:
    """Without the cache of keys and values, which torch-pruning cannot follow: it starts without
    elements.
    """
    return module(**tokens(), use_cache=False).logits  # type: ignore[no-any-return]


def images(module: nn.Module) -> torch.Tensor:
    return module(pixel_values=pixels()).logits  # type: ignore[no-any-return]


def embeddings(module: nn.Module) -> torch.Tensor:
    return module(pixel_values=pixels()).pooler_output  # type: ignore[no-any-return]


TEXT, PICTURES = (
    {"vocab_size": VOCABULARY, "max_position_embeddings": 8},
    {"image_size": 16, "patch_size": 4},
)
# Configuration, its options, model and how it is run.
MODELS: dict[str, tuple[str, dict[str, int], str, Run]] = {
    "bert": (
        "BertConfig",
        {**SHAPE, **TEXT, "num_labels": 3},
        "BertForSequenceClassification",
        text,
    ),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_positions": 16,
            "n_embd": WIDTH,
            "n_inner": HIDDEN,
            "n_layer": 2,
            "n_head": HEADS,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        "GPT2LMHeadModel",
        causal,
    ),
    "vit": (
        "ViTConfig",
        {**SHAPE, **PICTURES, "num_labels": 3},
        "ViTForImageClassification",
        images,
    ),
}
MORE: dict[str, tuple[str, dict[str, int], str, Run]] = {
    "distilbert": (
        "DistilBertConfig",
        {**TEXT, "dim": WIDTH, "n_layers": 2, "n_heads": HEADS, "hidden_dim": HIDDEN},
        "DistilBertForSequenceClassification",
        text,
    ),
    "clip": ("CLIPVisionConfig", {**SHAPE, **PICTURES}, "CLIPVisionModel", embeddings),
    "llama": (
        "LlamaConfig",
        {**SHAPE, "vocab_size": VOCABULARY, "num_key_value_heads": HEADS},
        "LlamaForCausalLM",
        causal,
    ),
    "masked": ("BertConfig", {**SHAPE, **TEXT}, "BertForMaskedLM", text),
}
CLASSIFIERS = {"bert": "classifier", "gpt2": "lm_head", "vit": "classifier"}


def new(name: str, implementation: str = "sdpa", **more: int) -> nn.Module:
    config, options, model, _ = (MODELS | MORE)[name]
    given = getattr(transformers, config)(**{**options, **more}, attn_implementation=implementation)
    return getattr(transformers, model)(given)  # type: ignore[no-any-return]


@cache
def made(name: str, implementation: str = "sdpa") -> tuple[nn.Module, Probe]:
    """In training mode, with weights large enough that heads and biases matter; GPT-2 is
    converted.
    """
    torch.manual_seed(0)
    module, run = new(name, implementation).train(), (MODELS | MORE)[name][3]
    with torch.no_grad():
        for each in module.parameters():
            each += 0.2 * torch.randn_like(each)
    return conv1d_to_linear(module), Probe(run, lambda each: losses(run, each))


def losses(run: Run, module: nn.Module) -> Iterator[torch.Tensor]:
    yield run(module).flatten(1).square().mean(1)


def both(name: str, selection: Selection, implementation: str = "sdpa") -> tuple[nn.Module, Pruned]:
    """The model, and it without feed-forward units and heads."""
    module, probe = made(name, implementation)
    heads = prune_heads(module, probe, selection)
    units = prune(heads.module, probe, selection)
    return module, Pruned(units.module, heads.removed | units.removed, heads.notes + units.notes)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_units_and_heads(name: str, implementation: str) -> None:
    module, pruned = both(name, Selection(0.5, head_sparsity=0.5), implementation)
    assert equality_error(module, pruned, MODELS[name][3]) <= 1e-6
    # In each of 2 layers: 20 units with a row, a bias and a column; 2 heads with rows, biases and
    # columns.
    fewer = 2 * (20 * (2 * WIDTH + 1) + 2 * SIZE * (4 * WIDTH + 3))
    assert parameters_of(pruned.module) == parameters_of(module) - fewer
    assert [each.heads for each in find_attentions(pruned.module)] == [2, 2]
    assert [each.head_size for each in find_attentions(pruned.module)] == [SIZE, SIZE]
    assert not pruned.module.training
    assert module.training
    # The classifier stays as it is, and tied.
    path = CLASSIFIERS[name]
    assert torch.equal(pruned.module.get_submodule(path).weight, module.get_submodule(path).weight)
    assert not any(each.startswith(path) for each in pruned.removed)
    if name == "gpt2":
        assert pruned.module.lm_head.weight is pruned.module.transformer.wte.weight


@pytest.mark.parametrize("importance", ["taylor", "activation"])
@pytest.mark.parametrize("name", ["bert", "vit", "masked"])
def test_units_alone(name: str, importance: str) -> None:
    module, probe = made(name)
    pruned = prune(module, probe, Selection(0.5, importance))
    assert equality_error(module, pruned, probe.outputs) <= 1e-6
    # The residual stream and the heads are as they were.
    assert len(pruned.removed) == 2
    assert all(path.endswith(("intermediate.dense", "mlp.fc1")) for path in pruned.removed)
    assert parameters_of(module) - parameters_of(pruned.module) == 2 * 20 * (2 * WIDTH + 1)
    if name == "masked":
        assert "LayerNorm) mixes them" in pruned.notes[0]
        assert (
            pruned.module.cls.predictions.decoder.weight
            is pruned.module.bert.embeddings.word_embeddings.weight
        )


@pytest.mark.parametrize(
    ("name", "implementation", "selection", "left"),
    [
        *(
            (name, "sdpa", Selection(0, importance, scope="global", head_sparsity=0.5), 4)
            for name in MODELS
            for importance in ("taylor", "hessian", "activation", "random")
        ),
        *(
            (name, "sdpa", Selection(0, head_sparsity=gone / HEADS), 2 * (HEADS - gone))
            for name in MODELS
            for gone in range(1, HEADS)
        ),
        *(
            (name, implementation, Selection(0, "taylor", head_sparsity=0.25), 6)
            for name in MORE
            for implementation in IMPLEMENTATIONS
        ),
    ],
)
def test_heads_alone(name: str, implementation: str, selection: Selection, left: int) -> None:
    module, probe = made(name, implementation)
    pruned = prune_heads(module, probe, selection)
    assert equality_error(module, pruned, probe.outputs) <= 1e-6
    heads = [each.heads for each in find_attentions(pruned.module)]
    assert sum(heads) == left
    assert selection.scope == "global" or heads[0] == heads[1]


def test_gpt2_still_generates() -> None:
    """With the cache of keys and values, which holds fewer heads now, as without."""
    _, pruned = both("gpt2", Selection(0.5, head_sparsity=0.25))
    attention = pruned.module.transformer.h[1].attn
    assert (attention.num_heads, attention.head_dim, attention.split_size) == (3, SIZE, 3 * SIZE)
    assert attention.scaling == SIZE**-0.5
    start = torch.tensor([[3, 1, 4]])
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    cached = pruned.module.generate(start, use_cache=True, **options)
    assert cached.shape == (1, 9)
    assert torch.equal(cached, pruned.module.generate(start, use_cache=False, **options))


def test_gpt2_unconverted_says_what_to_do() -> None:
    module = new("gpt2")
    with pytest.raises(
        Unsupported,
        match=r"h\.0\.attn: c_attn is a Conv1D, .*convert it with conv1d_to_linear first",
    ):
        prune_heads(module, Probe(causal), Selection(0, head_sparsity=0.5))
    with pytest.raises(
        Unsupported,
        match=r"transformer\.h\.0.* Conv1D, not Linear; convert .*conv1d_to_linear first",
    ):
        prune(module, Probe(causal), Selection(0.5))


@pytest.mark.slow
def test_the_stage_converts_gpt2_by_itself(tmp_path: Path) -> None:
    tokens = torch.randint(VOCABULARY, (24, 7), generator=torch.Generator().manual_seed(0))
    part = Split(tokens, tokens)
    bench = bench_of(part, VOCABULARY, tmp_path, vocabulary=VOCABULARY)
    module = Written(
        lambda net, x: net.model(input_ids=x, use_cache=False).logits, model=new("gpt2")
    ).eval()
    subject = Network("gpt2", module, (7,), VOCABULARY, vocabulary=VOCABULARY)
    found = {
        each.name: each.value for each in Prune(fine_tune_epochs=0).run(subject, bench).metrics
    }
    assert found["parameter_fraction"] < 0.9
    assert found["equality_error"] <= 1e-6


def test_attributes_of_bert() -> None:
    _, pruned = both("bert", Selection(0.5, head_sparsity=0.25))
    attention = pruned.module.bert.encoder.layer[1].attention.self
    assert (attention.num_attention_heads, attention.attention_head_size) == (3, SIZE)
    assert (attention.all_head_size, attention.scaling) == (3 * SIZE, SIZE**-0.5)


def test_fewer_key_heads_and_relative_positions_are_refused() -> None:
    grouped = new("llama", num_key_value_heads=2)
    assert find_attentions(grouped) == []
    assert unknown_attentions(grouped)[1].startswith(
        "model.layers.1.self_attn: k_proj makes 16 channels for the 32"
    )
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=8, num_layers=1, num_heads=2
        )
    )
    assert find_attentions(t5) == []
    assert [each.partition(":")[0] for each in unknown_attentions(t5)] == [
        "encoder.block.0.layer.0.SelfAttention",
        "decoder.block.0.layer.0.SelfAttention",
        "decoder.block.0.layer.1.EncDecAttention",
    ]


def test_no_attention_is_left_unknown() -> None:
    for name in MODELS | MORE:
        assert unknown_attentions(made(name)[0]) == []


def test_a_classifier_that_takes_a_mapping_loses_units_and_heads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SHAPE, vocab_size=VOCABULARY, initializer_range=0.5, num_labels=3
    )
    adapter = Written(
        lambda net, inputs: net.model(**inputs).logits,
        model=transformers.BertForSequenceClassification(config),
    )
    part = Split(Several(tokens()), torch.tensor([0, 2, 1]))
    bench = bench_of(part, 3, tmp_path, domain=(0.0, VOCABULARY - 1.0), vocabulary=VOCABULARY)
    options = Prune(0.5, heads=0.5, importance="taylor", fine_tune_epochs=0)
    made = narrow(adapter.eval(), probe_of(bench), bench, options)
    assert (made.channels, made.heads) == (2 * HIDDEN // 2, 2 * HEADS // 2)
    assert made.equality_error < 1e-6
    assert made.module(tokens()).shape == (3, 3)


def conv1d(inputs: int = 3, outputs: int = 5) -> nn.Module:
    layer = Conv1D(outputs, inputs)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


def test_a_language_model_computes_the_same_and_ties_stay() -> None:
    module = new("gpt2").eval().double()
    converted = conv1d_to_linear(module)
    with torch.no_grad():
        assert torch.allclose(causal(converted), causal(module), rtol=0, atol=1e-12)
    assert sum(isinstance(each, Conv1D) for each in module.modules()) == 8
    assert not any(isinstance(each, Conv1D) for each in converted.modules())
    assert converted.transformer.h[0].mlp.c_fc.weight.shape == (HIDDEN, WIDTH)
    assert converted.transformer.h[0].mlp.c_fc.out_features == HIDDEN
    assert converted.lm_head.weight is converted.transformer.wte.weight
    assert converted.lm_head.weight is not module.lm_head.weight
    assert parameters_of(converted) == parameters_of(module)
    assert converted.state_dict().keys() == module.state_dict().keys()


def test_a_layer_and_a_weight_used_twice() -> None:
    layer, other = conv1d(), conv1d()
    other.weight = layer.weight
    module = nn.ModuleDict({"a": layer, "again": layer, "b": other})
    converted = conv1d_to_linear(module)
    assert converted["a"] is converted["again"]
    assert converted["b"] is not converted["a"]
    assert converted["b"].weight is converted["a"].weight
    x = torch.randn(2, 3)
    assert torch.allclose(converted["b"](x), other(x), atol=1e-6)


def test_a_weight_that_another_kind_of_layer_shares() -> None:
    module = nn.ModuleDict({"encode": conv1d(4, 4), "decode": nn.Linear(4, 4)})
    module["decode"].weight = module["encode"].weight
    with pytest.raises(Unsupported, match=r"^encode: a Conv1D whose weight is also decode\.weight"):
        conv1d_to_linear(module)


def test_the_module_itself_and_what_is_frozen() -> None:
    layer = conv1d().train()
    layer.weight.requires_grad_(False)
    state = torch.get_rng_state()
    converted = conv1d_to_linear(layer)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(converted) is nn.Linear
    assert converted.training
    assert not converted.weight.requires_grad
    assert converted.bias.requires_grad
    x = torch.randn(2, 4, 3)
    assert torch.allclose(converted(x), layer(x), atol=1e-6)


def test_the_mode_stays_and_what_is_no_conv1d_is_copied() -> None:
    module = nn.Sequential(conv1d(), nn.Linear(2, 2)).train()
    module[0].eval()
    converted = conv1d_to_linear(module)
    assert [each.training for each in converted.modules()] == [True, False, True]
    assert converted[1] is not module[1]
    assert torch.equal(converted[1].weight, module[1].weight)


@pytest.mark.slow
def test_transformers_is_not_imported_for_it() -> None:
    code = (
        "import sys; from torch import nn; from pipelines.prune.conv1d import conv1d_to_linear; "
        "conv1d_to_linear(nn.Linear(2, 2)); assert 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
