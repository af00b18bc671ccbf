"""The transformers and the text they are trained on."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from evalsuite.activations import census
from evalsuite.plugins import load
from evalsuite.workloads import text
from evalsuite.workloads.text import CONTEXT, corpus, distinct_paragraphs, windows
from evalsuite.workloads.transformer import Attention, LanguageModel, VisionTransformer, feed_forwards

LANGUAGE = ("text-gpt", "text-gpt-geglu")
TRANSFORMERS = ("digits-vit", *LANGUAGE)


def built(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    module: nn.Module = load("workloads", name).target().build(lambda _: nn.GELU())
    return module.eval()


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_the_papers_formula(causal: bool) -> None:
    torch.manual_seed(0)
    attention = Attention(12, 3, causal=causal).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    query, key, value = attention.project_in(x).split(12, dim=-1)
    heads = []
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        scores = torch.einsum("bqd,bkd->bqk", query[..., part], key[..., part]) / math.sqrt(4)
        if causal:
            scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
        heads.append(torch.einsum("bqk,bkd->bqd", scores.softmax(-1), value[..., part]))
    expected = attention.project_out(torch.cat(heads, -1))
    assert torch.allclose(attention(x), expected, atol=1e-12)


def test_widths_and_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="width must be a multiple of heads = 3, got 10"):
        Attention(10, 3, causal=True)
    with pytest.raises(ValueError, match="size must be a multiple of patch = 3, got 8"):
        VisionTransformer(8, 3, 12, 3, [], 10)


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_later_byte_does_not_change_earlier_logits(name: str) -> None:
    model = built(name)
    tokens = torch.randint(256, (2, CONTEXT), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens), model(changed)
        shorter = model(tokens[:, :40])
    assert torch.equal(before[:, :40], after[:, :40])
    assert (before[:, 40:] != after[:, 40:]).any(-1).all()
    assert torch.allclose(shorter, before[:, :40], atol=1e-5)


def test_the_language_model_starts_as_gpt_2_and_knows_nothing() -> None:
    torch.manual_seed(0)
    model = LanguageModel(256, 16, 192, 4, feed_forwards(3, 192, 384, lambda _: nn.GELU()))
    assert model.embedding.weight.std().item() == pytest.approx(0.04, rel=0.05)  # 0.02 sqrt(768 / 192)
    block = model.blocks[0]
    for layer in (block.attention.project_out, block.feed_forward.down):
        assert layer.weight.std().item() == pytest.approx(0.04 / math.sqrt(6), rel=0.05)
    tokens = torch.randint(256, (8, 16))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), torch.randint(256, (8 * 16,)))
    assert loss.item() == pytest.approx(math.log(256), rel=0.1)


@pytest.mark.parametrize(("row", "column", "patch"), [(0, 0, 0), (1, 7, 3), (2, 1, 4), (7, 6, 15)])
def test_a_pixel_moves_only_its_patchs_token(row: int, column: int, patch: int) -> None:
    model = built("digits-vit")
    assert isinstance(model, VisionTransformer)
    image = torch.rand(1, 1, 8, 8)
    changed = image.clone()
    changed[..., row, column] += 0.5
    with torch.no_grad():
        moved = (model.tokens(image) != model.tokens(changed)).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == [patch]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_are_plain_modules(name: str, tmp_path: Path) -> None:
    model = built(name)
    found = census(model)
    assert {each.traits.name for each in found} == {"gelu"}
    assert len(found) == len(model.blocks)
    assert not [module for module in model.modules() if isinstance(module, nn.Dropout)]
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    other = copy.deepcopy(built(name, seed=1))
    other.load_state_dict(load_file(tmp_path / "m.safetensors"))
    data = load("workloads", name).target().data()
    with torch.no_grad():
        assert torch.equal(other(data.test.inputs[:2]), model(data.test.inputs[:2]))


def test_the_gated_language_model_has_as_many_parameters() -> None:
    plain, gated = (sum(p.numel() for p in built(name).parameters()) for name in LANGUAGE)
    assert abs(gated / plain - 1) < 0.01


def test_the_parts_of_the_text_share_none_of_it() -> None:
    train, calibration, validation, test = corpus()
    for part, size in zip((calibration, validation, test), text._SIZES, strict=True):
        assert size <= len(part) < size + 10_000
    assert len(train) > 150_000
    seen = {train[start : start + 64] for start in range(len(train) - 63)}
    for part in (calibration, validation, test):
        runs = [part[start : start + 64] for start in range(len(part) - 63)]
        assert sum(run in seen for run in runs) / len(runs) < 0.001


def test_paragraphs_are_dropped_where_they_repeat_a_run() -> None:
    quoted = "what stands here is quoted below"
    texts = [f"A\n\nstart {quoted}\n\nA", f"{quoted.replace(' ', '  ')} at another place\n\n \n\nend\n\nAA"]
    assert distinct_paragraphs(texts, run=20) == ["A", f"start {quoted}", "end", "AA"]


def test_the_text_is_the_same_at_every_call_and_its_digest_covers_it() -> None:
    workload = load("workloads", "text-gpt").target()
    first = workload.fingerprint()
    corpus.cache_clear()
    data = workload.data()
    assert data.fingerprint == first == load("workloads", "text-gpt-geglu").target().fingerprint()
    assert (data.vocabulary, data.classes, data.domain) == (256, 256, (0.0, 255.0))
    assert data.test.targets.numel() >= 60_000


@given(st.binary(min_size=6, max_size=80), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_windows_tile_the_text_and_targets_are_the_next_bytes(content: bytes, context: int) -> None:
    split = windows(content, context)
    assert len(content) - context <= split.inputs.numel() < len(content)
    assert bytes(split.inputs.flatten().tolist()) == content[: split.inputs.numel()]
    assert bytes(split.targets.flatten().tolist()) == content[1 : split.inputs.numel() + 1]
    assert split.inputs.dtype == split.targets.dtype == torch.int64
