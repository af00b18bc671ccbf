"""What exact verification says in words: what is decided, where variants differ, what bounds leave open."""

from __future__ import annotations

from collections.abc import Sequence

from evalsuite import Finding, common_scale, listed, mean_interval
from pipelines.smt.report.agreement import agreement_of, agreement_sentence
from pipelines.smt.report.answer import (
    completeness_sentence,
    cost_sentence,
    proofs_sentence,
    verified_more,
)
from pipelines.smt.report.brackets import adjusted
from pipelines.smt.report.distance import Distance
from pipelines.smt.report.fractions import alike
from pipelines.smt.report.tables import BOUNDS, DISTANCE, GAP, UNDECIDED, UPPER, VERIFIED, ExactTable
from pipelines.smt.report.text import resolved_text, tested

RULE = (
    "Verified accuracy is exact where nothing is undecided; otherwise it is a lower limit of how robust a network is, "
    "and what is not violated an upper one. A difference to the baseline is therefore taken both ways: all that was "
    "left open answered against the variant and for the baseline, and the reverse; it is resolved only where the end "
    "nearer to 0 is. Higher and lower are what is left of that after Holm's adjustment for all differences of the same "
    "finding. “Not resolved” means that these seeds cannot tell."
)


def finding(table: ExactTable, distances: Sequence[Distance], agreements: Sequence[ExactTable] = ()) -> Finding:
    """Robustness first, then what was decided, what bounds leave open, distances, cost and proofs; then classes."""
    if not table.radii:
        reasons = dict.fromkeys(table.reason(name) for name in table.variants)
        return Finding(table.label, "Nothing was verified exactly.", tuple(reasons))
    own = [each for each in distances if each.table is table]
    sentences = [
        completeness_sentence(table), *_variant_sentences(table), _gap_sentence(table),
        _distance_sentence(table, own), cost_sentence(table), proofs_sentence(table), _lack_sentence(table),
        agreement_sentence(agreement_of(table, agreements)),
    ]  # fmt: skip
    return Finding(table.label, headline(table), tuple(each for each in sentences if each))


def headline(table: ExactTable) -> str:
    """Whether any variant is verified more, or why that cannot be told."""
    found = [each for name in table.others for _, each in tested(table, name, VERIFIED)]
    if found:
        return verified_more(found, table.baseline)
    if table.others and alike([table.compared(name, VERIFIED, at) for name in table.variants] for at in table.radii):
        seeds = "every seed" if table.seeds > 1 else "the one seed"
        return f"All variants verify the same share at every radius, in {seeds}: nothing to compare."
    return f"No verified accuracy can be compared with {table.baseline}'s over several seeds{_why(table)}."


def _why(table: ExactTable) -> str:
    if not _measured(table, table.baseline):
        return f" ({table.baseline}: {table.reason(table.baseline)})"
    if table.seeds < 2:
        return " (one seed)"
    same = [
        name
        for name in table.others
        if any((cell := table.compared(name, VERIFIED, at)).difference and cell.difference.constant
               for at in table.radii)
    ]  # fmt: skip
    return ": the differences are the same in every seed" if same else ""


def _measured(table: ExactTable, variant: str) -> bool:
    return bool(table.counted(variant).total) or any(table.values(variant, VERIFIED, at) for at in table.radii)


def _variant_sentences(table: ExactTable) -> list[str]:
    """Where each variant is verified more or less, whatever was left open."""
    scale = common_scale([
        table.compared(name, metric, radius)
        for name in table.variants for metric in (VERIFIED, UPPER, UNDECIDED) for radius in table.radii
    ])  # fmt: skip
    asked = [(radius, each) for name in table.others for radius, each in tested(table, name, VERIFIED)]
    radii = [radius for radius, _ in asked]
    found = list(zip(radii, adjusted([each for _, each in asked]), strict=True))
    sentences, quiet = [], []
    for variant in dict.fromkeys(each.variant for _, each in found):
        own = [(radius, each) for radius, each in found if each.variant == variant]
        parts = [
            f"at {'' if table.stepped else 'ε = '}{table.radius(radius)} {_WORDS[each.tone]} {each.text(scale)}"
            for radius, each in own if each.resolved
        ]  # fmt: skip
        if not parts:
            quiet.append(variant)
            continue
        rest = len(own) - len(parts)
        more = f"; not resolved at {rest} other radi{'us' if rest == 1 else 'i'}" if rest else ""
        sentences.append(f"{variant}, verified accuracy: {'; '.join(parts)}{more}.")
    if quiet and sentences:  # Else the headline says it of all.
        sentences.append(f"{listed(quiet)}: no difference in verified accuracy to {table.baseline} is resolved.")
    return sentences


_WORDS = {"better": "higher", "worse": "lower", "": "not resolved after Holm's adjustment,"}


def _gap_sentence(table: ExactTable) -> str:
    """Each variant's largest gap, and how many differences of it are resolved."""
    if not any(table.values(each, BOUNDS, at) for each in table.variants for at in table.radii):
        return ""
    parts, none = [], True
    for variant in table.variants:
        gaps = {at: list(table.values(variant, GAP, at).values()) for at in table.radii}
        means = {at: mean_interval(each, magnitude=1.0).mean for at, each in gaps.items() if each}
        if means:
            at = max(means, key=lambda each: means[each])
            where = f"{100 * means[at]:.1f} pp at {'' if table.stepped else 'ε = '}{table.radius(at)}"
            parts.append(f"{variant} {where if means[at] else 0}")
            none = none and not means[at]
    if none:
        return f"Left on the table by bounds alone: nothing of {listed(table.variants)}." if parts else ""
    told = resolved_text(table, GAP, "gap", ("larger", "smaller"))
    return f"Left on the table by bounds alone, at most: {', '.join(parts)}" + (f"; of {told}" if told else "") + "."


def _distance_sentence(table: ExactTable, distances: Sequence[Distance]) -> str:
    cells = [table.compared(name, DISTANCE) for name in table.variants]
    if not any(cell.mean for cell in cells):
        return ""
    scale = common_scale(cells, "input")
    base = cells[0].mean
    head = "Mean adversarial distance proven" + (f", {table.baseline} {scale.number(base.mean)}" if base else "")
    own = [each.bracket for each in distances if each.bracket.p_holm is not None]
    if not own:
        return (
            f"{head}; no difference can be tested." if base else f"{head}: none for {table.baseline} to compare with."
        )
    words = {"better": "larger", "worse": "smaller", "": "not resolved"}
    told = ", ".join(f"{each.variant} {each.text(scale).replace(' input', '')} {words[each.tone]}" for each in own)
    return f"{head}; differences of the distances, which lie within both arms' brackets, in the input's units: {told}."


def _lack_sentence(table: ExactTable) -> str:
    """Which variants have no verdict at all, and why."""
    reasons: dict[str, list[str]] = {}
    for name in table.variants:
        if not _measured(table, name):
            reasons.setdefault(table.reason(name), []).append(name)
    told = "; ".join(f"{listed(names)}: {reason}" for reason, names in reasons.items())
    return f"Without a verdict: {told}." if told else ""
