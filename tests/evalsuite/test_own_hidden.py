"""What a reader of data would otherwise pass over without a word is told or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from evalsuite.contract import Data
from evalsuite.data.reading import read_data
from evalsuite.data.source import source_of
from evalsuite.tasks import Classification, Regression
from opgraph.errors import OwnError

ROWS = 40


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(given: Any) -> Data:
    return read_data(source_of(given), Classification())


def note(data: Data, what: str) -> str:
    return dict(data.notes).get(what, "")


def table(column: list[Any] | None = None, labels: list[Any] | None = None) -> str:
    """A table of noise, that column and labels, of which each is in turn."""
    noise = np.random.default_rng(0).random(ROWS)
    values, labels = column or list(range(7)), labels or [0, 1]
    rows = [f"{noise[i]},{values[i % len(values)]},{labels[i % len(labels)]}" for i in range(ROWS)]
    Path("d.csv").write_text("\n".join(["noise,x,label", *rows]))
    return "d.csv"


SPELLINGS: dict[str, list[str]] = {
    "two cases": ["True", "true", "False", "false"],
    "capitals in part": ["TRUE", "False", "True"],
    "beside 0 and 1": ["True", "False", "1", "0"],
    "beside 0": ["True", "0"],
    "beside 1.0": ["no", "1.0"],
    "yes and Yes": ["yes", "no", "Yes"],
}


@pytest.mark.parametrize("form", SPELLINGS)
def test_truth_values_in_several_spellings_are_no_classes(form: str) -> None:
    with pytest.raises(OwnError, match=r"d\.csv:\d+: the labels .* are truth values in several"):
        read(table(labels=SPELLINGS[form]))
    listed = read({"path": table(labels=SPELLINGS[form]), "labels": SPELLINGS[form]})
    assert listed.classes == len(SPELLINGS[form])


def test_truth_values_in_one_spelling_and_other_names_are_classes() -> None:
    assert read(table(labels=["True", "False"])).class_names == ("False", "True")
    assert read(table(labels=["no", "yes", "maybe"])).class_names == ("maybe", "no", "yes")
    alike = read(table(labels=["Cat", "cat", "dog"]))
    assert note(alike, "classes").endswith("sorted as text; some alike but for case")


@pytest.mark.parametrize("lost", ["nan", "NaN", "<NA>", "NaT", "#N/A"])
def test_a_missing_label_that_was_written_as_text_is_no_class(lost: str) -> None:
    with pytest.raises(OwnError, match=r"d\.csv:3: the label .* where there is none; leave the"):
        read(table(labels=["ant", lost, "bee"]))
    named = {"path": table(labels=["ant", lost, "bee"]), "labels": ["ant", lost, "bee"]}
    assert read(named).classes == 3


@pytest.mark.parametrize("values", [["True", "0"], ["yes", "no", "1", "0"], ["f", "1.0", "0"]])
def test_truth_values_beside_0_and_1_are_refused_as_inputs(values: list[str]) -> None:
    with pytest.raises(OwnError, match=r"column 'x' holds .*: truth values beside 0 and 1"):
        read(table(values))
    assert read(table(["True", "False"])).input_shape == (3,)


COARSE: dict[str, Any] = {
    "int64": pa.array([2**53 + i * 3 % 41 for i in range(ROWS)], pa.int64()),
    "uint64": pa.array([2**63 + i for i in range(ROWS)], pa.uint64()),
    "texts": pa.array([str(10**20 + i % 9) for i in range(ROWS)]),
    "decimals": pa.array([f"1.000000000000000000{i % 10}" for i in range(ROWS)]),
}


@pytest.mark.parametrize("form", COARSE)
def test_numbers_that_float64_does_not_tell_apart_are_refused(form: str) -> None:
    noise = pa.array(np.random.default_rng(0).random(ROWS))
    labels = pa.array([i % 2 for i in range(ROWS)])
    parquet.write_table(pa.table({"x": COARSE[form], "noise": noise, "label": labels}), "d.parquet")
    with pytest.raises(OwnError, match="column 'x' differs between rows by less than float64"):
        read("d.parquet")
    # An identifier is left out as others are.
    if form in ("int64", "uint64"):
        named = pa.table({"user_id": COARSE[form], "noise": noise, "label": labels})
        parquet.write_table(named, "d.parquet")
        assert "left out: 'user_id' is another in each row" in note(read("d.parquet"), "columns")


def test_great_numbers_that_float64_tells_apart_are_inputs() -> None:
    assert read(table([2**60 + i * 10**12 for i in range(9)])).input_shape == (2,)
    assert read(table([2**53 + 2 * i for i in range(9)])).input_shape == (2,)
    assert read(table([2**60])).input_shape == (2,)


def test_a_column_of_one_number_that_no_float_has_is_an_input() -> None:
    for alone in (["0.1"], ["0.1", "0.10"], [str(10**20 + 1)]):
        assert read(table(alone)).input_shape == (2,)


def test_leading_zeros_and_an_empty_last_column_are_told() -> None:
    assert "x (number, some with leading zeros)" in note(read(table(["01234", "90210"])), "columns")
    rows = [f"{i * 7 % 11},{i % 2}," for i in range(ROWS)]
    Path("e.csv").write_text("\n".join(["x,label,", *rows]))
    data = read("e.csv")
    assert data.input_shape == (1,)
    assert "left out: a column without a name and without a value" in note(data, "columns")


def test_classes_without_a_sample_and_samples_that_count_nowhere_are_told() -> None:
    assert note(read(table(labels=[1, 2])), "classes").endswith("by their numbers")
    assert note(read(table(labels=[0, 2])), "classes").endswith("by the data; no sample of 1")
    told = note(read(table(labels=[0, 9])), "classes")
    assert told.endswith("; no sample of 8 of them")
    told = note(read(table(labels=[0, 1, -100, 1])), "classes")
    assert told.endswith("; 10 of 40 samples have -100, and count nowhere")


BESIDE = {
    "an image beside the classes": "i/0.png",
    "a folder in a class": "i/a/more/0.png",
    "another ending": "i/b/0.heic",
    "no ending": "i/b/0",
}


@pytest.mark.parametrize("form", BESIDE)
def test_images_that_are_left_out_of_a_folder_are_told(form: str) -> None:
    for i in range(20):
        pixels = np.random.default_rng(i).integers(0, 256, (4, 4, 3), np.uint8)
        place = Path(f"i/{'ab'[i % 2]}/{i}.png")
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place)
    for name in ("i/a/Thumbs.db", "i/b/.DS_Store", "i/a/notes.txt"):
        Path(name).write_text("nothing")
    assert not note(read("i"), "warning")
    place = Path(BESIDE[form])
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(Path("i/a/0.png").read_bytes())
    data = read("i")
    shown = place.parent if "more" in place.parts else place
    assert note(data, "warning").startswith(f"left out: {shown}; images lie in the folder of")


def test_means_and_deviations_of_pixels_up_to_255_are_refused() -> None:
    for mean, std in (([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]), ([0.5], [127.5]), ([127], [1])):
        with pytest.raises(OwnError, match=r"are of pixels in \[0, 1\].*; divide those .* by 255"):
            source_of({"path": "i", "mean": mean, "std": std})


def part(name: str, values: list[Any], labels: list[Any]) -> None:
    draw = np.random.default_rng(len(name))
    rows = [
        f"{draw.random()},{values[i % len(values)]},{labels[i % len(labels)]}" for i in range(ROWS)
    ]
    Path("p").mkdir(exist_ok=True)
    Path(f"p/{name}.csv").write_text("\n".join(["noise,x,y", *rows]))


BEYOND: dict[str, tuple[list[Any], list[Any], str]] = {
    "names in capitals": (["red", "blue"], ["RED", "BLUE"], "names that train has not in 40 of 40"),
    "half of the names": (["red", "blue"], ["red", "green"], "names that train has not in 20 of"),
    "another unit": (
        [i / 100 for i in range(40)],
        [1, 2, 3, 4],
        "numbers far beyond those of train",
    ),
    "later days": (
        [f"2024-01-{i:02d}" for i in range(1, 28)],
        ["2024-03-01", "2024-04-02"],
        "numbers far beyond those of train, which are clipped in 40 of 40 rows of test",
    ),
}


@pytest.mark.parametrize("form", BEYOND)
def test_a_part_that_has_what_training_has_not_is_told(form: str) -> None:
    train, test, said = BEYOND[form]
    part("train", train, [0, 1, 1])
    part("test", test, [0, 1, 1])
    told = note(read("p"), "warning")
    assert told.startswith(f"column 'x' has {said}")
    part("test", train, [0, 1, 1])
    assert not note(read("p"), "warning")


@pytest.mark.parametrize("order", [("train", "test"), ("test", "train")])
@pytest.mark.parametrize("what", ["inputs", "targets"])
def test_a_part_in_another_scale_is_told(what: str, order: tuple[str, str]) -> None:
    draw = np.random.default_rng(0)
    arrays = {}
    for name in order:
        pixels, values = draw.random((ROWS, 1, 4, 4)), draw.random(ROWS)
        scale = 255 if name == "test" else 1
        arrays[f"x_{name}"] = (pixels * (scale if what == "inputs" else 1)).astype(np.float32)
        arrays[f"y_{name}"] = values * (scale if what == "targets" else 1)
    np.savez("d.npz", **arrays)
    told = note(read_data(source_of("d.npz"), Regression()), "warning")
    assert told.startswith(f"the {what} of test deviate 2")
    scaled = f"{what[0].replace('i', 'x').replace('t', 'y')}_test"
    np.savez("d.npz", **{**arrays, scaled: arrays[scaled] / 255})
    assert not note(read_data(source_of("d.npz"), Regression()), "warning")


def test_targets_of_parts_in_two_forms_are_refused() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.random((ROWS, 3), np.float32), np.arange(ROWS) % 2
    one_hot = np.eye(2)[y[:20]]
    np.savez("d.npz", x_train=x, y_train=y, x_test=x[:20] + 1, y_test=one_hot)
    with pytest.raises(OwnError, match="targets of train are numbers, of test rows of 2 numbers"):
        read("d.npz")


def test_texts_that_are_cut_or_empty_are_told() -> None:
    texts = [f"sample {i} " + "word " * (i % 9) for i in range(ROWS)]

    def told(length: int) -> str:
        lines = [json.dumps({"text": text, "label": i % 2}) for i, text in enumerate(texts)]
        Path("t.jsonl").write_text("\n".join(lines))
        return note(read({"path": "t.jsonl", "tokenizer": "bytes", "length": length}), "texts")

    assert not told(200)
    cut = sum(len(text) >= 30 for text in texts)
    wanted = f"{cut} of 40 have 30 tokens or more, of which the first 30 are given"
    assert told(30).startswith(wanted)
    texts[3] = ""
    assert told(200) == "1 of 40 have no token"


SETUP = """
import numpy as np, torch
from torch.utils.data import *
X = torch.tensor(np.random.default_rng(0).normal(size=(60, 3)), dtype=torch.float32)
Y = torch.arange(60) % 3
class Plain(Dataset):
    def __len__(self): return 60
    def __getitem__(self, i): return X[i], int(Y[i])
class Flipped(Plain):
    def __getitem__(self, i): return X[i].flip(0) if torch.rand(()) < 0.5 else X[i], int(Y[i])
class Listed(Plain):
    classes, class_to_idx = ["c", "a", "b"], {"c": 0, "a": 1, "b": 2}
class Contradictory(Listed):
    class_to_idx = {"a": 0, "b": 1, "c": 2}
"""


def returned(value: str) -> Data:
    Path("my.py").write_text(f"{SETUP}\ndef make():\n    return {value}\n")
    return read("my.py:make")


def samples(data: Data) -> int:
    parts = (data.train, data.calibration, data.validation, data.test)
    return sum(len(part) for part in parts)


@pytest.mark.parametrize("dataset", ["Plain()", "TensorDataset(X, Y)"])
def test_a_loader_gives_the_samples_that_its_sampler_draws(dataset: str) -> None:
    assert samples(returned(f"DataLoader({dataset}, 8, shuffle=True)")) == 60
    drawn = "sampler=SubsetRandomSampler(range(30, 59))"
    data = returned(f"DataLoader({dataset}, 8, {drawn})")
    assert samples(data) == 29
    whole = returned(dataset)
    assert float(data.train.inputs[:].sum()) != float(whole.train.inputs[:].sum())
    for sampler in (
        "sampler=WeightedRandomSampler([1.0] * 60, 60)",
        "batch_sampler=BatchSampler(WeightedRandomSampler([1.0] * 60, 60), 8, False)",
        "batch_sampler=[[0, 1], [2, 3]]",
    ):
        given = sampler if "batch" in sampler else f"batch_size=8, {sampler}"
        with pytest.raises(OwnError, match=r"the loader draws samples by \w+; give the data set"):
            returned(f"DataLoader({dataset}, {given})")
    for sampler in ("SequentialSampler", "RandomSampler"):
        with pytest.raises(OwnError, match="the sampler is of 40 of 60 samples; make the sampler"):
            returned(f"DataLoader({dataset}, 8, sampler={sampler}(range(40)))")


def test_a_data_set_that_changes_some_samples_at_random_is_refused() -> None:
    with pytest.raises(OwnError, match=r"sample \d+ is another at each reading"):
        returned("Flipped()")


def test_a_data_set_that_numbers_its_classes_in_two_ways_is_refused() -> None:
    assert returned("Listed()").class_names == ("c", "a", "b")
    with pytest.raises(OwnError, match="'c' is 0 by `classes`, 2 by `class_to_idx`"):
        returned("Contradictory()")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("X.to_sparse(), Y", "input 0 is sparse, or nested; give it as .to_dense"),
        ("X.to_sparse_csr(), Y", "input 0 is sparse, or nested; give it as .to_dense"),
        ("np.ma.masked_greater(X.numpy(), 1.5), Y", "input 0 has [0-9]+ masked entries; fill them"),
        ("X, np.ma.masked_equal(Y.numpy(), 2)", "y has 20 masked entries; fill them, or leave"),
        ("X, Y, torch.arange(60)", "each of the 60 samples has a class of its own: identifiers"),
    ],
)
def test_arrays_that_say_less_than_they_seem_are_refused(value: str, said: str) -> None:
    with pytest.raises(OwnError, match=said):
        returned(value)
