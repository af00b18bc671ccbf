"""What exact verification says of completeness, cost and robustness, in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from evalsuite import listed, scale_of
from pipelines.smt.report.brackets import Bracket, adjusted
from pipelines.smt.report.cost import checked, percent_text, proofs_lack, seconds_text
from pipelines.smt.report.tables import NODES, PAR2, PROOFS, ExactTable, mean_of
from pipelines.smt.report.text import counted_text


def completeness_sentence(table: ExactTable) -> str:
    """The share of all questions that each variant's search decided."""
    counts = {name: table.counted(name) for name in table.variants}
    counts = {name: count for name, count in counts.items() if count.total}
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
        more += [f"×{ratio:.2g}"] if (ratio := _ratio(values, par2[table.baseline])) and name != table.baseline else []
        parts.append(f"{name} {seconds_text(mean)}" + (f" ({', '.join(more)})" if more else ""))
    if not parts:
        return ""
    return f"PAR-2 of a question, a clock reading without a verdict: {', '.join(parts)}."


def _ratio(own: dict[int, float], other: dict[int, float]) -> float | None:
    """Geometric mean over the common seeds."""
    seeds = sorted(own.keys() & other.keys())
    if not seeds or not all(own[seed] > 0 and other[seed] > 0 for seed in seeds):
        return None
    return math.exp(math.fsum(math.log(own[seed] / other[seed]) for seed in seeds) / len(seeds))


def proofs_sentence(table: ExactTable) -> str:
    """How many of the samples that hold have a checked proof."""
    if not table.has(PROOFS):
        return ""
    parts: list[str] = []
    none: dict[str, list[str]] = {}
    for name in table.variants:
        holds = table.counted(name).holds
        found = checked(table, name)
        if holds and found:
            parts.append(f"{name} {'all' if found == holds else f'{found} of'} {holds}")
        elif holds:
            none.setdefault(proofs_lack(table, name), []).append(f"{name} none of {holds}")
    told = [", ".join(parts)] if parts else []
    told += [", ".join(names) + (f" ({reason})" if reason else "") for reason, names in none.items()]
    return (
        f"Of what holds, with a proof checked apart from the prover: {'; '.join(told) or 'nothing, for nothing holds'}."
    )


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


def completeness_total(tables: Sequence[ExactTable]) -> str:
    """The share of all questions that each variant's search decided, over all tables."""
    parts = []
    for name in tables[0].variants if tables else ():
        counts = [count for table in tables if (count := table.counted(name)).total]
        total = sum(count.total for count in counts)
        if total:
            decided = sum(count.decided for count in counts)
            parts.append(f"{name} {percent_text(decided / total)} of {total:,}")
    return f"Decided of all robustness questions asked: {', '.join(parts)}." if parts else ""
