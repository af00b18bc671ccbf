"""The paper's transformers and its MLP by SGD: sizes, text folders, tokenizers, and what is wrong with files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cifar_files import write_binary
from torch import nn

from evalsuite.plugins import load
from evalsuite.testing import check_workload, workloads
from evalsuite.workloads import cifar, gpt2
from evalsuite.workloads.cifar import Cifar10ResNet8
from evalsuite.workloads.deit import DeiTTiny
from evalsuite.workloads.gpt2 import GPT2Small, text_files

TINY = {"blocks": 1, "width": 8, "heads": 2, "device": "cpu", "epochs": 1}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVALSUITE_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(gpt2, "_CALIBRATION", 4)


def verse(lines: int, start: int = 0) -> str:
    return "".join(f"line {number} says {number * number}\n" for number in range(start, start + lines))


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
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
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
    assert text_of(torch.cat([data.train.inputs, data.calibration.inputs])) == whole[: (len(whole) - 1) // 16 * 16]
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
    workload = GPT2Small(folder=str(tmp_path), tokenizer=str(tmp_path / "tokenizer.json"), context=16, **TINY)
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
        (removed("wiki.train.tokens"), {}, "no text for train, but wiki.test.tokens, wiki.valid.tokens; put train.txt"),
        (lambda folder: (folder / "wiki.test.tokens").write_text("short\n"), {}, "6 tokens, but 1 of 16 positions"),
        (lambda folder: (folder / "wiki.valid.tokens").write_text(""), {}, "tokens.*, but 1 of 16 positions"),
        (lambda folder: None, {"tokenizer": "none.json"}, "tokenizer: none.json is missing; name a tokenizer.json, or"),
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
        FileNotFoundError, match=r"nowhere/wikitext-2: no text for train and valid and test, but no tex"
    ):
        GPT2Small().fingerprint()


def test_other_encodings_are_refused_by_a_tokenizer_and_read_as_bytes(tmp_path: Path) -> None:
    write_wiki(tmp_path)
    write_tokenizer(tmp_path / "t.json")
    (tmp_path / "wiki.test.tokens").write_bytes("é".encode("latin-1") * 100)
    with pytest.raises(ValueError, match=r"wiki.test.tokens: no UTF-8 .*; convert it"):
        GPT2Small(folder=str(tmp_path), tokenizer=str(tmp_path / "t.json"), context=16).data()
    assert GPT2Small(folder=str(tmp_path), context=16).data().test.inputs.unique().tolist() == [0xE9]


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
    [("deit-tiny", {}, 5.4), ("gpt2-small", {}, 86.2), ("gpt2-small", {"context": 64, "blocks": 2, "width": 96}, 0.28)],
)
def test_the_transformers_have_the_sizes_of_their_papers(name: str, options: dict[str, int], millions: float) -> None:
    with torch.device("meta"):
        module: nn.Module = load("workloads", name).target(**options).build(lambda _: nn.GELU())
    assert sum(each.numel() for each in module.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DeiTTiny(classes=7), "classes must be 10 or 100, of CIFAR-10 or CIFAR-100, got 7"),
        (lambda: DeiTTiny(patch=5), "patch must divide the 32 pixels of a side, got 5"),
        (lambda: DeiTTiny(heads=5), "width must be a multiple of heads = 5, got 192"),
        (lambda: DeiTTiny(blocks=0), "blocks must be at least 1, got 0"),
        (lambda: GPT2Small(context=0), "context must be at least 1, got 0"),
        (lambda: GPT2Small(width=100), "width must be a multiple of heads = 12, got 100"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_the_papers_mlp_is_trained_by_sgd_and_its_lambda_is_as_published() -> None:
    workload, plain = (load("workloads", name).target() for name in ("fashion-mlp-sgd", "fashion-mlp"))
    assert (workload.optimizer, plain.optimizer) == ("sgd", "adamw")
    assert (
        workload.build(lambda _: nn.GELU()).state_dict().keys() == plain.build(lambda _: nn.GELU()).state_dict().keys()
    )
    annealed = load("variants", "annealed").target()
    assert (annealed.temperature, annealed.step, annealed.start, annealed.target) == (0.1, 9.0, 0.25, 160.0)
