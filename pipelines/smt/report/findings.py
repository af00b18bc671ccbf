"""What exact verification says in words: what is decided and at what cost, where variants
differ, the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evalsuite.report.numerals import grouped, listed, percent_text, scale_of, sentence
from evalsuite.report.paired import Compared, common_scale
from evalsuite.report.section import Finding
from evalsuite.report.statistics import mean_interval
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
    Bracket,
    ExactTable,
    adjusted,
    mean_of,
)
from pipelines.smt.report.text import (
    agreement_of,
    alike,
    asked_text,
    checked,
    counted_text,
    proofs_lack,
    scaled_text,
    tested,
)

_WORDS = {"better": "higher", "worse": "lower", "": "not resolved after Holm's adjustment,"}


def overall(tables: Sequence[ExactTable]) -> Finding | None:
    """All workloads together; None where one step says it all."""
    own = [table for table in tables if any(tested(table, name, VERIFIED) for name in table.others)]
    if len(own) < 2:
        return None
    found = [
        each for table in own for name in table.others for _, each in tested(table, name, VERIFIED)
    ]
    counts = {name: [table.counted(name) for table in tables] for name in tables[0].variants}
    parts = (
        f"{name} {percent_text(sum(count.decided for count in own) / total)} of {total:,}"
        for name, own in counts.items()
        if (total := sum(count.total for count in own))
    )
    decided = sentence("Decided of all robustness questions asked: ", parts)
    return Finding(
        "all workloads", verified_more(found, own[0].baseline), tuple(filter(None, [decided]))
    )


def finding(
    table: ExactTable,
    distances: Sequence[tuple[ExactTable, Bracket]],
    agreements: Sequence[ExactTable],
) -> Finding:
    """Robustness first, then what was decided, what bounds leave open, distances, cost and
    proofs; then classes.
    """
    if not table.radii:
        reasons = dict.fromkeys(table.reason(name) for name in table.variants)
        return Finding(table.label, "Nothing was verified exactly.", tuple(reasons))
    own = [each for of, each in distances if of is table and each.p_holm is not None]
    lacks = grouped(
        (table.reason(name), name) for name in table.variants if not _measured(table, name)
    )
    sentences = [
        _completeness_sentence(table),
        *_variant_sentences(table),
        _gap_sentence(table),
        _distance_sentence(table, own),
        _cost_sentence(table),
        _proofs_sentence(table),
        sentence(
            "Without a verdict: ",
            (f"{listed(names)}: {reason}" for reason, names in lacks.items()),
            "; ",
        ),
        _agreement_sentence(agreement_of(table, agreements)),
    ]
    return Finding(table.label, _headline(table), tuple(filter(None, sentences)))


def _headline(table: ExactTable) -> str:
    """Whether any variant is verified more, or why that cannot be told."""
    found = [each for name in table.others for _, each in tested(table, name, VERIFIED)]
    if found:
        return verified_more(found, table.baseline)
    if table.others and alike(
        [table.compared(name, VERIFIED, at) for name in table.variants] for at in table.radii
    ):
        seeds = "every seed" if table.seeds > 1 else "the one seed"
        return (
            f"All variants verify the same share at every radius, in {seeds}: nothing to compare."
        )
    gaps = (
        table.compared(name, VERIFIED, at).difference for name in table.others for at in table.radii
    )
    why = ": the differences are the same in every seed" * any(gap and gap.constant for gap in gaps)
    if not _measured(table, table.baseline):
        why = f" ({table.baseline}: {table.reason(table.baseline)})"
    elif table.seeds < 2:
        why = " (one seed)"
    return f"No verified accuracy can be compared with {table.baseline}'s over several seeds{why}."


def _measured(table: ExactTable, variant: str) -> bool:
    return bool(table.counted(variant).total) or any(
        table.values(variant, VERIFIED, at) for at in table.radii
    )


def verified_more(brackets: Sequence[Bracket], baseline: str) -> str:
    """Which variants are verified more and which less, after Holm's adjustment for all of these;
    the answer first.
    """
    found = adjusted(brackets)

    def told(tone: str) -> str:
        """ "relu (at 3 radii) and annealed (at 1 radius)", most first."""
        counts = Counter(each.variant for each in found if each.tone == tone).most_common()
        return listed(f"{name} (at {n} {_radii(n)})" for name, n in counts) if counts else ""

    better, worse = told("better"), told("worse")
    head = (
        f"Verified more than {baseline}: {better}"
        if better
        else (f"No variant is shown to be verified more than {baseline}")
    )
    less = f"; less: {worse}" if worse else ""
    asked = f"{len(found)} testable difference{'s' * (len(found) != 1)} in verified accuracy"
    return f"{head}{less}: of {asked}, open questions counted both ways, {counted_text(found)}."


def _radii(count: int) -> str:
    return "radius" if count == 1 else "radii"


def _completeness_sentence(table: ExactTable) -> str:
    """The share of all questions that each variant's search decided."""
    counts = {name: count for name in table.variants if (count := table.counted(name)).total}
    if counts and not any(count.open for count in counts.values()):
        total = sum(count.total for count in counts.values())
        return (
            f"Complete: every robustness question of {listed(counts)} was decided ({total:,} in"
            " all)."
        )
    told = (
        f"{name} {percent_text(count.decided / count.total)}"
        f"{f' ({count.open} open)' if count.open else ''}"
        for name, count in counts.items()
    )
    return sentence("Decided of the robustness questions asked: ", told)


def _cost_sentence(table: ExactTable) -> str:
    """PAR-2 and nodes of each variant, and how far they are from the baseline's."""
    par2 = {name: table.over_radii(name, PAR2) for name in table.variants}
    parts = []
    for name, values in par2.items():
        mean, count = mean_of(values), mean_of(table.over_radii(name, NODES))
        if mean is None:
            continue
        more = (
            [f"{scale_of('count', [count]).number(count)} node{'s' * (count != 1)}"]
            if count is not None
            else []
        )
        ratio = (
            Compared(name, values, par2[table.baseline]).ratio if name != table.baseline else None
        )
        more += [f"×{ratio.mean:.2g}"] if ratio else []
        parts.append(f"{name} {scaled_text(mean, 's')}" + (f" ({', '.join(more)})" if more else ""))
    return sentence("PAR-2 of a question, a clock reading without a verdict: ", parts)


def _proofs_sentence(table: ExactTable) -> str:
    """How many of the samples that hold have a checked proof."""
    if not table.has(PROOFS):
        return ""
    counts = [(name, table.counted(name).holds, checked(table, name)) for name in table.variants]
    parts = [
        f"{name} {'all' if found == holds else f'{found} of'} {holds}"
        for name, holds, found in counts
        if holds and found
    ]
    none = grouped(
        (proofs_lack(table, name), f"{name} none of {holds}")
        for name, holds, found in counts
        if holds and not found
    )
    told = [", ".join(parts)] if parts else []
    told += [
        ", ".join(names) + (f" ({reason})" if reason else "") for reason, names in none.items()
    ]
    every = told or ["nothing, for nothing holds"]
    return sentence("Of what holds, with a proof checked apart from the prover: ", every, "; ")


def _agreement_sentence(table: ExactTable | None) -> str:
    """How many boxes of each variant have one class, what the rest is, and whether variants
    differ in it.
    """
    if table is None:
        return ""
    parts = []
    for name, count in ((name, table.counted(name)) for name in table.variants):
        notes = [f"{count.violated} with another class"] * bool(count.violated)
        notes += [f"{count.open} undecided"] * bool(count.open)
        if count.total:
            parts.append(
                f"{name} {count.holds} of {count.total}"
                + (f" ({', '.join(notes)})" if notes else "")
            )
    told = f"; of {resolved}." if (resolved := asked_text(table, SAME)) else "."
    return sentence(
        "Same class as the float network for every real input of the box: ", parts, end=told
    )


def _variant_sentences(table: ExactTable) -> list[str]:
    """Where each variant is verified more or less, whatever was left open."""
    scale = common_scale(
        [
            table.compared(name, metric, radius)
            for name in table.variants
            for metric in (VERIFIED, UPPER, UNDECIDED)
            for radius in table.radii
        ]
    )
    asked = [
        (radius, each) for name in table.others for radius, each in tested(table, name, VERIFIED)
    ]
    found = zip((radius for radius, _ in asked), adjusted([each for _, each in asked]), strict=True)
    sentences, quiet = [], []
    for variant, own in grouped((each.variant, (radius, each)) for radius, each in found).items():
        parts = [
            f"at {table.at(radius)} {_WORDS[each.tone]} {each.text(scale)}"
            for radius, each in own
            if each.resolved
        ]
        rest = len(own) - len(parts)
        more = f"; not resolved at {rest} other {_radii(rest)}." if rest else "."
        quiet += [variant] * (not parts)
        sentences += [sentence(f"{variant}, verified accuracy: ", parts, "; ", more)] * bool(parts)
    if quiet and sentences:  # Else the headline says it of all.
        sentences.append(
            f"{listed(quiet)}: no difference in verified accuracy to {table.baseline} is resolved."
        )
    return sentences


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
            parts.append(
                f"{variant} {f'{100 * means[at]:.1f} pp at {table.at(at)}' if means[at] else 0}"
            )
            none = none and not means[at]
    if none:
        return (
            f"Left on the table by bounds alone: nothing of {listed(table.variants)}."
            if parts
            else ""
        )
    told = asked_text(table, GAP, "gap", ("larger", "smaller"))
    return sentence(
        "Left on the table by bounds alone, at most: ", parts, end=f"; of {told}." if told else "."
    )


def _distance_sentence(table: ExactTable, own: Sequence[Bracket]) -> str:
    cells = [table.compared(name, DISTANCE) for name in table.variants]
    if not any(cell.mean for cell in cells):
        return ""
    scale, base = common_scale(cells, "input"), cells[0].mean
    head = "Mean adversarial distance proven" + (
        f", {table.baseline} {scale.number(base.mean)}" if base else ""
    )
    if not own:
        return (
            f"{head}; no difference can be tested."
            if base
            else f"{head}: none for {table.baseline} to compare with."
        )
    words = {"better": "larger", "worse": "smaller", "": "not resolved"}
    told = (
        f"{bracket.variant} {bracket.text(scale).replace(' input', '')} {words[bracket.tone]}"
        for bracket in own
    )
    head = (
        f"{head}; differences of the distances, which lie within both arms' brackets, in the"
        " input's units: "
    )
    return sentence(head, told)
