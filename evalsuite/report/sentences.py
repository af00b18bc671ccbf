"""The answer in sentences: four lines of at most three items each, an item for each question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalsuite.report.answer import Answer, Kind, Statement
from evalsuite.report.cells import LEVEL, Reading
from evalsuite.report.numerals import grouped, listed

MOST = 3
_LONGEST = 120  # characters of a reason
_NOTHING = {
    Kind.BUYS: "Nothing that was measured here.",
    Kind.COSTS: "Nothing that was measured here.",
    Kind.SAME: "Nothing that was measured here.",
    Kind.UNKNOWN: "Nothing: every question has an answer.",
}


@dataclass(frozen=True)
class Item:
    """What a line says of one question: a sentence around its number.

    Args:
        question: that it answers.
        before: the sentence up to the number.
        number: with its unit; empty where there is none.
        interval: of 95 %, or why there is none.
        after: the rest, up to the full stop.
        statement: that the number is of.
    """

    question: str
    before: str
    number: str
    interval: str
    after: str
    statement: Statement

    @property
    def text(self) -> str:
        """The whole sentence."""
        return (
            " ".join(filter(None, (self.before, self.number, self.interval, self.after))).replace(
                " ,", ","
            )
            + "."
        )


@dataclass(frozen=True)
class Line:
    """One part of the answer: its first items, and how many more there are."""

    kind: Kind
    items: tuple[Item, ...]
    more: int
    nothing: str


def lines_of(answer: Answer) -> list[Line]:
    """The four lines."""
    lines = []
    for kind in Kind:
        items = list(_items(answer, kind))
        lines.append(
            Line(
                kind,
                tuple(items[:MOST]),
                max(0, len(items) - MOST),
                _NOTHING[kind] if not items else "",
            )
        )
    return lines


def table_of(answer: Answer, width: int = 160) -> list[str]:
    """The answer for a terminal: two lines at most for each of its parts."""
    rows = []
    for line in lines_of(answer):
        texts = [item.text for item in line.items[:2]] or [line.nothing]
        left = len(line.items) - len(texts) + line.more if line.items else 0
        for place, text in enumerate(texts):
            more = f" (and {left} more)" if left and place == len(texts) - 1 else ""
            room = width - len(more) - 28
            shown = text if len(text) <= room else text[: room - 1].rstrip() + "…"
            rows.append(f"{line.kind.value if not place else '':<28}{shown}{more}")
    return rows


def _items(answer: Answer, kind: Kind) -> Iterator[Item]:
    """The items of a part, the weightiest first: the largest effect in margins; what has no
    number last.
    """
    # 1. Questions with a number, the most important first.
    parts = answer.part(kind).values()
    valued = [
        own
        for statements in parts
        if (own := [one for one in statements if one.cell.estimate is not None])
    ]
    leads = [(_lead(own), own) for own in valued]
    if kind in (Kind.BUYS, Kind.COSTS):
        leads.sort(key=lambda pair: -_weight(pair[0]))
    if kind is Kind.UNKNOWN:
        leads.sort(key=lambda pair: bool(pair[0].cell.clock))
    yield from (_item(lead, own) for lead, own in leads)
    # 2. Questions without any, grouped by the reason that they share.
    bare = [one for statements in parts for one in statements if one.cell.estimate is None]
    told = {own[0].row.endpoint.question for own in valued}
    reasons = grouped((_reason(one), one) for one in bare if one.row.endpoint.question not in told)
    yield from (_unmeasured(reason, own) for reason, own in reasons.items())


def _weight(statement: Statement) -> float:
    estimate = statement.cell.estimate
    return abs(estimate.mean) / statement.row.endpoint.margin if estimate is not None else 0.0


def _lead(statements: Sequence[Statement]) -> Statement:
    """The mean over workloads where it says the same, else the largest effect."""
    return next((one for one in statements if not one.workload), max(statements, key=_weight))


def _item(lead: Statement, statements: Sequence[Statement]) -> Item:
    # 1. Where it holds: the workload that leads, and others that say the same.
    phrase, where = lead.row.endpoint.words, f"{'on' if lead.workload else 'in'} {lead.where}"
    rest = [one.workload for one in statements if one is not lead and one.workload]
    also = f", also on {listed(rest)}" if rest and lead.workload else ""
    also = (
        f", by itself on {listed(rest)}"
        if rest and not lead.workload and lead.kind is not Kind.UNKNOWN
        else also
    )
    lacking = f", {lead.cell.lacking}" if lead.cell.lacking else ""
    # 2. The sentence by its kind: a fact, an effect with its interval, what is excluded, or what
    # is open.
    number, interval = _signed(lead), _interval(lead)
    if lead.cell.reading is Reading.FACT:
        return _fact(lead, also)
    if lead.cell.counted is not None:
        return _counted(lead, also)
    if lead.kind in (Kind.BUYS, Kind.COSTS):
        number, interval = _apart(lead)
        after = f"{where}{also}{lacking}" + "".join(f"; {note}" for note in lead.notes)
        return Item(
            lead.row.endpoint.question, f"{_capital(phrase)} is", number, interval, after, lead
        )
    if lead.kind is Kind.SAME:
        notes = "".join(f"; {note}" for note in lead.notes)
        after = (
            f"{where}{also}{lacking}, which excludes a loss of {_points(lead.row.margin)}{notes}"
        )
    else:
        after = f"{where}{also}{lacking}, {_open(lead)}"
    return Item(
        lead.row.endpoint.question, f"{_capital(phrase)} differs by", number, interval, after, lead
    )


def _fact(lead: Statement, also: str) -> Item:
    """A number that every seed has: both levels where they are known."""
    estimate, scale, levels = lead.cell.estimate, lead.row.scale, lead.cell.levels
    assert estimate is not None
    phrase = _capital(lead.row.endpoint.words)
    # Every seed has the same difference, so that no interval is told.
    if not estimate.mean:
        every = f"in all {estimate.n} seeds " if estimate.n > 1 else ""
        after = f"{every}on {lead.where}{also}"
        return Item(lead.row.endpoint.question, f"{phrase} is", "the same", "", after, lead)
    number, _ = _apart(lead)
    if levels is not None:
        number = " in place of ".join(
            f"{scale.number(level)} {scale.unit}".strip() for level in levels
        )
    return Item(
        lead.row.endpoint.question,
        f"{phrase} is",
        number,
        "",
        f"on {lead.where}{also} ({lead.notes[0]})",
        lead,
    )


def _counted(lead: Statement, also: str) -> Item:
    """Of few samples the counts, and no more: "4 of 5 test samples, as with GELU"."""
    assert lead.cell.counted is not None
    own, other = lead.cell.counted
    beside = "as for the baseline" if own == other else f"{other} for the baseline"
    after = f"test samples, {beside}, on {lead.where}{also}: too few to conclude from"
    phrase = _capital(lead.row.endpoint.words)
    return Item(lead.row.endpoint.question, f"{phrase} is", own, "", after, lead)


def _unmeasured(reason: str, statements: Sequence[Statement]) -> Item:
    phrases = listed(dict.fromkeys(one.row.endpoint.words for one in statements))
    places = listed(dict.fromkeys(one.where for one in statements))
    if statements[0].cell.reading is Reading.DOUBTED:
        before = f"Nothing is concluded of {phrases} on {places}"
    else:
        before = f"There is no number of {phrases} on {places}"
    return Item(
        statements[0].row.endpoint.question, f"{before}: {reason}", "", "", "", statements[0]
    )


def _reason(statement: Statement) -> str:
    reason = (statement.notes or [statement.cell.reading.value])[0]
    return reason if len(reason) <= _LONGEST else reason[: _LONGEST - 1].rstrip() + "…"


def _open(statement: Statement) -> str:
    """Why a number says nothing yet."""
    if statement.cell.reason == "one seed":
        return "from which nothing is concluded"
    if statement.cell.reason:
        return f"from which nothing is concluded: {_reason(statement)}"
    if statement.cell.needed:
        needed = f"{statement.cell.needed:,} {statement.cell.replicates}"
        return f"{_chance(statement)}; about {needed} would tell"
    return _chance(statement)


def _chance(statement: Statement) -> str:
    """A number whose own interval excludes 0 may be chance only as one of many."""
    alone = statement.cell.p is not None and statement.cell.p <= LEVEL
    return "which may be chance among so many tests" if alone else "which may be chance"


def _signed(statement: Statement) -> str:
    estimate, scale = statement.cell.estimate, statement.row.scale
    assert estimate is not None
    return _points(f"{scale.number(estimate.mean, sign=True)} {scale.difference_unit}")


def _apart(statement: Statement) -> tuple[str, str]:
    """ "0.37 points lower", "[0.28, 0.47]"."""
    estimate, scale = statement.cell.estimate, statement.row.scale
    assert estimate is not None
    size = _points(f"{scale.number(abs(estimate.mean))} {scale.difference_unit}")
    if estimate.mean < 0:
        return f"{size} lower", _interval(statement, turned=True)
    return f"{size} higher", _interval(statement)


def _interval(statement: Statement, *, turned: bool = False) -> str:
    estimate, scale = statement.cell.estimate, statement.row.scale
    assert estimate is not None
    if estimate.constant or estimate.low is None or estimate.high is None:
        return f"in all {estimate.n} seeds" if estimate.constant else "(one seed, no interval)"
    possible = estimate.within(-1.0, 1.0) if scale.difference_unit == "pp" else estimate
    low, high = possible.low or 0.0, possible.high or 0.0
    if turned:
        low, high = -high, -low
    return f"[{scale.number(low)}, {scale.number(high)}]"


def _points(text: str) -> str:
    """Units as they are said: points for percentage points, nothing for a ratio or a count."""
    number, _, unit = text.partition(" ")
    return f"{number} {({'pp': 'points', 'ratio': '', 'count': ''}).get(unit, unit)}".rstrip()


def _capital(phrase: str) -> str:
    """The phrase as the subject that begins a sentence; what a comma opens in it is closed."""
    subject = phrase[:1].upper() + phrase[1:]
    return f"{subject}," if "," in subject else subject
