"""A user's data in each form are read into four disjoint parts, as float32, tokens or named inputs."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from evalsuite.contract import IGNORED, Data, Task
from evalsuite.own.data import fingerprint, source_of
from evalsuite.own.data.reading import crop_flip, flip, read_data
from evalsuite.references import OwnError
from evalsuite.run.making import PARTS, check_disjoint
from evalsuite.tasks import Classification, Embedding, LanguageModel, MultiLabel, Regression, TokenClassification

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


def folder_of_images(root: Path, count: int = 20, names: tuple[str, ...] = ("cat", "dog"), start: int = 0) -> None:
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
    assert (sizes(data), data.classes, data.domain, data.vocabulary) == ([120, 20, 20, 40], 4, (0.0, 1.0), None)
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
    assert (batch["input_ids"].dtype, data.vocabulary, data.input_shape) == (torch.int64, ids.max() + 1, (7,))


@pytest.mark.parametrize("last", [True, False])
def test_pixels_come_in_0_to_1_with_channels_first(last: bool) -> None:
    x = np.stack([pixels(i) for i in range(30)])
    np.savez("d.npz", x=x if last else x.transpose(0, 3, 1, 2), y=np.arange(30) % 2)
    data = read("d.npz")
    assert (data.input_shape, data.domain) == ((3, 8, 8), (0.0, 1.0))
    wanted = {each.astype(np.float32).tobytes() for each in (x.transpose(0, 3, 1, 2) / np.float32(255))}
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


def test_a_limit_keeps_so_many_of_each_part() -> None:
    x = RANDOM.random((100, 2))
    np.savez("d.npz", x_train=x[:60], y_train=np.arange(60) % 2, x_test=x[60:], y_test=np.arange(40) % 2)
    assert sizes(read({"path": "d.npz", "limit": 20})) == [16, 2, 2, 20]


# Images


def test_a_folder_of_classes_is_decoded_when_asked_and_numbered_by_name() -> None:
    folder_of_images(Path("i"), names=("dog", "ant", "cat"))
    data = read("i")
    assert (sizes(data), data.classes, data.input_shape, data.domain) == ([36, 6, 6, 12], 3, (3, 8, 8), (0.0, 1.0))
    found = {each.numpy().tobytes() for each in data.train.inputs[:]}  # type: ignore[attr-defined]
    wanted = {(pixels(i).transpose(2, 0, 1) / np.float32(255)).tobytes(): i for i in range(60)}
    classes = [1 if i >= 20 and i < 40 else 0 for i in (wanted[each] for each in found)]
    assert len(classes) == 36
    one = data.train.inputs[3].numpy().tobytes()
    assert int(data.train.targets[3]) == {0: 2, 1: 0, 2: 1}[wanted[one] // 20]  # dog, ant, cat in order of names


def test_parts_of_a_folder_normalised_resized_and_grey() -> None:
    folder_of_images(Path("i/train"))
    folder_of_images(Path("i/val"), 5, start=100)
    folder_of_images(Path("i/test"), 4, start=200)
    data = read({"path": "i", "size": 4, "channels": 1, "mean": 0.5, "std": 0.25})
    assert (sizes(data), data.input_shape, data.domain) == ([36, 4, 10, 8], (1, 4, 4), (-2.0, 2.0))
    wanted = Image.fromarray(pixels(200)).convert("L").resize((4, 4), Image.Resampling.BILINEAR)
    assert torch.allclose(data.test.inputs[0][0], (torch.tensor(np.array(wanted)) / 255 - 0.5) / 0.25)


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
        for each, target in zip(getattr(data, part).inputs[:], getattr(data, part).targets, strict=True):
            assert (each.numpy().tobytes() == first) == (float(target) == 0)


@pytest.mark.parametrize("form", ["bytes", "hf"])
def test_images_in_a_parquet_column(form: str) -> None:
    Path("p").mkdir()
    for part, start, count in (("train", 0, 40), ("test", 40, 10)):
        content = [encoded(start + i) for i in range(count)]
        images = content if form == "bytes" else [{"bytes": each, "path": None} for each in content]
        table = pa.table({"image": images, "label": [i % 2 for i in range(count)], "name": ["x"] * count})
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
        once, twice = (data.train.augment(batch, torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(once, twice)  # type: ignore[arg-type]
        assert not torch.equal(once, batch)  # type: ignore[arg-type]
    data = read({"path": "i", "augment": "my.py:wrong"})
    with pytest.raises(OwnError, match=r"my\.py:wrong: gives inputs of shape"):
        data.train.augment(data.train.inputs[:4], torch.Generator())


def test_flips_and_shifts_are_those_of_the_image() -> None:
    images = torch.rand(64, 3, 8, 8)
    flipped = flip(images, torch.Generator().manual_seed(0))
    same = [bool(torch.equal(one, two)) for one, two in zip(images, flipped, strict=True)]  # type: ignore[arg-type]
    mirrored = [bool(torch.equal(one.flip(-1), two)) for one, two in zip(images, flipped, strict=True)]  # type: ignore[arg-type]
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
    rows = [f"{i},{kinds[i % 3]},{'' if i % 10 == 0 else i % 7},{'yes' if i % 2 else 'no'}" for i in range(100)]
    Path("train.csv").write_text("\n".join(["age,colour,count,answer", *rows]))
    data = read({"path": "train.csv", "target": "answer"})
    assert (data.classes, data.input_shape, data.domain) == (2, (1 + 3 + 2,), (0.0, 1.0))
    train = data.train.inputs
    assert isinstance(train, torch.Tensor)
    assert (float(train[:, 0].min()), float(train[:, 0].max())) == (0.0, 1.0)
    assert torch.equal(train[:, 1:4].sum(1), torch.ones(len(train)))
    missing = train[:, 5] == 1
    known = train[~missing, 4].double() * 6  # 0 to 6
    assert torch.allclose(train[missing, 4].double() * 6, known.mean().expand(int(missing.sum())), atol=1e-5)


def test_a_regression_has_one_value_or_several_and_features_may_be_chosen() -> None:
    rows = [f"{i},{i * i},{i % 3},id{i}" for i in range(60)]
    Path("d.csv").write_text("\n".join(["a;b;c;d".replace(";", ","), *rows]))
    data = read({"path": "d.csv", "target": "b", "features": ["a", "c"]}, Regression())
    assert (data.classes, data.input_shape, data.train.targets.shape) == (1, (2,), (36,))
    data = read_data(source_of({"path": "d.csv", "target": ["b", "c"], "features": "a"}), Regression())
    assert (data.classes, data.test.targets.shape[1]) == (2, 2)


def test_parquet_and_labels_in_an_order_of_ones_own() -> None:
    table = pa.table({"a": np.arange(50.0), "b": pa.array([None, *range(1, 50)]), "class": ["lo", "hi"] * 25})
    parquet.write_table(table, "d.parquet")
    data = read({"path": "d.parquet", "labels": ["lo", "hi", "none"]})
    assert (data.classes, data.input_shape) == (3, (3,))
    first = float(data.train.inputs[:, 0].min())  # type: ignore[index]
    assert first == 0.0


# Text

SENTENCES = [{"text": f"number {i} is this", "label": "good" if i % 2 else "bad"} for i in range(40)]


@pytest.fixture
def tokenizer(here: Path) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "this", "is", "number", *map(str, range(40)), "##s", "paris"]
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
    lines("d.jsonl", *({"one": each["text"], "two": "is this", "label": each["label"]} for each in SENTENCES))
    batch = read({"path": "d.jsonl", "text": ["one", "two"]}, tokenizer=tokenizer).train.first(1)
    assert isinstance(batch, dict)
    assert batch["token_type_ids"].tolist() == [[0] * 6 + [1] * 3]
    lines("b.jsonl", *SENTENCES)
    Path("b.jsonl").write_text(Path("b.jsonl").read_text(), encoding="utf-8-sig")  # as some editors save it
    data = read({"path": "b.jsonl", "tokenizer": "bytes"})
    first = data.train.first(1)
    assert isinstance(first, dict)
    kept = first["input_ids"][0][first["attention_mask"][0] == 1]
    assert bytes(kept.tolist()).decode().startswith("number ")


def test_multi_label_lists_and_columns_are_the_same() -> None:
    names = [["a"], ["a", "c"], [], ["b"]]
    lines("lists.jsonl", *({"text": f"text {i}", "labels": names[i % 4]} for i in range(40)))
    columns = [{"text": f"text {i}", **{each: int(each in names[i % 4]) for each in "abc"}} for i in range(40)]
    lines("columns.jsonl", *columns)
    one = read({"path": "lists.jsonl", "tokenizer": "bytes"}, MultiLabel())
    two = read({"path": "columns.jsonl", "tokenizer": "bytes", "target": ["a", "b", "c"]}, MultiLabel())
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
    assert bytes(data.calibration.inputs[0].tolist()).decode() in Path("w/wiki.train.tokens").read_text()  # type: ignore[union-attr]
    assert bytes(data.test.inputs[0].tolist()).decode().startswith("test0")  # type: ignore[union-attr]


def test_one_text_is_cut_from_its_end_and_a_tokenizer_may_read_it(tokenizer: str) -> None:
    drawn = RANDOM.integers(0, 40, (600, 2)).tolist()
    Path("d.txt").write_text("\n".join(f"this is number {one} {two}" for one, two in drawn))
    data = read({"path": "d.txt", "length": 16}, LanguageModel(), tokenizer=tokenizer)
    whole = torch.cat([getattr(data, part).inputs.flatten() for part in PARTS])
    assert data.vocabulary == 49
    assert whole[:10].tolist() == [4, 5, 6, *(7 + each for each in drawn[0]), 4, 5, 6, *(7 + each for each in drawn[1])]
    assert len(whole) == 600 * 5 // 16 * 16
    lines("d.jsonl", *({"text": f"row {i}"} for i in range(400)))
    assert read({"path": "d.jsonl", "length": 16}, LanguageModel()).vocabulary == 256


# Hugging Face's data sets on disk: what save_to_disk of datasets 2 to 4 writes


def saved(folder: Path, table: pa.Table, features: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    half = len(table) // 2
    files = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, piece in zip(files, (table[:half], table[half:]), strict=True):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(piece)
    state = {"_data_files": [{"filename": each} for each in files], "_fingerprint": "x", "_format_type": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def test_a_saved_data_set_with_names_of_classes() -> None:
    features = {
        "text": {"dtype": "string", "_type": "Value"},
        "label": {"names": ["no", "yes", "so"], "_type": "ClassLabel"},
    }
    for part, count in (("train", 40), ("test", 10)):
        texts = [f"{part} {i}" for i in range(count)]
        saved(Path("s", part), pa.table({"text": texts, "label": [i % 2 for i in range(count)]}), features)
    Path("s/dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    data = read({"path": "s", "tokenizer": "bytes"})
    assert (sizes(data), data.classes) == ([32, 4, 4, 10], 3)
    table = pa.table(
        {"image": [{"bytes": encoded(i), "path": None} for i in range(30)], "label": [i % 2 for i in range(30)]}
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
        ("return DataLoader(TensorDataset(torch.rand(60, 3), torch.arange(60) % 2), 4)", [36, 6, 6, 12]),
        ("return {'x': torch.rand(60, 3).numpy(), 'y': torch.arange(60).numpy() % 2}", [36, 6, 6, 12]),
        ("return {'train': Squares(0, 60), 'val': Squares(60, 10), 'test': Squares(70, 20)}", [54, 6, 10, 20]),
        ("return Squares(0, 60), Squares(60, 20)", [48, 6, 6, 20]),
        ("return DataLoader(Squares(0, 60), 8), DataLoader(Squares(60, 20), 8)", [48, 6, 6, 20]),
        ("return (torch.rand(60, 3), torch.arange(60) % 2), (torch.rand(20, 3), torch.arange(20) % 2)", [48, 6, 6, 20]),
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
    assert [int(each) for each in (batch[:, 0, 0, 0] * 100).round() % 2] == data.train.targets[[3, 5]].tolist()
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
    for name, scale, code in (("one", 1, body), ("two", 1, body), ("read", 2, body), ("said", 1, f"{body}# more")):
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
    heavy = "{'torch', 'pandas', 'pyarrow', 'sklearn', 'PIL', 'numpy', 'tokenizers', 'transformers'}"
    check = "from evalsuite.own.data import fingerprint, source_of; fingerprint(source_of({'path': 'd.csv'}))"
    code = f"import sys; {check}; found = {heavy} & set(sys.modules); assert not found, found"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Memory

PEAK = """
import sys, torch
from evalsuite.own.data import source_of
from evalsuite.own.data.reading import read_data
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
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from Linux' /proc")
def test_an_epoch_of_many_images_never_holds_them_all(here: Path) -> None:
    count, size = 20_000, 96  # decoded 2.1 GB as float32, and 553 MB as bytes
    for i in range(count):
        if i < 20:
            (here / "many" / str(i)).mkdir(parents=True)
        small = np.random.default_rng(i).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(small).resize((size, size)).save(here / "many" / str(i % 20) / f"{i}.jpg")
    done = subprocess.run([sys.executable, "-c", PEAK, "many"], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 800  # MiB, of which torch and scikit-learn take 300
