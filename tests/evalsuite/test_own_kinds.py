"""Kinds of networks as their users bring them: what is measured of them, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import jaccard_score, r2_score
from torch import nn

from evalsuite.own.examining import examine
from evalsuite.own.floors import floors
from evalsuite.own.own import Own
from opgraph.errors import OwnError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


UNET = """
import torch
from torch import nn

class UNet(nn.Module):
    def __init__(self, act=nn.GELU, outputs=3):
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3, 2, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(12, outputs, 3, padding=1)
        self.act = act()

    def forward(self, x):
        fine = self.act(self.down(x))
        coarse = self.act(self.up(self.act(self.deep(fine))))
        return self.last(torch.cat([fine, coarse], 1))

def make(): return UNet()
def one(): return UNet(outputs=1)
"""


def pictures(count: int, seed: int, size: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Grey pictures of a disc and a square, and the class of each pixel."""
    draw = np.random.default_rng(seed)
    down, across = np.mgrid[:size, :size]
    x, y = np.zeros((count, 1, size, size), np.float32), np.zeros((count, size, size), np.int64)
    for place in range(count):
        first, second = draw.uniform(1, size - 1, (2, 2))
        y[place][(down - first[0]) ** 2 + (across - first[1]) ** 2 < 5] = 1
        y[place][np.maximum(abs(down - second[0]), abs(across - second[1])) < 1.5] = 2
    x[:, 0] = y / 2 + draw.normal(0, 0.2, y.shape)
    return x.clip(0, 1), y


def segmented(size: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Write model and data; the test part."""
    Path("my.py").write_text(UNET)
    (x, y), (x_test, y_test) = pictures(200, 0, size), pictures(60, 1, size)
    np.savez("data.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    return x_test, y_test


@pytest.mark.parametrize(
    ("model", "task", "y", "said"),
    [
        ("make", "classification", None, "for a class at each place choose task segmentation"),
        ("one", "segmentation", None, "the labels go up to 2, but the model gives 1 logits"),
        (
            "make",
            "segmentation",
            lambda y: y * 100,
            "there are the labels 0, 100, 200; number classes from 0 on, and give -100",
        ),
        ("make", "segmentation", lambda y: y[:, ::2, ::2], "resize them in forward by F.interp"),
        ("make", "segmentation", lambda y: y[:, 0, 0], "the targets have no class for each place"),
    ],
)
def test_masks_that_do_not_fit_have_a_cure(
    model: str, task: str, y: Callable[[np.ndarray], np.ndarray] | None, said: str
) -> None:
    segmented()
    inputs, targets = pictures(80, 0)
    np.savez("data.npz", x=inputs, y=targets if y is None else y(targets))
    with pytest.raises(OwnError) as error:
        examine(Own(model=f"my.py:{model}", source="data.npz", task=task))
    assert said in str(error.value)


def test_as_many_classes_as_rows_are_no_positions_without_a_word() -> None:
    # 8 classes of pictures of 8 x 8: both orders of dimensions would fit.
    segmented()
    model = {"path": "my.py:UNet", "args": {"outputs": 8}}
    with pytest.raises(OwnError, match="either its first or its last dimension is the classes"):
        examine(Own(model=model, source="data.npz"))
    examine(Own(model=model, source="data.npz", task="segmentation"))


def test_masks_of_one_channel_and_of_two_classes() -> None:
    segmented()
    x, y = pictures(80, 0)
    np.savez("data.npz", x=x, y=(y > 0).astype(np.float32)[:, None])
    own = Own(model="my.py:one", source="data.npz", task="segmentation")
    examine(own)
    assert own.data().test.targets.shape[1:] == (8, 8)
    assert own.data().classes == 2


def test_one_class_everywhere_is_the_floor_of_segmentation() -> None:
    _, y_test = segmented()
    own = Own(model="my.py:make", source="data.npz", task="segmentation")
    (floor,) = floors(own.data())
    nothing = np.zeros_like(y_test)
    score = jaccard_score(y_test.ravel(), nothing.ravel(), average="macro")
    assert (floor.metric, floor.score) == ("mean_iou", pytest.approx(score))
    assert 0 < floor.spread < 0.1
    assert floor.doubt(score).startswith("no better than naming the most frequent class")
    assert not floor.doubt(0.9)


HEADS = """
from collections import namedtuple
from dataclasses import dataclass
import torch
from torch import nn

Both = namedtuple("Both", "level side")

@dataclass
class Out:
    side: torch.Tensor
    hidden: torch.Tensor
    level: torch.Tensor

class Net(nn.Module):
    def __init__(self, act=nn.GELU, form="dict", levels=1):
        super().__init__()
        self.form = form
        self.body = nn.Sequential(nn.Linear(6, 16), act())
        self.level, self.side = nn.Linear(16, levels), nn.Linear(16, 3)

    def forward(self, x):
        hidden = self.body(x)
        level, side = self.level(hidden), self.side(hidden)
        return {
            "dict": lambda: {"side": side, "hidden": hidden, "level": level},
            "tuple": lambda: (level, side),
            "three": lambda: (hidden, side, level),
            "named": lambda: Both(level, side),
            "dataclass": lambda: Out(side, hidden, level),
            "flat": lambda: (level[:, 0], side),
        }[self.form]()

def make(): return Net()
"""
TWO = {"level": "regression", "side": "classification"}


def two_targets(count: int, seed: int) -> dict[str, np.ndarray]:
    """Inputs, a number and one of three sides."""
    x = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
    level = x[:, 0] * x[:, 1] + x[:, 2]
    return {"x": x, "level": level, "side": np.digitize(x[:, 3] + x[:, 4], [-0.7, 0.7])}


@pytest.fixture
def headed() -> dict[str, dict[str, np.ndarray]]:
    Path("my.py").write_text(HEADS)
    parts = {"train": two_targets(240, 0), "test": two_targets(80, 1)}
    np.savez(
        "data.npz",
        **{f"{name}_{part}": each for part, named in parts.items() for name, each in named.items()},
    )
    return parts


def asked(form: str, data: str | dict[str, object] = "data.npz", **options: object) -> Own:
    model = {"path": "my.py:Net", "args": {"form": form}}
    return Own(model=model, source=data, **{"task": TWO, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "output"),
    [
        ("dict", ""),
        ("tuple", ""),
        ("named", ""),
        ("dataclass", ""),
        ("flat", ""),
        ("three", "2, 1"),
    ],
)
def test_each_named_output_has_a_task(
    headed: dict[str, dict[str, np.ndarray]], form: str, output: str
) -> None:
    own = asked(form, output=output)
    examine(own)
    data, parts = own.data(), headed["test"]
    torch.manual_seed(0)
    module = own.given().eval()
    with torch.no_grad():
        joined, found = module(data.test.inputs), module.network(data.test.inputs)
    names = {"three": (2, 1), "tuple": (0, 1), "flat": (0, 1)}.get(form, ("level", "side"))
    level, side = (
        found[name]
        if isinstance(found, (dict, tuple)) and not hasattr(found, "_fields")
        else getattr(found, str(name))
        for name in names
    )
    assert torch.equal(joined, torch.cat([level.reshape(-1, 1), side], 1))
    # The loss is the sum of both, and each metric is that of its own output.
    wanted, sides = torch.tensor(parts["level"]), torch.tensor(parts["side"])
    functional = nn.functional
    loss = functional.mse_loss(level.reshape(-1), wanted) + functional.cross_entropy(side, sides)
    assert data.task.loss(joined, data.test.targets).item() == pytest.approx(loss.item(), rel=1e-6)
    tally = data.task.tally(joined, data.test.targets)
    metrics = {each.name: each.value for each in data.task.metrics(tally)}
    accuracy = (side.argmax(1) == sides).double().mean().item()
    r2 = r2_score(wanted, level.reshape(-1))
    assert metrics["side_accuracy"] == pytest.approx(accuracy)
    assert metrics["level_r2"] == pytest.approx(r2, rel=1e-5)
    assert next(iter(metrics)) == "mean_score"
    assert metrics["mean_score"] == pytest.approx((accuracy + r2) / 2, rel=1e-5)


def test_targets_of_several_outputs_come_in_many_forms(
    headed: dict[str, dict[str, np.ndarray]],
) -> None:
    Path("forms.py").write_text(FORMS)
    rows = headed["train"]
    columns = np.column_stack([rows["x"], rows["level"], rows["side"]]).round(4).tolist()
    lines = [",".join([*map(str, row[:-1]), "abc"[int(row[-1])]]) for row in columns]
    Path("t.csv").write_text("\n".join(["p,q,r,s,t,u,level,side", *lines]))
    np.savez("whole.npz", **rows)
    names = ("pair", "flat", "data_set", "dicts", "renamed")
    parts = ("train", "calibration", "validation", "test")
    known = {}
    for source in ("whole.npz", *(f"forms.py:{name}" for name in names)):
        target = ["height", "way"] if "renamed" in source else []
        data = asked("dict", {"path": source, "target": target}).data()
        joined = torch.cat([getattr(data, part).targets for part in parts])
        known[source] = joined[joined[:, 0].argsort()]
        assert joined.shape == (240, 2)
    for source, targets in known.items():
        assert torch.equal(targets, known["whole.npz"]), source
    table = asked("dict", "t.csv").data()
    assert dict(table.notes)["classes of side"].startswith("in order: 0 = a, 1 = b, 2 = c")
    assert table.input_shape == (6,)


FORMS = """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

FILE = np.load("data.npz")
X, LEVEL, SIDE = (FILE[f"{name}_train"] for name in ("x", "level", "side"))

def pair(): return X, {"side": SIDE, "level": LEVEL}
def flat(): return TensorDataset(*map(torch.tensor, (X, LEVEL, SIDE)))
def renamed(): return {"x": X, "height": LEVEL, "way": SIDE}

class Rows(Dataset):
    def __len__(self): return len(X)
    def __getitem__(self, place): return X[place], LEVEL[place], SIDE[place]

class Named(Rows):
    def __getitem__(self, place):
        return X[place], {"level": LEVEL[place], "side": SIDE[place]}

def data_set(): return Rows()
def dicts(): return DataLoader(Named(), batch_size=16)
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"form": "three"}, "tasks are of the outputs level, side, and it returns 0, 1, 2"),
        ({"task": {"level": "regression", "way": "classification"}}, "no array 'way'"),
        ({"task": {"level": "classification", "side": "classification"}}, "is no class: classes"),
        ({"task": {"level": "embedding", "side": "language-model"}}, "which no network of several"),
        ({"task": {"level": "regression", "Side": "classification"}}, "named in snake_case"),
        ({"loss": "my.py:make"}, "loss: my.py:make is of one output"),
    ],
)
def test_outputs_that_do_not_fit_have_a_cure(
    headed: dict[str, dict[str, np.ndarray]], options: dict[str, object], said: str
) -> None:
    with pytest.raises(OwnError) as error:
        examine(asked(str(options.pop("form", "dict")), **options))
    assert said in str(error.value)


def test_too_few_logits_are_told_of_their_output(
    headed: dict[str, dict[str, np.ndarray]],
) -> None:
    rows = two_targets(100, 0)
    np.savez("data.npz", x=rows["x"], level=rows["level"], side=rows["side"] + 1)
    with pytest.raises(OwnError, match="the output side: the labels go up to 3"):
        examine(asked("dict"))


def test_each_output_has_its_floor_and_its_own_doubts(
    headed: dict[str, dict[str, np.ndarray]],
) -> None:
    own = asked("dict")
    found = floors(own.data())
    assert {floor.metric for floor in found} == {"level_r2", "side_accuracy"}
    scores = {"level_r2": 0.99, "side_accuracy": 0.35}
    rows = pd.DataFrame({"metric": [*scores], "value": [*scores.values()]})
    rows = rows.assign(variant="gelu", stage="accuracy", sample=None)
    (doubt,) = own.doubts(rows, "gelu")
    assert "no better than always naming the most frequent class for side" in doubt


GRU = """
from torch import nn

class Net(nn.Module):
    def __init__(self, act=nn.GELU, kind=nn.GRU):
        super().__init__()
        self.rnn = kind(3, 12, batch_first=True)
        self.head = nn.Sequential(nn.Linear(12, 12), act(), nn.Linear(12, 2))

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.head(states[:, -1])

def make(): return Net()
def lstm(): return Net(kind=nn.LSTM)
"""


def sequences(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of six steps, and whether the sum of one of their columns is positive."""
    x = np.random.default_rng(seed).normal(size=(count, 6, 3)).astype(np.float32)
    return x, (x[:, :, 0].sum(1) > 0).astype(np.int64)


def test_files_of_one_batch_size_are_not_timed_at_another() -> None:
    from onnxruntime import InferenceSession

    from pipelines.prune.cost import _of_one_size

    layer, sessions = nn.Linear(3, 2), []
    for name, shapes in (("any.onnx", {0: "batch"}), ("two.onnx", None)):
        axes = {"x": shapes} if shapes else None
        torch.onnx.export(
            layer, (torch.rand(2, 3),), name, input_names=["x"], dynamic_axes=axes, dynamo=False
        )
        sessions.append(InferenceSession(name))
    assert _of_one_size(sessions, 2) == ""
    assert _of_one_size(sessions, 1).startswith("a file takes batches of 2 alone: in forward")
    assert _of_one_size(sessions[:1], 64) == ""
