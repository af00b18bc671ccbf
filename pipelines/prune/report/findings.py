"""What pruned networks say in words: where variants differ, what pruning costs each, what the choice mattered."""

from __future__ import annotations

from collections.abc import Sequence

from evalsuite import (
    Compared,
    Finding,
    Scale,
    after_holm,
    area_text,
    ends_text,
    interval_text,
    listed,
    ranges_text,
    resolved_text,
    tally,
    where_text,
)
from pipelines.prune.report.sweep_areas import SweepArea
from pipelines.prune.report.tables import ACCURACY, BEFORE, PruningTable, Sweep, Treatment
from pipelines.prune.report.text import equals, table_scale

RULE = (
    "“Not resolved” means that these seeds cannot tell, not that networks are equal. A gap between pruned networks is "
    "put down to pruning only where it differs resolvedly from the gap of the same networks unpruned, paired by seed."
)
RANDOM = "random"
_WAYS = ("better", "worse")


def finding(table: PruningTable, areas: Sequence[SweepArea]) -> Finding:
    """At which sparsities the variants differ, with and without fine-tuning, and what pruning costs each of them."""
    sentences = []
    for sweep in table.sweeps:
        head = f"{sweep.method}: " if len(table.sweeps) > 1 else ""
        tested = {name: [cell for metric in (ACCURACY, BEFORE) for _, cell in _cells(table, sweep, name, metric)]
                  for name in table.others}  # fmt: skip
        quiet = [name for name, cells in tested.items() if cells and not any(cell.resolved for cell in cells)]
        sentences += [head + _variant_sentence(table, sweep, name) for name, cells in tested.items()
                      if any(cell.resolved for cell in cells)]  # fmt: skip
        if quiet:
            before = sweep.tuned and any(_cells(table, sweep, name, BEFORE) for name in quiet)
            how = "with or without fine-tuning" if before else _how(sweep.tuned)
            told = f"{listed(quiet)}: no difference to {table.baseline} is resolved at any sparsity, {how}."
            sentences.append(head + told)
        sentences += [head + text for text in (_losses(table, sweep), _area_sentence(table, sweep, areas)) if text]
    sentences += [*_random_sentences(table), *_equality_sentence(table)]
    return Finding(table.workload, _headline(table), tuple(sentences))


def overall(tables: Sequence[PruningTable]) -> Finding | None:
    """How many differences of all sweeps are left after Holm, with fine-tuning; None where one workload says it all."""
    cells = [
        cell for table in tables for sweep in table.sweeps for name in table.others
        for _, cell in _cells(table, sweep, name, ACCURACY) if cell.p is not None
    ]  # fmt: skip
    if len({table.workload for table in tables}) < 2 or not cells:
        return None
    what = f"differences to {tables[0].baseline} at equal sparsity"
    return Finding("all workloads", f"{resolved_text(cells, what)}.", ())


def _how(tuned: bool) -> str:
    return "after fine-tuning" if tuned else "without fine-tuning"


def _cells(table: PruningTable, sweep: Sweep, variant: str, metric: str) -> list[tuple[Treatment, Compared]]:
    """Of the sparsities that compare with the baseline."""
    cells = [(each, table.paired(each.step, variant, metric)) for each in sweep.treatments]
    return [(each, cell) for each, cell in cells if cell.bracketed]


def _headline(table: PruningTable) -> str:
    after, before = (
        [cell for sweep in table.sweeps for name in table.others for _, cell in _cells(table, sweep, name, metric)]
        for metric in (ACCURACY, BEFORE)
    )
    tuned = any(each.tuned for each in table.sweeps)
    if not after:
        paired = any(table.paired(each.step, name).difference for each in table.treatments for name in table.others)
        return "One seed: no interval, so nothing is claimed." if paired else (
            f"No pruned network can be compared with {table.baseline}."
        )  # fmt: skip
    every = [*after, *(before if tuned else ())]
    text = f"{tally(after).capitalize()} differences to {table.baseline} resolved {_how(tuned)}"
    text += f", {tally(before)} before it" if before and tuned else ""
    return f"{text}; {after_holm(cell.p for cell in every)}."


def _variant_sentence(table: PruningTable, sweep: Sweep, variant: str) -> str:
    scale = table_scale(table)
    text = f"{variant}: " + ("after fine-tuning " if sweep.tuned else "")
    text += _where(_cells(table, sweep, variant, ACCURACY), scale)
    before = _cells(table, sweep, variant, BEFORE) if sweep.tuned else []
    text += f"; before it {_where(before, scale)}" if before else ""
    return f"{text}.{_beyond(table, sweep, variant, scale)}"


def _where(cells: Sequence[tuple[Treatment, Compared]], scale: Scale) -> str:
    """ "worse at 75 % (−1.2 pp [−2.0, −0.4]), not resolved at 25 % and 50 %"."""
    every = [each for each, _ in cells]
    return where_text(cells, _WAYS, scale, lambda found: _shares(found, every)) if cells else "not compared"


def _shares(found: Sequence[Treatment], every: Sequence[Treatment]) -> str:
    return ranges_text(found, every, lambda each: each.share)


def _beyond(table: PruningTable, sweep: Sweep, variant: str, scale: Scale) -> str:
    """Whether the gaps of pruned networks are others than the gap that the same networks have unpruned."""
    plain = table.paired(table.unpruned, variant) if table.unpruned else Compared(variant)
    if plain.difference is None or not plain.bracketed:
        return ""
    cells = _cells(table, sweep, variant, ACCURACY)
    changed = {}
    for each, cell in cells:
        moved = Compared(variant, cell.gap, plain.gap)
        if moved.difference is not None and moved.resolved:
            changed[each] = moved.difference
    shares = _shares(list(changed), [each for each, _ in cells]) if changed else ""
    where = f"at {shares} ({ends_text(list(changed.values()), scale)})" if changed else "nowhere"
    told = f" Unpruned its gap is {interval_text(plain.difference, scale)}{'' if plain.resolved else ', not resolved'}"
    how = " with fine-tuning" if sweep.tuned else ""
    return f"{told}; pruning{how} changes that gap resolvedly {where}."


def _losses(table: PruningTable, sweep: Sweep) -> str:
    """Up to which sparsity no loss shows, for each variant against its own networks that are not pruned."""
    scale = table_scale(table)
    reference = sweep.control.step if sweep.control else table.unpruned
    if not reference:
        return ""
    free: dict[str, list[str]] = {}
    for variant in table.variants:
        cells = [(each, table.against(each.step, reference, variant)) for each in sweep.treatments]
        tested = [(each, cell) for each, cell in cells if cell.bracketed]
        if not tested:
            continue
        lost = next((i for i, (_, cell) in enumerate(tested) if cell.tone == "worse"), len(tested))
        if lost == 0:
            first = tested[0][1].difference
            told = f"one is resolved at {tested[0][0].share} already"
            free.setdefault(told, []).append(f"{variant} ({interval_text(first, scale)})" if first else variant)
            continue
        each, cell = tested[lost - 1]
        bound = "" if cell.difference is None or cell.difference.low is None else (
            f" (a loss of {scale.number(max(0.0, -cell.difference.low))} {scale.difference_unit} is not excluded there)"
        )  # fmt: skip
        free.setdefault(f"none is resolved up to {each.share}", []).append(variant + bound)
    if not free:
        return ""
    than = "networks that were fine-tuned alike and not pruned" if sweep.control else "unpruned networks"
    told = "; ".join(f"{each} for {listed(names)}" for each, names in free.items())
    return f"Loss of each variant against its own {than}: {told}."


def _area_sentence(table: PruningTable, sweep: Sweep, areas: Sequence[SweepArea]) -> str:
    own = [each for each in areas if each.method == sweep.method and each.difference is not None]
    if not own:
        return ""
    parts = []
    for axis in dict.fromkeys(each.axis for each in own):
        told = ", ".join(f"{each.variant} {area_text(each)}" for each in own if each.axis == axis)
        parts.append(f"over {axis.label}{' (timing)' if axis.timing else ''} {told}")
    resolved = [each for each in own if each.tone]
    verdict = listed(f"{each.variant} {each.tone} over {each.axis.label}" for each in resolved) if resolved else (
        "none resolved"
    )  # fmt: skip
    return f"Mean height above {table.baseline}'s curve, {'; '.join(parts)}: {verdict}."


def _random_sentences(table: PruningTable) -> list[str]:
    """Whether each importance beats random channels of the same sparsity, method and budget."""
    scale = table_scale(table)
    found = []
    for group in equals(table):
        for control in (each for each in group if each.importance == RANDOM):
            for each in group:
                # Sorted pairs of which those of the importance differ.
                if each.importance == RANDOM or {name for name, _ in {*each.key} ^ {*control.key}} != {"importance"}:
                    continue
                asked = {ACCURACY: "after fine-tuning", BEFORE: "before it"} if each.tuned else {
                    ACCURACY: "not fine-tuned"
                }  # fmt: skip
                parts = [f"{told}, {_versus(table, each, control, metric, scale)}" for metric, told in asked.items()]
                found.append(f"{each.importance} against random channels at {each.share}: {'; '.join(parts)}.")
    return found


def _versus(table: PruningTable, one: Treatment, other: Treatment, metric: str, scale: Scale) -> str:
    cells = [(name, table.against(one.step, other.step, name, metric)) for name in table.variants]
    cells = [(name, cell) for name, cell in cells if cell.bracketed]
    return where_text(cells, _WAYS, scale, listed, at=("for", "for")) if cells else "not compared"


def _equality_sentence(table: PruningTable) -> list[str]:
    errors = [
        value for each in table.treatments if not each.control for name in table.variants
        for value in table.values(each.step, name, "equality_error").values()
    ]  # fmt: skip
    told = "Removing channels gives the outputs of zeroing them: the largest error of"
    return [f"{told} {len(errors)} networks is {max(errors):.1e}."] if errors else []
