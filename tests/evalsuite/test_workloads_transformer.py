"""The transformers, and the text they are trained on: Python's own documentation, and text
folders.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cifar_files import write_binary
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from written import Written

from evalsuite.plugins import load
from evalsuite.run.making import check_disjoint
from evalsuite.tasks.score import score
from evalsuite.testing import check_workload, workloads
from evalsuite.workloads import cifar, gpt2, pydoc, text
from evalsuite.workloads.cifar import Cifar10ResNet8
from evalsuite.workloads.deit import DeiTTiny
from evalsuite.workloads.gpt2 import GPT2Small, text_files
from evalsuite.workloads.pydoc import PydocGPT, docstrings, encoded, tokenizer
from evalsuite.workloads.text import CONTEXT, corpus, distinct_paragraphs, windows
from evalsuite.workloads.transformer import (
    Attention,
    LanguageModel,
    VisionTransformer,
    feed_forwards,
)
from lambda_gelu.activations import census
from lambda_gelu.activations.gated import GatedUnit

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
    # 0.02 sqrt(768 / 192)
    assert model.embedding.weight.std().item() == pytest.approx(0.04, rel=0.05)
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
    texts = [
        f"A\n\nstart {quoted}\n\nA",
        f"{quoted.replace(' ', '  ')} at another place\n\n \n\nend\n\nAA",
    ]
    assert distinct_paragraphs(texts, run=20) == ["A", f"start {quoted}", "end", "AA"]


def test_the_text_is_the_same_at_every_call_and_its_digest_covers_it() -> None:
    workload = load("workloads", "text-gpt").target()
    first = workload.fingerprint()
    corpus.cache_clear()
    data = workload.data()
    check_disjoint(data)
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


TEXT = ("Return the number of items in a container, é included.\n\n" * 30).encode()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A corpus of a few lines, and tokenizers of it alone."""
    monkeypatch.setattr(pydoc, "corpus", lambda: (TEXT * 3, TEXT, TEXT, TEXT))
    tokenizer.cache_clear()
    yield
    tokenizer.cache_clear()


def test_docstrings_are_read_without_running_a_file(tmp_path: Path) -> None:
    library = {
        "a.py": (
            '"""Of the module."""\nraise SystemExit\nclass C:\n    """Of the class."""\n    def'
            ' f(self): "Of f."\n'
        ),
        "b/c.py": "async def g():\n    '''Of g.'''\nx = '\\d'\n",
        "test/t.py": '"""Not documentation."""',
        "config-3-x/p.py": '"""Not in every Python."""',
    }
    for name, code in library.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    assert docstrings(tmp_path) == ["Of the module.", "Of the class.", "Of f.", "Of g."]


@pytest.mark.usefixtures("short")
def test_tokens_stand_for_all_bytes_of_the_text() -> None:
    tokens, lengths = encoded(TEXT, 300)
    assert int(lengths.sum()) == len(TEXT)
    assert 256 < int(tokens.max()) < 300
    names = [tokenizer(300).decode([each]) for each in tokens.tolist()]
    plain = [place for place, name in enumerate(names) if name.isascii()]
    assert [len(names[place]) for place in plain] == lengths[plain].tolist()


@pytest.mark.usefixtures("short")
def test_bits_are_of_the_bytes_that_the_targets_stand_for() -> None:
    """A model that knows nothing needs log2 of the vocabulary for a token, and less for a byte."""
    workload = PydocGPT(vocabulary=280, context=16)
    first = workload.fingerprint()
    tokenizer.cache_clear()
    data = workload.data()
    assert data.fingerprint == first
    assert (data.vocabulary, data.classes, data.domain) == (280, 280, (0.0, 279.0))
    _, lengths = encoded(TEXT, 280)
    count = data.test.targets.numel()
    assert len(lengths) - 16 <= count < len(lengths)

    bits = score(Written(lambda _, x: torch.zeros(*x.shape, 280)), data.test).headline
    assert bits.name == "bits_per_byte"
    assert bits.value == pytest.approx(math.log2(280) * count / int(lengths[1 : count + 1].sum()))


def test_the_gated_language_model_has_as_many_parameters() -> None:
    plain, gated = (sum(p.numel() for p in built(name).parameters()) for name in LANGUAGE)
    assert abs(gated / plain - 1) < 0.01


@pytest.mark.usefixtures("short")
def test_gated_parts_have_as_many_parameters() -> None:
    plain, gated = (
        PydocGPT(vocabulary=280, gated=each).build(lambda _: nn.GELU()) for each in (False, True)
    )
    sizes = [sum(each.numel() for each in module.parameters()) for module in (plain, gated)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)
    assert sum(isinstance(each, GatedUnit) for each in gated.modules()) == 4
    tokens = torch.zeros(2, 128, dtype=torch.int64)
    assert plain(tokens).shape == gated(tokens).shape


@pytest.mark.usefixtures("short")
def test_a_window_that_no_part_fills_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"context must be less than the \d+ tokens of a part, got 5000"
    ):
        PydocGPT(vocabulary=280, context=5000).data()


@pytest.mark.slow
def test_the_text_of_this_python_is_large() -> None:
    data = PydocGPT().data()
    assert data.train.targets.numel() > 400_000
    assert data.test.targets.numel() > 40_000
    assert 0.3 < data.test.task.tokens_per_byte < 0.37


TINY = {"blocks": 1, "width": 8, "heads": 2, "device": "cpu", "epochs": 1}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVALSUITE_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(gpt2, "_CALIBRATION", 4)


def verse(lines: int, start: int = 0) -> str:
    return "".join(
        f"line {number} says {number * number}\n" for number in range(start, start + lines)
    )


def write_wiki(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, start, lines in (("train", 0, 200), ("valid", 1000, 40), ("test", 2000, 40)):
        (folder / f"wiki.{name}.tokens").write_text(verse(lines, start))


def write_tokenizer(file: Path) -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="pip install evalsuite[transformers]")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([verse(50)], trainer)
    tokenizer.save(str(file))
    return tokenizer


def text_of(inputs: torch.Tensor) -> bytes:
    return bytes(inputs.flatten().tolist())


def test_a_text_folder_is_cut_into_windows_each_byte_with_the_next(tmp_path: Path) -> None:
    write_wiki(tmp_path)
    data = GPT2Small(folder=str(tmp_path), context=16).data()
    whole = verse(200).encode()
    assert len(data.calibration) == 4
    assert (
        text_of(torch.cat([data.train.inputs, data.calibration.inputs]))
        == whole[: (len(whole) - 1) // 16 * 16]
    )
    assert whole.startswith(text_of(data.train.inputs))
    assert text_of(data.train.targets) == whole[1 : 1 + data.train.targets.numel()]
    assert text_of(data.validation.inputs) in verse(40, 1000).encode()
    assert text_of(data.test.inputs) in verse(40, 2000).encode()
    assert (data.vocabulary, data.classes, data.task.per) == (256, 256, "byte")  # type: ignore[attr-defined]
    before = data.fingerprint
    (tmp_path / "wiki.test.tokens").write_text(verse(41, 2000))
    assert GPT2Small(folder=str(tmp_path), context=16).fingerprint() != before


def test_the_parts_of_a_folder_are_known_by_a_word_in_their_names(tmp_path: Path) -> None:
    for name in ("wikitext2-train.txt", "b-validation.txt", "test.raw", "latest.txt", "train.json"):
        (tmp_path / name).write_text("x")
    names = [[file.name for file in part] for part in text_files(tmp_path)]
    assert names == [["wikitext2-train.txt"], ["b-validation.txt"], ["test.raw"]]


def test_one_file_is_split_at_ends_of_lines(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text(verse(300))
    parts = gpt2._split((tmp_path / "poem.txt").read_bytes())
    assert b"".join(parts) == verse(300).encode()
    assert all(part.endswith(b"\n") for part in parts)
    assert [round(len(part) / len(verse(300)), 1) for part in parts] == [0.8, 0.1, 0.1]
    data = GPT2Small(folder=str(tmp_path / "poem.txt"), context=16).data()
    assert text_of(data.test.inputs) in parts[2]
    assert b"".join(gpt2._split(b"0123456789")) == b"0123456789"


def test_a_tokenizers_tokens_are_counted_as_tokens(tmp_path: Path) -> None:
    write_wiki(tmp_path)
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    workload = GPT2Small(
        folder=str(tmp_path), tokenizer=str(tmp_path / "tokenizer.json"), context=16, **TINY
    )
    data = workload.data()
    assert data.vocabulary == tokenizer.get_vocab_size() > 256
    assert data.task.per == "token"  # type: ignore[attr-defined]
    assert tokenizer.decode(data.test.inputs.flatten().tolist()) in verse(40, 2000)
    assert check_workload(workload) == list(workloads.CHECKS)
    bytes_only = GPT2Small(folder=str(tmp_path), context=16)
    assert bytes_only.fingerprint() != workload.fingerprint()
    assert len(bytes_only.data().train) > len(data.train)


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "options", "said"),
    [
        (
            removed("wiki.train.tokens"),
            {},
            "no text for train, but wiki.test.tokens, wiki.valid.tokens; put train.txt",
        ),
        (
            lambda folder: (folder / "wiki.test.tokens").write_text("short\n"),
            {},
            "6 tokens, but 1 of 16 positions",
        ),
        (
            lambda folder: (folder / "wiki.valid.tokens").write_text(""),
            {},
            "tokens.*, but 1 of 16 positions",
        ),
        (
            lambda folder: None,
            {"tokenizer": "none.json"},
            "tokenizer: none.json is missing; name a tokenizer.json, or",
        ),
        (lambda folder: None, {"tokenizer": __file__}, "is no tokenizer.json .*; name another"),
    ],
)
def test_texts_that_are_wrong_are_one_message_with_the_cure(
    tmp_path: Path, spoil: Callable[[Path], None], options: dict[str, str], said: str
) -> None:
    write_wiki(tmp_path)
    if options:
        pytest.importorskip("tokenizers", reason="pip install evalsuite[transformers]")
    spoil(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        GPT2Small(folder=str(tmp_path), context=16, **options).data()


def test_text_that_is_nowhere_names_the_data_folder() -> None:
    with pytest.raises(
        FileNotFoundError,
        match=r"nowhere/wikitext-2: no text for train and valid and test, but no tex",
    ):
        GPT2Small().fingerprint()


def test_other_encodings_are_refused_by_a_tokenizer_and_read_as_bytes(tmp_path: Path) -> None:
    write_wiki(tmp_path)
    write_tokenizer(tmp_path / "t.json")
    (tmp_path / "wiki.test.tokens").write_bytes("é".encode("latin-1") * 100)
    with pytest.raises(ValueError, match=r"wiki.test.tokens: no UTF-8 .*; convert it"):
        GPT2Small(folder=str(tmp_path), tokenizer=str(tmp_path / "t.json"), context=16).data()
    assert GPT2Small(folder=str(tmp_path), context=16).data().test.inputs.unique().tolist() == [
        0xE9
    ]


def test_deit_conforms_on_either_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "_SIZES", (20, 30))
    write_binary(tmp_path / "10")
    workload = DeiTTiny(folder=str(tmp_path / "10"), classes=10, patch=16, **TINY)
    assert check_workload(workload) == list(workloads.CHECKS)
    assert workload.fingerprint() == Cifar10ResNet8(folder=str(tmp_path / "10")).fingerprint()
    monkeypatch.setattr(cifar, "_SIZES", (100, 100))
    write_binary(tmp_path / "100", 100, 300)
    assert DeiTTiny(folder=str(tmp_path / "100")).data().classes == 100


@pytest.mark.parametrize(
    ("name", "options", "millions"),
    [
        ("deit-tiny", {}, 5.4),
        ("gpt2-small", {}, 86.2),
        ("gpt2-small", {"context": 64, "blocks": 2, "width": 96}, 0.28),
    ],
)
def test_the_transformers_have_the_sizes_of_their_papers(
    name: str, options: dict[str, int], millions: float
) -> None:
    with torch.device("meta"):
        module: nn.Module = load("workloads", name).target(**options).build(lambda _: nn.GELU())
    assert sum(each.numel() for each in module.parameters()) / 1e6 == pytest.approx(
        millions, rel=0.02
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DeiTTiny(classes=7), "classes must be 10 or 100, of CIFAR-10 or CIFAR-100, got 7"),
        (lambda: DeiTTiny(patch=5), "patch must divide the 32 pixels of a side, got 5"),
        (lambda: DeiTTiny(heads=5), "width must be a multiple of heads = 5, got 192"),
        (lambda: DeiTTiny(blocks=0), "blocks must be at least 1, got 0"),
        (lambda: GPT2Small(context=0), "context must be at least 1, got 0"),
        (lambda: GPT2Small(width=100), "width must be a multiple of heads = 12, got 100"),
        (lambda: PydocGPT(vocabulary=255), "vocabulary must be at least 256"),
        (lambda: PydocGPT(context=0), "context must be at least 1, got 0"),
        (lambda: Attention(10, 3, causal=True), "width must be a multiple of heads = 3, got 10"),
        (
            lambda: VisionTransformer(8, 3, 12, 3, [], 10),
            "size must be a multiple of patch = 3, got 8",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_the_papers_mlp_is_trained_by_sgd_and_its_lambda_is_as_published() -> None:
    workload, plain = (
        load("workloads", name).target() for name in ("fashion-mlp-sgd", "fashion-mlp")
    )
    assert (workload.optimizer, plain.optimizer) == ("sgd", "adamw")
    states = [each.build(lambda _: nn.GELU()).state_dict() for each in (workload, plain)]
    assert states[0].keys() == states[1].keys()
    annealed = load("variants", "annealed").target()
    assert (annealed.temperature, annealed.step, annealed.start, annealed.target) == (
        0.1,
        9.0,
        0.25,
        160.0,
    )
