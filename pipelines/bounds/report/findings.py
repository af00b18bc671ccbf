"""What certified robustness says in words: where variants differ, whether that is proof or
attack, what is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeVar

from evalsuite.report.areas import Area, area_text
from evalsuite.report.numerals import grouped, listed, ranges_text, sentence
from evalsuite.report.paired import Compared, common_scale, resolved_text, where_text
from evalsuite.report.section import Finding
from evalsuite.report.statistics import mean_interval, seed_difference
from evalsuite.verification.report.radii import radius_text
from pipelines.bounds.report.tables import (
    ACCURACY,
    BoundsTable,
    Height,
    M,
    Place,
    RadiusGap,
)
from pipelines.bounds.report.text import height_brief, radius_brief, ratio_text, shown_radii

Kind = TypeVar("Kind", bound=Area)
_TONES = ("better", "worse", "")


def overall(
    tables: Sequence[BoundsTable],
    heights: Sequence[Height],
    turned: Sequence[Height],
    radii: Sequence[RadiusGap],
) -> Finding | None:
    """How each variant's radii and curves lie to the baseline's, over all steps; None where one
    step says it all.

    Args:
        tables: of the report.
        heights: of the curves.
        turned: the same over the other axis.
        radii: mean certified ones.
    """
    own = [
        height
        for height in heights
        if height.method == height.table.tightest and height.p_holm is not None
    ]
    tested = [radius for radius in radii if radius.p_holm is not None]
    if len({each.table.label for each in own} | {each.table.label for each in tested}) < 2:
        return None
    baseline, told = tables[0].baseline, []
    for variant, mine in grouped((each.variant, each) for each in tested).items():
        groups = _by_tone(mine, ("larger on", "smaller on", "not resolved on"), radius_brief)
        told.append(sentence(f"{variant}, mean certified radius: ", _joined(groups), "; "))
    heads = []
    if tested:
        what = f"differences of the mean certified radius to {baseline}'s"
        heads.append(f"{_resolved(tested, what, ('larger', 'smaller'))}.")
    if own:
        places = {(id(each.table), each.method, each.variant) for each in own}
        others = sum(
            bool(each.tone)
            for each in turned
            if (id(each.table), each.method, each.variant) in places
        )
        axes = {each.table.logarithmic for each in own}
        over = (
            "the other axis"
            if len(axes) > 1
            else "ε itself"
            if axes == {True}
            else "the logarithm of ε"
        )
        text = _resolved(
            own, f"mean heights above {baseline}'s certified curve", ("higher", "lower")
        )
        heads.append(f"{text}; over {over} {others}: heights depend on the axis.")
    return Finding("all workloads", heads[0], (*told, *heads[1:], *_curves(own)))


def _resolved(found: Sequence[Area], what: str, words: tuple[str, str]) -> str:
    """ "3 of 4 mean heights above gelu's certified curve resolved (2 higher, 1 lower; p by
    Holm)".
    """
    more, less = (sum(area.tone == tone for area in found) for tone in _TONES[:2])
    return (
        f"{more + less} of {len(found)} {what} resolved ({more} {words[0]}, {less} {words[1]}; p by"
        " Holm)"
    )


def _by_tone(
    areas: Sequence[Kind], words: Sequence[str], text: Callable[[Kind], str]
) -> dict[str, list[str]]:
    """What is better, worse and not resolved, under these words for them in turn; those of none
    are left out.
    """
    found = {
        word: [text(area) for area in areas if area.tone == tone]
        for tone, word in zip(_TONES, words, strict=True)
    }
    return {word: told for word, told in found.items() if told}


def _joined(groups: dict[str, list[str]]) -> list[str]:
    return [f"{word} {', '.join(told)}" for word, told in groups.items()]


def _curves(own: Sequence[Height]) -> list[str]:
    sentences = []
    for variant, mine in grouped((height.variant, height) for height in own).items():
        groups = _by_tone(
            mine,
            ("higher", "lower", "not resolved"),
            lambda each: f"{each.table.label} ({height_brief(each)})",
        )
        every = {word: "anywhere:" if word == "not resolved" else "everywhere:" for word in groups}
        placed = {
            f"{word} {every[word] if len(told) == len(mine) else 'on'}": told
            for word, told in groups.items()
        }
        sentences.append(sentence(f"{variant}: ", _joined(placed), "; "))
    return sentences


def finding(table: BoundsTable, heights: Sequence[Height], radii: Sequence[RadiusGap]) -> Finding:
    """The mean radius first, then curves, where they come from, what is unknown, and widths."""
    if not table.methods:
        reasons = dict.fromkeys(table.reason(name) for name in table.variants)
        return Finding(table.label, "Nothing was certified.", tuple(reasons))
    own = [
        height
        for height in heights
        if height.table is table and height.method == table.tightest and height.p_holm is not None
    ]
    groups = _by_tone(
        own, ("more", "less", "not resolved"), lambda each: f"{each.variant} {area_text(each)}"
    )
    over = "the logarithm of ε" if table.logarithmic else "ε"
    head = (
        f"Certified over all radii, as mean height above {table.baseline}'s curve over {over}, on"
        " which it depends: "
    )
    sentences = [
        _radius_sentence(table, radii),
        sentence(head, (f"{word} for {listed(told)}" for word, told in groups.items()), "; "),
        *_variant_sentences(table),
        _gap_sentence(table),
        _width_sentence(table),
        _looser_sentence(table),
        *table.remarks,
    ]
    return Finding(table.label, _headline(table), tuple(filter(None, sentences)))


def _headline(table: BoundsTable) -> str:
    cells = [cell for name in table.others for _, cell in _cells(table, name, M.CERTIFIED)]
    if not cells:
        return (
            f"Nothing of {table.tightest} can be compared with {table.baseline} over several seeds."
        )
    what = (
        f"testable difference{'s' * (len(cells) != 1)} to {table.baseline} in certified accuracy"
        f" ({table.tightest})"
    )
    return f"{resolved_text(cells, what)}."


def _at(table: BoundsTable, variant: str, metric: str) -> list[tuple[float, Compared]]:
    """At each radius, of the tightest method."""
    method = "" if metric == table.attack else table.tightest
    return [(eps, table.compared(variant, Place(metric, eps, method))) for eps in table.radii]


def _cells(table: BoundsTable, variant: str, metric: str) -> list[tuple[float, Compared]]:
    """Return the radii at which a variant was tested against the baseline, with the comparisons;
    where both prove all or nothing in every seed there is no test.
    """
    return [(eps, cell) for eps, cell in _at(table, variant, metric) if cell.p is not None]


def _variant_sentences(table: BoundsTable) -> list[str]:
    """Where each variant differs in what is certified, attacked and undecided."""
    told = (
        (M.CERTIFIED, "certified accuracy", ("higher", "lower")),
        (table.attack, ACCURACY[table.attack], ("higher", "lower")),
        (M.UNDECIDED, "undecided", ("more", "less")),
    )
    scale = common_scale(
        [
            cell
            for name in table.variants
            for metric, *_ in told
            for _, cell in _at(table, name, metric)
        ]
    )

    def where(cells: Sequence[tuple[float, Compared]], ways: tuple[str, str]) -> str:
        """ "higher at ε = 1/64 to 1/16 (+1.0 to +3.2 pp), not resolved at 1/8"."""
        every = [eps for eps, _ in cells]
        return where_text(
            cells,
            ways,
            scale,
            lambda found: ranges_text(found, every, radius_text),
            at=("at ε =", "at"),
            alone="not resolved at any radius",
        )

    sentences, quiet = [], []
    for variant in table.others:
        every = {metric: _cells(table, variant, metric) for metric, *_ in told}
        if any(cell.resolved for cells in every.values() for _, cell in cells):
            parts = (
                f"{words} {where(every[metric], ways)}"
                for metric, words, ways in told
                if every[metric]
            )
            sentences.append(sentence(f"{variant}: ", parts, "; "))
        elif any(every.values()):
            quiet.append(variant)
    if quiet:
        what = "is resolved at any radius, of what is certified, attacked or undecided"
        sentences.append(f"{listed(quiet)}: no difference to {table.baseline} {what}.")
    return sentences


def _gap_sentence(table: BoundsTable) -> str:
    """How much of each variant nobody knows, where that is most."""
    most = []
    for variant in table.variants:
        cells = [
            (eps, cell.values) for eps, cell in _at(table, variant, M.UNDECIDED) if cell.values
        ]
        means = {
            eps: mean_interval(list(values.values()), magnitude=1.0).mean for eps, values in cells
        }
        if means:
            eps = max(means, key=lambda each: means[each])
            most.append((eps, f"{variant} {100 * means[eps]:.1f} %"))
    told = (
        f"at ε = {radius_text(eps)}: {', '.join(names)}"
        for eps, names in sorted(grouped(most).items())
    )
    return sentence(
        f"What neither {table.attackers} nor {table.tightest} decides is most ", told, "; "
    )


def _radius_sentence(table: BoundsTable, radii: Sequence[RadiusGap]) -> str:
    place, tested = (
        table.radius_place,
        [radius for radius in radii if radius.table is table and radius.p_holm is not None],
    )
    if place is None or not tested:
        return ""
    cells = [table.compared(name, place) for name in table.variants]
    own, scale = cells[0].mean, common_scale(cells, "input")
    words = {"better": "larger", "worse": "smaller", "": "not resolved"}
    head = f"Mean certified radius ({place.method}) of {table.baseline}" + (
        f": {scale.number(own.mean)}" if own else ""
    )
    return sentence(
        f"{head}; differences, in the input's units: ",
        (f"{each.variant} {each.text(scale)} {words[each.tone]}" for each in tested),
    )


def _width_sentence(table: BoundsTable) -> str:
    """The logits' bounds against the baseline's, of the tightest method that has widths."""
    method = (table.methods_of(M.WIDTH) or [""])[-1]
    radii = shown_radii(table.radii_of(M.WIDTH, method)) if method else []
    if not radii:
        return ""
    words = {"better": "narrower", "worse": "wider", "": "not resolved"}
    cells = [table.compared(variant, Place(M.WIDTH, radii[-1], method)) for variant in table.others]
    parts = [
        f"{cell.variant} {ratio_text(cell.ratio)} ({words[cell.ratio_tone]})"
        for cell in cells
        if cell.ratio is not None and cell.ratio.low is not None
    ]
    eps = radius_text(radii[-1])
    return sentence(
        f"Width of the logits' bounds over {table.baseline}'s ({method}, ε = {eps}): ", parts
    )


def _looser_sentence(table: BoundsTable) -> str:
    """Where a method that should be looser proves more: bound propagation is not ordered for
    sure.
    """
    found = []
    for method, variant, eps in product(table.methods[:-1], table.variants, table.radii):
        own, best = (
            table.values(variant, Place(M.CERTIFIED, eps, each))
            for each in (method, table.tightest)
        )
        gap = seed_difference(own, best)
        if gap is not None and gap.mean > 1e-9:
            found.append(f"{method} for {variant} at ε = {radius_text(eps)}")
    more = f" and {len(found) - 4} more." if len(found) > 5 else "."
    return sentence(
        f"A looser method proves more than {table.tightest}: ",
        found[:4] if len(found) > 5 else found,
        end=more,
    )
