"""The answer in sentences: four lines of at most three items each, an item for each question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evalsuite.report.answer import Answer, Kind, Statement
from evalsuite.report.cells import LEVEL, Reading
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.numerals import grouped, listed

MOST = 3
_LONGEST = 120  # characters of a reason
_NOTHING = {
    Kind.BUYS: "No gain is concluded.",
    Kind.COSTS: "No loss is concluded.",
    Kind.SAME: "None is concluded.",
    Kind.UNKNOWN: "Nothing: every question that was asked has an answer.",
}


@dataclass(frozen=True)
class Item:
    """A line about one question: a sentence around its number.

    Args:
        question: that it answers.
        before: the sentence up to the number.
        number: with its unit; empty where there is none.
        interval: of 95 %, or why there is none.
        after: the rest, up to the full stop or the doubt.
        statement: that the number is of.
        doubt: why the number says nothing yet; empty where it does, or where its line says so of
            all.
    """

    question: str
    before: str
    number: str
    interval: str
    after: str
    statement: Statement
    doubt: str = ""

    @property
    def text(self) -> str:
        """The whole sentence."""
        parts = (self.before, self.number, self.interval, self.after)
        sentence = " ".join(filter(None, parts)).replace(" ,", ",")
        return f"{sentence}, {self.doubt}." if self.doubt else f"{sentence}."


@dataclass(frozen=True)
class Line:
    """One part of the answer.

    Args:
        kind: of the part.
        items: the first ones.
        more: how many other questions there are.
        nothing: what is said where there is none.
        note: a sentence on all items that are shown.
        beyond: the largest effects among the others that are the margin or more.
    """

    kind: Kind
    items: tuple[Item, ...]
    more: int
    nothing: str
    note: str = ""
    beyond: str = ""


def lines_of(answer: Answer) -> list[Line]:
    """The four lines."""
    lines = []
    for kind in Kind:
        items = list(_items(answer, kind))
        shown, note = _with_one_doubt(items[:MOST])
        nothing = _NOTHING[kind] + _largest_open(answer, kind) if not items else ""
        # Questions are counted, not sentences: one may have two, for two reasons.
        questions = {one.row.endpoint.words for part in answer.part(kind).values() for one in part}
        more = len(questions - {item.statement.row.endpoint.words for item in shown})
        lines.append(Line(kind, shown, more, nothing, note, _beyond(items[MOST:])))
    return lines


def _beyond(items: Sequence[Item]) -> str:
    """The questions whose effect is the margin or more, with their numbers, the two largest."""
    leads = [
        item.statement
        for item in items
        if _weight(item.statement) >= 1.0 and item.statement.cell.counted is None
    ]
    leads.sort(key=lambda lead: -_weight(lead))
    return listed([f"{_signed(lead)} in {lead.row.endpoint.words}" for lead in leads[:2]] or [""])


def _largest_open(answer: Answer, kind: Kind) -> str:
    """The largest gain or loss that was measured and not concluded; empty where there is none."""
    if kind not in (Kind.BUYS, Kind.COSTS):
        return ""
    way = 1 if kind is Kind.BUYS else -1
    leads = [
        _lead(valued)
        for statements in answer.part(Kind.UNKNOWN).values()
        if (valued := [one for one in statements if one.cell.estimate is not None])
    ]
    leads = [
        lead
        for lead in leads
        if lead.cell.counted is None and not lead.cell.clock and way * _gain(lead) > 0
    ]
    if not leads:
        return ""
    lead = max(leads, key=lambda lead: (_weight_alone(lead), _weight(lead)))
    looks = "But this looks like one" if _differs_alone(lead) else "The largest that is open"
    return f" {looks}: {lead.row.endpoint.words}{_number(lead)}."


def _gain(statement: Statement) -> float:
    """The effect, above 0 where the variant is better."""
    estimate = statement.cell.estimate
    return statement.row.way * estimate.mean if estimate is not None else 0.0


def _with_one_doubt(items: Sequence[Item]) -> tuple[tuple[Item, ...], str]:
    """The items, and their doubt as one sentence, where all of several have the same."""
    doubts = {item.doubt for item in items}
    if len(items) < 2 or len(doubts) > 1 or "" in doubts:
        return tuple(items), ""
    doubt = doubts.pop()
    for beginning, sentence in (("from which ", "From these numbers "), ("which ", "These ")):
        if doubt.startswith(beginning):
            doubt = sentence + doubt.removeprefix(beginning)
            break
    return tuple(replace(item, doubt="") for item in items), f"{doubt}."


def summary_of(answer: Answer) -> str:
    """The answer in one sentence: whether to take the variant, for what, at what cost, and how
    much is open. Empty where nothing was asked.
    """
    asked = list(dict.fromkeys(statement.row.endpoint.words for statement in answer.statements))
    if not asked:
        return ""
    # 1. The questions of each part. One is open where no workload answers it, and the quality of
    # the deployed network also where only some do.
    gains, losses, same = (
        {statements[0].row.endpoint.words: statements for statements in answer.part(kind).values()}
        for kind in (Kind.BUYS, Kind.COSTS, Kind.SAME)
    )
    quality = _main(answer).endpoint.words
    kept = quality in same and _settled(answer)
    answered = {*gains, *losses, *(words for words in same if words != quality or kept)}
    unanswered = [words for words in asked if words not in answered]
    mixed = [
        words
        for words, statements in {**gains, **losses}.items()
        if _lead(statements).cell.reading is Reading.MIXED
    ]
    # 2. The verdict.
    gained, lost = (
        _largest({words: part[words] for words in part if words not in mixed})
        for part in (gains, losses)
    )
    word = verdict_of(answer)
    verdict = _verdict(word, gained, lost, quality if kept else "")
    if mixed:
        verdict = f"{verdict}. {_capital(listed(mixed))} goes both ways"
    # 3. What is left.
    if unanswered:
        return f"{word}: {verdict}. {_left(answer, unanswered, asked)}."
    alone = " Nothing else was asked." if len(asked) == 1 else ""
    return f"{word}: {verdict}.{alone}"


def _left(answer: Answer, unanswered: Sequence[str], asked: Sequence[str]) -> str:
    """Say how many questions are open; the quality of the deployed network is named among them with
    its number, since on it hangs most.
    """
    verb = "are" if len(unanswered) > 1 else "is"
    count = f"{len(unanswered)} of {len(asked)} questions {verb} open"
    main = _main(answer)
    valued = [
        statement
        for statement in answer.part(Kind.UNKNOWN).get(main.endpoint.question, [])
        if statement.cell.estimate is not None
    ]
    if main.endpoint.words not in unanswered or not valued:
        return count
    number = _number(_lead(valued))
    return (
        f"{count}, {main.endpoint.words}{number} among them" if len(asked) > 1 else count + number
    )


def verdict_of(answer: Answer) -> str:
    """Whether to take the variant: "Yes", "No", "A trade", "It hardly matters" or "Not settled",
    the last with which way the quality of the deployed network points.
    """
    # 1. Gains and losses that matter, on the mean or on any workload.
    gains, losses = (
        [
            statement
            for statements in answer.part(kind).values()
            for statement in statements
            if _matters(statement, _lead(statements))
        ]
        for kind in (Kind.BUYS, Kind.COSTS)
    )
    # 2. A loss of quality that matters, in float or of what is deployed, is no matter of trade.
    qualities = {row.endpoint.question for row in (answer.statements[0].row, _main(answer))}
    if any(loss.row.endpoint.question in qualities for loss in losses):
        return "No"
    if losses:
        return "A trade" if gains else "No"
    # 3. Without one, it hangs on whether the quality of the deployed network has an answer.
    if not _settled(answer):
        return f"Not settled{_looks(answer, _main(answer))}"
    return "Yes" if gains else "It hardly matters"


def _matters(statement: Statement, lead: Statement) -> bool:
    """Whether an effect may be the margin or more; beside a mean, whether it is."""
    if statement.cell.reading is Reading.MIXED:
        return False
    return not statement.cell.small if statement is lead else _weight(statement) >= 1.0


def _settled(answer: Answer) -> bool:
    """Whether the quality of the deployed network has an answer: its mean over the workloads,
    beside which none may lose the margin; without a mean, on every workload.
    """
    question = _main(answer).endpoint.question
    statements = [one for one in answer.statements if one.row.endpoint.question == question]
    means = [statement for statement in statements if not statement.workload]
    if any(mean.cell.open_losses for mean in means):
        return False
    return all(statement.kind is not Kind.UNKNOWN for statement in means or statements)


def _looks(answer: Answer, row: MatrixRow) -> str:
    """Which way the open quality of the deployed network points, where its own interval, before
    any adjustment, excludes 0.
    """
    valued = [one for one in answer.part(Kind.UNKNOWN).get(row.endpoint.question, []) if _gain(one)]
    if not valued or not _differs_alone(lead := _lead(valued)):
        return ""
    return ", looks better" if _gain(lead) > 0 else ", looks worse"


def _main(answer: Answer) -> MatrixRow:
    """The question of the deployed network's quality, on which most hangs; else the first."""
    deployed = (one for one in answer.statements if one.row.endpoint.of)
    return next(deployed, answer.statements[0]).row


def _number(statement: Statement) -> str:
    """ " (+0.3 points [−0.3, 0.9])"; of counts nothing, since they are no difference."""
    if statement.cell.counted is not None:
        return ""
    interval = _interval(statement)
    # What stands in parentheses already is told behind a comma.
    beside = f", {interval.strip('()')}" if interval.startswith("(") else f" {interval}"
    return f" ({_signed(statement)}{beside})"


def _verdict(word: str, gains: str, losses: str, kept: str) -> str:
    """Return what the answered questions say.

    Args:
        word: see `verdict_of`.
        gains: questions in which the variant is better; empty where there are none.
        losses: questions in which it is worse.
        kept: the quality of the deployed network, where it is no worse; else empty.
    """
    if gains and losses:
        first, second = f"it gains in {gains}", f"it loses in {losses}"
        return f"{second}. I{first[1:]}" if word == "No" else f"{first}. I{second[1:]}"
    if losses:
        return f"it loses in {losses}, and no gain is concluded"
    if not gains:
        return "neither a gain nor a loss is concluded"
    rest = f"{kept} is no worse" if kept else "no loss is concluded"
    return f"it gains in {gains}, and {rest}"


def _largest(questions: Mapping[str, Sequence[Statement]]) -> str:
    """The three questions with the largest effects in margins, each with its number and whether
    that is less than matters; and how many more there are.
    """
    ordered = sorted(questions, key=lambda words: -_weight(_lead(questions[words])))
    names = [f"{words}{_size(questions[words])}" for words in ordered]
    more = len(names) - MOST
    names = [*names[:MOST], f"{more} more"] if more > 0 else names
    # A comma inside of a name asks for semicolons between them.
    apart = "; " if any("," in name for name in [*questions][:MOST]) else ", "
    *first, last = names or [""]
    return f"{apart.join(first)} and {last}" if first else last


def _size(statements: Sequence[Statement]) -> str:
    """ " (−0.24 points, less than matters)"; of a fact of the network nothing."""
    lead = _lead(statements)
    if lead.cell.reading is Reading.FACT or lead.cell.counted is not None:
        return ""
    small = ", less than matters" if lead.cell.small else ""
    return f" ({_signed(lead)}{small})"


def table_of(answer: Answer, width: int = 160) -> list[str]:
    """The answer for a terminal: two lines at most for each of its parts."""
    rows = []
    for line in lines_of(answer):
        texts = [item.text for item in line.items[:2]] or [line.nothing]
        texts[-1] = f"{texts[-1]} {line.note}".rstrip()
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
        with_numbers
        for statements in parts
        if (with_numbers := [one for one in statements if one.cell.estimate is not None])
    ]
    leads = [(_lead(group), group) for group in valued]
    if kind in (Kind.BUYS, Kind.COSTS):
        leads.sort(key=lambda pair: -_weight(pair[0]))
    if kind is Kind.UNKNOWN:
        # What is no chance by its own interval comes first, the largest at the top; last come
        # clocks, and what is at one end of the scale in both.
        leads.sort(
            key=lambda pair: (
                pair[0].cell.reading is Reading.SATURATED,
                bool(pair[0].cell.clock),
                -_weight_alone(pair[0]),
            )
        )
    yield from (_item(lead, group) for lead, group in leads)
    # 2. Questions without any, grouped by the reason that they share.
    bare = [one for statements in parts for one in statements if one.cell.estimate is None]
    questions = {group[0].row.endpoint.question for group in valued}
    reasons = grouped(
        (_reason(one), one) for one in bare if one.row.endpoint.question not in questions
    )
    yield from (_unmeasured(reason, group) for reason, group in reasons.items())


def _weight(statement: Statement) -> float:
    estimate = statement.cell.estimate
    return abs(estimate.mean) / statement.row.endpoint.margin if estimate is not None else 0.0


def _weight_alone(statement: Statement) -> float:
    """The effect in margins, where its own interval excludes 0; else 0."""
    return _weight(statement) if _differs_alone(statement) else 0.0


def _differs_alone(statement: Statement) -> bool:
    return statement.cell.p is not None and statement.cell.p <= LEVEL


def _lead(statements: Sequence[Statement]) -> Statement:
    """The mean over workloads where it says the same, else the largest effect."""
    return next((one for one in statements if not one.workload), max(statements, key=_weight))


def _item(lead: Statement, statements: Sequence[Statement]) -> Item:
    # 1. Where it holds: the workload that leads, and others that say the same.
    phrase, where = lead.row.words, f"{'on' if lead.workload else 'in'} {lead.where}"
    where = "" if lead.alone else where
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
    if lead.cell.reading is Reading.SATURATED:
        before, after = f"{_capital(phrase)} is", f"{where}{also}"
        return Item(lead.row.endpoint.question, before, lead.cell.words, "", after, lead)
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
        doubt = ""
    else:
        after, doubt = f"{where}{also}{lacking}", _open(lead)
    way = " (lower is better)" if lead.row.way < 0 else ""
    before = f"{_capital(phrase + way)} differs by"
    return Item(lead.row.endpoint.question, before, number, interval, after, lead, doubt)


def _fact(lead: Statement, also: str) -> Item:
    """A number that every seed has: both levels where they are known."""
    estimate, scale, levels = lead.cell.estimate, lead.row.scale, lead.cell.levels
    assert estimate is not None
    phrase = _capital(lead.row.endpoint.words)
    where = "" if lead.alone else f"on {lead.where}{also}"
    # Every seed has the same difference, so that no interval is told.
    if not estimate.mean:
        level = f"{scale.number(levels[0])} {scale.unit} in both" if levels else "the same in both"
        return Item(lead.row.endpoint.question, f"{phrase} is", level, "", where, lead)
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
        f"{where} ({lead.notes[0]})".strip(),
        lead,
    )


def _counted(lead: Statement, also: str) -> Item:
    """Tell the counts of few samples, and no more: "4 of 5 test samples, as with GELU"."""
    assert lead.cell.counted is not None
    variant_count, other = lead.cell.counted
    beside = "as for the baseline" if variant_count == other else f"{other} for the baseline"
    after = f"test samples, {beside}, on {lead.where}{also}: too few to conclude from"
    phrase = _capital(lead.row.endpoint.words)
    return Item(lead.row.endpoint.question, f"{phrase} is", variant_count, "", after, lead)


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
        return f"{_chance(statement)}; about {needed} would tell {_points(statement.row.margin)}"
    return _chance(statement)


def _chance(statement: Statement) -> str:
    """A number whose own interval excludes 0 may be chance only as one of many."""
    among = " among so many tests" if _differs_alone(statement) else ""
    return f"which may be chance{among}"


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
    return f"{subject}," if "," in re.sub(r"\(.*?\)", "", subject) else subject
