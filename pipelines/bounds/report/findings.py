"""What certified robustness says in words: where variants differ, whether that is proof or attack, what is unknown."""

from __future__ import annotations

from collections.abc import Sequence

from evalsuite import (
    Compared,
    Finding,
    Scale,
    after_holm,
    area_text,
    common_scale,
    ends_text,
    listed,
    mean_interval,
    radius_text,
    ranges_text,
)
from pipelines.bounds.report.heights import Height
from pipelines.bounds.report.layers import ratio_text, shown_radii
from pipelines.bounds.report.radii import RadiusGap, radius_place
from pipelines.bounds.report.tables import ATTACKED, CERTIFIED, UNDECIDED, WIDTH, BoundsTable, Place

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
    tones = [cell.tone for cell in cells if cell.resolved]
    told = ", ".join(f"{tones.count(tone)} {tone}" for tone in ("better", "worse") if tone in tones)
    count = f"{len(tones)} ({told})" if tones else "None"
    after = f", {after_holm([cell.p for cell in cells if cell.p is not None])}" if tones else ""
    return (
        f"{count} of {len(cells)} testable difference{'s' * (len(cells) != 1)} in certified accuracy to "
        f"{table.baseline} resolved with {table.tightest}{after}."
    )


def _place(table: BoundsTable, metric: str, eps: float) -> Place:
    return Place(metric, eps, "" if metric == ATTACKED else table.tightest)


def _cells(table: BoundsTable, variant: str, metric: str) -> list[tuple[float, Compared]]:
    """Of the radii that compare with the baseline; where both prove all or nothing in every seed there is no test."""
    cells = [(eps, table.compared(variant, _place(table, metric, eps))) for eps in table.radii]
    return [(eps, cell) for eps, cell in cells if cell.tested]


def _height_sentence(table: BoundsTable, heights: Sequence[Height]) -> str:
    tested = [each for each in heights if each.p_holm is not None]
    if not tested:
        return ""
    parts = []
    for tone, word in (("better", "more"), ("worse", "less"), ("", "not resolved")):
        group = [each for each in tested if each.tone == tone]
        if group:
            parts.append(f"{word} for {listed([f'{each.variant} {area_text(each)}' for each in group])}")
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
    groups: dict[str, list[tuple[float, Compared]]] = {}
    for eps, cell in cells:
        mean = cell.difference.mean if cell.difference else 0.0
        groups.setdefault("" if not cell.resolved else ways[0] if mean > 0 else ways[1], []).append((eps, cell))
    every = [eps for eps, _ in cells]
    parts = []
    for way in ways:
        if way in groups:
            ends = ends_text([cell.difference for _, cell in groups[way] if cell.difference], scale)
            parts.append(f"{way} at ε = {ranges_text([eps for eps, _ in groups[way]], every, radius_text)} ({ends})")
    if "" in groups:
        more = f"not resolved at {ranges_text([eps for eps, _ in groups['']], every, radius_text)}"
        parts.append(more if parts else "not resolved at any radius")
    return ", ".join(parts)


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
    place = radius_place(table)
    tested = [each for each in radii if each.p_holm is not None]
    if place is None or not tested:
        return ""
    cells = [table.compared(name, place) for name in table.variants]
    own, scale = cells[0].mean, common_scale(cells, "input")
    words = {"better": "larger", "worse": "smaller", "": "not resolved"}
    told = ", ".join(f"{each.cell.variant} {each.text(scale)} {words[each.tone]}" for each in tested)
    head = f"Mean certified radius ({place.method}) of {table.baseline}" + (
        f": {scale.number(own.mean)}" if own else ""
    )
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
    for method in table.methods[:-1]:
        for variant in table.variants:
            for eps in table.radii:
                own = table.values(variant, Place(CERTIFIED, eps, method))
                best = table.values(variant, Place(CERTIFIED, eps, table.tightest))
                seeds = own.keys() & best.keys()
                if seeds and sum(own[each] - best[each] for each in seeds) / len(seeds) > 1e-9:
                    found.append(f"{method} for {variant} at ε = {radius_text(eps)}")
    if not found:
        return ""
    more = f" and {len(found) - 4} more" if len(found) > 5 else ""
    shown = found[:4] if more else found
    return f"A looser method proves more than {table.tightest}: {', '.join(shown)}{more}."
