"""How the certified radii and curves lie to the baseline's, over all workloads, in words."""

from __future__ import annotations

from collections.abc import Sequence

from evalsuite import Finding
from pipelines.bounds.report.heights import Height
from pipelines.bounds.report.radii import RadiusGap, by_tone
from pipelines.bounds.report.tables import BoundsTable
from pipelines.bounds.report.text import height_brief, radius_brief

OVERALL = "all workloads"
_LONGER = (("better", "larger on"), ("worse", "smaller on"), ("", "not resolved on"))


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
    sentences = [f"{variant}, mean certified radius: {'; '.join(by_tone(mine, _LONGER, radius_brief))}."
                 for variant, mine in _by_variant(tested)]  # fmt: skip
    if not own:
        return Finding(OVERALL, _radii(tested, baseline), tuple(sentences))
    heads = [*([_radii(tested, baseline)] if tested else []), _heights(own, turned, baseline)]
    return Finding(OVERALL, heads[0], (*sentences, *heads[1:], *_curves(own)))


def _by_variant(radii: Sequence[RadiusGap]) -> list[tuple[str, list[RadiusGap]]]:
    names = dict.fromkeys(each.cell.variant for each in radii)
    return [(name, [each for each in radii if each.cell.variant == name]) for name in names]


def _radii(tested: Sequence[RadiusGap], baseline: str) -> str:
    higher, lower = (sum(each.tone == tone for each in tested) for tone in ("better", "worse"))
    told = f"{higher + lower} of {len(tested)} differences of the mean certified radius to {baseline}'s resolved"
    return f"{told} ({higher} larger, {lower} smaller; p by Holm)."


def _heights(own: Sequence[Height], turned: Sequence[Height], baseline: str) -> str:
    """How many heights are resolved, and how many would be over the other axis."""
    higher, lower = (sum(each.tone == tone for each in own) for tone in ("better", "worse"))
    places = {(id(each.table), each.method, each.variant) for each in own}
    others = sum(bool(each.tone) for each in turned if (id(each.table), each.method, each.variant) in places)
    told = f"{higher + lower} of {len(own)} mean heights above {baseline}'s certified curve resolved"
    axes = {each.table.logarithmic for each in own}
    over = (
        "over ε itself" if axes == {True} else "over the logarithm of ε" if axes == {False} else "over the other axis"
    )
    return f"{told} ({higher} higher, {lower} lower; p by Holm); {over} {others}: heights depend on the axis."


def _curves(own: Sequence[Height]) -> list[str]:
    sentences = []
    for variant in dict.fromkeys(each.variant for each in own):
        parts = []
        mine = [each for each in own if each.variant == variant]
        for tone, word in (("better", "higher"), ("worse", "lower"), ("", "not resolved")):
            group = [each for each in mine if each.tone == tone]
            if group:
                where = ("anywhere" if not tone else "everywhere") + ":" if len(group) == len(mine) else "on"
                parts.append(
                    f"{word} {where} {', '.join(f'{each.table.label} ({height_brief(each)})' for each in group)}"
                )
        sentences.append(f"{variant}: {'; '.join(parts)}.")
    return sentences
