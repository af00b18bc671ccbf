"""What is wrong with a user's data is said in one message, with file, value and cure, before anything is trained."""

from __future__ import annotations

import io
import json
import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from evalsuite.contract import Task
from evalsuite.own.data import source_of
from evalsuite.own.data.reading import read_data
from evalsuite.references import OwnError
from evalsuite.tasks import Classification, Embedding, LanguageModel, MultiLabel, Regression, TokenClassification

X, Y = np.linspace(0, 1, 120, dtype=np.float32).reshape(40, 3), np.arange(40) % 2
PICTURE = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
Make = Callable[[], Any]


def npz(**arrays: Any) -> Make:
    return lambda: np.savez("d.npz", **arrays)


def text(name: str, content: str | bytes) -> Make:
    def make() -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def code(body: str) -> Make:
    head = "import torch\nfrom torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset\n"
    return text("my.py", f"{head}x, y = torch.rand(40, 3), torch.arange(40) % 2\n{body}\n")


def jsonl(*rows: Any, name: str = "d.jsonl") -> Make:
    return text(name, "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows))


def csv(*lines: str, count: int = 20) -> Make:
    body = [f"{i},{i % 2}" for i in range(count)]
    return text("d.csv", "\n".join(["a,label", *body, *lines]) + "\n")


def images(change: Callable[[], Any], count: int = 6) -> Make:
    def make() -> None:
        for name in ("cat", "dog"):
            Path("i", name).mkdir(parents=True)
            for i in range(count):
                PICTURE.rotate(90 * (i % 4)).save(f"i/{name}/{i}.png")
        change()

    return make


def cut_short() -> None:
    file = Path("i/dog/3.png")
    file.write_bytes(file.read_bytes()[:-20])


def bad_column() -> None:
    content = io.BytesIO()
    PICTURE.save(content, "png")
    rows = [content.getvalue()] * 3 + [b"no image"]
    parquet.write_table(pa.table({"image": pa.array(rows, pa.binary()), "label": [0, 1, 0, 1]}), "d.parquet")


def nothing() -> None:
    pass


NAN = np.where(np.arange(120).reshape(40, 3) == 7, np.nan, X).astype(np.float32)
WORDS = [{"tokens": ["a", "b"], "tags": ["X", "Y"]}] * 11
TEXTS = [{"text": f"text {i}", "label": "good" if i % 2 else "bad"} for i in range(20)]
LABELS = [{"text": f"text {i}", "labels": ["a"] if i % 2 else ["b", "a"]} for i in range(20)]
C, R, L, M, T, E = Classification(), Regression(), LanguageModel(), MultiLabel(), TokenClassification(), Embedding()

WRONG: list[tuple[str, Make, Any, Task, str]] = [
    ("missing file", text("data.npz", b"x"), "dta.npz", C,
     "dta.npz: there is no such file or folder; did you mean 'data.npz'?"),
    ("unknown option", nothing, {"path": "d.csv", "targt": "a"}, C,
     "data.targt: unknown option; did you mean 'target'?"),
    ("wrong type of option", nothing, {"path": "d.csv", "length": "long"}, C,
     "data.length: must be a whole number, got 'long'"),
    ("no path", nothing, {"target": "a"}, C,
     "data: write a path, my.py:make_data, or a mapping with `path`, got {'target': 'a'}"),
    ("no share", nothing, {"path": "d.csv", "test": 1.5}, C,
     "data.test is a share of the training part, in (0, 1), got 1.5"),
    ("too great shares", nothing, {"path": "d.csv", "test": 0.8, "validation": 0.2}, C,
     "data: calibration, validation and test take 1.1 of all: at most .9"),
    ("unknown augmentation", nothing, {"path": "i", "augment": "flipp"}, C,
     "data.augment: unknown 'flipp'; write one of flip, crop-flip, or my.py:augment"),
    ("empty file", text("d.csv", ""), "d.csv", C,
     "d.csv: is empty; give it samples"),
    ("empty folder", lambda: Path("e").mkdir(), "e", C,
     "e: the folder is empty; give it samples"),
    ("unknown kind", text("d.xlsx", "x"), "d.xlsx", C,
     "d.xlsx: unknown kind of data, a file .xlsx; known are .npz, .csv, .tsv, .parquet, .jsonl, .txt, folders of images or of these, and my.py:make_data"),
    ("a pickle by its name", lambda: Path("d.pkl").write_bytes(pickle.dumps(1)), "d.pkl", C,
     "d.pkl: a pickle runs any code that is in it, so it is not read; save arrays with numpy.savez, or tables as parquet"),
    ("a pickle inside", npz(x=X, y=np.array([{}] * 40, object)), "d.npz", C,
     "d.npz: the array 'y' holds pickled objects, which are not read; save numbers, or texts of fixed length"),
    ("no archive", text("d.npz", "x,y"), "d.npz", C,
     'd.npz: is no .npz archive, or a damaged one; write it with numpy.savez("data.npz", x=..., y=...)'),
    ("no targets in arrays", npz(x=X), "d.npz", C,
     "d.npz, part train: there are no targets; add them, name them by `data.target`, or choose another task"),
    ("unknown array", npz(x=X, z=Y), {"path": "d.npz", "target": "zz"}, C,
     "d.npz, part train: there is no array 'zz'; did you mean 'z'?"),
    ("other lengths", npz(x=X, y=Y[:30]), "d.npz", C,
     "d.npz: the part train has 40 inputs but 30 targets; give each sample one"),
    ("other lengths of inputs", npz(a=X, b=X[:30], y=Y), "d.npz", C,
     "d.npz, part train: inputs of one sample belong together, but there are {'a': 40, 'b': 30}; give each sample all"),
    ("NaN in inputs", npz(x=NAN, y=Y), "d.npz", C,
     "d.npz, part train, sample 2: an input is NaN or infinite; correct it, or leave the sample out"),
    ("constant inputs", npz(x=np.ones((40, 3)), y=Y), "d.npz", C,
     "d.npz, part train: of 40 samples 1 differ: too few to cut parts off; give more"),
    ("one class only", npz(x=X, y=np.ones(40, int)), "d.npz", C,
     "d.npz, part train: all samples are of one class, 1: nothing to learn; add samples of another"),
    ("label is no integer", npz(x=X, y=Y + 0.5), "d.npz", C,
     "d.npz, part train, sample 0: the label 0.5 is no class: classes are whole numbers; for real ones choose task regression"),
    ("negative label", npz(x=X, y=Y - 1), "d.npz", C,
     "d.npz, part train, sample 0: the label -1 is out of range; number classes from 0, and what shall count nowhere -100"),
    ("label of test out of range", npz(x_train=X, y_train=Y, x_test=X[:5] / 2, y_test=np.full(5, 3)), "d.npz", C,
     "d.npz, part test, sample 0: the label 3 is out of range: those of the training part are 0 to 1; correct it, or name all classes with `labels`"),
    ("shapes of parts differ", npz(x_train=X, y_train=Y, x_test=X[:, :2], y_test=Y), "d.npz", C,
     "d.npz: one sample of train is (3,), of test (2,); give all parts the same inputs"),
    ("an empty part", npz(x_train=X, y_train=Y, x_test=X[:0], y_test=Y[:0]), "d.npz", C,
     "d.npz: the part test is empty; give it samples, or leave it out to have it cut"),
    ("no training part", npz(x_test=X, y_test=Y), "d.npz", C,
     "d.npz: there is no training part, only test; name one 'train'"),
    ("too few", npz(x=X[:5], y=Y[:5]), "d.npz", C,
     "d.npz, part train: 5 samples are too few to cut calibration, validation, test off; give at least 10, or these parts themselves"),
    ("targets are one-hot", npz(x=X, y=np.eye(2, dtype=int)[Y]), "d.npz", C,
     "d.npz, part train: the targets are one-hot; give the classes' numbers, y.argmax(1)"),
    ("one target for all", npz(x=X, y=1), "d.npz", C,
     "d.npz, part train: y is one int64; give each sample its target"),
    ("inputs of text", npz(x=np.full((40, 3), "a"), y=Y), "d.npz", C,
     "d.npz, part train: x is of type <U1; give numbers"),
    ("negative tokens", npz(x=np.full((40, 3), -1), y=Y), "d.npz", C,
     "d.npz, part train: x has the integer -1: tokens are >= 0; give real numbers as float32"),
    ("infinite target", npz(x=X, y=np.where(Y > 0, np.inf, 1.0)), "d.npz", R,
     "d.npz, part train, sample 1: the target is infinite; correct it, or leave the sample out"),
    ("tokens as their own targets", npz(x=Y.reshape(10, 4), y=Y.reshape(10, 4)), "d.npz", L,
     "d.npz: the targets of a language model are the tokens themselves: give at each position the next one"),
    ("unknown column", csv(), {"path": "d.csv", "target": "labl"}, C,
     "d.csv: there is no column 'labl'; did you mean 'label'?"),
    ("no target column", text("d.csv", "a,b\n1,2\n"), "d.csv", C,
     "d.csv: no target column; name one with `data.target` (there are a, b)"),
    ("no input column", text("d.csv", "label\n1\n"), "d.csv", C,
     "d.csv: there is no column but the target; give some that are inputs"),
    ("a field too much", csv("1,2,3"), "d.csv", C,
     "d.csv:22: 3 fields, but the head has 2; quote what contains a separator"),
    ("a table without a head", text("d.csv", "1,2\n3,4\n"), "d.csv", C,
     "d.csv:1: has no head, its first line is of numbers; put the columns' names there"),
    ("two columns of one name", text("d.csv", "a,a\n1,2\n"), "d.csv", C,
     "d.csv:1: two columns are called 'a'; give each a name of its own"),
    ("head without rows", text("d.csv", "a,label\n"), "d.csv", C,
     "d.csv: is empty; give it samples"),
    ("infinite number", csv("inf,1"), "d.csv", C,
     "d.csv:22: column 'a' is infinite; correct it, or leave it empty"),
    ("two columns of names for one class", text("d.csv", "a,b,c\n" + "1,x,y\n2,y,x\n" * 20),
     {"path": "d.csv", "target": ["b", "c"]}, C,
     "d.csv:2: the label ['x', 'y'] is no class, a name or a number"),
    ("a mean that is no number", nothing, {"path": "i", "mean": [math.nan], "std": [1]}, C,
     "data.mean and data.std (> 0) belong together, got [nan] and [1.0]"),
    ("a slip in a column of numbers", csv(*(f"{i}.5,{i % 2}" for i in range(9)), "l5,1"), "d.csv", C,
     "d.csv:31: column 'a' holds 'l5', but numbers in nearly all rows; correct it, or leave it empty"),
    ("missing label", csv("20,"), {"path": "d.csv", "labels": ["0", "1"]}, C,
     "d.csv:22: there is no target; fill it in, or leave the sample out"),
    ("label that is not listed", csv("20,2"), {"path": "d.csv", "labels": ["0", "1"]}, C,
     "d.csv:22: the label '2' is not among the classes; known: 0, 1"),
    ("a target that is no number", csv("20,much"), "d.csv", R,
     "d.csv:22: the target 'much' is no number; correct it, leave the sample out, or choose task classification for names"),
    ("as many classes as samples", csv(*(f"{i},{i / 2}" for i in range(20, 70))), "d.csv", C,
     "d.csv: 52 different labels in 70 samples are no classes; choose another column or task, or list them with `labels`"),
    ("a column of names", text("d.csv", "n,label\n" + "".join(f"name{i},{i % 2}\n" for i in range(30))), "d.csv", C,
     "d.csv: column 'n' has 30 different texts in 30 rows: it is no category; name the columns that are inputs with `features`, or a column of text with `text`"),
    ("not UTF-8", text("d.csv", b"a,label\n1,0\n2,\xff\n"), "d.csv", C,
     "d.csv:3: is not UTF-8 text (byte 0xff); save it as UTF-8"),
    ("a line that is no JSON", jsonl(*TEXTS[:3], "{text: 1}"), "d.jsonl", C,
     "d.jsonl:4: is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); write one object a line"),
    ("a line that is no object", jsonl(*TEXTS[:3], [1]), "d.jsonl", C,
     'd.jsonl:4: is a list, no object; write {"text": ..., "label": ...}'),
    ("no tokenizer", jsonl(*TEXTS), "d.jsonl", C,
     "d.jsonl: text needs a tokenizer; name one with `tokenizer`: a folder of Hugging Face's, a tokenizer.json, or \"bytes\""),
    ("unknown tokenizer", jsonl(*TEXTS), {"path": "d.jsonl", "tokenizer": "./tok/tokenizer.json"}, C,
     "tokenizer './tok/tokenizer.json': there is no such file or folder; name one with `tokenizer`: a folder of Hugging Face's, a tokenizer.json, or \"bytes\""),
    ("text that is none", jsonl(*TEXTS, {"text": 3, "label": "bad"}), {"path": "d.jsonl", "tokenizer": "bytes"}, C,
     "d.jsonl:21: the text of column 'text' is '3'; give text, or leave it out"),
    ("half a character", jsonl(*TEXTS, '{"text": "\\ud800", "label": "bad"}'), {"path": "d.jsonl", "tokenizer": "bytes"}, C,
     "d.jsonl:21: the text of column 'text' holds half of a surrogate pair; write it anew"),
    ("vectors of other lengths", jsonl(*({**each, "v": [1.0] * (1 + (i == 4))} for i, each in enumerate(TEXTS))),
     {"path": "d.jsonl", "tokenizer": "bytes", "target": "v"}, E,
     "d.jsonl:5: 2 targets, but the first sample has 1; give each as many"),
    ("no label at all", jsonl(*({"text": str(i), "labels": []} for i in range(20))),
     {"path": "d.jsonl", "tokenizer": "bytes"}, M,
     "d.jsonl: no sample has a label; name the labels with `labels`"),
    ("lists as features", jsonl(*({"a": [i], "label": i % 2} for i in range(20))), "d.jsonl", C,
     "d.jsonl: column 'a' holds a list in each row; inputs are numbers and categories; name the columns that are inputs with `features`"),
    ("a name twice", nothing, {"path": "d.csv", "labels": ["a", "a"]}, C,
     "data.labels: a name is given twice, got ['a', 'a']"),
    ("labels that are no list", jsonl(*LABELS, {"text": "x", "labels": "a"}),
     {"path": "d.jsonl", "tokenizer": "bytes"}, M,
     "d.jsonl:21: the labels 'a' are no list; write it as [\"a\", \"b\"], [] where there is none, or give columns of 0 and 1"),
    ("an embedding of nothing", jsonl(*TEXTS), {"path": "d.jsonl", "tokenizer": "bytes"}, E,
     "d.jsonl: the data have no targets, and no original model gives them; name the column of vectors with `target`, or give a model that is trained already"),
    ("words without tags", jsonl(*WORDS, {"tokens": ["a", "b"], "tags": ["X"]}),
     {"path": "d.jsonl", "tokenizer": "bytes"}, T,
     "d.jsonl:12: 2 words but 1 tags; give each word one"),
    ("a corpus that is too short", text("d.txt", "short"), "d.txt", L,
     "d.txt: the part train has 5 tokens: fewer than a window of 128 and the next; give more text, or a smaller `length`"),
    ("a corpus of another task", text("d.txt", "text " * 99), "d.txt", C,
     "d.txt: running text has no targets for this task; choose task language-model, or write texts and targets as .jsonl"),
    ("a corpus without training part", text("t/valid.txt", "text " * 99), "t", L,
     "t: there is no training part, only validation; name one 'train'"),
    ("a stray file in a corpus", lambda: [text(f"t/{each}.txt", "x" * 999)() for each in ("train", "notes")], "t", L,
     "t/notes.txt: names no part, beside train.txt; call it train, validation or test, or move it away"),
    ("no image", images(text("i/dog/x.png", "no image")), "i", C,
     "i/dog/x.png: cannot be read as an image (not in a form that Pillow knows); replace it, or leave it out"),
    ("an image cut short", images(cut_short), "i", C,
     "i/dog/3.png: the image is cut short; replace it, or leave it out"),
    ("an image of another size", images(lambda: PICTURE.resize((9, 8)).save("i/dog/2.png")), "i", C,
     "i/dog/2.png: the image is 8 x 9, others are 8 x 8 (height x width); say `size: [8, 8]` to have each resized"),
    ("images of one class", images(lambda: shutil.rmtree("i/dog")), "i", C,
     "i: all samples are of one class, 'cat': nothing to learn; add samples of another"),
    ("an empty class", images(lambda: Path("i/eel").mkdir()), "i", C,
     "i/eel: no image in it; put some there, or remove the folder"),
    ("no image in a column", bad_column, "d.parquet", C,
     "d.parquet, row 3: cannot be read as an image (not in a form that Pillow knows); replace it, or leave it out"),
    ("no parquet", text("d.parquet", "x"), "d.parquet", C,
     "d.parquet: cannot be read as parquet (Could not open Parquet input source 'd.parquet': Parquet file size is 1 bytes, smaller than the minimum file footer (8 bytes)); write it anew"),
    ("no function", code("make = 3"), "my.py:make", C,
     "my.py:make: is no function but int; write def make_data(): ..."),
    ("a function that raises", code("def make():\n    return x.nothing"), "my.py:make", C,
     "my.py:5: making the data raises AttributeError: 'Tensor' object has no attribute 'nothing'"),
    ("a function of something else", code("def make():\n    return 3"), "my.py:make", C,
     "my.py:make: returns int; return a torch Dataset or DataLoader, (x, y), a mapping of arrays, evalsuite.Data, or a mapping of such with the keys train, validation, test"),
    ("train is validation is test", code("s = TensorDataset(x, y)\ndef make():\n    return s, s, s"), "my.py:make", C,
     "my.py:make: the parts train and validation are the same samples: what is trained on must not be measured on; return others, or the training part alone"),
    ("an iterable data set", code(
        "class S(IterableDataset):\n    def __iter__(self):\n        yield x[0], 1\n"
        "def make():\n    return DataLoader(S(), 4)"), "my.py:make", C,
     "my.py:make, part train: is an iterable data set; a data set needs __getitem__ and __len__, since samples are drawn at random and read again"),
    ("a loader of whole batches", code(
        "class S(Dataset):\n    def __len__(self):\n        return 5\n    def __getitem__(self, i):\n"
        "        return x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]\n"
        "def make():\n    return DataLoader(S(), batch_size=None)"), "my.py:make", C,
     "my.py:make, part train: the loader's data set gives whole batches; give a data set of single samples, and a batch_size"),
    ("an empty data set", code("def make():\n    return TensorDataset(x[:0], y[:0])"), "my.py:make", C,
     "my.py:make: the part train is empty; give it samples, or leave it out to have it cut"),
    ("a data set that raises", code(
        "class S(Dataset):\n    def __len__(self):\n        return 40\n    def __getitem__(self, i):\n"
        "        return x[i + 1], y[i]\ndef make():\n    return S()"), "my.py:make", C,
     "my.py:8: sample 39 raises IndexError: index 40 is out of bounds for dimension 0 with size 40"),
    ("a data set that changes", code(
        "class S(Dataset):\n    def __len__(self):\n        return 40\n    def __getitem__(self, i):\n"
        "        return torch.rand(3), y[i]\ndef make():\n    return S()"), "my.py:make", C,
     "my.py:make, part train: sample 0 is another at each reading; take random changes out of the data set, and put them into `augment: my.py:augment`"),
    ("NaN in a data set", code(
        "class S(Dataset):\n    def __len__(self):\n        return 40\n    def __getitem__(self, i):\n"
        "        return x[i] / (i != 9) * (i != 9), y[i]\ndef make():\n    return S()"), "my.py:make", C,
     "my.py:make, part train, sample 9: an input is NaN or infinite; correct it, or leave the sample out"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "make", "given", "task", "said"), WRONG, ids=[each[0] for each in WRONG])
def test_each_wrong_input_gives_one_message(
    what: str, make: Make, given: Any, task: Task, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make()
    with pytest.raises(OwnError) as caught:
        read_data(source_of(given), task)
    assert str(caught.value) == said
