"""How the certified curves lie to the baseline's, over all workloads and radii, in words."""

from __future__ import annotations

from collections.abc import Sequence

from evalsuite import Finding
from pipelines.bounds.report.heights import Height
from pipelines.bounds.report.tables import BoundsTable
from pipelines.bounds.report.text import height_brief

OVERALL = "all workloads"


def overall(tables: Sequence[BoundsTable], heights: Sequence[Height]) -> Finding | None:
    """How each variant's certified curves lie to the baseline's, over all steps; None where one step says it all."""
    own = [each for each in heights if each.method == each.table.tightest and each.p_holm is not None]
    if len({each.table.label for each in own}) < 2:
        return None
    higher, lower = (sum(each.tone == tone for each in own) for tone in ("better", "worse"))
    baseline = tables[0].baseline
    told = f"{higher + lower} of {len(own)} mean heights above {baseline}'s certified curve resolved"
    headline = f"{told} ({higher} higher, {lower} lower; p by Holm)."
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
    return Finding(OVERALL, headline, tuple(sentences))
