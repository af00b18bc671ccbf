"""What pruned networks say in words: where variants differ, what pruning costs each, what the
choice mattered.
"""

from __future__ import annotations

from collections.abc import Sequence

from evalsuite.report.areas import area_text
from evalsuite.report.numerals import Scale, grouped, listed, ranges_text, sentence
from evalsuite.report.paired import (
    Compared,
    ends_text,
    interval_text,
    resolved_text,
    tally,
    where_text,
)
from evalsuite.report.section import Finding
from evalsuite.report.statistics import after_holm
from pipelines.prune.report.tables import (
    ACCURACY,
    BEFORE,
    PruningTable,
    Sweep,
    SweepArea,
    Treatment,
)
from pipelines.prune.report.text import equals, table_scale

RANDOM = "random"
_WAYS = ("better", "worse")
_Cells = list[tuple[Treatment, Compared]]


def finding(table: PruningTable, areas: Sequence[SweepArea]) -> Finding:
    """At which sparsities the variants differ, with and without fine-tuning, and what pruning
    costs each of them.
    """
    sentences: list[str] = []
    for sweep in table.sweeps:
        told, quiet, before = [], [], False
        for name in table.others:
            own, untuned = (_cells(table, sweep, name, metric) for metric in (ACCURACY, BEFORE))
            if any(cell.resolved for _, cell in own + untuned):
                told.append(_variant_sentence(table, sweep, name))
            elif own + untuned:
                quiet.append(name)
                before = before or bool(untuned)
        if quiet:
            how = "with or without fine-tuning" if sweep.tuned and before else _how(sweep.tuned)
            told.append(
                f"{listed(quiet)}: no difference to {table.baseline} is resolved at any sparsity,"
                f" {how}."
            )
        told += filter(None, (_losses(table, sweep), _area_sentence(table, sweep, areas)))
        sentences += [f"{sweep.method}: {text}" if len(table.sweeps) > 1 else text for text in told]
    errors = [
        value
        for treatment in table.treatments
        if not treatment.control
        for name in table.variants
        for value in table.values(treatment.step, name, "equality_error").values()
    ]
    if errors:
        worst = f"the largest error of {len(errors)} networks is {max(errors):.1e}"
        errors_told = [f"Removing channels gives the outputs of zeroing them: {worst}."]
    return Finding(
        table.workload,
        _headline(table),
        (*sentences, *_random_sentences(table), *(errors_told if errors else ())),
    )


def overall(tables: Sequence[PruningTable]) -> Finding | None:
    """How many differences of all sweeps are left after Holm, with fine-tuning; None where one
    workload says it all.
    """
    cells = [cell for table in tables for cell in _every(table, ACCURACY) if cell.p is not None]
    if len({table.workload for table in tables}) < 2 or not cells:
        return None
    what = f"differences to {tables[0].baseline} at equal sparsity"
    return Finding("all workloads", f"{resolved_text(cells, what)}.", ())


def _how(tuned: bool) -> str:
    return "after fine-tuning" if tuned else "without fine-tuning"


def _cells(table: PruningTable, sweep: Sweep, variant: str, metric: str = ACCURACY) -> _Cells:
    """Return the sparsities at which a variant can be compared with the baseline, with the
    comparisons.
    """
    cells = [
        (treatment, table.paired(treatment.step, variant, metric)) for treatment in sweep.treatments
    ]
    return [(each, cell) for each, cell in cells if cell.bracketed]


def _every(table: PruningTable, metric: str) -> list[Compared]:
    return [
        cell
        for sweep in table.sweeps
        for name in table.others
        for _, cell in _cells(table, sweep, name, metric)
    ]


def _headline(table: PruningTable) -> str:
    after, before = _every(table, ACCURACY), _every(table, BEFORE)
    tuned = any(sweep.tuned for sweep in table.sweeps)
    if not after:
        paired = any(
            table.paired(treatment.step, name).difference
            for treatment in table.treatments
            for name in table.others
        )
        none = f"No pruned network can be compared with {table.baseline}."
        return "One seed: no interval, so nothing is claimed." if paired else none
    text = f"{tally(after).capitalize()} differences to {table.baseline} resolved {_how(tuned)}"
    text += f", {tally(before)} before it" if before and tuned else ""
    return f"{text}; {after_holm(cell.p for cell in [*after, *(before if tuned else ())])}."


def _variant_sentence(table: PruningTable, sweep: Sweep, variant: str) -> str:
    """Where it differs, and whether the gaps of pruned networks are others than that of the same
    networks unpruned.
    """
    scale, own = table_scale(table), _cells(table, sweep, variant)
    before = _cells(table, sweep, variant, BEFORE) if sweep.tuned else []
    text = f"{variant}: {'after fine-tuning ' * sweep.tuned}{_where(own, scale)}"
    text += f"; before it {_where(before, scale)}." if before else "."
    plain = table.paired(table.unpruned, variant) if table.unpruned else Compared(variant)
    if plain.difference is None or not plain.bracketed:
        return text
    moves = {each: Compared(variant, cell.gap, plain.gap) for each, cell in own}
    changed = {
        each: moved.difference
        for each, moved in moves.items()
        if moved.resolved and moved.difference
    }
    shares = _shares(list(changed), [each for each, _ in own]) if changed else ""
    where = f"at {shares} ({ends_text(list(changed.values()), scale)})" if changed else "nowhere"
    gap = f"{interval_text(plain.difference, scale)}{'' if plain.resolved else ', not resolved'}"
    how = " with fine-tuning" * sweep.tuned
    return f"{text} Unpruned its gap is {gap}; pruning{how} changes that gap resolvedly {where}."


def _where(cells: _Cells, scale: Scale) -> str:
    """ "worse at 75 % (−1.2 pp [−2.0, −0.4]), not resolved at 25 % and 50 %"."""
    every = [each for each, _ in cells]
    return (
        where_text(cells, _WAYS, scale, lambda found: _shares(found, every))
        if cells
        else "not compared"
    )


def _shares(found: Sequence[Treatment], every: Sequence[Treatment]) -> str:
    return ranges_text(found, every, lambda each: each.share)


def _losses(table: PruningTable, sweep: Sweep) -> str:
    """Up to which sparsity no loss shows, for each variant against its own networks that are not
    pruned.
    """
    scale, free = table_scale(table), []
    reference = sweep.control.step if sweep.control else table.unpruned
    for variant in table.variants if reference else ():
        cells = [
            (treatment, table.against(treatment.step, reference, variant))
            for treatment in sweep.treatments
        ]
        tested = [(each, cell) for each, cell in cells if cell.bracketed]
        if not tested:
            continue
        # The last sparsity before the first resolved loss; its interval says what is not excluded.
        lost = next((i for i, (_, cell) in enumerate(tested) if cell.tone == "worse"), len(tested))
        each, cell = tested[max(lost - 1, 0)]
        if lost == 0:
            told, loss = f"one is resolved at {each.share} already", cell.difference
            free.append((told, f"{variant} ({interval_text(loss, scale)})" if loss else variant))
            continue
        bound = (
            ""
            if cell.difference is None or cell.difference.low is None
            else (
                f" (a loss of {scale.number(max(0.0, -cell.difference.low))}"
                f" {scale.difference_unit} is not excluded there)"
            )
        )
        free.append((f"none is resolved up to {each.share}", variant + bound))
    than = (
        "networks that were fine-tuned alike and not pruned"
        if sweep.control
        else "unpruned networks"
    )
    parts = (f"{each} for {listed(names)}" for each, names in grouped(free).items())
    return sentence(f"Loss of each variant against its own {than}: ", parts, "; ")


def _area_sentence(table: PruningTable, sweep: Sweep, areas: Sequence[SweepArea]) -> str:
    own = [area for area in areas if area.method == sweep.method and area.difference is not None]
    parts = (
        f"over {axis.label}{' (timing)' * axis.timing} {', '.join(told)}"
        for axis, told in grouped(
            (each.axis, f"{each.variant} {area_text(each)}") for each in own
        ).items()
    )
    resolved = [f"{each.variant} {each.tone} over {each.axis.label}" for each in own if each.tone]
    verdict = listed(resolved) if resolved else "none resolved"
    return sentence(f"Mean height above {table.baseline}'s curve, ", parts, "; ", f": {verdict}.")


def _random_sentences(table: PruningTable) -> list[str]:
    """Whether each importance beats random channels of the same sparsity, method and budget."""
    scale, found = table_scale(table), []

    def versus(one: Treatment, other: Treatment, metric: str) -> str:
        cells = [
            (name, table.against(one.step, other.step, name, metric)) for name in table.variants
        ]
        cells = [(name, cell) for name, cell in cells if cell.bracketed]
        return (
            where_text(cells, _WAYS, scale, listed, at=("for", "for")) if cells else "not compared"
        )

    for group in equals(table):
        for control in (each for each in group if each.importance == RANDOM):
            for each in group:
                # Sorted pairs of which those of the importance differ.
                if each.importance == RANDOM or {
                    name for name, _ in {*each.key} ^ {*control.key}
                } != {"importance"}:
                    continue
                tuned = {ACCURACY: "after fine-tuning", BEFORE: "before it"}
                asked = tuned if each.tuned else {ACCURACY: "not fine-tuned"}
                parts = (
                    f"{told}, {versus(each, control, metric)}" for metric, told in asked.items()
                )
                found.append(
                    sentence(
                        f"{each.importance} against random channels at {each.share}: ", parts, "; "
                    )
                )
    return found
