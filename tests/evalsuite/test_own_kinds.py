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
from sklearn.metrics import jaccard_score, r2_score
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
    def __init__(self, form="dict", levels=1):
        super().__init__()
        self.form = form
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU())
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


@pytest.mark.slow
def test_two_outputs_are_treated_and_told_apart(
    headed: dict[str, dict[str, np.ndarray]],
) -> None:
    rows, test = headed["train"], headed["test"]
    functional = nn.functional

    def loss(made: object) -> torch.Tensor:
        assert isinstance(made, dict)
        level = functional.mse_loss(made["level"][:, 0], torch.tensor(rows["level"]))
        return level + functional.cross_entropy(made["side"], torch.tensor(rows["side"]))

    module = trained(resolve("my.py:make", what="it"), rows["x"], loss)
    words = ("my.py:make", "--data", "data.npz", "--task", "level=regression,side=classification")
    weights = ("--weights", "weights.safetensors")
    checked, found = through(*words, *weights, of_check="accuracy,export,bounds")
    assert re.search(r"^bounds +will not: nothing to certify", checked, re.M)

    def scores(network: nn.Module) -> tuple[float, float]:
        with torch.no_grad():
            made = network(torch.tensor(test["x"]))
        right = (made["side"].argmax(1).numpy() == test["side"]).mean()
        return float(right), float(r2_score(test["level"], made["level"][:, 0]))

    accuracy, r2 = scores(module)
    assert value(found, "side_accuracy") == pytest.approx(accuracy, abs=1e-6)
    assert value(found, "level_r2") == pytest.approx(r2, abs=1e-5)
    assert value(found, "mean_score") == pytest.approx((accuracy + r2) / 2, abs=1e-5)
    # The network that relu-ize wrote returns what the user's does, with the scores of its run.
    after = scores(load_own(resolve("my.py:make", what="it"), "out"))
    run = read_results(Path("out/run"))
    run = run[run.stage == "accuracy"]
    known = [
        (value(run, "side_accuracy", variant), value(run, "level_r2", variant))
        for variant in run.variant.unique()
    ]
    assert after in [pytest.approx(each, abs=1e-5) for each in known]
    page = Path("out/run/report.md").read_text()
    assert "side accuracy" in page
    assert "level r2" in page


GRU = """
from torch import nn

class Net(nn.Module):
    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.rnn = kind(3, 12, batch_first=True)
        self.head = nn.Sequential(nn.Linear(12, 12), nn.GELU(), nn.Linear(12, 2))

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.head(states[:, -1])

def make(): return Net()
def lstm(): return Net(nn.LSTM)
"""


def sequences(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of six steps, and whether the sum of one of their columns is positive."""
    x = np.random.default_rng(seed).normal(size=(count, 6, 3)).astype(np.float32)
    return x, (x[:, :, 0].sum(1) > 0).astype(np.int64)


@pytest.mark.slow
def test_a_gru_is_treated_and_says_what_it_cannot_be_measured_by() -> None:
    Path("my.py").write_text(GRU)
    (x, y), (x_test, y_test) = sequences(240, 0), sequences(80, 1)
    np.savez("data.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    make = resolve("my.py:make", what="it")
    cross_entropy = nn.functional.cross_entropy
    module = trained(make, x, lambda made: cross_entropy(made, torch.as_tensor(y)), 60)  # type: ignore[arg-type]
    words = ("my.py:make", "--data", "data.npz", "--weights", "weights.safetensors")
    stages = "accuracy,quantize,bounds"
    checked, rows = through(*words, of_check=stages)
    # Each stage that cannot read a GRU says so in a line of its own, and none fails.
    assert re.search(r"^accuracy +will run$", checked, re.M)
    assert re.search(r"^quantize-w8 +will not: rnn \(GRU\): recurrent layers are", checked, re.M)
    assert re.search(r"^bounds +will not: .*\(GRU\): no reader for this", checked, re.M)
    assert "Error" not in checked
    with torch.no_grad():
        right = module(torch.as_tensor(x_test)).argmax(1).numpy() == y_test
    assert value(rows, "accuracy") == pytest.approx(right.mean(), abs=1e-6)
    assert right.mean() > 0.8
    weights, again = relu_out()
    assert torch.equal(weights["rnn.weight_hh_l0"], again.rnn.weight_hh_l0)
    assert isinstance(again.head[1], nn.ReLU)


COMPILED = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Out:
    logits: torch.Tensor
    hidden: torch.Tensor

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 12), nn.GELU())
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        hidden = self.body(x)
        return Out(self.head(hidden), hidden)

def plain(): return Net()
def make(): return torch.compile(Net().bfloat16())
"""


@pytest.mark.slow
def test_a_compiled_network_of_halves_that_returns_an_object() -> None:
    Path("my.py").write_text(COMPILED)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(320, 3)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    np.savez("data.npz", x=x[:240], y=y[:240], x_test=x[240:], y_test=y[240:])
    plain, targets = resolve("my.py:plain", what="it"), torch.as_tensor(y[:240])

    def loss(made: object) -> torch.Tensor:
        return nn.functional.cross_entropy(made.logits, targets)  # type: ignore[attr-defined]

    module = trained(plain, x[:240], loss)
    module.bfloat16()
    save_file(dict(module.state_dict()), "weights.safetensors")
    words = ("my.py:make", "--data", "data.npz", "--weights", "weights.safetensors")
    checked, rows = through(*words, of_check="accuracy,export")
    assert re.search(r"^export +will run$", checked, re.M)
    assert "; compiled, and measured without torch.compile; weights of bfloat16" in checked
    with torch.no_grad():
        right = module.float()(torch.as_tensor(x[240:])).logits.argmax(1).numpy() == y[240:]
    assert value(rows, "accuracy") == pytest.approx(right.mean(), abs=1e-6)
    weights, again = relu_out()
    assert {each.dtype for each in weights.values()} == {torch.float32}
    assert sorted(weights) == sorted(module.state_dict())
    assert type(again).__name__ == "Net"


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
