"""Networks that are not as they are measured: what is changed and said, and the cure of each raw
error of torch.
"""

from __future__ import annotations

import textwrap
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from evalsuite.own.adapter import adapted
from evalsuite.own.examining import examine
from evalsuite.own.floors import floors
from evalsuite.own.own import Own
from evalsuite.own.prepared import COMPILED, other_kinds, prepared
from evalsuite.own.saving import load_own, save_own
from opgraph.errors import OwnError

CODE = """
    import torch
    from torch import nn

    def net(width=3):
        return nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, 2))

    def half(): return net().half()
    def bfloat(): return net().bfloat16()
    def double(): return net().double()
    def compiled(): return torch.compile(net())
    def in_place():
        made = net()
        made.compile()
        return made
    def inside(): return nn.Sequential(torch.compile(net()), nn.Linear(2, 2))
    def lazy(): return nn.Sequential(nn.LazyLinear(8), nn.GELU(), nn.LazyLinear(2))
"""
X = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(textwrap.dedent(CODE))
    np.savez("data.npz", x=X, y=Y)
    return tmp_path


def lines(own: Own) -> dict[str, str]:
    return dict(examine(own).lines)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("half", "weights of float16, measured in float32"),
        ("bfloat", "weights of bfloat16, measured in float32"),
        ("double", "weights of float64, measured in float32"),
        ("compiled", COMPILED),
        ("in_place", COMPILED),
        ("inside", COMPILED),
        ("lazy", ""),
    ],
)
def test_a_network_is_measured_in_float32_and_not_compiled(
    here: Path, name: str, said: str
) -> None:
    own = Own(model=f"my.py:{name}", source="data.npz")
    line = lines(own)["model"]
    assert line.endswith(f"parameters; {said}" if said else "parameters")
    torch.manual_seed(0)
    module = own.given()
    assert {each.dtype for each in module.state_dict().values()} == {torch.float32}
    assert not [key for key in module.state_dict() if "_orig_mod" in key]
    assert type(module) is nn.Sequential
    if name == "lazy":
        assert [tuple(each.shape) for each in module.parameters()] == [(8, 3), (8,), (2, 8), (2,)]


def test_the_numbers_are_those_of_the_half_network(here: Path) -> None:
    torch.manual_seed(3)
    halves = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2)).half()
    torch.manual_seed(3)
    module = Own(model="my.py:half", source="data.npz").given()
    for ours, theirs in zip(module.parameters(), halves.parameters(), strict=True):
        assert torch.equal(ours, theirs.float())


def test_stored_halves_are_said_too(here: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
    save_file(
        {name: each.bfloat16() for name, each in module.state_dict().items()}, "w.safetensors"
    )
    own = Own(
        model={"path": "my.py:net", "weights": "w.safetensors"}, source="data.npz", start="trained"
    )
    assert lines(own)["model"].endswith("; weights of bfloat16, measured in float32")


def test_weights_that_need_scales_are_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 8), nn.GELU())
    module[0].weight = nn.Parameter(module[0].weight.detach().to(torch.float8_e4m3fn))
    with pytest.raises(OwnError, match="weights of float8_e4m3fn, which need scales"):
        prepared(module, "my.py:net")


def test_tied_weights_stay_tied() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 3)).bfloat16()
    module[2].weight = module[0].weight
    assert other_kinds(module) == ["bfloat16"]
    module, _ = prepared(module, "my.py:net")
    assert other_kinds(module) == []
    assert module[0].weight is module[2].weight


def test_a_lazy_network_is_saved_and_loaded(here: Path) -> None:
    from my_lazy import make  # a module of the user's, beside the data

    own = Own(model="my_lazy:make", source="data.npz", start="pretrained")
    torch.manual_seed(0)
    network = own.build(lambda _channels: nn.ReLU())
    example = own.data().calibration.first(4)
    save_own(
        network,
        here / "out",
        make=own.unadapted,
        adapt=lambda each: own.adapted(each, example),
        own=own.places,
        example=example,
    )
    again = load_own(make, here / "out")
    with torch.no_grad():
        assert torch.allclose(again(example), network.eval()(example), atol=1e-6)


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_lazy.py").write_text(
        "from torch import nn\n"
        "def make(): return nn.Sequential(nn.LazyLinear(8), nn.GELU(), nn.Linear(8, 2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@dataclass
class Named:
    logits: torch.Tensor
    hidden: torch.Tensor


@dataclass
class Single:
    values: torch.Tensor
    loss: float


Pair = namedtuple("Pair", "digit odd")


class Returns(nn.Module):
    """A layer whose output is returned in a form."""

    def __init__(self, form: object) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(3, 2), form

    def forward(self, x: torch.Tensor) -> object:
        return self.form(self.layer(x))  # type: ignore[operator]


@pytest.mark.parametrize(
    "form",
    [
        lambda y: Named(y, y[:, :1]),
        lambda y: Single(y, 0.5),
        lambda y: {"prediction": y},
        lambda y: (y,),
        lambda y: {"logits": y, "hidden": y + 1},
    ],
)
def test_objects_give_their_logits_or_their_only_tensor(form: object) -> None:
    module, x = Returns(form), torch.rand(5, 3)
    assert torch.equal(adapted(module, x)(x), module.layer(x))


def test_several_outputs_are_listed_with_their_shapes() -> None:
    module = Returns(lambda y: Pair(y, y[:, :1]))
    with pytest.raises(OwnError, match=r"choose one by `output:` \(digit \(2, 2\), odd \(2, 1\)\)"):
        adapted(module, torch.rand(2, 3))
    x = torch.rand(2, 3)
    assert torch.equal(adapted(module, x, output="odd")(x), module.layer(x)[:, :1])


class Positions(nn.Module):
    def __init__(self, *, table: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 4), nn.Embedding(6, 4)
        self.table = nn.Parameter(torch.zeros(6, 4)) if table else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.table is not None:
            return (self.words(tokens) + self.table).sum(1)
        return (self.words(tokens) + self.places(torch.arange(tokens.shape[1]))).sum(1)


class Casts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.bfloat16())


def tokens(count: int, most: int = 49) -> torch.Tensor:
    return torch.full((2, count), most)


@pytest.mark.parametrize(
    ("module", "batch", "cure"),
    [
        (nn.Linear(32, 2), torch.rand(2, 7), "its Linear takes 32 values, and gets 7: choose the"),
        (nn.Sequential(nn.Linear(64, 2)), torch.rand(2, 1, 8, 8), "begin with nn.Flatten()"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2)),
            torch.rand(2, 1, 9, 9),
            "its Linear '2' takes 72 values, and gets 98: pictures of 9x9 are of another size",
        ),
        (nn.Conv2d(3, 4, 3), torch.rand(2, 1, 8, 8), "write `data.channels: 3` of files"),
        (nn.Conv2d(1, 4, 3), torch.rand(2, 3, 8, 8), "write `data.channels: 1` of files"),
        (nn.Conv2d(3, 4, 3), torch.rand(2, 8, 8, 3), "put channels first"),
        (nn.Conv2d(1, 4, 3), torch.rand(2, 8, 8), "as x[:, None] of one channel"),
        (nn.BatchNorm1d(4), torch.rand(2, 3), "its BatchNorm1d takes 4 channels, and gets (2, 3)"),
        (nn.GRU(8, 4), torch.rand(2, 5, 6), "its GRU takes 8 values, and gets 6: make it for 6"),
        (Positions(table=False), tokens(8), "write `data.length: 6`, or give shorter samples"),
        (Positions(table=True), tokens(8), "`data.length: 6`"),
        (Positions(table=False), tokens(6, 60), "knows 50 tokens, and the data have the token 60"),
        (nn.Embedding(5, 2), torch.rand(2, 3), "takes tokens, and gets real numbers"),
        (Casts(), torch.rand(2, 3), "leave out what casts to bfloat16"),
        (nn.Unfold(3), torch.rand(2, 3), "call the model on zeros of that shape"),
    ],
)
def test_each_raw_error_has_a_cure(module: nn.Module, batch: torch.Tensor, cure: str) -> None:
    with pytest.raises(OwnError) as error:
        adapted(module, batch)
    assert cure in str(error.value)
    assert "raises" in str(error.value)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())


def test_columns_are_listed_where_a_table_is_too_narrow(here: Path) -> None:
    rows = [",".join(map(str, [*row, int(row[0] > 0)])) for row in X.round(3).tolist()]
    Path("t.csv").write_text("\n".join(["a,b,c,label", *rows]))
    with pytest.raises(OwnError) as error:
        examine(Own(model={"path": "my.py:net", "args": {"width": 32}}, source="t.csv"))
    assert "takes 32 values, and gets 3" in str(error.value)
    assert str(error.value).endswith("the columns are a (number), b (number), c (number)")


def test_texts_are_as_long_as_a_model_has_positions(here: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_positions": 64, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, **sizes)
    config.save_pretrained("gpt")
    Path("t.txt").write_text(" ".join(map(str, range(3000))))
    own = Own(model="hf:gpt", source="t.txt", task="language-model")
    assert own.data().input_shape == (64,)
    assert ("length", "at most 64 tokens a sample, as many as the model has positions") in (
        own.data().notes
    )
    longer = Own(model="hf:gpt", source={"path": "t.txt", "length": 100}, task="language-model")
    with pytest.raises(OwnError, match="has 64 positions, and a sample 100 tokens"):
        longer.given()


def test_a_language_model_has_as_many_classes_as_outputs(here: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    for words in (256, 300):
        config = transformers.GPT2Config(vocab_size=words, bos_token_id=0, eos_token_id=0, **sizes)
        config.save_pretrained(f"gpt-{words}")
    Path("t.txt").write_text(" ".join(map(str, range(3000))))

    def own(words: int) -> Own:
        return Own(model=f"hf:gpt-{words}", source="t.txt", task="language-model", start="scratch")

    # Texts by bytes have 256 tokens, and a model of 300 words has an output for each.
    exact, padded = own(256).data(), own(300).data()
    assert (exact.classes, exact.vocabulary) == (256, 256)
    assert (padded.classes, padded.vocabulary) == (300, 256)
    assert own(300).given()(padded.train.first(2)).shape == (2, 16, 300)
    # Words that no text can have change no floor.
    assert floors(padded) == floors(exact)
