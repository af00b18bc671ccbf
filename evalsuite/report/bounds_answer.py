"""Whether networks are certified more than the baseline, over all workloads and radii, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.report.bounds import BoundsTable
from evalsuite.report.bounds_area import Height
from evalsuite.report.bounds_text import height_brief
from evalsuite.report.quantization_findings import listed

OVERALL = "all workloads"


@dataclass(frozen=True)
class BoundsFinding:
    """What one bounds step says; `workload` is its label."""

    workload: str
    headline: str
    sentences: tuple[str, ...]


def overall(tables: Sequence[BoundsTable], heights: Sequence[Height]) -> BoundsFinding | None:
    """Whether each variant is certified more than the baseline, over all steps; None where one step says it all."""
    own = [each for each in heights if each.method == each.table.tightest and each.p_holm is not None]
    if len({each.table.label for each in own}) < 2:
        return None
    higher, lower = (sum(each.tone == tone for each in own) for tone in ("better", "worse"))
    baseline = tables[0].baseline
    told = f"{higher + lower} of {len(own)} mean heights above {baseline}'s certified curve resolved"
    headline = f"Is any variant certified more than {baseline}? {told} ({higher} higher, {lower} lower; p by Holm)."
    sentences = [each for each in [replaced_sentence(own)] if each]
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
    return BoundsFinding(OVERALL, headline, tuple(sentences))


def replaced_sentence(heights: Sequence[Height]) -> str:
    """Whether ReLU in the place of GELU helps certification, by the heights of the networks that it was put into."""
    own = [each for each in heights if each.p_holm is not None and each.variant in each.table.replaced]
    if not own:
        return ""
    more, less = ([each for each in own if each.tone == tone] for tone in ("better", "worse"))
    answer = "not shown either way" if not more and not less else "it depends" if more and less else (
        ("yes" if len(more) == len(own) else "yes, in part") if more
        else ("no, it costs some" if len(less) == len(own) else "no, it costs some in part")
    )  # fmt: skip
    parts = []
    for word, group in (("more is certified", more), ("less is certified", less)):
        where = f" ({'; '.join(f'{each.variant} on {each.table.label}' for each in group)})" if group else ""
        parts.append(f"{word} in {len(group)}{where}")
    open_ = len(own) - len(more) - len(less)
    return (
        f"Does ReLU in the place of GELU ({listed(dict.fromkeys(each.variant for each in own))}) help certification? "
        f"{answer.capitalize()}: of {len(own)} curve{'s' * (len(own) != 1)}, {', '.join(parts)}, and {open_} "
        f"{'is' if open_ == 1 else 'are'} not resolved."
    )
