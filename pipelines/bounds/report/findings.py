"""What certified robustness says in words: where variants differ, whether that is proof or attack, what is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeVar

from evalsuite import (
    Area,
    Compared,
    Finding,
    Scale,
    area_text,
    common_scale,
    listed,
    mean_interval,
    radius_text,
    ranges_text,
    resolved_text,
    seed_difference,
    where_text,
)
from pipelines.bounds.report.heights import Height, RadiusGap
from pipelines.bounds.report.tables import ATTACKED, CERTIFIED, UNDECIDED, WIDTH, BoundsTable, Place
from pipelines.bounds.report.text import height_brief, radius_brief, ratio_text, shown_radii

Kind = TypeVar("Kind", bound=Area)
_LONGER, _HIGHER = ("larger on", "smaller on", "not resolved on"), ("higher", "lower", "not resolved")


def overall(
    tables: Sequence[BoundsTable], heights: Sequence[Height], turned: Sequence[Height], radii: Sequence[RadiusGap]
) -> Finding | None:
    """How each variant's radii and curves lie to the baseline's, over all steps; None where one step says it all.

    Args:
        tables: of the report.
        heights: of the curves.
        turned: the same over the other axis.
        radii: mean certified ones.
    """
    own = [each for each in heights if each.method == each.table.tightest and each.p_holm is not None]
    tested = [each for each in radii if each.p_holm is not None]
    if len({each.table.label for each in own} | {each.table.label for each in tested}) < 2:
        return None
    baseline = tables[0].baseline
    sentences = []
    for variant in dict.fromkeys(each.variant for each in tested):
        groups = _by_tone([each for each in tested if each.variant == variant], _LONGER, radius_brief)
        told = "; ".join(f"{word} {', '.join(places)}" for word, places in groups.items())
        sentences.append(f"{variant}, mean certified radius: {told}.")
    told = _resolved(tested, f"differences of the mean certified radius to {baseline}'s", ("larger", "smaller"))
    heads = [*([f"{told}."] if tested else []), *([_heights(own, turned, baseline)] if own else [])]
    return Finding("all workloads", heads[0], (*sentences, *heads[1:], *_curves(own)))


def _resolved(found: Sequence[Area], what: str, words: tuple[str, str]) -> str:
    """ "3 of 4 mean heights above gelu's certified curve resolved (2 higher, 1 lower; p by Holm)"."""
    more, less = (sum(each.tone == tone for each in found) for tone in ("better", "worse"))
    return f"{more + less} of {len(found)} {what} resolved ({more} {words[0]}, {less} {words[1]}; p by Holm)"


def _by_tone(areas: Sequence[Kind], words: Sequence[str], text: Callable[[Kind], str]) -> dict[str, list[str]]:
    """What is better, worse and not resolved, under these words for them in turn; those of none are left out."""
    found = {word: [text(area) for area in areas if area.tone == tone]
             for tone, word in zip(("better", "worse", ""), words, strict=True)}  # fmt: skip
    return {word: told for word, told in found.items() if told}


def _heights(own: Sequence[Height], turned: Sequence[Height], baseline: str) -> str:
    """How many heights are resolved, and how many would be over the other axis."""
    told = _resolved(own, f"mean heights above {baseline}'s certified curve", ("higher", "lower"))
    places = {(id(each.table), each.method, each.variant) for each in own}
    others = sum(bool(each.tone) for each in turned if (id(each.table), each.method, each.variant) in places)
    axes = {each.table.logarithmic for each in own}
    over = "the other axis" if len(axes) > 1 else "ε itself" if axes == {True} else "the logarithm of ε"
    return f"{told}; over {over} {others}: heights depend on the axis."


def _curves(own: Sequence[Height]) -> list[str]:
    sentences = []
    for variant in dict.fromkeys(each.variant for each in own):
        mine = [each for each in own if each.variant == variant]
        groups = _by_tone(mine, _HIGHER, lambda each: f"{each.table.label} ({height_brief(each)})")
        parts = []
        for word, told in groups.items():
            where = ("anywhere:" if word == _HIGHER[-1] else "everywhere:") if len(told) == len(mine) else "on"
            parts.append(f"{word} {where} {', '.join(told)}")
        sentences.append(f"{variant}: {'; '.join(parts)}.")
    return sentences


RULE = (
    "Certified accuracy is a lower limit of how robust a network is, PGD's accuracy an upper one. A variant can be "
    "certified more because it is more robust (PGD's accuracy rises too) or because it is easier to prove things of "
    "(less is undecided): read both. Mean certified radii and heights of whole curves are adjusted for their number "
    "(Holm); differences at single values of ε are not, and neighbouring ones nearly repeat each other. “Not "
    "resolved” means that these seeds cannot tell."
)


def finding(table: BoundsTable, heights: Sequence[Height], radii: Sequence[RadiusGap]) -> Finding:
    """The mean radius first, then curves, where they come from, what is unknown, and widths."""
    if not table.methods:
        reasons = dict.fromkeys(table.reason(name) for name in table.variants)
        return Finding(table.label, "Nothing was certified.", tuple(reasons))
    own = [each for each in heights if each.table is table and each.method == table.tightest]
    sentences = [_radius_sentence(table, [each for each in radii if each.table is table])]
    sentences += [_height_sentence(table, own), *_variant_sentences(table), _gap_sentence(table)]
    sentences += [_width_sentence(table), _looser_sentence(table), *table.remarks]
    return Finding(table.label, _headline(table), tuple(each for each in sentences if each))


def _headline(table: BoundsTable) -> str:
    cells = [cell for name in table.others for _, cell in _cells(table, name, CERTIFIED)]
    if not cells:
        return f"Nothing of {table.tightest} can be compared with {table.baseline} over several seeds."
    what = f"testable difference{'s' * (len(cells) != 1)} to {table.baseline} in certified accuracy ({table.tightest})"
    return f"{resolved_text(cells, what)}."


def _place(table: BoundsTable, metric: str, eps: float) -> Place:
    return Place(metric, eps, "" if metric == ATTACKED else table.tightest)


def _cells(table: BoundsTable, variant: str, metric: str) -> list[tuple[float, Compared]]:
    """Of the radii that compare with the baseline; where both prove all or nothing in every seed there is no test."""
    cells = [(eps, table.compared(variant, _place(table, metric, eps))) for eps in table.radii]
    return [(eps, cell) for eps, cell in cells if cell.p is not None]


def _height_sentence(table: BoundsTable, heights: Sequence[Height]) -> str:
    tested = [each for each in heights if each.p_holm is not None]
    if not tested:
        return ""
    groups = _by_tone(tested, ("more", "less", "not resolved"), lambda each: f"{each.variant} {area_text(each)}")
    parts = [f"{word} for {listed(told)}" for word, told in groups.items()]
    axis = "the logarithm of ε" if table.logarithmic else "ε"
    return (
        f"Certified over all radii, as mean height above {table.baseline}'s curve over {axis}, on which it depends: "
        f"{'; '.join(parts)}."
    )


def _variant_sentences(table: BoundsTable) -> list[str]:
    """Where each variant differs in what is certified, attacked and undecided."""
    scale = common_scale([
        table.compared(name, _place(table, metric, eps))
        for name in table.variants for metric in (CERTIFIED, ATTACKED, UNDECIDED) for eps in table.radii
    ])  # fmt: skip
    told = ((CERTIFIED, "certified accuracy", ("higher", "lower")), (ATTACKED, "PGD accuracy", ("higher", "lower")),
            (UNDECIDED, "undecided", ("more", "less")))  # fmt: skip
    sentences, quiet = [], []
    for variant in table.others:
        every = {metric: _cells(table, variant, metric) for metric, _, _ in told}
        if not any(every.values()):
            continue
        if not any(cell.resolved for cells in every.values() for _, cell in cells):
            quiet.append(variant)
            continue
        parts = [f"{words} {_where(every[metric], ways, scale)}" for metric, words, ways in told if every[metric]]
        sentences.append(f"{variant}: {'; '.join(parts)}.")
    if quiet:
        text = (
            f"no difference to {table.baseline} is resolved at any radius, of what is certified, attacked or undecided"
        )
        sentences.append(f"{listed(quiet)}: {text}.")
    return sentences


def _where(cells: Sequence[tuple[float, Compared]], ways: tuple[str, str], scale: Scale) -> str:
    """ "higher at ε = 1/64 to 1/16 (+1.0 to +3.2 pp), not resolved at 1/8"."""
    every = [eps for eps, _ in cells]
    return where_text(cells, ways, scale, lambda found: ranges_text(found, every, radius_text), at=("at ε =", "at"),
                      alone="not resolved at any radius")  # fmt: skip


def _gap_sentence(table: BoundsTable) -> str:
    """How much of each variant nobody knows, where that is most."""
    groups: dict[float, list[str]] = {}
    for variant in table.variants:
        gaps = {eps: table.values(variant, _place(table, UNDECIDED, eps)) for eps in table.radii}
        means = {eps: mean_interval(list(gap.values()), magnitude=1.0).mean for eps, gap in gaps.items() if gap}
        if means:
            eps = max(means, key=lambda each: means[each])
            groups.setdefault(eps, []).append(f"{variant} {100 * means[eps]:.1f} %")
    if not groups:
        return ""
    told = "; ".join(f"at ε = {radius_text(eps)}: {', '.join(groups[eps])}" for eps in sorted(groups))
    return f"What neither PGD nor {table.tightest} decides is most {told}."


def _radius_sentence(table: BoundsTable, radii: Sequence[RadiusGap]) -> str:
    place = table.radius_place
    tested = [each for each in radii if each.p_holm is not None]
    if place is None or not tested:
        return ""
    cells = [table.compared(name, place) for name in table.variants]
    own, scale = cells[0].mean, common_scale(cells, "input")
    words = {"better": "larger", "worse": "smaller", "": "not resolved"}
    told = ", ".join(f"{each.variant} {each.text(scale)} {words[each.tone]}" for each in tested)
    head = f"Mean certified radius ({place.method}) of {table.baseline}"
    head += f": {scale.number(own.mean)}" if own else ""
    return f"{head}; differences, in the input's units: {told}."


def _width_sentence(table: BoundsTable) -> str:
    """The logits' bounds against the baseline's, of the tightest method that has widths."""
    methods = table.methods_of(WIDTH)
    radii = shown_radii(table.radii_of(WIDTH, methods[-1])) if methods else []
    if not radii:
        return ""
    parts = []
    for variant in table.others:
        cell = table.compared(variant, Place(WIDTH, radii[-1], methods[-1]))
        if cell.ratio is not None and cell.ratio.low is not None:
            word = {"better": "narrower", "worse": "wider", "": "not resolved"}[cell.ratio_tone]
            parts.append(f"{variant} {ratio_text(cell.ratio)} ({word})")
    if not parts:
        return ""
    return (
        f"Width of the logits' bounds over {table.baseline}'s ({methods[-1]}, ε = {radius_text(radii[-1])}): "
        f"{', '.join(parts)}."
    )


def _looser_sentence(table: BoundsTable) -> str:
    """Where a method that should be looser proves more: bound propagation is not ordered for sure."""
    found = []
    for method, variant, eps in product(table.methods[:-1], table.variants, table.radii):
        own, best = (table.values(variant, Place(CERTIFIED, eps, each)) for each in (method, table.tightest))
        gap = seed_difference(own, best)
        if gap is not None and gap.mean > 1e-9:
            found.append(f"{method} for {variant} at ε = {radius_text(eps)}")
    if not found:
        return ""
    more = f" and {len(found) - 4} more" if len(found) > 5 else ""
    shown = found[:4] if more else found
    return f"A looser method proves more than {table.tightest}: {', '.join(shown)}{more}."
