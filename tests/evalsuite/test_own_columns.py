"""A table's columns are numbers, dates, categories or an index; what looks like a number is
never anything else.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from evalsuite.contract import Data
from evalsuite.data.reading import read_data
from evalsuite.data.source import source_of
from evalsuite.decimals import other_spelling, with_units
from evalsuite.run.making import check_disjoint
from evalsuite.tasks import Classification, Regression
from netverify.decimals import is_decimal
from opgraph.errors import OwnError

ROWS = 40


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(values: list[str], name: str = "width", file: str = "d.csv") -> str:
    """A semicolon-separated table with that column, noise, and labels in turn."""
    noise = random.Random(0)
    rows = [f"{value};{noise.random()};{i % 2}" for i, value in enumerate(values)]
    Path(file).write_text("\n".join([f"{name};noise;label", *rows]) + "\n", encoding="utf-8")
    return file


def read(given: Any, regression: bool = False) -> Data:
    data = read_data(source_of(given), Regression() if regression else Classification())
    check_disjoint(data)
    return data


def columns_of(data: Data) -> str:
    return dict(data.notes)["columns"]


def varied(pattern: str) -> list[str]:
    """The pattern with two digits of each row in the places of A and B."""
    return [pattern.replace("A", str(1 + i % 9)).replace("B", str(i // 9)) for i in range(ROWS)]


OTHER_SPELLINGS = [
    ("A,B", "decimal commas"),
    (",AB", "decimal commas"),
    ("-A,B", "decimal commas"),
    ("A,BBB", "decimal commas"),
    ("A,BBB.AA", "thousands"),
    ("A.BBB,AA", "thousands"),
    ("A BBB", "thousands"),
    ("A'BBB", "thousands"),
    ("AB%", "percent"),
    ("A,B %", "percent"),
    ("$A.B", "currency"),
    ("A.B €", "currency"),
    ("USD A", "currency"),
    ("0xA", "hexadecimal"),
    ("A_0B", "underscores"),
    ("٣AB", "another script"),
    ("－A", None),
    ("１AB", "another script"),
    ("−A.B", "minus"),
    ("A.B-", "sign apart"),
    ("(A.B)", "parentheses"),
    ("A.Bd+01", "another exponent"),
    ("<A.B", "comparison"),
    ("'A.B", "apostrophe"),
    ("A/1B", "fractions"),
    ("0A/1A/202B", "dates"),
    ("A:0B", "times"),
    ("A\u00ad.B", "do not show"),
    ("\ufeffA.B", "do not show"),
    ("\u200eA,B", "do not show"),
    ("A.B\u200b", "do not show"),
    ("A.B cm", "unit"),
    ("A.Bkg", "unit"),
    ("A.B xyz", "unit"),
]


@pytest.mark.parametrize(("pattern", "spelling"), OTHER_SPELLINGS)
def test_other_spellings_of_numbers_are_refused_by_name_value_line_and_cure(
    pattern: str, spelling: str | None
) -> None:
    values = varied(pattern)
    if spelling is None:  # no number that anybody writes: a text of many values
        with pytest.raises(OwnError, match=r"no category|holds"):
            read(table([f"{value}{i}" for i, value in enumerate(values)]))
        return
    with pytest.raises(
        OwnError, match=rf"^d\.csv:2: column 'width' holds .*: .*{spelling}.*write plain numbers"
    ):
        read(table(values))
    if len(set(values)) <= ROWS / 2:  # the way out, where they are names
        assert "width (category of" in columns_of(
            read({"path": table(values), "categories": "width"})
        )


READ = ("A.B", "-A", "+A", "AeB", "AE-0B", ".AB", "A.", " A ", "A00000000000", "0.0000000000AB")


@pytest.mark.parametrize("pattern", READ)
def test_plain_decimals_are_numbers_in_their_order(pattern: str) -> None:
    values = varied(pattern)
    data = read(table(values))
    assert "width (number)" in columns_of(data)
    numbers = np.array([float(value) for value in values])
    keys: Any = data.train.keys
    order = {key[0]: float(row[0]) for key, row in zip(keys, data.train.inputs[:], strict=True)}
    assert set(order) <= set(numbers.tolist())
    ranked = [order[number] for number in sorted(order)]
    assert ranked == sorted(ranked)


@pytest.mark.parametrize(
    "missing", ["", "NA", "nan", "NaN", "-nan", "#N/A", "<NA>", "null", "None", "?", "n/a"]
)
def test_what_is_missing_among_numbers_is_said(missing: str) -> None:
    values = [missing if i % 8 == 0 else str(i % 5) for i in range(ROWS)]
    data = read(table(values))
    assert "width (number, 5 missing)" in columns_of(data)
    assert data.input_shape == (3,)


@pytest.mark.parametrize("infinite", ["inf", "-inf", "Infinity", "1e999", "∞"])
def test_infinite_numbers_are_refused(infinite: str) -> None:
    with pytest.raises(OwnError, match=r"d\.csv:3: column 'width' is infinite"):
        read(table(["1.5", infinite, *varied("A.B")]))


def test_a_text_among_numbers_is_refused_and_names_are_categories() -> None:
    for odd in ("unknown", "-", ".", "missing", "5+"):
        with pytest.raises(
            OwnError, match=rf"d\.csv:4: column 'width' holds '{odd[:-1]}.?', but numbers in"
        ):
            read(table(["1", "2", odd, *varied("A")]))
    names = [("low", "mid", "high")[i % 3] for i in range(ROWS)]
    assert "width (category of 3 values)" in columns_of(read(table(names)))
    grades = [("1a", "1b", "2a", "2b")[i % 4] for i in range(ROWS)]
    assert "width (category of 4 values)" in columns_of(read(table(grades)))
    ordinals = [("1st", "2nd", "3rd")[i % 3] for i in range(ROWS)]
    assert "width (category of 3 values)" in columns_of(read(table(ordinals)))
    ranges = [("18-25", "26-40", "41-65")[i % 3] for i in range(ROWS)]
    assert "width (category of 3 values)" in columns_of(read(table(ranges)))
    cases = [("Yes", "yes", "no")[i % 3] for i in range(ROWS)]
    assert "some alike but for case" in columns_of(read(table(cases)))


@pytest.mark.parametrize("form", ["text", "whole", "real", "some missing"])
def test_dates_without_signs_between_are_days_and_it_is_said(form: str) -> None:
    """The last of a month is a day before the first of the next, and not 70."""
    days = [20200131, 20200201, 20200229, 20200301, 20201231, 20210101]
    dates = [days[i % 6] for i in range(ROWS)]
    spelled = [f"{date}.0" if form in ("real", "some missing") else str(date) for date in dates]
    if form == "some missing":
        spelled[::9] = [""] * len(spelled[::9])
    path = table(spelled)
    if form == "whole":
        columns = {"width": dates, "z": [i / 7 for i in range(ROWS)]}
        columns["label"] = [i % 2 for i in range(ROWS)]
        parquet.write_table(pa.table(columns), "d.parquet")
        path = "d.parquet"
    data = read(path)
    assert "width (date, written YYYYMMDD" in columns_of(data)
    there = [row for row in data.train.inputs[:] if form != "some missing" or not row[1]]
    scaled = sorted({round(float(row[0]), 6) for row in there})
    assert scaled == pytest.approx([day / 336 for day in (0, 1, 29, 30, 335, 336)], abs=1e-5)


@pytest.mark.parametrize(
    "values", [["20200101", "20200102"], ["20201301", "20200102", "20200103"], ["18000101"] * 3]
)
def test_other_whole_numbers_are_no_dates(values: list[str]) -> None:
    assert "width (number" in columns_of(
        read(table([values[i % len(values)] for i in range(ROWS)]))
    )


def test_moments_with_and_without_a_time_zone_are_refused() -> None:
    zones = ["Z", "+02:00", ""]
    mixed = [f"2020-01-{i % 28 + 1:02}T12:00:00{zones[i % 3]}" for i in range(ROWS)]
    with pytest.raises(OwnError, match=r"d\.csv:4: .*'2020-01-03T12:00:00' without a time zone"):
        read(table(mixed))
    aware = [f"2020-01-{i % 28 + 1:02}T12:00:00{zones[i % 2]}" for i in range(ROWS)]
    assert "width (date)" in columns_of(read(table(aware)))


@pytest.mark.parametrize("form", ["csv", "date32", "timestamp"])
def test_dates_are_days(form: str) -> None:
    days = [datetime.date(2024, 2, 25) + datetime.timedelta(days=3 * (i % 10)) for i in range(ROWS)]
    if form == "csv":
        path = table([day.isoformat() for day in days])
    else:
        stamp = pa.date32() if form == "date32" else pa.timestamp("ms")
        noise = np.random.default_rng(0).random(ROWS)
        columns = {
            "width": pa.array(days, pa.date32()).cast(stamp),
            "noise": noise,
            "label": np.arange(ROWS) % 2,
        }
        parquet.write_table(pa.table(columns), path := "d.parquet")
    data = read(path)
    assert "width (date)" in columns_of(data)
    assert len({float(row[0]) for row in data.train.inputs[:]}) > 2


def index_table(name: str, values: list[int], labels: list[int], file: str = "d.csv") -> str:
    noise = random.Random(file)
    rows = [
        f"{value},{noise.random()},{label}" for value, label in zip(values, labels, strict=True)
    ]
    Path(file).write_text("\n".join([f"{name},noise,label", *rows]) + "\n")
    return file


SORTED = [0] * 20 + [1] * 20
INDEX_NAMES = [
    "",
    "Unnamed: 0",
    "index",
    "__index_level_0__",
    "id",
    "ID",
    "row_id",
    "PassengerId",
    "customer_id",
    "idx",
    "rownames",
    "Nr",
    "level_0",
    "userID",
    "uuid",
]


@pytest.mark.parametrize("name", INDEX_NAMES)
@pytest.mark.parametrize("order", ["counting", "shuffled"])
def test_a_column_that_numbers_the_rows_is_left_out_with_a_word(name: str, order: str) -> None:
    values = list(range(ROWS))
    if order == "shuffled":
        random.Random(1).shuffle(values)
    path = index_table(name, values, SORTED)
    data = read(path)
    assert data.input_shape == (1,)
    assert f"noise (number); left out: {name!r} is" in columns_of(data)
    asked = read({"path": path, "features": [name, "noise"]})
    assert asked.input_shape == (2,)


def test_an_index_is_found_in_parts_that_were_cut_and_saved_with_it() -> None:
    Path("d").mkdir()
    values = list(range(60))
    random.Random(2).shuffle(values)
    index_table("", values[:40], [i % 2 for i in range(40)], "d/train.csv")
    index_table("", values[40:], [i % 2 for i in range(20)], "d/test.csv")
    assert read("d").input_shape == (1,)


def test_a_column_that_counts_sorted_rows_is_refused_under_any_name() -> None:
    with pytest.raises(
        OwnError, match="column 'visit' counts 0 to 39 in the order of the rows, which are sorted"
    ):
        read(index_table("visit", list(range(ROWS)), SORTED))
    path = index_table("visit", list(range(ROWS)), [i % 2 for i in range(ROWS)])
    assert "visit (number, which counts 0 to 39 in the order of the rows)" in columns_of(read(path))
    grid = [f"{i},{i % 2}" for i in range(ROWS)]
    Path("one.csv").write_text("\n".join(["x,label", *grid]))
    assert "x (number" in columns_of(read("one.csv"))  # the only one


@pytest.mark.parametrize(
    "value",
    [
        "1_000",
        "3,4",
        "1,200",
        "$3.5",
        "12%",
        "0x1F",
        "٣",
        "１２",
        "inf.",
        "nan",
        "NA",
        "",
        "−3",
        "(3)",
        "3 cm",
        "1/2",
    ],
)
def test_targets_of_a_regression_are_read_as_strictly(value: str) -> None:
    rows = [f"{i / 7};{i}.5" for i in range(30)]
    Path("d.csv").write_text("\n".join(["x;price", f"0.3;{value}", *rows]) + "\n")
    with pytest.raises(OwnError, match=r"^d\.csv:2: the target .* is (no number|of )"):
        read({"path": "d.csv", "target": "price"}, regression=True)


COLUMNS: dict[str, Callable[[random.Random], str]] = {
    "hours": lambda draw: str(draw.randrange(21) / 2),
    "week": lambda draw: str(draw.randint(1, 7)),
    "age": lambda draw: str(draw.randint(18, 90)),
    "score": lambda draw: f"{draw.gauss(50, 15):.1f}",
    "wait": lambda draw: f"{draw.expovariate(1):.2f}",
    "gaps": lambda draw: draw.choice(["", "1", "2", "3", "4", "5"]),
    "letter": lambda draw: draw.choice("abcdefgh"),
    "spelled": lambda draw: draw.choice(["1", "1.0", "2", "2.00", "3", "4e0", "5", "6"]),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("count", [30, 300, 1000])
def test_equal_rows_of_one_column_lie_in_one_part(name: str, count: int) -> None:
    draw = random.Random(count)
    rows = [f"{COLUMNS[name](draw)},{draw.randint(0, 1)}" for _ in range(count)]
    Path("d.csv").write_text("\n".join([f"{name},label", *rows]))
    data = read("d.csv")
    keys = [
        set(split.keys or ())
        for split in (data.train, data.calibration, data.validation, data.test)
    ]
    assert all(one.isdisjoint(other) for i, one in enumerate(keys) for other in keys[:i])
    assert sum(map(len, (data.train, data.calibration, data.validation, data.test))) == count


def test_numbers_and_their_other_spellings() -> None:
    assert all(map(is_decimal, ("0", "-1.5", "+2", ".5", "5.", "1e-3", "1E+05")))
    assert not any(map(is_decimal, ("", "1_0", "nan", "inf", "٣", "1,5", "0x1", "1 ", "--1", "e5")))
    names = ("cat", "v1", "3+", "1a", "18-25", "class_3", "a/b", "1.2.3.4.5", "", "-", "B12", "x=3")
    assert [name for name in names if other_spelling(name)] == []
    assert with_units(["1 cm", "2 m"])
    assert not with_units(["1st", "2nd"])
