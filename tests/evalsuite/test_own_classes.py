"""Which class is which: by the model, by `labels`, or by the data, the same for every form of
data and every task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from torch import nn

from evalsuite.contract import IGNORED, Data, Split, Task
from evalsuite.data.classes import Naming
from evalsuite.data.reading import read_data
from evalsuite.data.source import source_of
from evalsuite.own.asked_model import Model
from evalsuite.own.baseline import doubts
from evalsuite.own.hugging_face import class_names
from evalsuite.tasks import Classification, LanguageModel, MultiLabel, TokenClassification
from opgraph.errors import OwnError

MODEL = ("positive", "negative", "neutral")
COUNT = 60


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(given: Any, task: Task | None = None, naming: Naming | None = None) -> Data:
    return read_data(source_of(given), task or Classification(), tokenizer="bytes", naming=naming)


def spelled(labels: Sequence[Any], form: str) -> str:
    """A file whose sample i has the input i % len(labels), and that label."""
    rows = [(i % len(labels), i * 37 % 101 / 101, labels[i % len(labels)]) for i in range(COUNT)]
    if form == "npz":
        np.savez(
            "d.npz",
            x=np.array([[x, z] for x, z, _ in rows]),
            y=np.array([label for _, _, label in rows]),
        )
    elif form == "csv":
        Path("d.csv").write_text(
            "\n".join(["x;z;label", *(f"{x};{z};{label}" for x, z, label in rows)]),
            encoding="utf-8",
        )
    elif form == "jsonl":
        Path("d.jsonl").write_text(
            "\n".join(json.dumps({"x": x, "z": z, "label": label}) for x, z, label in rows)
        )
    elif form == "parquet":
        columns = {
            "x": [float(x) for x, _, _ in rows],
            "z": [z for _, z, _ in rows],
            "label": [label for *_, label in rows],
        }
        parquet.write_table(pa.table(columns), "d.parquet")
    return f"d.{form}"


def order_of(data: Data, kinds: int) -> list[int]:
    """The class of each kind, read off scaled inputs."""
    pairs: dict[int, int] = {}
    for split in (data.train, data.calibration, data.validation, data.test):
        for row, target in zip(split.inputs[:], split.targets.tolist(), strict=True):
            scaled = float(row.flatten()[0])
            kind = round(scaled if data.domain[1] > 1 else scaled * (kinds - 1))
            assert pairs.setdefault(kind, target) == target
    return [pairs[kind] for kind in range(kinds)]


TWELVE = list(range(12))
SPELLINGS: list[tuple[str, list[str], list[int]]] = [
    ("plain", [str(i) for i in TWELVE], TWELVE),
    ("floats", [f"{i}.0" for i in TWELVE], TWELVE),
    ("floats with a point", [f"{i}." for i in TWELVE], TWELVE),
    ("exponents", [f"{i}e0" for i in TWELVE], TWELVE),
    ("plus signs", [f"+{i}" for i in TWELVE], TWELVE),
    ("padded", [f"{i:02}" for i in TWELVE], TWELVE),
    ("padded by five", [f"{i:05}" for i in TWELVE], TWELVE),
    ("padded, from 1", [f"{i + 1:02}" for i in TWELVE], TWELVE),
    ("from 1", [str(i + 1) for i in TWELVE], TWELVE),
    ("a gap", [str(i * 2) for i in range(6)], [0, 2, 4, 6, 8, 10]),
    ("a gap, padded", [f"{i * 2:02}" for i in range(6)], TWELVE[:6]),
    ("negative", ["-1", "0", "1"], [0, 1, 2]),
    ("another script", [chr(0x0660 + i) for i in range(10)], TWELVE[:10]),
    (
        "another script, two digits",
        [str(i).translate({48 + d: 0x0660 + d for d in range(10)}) for i in TWELVE],
        TWELVE,
    ),
    ("08, 09, 10", ["08", "09", "10"], [0, 1, 2]),
    ("booleans", ["False", "True"], [0, 1]),
    ("spaces around", [" cat", "dog ", "eel"], [0, 1, 2]),
    ("names", ["b", "a", "c"], [1, 0, 2]),
    ("names with numbers", [f"c{i}" for i in TWELVE], [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3]),
    ("one more spelling", ["0", "1.0", "2"], [0, 1, 2]),
]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "npz"])
@pytest.mark.parametrize(
    ("_what", "labels", "wanted"), SPELLINGS, ids=[what for what, _, _ in SPELLINGS]
)
def test_labels_in_each_spelling_are_numbered_alike_in_each_format(
    _what: str, labels: list[str], wanted: list[int], form: str
) -> None:
    data = read(spelled(labels, form))
    assert order_of(data, len(labels)) == wanted
    said = dict(data.notes)["classes"]
    assert said.startswith("in order: 0 = ")
    assert all(f"{place} = {data.class_names[place]}" in said for place in wanted[:3])


REFUSED: list[tuple[list[str], str]] = [
    (["1", "1.0", "2"], "'1' and '1.0' are one number in two spellings"),
    (["1", "01", "2"], "'1' and '01' are one number"),
    (["1", "٣", "3"], "'٣' and '3' are one number"),
    (["0.5", "1.5", "2.5"], "the label 0.5 is no class"),
    (["1,0", "2,0", "10,0"], "'1,0' is one of numbers with decimal commas"),
    (["10%", "20%", "100%"], "signs of percent"),
    (["1_0", "2_0", "3_0"], "underscores"),
    (["0x0", "0x1", "0xA"], "hexadecimal"),
    (["$1", "$2", "$10"], "currency"),
    (["0", "1", "nan"], "there is no target"),
    (["0.0", "1.0", "NA"], "there is no target"),
    (["0", "1", ""], "there is no target"),
    (["0", "1", " "], "there is no target"),
    (["1 000", "2 000", "3 000"], "thousands"),
    (["(1)", "(2)", "(3)"], "parentheses"),
    (["1", "2\u200b", "3"], "do not show"),
    (["cat", "cat\u200b", "dog"], "'cat' and 'cat\\u200b' look alike, and would be two classes"),
    (["cat", "\ufeffcat", "dog"], "'cat' and '\\ufeffcat' look alike"),
    (["red cat", "red\u00a0cat", "dog"], "'red cat' and 'red\\xa0cat' look alike"),
    (["red cat", "red  cat", "dog"], "'red cat' and 'red  cat' look alike"),
]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize(("labels", "said"), REFUSED)
def test_spellings_that_would_split_or_merge_classes_are_refused(
    labels: list[str], said: str, form: str
) -> None:
    with pytest.raises(OwnError, match=f"^d.{form}:[0-9]+: ") as refused:
        read(spelled(labels, form))
    assert said in str(refused.value)


def test_what_counts_nowhere_stays_so_in_text() -> None:
    rows = (f"{i % 4},{i / 7},{(0, 1, 2, IGNORED)[i % 4]}" for i in range(COUNT))
    Path("d.csv").write_text("\n".join(["x,z,label", *rows]))
    assert order_of(read("d.csv"), 4) == [0, 1, 2, IGNORED]


NAMES = ["neutral", "positive", "negative"]
LISTED = sorted(NAMES)  # the data's own order: negative, neutral, positive
FOLDERS, DATA_SET, COLUMNS, LISTS, TAGS = (
    "folders",
    "data set",
    "label columns",
    "label lists",
    "tags",
)


def classified(form: str) -> tuple[str, Task, dict[str, Any]]:
    """Data of each form and task whose kinds 0, 1, 2 are neutral, positive, negative; with
    options.
    """
    makers = {
        "class label": of_class_label,
        FOLDERS: of_folders,
        DATA_SET: of_data_set,
        COLUMNS: of_columns,
        LISTS: of_lists,
        TAGS: of_tags,
    }
    task = (
        MultiLabel()
        if form in (COLUMNS, LISTS)
        else TokenClassification()
        if form == TAGS
        else Classification()
    )
    path = makers[form]() if form in makers else spelled(NAMES, form)
    return path, task, {"target": LISTED} if form == COLUMNS else {}


def of_class_label() -> str:
    columns = {"x": [float(i % 3) for i in range(COUNT)], "z": [i / 7 for i in range(COUNT)]}
    table = pa.table({**columns, "label": [LISTED.index(NAMES[i % 3]) for i in range(COUNT)]})
    info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": LISTED}}}}
    parquet.write_table(
        table.replace_schema_metadata({"huggingface": json.dumps(info)}), "d.parquet"
    )
    return "d.parquet"


def of_folders() -> str:
    for kind, name in enumerate(NAMES):
        Path("i", name).mkdir(parents=True)
        for i in range(20):
            pixels = np.full((4, 4), 100 * kind, np.uint8)
            pixels[0, 1:] = i
            Image.fromarray(pixels).save(f"i/{name}/{i}.png")
    return "i"


def of_data_set() -> str:
    Path("my.py").write_text(
        f"import torch\nclass Set(torch.utils.data.Dataset):\n    classes = {LISTED}\n    def"
        f" __len__(self):\n        return {COUNT}\n    def __getitem__(self, i):\n        return"
        " torch.tensor([i % 3, i / 100]), [1, 2, 0][i % 3]\ndef make():\n    return Set()\n"
    )
    return "my.py:make"


def of_columns() -> str:
    rows = [[i % 3, i / 100, *(int(NAMES[i % 3] == name) for name in LISTED)] for i in range(COUNT)]
    Path("d.csv").write_text(
        "\n".join([f"x,z,{','.join(LISTED)}", *(",".join(map(str, row)) for row in rows)])
    )
    return "d.csv"


def of_lists() -> str:
    rows = [{"x": i % 3, "z": i / 100, "labels": [NAMES[i % 3]]} for i in range(COUNT)]
    Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "d.jsonl"


def of_tags() -> str:
    rows = [{"tokens": [str(i % 3), f"w{i}"], "tags": [NAMES[i % 3]] * 2} for i in range(COUNT)]
    Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "d.jsonl"


FORMS = [
    "csv",
    "jsonl",
    "parquet",
    "npz",
    "class label",
    "folders",
    "data set",
    "label columns",
    "label lists",
    "tags",
]


def kinds_of(data: Data, form: str) -> list[int]:
    """The class of each of the three kinds."""
    if form == "tags":
        first: dict[int, int] = {}
        for split in (data.train, data.test):
            inputs: Any = split.inputs
            for row, target in zip(inputs[:]["input_ids"], split.targets, strict=True):
                first[int(row[0]) - ord("0")] = int(target[0])
        return [first[kind] for kind in range(3)]
    if form in ("label columns", "label lists"):
        hot: dict[int, int] = {}
        for row, target in zip(data.train.inputs[:], data.train.targets, strict=True):
            hot[round(float(row[0]) * 2)] = int(target.argmax())
        return [hot[kind] for kind in range(3)]
    if form == "folders":
        shades = {
            round(float(row[0, 0, 0]) * 2.55): int(target)
            for row, target in zip(data.train.inputs[:], data.train.targets, strict=True)
        }
        return [shades[kind] for kind in range(3)]
    return order_of(data, 3)


@pytest.mark.parametrize("form", FORMS)
def test_names_are_numbered_by_the_model_then_by_labels_then_by_the_data(form: str) -> None:
    path, task, options = classified(form)
    alone = read({"path": path, **options}, task)
    assert kinds_of(alone, form) == [1, 2, 0]
    assert alone.class_names == ("negative", "neutral", "positive")
    by_model = read({"path": path, **options}, task, Naming(model=MODEL))
    assert (kinds_of(by_model, form), by_model.class_names, by_model.classes) == (
        [2, 0, 1],
        MODEL,
        3,
    )
    assert (
        "0 = positive, 1 = negative, 2 = neutral; as the model's configuration names them"
        in dict(by_model.notes)["classes"]
    )
    chosen = read({"path": path, "labels": ["neutral", "negative", "positive"], **options}, task)
    assert kinds_of(chosen, form) == [0, 2, 1]


@pytest.mark.parametrize("form", FORMS)
def test_names_that_a_trained_model_lacks_are_refused(form: str) -> None:
    path, task, options = classified(form)
    for model in (("positive", "negative", "mixed"), ("POSITIVE", "NEGATIVE", "NEUTRAL")):
        with pytest.raises(
            OwnError,
            match=r"the data have the classes .*'neutral'.*which the model's configuration lacks",
        ):
            read({"path": path, **options}, task, Naming(model=model))
        fresh = read({"path": path, **options}, task, Naming(model=model, kept=False))
        assert kinds_of(fresh, form) == [1, 2, 0]
    with pytest.raises(
        OwnError,
        match=r"^data\.labels: the model's configuration has another order, 'positive', 'negative'",
    ):
        read(
            {"path": path, "labels": ["negative", "positive", "neutral"], **options},
            task,
            Naming(model=MODEL),
        )


def test_numbers_of_classes_that_the_model_names_and_models_that_name_none() -> None:
    for form in ("csv", "npz", "parquet"):
        data = read(spelled([2, 0, 1], form), naming=Naming(model=MODEL))
        assert (order_of(data, 3), data.class_names) == ([2, 0, 1], MODEL)
    nameless = Naming(model=("LABEL_0", "LABEL_1", "LABEL_2"))
    assert order_of(read(spelled(["b", "a", "c"], "csv"), naming=nameless), 3) == [1, 0, 2]
    many = Naming(model=tuple(f"LABEL_{i}" for i in TWELVE))
    assert order_of(read(spelled([f"LABEL_{i}" for i in TWELVE], "csv"), naming=many), 12) == TWELVE
    fewer = read(spelled(["negative", "neutral"], "csv"), naming=Naming(model=MODEL))
    assert (order_of(fewer, 2), fewer.classes) == ([1, 2], 3)


BY_NUMBER = {str(number): name for number, name in enumerate(MODEL)}
BY_NAME = {name: number for number, name in enumerate(MODEL)}
UPPER = {name.upper(): number for name, number in BY_NAME.items()}
GAP = "numbers its classes"
CONFIGURED: dict[str, tuple[dict[str, Any], tuple[str, ...] | str]] = {
    "by number": ({"id2label": BY_NUMBER}, MODEL),
    "out of order": ({"id2label": dict(reversed(BY_NUMBER.items()))}, MODEL),
    "by name alone": ({"label2id": BY_NAME}, MODEL),
    "by name, numbers as texts": (
        {"label2id": {name: str(i) for name, i in BY_NAME.items()}},
        MODEL,
    ),
    "both": ({"id2label": BY_NUMBER, "label2id": BY_NAME}, MODEL),
    "twelve": (
        {"id2label": {str(i): f"c{i}" for i in reversed(TWELVE)}},
        tuple(f"c{i}" for i in TWELVE),
    ),
    "neither": ({"num_labels": 3}, ()),
    "null": ({"id2label": None, "label2id": None}, ()),
    "contradicting": (
        {"id2label": BY_NUMBER, "label2id": {**BY_NAME, "positive": 1, "negative": 0}},
        "by label2id",
    ),
    "another case": ({"id2label": BY_NUMBER, "label2id": UPPER}, "'POSITIVE' by label2id"),
    "default names on one side": (
        {"id2label": BY_NUMBER, "label2id": {"LABEL_0": 0}},
        "'LABEL_0' by label2id",
    ),
    "fewer on one side": ({"id2label": BY_NUMBER, "label2id": {"positive": 0}}, "None by label2id"),
    "from 1": ({"id2label": {"1": "a", "2": "b"}}, GAP),
    "a gap": ({"id2label": {"0": "a", "2": "b"}}, GAP),
    "padded": ({"id2label": {"00": "a", "01": "b"}}, GAP),
    "as floats": ({"id2label": {"0.0": "a", "1.0": "b"}}, GAP),
    "turned round": ({"id2label": {"a": 0, "b": 1}}, GAP),
}


@pytest.mark.parametrize("form", CONFIGURED)
def test_a_configuration_names_every_class_by_number_or_is_refused(form: str) -> None:
    config, wanted = CONFIGURED[form]
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(config))
    if isinstance(wanted, tuple):
        assert class_names(Model("hf:m")) == wanted
        return
    with pytest.raises(OwnError, match=r"^the model: hf:m: its config\.json ") as refused:
        class_names(Model("hf:m"))
    assert wanted in str(refused.value)


@pytest.mark.parametrize(
    ("names", "text", "natural"),
    [
        ([str(i) for i in TWELVE], [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3], TWELVE),
        ([f"class_{i}" for i in TWELVE], [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3], TWELVE),
        (["3", "20", "100"], [2, 1, 0], [0, 1, 2]),
        (["b", "A", "c"], [1, 0, 2], [1, 0, 2]),
        (["b", "a", "B2"], [2, 1, 0], [1, 0, 2]),
        (["01", "02", "10"], [0, 1, 2], [0, 1, 2]),
        (["x1y2", "x1y10", "x02y1"], [2, 1, 0], [0, 1, 2]),
        (["c-1", "c-10", "c-2"], [0, 1, 2], [0, 2, 1]),
        (["n02", "n010", "n1"], [1, 0, 2], [1, 2, 0]),
        (["10a", "9a", "9b"], [0, 1, 2], [2, 0, 1]),
        (["z", "é", "a"], [1, 2, 0], [1, 2, 0]),
        (["ten", "two", "one"], [1, 2, 0], [1, 2, 0]),
        (["a b2", "a b10", "a a"], [2, 1, 0], [1, 2, 0]),
        (["1e3", "1e20", "20"], [1, 0, 2], [0, 1, 2]),
        (["0.5", "0.10", "0.25"], [2, 0, 1], [0, 1, 2]),
    ],
)
def test_folders_are_sorted_as_text_or_naturally_as_torchvision_and_timm_do(
    names: list[str], text: list[int], natural: list[int]
) -> None:
    for kind, name in enumerate(names):
        Path("i", name).mkdir(parents=True)
        for i in range(10):
            pixels = np.full((2, 2), 20 * kind, np.uint8)
            pixels[1, 1] = i
            Image.fromarray(pixels).save(f"i/{name}/{i}.png")

    def order(**how: Any) -> list[int]:
        data = read(
            {"path": "i", **({"order": how["order"]} if "order" in how else {})},
            naming=how.get("naming"),
        )
        shades = {}
        for split in (data.train, data.calibration, data.validation, data.test):
            for image, target in zip(split.inputs[:], split.targets.tolist(), strict=True):
                shades[round(float(image[0, 0, 0]) * 255 / 20)] = target
        return [shades[kind] for kind in range(len(names))]

    assert order() == text
    assert order(order="natural") == natural
    assert order(naming=Naming(order="natural")) == natural  # of a timm: model
    assert order(naming=Naming(order="natural"), order="text") == text


class Called(nn.Module):
    """Calls class k what `calls` says of it; the class is the first input."""

    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.calls = torch.tensor(calls)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(
            self.calls[inputs[:, 0].round().long()], int(self.calls.max()) + 1
        ).float()


def data_of(classes: int, names: tuple[str, ...] = ()) -> Data:
    np.savez(
        "d.npz",
        x=np.array([[i % classes, i / 1000] for i in range(300)], float),
        y=np.arange(300) % classes,
    )
    return read({"path": "d.npz", "labels": list(names)})


@pytest.mark.parametrize(
    ("calls", "wanted"),
    [
        (list(range(12)), []),
        ([0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3], ["class 10 is called 2 in 100% of cases"]),
        (
            [1, 0],
            ["no better than a guess", "class 0 is called 1 in 100% of cases, class 1 is called 0"],
        ),
        ([1, 2, 0], ["no better than a guess", "class 2 is called 0 in 100% of cases"]),
        ([0, 0, 0, 0], ["right for 25% of", "no better than a guess"]),
        ([0, 1, 1], []),
    ],
)
def test_a_trained_model_that_another_order_would_make_right_is_told(
    calls: list[int], wanted: list[str]
) -> None:
    sentences = doubts(Called(calls), data_of(len(calls)))
    assert all(word in " ".join(sentences) for word in wanted)
    assert bool(sentences) == bool(wanted)
    if calls == [1, 0]:
        named = doubts(Called(calls), data_of(2, ("cat", "dog")))
        assert "class 0 (cat) is called 1 (dog) in 100% of cases" in named[1]


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        ([0, 1, 2, 3], ""),
        (
            [1, 0, 2, 3],
            (
                "label 0 (a) is present where 1 (b) is found (correlation 1.00), label 1 (b) is"
                " present where 0"
            ),
        ),
        ([1, 2, 3, 0], "label 3 (d) is present where 2 (c) is found"),
    ],
)
def test_labels_that_another_order_would_make_right_are_told(order: list[int], wanted: str) -> None:
    """A quarter of all labels is present: that outputs and labels are mostly alike says nothing."""
    present = np.random.default_rng(0).random((300, 4)) < 0.25
    np.savez("d.npz", x=present.astype(np.float32), y=present.astype(np.int64))
    data = read({"path": "d.npz", "labels": list("abcd")}, MultiLabel())
    module = nn.Linear(4, 4)
    with torch.no_grad():
        module.weight.copy_(torch.eye(4)[order])
        module.bias.fill_(-0.5)
    (sentence,) = doubts(module, data) or [""]
    assert wanted in sentence
    assert bool(sentence) == bool(wanted)


class _Words(nn.Module):
    """Logits of a million words at each position, which take no memory; notes how many samples it
    is given.
    """

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Parameter(torch.zeros(()))
        self.seen = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += len(tokens)
        return self.word.expand(*tokens.shape, 2**20)


def test_few_texts_tell_whether_a_model_of_many_words_is_better_than_a_guess() -> None:
    tokens = torch.arange(200 * 16).reshape(200, 16) % 7
    split = Split(tokens, (tokens + 1) % 7, LanguageModel())
    data = Data(split, split, split, split, (0.0, 1.0), 2**20, "0" * 64, 2**20)
    module = _Words()
    (sentence,) = doubts(module, data)
    assert module.seen == 128  # of 200: as many as have 2,048 targets
    assert "right for 14% of 2,048 training targets, no better than a guess" in sentence
