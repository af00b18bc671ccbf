"""What a model calls its classes: in a configuration, in an ONNX file, and in ordered
categories.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image
from pyarrow import parquet
from torch import nn

from evalsuite.contract import Data
from evalsuite.data.classes import Naming
from evalsuite.data.reading import read_data
from evalsuite.data.source import source_of
from evalsuite.own.asked_model import Model
from evalsuite.own.brought import forget
from evalsuite.own.examining import examine
from evalsuite.own.hugging_face import class_names
from evalsuite.own.own import Own
from evalsuite.tasks import Classification, MultiLabel
from opgraph.errors import OwnError

NAMES = ["neutral", "positive", "negative"]
ROWS = 60


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    forget()
    return tmp_path


def table(names: list[Any] = NAMES) -> str:
    rows = (f"{i % len(names)},{i / 7},{names[i % len(names)]}" for i in range(ROWS))
    Path("d.csv").write_text("\n".join(["x,z,label", *rows]))
    return "d.csv"


def read(path: str, naming: Naming | None = None, **options: Any) -> Data:
    return read_data(source_of({"path": path, **options}), Classification(), naming=naming)


def order(data: Data, count: int) -> list[int]:
    pairs = {
        round(float(row[0]) * (count - 1)): int(target)
        for row, target in zip(data.train.inputs[:], data.train.targets, strict=True)
    }
    return [pairs[kind] for kind in range(count)]


TWICE = ("positive", "neutral", "positive", "negative")


def test_a_name_of_two_classes_is_refused_where_the_data_name_classes() -> None:
    said = "the model's configuration calls two classes 'positive', 0 and 2; give `labels`"
    with pytest.raises(OwnError, match=f"^d.csv: {said}"):
        read(table(), Naming(model=TWICE))
    chosen = read(table(), Naming(model=TWICE), labels=["positive", "neutral", "good", "negative"])
    assert (order(chosen, 3), chosen.classes) == ([1, 0, 3], 4)
    numbers = read(table([0, 1, 3]), Naming(model=TWICE))
    assert (order(numbers, 3), numbers.class_names) == ([0, 1, 3], ("0", "1", "2", "3"))
    trained_anew = read(table(), Naming(model=TWICE, kept=False))
    assert order(trained_anew, 3) == [1, 2, 0]


@pytest.mark.parametrize("form", ["columns", "lists", "class label"])
def test_a_name_of_two_classes_is_refused_in_every_form_of_data(form: str) -> None:
    naming, listed = Naming(model=TWICE), sorted(NAMES)
    kinds = {"x": [float(i % 3) for i in range(ROWS)], "z": [i / 7 for i in range(ROWS)]}
    if form == "columns":
        hot = {name: [int(NAMES[i % 3] == name) for i in range(ROWS)] for name in listed}
        pd.DataFrame({**kinds, **hot}).to_csv("d.csv", index=False)
        source, task = source_of({"path": "d.csv", "target": listed}), MultiLabel()
    elif form == "lists":
        rows = [{"x": i % 3, "z": i / 7, "labels": [NAMES[i % 3]]} for i in range(ROWS)]
        Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))
        source, task = source_of("d.jsonl"), MultiLabel()
    else:
        numbers = [listed.index(NAMES[i % 3]) for i in range(ROWS)]
        info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": listed}}}}
        described = pa.table({**kinds, "label": numbers})
        described = described.replace_schema_metadata({"huggingface": json.dumps(info)})
        parquet.write_table(described, "d.parquet")
        source, task = source_of("d.parquet"), Classification()
    with pytest.raises(OwnError, match="calls two classes 'positive', 0 and 2"):
        read_data(source, task, naming=naming)


LISTS: dict[str, tuple[dict[str, Any], str]] = {
    "names": ({"id2label": NAMES}, 'has id2label as a list, not a mapping; write {"0": "cat"'),
    "pairs": ({"id2label": [[0, "a"], [1, "b"]]}, "has id2label as a list"),
    "a text": ({"id2label": "cat,dog"}, "has id2label as a str"),
    "the other way": ({"label2id": NAMES}, 'has label2id as a list, not a mapping; write {"cat"'),
    "a number": ({"id2label": 3}, "has id2label as a int"),
}


@pytest.mark.parametrize("form", LISTS)
def test_a_configuration_without_a_mapping_is_refused_in_words(form: str) -> None:
    config, said = LISTS[form]
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(config))
    with pytest.raises(OwnError) as refused:
        class_names(Model("hf:m"))
    assert str(refused.value).startswith(f"the model: hf:m: its config.json {said}")


MODULE = """
import torch
from types import SimpleNamespace
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, {count}))
        self.config = SimpleNamespace(id2label={names})

    def forward(self, x):
        return self.layers(x)
"""


def own(names: Any, count: int, **options: Any) -> Own:
    file = f"net{len(list(Path().glob('net*.py')))}.py"  # a file is imported once
    Path(file).write_text(MODULE.format(names=repr(names), count=count))
    torch.save(own_state(count), "w.pt")
    model = {"path": f"{file}:Net", "weights": "w.pt"}
    return Own(model=model, source={"path": "d.csv", **options}, start="trained")


def own_state(count: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, count))
    return {f"layers.{name}": tensor for name, tensor in layers.state_dict().items()}


TWELVE = [f"c{i:02}" for i in range(12)]


@pytest.mark.parametrize("key", [int, str])
def test_a_modules_own_names_are_in_the_order_of_their_numbers(key: Callable[[int], Any]) -> None:
    """As texts, 10 is before 2."""
    table(TWELVE)
    lines = dict(examine(own({key(i): name for i, name in enumerate(TWELVE)}, 12)).lines)
    assert "in order: 0 = c00, 1 = c01, 2 = c02" in lines["classes"]
    as_text = sorted(range(12), key=str)
    turned = {key(i): TWELVE[place] for i, place in enumerate(as_text)}
    with pytest.raises(OwnError, match=r"^the classes: the model calls its outputs c00, c01, c10,"):
        examine(own(turned, 12))


OTHERS: dict[str, tuple[Any, str]] = {
    "another case": ({0: "Negative", 1: "Neutral", 2: "Positive"}, "; give `labels`, the data's"),
    "another language": ({0: "neutral_", 1: "gut", 2: "schlecht"}, "; give `labels`, the data's"),
    "another order": ({0: "neutral", 1: "positive", 2: "negative"}, "in these orders; write `data"),
    "one twice": ({0: "neutral", 1: "positive", 2: "neutral"}, "calls two classes 'neutral'"),
    "a gap": ({0: "neutral", 2: "positive", 3: "negative"}, "numbers its classes 0, 2, 3, not"),
    "a list": (NAMES, "has id2label as a list"),
}


@pytest.mark.parametrize("form", OTHERS)
def test_a_trained_module_with_other_names_than_the_data_is_refused(form: str) -> None:
    names, said = OTHERS[form]
    table()
    with pytest.raises(OwnError, match=r"^the (classes|model): ") as refused:
        examine(own(names, 3))
    assert said in str(refused.value)
    if form in ("another case", "another language", "one twice"):
        chosen = examine(own(names, 3, labels=["negative", "neutral", "positive"]))
        assert "as `labels` says" in dict(chosen.lines)["classes"]


@pytest.mark.parametrize("names", [{0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}, None, {}])
def test_a_module_without_names_takes_those_of_the_data(names: Any) -> None:
    table()
    assert "sorted as text" in dict(examine(own(names, 3)).lines)["classes"]


STORED: dict[str, tuple[str, str]] = {
    "YOLO's": ("names", "{0: 'positive', 1: 'negative', 2: 'neutral'}"),
    "a list of Python's": ("names", "['positive', 'negative', 'neutral']"),
    "a list of JSON": ("classes", '["positive", "negative", "neutral"]'),
    "Hugging Face's": ("id2label", '{"0": "positive", "1": "negative", "2": "neutral"}'),
    "out of order": ("class_names", '{"2": "neutral", "0": "positive", "1": "negative"}'),
    "labels": ("labels", '["positive", "negative", "neutral"]'),
}


def onnx_file(metadata: dict[str, str]) -> str:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 2), ("y", 3))
    ]
    weight = onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    helper.set_model_props(model, metadata)
    onnx.save(model, "net.onnx")
    return "net.onnx"


@pytest.mark.parametrize("form", STORED)
def test_an_onnx_files_own_names_number_the_classes(form: str) -> None:
    table()
    key, text = STORED[form]
    data = Own(model=onnx_file({key: text}), source="d.csv", start="trained").data()
    assert (order(data, 3), data.class_names) == ([2, 0, 1], ("positive", "negative", "neutral"))


@pytest.mark.parametrize("metadata", [{}, {"names": "of the author"}, {"labels": "[]"}, {"a": "b"}])
def test_other_metadata_of_an_onnx_file_name_no_classes(metadata: dict[str, str]) -> None:
    table()
    data = Own(model=onnx_file(metadata), source="d.csv", start="trained").data()
    assert order(data, 3) == [1, 2, 0]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ('["good", "bad", "neither"]', "which the model's configuration lacks"),
        ('["positive", "negative", "positive"]', "calls two classes 'positive'"),
        ('{"1": "positive", "2": "negative"}', "its metadata numbers its classes 1, 2, not from 0"),
    ],
)
def test_an_onnx_files_names_that_do_not_fit_are_refused(names: str, said: str) -> None:
    table()
    with pytest.raises(OwnError, match=said):
        Own(model=onnx_file({"names": names}), source="d.csv", start="trained").data()


LEVELS = ["low", "mid", "high"]


def levels(kind: str) -> pa.Table:
    values = [LEVELS[i % 3] for i in range(ROWS)]
    numbers = {"x": [float(i % 3) for i in range(ROWS)], "z": [i / 7 for i in range(ROWS)]}
    if kind.startswith("pandas"):
        given = {"pandas, ordered": LEVELS, "pandas, listed": LEVELS, "pandas, found": None}[kind]
        label = pd.Categorical(values, categories=given, ordered=kind == "pandas, ordered")
        return pa.Table.from_pandas(pd.DataFrame({**numbers, "label": label}))
    encoded = pa.array(values).dictionary_encode()
    if kind == "ordered by the file":
        encoded = pa.DictionaryArray.from_arrays(encoded.indices, pa.array(LEVELS), ordered=True)
    return pa.table({**numbers, "label": encoded})


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("pandas, ordered", [0, 1, 2]),
        ("pandas, listed", [0, 1, 2]),
        ("ordered by the file", [0, 1, 2]),
        ("pandas, found", [1, 2, 0]),  # pandas sorts what it finds
        ("as they appear", [1, 2, 0]),
    ],
)
def test_categories_are_numbered_as_the_file_lists_them_on_purpose(
    kind: str, wanted: list[int]
) -> None:
    parquet.write_table(levels(kind), "d.parquet", row_group_size=25)
    data = read("d.parquet")
    assert order(data, 3) == wanted
    by_model = read("d.parquet", Naming(model=("high", "mid", "low")))
    assert order(by_model, 3) == [2, 1, 0]  # the model decides before the data
    chosen = read("d.parquet", labels=["mid", "low", "high"])
    assert order(chosen, 3) == [1, 0, 2]


def test_categories_that_are_numbers_are_in_the_order_of_these() -> None:
    """pandas sorts texts: 10 before 2."""
    values = [str(i % 12) for i in range(ROWS)]
    kinds = {"x": [float(i % 12) for i in range(ROWS)], "z": [i / 7 for i in range(ROWS)]}
    frame = pd.DataFrame({**kinds, "label": pd.Categorical(values)})
    frame.to_parquet("d.parquet")
    assert order(read("d.parquet"), 12) == list(range(12))


def test_a_data_set_that_lists_names_and_gives_texts_is_numbered_by_the_model() -> None:
    listed = sorted(NAMES)
    Path("my.py").write_text(
        "import torch\nclass Set(torch.utils.data.Dataset):\n"
        f"    classes = {listed}\n    def __len__(self):\n        return {ROWS}\n"
        "    def __getitem__(self, i):\n"
        f"        return torch.tensor([i % 3, i / 100]), {NAMES}[i % 3]\n"
        "def make():\n    return Set()\n"
    )
    model = Naming(model=("positive", "negative", "neutral"))
    data = read_data(source_of("my.py:make"), Classification(), naming=model)
    found = {
        int(row[0]): int(target)
        for row, target in zip(data.train.inputs[:], data.train.targets, strict=True)
    }
    assert [found[kind] for kind in range(3)] == [2, 0, 1]


@pytest.mark.parametrize(
    "labels",
    [
        ["1", "2", "10", "unknown"],
        ["0", "9", "10", "total"],
        ["3", "20", "100", "n"],
        ["2.0", "10.0", "x", "y"],
        ["08", "9", "10", "other"],
    ],
)
def test_numbers_beside_names_are_refused_where_text_would_reorder_them(labels: list[str]) -> None:
    with pytest.raises(OwnError, match=r"^d.csv:\d+: the label '\w+' is no number, and the others"):
        read(table(labels))
    listed = read(table(labels), labels=labels)
    assert order(listed, 4) == [0, 1, 2, 3]


def test_numbers_beside_names_in_the_order_of_text_are_names() -> None:
    assert order(read(table(["0", "1", "other"])), 3) == [0, 1, 2]


@pytest.mark.parametrize("highest", [2_000, 10**9, 2**60])
def test_identifiers_are_no_classes(highest: int) -> None:
    kinds = {"x": [float(i % 3) for i in range(ROWS)], "z": [i / 7 for i in range(ROWS)]}
    parquet.write_table(
        pa.table({**kinds, "label": [highest - i % 3 for i in range(ROWS)]}), "d.parquet"
    )
    with pytest.raises(OwnError, match=rf"the label {highest}, where 3 labels differ, would make"):
        read("d.parquet")


def test_decimals_are_numbers_and_what_is_missing_is_told() -> None:
    kinds = {"x": [float(i % 3) for i in range(ROWS)], "z": [i / 7 for i in range(ROWS)]}
    whole = pa.array([i % 3 for i in range(ROWS)]).cast(pa.decimal128(19, 0))
    parquet.write_table(pa.table({**kinds, "label": whole}), "d.parquet")
    assert order(read("d.parquet"), 3) == [0, 1, 2]
    for missing, kind in ((None, pa.int64()), (float("nan"), pa.float64())):
        labels = pa.array([missing if i == 7 else i % 3 for i in range(ROWS)], kind)
        parquet.write_table(pa.table({**kinds, "label": labels}), "d.parquet")
        with pytest.raises(OwnError, match=r"^d\.parquet, row 7: there is no target; fill it in"):
            read("d.parquet")


PRESENT: dict[str, tuple[Any, Any]] = {
    "numbers": (0, 1),
    "real numbers, as pandas writes them beside missing ones": ("0.0", "1.0"),
    "truth values of pandas": ("False", "True"),
    "of JSON": ("false", "true"),
    "of R": ("FALSE", "TRUE"),
    "of SQL": ("f", "t"),
    "with spaces": (" 0", "1 "),
}


def label_columns(values: tuple[Any, Any], form: str) -> dict[str, Any]:
    rows = [(i % 4, i / 7, values[i % 4 in (1, 2)], values[i % 4 == 3]) for i in range(ROWS)]
    if form == "jsonl":
        lines = [json.dumps(dict(zip(("x", "z", "cat", "dog"), row, strict=True))) for row in rows]
        Path("d.jsonl").write_text("\n".join(lines))
    elif form == "parquet":
        pd.DataFrame(rows, columns=["x", "z", "cat", "dog"]).to_parquet("d.parquet")
    else:
        lines = [",".join(map(str, row)) for row in rows]
        Path("d.csv").write_text("\n".join(["x,z,cat,dog", *lines]))
    return {"path": f"d.{form}", "target": ["cat", "dog"]}


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("spelling", PRESENT)
def test_columns_of_labels_say_what_is_there_in_each_spelling(spelling: str, form: str) -> None:
    """Where they are taken for lists of names, the labels are `0.0` and `1.0`, or `no` and
    `yes`.
    """
    source = source_of(label_columns(PRESENT[spelling], form))
    data = read_data(source, MultiLabel())
    assert data.class_names == ("cat", "dog")
    for row, target in zip(data.train.inputs[:], data.train.targets, strict=True):
        kind = round(float(row[0]) * 3)
        assert target.tolist() == [int(kind in (1, 2)), int(kind == 3)]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize(
    "values",
    [("no", "yes"), (-1, 1), (1, 2), (0, 2), (0, 0.5), ("", 1), ("absent", "present"), ("-", "x")],
)
def test_columns_of_labels_with_other_values_are_refused(
    values: tuple[Any, Any], form: str
) -> None:
    said = r"^d\.\w+:\d+: column 'cat' (holds .*|is empty); a column of a label holds 0 and 1"
    with pytest.raises(OwnError, match=said):
        read_data(source_of(label_columns(values, form)), MultiLabel())


def test_labels_that_are_numbers_and_texts_are_one() -> None:
    rows = [{"x": i % 12, "z": i / 7, "label": (i % 12, str(i % 12))[i % 2]} for i in range(ROWS)]
    Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert order(read("d.jsonl"), 12) == list(range(12))
    rows[13]["label"] = 1.0
    Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(OwnError, match="are one number in two spellings"):
        read("d.jsonl")


@pytest.mark.parametrize("name", ["x", "label"])
def test_a_name_that_stands_twice_in_one_object_is_refused(name: str) -> None:
    rows = [f'{{"x": {i}, "z": {i / 7}, "label": {i % 3}, "{name}": 1}}' for i in range(ROWS)]
    Path("d.jsonl").write_text("\n".join(rows))
    with pytest.raises(OwnError, match=rf"^d\.jsonl:1: two values are called '{name}'"):
        read("d.jsonl")


def pictures(values: tuple[str, str]) -> None:
    Path("i").mkdir()
    rows = []
    for i in range(ROWS):
        pixels = np.full((2, 2), 20 * (i % 4), np.uint8)
        pixels[1, 1] = i
        Image.fromarray(pixels).save(f"i/{i}.png")
        rows.append(f"{i}.png,{values[i % 4 in (1, 2)]},{values[i % 4 == 3]}")
    Path("i/labels.csv").write_text("\n".join(["file,cat,dog", *rows]))


@pytest.mark.parametrize("values", [("0", "1"), ("0.0", "1.0"), ("False", "True")])
def test_columns_of_labels_beside_images_say_what_is_there(values: tuple[str, str]) -> None:
    pictures(values)
    data = read_data(source_of({"path": "i", "target": ["cat", "dog"]}), MultiLabel())
    assert data.class_names == ("cat", "dog")
    for image, target in zip(data.train.inputs[:], data.train.targets, strict=True):
        kind = round(float(image[0, 0, 0]) * 255 / 20)
        assert target.tolist() == [int(kind in (1, 2)), int(kind == 3)]
    Path("i/more.csv").write_text(Path("i/labels.csv").read_text())
    with pytest.raises(OwnError, match=r"^i: has 2 tables, labels\.csv, more\.csv; keep one"):
        read_data(source_of({"path": "i", "target": ["cat", "dog"]}), MultiLabel())


SETS = """
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

class Set(Dataset):
    def __init__(self, count, first, classes):
        self.count, self.first, self.classes = count, first, classes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor([self.first + index % 3, index / 7]), index % len(self.classes)

ABC, CBA, BC = ["a", "b", "c"], ["c", "b", "a"], ["b", "c"]
"""
MADE: dict[str, tuple[str, str]] = {
    "another order in the test part": ("Set(60, 0, ABC), Set(20, 50, CBA)", "the part test lists"),
    "fewer in the test part": ("Set(60, 0, ABC), Set(20, 50, BC)", "the part test lists"),
    "in a loader": ("DataLoader(Set(60, 0, ABC)), DataLoader(Set(20, 50, BC))", "the part test"),
    "in a subset": ("Set(60, 0, ABC), Subset(Set(20, 50, CBA), range(10))", "the part test lists"),
    "by name": ("{'train': Set(60, 0, ABC), 'val': Set(20, 50, CBA)}", "the part validation lists"),
    "joined": ("ConcatDataset([Set(60, 0, ABC), Set(20, 50, CBA)])", "joins data sets that list"),
    "joined, within": (
        "Set(60, 9, ABC), ConcatDataset([Set(9, 50, ABC), Set(9, 70, BC)])",
        "joins data sets that list other classes, b, c and a, b, c",
    ),
    "alike": ("Set(60, 0, ABC), Set(20, 50, ABC)", ""),
    "joined, alike": ("ConcatDataset([Set(60, 0, ABC), Set(20, 50, ABC)])", ""),
}


@pytest.mark.parametrize("form", MADE)
def test_parts_that_number_classes_by_other_lists_are_refused(form: str) -> None:
    made, said = MADE[form]
    Path("sets.py").write_text(f"{SETS}\ndef make():\n    return {made}\n")
    if said:
        with pytest.raises(OwnError, match=f"^sets.py:make: {said}"):
            read_data(source_of("sets.py:make"), Classification())
    else:
        assert read_data(source_of("sets.py:make"), Classification()).class_names == ("a", "b", "c")


@pytest.mark.parametrize("test", [["c", "b", "a"], ["b", "c"], ["a", "b", "c"]])
def test_files_of_parts_that_list_classes_otherwise_are_refused(test: list[str]) -> None:
    Path("d").mkdir()
    for part, names, count in (("train", ["a", "b", "c"], 60), ("test", test, 12)):
        columns = {"x": [float(i % 3) for i in range(count)], "z": [i / 7 for i in range(count)]}
        labels = [i % len(names) for i in range(count)]
        info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": names}}}}
        described = pa.table({**columns, "label": labels})
        described = described.replace_schema_metadata({"huggingface": json.dumps(info)})
        parquet.write_table(described, f"d/{part}.parquet")
    if test == ["a", "b", "c"]:
        assert read("d").class_names == ("a", "b", "c")
        return
    with pytest.raises(
        OwnError, match=r"^d: the part test lists the classes .*, the training part"
    ):
        read("d")


def test_categories_of_parts_are_texts_whatever_each_lists() -> None:
    Path("d").mkdir()
    for part, names, count in (("train", LEVELS, 60), ("test", ["mid", "low"], 12)):
        kinds = {"x": [i % 3 for i in range(count)], "z": [i / 7 for i in range(count)]}
        values = [names[i % len(names)] for i in range(count)]
        label = pd.Categorical(values, categories=names, ordered=True)
        pd.DataFrame({**kinds, "label": label}).to_parquet(f"d/{part}.parquet")
    assert read("d").test.targets.tolist() == [1, 0] * 6
