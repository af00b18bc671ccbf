"""What exact verification says in words: what is decided and at what cost, where variants differ, the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evalsuite import Compared, Finding, common_scale, listed, mean_interval, percent_text, scale_of
from pipelines.smt.report.brackets import Bracket, adjusted
from pipelines.smt.report.cost import checked, proofs_lack, scaled_text
from pipelines.smt.report.tables import (
    BOUNDS,
    DISTANCE,
    GAP,
    NODES,
    PAR2,
    PROOFS,
    SAME,
    UNDECIDED,
    UPPER,
    VERIFIED,
    ExactTable,
    mean_of,
)
from pipelines.smt.report.text import agreement_of, alike, asked_text, counted_text, tested


def completeness_sentence(table: ExactTable) -> str:
    """The share of all questions that each variant's search decided."""
    counts = {name: count for name in table.variants if (count := table.counted(name)).total}
    if not counts:
        return ""
    if all(not count.open for count in counts.values()):
        total = sum(count.total for count in counts.values())
        return f"Complete: every robustness question of {listed(counts)} was decided ({total:,} in all)."
    told = ", ".join(
        f"{name} {percent_text(count.decided / count.total)}" + (f" ({count.open} open)" if count.open else "")
        for name, count in counts.items()
    )
    return f"Decided of the robustness questions asked: {told}."


def cost_sentence(table: ExactTable) -> str:
    """PAR-2 and nodes of each variant, and how far they are from the baseline's."""
    par2 = {name: table.over_radii(name, PAR2) for name in table.variants}
    nodes = {name: mean_of(table.over_radii(name, NODES)) for name in table.variants}
    parts = []
    for name, values in par2.items():
        mean = mean_of(values)
        if mean is None:
            continue
        count = nodes[name]
        more = [f"{scale_of('count', [count]).number(count)} node{'s' * (count != 1)}"] if count is not None else []
        ratio = Compared(name, values, par2[table.baseline]).ratio if name != table.baseline else None
        more += [f"×{ratio.mean:.2g}"] if ratio else []
        parts.append(f"{name} {scaled_text(mean, 's')}" + (f" ({', '.join(more)})" if more else ""))
    if not parts:
        return ""
    return f"PAR-2 of a question, a clock reading without a verdict: {', '.join(parts)}."


def proofs_sentence(table: ExactTable) -> str:
    """How many of the samples that hold have a checked proof."""
    if not table.has(PROOFS):
        return ""
    parts: list[str] = []
    none: dict[str, list[str]] = {}
    for name in table.variants:
        holds, found = table.counted(name).holds, checked(table, name)
        if holds and found:
            parts.append(f"{name} {'all' if found == holds else f'{found} of'} {holds}")
        elif holds:
            none.setdefault(proofs_lack(table, name), []).append(f"{name} none of {holds}")
    told = [", ".join(parts)] if parts else []
    told += [", ".join(names) + (f" ({reason})" if reason else "") for reason, names in none.items()]
    all_told = "; ".join(told) or "nothing, for nothing holds"
    return f"Of what holds, with a proof checked apart from the prover: {all_told}."


def verified_more(brackets: Sequence[Bracket], baseline: str) -> str:
    """Which variants are verified more and which less, after Holm's adjustment for all of these; the answer first."""
    found = adjusted(brackets)
    better, worse = (Counter(each.variant for each in found if each.tone == tone) for tone in ("better", "worse"))
    head = f"Verified more than {baseline}: {_per_variant(better)}" if better else (
        f"No variant is shown to be verified more than {baseline}"
    )  # fmt: skip
    less = f"; less: {_per_variant(worse)}" if worse else ""
    asked = f"{len(found)} testable difference{'s' * (len(found) != 1)} in verified accuracy"
    return f"{head}{less}: of {asked}, open questions counted both ways, {counted_text(found)}."


def _per_variant(counts: Counter[str]) -> str:
    """ "relu (at 3 radii) and annealed (at 1 radius)", most first."""
    return listed(f"{name} (at {count} radi{'us' if count == 1 else 'i'})" for name, count in counts.most_common())


def overall(tables: Sequence[ExactTable]) -> Finding | None:
    """All workloads together; None where one step says it all."""
    own = [table for table in tables if any(tested(table, name, VERIFIED) for name in table.others)]
    if len(own) < 2:
        return None
    found = [each for table in own for name in table.others for _, each in tested(table, name, VERIFIED)]
    parts = []
    for name in tables[0].variants:
        counts = [table.counted(name) for table in tables]
        if total := sum(count.total for count in counts):
            parts.append(f"{name} {percent_text(sum(count.decided for count in counts) / total)} of {total:,}")
    decided = [f"Decided of all robustness questions asked: {', '.join(parts)}."] if parts else []
    return Finding("all workloads", verified_more(found, own[0].baseline), tuple(decided))


def agreement_sentence(table: ExactTable | None) -> str:
    """How many boxes of each variant have one class, what the rest is, and whether variants differ in it."""
    if table is None:
        return ""
    parts = []
    for name in table.variants:
        count = table.counted(name)
        notes = [f"{count.violated} with another class"] if count.violated else []
        notes += [f"{count.open} undecided"] if count.open else []
        if count.total:
            parts.append(f"{name} {count.holds} of {count.total}" + (f" ({', '.join(notes)})" if notes else ""))
    if not parts:
        return ""
    told = f"; of {resolved}" if (resolved := asked_text(table, SAME)) else ""
    return f"Same class as the float network for every real input of the box: {', '.join(parts)}{told}."


RULE = (
    "Verified accuracy is exact where nothing is undecided; otherwise it is a lower limit of how robust a network is, "
    "and what is not violated an upper one. A difference to the baseline is therefore taken both ways: all that was "
    "left open answered against the variant and for the baseline, and the reverse; it is resolved only where the end "
    "nearer to 0 is. Higher and lower are what is left of that after Holm's adjustment for all differences of the same "
    "finding. “Not resolved” means that these seeds cannot tell."
)


def finding(table: ExactTable, distances: Sequence[tuple[ExactTable, Bracket]], agreements: Sequence[ExactTable]
            ) -> Finding:  # fmt: skip
    """Robustness first, then what was decided, what bounds leave open, distances, cost and proofs; then classes."""
    if not table.radii:
        reasons = dict.fromkeys(table.reason(name) for name in table.variants)
        return Finding(table.label, "Nothing was verified exactly.", tuple(reasons))
    own = [each for of, each in distances if of is table and each.p_holm is not None]
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
    gaps = (table.compared(name, VERIFIED, at).difference for name in table.others for at in table.radii)
    return ": the differences are the same in every seed" if any(gap and gap.constant for gap in gaps) else ""


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
    told = asked_text(table, GAP, "gap", ("larger", "smaller"))
    return f"Left on the table by bounds alone, at most: {', '.join(parts)}" + (f"; of {told}" if told else "") + "."


def _distance_sentence(table: ExactTable, own: Sequence[Bracket]) -> str:
    cells = [table.compared(name, DISTANCE) for name in table.variants]
    if not any(cell.mean for cell in cells):
        return ""
    scale = common_scale(cells, "input")
    base = cells[0].mean
    head = "Mean adversarial distance proven" + (f", {table.baseline} {scale.number(base.mean)}" if base else "")
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
