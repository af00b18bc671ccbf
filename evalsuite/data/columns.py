"""Columns of a table as inputs: what each is, read strictly, so that no number is taken for a
name or for nothing.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, localcontext
from typing import Any, Literal

import numpy as np

from evalsuite.data.tables import Table, column
from evalsuite.decimals import MISSING, other_spelling, with_units
from netverify.decimals import is_decimal
from opgraph.errors import OwnError

_INFINITE = re.compile(r"[-+]?(inf|infinity|∞)", re.IGNORECASE)
_CATEGORIES = 100
_CODES = 20  # different numbers that may well be categories
_FEW = 2  # different numbers beside which texts may stand
_DAY = 86_400.0
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
# pandas, R and spreadsheets call a column of row numbers so; identifiers end so.
_UNNAMED = re.compile(
    r"|unnamed: ?\d+(_level_\d+)?|__index_level_\d+__|index|level_0|x\.1|\.\.\.1", re.IGNORECASE
)
_IDENTIFIER = re.compile(
    r"(.*[\W_])?(id|ids|idx|index|rownum|rownames|rowid|row|uuid|guid|nr|no|key)", re.IGNORECASE
)
_CAMEL = re.compile(r".*[a-z](Id|ID|Idx|Index|Nr|No)")
_PADDED = re.compile(r"[-+]?0\d")
_TRUTHS = ("true", "false", "yes", "no", "t", "f", "y", "n")
_COARSE = 1e-10  # of a column's greatest number: a spread below it may be lost in float64
_LOST = 0.01  # of the spread, that float64 may round away
_FEWEST = 10  # rows that tell an index, or dates
_COMPACT = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\.0*)?", re.ASCII)
_SHOWN = 60
_MARGIN = 0.1  # of the range of training, beyond which a number is far
_MOST_BEYOND = 0.1  # of a part's rows, that may lie beyond those of training
_WHOLE = 2**53  # up to it float64 has each whole number
_DIGITS = 200  # that differences of decimals keep

ColumnKind = Literal["number", "date", "category"]


class Column:
    """A column of all parts, one after the other.

    `kind` is what it is; `numbers` (rows,) float64, NaN where they are missing, are those of
    numbers, and of dates the days since 1970; `texts` (rows,) are the names of categories, "" where
    they are missing. Raises OwnError where it is none of these; the text names the column, the
    value, its line and the cure.
    """

    def __init__(self, name: str, tables: Mapping[str, Table], *, category: bool = False) -> None:
        self.name, self._tables = name, tables
        # 1. The values of all parts, so that one reading holds for all of them.
        values = [value for table in tables.values() for value in column(table, name)]
        self.values = [value.strip() if isinstance(value, str) else value for value in values]
        self._check_scalars()
        self.kind: ColumnKind = "category" if category else self._kind()
        # 2. Names as text, numbers and dates as float64; what is missing is "" or NaN.
        if self.kind == "category":
            self.texts = np.array(
                ["" if _is_missing(value) else str(value) for value in self.values], dtype=object
            )
            self._check_categories()
            return
        read = _number if self.kind == "number" else _days
        self.numbers = np.array(
            [math.nan if _is_missing(value) else read(value) for value in self.values], np.float64
        )
        infinite = np.flatnonzero(np.isinf(self.numbers))
        if len(infinite):
            where = self._where(int(infinite[0]))
            raise OwnError(f"{where}: column {name!r} is infinite; correct it, or leave it empty")

    @property
    def keys(self) -> list[float | str | None]:
        """The values to compare: the numbers, None where they are missing, or the texts."""
        if self.kind == "category":
            return list(self.texts)
        return [None if math.isnan(number) else number for number in self.numbers.tolist()]

    def described(self) -> str:
        """Its name and what it is, for `check` and the report."""
        name = self.name or "the column without a name"
        if self.kind == "category":
            names = sorted(set(self.texts))
            alike = len(names) - len({text.casefold() for text in names})
            return (
                f"{name} (category of {len(names)}"
                f" values{', some alike but for case' if alike else ''})"
            )
        compact = _are_compact_dates([value for value in self.values if not _is_missing(value)])
        padded = any(isinstance(value, str) and _PADDED.match(value) for value in self.values)
        written = ", written YYYYMMDD" if compact else ", some with leading zeros" if padded else ""
        kind = f"{self.kind}{written}"
        missing, count = int(np.isnan(self.numbers).sum()), self.counts_rows()
        rows = f", which {count} in the order of the rows" if count else ""
        return f"{name} ({kind}{f', {missing:,} missing' if missing else ''}{rows})"

    def date_format(self) -> str:
        """How its dates are written, for strftime; "" of what is no date."""
        if self.kind != "date":
            return ""
        there = [value for value in self.values if not _is_missing(value)]
        if _are_compact_dates(there):
            return "%Y%m%d"
        # Days alone, or moments, which are in UTC where they have a zone.
        days = self.numbers[~np.isnan(self.numbers)]
        if bool((days == np.round(days)).all()):
            return "%Y-%m-%d"
        joint = " " if isinstance(there[0], str) and "T" not in there[0] else "T"
        zone = "" if _moment(there[0]).tzinfo is None else "+00:00"
        return f"%Y-%m-%d{joint}%H:%M:%S{zone}"

    def empty_reason(self) -> str:
        """Why it is nothing but a separator at the end of each line; "" where it is more."""
        if self.name.strip() or not all(map(_is_missing, self.values)):
            return ""
        return "a column without a name and without a value"

    def index_reason(self) -> str:
        """Why it numbers the rows and says nothing of them; "" where it does not."""
        if len(self.values) < _FEWEST or not all(map(self._differ, self._parts())):
            return ""
        if self.kind == "number" and _UNNAMED.fullmatch(self.name.strip()):
            return (
                f"{self.name!r} is a column without a name of its own that {self._counted()}: an"
                " index"
            )
        if _IDENTIFIER.fullmatch(self.name.strip()) or _CAMEL.fullmatch(self.name.strip()):
            return f"{self.name!r} is another in each row: an identifier"
        return ""

    def counts_rows(self) -> str:
        """How it counts the rows in their order, as "counts 0 to 399"; "" where it does not."""
        if self.kind != "number" or len(self.values) < _FEWEST:
            return ""
        steps = [
            set(np.diff(self.numbers[part]).tolist())
            for part in self._parts()
            if part.stop - part.start > 1
        ]
        whole = bool((self.numbers == np.round(self.numbers)).all())
        return self._counted() if whole and all(step in ({1.0}, {-1.0}) for step in steps) else ""

    def beyond_training(self) -> list[str]:
        """A sentence for each other part in which many rows have what the training part has not:
        numbers far beyond its range, or other names.
        """
        sentences = []
        parts = dict(zip(self._tables, self._parts(), strict=True))
        train = parts.pop("train")
        fewest = min(len(self._tables["train"]), *map(len, self._tables.values()))
        for name, part in parts.items():
            beyond = self._beyond(train, part)
            if int(beyond.sum()) <= (_MOST_BEYOND + _FEWEST / (fewest + _FEWEST)) * len(beyond):
                continue
            what = (
                "names that train has not"
                if self.kind == "category"
                else "numbers far beyond those"
            )
            of_train = "" if self.kind == "category" else " of train, which are clipped"
            rows = f"{int(beyond.sum()):,} of {len(beyond):,} rows of {name}"
            sentences.append(f"column {self.name!r} has {what}{of_train} in {rows}")
        return sentences

    def _beyond(self, train: slice, part: slice) -> np.ndarray:
        """For each row of a part whether it has what the training part has not, (rows,)."""
        if self.kind == "category":
            known = set(self.texts[train].tolist())
            return np.array([text not in known for text in self.texts[part].tolist()], bool)
        numbers = self.numbers[train]
        numbers = numbers[~np.isnan(numbers)]
        if not len(numbers):
            return np.zeros(part.stop - part.start, bool)
        margin = _MARGIN * np.ptp(numbers)
        low, high, values = numbers.min() - margin, numbers.max() + margin, self.numbers[part]
        return np.array((values < low) | (values > high), bool)

    def _counted(self) -> str:
        return f"counts {self.numbers[0]:.10g} to {self.numbers[-1]:.10g}"

    def check_told_apart(self) -> None:
        """Refuse numbers that differ by less than float64 tells, as identifiers above 2^53 do."""
        if self.kind != "number":
            return
        known = self.numbers[np.isfinite(self.numbers)]
        if not len(known) or np.ptp(known) > _COARSE * np.abs(known).max():
            return
        there = [value for value in self.values if not _is_missing(value)]
        exact = [Decimal(value) for value in there if isinstance(value, (str, int, Decimal))]
        if len(exact) < len(there) or len(set(exact)) == 1:
            return  # a column of one value, such as 0.1, has no differences to lose
        with localcontext() as context:
            context.prec = _DIGITS
            offsets = np.array([float(number - exact[0]) for number in exact])
            rounded = np.array([float(number - Decimal(float(number))) for number in exact])
        if np.abs(rounded).max() > _LOST * offsets.std():
            raise OwnError(
                f"{self._tables['train'].file}: column {self.name!r} differs between rows by less"
                " than float64 tells; subtract an offset, name the other columns with `features`,"
                " or, if it is of names, say so by `data.categories`"
            )

    def _parts(self) -> Iterator[slice]:
        start = 0
        for table in self._tables.values():
            yield slice(start, start + len(table))
            start += len(table)

    def _differ(self, part: slice) -> bool:
        """Whether whole numbers or texts are all different in the rows of a part."""
        if self.kind == "category":
            return len(set(self.texts[part].tolist())) == int(part.stop - part.start)
        values = self.numbers[part]
        if not np.array_equal(values, np.round(values)):
            return False
        # Beyond 2^53 float64 takes some whole numbers for one another.
        exact = np.abs(values).max() < _WHOLE
        different = len(np.unique(values)) if exact else len(set(map(str, self.values[part])))
        return bool(different == len(values))

    def _check_scalars(self) -> None:
        odd = next(
            (value for value in self.values if isinstance(value, (list, tuple, dict, bytes))), None
        )
        if odd is not None:
            said = (
                f"column {self.name!r} holds a {type(odd).__name__} in each row; inputs are numbers"
                " and categories"
            )
            raise OwnError(
                f"{self._tables['train'].file}: {said}; name the columns that are inputs with"
                " `features`"
            )

    def _kind(self) -> ColumnKind:
        """Whether all that is not missing is a number, a date, or a name. Raises OwnError for
        other spellings.
        """
        # 1. What each value could be, missing ones aside.
        there = {index: value for index, value in enumerate(self.values) if not _is_missing(value)}
        numbers = {index for index, value in there.items() if _is_number(value)}
        dates = {
            index for index, value in there.items() if index not in numbers and _is_date(value)
        }
        if not there:
            return "category"
        # 2. A column that is all of one kind.
        if len(numbers) == len(there):
            return "date" if _are_compact_dates(list(there.values())) else "number"
        if len(dates) == len(there):
            self._check_zones(there)
            return "date"
        # 3. Truth values beside 0 and 1 are one thing in two spellings.
        truths = [index for index in there if str(there[index]).lower() in _TRUTHS]
        is_all = bool(truths and numbers) and len(truths) + len(numbers) == len(there)
        if is_all and {_number(there[index]) for index in numbers} <= {0.0, 1.0}:
            raise self._misspelt(truths[0], "truth values beside 0 and 1")
        # 4. Else names, unless the rest are other spellings of numbers, or a few texts among many
        # numbers: as a category, such a column would lose that it is of numbers.
        spellings = {
            index: self._spelling(value) for index, value in there.items() if index not in numbers
        }
        others = {index: spelling for index, spelling in spellings.items() if spelling}
        rest = [index for index in spellings if index not in others]
        if rest and not numbers and not others and with_units(str(there[index]) for index in rest):
            raise self._misspelt(rest[0], "numbers with a unit behind")
        if rest and with_units(str(there[index]) for index in rest) and numbers | others.keys():
            raise self._misspelt(rest[0], "numbers with a unit behind, beside others")
        if others and not rest:
            raise self._misspelt(*next(iter(others.items())))
        self._check_mixed(numbers | others.keys(), rest)
        return "category"

    def _check_zones(self, dates: Mapping[int, Any]) -> None:
        """Refuse moments of which some have a time zone and some have none: they cannot be told
        apart by hours.
        """
        without = {index: _moment(value).tzinfo is None for index, value in dates.items()}
        if len(set(without.values())) > 1:
            index = next(index for index, naive in without.items() if naive)
            said = (
                f"column {self.name!r} holds {str(self.values[index])!r} without a time"
                " zone, and others with one"
            )
            raise OwnError(
                f"{self._where(index)}: {said}; write each with its zone, as"
                " 2026-01-31T12:00:00+01:00"
            )

    @staticmethod
    def _spelling(value: Any) -> str:
        text = str(value)
        return "dates" if _is_date(value) else other_spelling(text)

    def _misspelt(self, index: int, spelling: str) -> OwnError:
        shown = repr(self.values[index])
        shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
        cure = "write plain numbers, as 1234.5, or dates as 2026-01-31"
        names = "if they are names, say so by `data.categories`"
        return OwnError(
            f"{self._where(index)}: column {self.name!r} holds {shown}: {spelling}; {cure}; {names}"
        )

    def _check_mixed(self, numeric: set[int], texts: list[int]) -> None:
        """Refuse a column of numbers among which a few texts stand, or of more numbers than
        codes.
        """
        different = len({str(self.values[index]) for index in numeric})
        mostly = len(texts) <= (len(texts) + len(numeric)) / 10 and different > _FEW
        if texts and (mostly or different > _CODES):
            said = f"column {self.name!r} holds {self.values[texts[0]]!r}, but numbers in "
            rows = "nearly all rows" if mostly else f"{len(numeric):,} other rows"
            cure = "correct it, or leave it empty"
            raise OwnError(f"{self._where(texts[0])}: {said}{rows}; {cure}")

    def _check_categories(self) -> None:
        count = len(set(self.texts))
        if _IDENTIFIER.fullmatch(self.name.strip()) or _CAMEL.fullmatch(self.name.strip()):
            return  # see `index_reason`; what remains is checked when it is used
        self.check_few(count)

    def check_few(self, count: int) -> None:
        """Refuse a category of too many values. Raises OwnError."""
        if count > _CATEGORIES or (count > _CODES and count > len(self.texts) / 2):
            said = (
                f"column {self.name!r} has {count} different texts in {len(self.texts)} rows: it is"
                " no category"
            )
            cure = (
                "name the columns that are inputs with `features`, or a column of text with `text`"
            )
            raise OwnError(f"{self._tables['train'].file}: {said}; {cure}")

    def _where(self, index: int) -> str:
        for table in self._tables.values():
            if index < len(table):
                return table.where(index)
            index -= len(table)
        raise IndexError(index)


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in MISSING
    return value is None or (isinstance(value, (float, Decimal)) and math.isnan(value))


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return is_decimal(value) or _INFINITE.fullmatch(value) is not None
    return isinstance(value, (int, float, Decimal, datetime.timedelta))


def _number(value: Any) -> float:
    """A number; of a span of time its days."""
    if isinstance(value, datetime.timedelta):
        return value.total_seconds() / _DAY
    return float(value.replace("∞", "inf") if isinstance(value, str) else value)


def _is_date(value: Any) -> bool:
    if isinstance(value, datetime.date):
        return True
    if not isinstance(value, str) or not re.match(r"\d{4}-\d{2}-\d{2}", value, re.ASCII):
        return False
    try:
        datetime.datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _are_compact_dates(values: Sequence[Any]) -> bool:
    """Whether each is a date of the years 1900 to 2099 as YYYYMMDD, in rows enough that numbers
    would show.
    """
    if len(values) < _FEWEST or len({str(value) for value in values}) <= _FEW:
        return False
    return all(_COMPACT.fullmatch(str(value)) and _compact(value) is not None for value in values)


def _compact(value: Any) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(str(value)[:8], "%Y%m%d")
    except ValueError:
        return None


def _moment(value: Any) -> datetime.datetime:
    if not isinstance(value, (str, datetime.date)) or (
        isinstance(value, str) and _COMPACT.fullmatch(value)
    ):
        compact = _compact(value)
        assert compact is not None  # see `_are_compact_dates`
        return compact
    moment = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    return (
        moment
        if isinstance(moment, datetime.datetime)
        else datetime.datetime.combine(moment, datetime.time())
    )


def _days(value: Any) -> float:
    """Days since 1970-01-01, UTC; a date without a zone is taken for UTC's."""
    moment = _moment(value)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.timezone.utc)
    return (moment - _EPOCH).total_seconds() / _DAY
