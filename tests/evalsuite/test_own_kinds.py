"""Kinds of networks as their users bring them, through `check`, `assess --quick` and `relu-ize`; a
few lines of torch confirm each answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import jaccard_score
from torch import nn
from typer.testing import CliRunner

from evalsuite.cli import app
from evalsuite.own.examining import examine
from evalsuite.own.floors import floors
from evalsuite.own.own import Own
from evalsuite.own.saving import load_own
from evalsuite.references import resolve
from evalsuite.results import read_results
from opgraph.errors import OwnError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(*words: str) -> str:
    """What the command prints; 1 says that nothing is concluded."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code in (0, 1), (done.output, done.exc_info)
    assert "Traceback" not in done.output
    return done.stdout


def through(*words: str, stages: str = "accuracy", of_check: str = "") -> tuple[str, pd.DataFrame]:
    """What `check` prints, and the rows of `assess --quick`; `relu-ize` writes the folder `out`."""
    quiet = ("--progress", "none", "--cache", "cache")
    checked = ran("check", *words, "--stages", of_check or stages)
    assert "accuracy" in checked
    ran("assess", *words, "--quick", "--stages", stages, "--out", "run", *quiet)
    ended = ran("relu-ize", *words, "--out", "out", *quiet)
    assert re.search(r"^(Recommended|Advised against|Not recommended yet|No rec)", ended, re.M)
    return checked, read_results(Path("run"))


def value(rows: pd.DataFrame, metric: str, variant: str = "gelu") -> float:
    """What the stage `accuracy` has measured on the test part."""
    chosen = rows[(rows.variant == variant) & (rows.metric == metric) & (rows.stage == "accuracy")]
    return float(chosen.value.iloc[0])


def trained(
    make: Callable[[], nn.Module],
    inputs: np.ndarray,
    loss: Callable[[object], torch.Tensor],
    steps: int = 150,
) -> nn.Module:
    """A network after some steps over all samples at once."""
    torch.manual_seed(0)
    module = make()
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(module(torch.as_tensor(inputs))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    save_file(dict(module.state_dict()), "weights.safetensors")
    return module.eval()


def relu_out() -> tuple[dict[str, torch.Tensor], nn.Module]:
    """The weights that `relu-ize` wrote, and the network that a user loads."""
    return load_file("out/model.safetensors"), load_own(resolve("my.py:make", what="it"), "out")


UNET = """
import torch
from torch import nn

class UNet(nn.Module):
    def __init__(self, outputs=3):
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3, 2, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(12, outputs, 3, padding=1)
        self.act = nn.GELU()

    def forward(self, x):
        fine = self.act(self.down(x))
        coarse = self.act(self.up(self.act(self.deep(fine))))
        return self.last(torch.cat([fine, coarse], 1))

def make(): return UNet()
def one(): return UNet(1)
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


@pytest.mark.slow
def test_a_u_net_is_measured_by_its_mean_iou() -> None:
    x_test, y_test = segmented()
    x, y = pictures(200, 0)
    cross_entropy = nn.functional.cross_entropy
    module = trained(
        resolve("my.py:make", what="it"), x, lambda made: cross_entropy(made, torch.as_tensor(y))
    )
    words = ("my.py:make", "--data", "data.npz", "--task", "segmentation")
    weights = ("--weights", "weights.safetensors")
    checked, rows = through(*words, *weights, of_check="accuracy,export,bounds,smt")
    assert re.search(r"^accuracy +will run$", checked, re.M)
    assert re.search(r"^bounds +will not: nothing to certify: a task Segmentation", checked, re.M)

    def mean_iou(network: nn.Module) -> float:
        with torch.no_grad():
            decided = network(torch.as_tensor(x_test)).argmax(1)
        return float(jaccard_score(y_test.ravel(), decided.ravel(), average="macro"))

    with torch.no_grad():
        right = (module(torch.as_tensor(x_test)).argmax(1).numpy() == y_test).mean()
    assert value(rows, "mean_iou") == pytest.approx(mean_iou(module), abs=1e-6)
    assert value(rows, "accuracy") == pytest.approx(right, abs=1e-6)
    # The network that relu-ize wrote has the score that its run has measured.
    again = load_own(resolve("my.py:make", what="it"), "out")
    assert isinstance(again.act, nn.ReLU)
    scores = read_results(Path("out/run"))
    scores = scores[(scores.stage == "accuracy") & (scores.metric == "mean_iou")].value
    assert mean_iou(again) in [pytest.approx(score, abs=1e-6) for score in scores]


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
