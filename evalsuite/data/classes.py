"""Which class is which: the one owner of the order of classes, for every form of data and every
task that has classes.

The model decides first, then `labels`, then the data: names that these list, and else names in
sorted order.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

from evalsuite.contract import IGNORED
from evalsuite.decimals import MISSING, other_spelling, without_hidden
from evalsuite.plugins import did_you_mean
from netverify.decimals import is_decimal
from opgraph.errors import OwnError

_SHOWN = 12  # classes that `check` names
_MOST_GAPS = 1000  # numbers without a sample that may lie between classes
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)  # which text sorts by time
_PADDED = re.compile(r"[-+]?0\d")
_LOST = {name for name in MISSING if "nan" in name} | {"<na>", "nat", "#n/a", "#na", "#n/a n/a"}
_TRUTHS = ("true", "false", "yes", "no")
_UNNAMED = re.compile(r"LABEL_\d+")  # what transformers calls classes that nobody has named

Where = Callable[[int], str]


@dataclass(frozen=True)
class Naming:
    """The names of classes that stand beside the data.

    Args:
        chosen: the user's `labels`, by number.
        model: what the model's own configuration calls its outputs, by number; empty where it names
            none.
        kept: whether the outputs keep their meaning; False where they are trained anew.
        order: "text" or "natural", how names are sorted that nobody lists; "": as text, and numbers
            as such.
    """

    chosen: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    kept: bool = True
    order: str = ""

    def __post_init__(self) -> None:
        if (
            self.chosen
            and self.model
            and self.chosen != self.model
            and set(self.chosen) == set(self.model)
        ):
            raise OwnError(
                f"data.labels: the model's configuration has another order, {_few(self.model)}; its"
                " outputs are in that order, so leave `labels` out"
            )

    @property
    def twice(self) -> str:
        """A name that the model gives to two classes; "" where there is none."""
        return next(
            (name for place, name in enumerate(self.model) if name in self.model[:place]), ""
        )

    def told_apart(self, names: Iterable[str], where: str) -> Naming:
        """This naming if the model names each class once, else a naming without the model's names.

        Raises:
            OwnError: it does not, and the data's names are to be found among its own.
        """
        twice = self.twice
        if not twice:
            return self
        if self.kept and any(whole_number(name) is None for name in names):
            first, second, *_ = (place for place, name in enumerate(self.model) if name == twice)
            said = f"the model's configuration calls two classes {twice!r}, {first} and {second}"
            cure = (
                "give `labels`, a name of its own for each class, in the order of the"
                " model's outputs"
            )
            raise OwnError(f"{where}: {said}; {cure}")
        return replace(self, model=())

    @property
    def named(self) -> tuple[str, ...]:
        """The model's names, where somebody has chosen them."""
        return () if all(map(_UNNAMED.fullmatch, self.model)) else self.model


@dataclass(frozen=True)
class Classes:
    """Classes in the order of their numbers.

    Args:
        count: how many.
        names: of each; empty where nobody names them.
        by: how they are ordered, in words.
        numbers: for each number that the data give, the number of the class; empty where it is the
            same.
    """

    count: int
    names: tuple[str, ...] = ()
    by: str = ""
    numbers: Mapping[int, int] = field(default_factory=dict)

    def place(self, value: Any) -> int | None:
        """The number of the class that a target names, in whatever spelling of a number; None
        where there is none.
        """
        name = normal(str(value))
        if name in self._places:
            return self._places[name]
        whole = whole_number(name)
        return (
            IGNORED
            if whole == IGNORED
            else self._by_number.get(whole)
            if whole is not None
            else None
        )

    @cached_property
    def _places(self) -> dict[str, int]:
        return {normal(name): place for place, name in enumerate(self.names)}

    @cached_property
    def _by_number(self) -> dict[int, int]:
        numbers = {
            whole: place
            for place, name in enumerate(self.names)
            if (whole := whole_number(name)) is not None
        }
        return numbers or self._numbered

    @cached_property
    def _numbered(self) -> dict[int, int]:
        """Where the model's names are texts, the data may give the numbers."""
        return {place: place for place in range(self.count)} if self.by == _BY_NUMBER else {}

    def described(self) -> str:
        """The first of them in order, and what the order is."""
        named = self.names or tuple(map(str, range(self.count)))
        shown = ", ".join(f"{place} = {name}" for place, name in enumerate(named[:_SHOWN]))
        last = f", ... {len(named) - 1} = {named[-1]}" if len(named) > _SHOWN else ""
        alike = len(named) - len({name.casefold() for name in named})
        case = "; some alike but for case" if alike else ""
        return f"in order: {shown}{last}; {self.by}{case}"


_BY_NUMBER = "numbered by the data, and named by the model's configuration"


def of_texts(
    texts: Sequence[str], where: Where, naming: Naming, listed: Sequence[str] = ()
) -> Classes:
    """The classes of targets that are texts, those of the training part; `where` names a sample.

    Raises OwnError: the model lacks some of them, or two of them are one number, or none is a
    class.
    """
    # 1. In this order of authority: `labels`, names of the model that are the data's, and numbers
    # of the model's outputs.
    distinct = list(
        dict.fromkeys(normal(text) for text in texts if text is not None and normal(text))
    )
    if naming.chosen:
        return Classes(len(naming.chosen), naming.chosen, "as `labels` says")
    naming = naming.told_apart(distinct, where(-1))
    if naming.model and distinct and all(name in naming.model for name in distinct):
        return Classes(len(naming.model), naming.model, "as the model's configuration names them")
    whole = [whole_number(name) for name in distinct]
    if naming.named and distinct and all(number is not None for number in whole):
        return Classes(len(naming.named), naming.named, _BY_NUMBER)
    # 2. A trained head has its own classes: data with other names cannot be told to it.
    if naming.named and naming.kept:
        raise _unknown(distinct, naming.named, where(-1))
    # 3. Else the head is new, and the data's own list or order decides.
    aside = (
        "; the model's configuration has other names, and its head is trained"
        if naming.named
        else ""
    )
    if listed and any(whole_number(name) is None for name in listed):
        return Classes(len(listed), tuple(listed), f"as the data list them{aside}")
    classes = _sorted(distinct, texts, where, naming.order)
    return Classes(classes.count, classes.names, classes.by + aside)


def of_numbers(count: int, where: Where, naming: Naming, listed: Sequence[str] = ()) -> Classes:
    """The classes of targets that are numbers below `count`, which the data may list by name.
    Raises OwnError: the model has none of a name.
    """
    listed = tuple(listed) if not all(whole_number(name) is not None for name in listed) else ()
    if naming.chosen:
        moved = _moved(listed, naming.chosen) if set(listed) == set(naming.chosen) else {}
        return Classes(len(naming.chosen), naming.chosen, "as `labels` says", moved)
    naming = naming.told_apart(listed, where(-1))
    if listed and naming.model and set(listed) <= set(naming.model):
        by = "as the model's configuration names them"
        return Classes(len(naming.model), naming.model, by, _moved(listed, naming.model))
    if listed and naming.named and naming.kept:
        raise _unknown([name for name in listed if name], naming.named, where(-1))
    if listed:
        return Classes(max(count, len(listed)), listed, "as the data list them")
    if naming.named and count <= len(naming.named):
        return Classes(len(naming.named), naming.named, _BY_NUMBER)
    return Classes(count, (), "numbered by the data")


def check_alike(listed: Mapping[str, Sequence[str]], where: str) -> None:
    """Refuse parts that list other classes than the training part, where numbers are meant by the
    list of their own part. Raises OwnError.
    """
    train = tuple(listed["train"])
    for part, names in listed.items():
        if train and names and tuple(names) != train:
            said = (
                f"the part {part} lists the classes {_few(names)}, the training part {_few(train)}"
            )
            cure = "number both by one list, as torchvision's ImageFolder does by find_classes"
            raise OwnError(f"{where}: {said}; {cure}")


def normal(text: str) -> str:
    """A name without spaces around it, its accents composed, as file systems and tables write
    them differently.
    """
    return unicodedata.normalize("NFC", text.strip())


def whole_number(text: str) -> int | None:
    """The whole number that a text spells, as 7, 07, 7.0 or in digits of another script; None
    where it spells none.
    """
    text = text.strip()
    if text.lstrip("+-").isdecimal() and not text[1:].startswith(("+", "-")):
        return int(text)
    if not is_decimal(text):
        return None
    number = Decimal(text)
    return (
        int(number)
        if abs(number.adjusted()) < _MOST_GAPS and number == number.to_integral_value()
        else None
    )


def natural_key(name: str) -> list[str | int]:
    """The sort key of timm for class names: case aside, numbers in a name by their size."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name.lower())]


def _sorted(distinct: list[str], texts: Sequence[str], where: Where, order: str) -> Classes:
    """Names that nobody lists: numbers as such, others in sorted order; all of them in an order
    that was chosen.
    """
    # 1. An order that the user chose.
    if order:
        names = sorted(distinct, key=natural_key if order == "natural" else None)
        return Classes(
            len(names),
            tuple(names),
            f"sorted {'by the numbers in them' if order == 'natural' else 'as text'}",
        )
    # 2. Names of which some are no numbers: sorted, unless some look like missing values or
    # misspelt numbers.
    first = {
        normal(text): index for index, text in reversed(list(enumerate(texts))) if text is not None
    }
    numbers = {name: whole_number(name) for name in distinct}
    whole = [number for number in numbers.values() if number is not None]
    missing = [name for name in distinct if name.lower() in MISSING]
    if missing and len(whole) == len(distinct) - len(missing) and whole:
        raise OwnError(
            f"{where(first[missing[0]])}: there is no target; fill it in, or leave the sample out"
        )
    if len(whole) < len(distinct):
        _check_names(distinct, first, where)
        _check_mixed(numbers, first, where)
        return Classes(len(distinct), tuple(sorted(distinct)), "sorted as text")
    # 3. Whole numbers: as they are where they begin at 0 with few gaps, since the model was built
    # for these, and else by their rank.
    _check_spellings(numbers, first, where)
    values = sorted(number for number in whole if number != IGNORED or min(whole) < IGNORED)
    plain = all(name.isascii() and not _PADDED.match(name) for name in distinct)
    if plain and values and values[0] == 0 and values[-1] < len(values) + _MOST_GAPS:
        count = values[-1] + 1
        return Classes(count, tuple(map(str, range(count))), "numbered by the data")
    names = [
        name
        for name in sorted(distinct, key=lambda name: numbers[name] or 0)
        if numbers[name] in values
    ]
    return Classes(len(names), tuple(names), "sorted by their numbers")


def _check_names(distinct: list[str], first: Mapping[str, int], where: Where) -> None:
    """Refuse numbers that are no classes or spelled as no number is read, and names that a
    reader cannot tell apart.
    """
    # 1. All numbers, of which one is not whole.
    if all(map(is_decimal, distinct)):
        wrong = next(name for name in distinct if whole_number(name) is None)
        cure = "classes are whole numbers; for real ones choose task regression"
        raise OwnError(f"{where(first[wrong])}: the label {wrong} is no class: {cure}")
    # 2. Spellings of numbers that no reader here takes, as "1,000" or "5 %", and nothing else.
    spellings = {
        name: other_spelling(name)
        for name in distinct
        if whole_number(name) is None and not _DATE.fullmatch(name)
    }
    if spellings and all(spelling or is_decimal(name) for name, spelling in spellings.items()):
        wrong, spelling = next((name, spelling) for name, spelling in spellings.items() if spelling)
        cure = "write whole numbers, or list the names with `labels`"
        raise OwnError(f"{where(first[wrong])}: the label {wrong!r} is one of {spelling}; {cure}")
    # 3. Missing values that a program wrote as text, and truth values in two spellings.
    lost = next((name for name in distinct if name.lower() in _LOST), None)
    if lost is not None:
        said = f"the label {lost!r} is what programs write where there is none"
        raise OwnError(
            f"{where(first[lost])}: {said}; leave the sample out, or list the names with `labels`"
        )
    truths = [name for name in distinct if name.lower() in _TRUTHS]
    others = [name for name in distinct if name not in truths]
    twice = len({name.lower() for name in truths}) < len(truths)
    if twice or (truths and others and all(whole_number(name) in (0, 1) for name in others)):
        shown = ", ".join(map(repr, sorted(distinct)[:_SHOWN]))
        raise OwnError(
            f"{where(first[truths[-1]])}: the labels {shown} are truth values in several spellings,"
            " each of which would be a class; write one of them, or list the names with `labels`"
        )
    # 4. Names that differ by blanks or characters that nobody sees.
    spelled: dict[str, str] = {}
    for name in distinct:
        other = spelled.setdefault(" ".join(without_hidden(name).split()), name)
        if other != name:
            said = f"the labels {other!a} and {name!a} look alike, and would be two classes"
            raise OwnError(
                f"{where(first[name])}: {said}; write one of them, or list the classes with"
                " `labels`"
            )


def _check_mixed(numbers: Mapping[str, int | None], first: Mapping[str, int], where: Where) -> None:
    """Refuse whole numbers beside names where text would be in another order than by size: 10
    before 2.
    """
    whole = {name: number for name, number in numbers.items() if number is not None}
    if sorted(whole) == sorted(whole, key=lambda name: whole[name]):
        return
    odd = next(name for name, number in numbers.items() if number is None)
    said = (
        f"the label {odd!r} is no number, and the others are, which text would put in another order"
    )
    raise OwnError(f"{where(first[odd])}: {said}; correct it, or list the classes with `labels`")


def _check_spellings(
    numbers: Mapping[str, int | None], first: Mapping[str, int], where: Where
) -> None:
    """Refuse one number in two spellings, which would be two classes."""
    spelled: dict[int | None, str] = {}
    for name, number in numbers.items():
        other = spelled.setdefault(number, name)
        if other != name:
            said = f"the labels {other!r} and {name!r} are one number in two spellings"
            raise OwnError(
                f"{where(first[name])}: {said}; write one of them, or list the classes with"
                " `labels`"
            )


def _moved(listed: Sequence[str], names: Sequence[str]) -> dict[int, int]:
    places = {name: place for place, name in enumerate(names)}
    moved = {number: places[name] for number, name in enumerate(listed)}
    return {} if all(number == place for number, place in moved.items()) else moved


def _unknown(distinct: Sequence[str], names: Sequence[str], where: str) -> OwnError:
    lacking = [name for name in distinct if name not in names]
    hint = did_you_mean(lacking[0], names) if len(names) <= 50 else ""
    said = f"the data have the classes {_few(lacking)}, which the model's configuration lacks{hint}"
    cure = "call them so, or give `labels`, the data's names in the order of the model's outputs"
    return OwnError(f"{where}: {said}; its outputs are {_few(names)}; {cure}")


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
