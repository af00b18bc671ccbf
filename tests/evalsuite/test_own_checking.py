"""What `check` shows to be verified by eye, and how long it says that the whole will take."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from evalsuite.contract import Data
from evalsuite.own.assessing import asked_of
from evalsuite.own.brought import forget
from evalsuite.own.duration import Pace, duration_of
from evalsuite.own.floors import floors
from evalsuite.own.options import own_of
from evalsuite.own.own import Own
from evalsuite.own.preview import draw_samples, file_tokenizer, first_score, sample_lines
from evalsuite.plan import jobs_of
from evalsuite.recipe import parse_recipe
from evalsuite.results import Status
from evalsuite.run.journal import Entry

NETS = """
from torch import nn

def net():
    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3))

class Texts(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.words, self.head = nn.Embedding(256, 8), nn.Linear(8, width)
        self.act = nn.GELU()

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.act(self.words(input_ids)).mean(1))

class Next(Texts):
    def __init__(self):
        super().__init__(256)

    def forward(self, tokens):
        return self.head(self.act(self.words(tokens)))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(NETS)
    forget()  # another test's data lay under the same relative names
    return tmp_path


def opened(data: Any, model: str = "my.py:net", **options: Any) -> tuple[Own, Data]:
    own = own_of({"model": model, "data": data, **options})
    return own, own.data()


def lines_of(own: Own, data: Data) -> list[str]:
    tokenizer = file_tokenizer(own.data_choice, own.model_choice, data)
    return list(sample_lines(data, tokenizer))


def test_rows_of_a_table_are_shown_with_the_values_that_the_file_has() -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"height": draw.integers(100, 999, 60) / 4, "width": draw.random(60) * 9})
    frame["colour"] = draw.choice(["red", "blue", "green"], 60)
    frame.loc[::5, "width"] = np.nan
    frame["kind"] = np.where(frame["height"] > 130, "tall", "low")
    frame.to_csv("d.csv", index=False)
    own, data = opened({"path": "d.csv", "target": "kind"})
    lines = list(lines_of(own, data))
    assert len(set(lines)) == 3
    for line in lines:
        found = re.fullmatch(
            r"height (\S+), width (\S+|is missing), colour = (\w+) -> (\d) \((\w+)\)", line
        )
        assert found is not None, line
        (row,) = frame[np.isclose(frame["height"], float(found[1]), atol=1e-3)].to_dict("records")
        width = "is missing" if np.isnan(row["width"]) else f"{row['width']:.4g}"
        shown = found[2] if found[2] == "is missing" else f"{float(found[2]):.4g}"
        assert (shown, found[3], found[5]) == (width, row["colour"], row["kind"])
        assert found[4] == {"low": "0", "tall": "1"}[found[5]]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("%Y%m%d", "%Y%m%d"),
        ("%Y-%m-%d", "%Y-%m-%d"),
        ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"),
        ("%Y-%m-%d %H:%M:%S+02:00", "%Y-%m-%d %H:%M+00:00"),
    ],
)
def test_numbers_and_dates_are_shown_as_they_stand_in_the_file(written: str, shown: str) -> None:
    draw = np.random.default_rng(0)
    days = pd.to_datetime("2021-03-01") + pd.to_timedelta(draw.permutation(60) * 13, "D")
    days += pd.to_timedelta("3h") if "%H" in written else pd.to_timedelta(0)
    frame = pd.DataFrame({"number": draw.integers(1, 2_000_000, 60), "part": draw.random(60)})
    frame["part"] = frame["part"].round(4)
    frame["day"] = days.strftime(written)
    frame["price"] = draw.integers(1_000_000, 2_000_000, 60) + draw.choice([0, 0.25], 60)
    frame.to_csv("d.csv", index=False)
    own, data = opened({"path": "d.csv", "target": "price"}, task="regression")
    # In UTC, and in minutes where float32 tells no seconds of two years.
    utc = days - pd.to_timedelta("2h" if "+02:00" in written else "0h")
    rows = [
        f"number {row.number}, part {row.part:g}, day {day} -> {row.price:.9g}"
        for row, day in zip(frame.itertuples(), utc.strftime(shown), strict=True)
    ]
    assert set(lines_of(own, data)) <= set(rows)


def test_a_moment_that_is_missing_is_not_shown_as_the_mean() -> None:
    frame = pd.DataFrame({"size": np.random.default_rng(0).random(60)})
    frame["at"] = pd.Series(pd.date_range("2021-03-01 03:00", periods=60, freq="5h")).astype(str)
    frame["kind"] = np.arange(60) % 2
    frame.loc[frame.index % 7 < 6, "at"] = None
    frame.to_csv("d.csv", index=False)
    own, data = opened({"path": "d.csv", "target": "kind"})
    lines = [line.partition(", ")[2].partition(" -> ")[0] for line in lines_of(own, data)]
    assert set(lines) <= {"at is missing", *(f"at {value}" for value in frame["at"].dropna())}
    assert "at is missing" in lines


def test_many_tokens_are_shown_by_their_numbers() -> None:
    tokens = np.random.default_rng(0).integers(10_000_000, 99_999_999, (40, 5))
    np.savez("d.npz", x=tokens, y=np.arange(40) % 3)
    own, data = opened("d.npz")
    for line in lines_of(own, data):
        assert json.loads(line.partition(" -> ")[0]) in tokens.tolist()


@pytest.mark.parametrize("tokens", ["bytes", "words.json"])
def test_texts_are_shown_as_they_were_written(tokens: str) -> None:
    rows = [{"text": f"a {'good' if i % 2 else 'bad'} film {i}", "label": i % 2} for i in range(40)]
    Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if tokens != "bytes":
        library = pytest.importorskip("tokenizers")
        words = ["[UNK]", "a", "good", "bad", "film", *map(str, range(40))]
        made = library.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]")
        made = library.Tokenizer(made)
        made.pre_tokenizer = library.pre_tokenizers.Whitespace()
        made.save(tokens)
    own, data = opened({"path": "d.jsonl", "tokenizer": tokens}, "my.py:Texts")
    for line in lines_of(own, data):
        found = re.fullmatch(r'"(.+)" -> (\d)', line)
        assert found is not None, line
        assert {"text": found[1], "label": int(found[2])} in rows


def test_the_target_of_running_text_is_the_text_one_further() -> None:
    text = ".".join(f"w{i:04d}" for i in range(200))  # each window holds a number of its own
    Path("d.txt").write_text(text)
    own, data = opened({"path": "d.txt", "length": 12}, "my.py:Next", task="language-model")
    for line in lines_of(own, data):
        found = re.fullmatch('"(.+)" -> "(.+)"', line)
        assert found is not None, line
        assert found[1] in text
        assert found[2] in text
        assert text.index(found[2]) == text.index(found[1]) + 1


@pytest.mark.parametrize("scaled", [{}, {"mean": [0.25], "std": [0.5]}])
def test_images_are_drawn_as_they_are_seen(scaled: dict[str, Any]) -> None:
    for kind, grey in (("a", 0), ("b", 102), ("c", 255)):
        for i in range(12):
            place = Path("d", kind, f"{i}.png")
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.full((6, 8), grey, np.uint8)
            pixels[0, 0] = i  # so that no two are equal
            Image.fromarray(pixels).save(place)
    own, data = opened({"path": "d", **scaled})
    assert draw_samples(own.data_choice, data, Path("new/samples.png"))
    with Image.open("new/samples.png") as drawn:
        picture = np.asarray(drawn.convert("L"))
    middle = picture[picture.shape[0] * 3 // 5]
    width = picture.shape[1]
    assert [int(middle[width * (2 * k + 1) // 6]) for k in range(3)] == [0, 102, 255]
    lines = list(lines_of(own, data))
    assert lines[0].startswith("an image of 6 x 8 pixels, one channel, from ")
    assert [line.rpartition("-> ")[2] for line in lines] == ["0 (a)", "1 (b)", "2 (c)"]


def test_a_table_is_not_drawn() -> None:
    x = np.random.default_rng(0).random((40, 4), "f4")
    np.savez("d.npz", x=x, y=np.arange(40) % 3)
    own, data = opened("d.npz")
    assert not draw_samples(own.data_choice, data, Path("samples.png"))
    assert not Path("samples.png").exists()


def test_the_first_score_of_a_trained_network_is_its_own() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(400, 4)).astype("f4"), draw.integers(0, 3, 400)
    np.savez("d.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3))
    save_file(net.state_dict(), "net.safetensors")
    model = {"path": "my.py:net", "weights": "net.safetensors"}
    own, data = opened("d.npz", model, start="trained")
    found = first_score(own, data, floors(data))
    with torch.no_grad():
        right = (net(torch.tensor(x[200:])).argmax(1).numpy() == y[200:]).mean()
    most = np.bincount(y[200:]).max() / 200
    assert found.metric.value == pytest.approx(right)
    assert found.words == (
        f"accuracy {100 * right:.1f} % on 200 test samples; always naming the most frequent class"
        f" has {100 * most:.1f} %"
    )


def test_a_headline_without_a_floor_stands_beside_a_metric_that_has_one() -> None:
    x = np.random.default_rng(0).normal(size=(400, 4)).astype("f4")
    np.savez("d.npz", x_train=x[:200], y_train=x[:200, 0], x_test=x[200:], y_test=x[200:, 0])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 1))
    save_file(net.state_dict(), "net.safetensors")
    Path("my.py").write_text(NETS.replace("16, 3", "16, 1"))
    model = {"path": "my.py:net", "weights": "net.safetensors"}
    own, data = opened("d.npz", model, start="trained", task="regression")
    found = first_score(own, data, floors(data))
    with torch.no_grad():
        errors = net(torch.tensor(x[200:]))[:, 0].numpy() - x[200:, 0]
    r2 = 1 - np.square(errors).mean() / x[200:, 0].var()
    said = re.fullmatch(
        r"rmse (\S+) target units on 200 test samples, r2 (\S+) %; always giving the mean has r2"
        r" 0 %",
        found.words,
    )
    assert said is not None, found.words
    assert float(said[1]) == pytest.approx(np.sqrt(np.square(errors).mean()), abs=0.006)
    assert float(said[2].replace("\N{MINUS SIGN}", "-")) == pytest.approx(100 * r2, abs=0.06)


def test_another_network_is_trained_for_a_moment_first() -> None:
    x = np.random.default_rng(0).normal(size=(400, 4)).astype("f4")
    np.savez("d.npz", x=x, y=x[:, :3].argmax(1))
    own, data = opened("d.npz", learning_rate=0.02)
    found = first_score(own, data, floors(data))
    assert found.words.startswith("after 100 steps of training: accuracy ")
    assert found.metric.value is not None
    assert found.metric.value > 0.8  # the classes are the places of the maximum


def test_a_network_of_long_steps_is_scored_untrained_and_its_step_is_estimated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.random.default_rng(0).normal(size=(400, 4)).astype("f4")
    np.savez("d.npz", x=x, y=x[:, :3].argmax(1))
    own, data = opened("d.npz", learning_rate=0.02)
    sizes: list[int] = []
    forward = nn.Linear.forward

    def noted(layer: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            sizes.append(len(rows))
        return forward(layer, rows)

    monkeypatch.setattr(nn.Linear, "forward", noted)
    monkeypatch.setattr("evalsuite.own.preview._SECONDS", 0.0)
    first = first_score(own, data, floors(data))
    assert first.words.startswith("untrained: accuracy ")
    assert first.step_seconds > 0
    assert set(sizes) == {2}  # never a whole batch


def test_inputs_of_several_tensors_have_a_first_score_too() -> None:
    rows = [{"text": f"a {'good' if i % 2 else 'bad'} film {i}", "label": i % 2} for i in range(40)]
    Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    own, data = opened({"path": "d.jsonl", "tokenizer": "bytes"}, "my.py:Texts")
    assert " test samples" in first_score(own, data, floors(data)).words


def test_no_step_has_more_time_than_a_job_of_its_assessment() -> None:
    rows = [{"text": f"film {number}", "label": number % 2} for number in range(40)]
    Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"model": "my.py:Texts", "data": {"path": "d.jsonl", "tokenizer": "bytes"}}
    asked = asked_of(options, search=False, quick=True, stages=("quantize",))
    (step,) = parse_recipe(asked.text()).steps
    assert step.time_limit == 1800
    # A trial of it has seconds for each job, and so has this step.
    (step,) = parse_recipe(asked.miniature(8, 20.0).text()).steps
    assert step.time_limit == 20


RECIPE = """
name: net
baseline: gelu
workloads: [iris-mlp]
variants: [gelu, gelu-swap, swap-finetuned]
seeds: {seeds}
steps: [accuracy, {{use: smt, samples: {samples}}}]
"""


def test_the_duration_is_the_sum_of_what_jobs_take() -> None:
    trial, whole = (
        parse_recipe(RECIPE.format(seeds=seeds, samples=samples))
        for seeds, samples in (([0], 2), ([0, 1], 10))
    )
    taken = {"train": 3.0, "accuracy": 2.0, "smt": 6.0}
    entries = {
        job.id: Entry(job.id, "", Status.OK, (), seconds=taken[job.step_name])
        for job in jobs_of(trial)
    }
    pace = Pace(epoch=10.0, test=4.0, training=(20.0, 40.0), search=(5.0, 50.0))
    found = duration_of(whole, trial, entries, pace, workers=2)
    # Of two seeds: a training, a swap and a tenth of a training; three accuracies; three searches
    # over five times the samples.
    for training, search, factor, end in (
        (20.0, 5.0, 0.35, found.shortest),
        (40.0, 50.0, 1.6, found.longest),
    ):
        made = (3 + training) + 3 + (3 + 0.1 * training)
        jobs = {job.step_name: job for job in jobs_of(whole)}
        assert not any(job.exclusive for job in jobs.values())
        measured = 3 * (2 + 4) + 3 * (2 + 4 * 5 + 4)
        assert end == pytest.approx(search + factor * 2 * (made + measured) / 2)
    assert "or longer" not in found.words
    cut = {name: Entry(name, "", Status.TIMEOUT, ()) for name in entries}
    assert duration_of(whole, trial, cut, pace, 2).words.endswith("a stage was cut short here")
