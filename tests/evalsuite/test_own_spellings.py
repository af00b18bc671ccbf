"""Class labels that are spelled as real numbers, or padded with zeros: numbered by what they
spell, or refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
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
from evalsuite.tasks import Classification
from opgraph.errors import OwnError

ROWS = 60
FORMS = ["csv", "tsv", "jsonl", "parquet", "dictionary", "npz", "folder table"]
TWELVE = range(12)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(labels: Sequence[Any], form: str) -> str:
    """Data whose sample i has the label i % len(labels), and that remainder as its first input."""
    rows = [(i % len(labels), i * 37 % 101 / 101, labels[i % len(labels)]) for i in range(ROWS)]
    if form in ("csv", "tsv"):
        separator = "," if form == "csv" else "\t"
        lines = [
            "x,z,label".replace(",", separator),
            *(separator.join(map(str, row)) for row in rows),
        ]
        Path(f"d.{form}").write_text("\n".join(lines), encoding="utf-8")
    elif form == "jsonl":
        lines = [json.dumps(dict(zip(("x", "z", "label"), row, strict=True))) for row in rows]
        Path("d.jsonl").write_text("\n".join(lines))
    elif form in ("parquet", "dictionary"):
        column = pa.array([label for *_, label in rows])
        column = column.dictionary_encode() if form == "dictionary" else column
        kinds, others = (
            pa.array([float(kind) for kind, *_ in rows]),
            pa.array([z for _, z, _ in rows]),
        )
        parquet.write_table(pa.table({"x": kinds, "z": others, "label": column}), "d.parquet")
        return "d.parquet"
    elif form == "npz":
        inputs = np.array([[kind, z] for kind, z, _ in rows])
        np.savez("d.npz", x=inputs, y=np.array([label for *_, label in rows]))
    else:
        Path("i").mkdir()
        for i, (kind, _, _) in enumerate(rows):
            pixels = np.full((2, 2), 12 * kind, np.uint8)
            pixels[1, 1] = i
            Image.fromarray(pixels).save(f"i/{i}.png")
        lines = [f"{i}.png;{label}" for i, (*_, label) in enumerate(rows)]
        Path("i/labels.csv").write_text("\n".join(["file;label", *lines]), encoding="utf-8")
        return "i"
    return f"d.{form}"


def read(path: Any) -> Data:
    return read_data(source_of(path), Classification())


def classes_of(data: Data, count: int) -> list[int]:
    """The class of each kind, which the first input tells."""
    classes: dict[int, int] = {}
    for split in (data.train, data.calibration, data.validation, data.test):
        for row, target in zip(split.inputs[:], split.targets.tolist(), strict=True):
            first = float(row.flatten()[0])
            kind = (
                first * 255 / 12
                if row.ndim == 3
                else first
                if data.domain[1] > 1
                else first * (count - 1)
            )
            assert classes.setdefault(round(kind), target) == target
    return [classes[kind] for kind in range(count)]


REAL = {
    "one decimal": [f"{i}.0" for i in TWELVE],
    "two decimals": [f"{i}.00" for i in TWELVE],
    "a point alone": [f"{i}." for i in TWELVE],
    "an exponent": [f"{i}e0" for i in TWELVE],
    "a large exponent": [f"{i}.0E+00" for i in TWELVE],
    "as numpy prints them": [f"{i:.18e}" for i in TWELVE],
    "tenths and an exponent": [f"{i / 10}e1" for i in range(10)],
    "tens and an exponent": [f"{i}0e-1" for i in TWELVE],
    "plus signs": [f"+{i}.0" for i in TWELVE],
    "spaces around": [f" {i}.0 " for i in TWELVE],
    "in falling order": [f"{11 - i}.0" for i in TWELVE],
    "twenty": [f"{i}.0" for i in range(20)],
    "some missing": [f"{2 * i}.0" for i in range(6)],
    "a few with decimals": ["0", "1.0", "2", "10.0", "9"],
    "two": ["1.0", "0.0"],
    "in another script": [f"{chr(0x0660 + i)}" for i in range(10)],
}
"""Whole numbers from 0 on, in spellings of real ones."""


def number(text: str) -> int:
    whole, _, exponent = text.strip().lower().partition("e")
    spelled = Fraction(whole.rstrip(".")) * Fraction(10) ** int(exponent or 0)
    assert spelled.denominator == 1
    return int(spelled)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spelling", REAL)
def test_whole_numbers_spelled_as_real_ones_are_the_numbers_of_classes(
    spelling: str, form: str
) -> None:
    labels = REAL[spelling]
    wanted = [int(label) if label.isdecimal() else number(label) for label in labels]
    if (
        spelling == "in another script"
    ):  # no digits of ASCII: ordered, and not taken for numbers that are written down
        wanted = sorted(range(len(labels)), key=lambda place: labels[place])
    assert classes_of(read(written(labels, form)), len(labels)) == wanted


NOT_WHOLE: dict[str, tuple[list[str], str]] = {
    "halves": (["0.5", "1.5", "2.5"], "the label 0.5 is no class: classes are whole numbers"),
    "one half": (["0.0", "1.0", "1.5"], "the label 1.5 is no class"),
    "nearly whole": (["0.0", "1.0000000001", "2.0"], "the label 1.0000000001 is no class"),
    "less than one": (["1e-1", "1e0", "1e1"], "the label 1e-1 is no class"),
    "an empty one": (["0.0", "1.0", ""], "there is no target"),
    "nan": (["0.0", "1.0", "nan"], "there is no target"),
    "NaN": (["0.0", "1.0", "NaN"], "there is no target"),
    "pandas' <NA>": (["0.0", "1.0", "<NA>"], "there is no target"),
    "None": (["0.0", "1.0", "None"], "there is no target"),
    "two spellings": (["1", "1.0", "2.0"], "'1' and '1.0' are one number in two spellings"),
    "two spellings of zero": (
        ["0.0", "-0.0", "1.0"],
        "'0.0' and '-0.0' are one number in two spellings",
    ),
    "two exponents": (["1e1", "10.0", "2.0"], "'1e1' and '10.0' are one number in two spellings"),
    "decimal commas": (["1,0", "2,0", "10,0"], "numbers with decimal commas"),
    "signs of percent": (["1.0%", "2.0%", "10.0%"], "numbers with signs of percent"),
    "hexadecimal": (["0x1", "0x2", "0xA"], "hexadecimal"),
    "fractions": (["1/2", "2/2", "3/2"], "fractions"),
    "a text among them": (
        ["0.0", "10.0", "2.0", "other"],
        "'other' is no number, and the others are",
    ),
    "infinite": (["0.0", "10.0", "2.0", "inf"], "'inf' is no number, and the others are"),
}


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "npz"])
@pytest.mark.parametrize("spelling", NOT_WHOLE)
def test_labels_that_are_no_whole_numbers_are_refused_with_their_place(
    spelling: str, form: str
) -> None:
    labels, said = NOT_WHOLE[spelling]
    if form == "csv" and any("," in label for label in labels):
        form = "tsv"
    with pytest.raises(
        OwnError, match=rf"^d\.{form}(:|, row |, part train, sample )[0-9]+: "
    ) as refused:
        read(written(labels, form))
    assert said in str(refused.value)


REAL_NUMBERS: dict[str, tuple[Any, list[int]]] = {
    "float64": (np.arange(12.0), list(TWELVE)),
    "float32": (np.arange(12, dtype=np.float32), list(TWELVE)),
    "float16": (np.arange(12, dtype=np.float16), list(TWELVE)),
    "int8": (np.arange(12, dtype=np.int8), list(TWELVE)),
    "unsigned": (np.arange(12, dtype=np.uint16), list(TWELVE)),
    "a zero that is negative": (np.array([-0.0, 1.0, 2.0]), [0, 1, 2]),
    "a gap": (np.array([0.0, 4.0, 2.0]), [0, 4, 2]),
}


@pytest.mark.parametrize("form", ["npz", "parquet"])
@pytest.mark.parametrize("kind", REAL_NUMBERS)
def test_numbers_of_every_type_are_those_of_the_same_numbers_as_text(kind: str, form: str) -> None:
    labels, wanted = REAL_NUMBERS[kind]
    assert classes_of(read(written(list(labels), form)), len(labels)) == wanted


PADDED: dict[str, tuple[list[str], list[int]]] = {
    "to two digits": ([f"{i:02}" for i in TWELVE], list(TWELVE)),
    "to three digits": ([f"{i:03}" for i in TWELVE], list(TWELVE)),
    "to five digits, as traffic signs": ([f"{i:05}" for i in TWELVE], list(TWELVE)),
    "to twenty digits": ([f"{i:020}" for i in TWELVE], list(TWELVE)),
    "from 1": ([f"{i + 1:02}" for i in TWELVE], list(TWELVE)),
    "months in falling order": ([f"{12 - i:02}" for i in TWELVE], list(reversed(TWELVE))),
    "08 to 10": (["08", "09", "10"], [0, 1, 2]),
    "10 to 08": (["10", "09", "08"], [2, 1, 0]),
    "a gap": (["00", "05", "10"], [0, 1, 2]),
    "what octal would read otherwise": (["007", "010", "011"], [0, 1, 2]),
    "across a hundred": (["099", "100", "101", "009"], [1, 2, 3, 0]),
    "one alone is padded": (["00", "1", "2", "10"], [0, 1, 2, 3]),
    "a plus sign": (["+00", "+01", "+10"], [0, 1, 2]),
    "negative": (["-01", "00", "01"], [0, 1, 2]),
    "with decimals": (["00.0", "01.0", "10.0"], [0, 1, 2]),
    "spaces around": ([" 00", "01 ", "10"], [0, 1, 2]),
    "Arabic digits": (["٠٠", "٠٢", "١٠"], [0, 1, 2]),
    "wide digits": (["０１", "０２", "１０"], [0, 1, 2]),
    "Devanagari digits": (["०९", "१०", "०१"], [1, 2, 0]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spelling", PADDED)
def test_padded_numbers_are_classes_in_the_order_of_their_numbers(spelling: str, form: str) -> None:
    labels, wanted = PADDED[spelling]
    data = read(written(labels, form))
    assert classes_of(data, len(labels)) == wanted
    by_place = {place: label.strip() for place, label in zip(wanted, labels, strict=True)}
    assert data.class_names == tuple(by_place[place] for place in range(len(labels)))


TWICE: dict[str, list[str]] = {
    "padded and not": ["1", "01", "2"],
    "padded twice": ["01", "001", "02"],
    "zero": ["0", "00", "1"],
    "a sign": ["+1", "01", "2"],
    "a decimal": ["01", "1.0", "2"],
    "another script": ["01", "٠١", "2"],
}


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("spelling", TWICE)
def test_one_number_padded_in_two_ways_is_refused(spelling: str, form: str) -> None:
    with pytest.raises(OwnError, match="are one number in two spellings; write one of them"):
        read(written(TWICE[spelling], form))


@pytest.mark.parametrize(
    "labels", [["00", "01", "10"], ["00000", "00001", "00010"], ["٠٠", "٠١", "١٠"]]
)
def test_folders_with_padded_names_are_classes(labels: list[str]) -> None:
    for kind, name in enumerate(labels):
        Path("i", name).mkdir(parents=True)
        for i in range(20):
            pixels = np.full((2, 2), 12 * kind, np.uint8)
            pixels[1, 1] = i
            Image.fromarray(pixels).save(f"i/{name}/{i}.png")
    data = read("i")
    assert classes_of(data, 3) == [0, 1, 2]
    assert data.class_names == tuple(labels)
