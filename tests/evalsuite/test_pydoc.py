"""The text of Python's documentation, its tokens, and how bits are counted by bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from written import Written

from evalsuite.activations.gated import GatedUnit
from evalsuite.tasks.score import score
from evalsuite.workloads import pydoc
from evalsuite.workloads.pydoc import PydocGPT, docstrings, encoded, tokenizer

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
        "a.py": '"""Of the module."""\nraise SystemExit\nclass C:\n    """Of the class."""\n    def f(self): "Of f."\n',
        "b/c.py": "async def g():\n    '''Of g.'''\nx = '\\d'\n",
        "test/t.py": '"""Not documentation."""',
        "config-3-x/p.py": '"""Not in every Python."""',
    }
    for name, text in library.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
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
    data = workload.data()
    assert (data.vocabulary, data.classes, data.domain) == (280, 280, (0.0, 279.0))
    _, lengths = encoded(TEXT, 280)
    count = data.test.targets.numel()
    assert len(lengths) - 16 <= count < len(lengths)

    bits = score(Written(lambda _, x: torch.zeros(*x.shape, 280)), data.test).headline
    assert bits.name == "bits_per_byte"
    assert bits.value == pytest.approx(math.log2(280) * count / int(lengths[1 : count + 1].sum()))


@pytest.mark.usefixtures("short")
def test_gated_parts_have_as_many_parameters() -> None:
    plain, gated = (PydocGPT(vocabulary=280, gated=each).build(lambda _: nn.GELU()) for each in (False, True))
    sizes = [sum(each.numel() for each in module.parameters()) for module in (plain, gated)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)
    assert sum(isinstance(each, GatedUnit) for each in gated.modules()) == 4
    assert plain(torch.zeros(2, 128, dtype=torch.int64)).shape == gated(torch.zeros(2, 128, dtype=torch.int64)).shape


@pytest.mark.parametrize(
    ("options", "said"),
    [({"vocabulary": 255}, "vocabulary must be at least 256"), ({"context": 0}, "context must be at least 1, got 0")],
)
def test_sizes_that_cannot_be_are_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PydocGPT(**options)


@pytest.mark.usefixtures("short")
def test_a_window_that_no_part_fills_is_refused() -> None:
    with pytest.raises(ValueError, match=r"context must be less than the \d+ tokens of a part, got 5000"):
        PydocGPT(vocabulary=280, context=5000).data()


@pytest.mark.slow
def test_the_text_of_this_python_is_large_and_the_same_at_every_call() -> None:
    first = PydocGPT().fingerprint()
    pydoc.corpus.cache_clear()
    tokenizer.cache_clear()
    data = PydocGPT().data()
    assert data.fingerprint == first
    assert data.train.targets.numel() > 400_000
    assert data.test.targets.numel() > 40_000
    assert 0.3 < data.test.task.tokens_per_byte < 0.37
