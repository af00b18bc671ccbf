"""A user's data in each form are read into four disjoint parts, as float32, tokens or named
inputs.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from evalsuite.contract import IGNORED, Data, Task
from evalsuite.data.fingerprint import fingerprint
from evalsuite.data.reading import crop_flip, flip, read_data
from evalsuite.data.source import source_of
from evalsuite.run.making import PARTS, check_disjoint
from evalsuite.tasks import (
    Classification,
    Embedding,
    LanguageModel,
    MultiLabel,
    Regression,
    TokenClassification,
)
from opgraph.errors import OwnError

RANDOM = np.random.default_rng(0)
HEAD = "import torch\nfrom torch.utils.data import DataLoader, Dataset, TensorDataset\ntorch.manual_seed(0)\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(given: Any, task: Task | None = None, **more: Any) -> Data:
    """The data, the same when they are read again, picklable, and disjoint."""
    source = source_of(given)
    data = read_data(source, task or Classification(), **more)
    assert data.fingerprint == fingerprint(source)
    assert hash(source) == hash(source_of(given))
    again = pickle.loads(pickle.dumps(read_data(source, task or Classification(), **more)))
    for part in PARTS:
        one, two = getattr(data, part), getattr(again, part)
        assert torch.allclose(one.targets, two.targets, equal_nan=True)
        assert str(one.first(3)) == str(two.first(3))
    check_disjoint(data)
    return data


def sizes(data: Data) -> list[int]:
    return [len(getattr(data, part)) for part in PARTS]


def pixels(index: int, size: tuple[int, int] = (8, 8), channels: int = 3) -> np.ndarray:
    shape = (*size, channels) if channels == 3 else size
    return np.random.default_rng(index).integers(0, 256, shape, dtype=np.uint8)


def encoded(index: int, form: str = "png") -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels(index)).save(content, form)
    return content.getvalue()


def folder_of_images(
    root: Path, count: int = 20, names: tuple[str, ...] = ("cat", "dog"), start: int = 0
) -> None:
    for place, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(pixels(start + i + place * count)).save(root / name / f"{i:03}.png")


def lines(file: str, *rows: Any) -> None:
    Path(file).write_text("".join(json.dumps(each) + "\n" for each in rows))


# Arrays


def test_arrays_are_cut_into_stratified_parts_that_hold_every_sample_once() -> None:
    x, y = RANDOM.random((200, 3), np.float32), np.arange(200) % 4
    np.savez("d.npz", x=x, y=y)
    data = read("d.npz")
    assert (sizes(data), data.classes, data.domain, data.vocabulary) == (
        [120, 20, 20, 40],
        4,
        (0.0, 1.0),
        None,
    )
    rows = torch.cat([getattr(data, part).inputs for part in PARTS]).numpy()
    assert sorted(map(tuple, rows)) == sorted(map(tuple, x))
    label_of = {tuple(row): label for row, label in zip(x, y, strict=True)}
    for part in PARTS:
        split = getattr(data, part)
        assert split.inputs.dtype == torch.float32
        assert [label_of[tuple(row)] for row in split.inputs.numpy()] == split.targets.tolist()
        assert set(Counter(split.targets.tolist()).values()) == {len(split) // 4}


def test_given_parts_are_used_as_they_are_and_the_rest_is_cut_from_training() -> None:
    x, y = RANDOM.random((100, 2)), np.arange(100) % 2
    np.savez("d.npz", x_train=x[:70], y_train=y[:70], x_test=x[70:], y_test=y[70:])
    data = read({"path": "d.npz", "calibration": 0.2, "validation": 0.3})
    assert sizes(data) == [35, 14, 21, 30]
    assert torch.equal(data.test.inputs, torch.tensor(x[70:]).float())  # type: ignore[arg-type]
    assert sizes(read({"path": "d.npz", "limit": 20})) == [16, 2, 2, 20]  # of each part


def test_equal_samples_stay_together_however_often_they_occur() -> None:
    x = np.repeat(RANDOM.random((40, 3)), 5, axis=0)
    np.savez("d.npz", x=x, y=np.repeat(np.arange(40) % 2, 5))
    data = read("d.npz")  # `read` checks that the parts are disjoint
    assert sum(sizes(data)) == 200


def test_named_arrays_are_a_mapping_and_integers_are_tokens() -> None:
    ids = RANDOM.integers(0, 50, (60, 7))
    np.savez("d.npz", input_ids=ids, attention_mask=np.ones_like(ids), labels=np.arange(60) % 3)
    data = read("d.npz")
    batch = data.train.first(2)
    assert isinstance(batch, dict)
    assert list(batch) == ["input_ids", "attention_mask"]
    assert (batch["input_ids"].dtype, data.vocabulary, data.input_shape) == (
        torch.int64,
        ids.max() + 1,
        (7,),
    )


@pytest.mark.parametrize("last", [True, False])
def test_pixels_come_in_0_to_1_with_channels_first(last: bool) -> None:
    x = np.stack([pixels(i) for i in range(30)])
    np.savez("d.npz", x=x if last else x.transpose(0, 3, 1, 2), y=np.arange(30) % 2)
    data = read("d.npz")
    assert (data.input_shape, data.domain) == ((3, 8, 8), (0.0, 1.0))
    wanted = {
        each.astype(np.float32).tobytes() for each in (x.transpose(0, 3, 1, 2) / np.float32(255))
    }
    assert {each.numpy().tobytes() for each in data.train.inputs} <= wanted  # type: ignore[attr-defined]


def test_targets_of_other_tasks_and_what_counts_nowhere() -> None:
    x = RANDOM.normal(size=(60, 3))
    np.savez("values.npz", x=x, y=np.where(np.arange(60) == 5, np.nan, x.sum(1)))
    data = read("values.npz", Regression())
    assert (data.classes, data.train.targets.dtype, data.domain[0] < 0) == (1, torch.float32, True)
    np.savez("labels.npz", x=x, y=(x > 0).astype(int))
    assert read("labels.npz", MultiLabel()).classes == 3
    np.savez("vectors.npz", x=x, y=x[:, :2])
    assert read("vectors.npz", Embedding()).test.targets.shape == (12, 2)
    np.savez("ignored.npz", x=x, y=np.where(np.arange(60) % 10 == 0, IGNORED, np.arange(60) % 2))
    assert read("ignored.npz").classes == 2


def test_tokens_alone_are_shifted_for_a_language_model() -> None:
    x = RANDOM.integers(0, 30, (60, 9))
    np.savez("d.npz", x=x)
    data = read("d.npz", LanguageModel())
    assert (data.input_shape, data.classes, data.vocabulary) == ((8,), x.max() + 1, x.max() + 1)
    assert torch.equal(data.test.inputs[:, 1:], data.test.targets[:, :-1])  # type: ignore[index]


# Images


def test_a_folder_of_classes_is_decoded_when_asked_and_numbered_by_name() -> None:
    folder_of_images(Path("i"), names=("dog", "ant", "cat"))
    data = read("i")
    assert (sizes(data), data.classes, data.input_shape, data.domain) == (
        [36, 6, 6, 12],
        3,
        (3, 8, 8),
        (0.0, 1.0),
    )
    found = {each.numpy().tobytes() for each in data.train.inputs[:]}  # type: ignore[attr-defined]
    wanted = {(pixels(i).transpose(2, 0, 1) / np.float32(255)).tobytes(): i for i in range(60)}
    classes = [1 if i >= 20 and i < 40 else 0 for i in (wanted[each] for each in found)]
    assert len(classes) == 36
    one = data.train.inputs[3].numpy().tobytes()
    # dog, ant, cat in order of names
    assert int(data.train.targets[3]) == {0: 2, 1: 0, 2: 1}[wanted[one] // 20]


def test_parts_of_a_folder_normalised_resized_and_grey() -> None:
    folder_of_images(Path("i/train"))
    folder_of_images(Path("i/val"), 5, start=100)
    folder_of_images(Path("i/test"), 4, start=200)
    data = read({"path": "i", "size": 4, "channels": 1, "mean": 0.5, "std": 0.25})
    assert (sizes(data), data.input_shape, data.domain) == ([36, 4, 10, 8], (1, 4, 4), (-2.0, 2.0))
    wanted = Image.fromarray(pixels(200)).convert("L").resize((4, 4), Image.Resampling.BILINEAR)
    assert torch.allclose(
        data.test.inputs[0][0], (torch.tensor(np.array(wanted)) / 255 - 0.5) / 0.25
    )


def test_loose_files_take_their_targets_from_a_table() -> None:
    Path("i").mkdir()
    rows = ["file,age"]
    for i in range(30):
        Image.fromarray(pixels(i)).save(f"i/{i}.png")
        rows.append(f"{i}.png,{i / 2}")
    Path("i/labels.csv").write_text("\n".join(rows))
    data = read("i", Regression())
    first = (pixels(0).transpose(2, 0, 1) / np.float32(255)).tobytes()
    for part in PARTS:
        for each, target in zip(
            getattr(data, part).inputs[:], getattr(data, part).targets, strict=True
        ):
            assert (each.numpy().tobytes() == first) == (float(target) == 0)


@pytest.mark.parametrize("form", ["bytes", "hf"])
def test_images_in_a_parquet_column(form: str) -> None:
    Path("p").mkdir()
    for part, start, count in (("train", 0, 40), ("test", 40, 10)):
        content = [encoded(start + i) for i in range(count)]
        images = content if form == "bytes" else [{"bytes": each, "path": None} for each in content]
        table = pa.table(
            {"image": images, "label": [i % 2 for i in range(count)], "name": ["x"] * count}
        )
        parquet.write_table(table, f"p/{part}.parquet")
    data = read("p")
    assert (sizes(data), data.classes) == ([32, 4, 4, 10], 2)
    assert torch.equal(data.test.inputs[3], torch.tensor(pixels(43)).permute(2, 0, 1) / 255)


def test_augmentation_is_of_training_alone_and_drawn_from_the_generator() -> None:
    folder_of_images(Path("i"))
    Path("my.py").write_text(
        "def brighter(inputs, generator):\n    return inputs * 0.5\ndef wrong(i, g):\n    return i[0]\n"
    )
    for name in ("flip", "crop-flip", "my.py:brighter"):
        data = read({"path": "i", "augment": name})
        assert data.test.augment is None
        batch = data.train.inputs[:16]
        once, twice = (
            data.train.augment(batch, torch.Generator().manual_seed(3)) for _ in range(2)
        )
        assert torch.equal(once, twice)  # type: ignore[arg-type]
        assert not torch.equal(once, batch)  # type: ignore[arg-type]
    data = read({"path": "i", "augment": "my.py:wrong"})
    with pytest.raises(OwnError, match=r"my\.py:wrong: gives inputs of shape"):
        data.train.augment(data.train.inputs[:4], torch.Generator())


def test_flips_and_shifts_are_those_of_the_image() -> None:
    images = torch.rand(64, 3, 8, 8)
    flipped = flip(images, torch.Generator().manual_seed(0))
    same = [bool(torch.equal(one, two)) for one, two in zip(images, flipped, strict=True)]  # type: ignore[arg-type]
    mirrored = [
        bool(torch.equal(one.flip(-1), two)) for one, two in zip(images, flipped, strict=True)
    ]  # type: ignore[arg-type]
    assert [one != two for one, two in zip(same, mirrored, strict=True)] == [True] * 64
    assert 16 < sum(same) < 48
    moved = crop_flip(images, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(flipped, (1, 1, 1, 1))  # type: ignore[arg-type]
    for one, two in zip(padded, moved, strict=True):  # type: ignore[arg-type]
        windows = [one[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
        assert any(torch.equal(each, two) for each in windows)


# Tables


def test_a_table_of_numbers_and_categories_scaled_by_the_training_rows_alone() -> None:
    kinds = ("red", "green", "")
    rows = [
        f"{i},{kinds[i % 3]},{'' if i % 10 == 0 else i % 7},{'yes' if i % 2 else 'no'}"
        for i in range(100)
    ]
    Path("train.csv").write_text("\n".join(["age,colour,count,answer", *rows]))
    data = read({"path": "train.csv", "target": "answer"})
    assert (data.classes, data.input_shape, data.domain) == (2, (1 + 3 + 2,), (0.0, 1.0))
    train = data.train.inputs
    assert isinstance(train, torch.Tensor)
    assert (float(train[:, 0].min()), float(train[:, 0].max())) == (0.0, 1.0)
    assert torch.equal(train[:, 1:4].sum(1), torch.ones(len(train)))
    missing = train[:, 5] == 1
    known = train[~missing, 4].double() * 6  # 0 to 6
    assert torch.allclose(
        train[missing, 4].double() * 6, known.mean().expand(int(missing.sum())), atol=1e-5
    )


def test_a_regression_has_one_value_or_several_and_features_may_be_chosen() -> None:
    rows = [f"{i},{i * i},{i % 3},id{i}" for i in range(60)]
    Path("d.csv").write_text("\n".join(["a;b;c;d".replace(";", ","), *rows]))
    data = read({"path": "d.csv", "target": "b", "features": ["a", "c"]}, Regression())
    assert (data.classes, data.input_shape, data.train.targets.shape) == (1, (2,), (36,))
    data = read_data(
        source_of({"path": "d.csv", "target": ["b", "c"], "features": "a"}), Regression()
    )
    assert (data.classes, data.test.targets.shape[1]) == (2, 2)


def test_parquet_and_labels_in_an_order_of_ones_own() -> None:
    table = pa.table(
        {"a": np.arange(50.0), "b": pa.array([None, *range(1, 50)]), "class": ["lo", "hi"] * 25}
    )
    parquet.write_table(table, "d.parquet")
    data = read({"path": "d.parquet", "labels": ["lo", "hi", "none"]})
    assert (data.classes, data.input_shape) == (3, (3,))
    first = float(data.train.inputs[:, 0].min())  # type: ignore[index]
    assert first == 0.0


# Text

SENTENCES = [
    {"text": f"number {i} is this", "label": "good" if i % 2 else "bad"} for i in range(40)
]


@pytest.fixture
def tokenizer(here: Path) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = [
        "[PAD]",
        "[CLS]",
        "[SEP]",
        "[UNK]",
        "this",
        "is",
        "number",
        *map(str, range(40)),
        "##s",
        "paris",
    ]
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    (here / "bert").mkdir()
    made.save(str(here / "bert" / "tokenizer.json"))
    return "bert"


def test_texts_are_named_inputs_padded_to_the_longest(tokenizer: str) -> None:
    lines("d.jsonl", *SENTENCES, {"text": "this", "label": "good"})
    data = read("d.jsonl", tokenizer=tokenizer)
    assert (data.classes, data.vocabulary, data.input_shape) == (2, 49, (6,))
    batch = data.train.inputs[:]
    assert list(batch) == ["input_ids", "attention_mask"]
    assert batch["input_ids"].dtype == torch.int64
    assert bool((batch["input_ids"][:, 0] == 1).all())
    assert torch.equal(batch["attention_mask"] == 0, batch["input_ids"] == 0)
    for ids, target in zip(batch["input_ids"], data.train.targets, strict=True):
        number = int(ids[2]) - 7
        assert int(target) == (1 if number < 0 else number % 2)
    short = read({"path": "d.jsonl", "length": 4, "tokenizer": "bert/tokenizer.json"})
    assert short.input_shape == (4,)


def test_pairs_have_types_and_bytes_need_no_tokenizer(tokenizer: str) -> None:
    lines(
        "d.jsonl",
        *({"one": each["text"], "two": "is this", "label": each["label"]} for each in SENTENCES),
    )
    batch = read({"path": "d.jsonl", "text": ["one", "two"]}, tokenizer=tokenizer).train.first(1)
    assert isinstance(batch, dict)
    assert batch["token_type_ids"].tolist() == [[0] * 6 + [1] * 3]
    lines("b.jsonl", *SENTENCES)
    # as some editors save it
    Path("b.jsonl").write_text(Path("b.jsonl").read_text(), encoding="utf-8-sig")
    data = read({"path": "b.jsonl", "tokenizer": "bytes"})
    first = data.train.first(1)
    assert isinstance(first, dict)
    kept = first["input_ids"][0][first["attention_mask"][0] == 1]
    assert bytes(kept.tolist()).decode().startswith("number ")


def test_multi_label_lists_and_columns_are_the_same() -> None:
    names = [["a"], ["a", "c"], [], ["b"]]
    lines("lists.jsonl", *({"text": f"text {i}", "labels": names[i % 4]} for i in range(40)))
    columns = [
        {"text": f"text {i}", **{each: int(each in names[i % 4]) for each in "abc"}}
        for i in range(40)
    ]
    lines("columns.jsonl", *columns)
    one = read({"path": "lists.jsonl", "tokenizer": "bytes"}, MultiLabel())
    two = read(
        {"path": "columns.jsonl", "tokenizer": "bytes", "target": ["a", "b", "c"]}, MultiLabel()
    )
    assert (one.classes, one.train.targets.dtype) == (3, torch.int64)
    assert torch.equal(one.train.targets, two.train.targets)


def test_tags_stand_at_the_first_token_of_each_word(tokenizer: str) -> None:
    rows = [{"tokens": ["this", "pariss", str(i)], "tags": ["O", "LOC", "O"]} for i in range(30)]
    lines("d.jsonl", *rows, {"tokens": ["this"], "tags": ["O"]})
    data = read("d.jsonl", TokenClassification(), tokenizer=tokenizer)
    assert data.classes == 2
    whole = {tuple(each) for part in PARTS for each in getattr(data, part).targets.tolist()}
    x = IGNORED
    assert whole == {(x, 1, 0, x, 1, x), (x, 1, x, x, x, x)}


def test_an_embedding_without_targets_takes_them_from_the_original() -> None:
    lines("d.jsonl", *SENTENCES)
    asked: list[int] = []

    def original(inputs: Any) -> torch.Tensor:
        asked.append(len(inputs["input_ids"]))
        return inputs["input_ids"].double().mean(1, keepdim=True).expand(-1, 5)  # type: ignore[no-any-return]

    data = read({"path": "d.jsonl", "tokenizer": "bytes"}, Embedding(), targets_of=original)
    assert (data.classes, data.train.targets.dtype, max(asked) <= 64) == (5, torch.float32, True)
    batch = data.test.first(4)
    assert torch.allclose(original(batch).float(), data.test.targets[:4])


def test_a_corpus_of_wikitexts_layout_is_windows_of_one_tensor() -> None:
    Path("w").mkdir()
    for part, count in (("train", 400), ("valid", 60), ("test", 60)):
        Path(f"w/wiki.{part}.tokens").write_text(" ".join(f"{part}{i}" for i in range(count)))
    data = read({"path": "w", "length": 32}, LanguageModel(per="byte"))
    inputs, targets = data.train.inputs, data.train.targets
    assert isinstance(inputs, torch.Tensor)
    assert (data.vocabulary, data.classes, inputs.dtype) == (256, 256, torch.int64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.untyped_storage().data_ptr() == targets.untyped_storage().data_ptr()
    assert bytes(inputs.flatten().tolist()).decode().startswith("train0 train1")
    assert (
        bytes(data.calibration.inputs[0].tolist()).decode()
        in Path("w/wiki.train.tokens").read_text()
    )  # type: ignore[union-attr]
    assert bytes(data.test.inputs[0].tolist()).decode().startswith("test0")  # type: ignore[union-attr]


def test_one_text_is_cut_from_its_end_and_a_tokenizer_may_read_it(tokenizer: str) -> None:
    drawn = RANDOM.integers(0, 40, (600, 2)).tolist()
    Path("d.txt").write_text("\n".join(f"this is number {one} {two}" for one, two in drawn))
    data = read({"path": "d.txt", "length": 16}, LanguageModel(), tokenizer=tokenizer)
    whole = torch.cat([getattr(data, part).inputs.flatten() for part in PARTS])
    assert data.vocabulary == 49
    assert whole[:10].tolist() == [
        4,
        5,
        6,
        *(7 + each for each in drawn[0]),
        4,
        5,
        6,
        *(7 + each for each in drawn[1]),
    ]
    assert len(whole) == 600 * 5 // 16 * 16
    lines("d.jsonl", *({"text": f"row {i}"} for i in range(400)))
    assert read({"path": "d.jsonl", "length": 16}, LanguageModel()).vocabulary == 256


# Hugging Face's data sets on disk: what save_to_disk of datasets 2 to 4 writes


def saved(folder: Path, table: pa.Table, features: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    half = len(table) // 2
    files = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, piece in zip(files, (table[:half], table[half:]), strict=True):
        with (
            pa.OSFile(str(folder / name), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as writer,
        ):
            writer.write_table(piece)
    state = {
        "_data_files": [{"filename": each} for each in files],
        "_fingerprint": "x",
        "_format_type": None,
    }
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def test_a_saved_data_set_with_names_of_classes() -> None:
    features = {
        "text": {"dtype": "string", "_type": "Value"},
        "label": {"names": ["no", "yes", "so"], "_type": "ClassLabel"},
    }
    for part, count in (("train", 40), ("test", 10)):
        texts = [f"{part} {i}" for i in range(count)]
        saved(
            Path("s", part),
            pa.table({"text": texts, "label": [i % 2 for i in range(count)]}),
            features,
        )
    Path("s/dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    data = read({"path": "s", "tokenizer": "bytes"})
    assert (sizes(data), data.classes) == ([32, 4, 4, 10], 3)
    table = pa.table(
        {
            "image": [{"bytes": encoded(i), "path": None} for i in range(30)],
            "label": [i % 2 for i in range(30)],
        }
    )
    saved(Path("one"), table, {})
    assert read("one").input_shape == (3, 8, 8)


# What functions make

SET = """class Squares(Dataset):
    reads = 0
    def __init__(self, start, count):
        self.start, self.count = start, count
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        Squares.reads += 1
        return torch.full((3, 2, 2), (self.start + i) / 100.0), (self.start + i) % 2
"""


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("return torch.rand(60, 3), torch.arange(60) % 2", [36, 6, 6, 12]),
        ("return TensorDataset(torch.rand(60, 3), torch.arange(60) % 2)", [36, 6, 6, 12]),
        (
            "return DataLoader(TensorDataset(torch.rand(60, 3), torch.arange(60) % 2), 4)",
            [36, 6, 6, 12],
        ),
        (
            "return {'x': torch.rand(60, 3).numpy(), 'y': torch.arange(60).numpy() % 2}",
            [36, 6, 6, 12],
        ),
        (
            "return {'train': Squares(0, 60), 'val': Squares(60, 10), 'test': Squares(70, 20)}",
            [54, 6, 10, 20],
        ),
        ("return Squares(0, 60), Squares(60, 20)", [48, 6, 6, 20]),
        ("return DataLoader(Squares(0, 60), 8), DataLoader(Squares(60, 20), 8)", [48, 6, 6, 20]),
        (
            "return (torch.rand(60, 3), torch.arange(60) % 2), (torch.rand(20, 3), torch.arange(20) % 2)",
            [48, 6, 6, 20],
        ),
    ],
)
def test_a_function_makes_data_in_any_usual_form(body: str, wanted: list[int]) -> None:
    Path("my.py").write_text(f"{HEAD}{SET}def make():\n    {body}\n")
    data = read("my.py:make")
    assert (sizes(data), data.classes, data.train.first(1).dtype) == (wanted, 2, torch.float32)  # type: ignore[union-attr]


def test_a_data_set_is_read_once_and_then_sample_by_sample() -> None:
    from evalsuite.references import resolve

    Path("my.py").write_text(f"{HEAD}{SET}def make():\n    return Squares(0, 60)\n")
    data = read_data(source_of("my.py:make"), Classification())
    squares = resolve("my.py:Squares", what="the set")
    before = squares.reads
    batch = data.train.inputs[torch.tensor([3, 5])]
    assert squares.reads == before + 2
    assert [int(each) for each in (batch[:, 0, 0, 0] * 100).round() % 2] == data.train.targets[
        [3, 5]
    ].tolist()
    check_disjoint(data)
    assert squares.reads == before + 2  # digests of the samples are known


def test_several_inputs_by_position_and_by_name_and_a_loaders_own_collation() -> None:
    body = """class Pairs(Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): return {"ids": [i + 1] * (1 + i % 3), "labels": i % 2}
def together(rows):
    ids = torch.zeros(len(rows), 3, dtype=torch.long)
    for row, each in zip(ids, rows): row[:len(each["ids"])] = torch.tensor(each["ids"])
    return {"ids": ids, "mask": ids > 0, "labels": torch.tensor([each["labels"] for each in rows])}
def named(): return DataLoader(Pairs(), 4, collate_fn=together)
def placed(): return torch.rand(40, 3), torch.rand(40, 2), torch.arange(40) % 2
"""
    Path("my.py").write_text(HEAD + body)
    data = read("my.py:named")
    batch = data.train.first(2)
    assert isinstance(batch, dict)
    assert (list(batch), batch["mask"].dtype, data.vocabulary) == (["ids", "mask"], torch.int64, 41)
    placed = read("my.py:placed").train.first(2)
    assert isinstance(placed, tuple)
    assert [tuple(each.shape) for each in placed] == [(2, 3), (2, 2)]


def test_data_of_our_own_type_take_the_task() -> None:
    body = """from evalsuite.contract import Data, Split
def make():
    x = torch.arange(80.).reshape(40, 2)
    parts = [Split(each, each.sum(1)) for each in x.split(10)]
    return Data(*parts, (0.0, 80.0), 1, "mine")
"""
    Path("my.py").write_text(HEAD + body)
    data = read("my.py:make", Regression(unit="m"))
    assert data.task == Regression(unit="m")
    assert data.fingerprint != "mine"


# Fingerprints


def test_the_fingerprint_is_of_content_and_not_of_place_or_time() -> None:
    for root in ("one", "two"):
        folder_of_images(Path(root), 6)
    assert fingerprint(source_of("one")) == fingerprint(source_of("two"))
    file = Path("two/cat/000.png")
    content = file.read_bytes()
    file.write_bytes(encoded(77))
    assert fingerprint(source_of("one")) != fingerprint(source_of("two"))
    file.write_bytes(content)
    file.rename(file.with_name("zzz.png"))
    assert fingerprint(source_of("one")) != fingerprint(source_of("two"))


def test_the_fingerprint_of_a_function_is_of_its_file_and_of_what_it_returns(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """from pathlib import Path
def make():
    scale = float(Path('rows.txt').read_text()) * torch.rand(1)
    return torch.arange(60.)[:, None] * scale, torch.arange(60) % 2
"""
    found = {}
    for name, scale, code in (
        ("one", 1, body),
        ("two", 1, body),
        ("read", 2, body),
        ("said", 1, f"{body}# more"),
    ):
        (here / name).mkdir()
        monkeypatch.chdir(here / name)
        Path("rows.txt").write_text(str(scale))
        Path("my.py").write_text(HEAD + code)
        found[name] = fingerprint(source_of("my.py:make"))
    assert found["one"] == found["two"]
    assert len(set(found.values())) == 3


# In use


def test_naming_data_and_taking_their_fingerprint_imports_nothing_heavy() -> None:
    Path("d.csv").write_text("a,label\n1,0\n")
    heavy = (
        "{'torch', 'pandas', 'pyarrow', 'sklearn', 'PIL', 'numpy', 'tokenizers', 'transformers'}"
    )
    check = "from evalsuite.data.fingerprint import fingerprint; from evalsuite.data.source import source_of; fingerprint(source_of({'path': 'd.csv'}))"
    code = f"import sys; {check}; found = {heavy} & set(sys.modules); assert not found, found"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Memory

PEAK = """
import sys, torch
from evalsuite.data.source import source_of
from evalsuite.data.reading import read_data
from evalsuite.run.making import check_disjoint
from evalsuite.tasks import Classification
data = read_data(source_of({"path": sys.argv[1], "augment": "crop-flip"}), Classification())
check_disjoint(data)
order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
for batch in torch.split(order, 128):
    data.train.augment(data.train.inputs[batch], torch.Generator())
for part in (data.calibration, data.validation, data.test):
    for inputs, targets in part.batches(256):
        assert len(inputs) == len(targets)
# The kernel counts in `ru_maxrss` what the parent held before it started this program; not so in VmHWM.
(peak,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(int(peak.split()[1]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the peak memory from Linux' /proc"
)
def test_an_epoch_of_many_images_never_holds_them_all(here: Path) -> None:
    count, size = 20_000, 96  # decoded 2.1 GB as float32, and 553 MB as bytes
    for i in range(count):
        if i < 20:
            (here / "many" / str(i)).mkdir(parents=True)
        small = np.random.default_rng(i).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(small).resize((size, size)).save(here / "many" / str(i % 20) / f"{i}.jpg")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "many"], cwd=here, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 800  # MiB, of which torch and scikit-learn take 300


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
    return text(
        name, "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows)
    )


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
    rows = [*map(encoded, range(3)), b"no image"]
    parquet.write_table(
        pa.table({"image": pa.array(rows, pa.binary()), "label": [0, 1, 0, 1]}), "d.parquet"
    )


def nothing() -> None:
    pass


NAN = np.where(np.arange(120).reshape(40, 3) == 7, np.nan, X).astype(np.float32)
WORDS = [{"tokens": ["a", "b"], "tags": ["X", "Y"]}] * 11
TEXTS = [{"text": f"text {i}", "label": "good" if i % 2 else "bad"} for i in range(20)]
LABELS = [{"text": f"text {i}", "labels": ["a"] if i % 2 else ["b", "a"]} for i in range(20)]
C, R, L, M, T, E = (
    Classification(),
    Regression(),
    LanguageModel(),
    MultiLabel(),
    TokenClassification(),
    Embedding(),
)

WRONG: list[tuple[str, Make, Any, Task, str]] = [
    (
        "missing file",
        text("data.npz", b"x"),
        "dta.npz",
        C,
        "dta.npz: there is no such file or folder; did you mean 'data.npz'?",
    ),
    (
        "unknown option",
        nothing,
        {"path": "d.csv", "targt": "a"},
        C,
        "data.targt: unknown option; did you mean 'target'?",
    ),
    (
        "wrong type of option",
        nothing,
        {"path": "d.csv", "length": "long"},
        C,
        "data.length: must be a whole number, got 'long'",
    ),
    (
        "no path",
        nothing,
        {"target": "a"},
        C,
        "data: write a path, my.py:make_data, or a mapping with `path`, got {'target': 'a'}",
    ),
    (
        "no share",
        nothing,
        {"path": "d.csv", "test": 1.5},
        C,
        "data.test is a share of the training part, in (0, 1), got 1.5",
    ),
    (
        "too great shares",
        nothing,
        {"path": "d.csv", "test": 0.8, "validation": 0.2},
        C,
        "data: calibration, validation and test take 1.1 of all: at most .9",
    ),
    (
        "unknown augmentation",
        nothing,
        {"path": "i", "augment": "flipp"},
        C,
        "data.augment: unknown 'flipp'; write one of flip, crop-flip, or my.py:augment",
    ),
    ("empty file", text("d.csv", ""), "d.csv", C, "d.csv: is empty; give it samples"),
    ("empty folder", lambda: Path("e").mkdir(), "e", C, "e: the folder is empty; give it samples"),
    (
        "unknown kind",
        text("d.xlsx", "x"),
        "d.xlsx",
        C,
        "d.xlsx: unknown kind of data, a file .xlsx; known are .npz, .csv, .tsv, .parquet, .jsonl, .txt, folders of images or of these, and my.py:make_data",
    ),
    (
        "a pickle by its name",
        lambda: Path("d.pkl").write_bytes(pickle.dumps(1)),
        "d.pkl",
        C,
        "d.pkl: a pickle runs any code that is in it, so it is not read; save arrays with numpy.savez, or tables as parquet",
    ),
    (
        "a pickle inside",
        npz(x=X, y=np.array([{}] * 40, object)),
        "d.npz",
        C,
        "d.npz: the array 'y' holds pickled objects, which are not read; save numbers, or texts of fixed length",
    ),
    (
        "no archive",
        text("d.npz", "x,y"),
        "d.npz",
        C,
        'd.npz: is no .npz archive, or a damaged one; write it with numpy.savez("data.npz", x=..., y=...)',
    ),
    (
        "no targets in arrays",
        npz(x=X),
        "d.npz",
        C,
        "d.npz, part train: there are no targets; add them, name them by `data.target`, or choose another task",
    ),
    (
        "unknown array",
        npz(x=X, z=Y),
        {"path": "d.npz", "target": "zz"},
        C,
        "d.npz, part train: there is no array 'zz'; did you mean 'z'?",
    ),
    (
        "other lengths",
        npz(x=X, y=Y[:30]),
        "d.npz",
        C,
        "d.npz: the part train has 40 inputs but 30 targets; give each sample one",
    ),
    (
        "other lengths of inputs",
        npz(a=X, b=X[:30], y=Y),
        "d.npz",
        C,
        "d.npz, part train: inputs of one sample belong together, but there are {'a': 40, 'b': 30}; give each sample all",
    ),
    (
        "NaN in inputs",
        npz(x=NAN, y=Y),
        "d.npz",
        C,
        "d.npz, part train, sample 2: an input is NaN or infinite; correct it, or leave the sample out",
    ),
    (
        "constant inputs",
        npz(x=np.ones((40, 3)), y=Y),
        "d.npz",
        C,
        "d.npz, part train: of 40 samples 1 differ: too few to cut parts off; give more",
    ),
    (
        "one class only",
        npz(x=X, y=np.ones(40, int)),
        "d.npz",
        C,
        "d.npz, part train: all samples are of one class, 1: nothing to learn; add samples of another",
    ),
    (
        "label is no integer",
        npz(x=X, y=Y + 0.5),
        "d.npz",
        C,
        "d.npz, part train, sample 0: the label 0.5 is no class: classes are whole numbers; for real ones choose task regression",
    ),
    (
        "negative label",
        npz(x=X, y=Y - 1),
        "d.npz",
        C,
        "d.npz, part train, sample 0: the label -1 is out of range; number classes from 0, and what shall count nowhere -100",
    ),
    (
        "label of test out of range",
        npz(x_train=X, y_train=Y, x_test=X[:5] / 2, y_test=np.full(5, 3)),
        "d.npz",
        C,
        "d.npz, part test, sample 0: the label 3 is out of range: those of the training part are 0 to 1; correct it, or name all classes with `labels`",
    ),
    (
        "shapes of parts differ",
        npz(x_train=X, y_train=Y, x_test=X[:, :2], y_test=Y),
        "d.npz",
        C,
        "d.npz: one sample of train is (3,), of test (2,); give all parts the same inputs",
    ),
    (
        "an empty part",
        npz(x_train=X, y_train=Y, x_test=X[:0], y_test=Y[:0]),
        "d.npz",
        C,
        "d.npz: the part test is empty; give it samples, or leave it out to have it cut",
    ),
    (
        "no training part",
        npz(x_test=X, y_test=Y),
        "d.npz",
        C,
        "d.npz: there is no training part, only test; name one 'train'",
    ),
    (
        "too few",
        npz(x=X[:5], y=Y[:5]),
        "d.npz",
        C,
        "d.npz, part train: 5 samples are too few to cut calibration, validation, test off; give at least 10, or these parts themselves",
    ),
    (
        "targets are one-hot",
        npz(x=X, y=np.eye(2, dtype=int)[Y]),
        "d.npz",
        C,
        "d.npz, part train: the targets are one-hot; give the classes' numbers, y.argmax(1)",
    ),
    (
        "one target for all",
        npz(x=X, y=1),
        "d.npz",
        C,
        "d.npz, part train: y is one int64; give each sample its target",
    ),
    (
        "inputs of text",
        npz(x=np.full((40, 3), "a"), y=Y),
        "d.npz",
        C,
        "d.npz, part train: x is of type <U1; give numbers",
    ),
    (
        "negative tokens",
        npz(x=np.full((40, 3), -1), y=Y),
        "d.npz",
        C,
        "d.npz, part train: x has the integer -1: tokens are >= 0; give real numbers as float32",
    ),
    (
        "infinite target",
        npz(x=X, y=np.where(Y > 0, np.inf, 1.0)),
        "d.npz",
        R,
        "d.npz, part train, sample 1: the target is infinite; correct it, or leave the sample out",
    ),
    (
        "tokens as their own targets",
        npz(x=Y.reshape(10, 4), y=Y.reshape(10, 4)),
        "d.npz",
        L,
        "d.npz: the targets of a language model are the tokens themselves: give at each position the next one",
    ),
    (
        "unknown column",
        csv(),
        {"path": "d.csv", "target": "labl"},
        C,
        "d.csv: there is no column 'labl'; did you mean 'label'?",
    ),
    (
        "no target column",
        text("d.csv", "a,b\n1,2\n"),
        "d.csv",
        C,
        "d.csv: no target column; name one with `data.target` (there are a, b)",
    ),
    (
        "no input column",
        text("d.csv", "label\n1\n"),
        "d.csv",
        C,
        "d.csv: there is no column but the target; give some that are inputs",
    ),
    (
        "a field too much",
        csv("1,2,3"),
        "d.csv",
        C,
        "d.csv:22: 3 fields, but the head has 2; quote what contains a separator",
    ),
    (
        "a table without a head",
        text("d.csv", "1,2\n3,4\n"),
        "d.csv",
        C,
        "d.csv:1: has no head, its first line is of numbers; put the columns' names there",
    ),
    (
        "two columns of one name",
        text("d.csv", "a,a\n1,2\n"),
        "d.csv",
        C,
        "d.csv:1: two columns are called 'a'; give each a name of its own",
    ),
    (
        "head without rows",
        text("d.csv", "a,label\n"),
        "d.csv",
        C,
        "d.csv: is empty; give it samples",
    ),
    (
        "infinite number",
        csv("inf,1"),
        "d.csv",
        C,
        "d.csv:22: column 'a' is infinite; correct it, or leave it empty",
    ),
    (
        "two columns of names for one class",
        text("d.csv", "a,b,c\n" + "1,x,y\n2,y,x\n" * 20),
        {"path": "d.csv", "target": ["b", "c"]},
        C,
        "d.csv:2: the label ['x', 'y'] is no class, a name or a number",
    ),
    (
        "a mean that is no number",
        nothing,
        {"path": "i", "mean": [math.nan], "std": [1]},
        C,
        "data.mean and data.std (> 0) belong together, got [nan] and [1.0]",
    ),
    (
        "a slip in a column of numbers",
        csv(*(f"{i}.5,{i % 2}" for i in range(9)), "l5,1"),
        "d.csv",
        C,
        "d.csv:31: column 'a' holds 'l5', but numbers in nearly all rows; correct it, or leave it empty",
    ),
    (
        "missing label",
        csv("20,"),
        {"path": "d.csv", "labels": ["0", "1"]},
        C,
        "d.csv:22: there is no target; fill it in, or leave the sample out",
    ),
    (
        "label that is not listed",
        csv("20,2"),
        {"path": "d.csv", "labels": ["0", "1"]},
        C,
        "d.csv:22: the label '2' is not among the classes; known: 0, 1",
    ),
    (
        "a target that is no number",
        csv("20,much"),
        "d.csv",
        R,
        "d.csv:22: the target 'much' is no number; correct it, leave the sample out, or choose task classification for names",
    ),
    (
        "as many classes as samples",
        csv(*(f"{i},{i / 2}" for i in range(20, 70))),
        "d.csv",
        C,
        "d.csv: 52 different labels in 70 samples are no classes; choose another column or task, or list them with `labels`",
    ),
    (
        "a column of names",
        text("d.csv", "n,label\n" + "".join(f"name{i},{i % 2}\n" for i in range(30))),
        "d.csv",
        C,
        "d.csv: column 'n' has 30 different texts in 30 rows: it is no category; name the columns that are inputs with `features`, or a column of text with `text`",
    ),
    (
        "not UTF-8",
        text("d.csv", b"a,label\n1,0\n2,\xff\n"),
        "d.csv",
        C,
        "d.csv:3: is not UTF-8 text (byte 0xff); save it as UTF-8",
    ),
    (
        "a line that is no JSON",
        jsonl(*TEXTS[:3], "{text: 1}"),
        "d.jsonl",
        C,
        "d.jsonl:4: is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); write one object a line",
    ),
    (
        "a line that is no object",
        jsonl(*TEXTS[:3], [1]),
        "d.jsonl",
        C,
        'd.jsonl:4: is a list, no object; write {"text": ..., "label": ...}',
    ),
    (
        "no tokenizer",
        jsonl(*TEXTS),
        "d.jsonl",
        C,
        'd.jsonl: text needs a tokenizer; name one with `tokenizer`: a folder of Hugging Face\'s, a tokenizer.json, or "bytes"',
    ),
    (
        "unknown tokenizer",
        jsonl(*TEXTS),
        {"path": "d.jsonl", "tokenizer": "./tok/tokenizer.json"},
        C,
        "tokenizer './tok/tokenizer.json': there is no such file or folder; name one with `tokenizer`: a folder of Hugging Face's, a tokenizer.json, or \"bytes\"",
    ),
    (
        "text that is none",
        jsonl(*TEXTS, {"text": 3, "label": "bad"}),
        {"path": "d.jsonl", "tokenizer": "bytes"},
        C,
        "d.jsonl:21: the text of column 'text' is '3'; give text, or leave it out",
    ),
    (
        "half a character",
        jsonl(*TEXTS, '{"text": "\\ud800", "label": "bad"}'),
        {"path": "d.jsonl", "tokenizer": "bytes"},
        C,
        "d.jsonl:21: the text of column 'text' holds half of a surrogate pair; write it anew",
    ),
    (
        "vectors of other lengths",
        jsonl(*({**each, "v": [1.0] * (1 + (i == 4))} for i, each in enumerate(TEXTS))),
        {"path": "d.jsonl", "tokenizer": "bytes", "target": "v"},
        E,
        "d.jsonl:5: 2 targets, but the first sample has 1; give each as many",
    ),
    (
        "no label at all",
        jsonl(*({"text": str(i), "labels": []} for i in range(20))),
        {"path": "d.jsonl", "tokenizer": "bytes"},
        M,
        "d.jsonl: no sample has a label; name the labels with `labels`",
    ),
    (
        "lists as features",
        jsonl(*({"a": [i], "label": i % 2} for i in range(20))),
        "d.jsonl",
        C,
        "d.jsonl: column 'a' holds a list in each row; inputs are numbers and categories; name the columns that are inputs with `features`",
    ),
    (
        "a name twice",
        nothing,
        {"path": "d.csv", "labels": ["a", "a"]},
        C,
        "data.labels: a name is given twice, got ['a', 'a']",
    ),
    (
        "labels that are no list",
        jsonl(*LABELS, {"text": "x", "labels": "a"}),
        {"path": "d.jsonl", "tokenizer": "bytes"},
        M,
        'd.jsonl:21: the labels \'a\' are no list; write it as ["a", "b"], [] where there is none, or give columns of 0 and 1',
    ),
    (
        "an embedding of nothing",
        jsonl(*TEXTS),
        {"path": "d.jsonl", "tokenizer": "bytes"},
        E,
        "d.jsonl: the data have no targets, and no original model gives them; name the column of vectors with `target`, or give a model that is trained already",
    ),
    (
        "words without tags",
        jsonl(*WORDS, {"tokens": ["a", "b"], "tags": ["X"]}),
        {"path": "d.jsonl", "tokenizer": "bytes"},
        T,
        "d.jsonl:12: 2 words but 1 tags; give each word one",
    ),
    (
        "a corpus that is too short",
        text("d.txt", "short"),
        "d.txt",
        L,
        "d.txt: the part train has 5 tokens: fewer than a window of 128 and the next; give more text, or a smaller `length`",
    ),
    (
        "a corpus of another task",
        text("d.txt", "text " * 99),
        "d.txt",
        C,
        "d.txt: running text has no targets for this task; choose task language-model, or write texts and targets as .jsonl",
    ),
    (
        "a corpus without training part",
        text("t/valid.txt", "text " * 99),
        "t",
        L,
        "t: there is no training part, only validation; name one 'train'",
    ),
    (
        "a stray file in a corpus",
        lambda: [text(f"t/{each}.txt", "x" * 999)() for each in ("train", "notes")],
        "t",
        L,
        "t/notes.txt: names no part, beside train.txt; call it train, validation or test, or move it away",
    ),
    (
        "no image",
        images(text("i/dog/x.png", "no image")),
        "i",
        C,
        "i/dog/x.png: cannot be read as an image (not in a form that Pillow knows); replace it, or leave it out",
    ),
    (
        "an image cut short",
        images(cut_short),
        "i",
        C,
        "i/dog/3.png: the image is cut short; replace it, or leave it out",
    ),
    (
        "an image of another size",
        images(lambda: PICTURE.resize((9, 8)).save("i/dog/2.png")),
        "i",
        C,
        "i/dog/2.png: the image is 8 x 9, others are 8 x 8 (height x width); say `size: [8, 8]` to have each resized",
    ),
    (
        "images of one class",
        images(lambda: shutil.rmtree("i/dog")),
        "i",
        C,
        "i: all samples are of one class, 'cat': nothing to learn; add samples of another",
    ),
    (
        "an empty class",
        images(lambda: Path("i/eel").mkdir()),
        "i",
        C,
        "i/eel: no image in it; put some there, or remove the folder",
    ),
    (
        "no image in a column",
        bad_column,
        "d.parquet",
        C,
        "d.parquet, row 3: cannot be read as an image (not in a form that Pillow knows); replace it, or leave it out",
    ),
    (
        "no parquet",
        text("d.parquet", "x"),
        "d.parquet",
        C,
        "d.parquet: cannot be read as parquet (Parquet file size is 1 bytes, smaller than the minimum file footer (8 bytes)); write it anew",
    ),
    (
        "no function",
        code("make = 3"),
        "my.py:make",
        C,
        "my.py:make: is no function but int; write def make_data(): ...",
    ),
    (
        "a function that raises",
        code("def make():\n    return x.nothing"),
        "my.py:make",
        C,
        "my.py:5: making the data raises AttributeError: 'Tensor' object has no attribute 'nothing'",
    ),
    (
        "a function of something else",
        code("def make():\n    return 3"),
        "my.py:make",
        C,
        "my.py:make: returns int; return a torch Dataset or DataLoader, (x, y), a mapping of arrays, evalsuite.Data, or a mapping of such with the keys train, validation, test",
    ),
    (
        "train is validation is test",
        code("s = TensorDataset(x, y)\ndef make():\n    return s, s, s"),
        "my.py:make",
        C,
        "my.py:make: the parts train and validation are the same samples: what is trained on must not be measured on; return others, or the training part alone",
    ),
    (
        "an iterable data set",
        code(
            "class S(IterableDataset):\n    def __iter__(self):\n        yield x[0], 1\n"
            "def make():\n    return DataLoader(S(), 4)"
        ),
        "my.py:make",
        C,
        "my.py:make, part train: is an iterable data set; a data set needs __getitem__ and __len__, since samples are drawn at random and read again",
    ),
    (
        "a loader of whole batches",
        code(
            "class S(Dataset):\n    def __len__(self):\n        return 5\n    def __getitem__(self, i):\n"
            "        return x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]\n"
            "def make():\n    return DataLoader(S(), batch_size=None)"
        ),
        "my.py:make",
        C,
        "my.py:make, part train: the loader's data set gives whole batches; give a data set of single samples, and a batch_size",
    ),
    (
        "an empty data set",
        code("def make():\n    return TensorDataset(x[:0], y[:0])"),
        "my.py:make",
        C,
        "my.py:make: the part train is empty; give it samples, or leave it out to have it cut",
    ),
    (
        "a data set that raises",
        code(
            "class S(Dataset):\n    def __len__(self):\n        return 40\n    def __getitem__(self, i):\n"
            "        return x[i + 1], y[i]\ndef make():\n    return S()"
        ),
        "my.py:make",
        C,
        "my.py:8: sample 39 raises IndexError: index 40 is out of bounds for dimension 0 with size 40",
    ),
    (
        "a data set that changes",
        code(
            "class S(Dataset):\n    def __len__(self):\n        return 40\n    def __getitem__(self, i):\n"
            "        return torch.rand(3), y[i]\ndef make():\n    return S()"
        ),
        "my.py:make",
        C,
        "my.py:make, part train: sample 0 is another at each reading; take random changes out of the data set, and put them into `augment: my.py:augment`",
    ),
    (
        "NaN in a data set",
        code(
            "class S(Dataset):\n    def __len__(self):\n        return 40\n    def __getitem__(self, i):\n"
            "        return x[i] / (i != 9) * (i != 9), y[i]\ndef make():\n    return S()"
        ),
        "my.py:make",
        C,
        "my.py:make, part train, sample 9: an input is NaN or infinite; correct it, or leave the sample out",
    ),
]


@pytest.mark.parametrize(
    ("make", "given", "task", "said"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG]
)
def test_each_wrong_input_gives_one_message(make: Make, given: Any, task: Task, said: str) -> None:
    make()
    with pytest.raises(OwnError) as caught:
        read_data(source_of(given), task)
    assert str(caught.value) == said


COARSE = {
    "seconds since 1970": 1.7e9 + np.arange(60.0),
    "counted from a billion": 1e9 + np.arange(60.0) % 7,
    "a small part of one": 1 + 1e-8 * np.arange(60.0),
}


@pytest.mark.parametrize("name", COARSE)
@pytest.mark.parametrize("what", ["inputs", "targets", "targets in a table"])
def test_numbers_that_float32_does_not_tell_apart_are_refused(name: str, what: str) -> None:
    values, others = COARSE[name], np.arange(60.0) / 7
    said = "differs? between samples by less|targets differ by less than float32 tells"
    if what == "inputs":
        np.savez("c.npz", x=np.stack([others, values], 1), y=np.arange(60) % 2)
        with pytest.raises(OwnError, match=r"x: entry 1 of a sample differs between samples by"):
            read_data(source_of("c.npz"), Classification())
        return
    if what == "targets":
        np.savez("c.npz", x=np.stack([others, others**2], 1), y=values)
    else:
        rows = [f"{x},{x * x},{y!r}" for x, y in zip(others, values.tolist(), strict=True)]
        Path("c.csv").write_text("\n".join(["x,z,target", *rows]))
    with pytest.raises(OwnError, match=said):
        read_data(source_of("c.npz" if what == "targets" else "c.csv"), Regression())


def test_numbers_that_float32_tells_apart_are_read_and_complex_ones_refused() -> None:
    values = 1e6 + np.arange(60.0)
    np.savez("c.npz", x=np.stack([values, values / 7], 1), y=values)
    assert read_data(source_of("c.npz"), Regression()).train.targets.dtype == torch.float32
    Path("complex.py").write_text(
        "import torch\ndef make():\n    return torch.ones(60, 4) * 1j, torch.arange(60) % 2\n"
    )
    with pytest.raises(OwnError, match=r"is torch\.complex64; give its real and imaginary parts"):
        read_data(source_of("complex.py:make"), Classification())
